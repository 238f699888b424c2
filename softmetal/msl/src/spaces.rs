//! What clang says of address spaces, in Metal's words.

use crate::diagnostics::{is_header, message};
use crate::error::Message;
use std::process::Output;

/// The mistakes among the errors. Clang's dialect and our headers differ from Metal in more than its spaces, so an error
/// counts only if it is about two spaces of Metal's, in the author's own lines.
pub(crate) fn mistakes(output: &Output) -> Vec<Message> {
    among(&String::from_utf8_lossy(&output.stderr))
}

fn among(text: &str) -> Vec<Message> {
    let mut found: Vec<Message> = Vec::new();
    let mut call: Option<Message> = None;
    for line in text.lines() {
        if let Some(error) = message(line, "error: ") {
            call = None;
            if is_header(&error.file) {
                continue;
            }
            let error = Message {
                text: in_full(&error.text),
                ..error
            };
            if is_mistake(&error.text) {
                found.push(error);
            } else if error.text.starts_with("no matching") || error.text.starts_with("no viable") {
                call = Some(error);
            }
        } else if let Some(note) = message(line, "note: ") {
            let why = in_full(&note.text);
            if is_mistake(&why) {
                if let Some(error) = call.take() {
                    let text = format!("{} ({why})", error.text);
                    found.push(Message { text, ..error });
                }
            }
        }
    }
    for message in &mut found {
        message.text = in_metal(&message.text);
    }
    found.dedup();
    found
}

const SPACES: &[(&str, &str)] = &[
    ("__global_device", "device"),
    ("__global_host", "constant"),
    ("__local", "threadgroup"),
    ("__private", "thread"),
];

/// Whether a message is about two types that point into different spaces, all of them Metal's.
fn is_mistake(text: &str) -> bool {
    // Of parameters, members and results.
    if text.contains("not be qualified with") && text.ends_with("address space") {
        return true;
    }
    let types: Vec<Pointee> = text
        .split('\'')
        .skip(1)
        .step_by(2)
        .map(Pointee::read)
        .filter(|pointee| !pointee.spaces.is_empty())
        .collect();
    let [one, other] = types.as_slice() else {
        return false;
    };
    let ours = |space: &&str| SPACES.iter().any(|(name, _)| name == space);
    one.spaces != other.spaces
        && one.spaces.iter().chain(&other.spaces).all(ours)
        && one.depth == other.depth
        && (one.depth > 0 || one.name == other.name)
}

/// Clang's spelling of a type taken apart.
struct Pointee<'a> {
    /// Without that of the variable that holds a pointer.
    spaces: Vec<&'a str>,
    /// How many pointers or arrays deep.
    depth: usize,
    name: String,
}

impl<'a> Pointee<'a> {
    fn read(text: &'a str) -> Self {
        let pointers = text.matches('*').count();
        let end = text.rfind('*').unwrap_or(text.len());
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let is_space = |word: &&str| {
            ["__generic", "__global", "__constant"].contains(word)
                || SPACES.iter().any(|(name, _)| name == word)
        };
        let words = || {
            text[..end]
                .split(|c| !word(c))
                .filter(|word| !word.is_empty())
        };
        let name: Vec<_> = words()
            .filter(|word| !is_space(word) && *word != "const")
            .collect();
        Self {
            spaces: words().filter(is_space).collect(),
            depth: pointers.max(usize::from(text.contains('['))),
            name: name.join(" "),
        }
    }
}

/// The message with what the names of types stand for: 'P' (aka 'device float *') is the latter.
fn in_full(text: &str) -> String {
    let mut full = String::new();
    for part in text.split_inclusive("')") {
        match part.split_once(" (aka '") {
            Some((before, meaning)) => {
                full += &before[..before[..before.len() - 1].rfind('\'').unwrap_or(0)];
                full += &format!("'{}'", meaning.trim_end_matches("')"));
            }
            None => full += part,
        }
    }
    full
}

fn in_metal(text: &str) -> String {
    let mut text = text.replace("*__private", "*");
    text = text.replace("const __global_host", "constant");
    for (clang, metal) in SPACES {
        text = text.replace(clang, metal);
    }
    text.replace("_Float16", "half").replace("__bf16", "bfloat")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        among(text).iter().map(Message::to_string).collect()
    }

    #[test]
    fn messages_are_in_metals_words() {
        let text = "a.metal:3:9: error: cannot initialize a variable of type '__private Q' (aka '__local _Float16 *__private') with an lvalue of type 'const __global_host _Float16 *__private'";
        assert_eq!(
            said(text),
            ["a.metal:3:9: error: cannot initialize a variable of type 'threadgroup half *' with an lvalue of type 'constant half *'"]
        );
    }

    #[test]
    fn calls_say_what_is_wrong_with_the_candidate() {
        let text = "a.metal:3:9: error: no matching function for call to 'g'\n\
                    a.metal:1:6: note: candidate function not viable: cannot pass pointer to address space '__private' as a pointer to address space '__global_device' in 1st argument";
        assert_eq!(
            said(text),
            ["a.metal:3:9: error: no matching function for call to 'g' (candidate function not viable: cannot pass pointer to address space 'thread' as a pointer to address space 'device' in 1st argument)"]
        );
    }

    #[test]
    fn only_two_spaces_of_metal_make_a_mistake() {
        for text in [
            "assigning '__generic float *' to '__local float *' changes address space of pointer",
            "binding reference of type 'const __global_host int' to value of type 'const __global int' changes address space",
            "incompatible operand types ('vec<...>' and '__private vec<...>')",
            "invalid operands to binary expression ('__global_device half *__private' and '__private S')",
            "no member named 'q' in '__private S'",
        ] {
            assert!(said(&format!("a.metal:1:1: error: {text}")).is_empty(), "{text}");
        }
        let text = "/c/softmetal/vec.h:3:1: error: assigning '__private float *' to '__local float *' changes address space of pointer";
        assert!(said(text).is_empty());
    }
}
