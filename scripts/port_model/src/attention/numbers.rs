//! Which expressions are shown to be an f64.

use super::statements::{are, is, top_level};
use super::Tokens;
use crate::tokens::{partner, Kind, Token};
use std::ops::Range;

/// Whether an expression is shown to be an f64: a literal, `(… as f64).sqrt()`, a quotient of those, a local or a field of them.
pub(super) fn is_f64(tokens: Tokens, range: &Range<usize>, depth: usize) -> bool {
    if range.is_empty() || depth == 0 {
        return false;
    }
    let is_float = |t: &Token| {
        t.kind == Kind::Literal
            && !t.text.ends_with("f32")
            && (t.text.contains('.') || t.text.ends_with("f64"))
    };
    if let Some(&at) = top_level(tokens, range, "/").first() {
        let (left, right) = (range.start..at, at + 1..range.end);
        let one = left.len() == 1
            && tokens[left.start]
                .text
                .trim_end_matches("f64")
                .parse::<f64>()
                .is_ok();
        return (one || is_f64(tokens, &left, depth - 1)) && is_f64(tokens, &right, depth - 1);
    }
    if range.len() == 1 && is_float(&tokens[range.start]) {
        return true;
    }
    let first = &tokens[range.start];
    // f64::sqrt(…), f64::powf(…)
    if first.is("f64") && is(tokens, range.start + 1, "::") && is(tokens, range.start + 3, "(") {
        return partner(tokens, range.start + 3) == Some(range.end - 1);
    }
    // (… as f64).sqrt() and .powf(…)
    if first.is("(") {
        let Some(close) = partner(tokens, range.start).filter(|&c| c < range.end) else {
            return false;
        };
        let cast = are(tokens, &(close - 2..close), &["as", "f64"]);
        let method = close + 2;
        let rest_is_call = close + 1 == range.end
            || (is(tokens, close + 1, ".")
                && tokens
                    .get(method)
                    .is_some_and(|t| ["sqrt", "powf", "powi"].contains(&t.text))
                && is(tokens, method + 1, "(")
                && partner(tokens, method + 1) == Some(range.end - 1));
        return cast && rest_is_call;
    }
    if range.len() == 1 && first.kind == Kind::Ident {
        return local_is_f64(tokens, range.start, depth);
    }
    range.len() == 3
        && first.is("self")
        && is(tokens, range.start + 1, ".")
        && field_is(tokens, tokens[range.start + 2].text, &["f64"])
}

/// The last `let` of that name before the use decides.
fn local_is_f64(tokens: Tokens, at: usize, depth: usize) -> bool {
    let name = tokens[at].text;
    let binds =
        |i: &usize| is(tokens, *i, "let") && tokens[i + 1].text == name && is(tokens, i + 2, "=");
    // Parameters and patterns of the function could shadow what another function binds.
    let begin = tokens[..at].iter().rposition(|t| t.is("fn")).unwrap_or(0);
    let Some(found) = (begin..at).rev().find(binds) else {
        return false;
    };
    let end = (found..tokens.len())
        .find(|&i| is(tokens, i, ";"))
        .unwrap_or(found);
    is_f64(tokens, &(found + 3..end), depth - 1)
}

/// Whether all fields of that name in the file have this type. Struct literals and patterns have no type behind the colon.
pub(super) fn field_is(tokens: Tokens, name: &str, ty: &[&str]) -> bool {
    let mut found = false;
    for i in struct_bodies(tokens) {
        if tokens[i].text == name && is(tokens, i + 1, ":") {
            let typed = i + 2..i + 2 + ty.len();
            let ends = matches!(tokens.get(typed.end).map(|t| t.text), Some("," | "}"));
            if typed.end > tokens.len() || !are(tokens, &typed, ty) || !ends {
                return false;
            }
            found = true;
        }
    }
    found
}

/// The tokens in the braces of `struct` items.
fn struct_bodies(tokens: Tokens) -> Vec<usize> {
    let mut out = vec![];
    for i in 0..tokens.len() {
        let open = (i..tokens.len()).find(|&j| is(tokens, j, "{") || is(tokens, j, ";"));
        if let (true, Some(open)) = (is(tokens, i, "struct"), open) {
            if let Some(close) = partner(tokens, open).filter(|_| is(tokens, open, "{")) {
                out.extend(open + 1..close);
            }
        }
    }
    out
}
