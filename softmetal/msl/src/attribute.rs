//! `[[…]]`

use crate::source::Source;
use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    /// Between the parentheses.
    pub(crate) arguments: Range<usize>,
    pub(crate) at: usize,
}

/// The attributes that stand in a range outside of brackets, and their token ranges.
pub(crate) fn attributes(source: &Source, range: Range<usize>) -> Vec<Attribute> {
    let mut found = Vec::new();
    for list in attribute_lists(source, range) {
        for part in source.split(list.start + 2..list.end - 2) {
            let name = part.clone().take_while(|i| !source.is(*i, "("));
            let open = part.start + name.clone().count();
            let arguments = if open < part.end {
                open + 1..source.pair(open)
            } else {
                open..open
            };
            let name: String = name.map(|i| source[i].text.as_str()).collect();
            found.push(Attribute {
                name,
                arguments,
                at: part.start,
            });
        }
    }
    found
}

/// The ranges of whole `[[…]]` lists.
pub(crate) fn attribute_lists(source: &Source, range: Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut i = range.start;
    while i < range.end {
        if source.is_attribute(i) {
            found.push(i..source.pair(i) + 1);
        }
        i = source.next(i);
    }
    found
}

/// The text of neighbouring string literals.
pub(crate) fn string(source: &Source, range: Range<usize>) -> Option<String> {
    let mut text = String::new();
    for i in range {
        text += source[i].text.strip_prefix('"')?.strip_suffix('"')?;
    }
    Some(text)
}

/// An integer expression of literals, `+`, `-`, `*` and parentheses.
pub(crate) fn integer(source: &Source, range: Range<usize>) -> Option<i64> {
    let mut at = range.start;
    let value = sum(source, &mut at, range.end)?;
    (at == range.end).then_some(value)
}

fn sum(source: &Source, at: &mut usize, end: usize) -> Option<i64> {
    let mut value = product(source, at, end)?;
    while *at < end && source.is_any(*at, &["+", "-"]) {
        let minus = source.is(*at, "-");
        *at += 1;
        let right = product(source, at, end)?;
        value = if minus {
            value.checked_sub(right)?
        } else {
            value.checked_add(right)?
        };
    }
    Some(value)
}

fn product(source: &Source, at: &mut usize, end: usize) -> Option<i64> {
    let mut value = factor(source, at, end)?;
    while *at < end && source.is(*at, "*") {
        *at += 1;
        value = value.checked_mul(factor(source, at, end)?)?;
    }
    Some(value)
}

fn factor(source: &Source, at: &mut usize, end: usize) -> Option<i64> {
    if *at >= end {
        return None;
    }
    if source.is(*at, "(") {
        let close = source.pair(*at);
        *at += 1;
        let value = sum(source, at, close)?;
        (*at == close).then_some(())?;
        *at += 1;
        return Some(value);
    }
    let text = source[*at]
        .text
        .trim_end_matches(['u', 'U', 'l', 'L'])
        .replace('\'', "");
    *at += 1;
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    #[test]
    fn lists_and_arguments() {
        let source = parse("device T* m [[buffer(1 + 2), function_constant(c)]] [[a::b]] [3]");
        let found = attributes(&source, 0..source.len());
        let names: Vec<_> = found.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["buffer", "function_constant", "a::b"]);
        assert_eq!(integer(&source, found[0].arguments.clone()), Some(3));
        assert_eq!(source.text(found[1].arguments.clone()), "c");
        assert!(found[2].arguments.is_empty());
    }

    #[test]
    fn integers() {
        let value = |text: &str| {
            let source = parse(text);
            integer(&source, 0..source.len())
        };
        assert_eq!(value("2 * (3 + 4u) - 1"), Some(13));
        assert_eq!(value("0x10"), Some(16));
        assert_eq!(value("n + 1"), None);
        assert_eq!(value("1 +"), None);
    }

    #[test]
    fn strings_are_joined() {
        let source = parse(r#""a_" "b" "_f32""#);
        assert_eq!(string(&source, 0..3).as_deref(), Some("a_b_f32"));
    }
}
