//! Number literals: `1.0` is a float in MSL, and there are suffixes for half and bfloat.

use crate::edits::Edits;
use crate::error::Message;
use crate::source::Source;
use crate::token::Kind;

pub(crate) fn rewrite(source: &Source, edits: &mut Edits, problems: &mut Vec<Message>) {
    for i in 0..source.len() {
        if source[i].kind != Kind::Number {
            continue;
        }
        match literal(&source[i].text) {
            Ok(Some(text)) => edits.replace(i, text),
            Ok(None) => {}
            Err(text) => problems.push(source.error(i, text)),
        }
    }
}

/// For the check of types: floats as values that are not known. INFINITY and NAN are calls already.
pub(crate) fn hide(source: &Source, edits: &mut Edits) {
    for i in 0..source.len() {
        let builtin = source.is_any(
            i,
            &["__builtin_inff", "__builtin_nanf", "__builtin_huge_valf"],
        );
        if builtin && source.is(i + 1, "(") {
            edits.insert(i, "softmetal::literal(");
            edits.insert(source.pair(i + 1) + 1, ")");
        } else if source[i].kind == Kind::Number && is_float(&source[i].text) {
            edits.replace(i, format!("softmetal::literal({})", edits.text(source, i)));
        }
    }
}

fn is_float(text: &str) -> bool {
    let cpp = literal(text).ok().flatten();
    let cpp = cpp.as_deref().unwrap_or(text);
    let hex = cpp.starts_with("0x") && !cpp.contains('p');
    !hex && !cpp.starts_with('(') && cpp.ends_with(['f', 'F'])
}

/// The C++ for an MSL literal, if it differs.
fn literal(text: &str) -> Result<Option<String>, String> {
    let lower = text.to_ascii_lowercase();
    let hex = lower.starts_with("0x");
    let digits_end = if hex {
        2 + lower[2..]
            .find(|c: char| !(c.is_ascii_hexdigit() || c == '.' || c == '\''))
            .unwrap_or(lower.len() - 2)
    } else {
        lower
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '\''))
            .unwrap_or(lower.len())
    };
    let exponent = lower[digits_end..].starts_with(if hex { 'p' } else { 'e' });
    let number_end = if exponent {
        let from = digits_end + 1;
        from + lower[from..]
            .find(|c: char| !(c.is_ascii_digit() || c == '+' || c == '-'))
            .unwrap_or(lower.len() - from)
    } else {
        digits_end
    };
    let (number, suffix) = (&text[..number_end], &lower[number_end..]);
    let floating = exponent || number.contains('.');
    match suffix {
        "" if floating => Ok(Some(format!("{number}f"))),
        "f" if floating => Ok(None),
        "h" if !hex || exponent => Ok(Some(format!("((half){}f16)", with_point(number, floating)))),
        "bf" if !hex || exponent => {
            Ok(Some(format!("((bfloat){}f)", with_point(number, floating))))
        }
        "ll" | "ull" | "llu" => Err("'long long' is not supported in Metal".into()),
        "" | "u" | "l" | "ul" | "lu" if !floating => Ok(None),
        _ if lower.starts_with("0b") => Ok(None),
        _ => Err(format!(
            "invalid suffix '{}' on literal '{text}'",
            &text[number_end..]
        )),
    }
}

fn with_point(number: &str, floating: bool) -> String {
    if floating {
        number.to_owned()
    } else {
        format!("{number}.0")
    }
}

#[cfg(test)]
mod tests {
    use super::{is_float, literal};

    #[test]
    fn floats_are_single() {
        assert_eq!(literal("1.0").unwrap().as_deref(), Some("1.0f"));
        assert_eq!(literal("1e5").unwrap().as_deref(), Some("1e5f"));
        assert_eq!(literal(".5").unwrap().as_deref(), Some(".5f"));
        assert_eq!(literal("2.").unwrap().as_deref(), Some("2.f"));
        assert_eq!(literal("0x1.8p3").unwrap().as_deref(), Some("0x1.8p3f"));
        assert_eq!(literal("1.0f").unwrap(), None);
        assert_eq!(literal("1.5e-3F").unwrap(), None);
    }

    #[test]
    fn halves_and_bfloats() {
        assert_eq!(literal("1.0h").unwrap().as_deref(), Some("((half)1.0f16)"));
        assert_eq!(literal("0.h").unwrap().as_deref(), Some("((half)0.f16)"));
        assert_eq!(literal("16h").unwrap().as_deref(), Some("((half)16.0f16)"));
        assert_eq!(literal("1bf").unwrap().as_deref(), Some("((bfloat)1.0f)"));
        assert_eq!(literal("1.5bf").unwrap().as_deref(), Some("((bfloat)1.5f)"));
    }

    #[test]
    fn what_is_a_float() {
        assert!(["1.0", "1.0f", "1e5", ".5F", "0x1.8p3"]
            .into_iter()
            .all(is_float));
        assert!(!["1", "0xff", "0x1F", "1.0h", "1.0bf", "3u"]
            .into_iter()
            .any(is_float));
    }

    #[test]
    fn integers_stay() {
        for text in [
            "0",
            "17u",
            "0xFFu",
            "0xBF",
            "0x1F",
            "0b101",
            "1ul",
            "0xFFFFFFFFul",
            "1'000",
        ] {
            assert_eq!(literal(text).unwrap(), None, "{text}");
        }
        assert!(literal("1ll").is_err());
        assert!(literal("1.0d").is_err());
    }
}
