//! What clang prints, as messages on the author's lines.

use crate::edits::Columns;
use crate::error::{CompileError, Message};
use std::process::Output;

/// The errors of a failed run.
pub(crate) fn failure(output: &Output, place: impl Fn(Message) -> Message) -> CompileError {
    let text = String::from_utf8_lossy(&output.stderr);
    let messages = with_context(&text, "error: ");
    if messages.is_empty() {
        let signal = if output.status.code().is_none() {
            " (the compiler was killed)"
        } else {
            ""
        };
        return CompileError::toolchain(format!("clang failed{signal}: {}", text.trim()));
    }
    let mut messages: Vec<_> = messages.into_iter().map(place).collect();
    messages.dedup();
    CompileError::source(messages)
}

/// Errors, each with the line of the author's source that it comes from where it lies in a header.
fn with_context(text: &str, severity: &str) -> Vec<Message> {
    let mut found: Vec<Message> = Vec::new();
    let mut in_header = false;
    for line in text.lines() {
        if let Some(message) = message(line, severity).or_else(|| message(line, "fatal error: ")) {
            in_header = is_header(&message.file);
            found.push(message);
        } else if let Some(note) = message(line, "note: ") {
            let from_author = !is_header(&note.file);
            if let Some(last) = found.last_mut().filter(|_| in_header && from_author) {
                *last = Message {
                    text: format!("{} ({})", last.text, note.text),
                    ..note
                };
                in_header = false;
            }
        }
    }
    found
}

pub(crate) fn is_header(file: &str) -> bool {
    file.contains("/softmetal/") || file == "softmetal_entry"
}

/// Warnings that are errors in Metal: implicit conversions from float to bfloat (integers may be
/// converted), and variables whose value is not a constant expression.
pub(crate) fn strict_warnings(output: &Output) -> Vec<Message> {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut found: Vec<Message> = text
        .lines()
        .filter_map(|line| message(line, "warning: "))
        .filter(|message| !is_header(&message.file))
        .filter_map(|message| {
            Some(Message {
                text: strict_meaning(&message.text)?.into(),
                ..message
            })
        })
        .collect();
    found.dedup();
    found
}

pub(crate) const NOT_CONSTANT: &str =
    "program scope variable must be initialized by a constant expression";

fn strict_meaning(warning: &str) -> Option<&'static str> {
    let target = warning.split(" to ").nth(1).unwrap_or_default();
    if warning.contains("loses floating-point precision") && target.contains("__bf16") {
        return Some("cannot implicitly convert to 'bfloat': write bfloat(…)");
    }
    warning
        .contains("requires a global")
        .then_some(NOT_CONSTANT)
}

/// `file:line:column: error: text`
pub(crate) fn message(line: &str, severity: &str) -> Option<Message> {
    let at = line.find(severity)?;
    let mut parts = line[..at].trim_end().trim_end_matches(':').rsplitn(3, ':');
    let column = parts.next()?.parse().ok()?;
    let number = parts.next()?.parse().ok()?;
    let text = line[at + severity.len()..].to_owned();
    Some(Message {
        file: parts.next()?.to_owned(),
        line: number,
        column,
        text,
    })
}

/// The message with the author's column instead of that of the rewritten text.
pub(crate) fn with_column(mut message: Message, files: &[String], columns: &Columns) -> Message {
    let file = files.iter().position(|file| *file == message.file);
    if let Some(line) = file.and_then(|file| columns.get(&(file as u32, message.line))) {
        let before = line
            .iter()
            .filter(|(written, ..)| *written <= message.column);
        if let Some((written, column, length)) =
            before.max_by_key(|(written, ..)| *written).or(line.first())
        {
            message.column = column + message.column.saturating_sub(*written).min(*length);
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let found = message("a.metal:3:14: error: no member named 'q'", "error: ").unwrap();
        assert_eq!(
            (found.file.as_str(), found.line, found.column),
            ("a.metal", 3, 14)
        );
        assert_eq!(found.text, "no member named 'q'");
        assert!(message("1 error generated.", "error: ").is_none());
    }

    #[test]
    fn warnings_that_matter() {
        let narrowed = "implicit conversion loses floating-point precision: 'float' to 'bfloat' (aka '__bf16')";
        assert!(strict_meaning(narrowed).is_some());
        assert!(strict_meaning("implicit conversion loses floating-point precision: 'float' to 'half' (aka '_Float16')").is_none());
        assert!(strict_meaning(
            "implicit conversion from 'uint' to 'bfloat' (aka '__bf16') may lose precision"
        )
        .is_none());
        assert_eq!(
            strict_meaning("declaration requires a global constructor"),
            Some(NOT_CONSTANT)
        );
    }

    #[test]
    fn errors_in_headers_are_moved_to_the_author() {
        let text = "/c/softmetal/vec.h:3:1: error: static assertion failed\n\
                    /c/softmetal/vec.h:9:1: note: in here\n\
                    op.metal:7:2: note: in instantiation of 'f'\n\
                    op.metal:8:2: note: in instantiation of 'g'";
        let found = with_context(text, "error: ");
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "op.metal:7:2: error: static assertion failed (in instantiation of 'f')"
        );
    }

    #[test]
    fn columns_are_the_authors() {
        let columns = Columns::from([((0, 5), vec![(1, 1, 2), (12, 4, 2), (30, 9, 0)])]);
        let at = |column| {
            let message = Message {
                file: "a".into(),
                line: 5,
                column,
                text: String::new(),
            };
            with_column(message, &["a".to_owned()], &columns).column
        };
        assert_eq!((at(1), at(12), at(13), at(20), at(44)), (1, 4, 5, 6, 9));
    }
}
