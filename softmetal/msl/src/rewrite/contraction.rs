//! Fast math leaves out the rounding of a float that becomes half only to be an operand: `x + half(y)` rounds once.
//!
//! So does Apple's compiler: Candle's test of gelu in half expects a value that no other order of operations gives.

use crate::declaration::{Item, ItemKind};
use crate::edits::Edits;
use crate::source::Source;
use crate::token::Kind;
use std::ops::Range;

const OPERATORS: &[&str] = &["+", "-", "*", "/"];

/// `T(…)` and `static_cast<T>(…)` next to an arithmetic operator become `softmetal::operand<T>(…)`, where `T` is half or
/// may be.
pub(crate) fn contract(source: &Source, items: &[Item], edits: &mut Edits) {
    in_scope(source, items, &["half"], edits);
}

fn in_scope(source: &Source, items: &[Item], types: &[&str], edits: &mut Edits) {
    for item in items {
        let mut types = types.to_vec();
        for head in &item.heads {
            for parameter in source.split(head.clone()) {
                if source.is_any(parameter.start, &["typename", "class"]) && parameter.len() > 1 {
                    types.push(&source[parameter.start + 1].text);
                }
            }
        }
        match &item.kind {
            ItemKind::Namespace { items, .. } | ItemKind::Class { items } => {
                in_scope(source, items, &types, edits);
            }
            ItemKind::Function(function) => {
                if let Some(body) = &function.body {
                    in_body(source, body.clone(), &types, edits);
                }
            }
            _ => {}
        }
    }
}

fn in_body(source: &Source, body: Range<usize>, types: &[&str], edits: &mut Edits) {
    for i in body {
        let (name, open) = if source.is(i, "static_cast") && source.is(i + 3, ">") {
            (i + 2, i + 4)
        } else {
            (i, i + 1)
        };
        if !source.is_any(name, types) || !source.is(open, "(") || !is_operand(source, i, open) {
            continue;
        }
        if name == i {
            edits.replace(i, format!("softmetal::operand<{}>", source[i].text));
        } else {
            edits.replace(i, "softmetal::operand");
        }
    }
}

fn is_operand(source: &Source, start: usize, open: usize) -> bool {
    if source.is_any(start - 1, &["::", ".", "->"]) {
        return false;
    }
    let left = source.is_any(start - 1, OPERATORS)
        && (matches!(source[start - 2].kind, Kind::Word | Kind::Number)
            || source.is_any(start - 2, &[")", "]"]));
    left || source.is_any(source.pair(open) + 1, OPERATORS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{declaration, source};

    fn contracted(body: &str) -> String {
        let source = source::parse(&format!("template <typename T> T f(T x) {{ {body} }}"));
        let items = declaration::parse(&source).unwrap();
        let mut edits = Edits::new(&source);
        contract(&source, &items, &mut edits);
        let text = edits.render(&source, 0..source.len());
        text["template <typename T> T f(T x) { ".len()..text.len() - 2].replace("> (", ">(")
    }

    #[test]
    fn operands_of_arithmetic() {
        assert_eq!(
            contracted("return x * (1 + T(exp(x)));"),
            "return x * (1 + softmetal::operand<T>(exp(x)));"
        );
        assert_eq!(
            contracted("y = half(a) / x;"),
            "y = softmetal::operand<half>(a) / x;"
        );
        assert_eq!(
            contracted("y = a[0] - static_cast<T>(b);"),
            "y = a[0] - softmetal::operand <T>(b);"
        );
    }

    #[test]
    fn other_conversions_stay() {
        for body in [
            "return T(exp(x));",
            "y = -T(a);",
            "y = max(T(a), x);",
            "y = float(a) + x;",
            "y = s.T(a) + x;",
            "y += T(a);",
        ] {
            assert_eq!(contracted(body), body);
        }
    }
}
