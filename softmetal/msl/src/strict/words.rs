//! Words and forms that MSL does not have, wherever they stand.

use crate::error::Message;
use crate::options::{Options, Version};
use crate::source::Source;
use crate::token::Kind;

const REFUSED: &[(&str, &str)] = &[
    ("double", "'double' is not supported in Metal"),
    ("goto", "'goto' is not supported in Metal"),
    ("new", "'new' is not supported in Metal"),
    ("virtual", "virtual functions are not supported in Metal"),
    ("try", "exceptions are not supported in Metal"),
    ("catch", "exceptions are not supported in Metal"),
    ("throw", "exceptions are not supported in Metal"),
    ("dynamic_cast", "'dynamic_cast' is not supported in Metal"),
    ("typeid", "'typeid' is not supported in Metal"),
    ("thread_local", "'thread_local' is not supported in Metal"),
    ("register", "'register' is not supported in Metal"),
    ("asm", "inline assembly is not supported in Metal"),
    ("__asm__", "inline assembly is not supported in Metal"),
];

/// What a lambda can stand behind; other brackets are subscripts.
const BEFORE_LAMBDA: &[&str] = &[
    "=", "(", ",", "{", "}", ";", "return", "&&", "||", "!", "?", ":", "+", "-", "*", "/", "<",
    ">", "==", "!=",
];

pub(crate) fn check(source: &Source, options: &Options, problems: &mut Vec<Message>) {
    for i in 0..source.len() {
        if let Some(text) = refusal(source, i, options.language) {
            problems.push(source.error(i, text));
        }
    }
}

fn refusal(source: &Source, at: usize, language: Version) -> Option<String> {
    let token = &source[at];
    match token.kind {
        Kind::Word => {}
        Kind::Number if !language.has_bfloat() && is_bfloat_literal(&token.text) => {
            return Some(format!(
                "invalid suffix on '{}': bfloat needs Metal 3.1",
                token.text
            ));
        }
        Kind::Punct if token.is("[") => return lambda(source, at, language),
        _ => return None,
    }
    if let Some((_, text)) = REFUSED.iter().find(|(word, _)| token.is(word)) {
        return Some((*text).to_owned());
    }
    let behind = |word| source.is(at + 1, word);
    match token.text.as_str() {
        "delete" if at == 0 || !source.is(at - 1, "=") => {
            Some("'delete' is not supported in Metal".into())
        }
        "long" if behind("long") => Some("'long long' is not supported in Metal".into()),
        "long" if behind("double") => Some("'long double' is not supported in Metal".into()),
        "noexcept" if behind("(") && at > 0 && !source.is(at - 1, ")") => {
            Some("the 'noexcept' operator is not supported in Metal".into())
        }
        word if !language.has_bfloat() && is_bfloat_type(word) => Some(format!(
            "unknown type name '{word}': bfloat needs Metal 3.1"
        )),
        _ => None,
    }
}

fn is_bfloat_type(word: &str) -> bool {
    let word = word
        .strip_prefix("packed_")
        .or_else(|| word.strip_prefix("simdgroup_"))
        .unwrap_or(word);
    word.strip_prefix("bfloat").is_some_and(|rest| {
        ["", "2", "3", "4", "8x8"].contains(&rest)
            || rest
                .split_once('x')
                .is_some_and(|(c, r)| ["2", "3", "4"].contains(&c) && ["2", "3", "4"].contains(&r))
    })
}

fn is_bfloat_literal(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.ends_with("bf") && !lower.starts_with("0x")
}

fn lambda(source: &Source, at: usize, language: Version) -> Option<String> {
    let attribute = source.is_attribute(at) || at > 0 && source.is_attribute(at - 1);
    let starts = at > 0 && source.is_any(at - 1, BEFORE_LAMBDA) && !attribute;
    let close = source.pair(at);
    let body = source.is_any(close + 1, &["(", "{"]);
    (starts && body && !language.has_lambdas()).then(|| "lambda expressions need Metal 3.2".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    fn refused(text: &str, language: Version) -> Vec<String> {
        let mut problems = Vec::new();
        check(
            &parse(text),
            &Options {
                language,
                ..Options::default()
            },
            &mut problems,
        );
        problems.into_iter().map(|message| message.text).collect()
    }

    #[test]
    fn words() {
        for (word, text) in REFUSED {
            assert_eq!(refused(&format!("x = {word};"), Version::V3_1), [*text]);
            assert!(refused(&format!("x = {word}_;"), Version::V3_1).is_empty());
        }
    }

    #[test]
    fn long_types() {
        assert_eq!(refused("long long x;", Version::V3_1).len(), 1);
        assert_eq!(refused("unsigned long double x;", Version::V3_1).len(), 2);
        assert!(refused("long x; unsigned long y;", Version::V3_1).is_empty());
    }

    #[test]
    fn deleted_functions_are_no_delete() {
        assert_eq!(refused("delete p;", Version::V3_1).len(), 1);
        assert!(refused("S() = delete;", Version::V3_1).is_empty());
    }

    #[test]
    fn lambdas_need_3_2() {
        for text in [
            "auto f = [](int a) { };",
            "g([&] { });",
            "return [=](int x) { return x; };",
        ] {
            assert_eq!(refused(text, Version::V3_1).len(), 1, "{text}");
            assert!(refused(text, Version::V3_2).is_empty(), "{text}");
        }
        assert!(refused(
            "a[i](3); int b[] {1}; device int* p [[buffer(0)]];",
            Version::V3_1
        )
        .is_empty());
    }

    #[test]
    fn bfloat_needs_3_1() {
        for text in [
            "bfloat x;",
            "bfloat4 x;",
            "simdgroup_bfloat8x8 x;",
            "x = 1.5bf;",
            "bfloat4x4 m;",
        ] {
            assert_eq!(refused(text, Version::V3_0).len(), 1, "{text}");
            assert!(refused(text, Version::V3_1).is_empty(), "{text}");
        }
        assert!(refused("bfloat16_t x; y = 0xbf;", Version::V3_0).is_empty());
    }
}
