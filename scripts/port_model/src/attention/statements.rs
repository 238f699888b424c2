//! Statements, and what stands in them, as ranges of tokens.

use super::Tokens;
use crate::tokens::{partner, Kind};
use std::ops::Range;

pub(super) fn is(tokens: Tokens, at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|t| t.is(text))
}

/// Whether the tokens of the range are these.
pub(super) fn are(tokens: Tokens, range: &Range<usize>, texts: &[&str]) -> bool {
    range.len() == texts.len()
        && range
            .clone()
            .zip(texts)
            .all(|(i, text)| is(tokens, i, text))
}

pub(super) struct Let<'a> {
    pub(super) name: &'a str,
    pub(super) init: Range<usize>,
}

/// `let name = init;`, with `init` outside of the block that holds a span's guard.
pub(super) fn let_of<'a>(tokens: Tokens<'a>, statement: &Range<usize>) -> Option<Let<'a>> {
    let mut at = statement.start;
    if !is(tokens, at, "let") || !is(tokens, statement.end - 1, ";") {
        return None;
    }
    at += 1;
    if is(tokens, at, "mut") {
        at += 1;
    }
    if is(tokens, at + 1, ":") && is(tokens, at + 2, "Tensor") && is(tokens, at + 3, "=") {
        let init = at + 4..statement.end - 1;
        return Some(Let {
            name: tokens[at].text,
            init,
        });
    }
    let init = at + 2..statement.end - 1;
    let init = behind_guard(tokens, &init).unwrap_or(init);
    is(tokens, at + 1, "=").then(|| Let {
        name: tokens[at].text,
        init,
    })
}

/// The value of `{ let _guard = self.span.enter(); value }`.
pub(super) fn behind_guard(tokens: Tokens, range: &Range<usize>) -> Option<Range<usize>> {
    if range.is_empty()
        || !is(tokens, range.start, "{")
        || partner(tokens, range.start)? != range.end - 1
    {
        return None;
    }
    let inside = statements(tokens, range.start + 1..range.end - 1);
    let [guard, value] = &inside[..] else {
        return None;
    };
    let begins = is(tokens, guard.start, "let") && tokens[guard.start + 1].text.starts_with('_');
    let enters = are(
        tokens,
        &(guard.end.saturating_sub(5)..guard.end),
        &[".", "enter", "(", ")", ";"],
    );
    (begins && enters).then(|| value.clone())
}

/// The statements of the block that the token stands in, and the index of its own. The block of a guard counts as an expression.
pub(super) fn statement_of(tokens: Tokens, at: usize) -> Option<(Vec<Range<usize>>, usize)> {
    let mut at = at;
    for _ in 0..2 {
        let open = enclosing(tokens, at)?;
        let close = partner(tokens, open)?;
        if behind_guard(tokens, &(open..close + 1)).is_some() {
            at = open;
            continue;
        }
        let block = statements(tokens, open + 1..close);
        let index = block.iter().position(|s| s.contains(&at))?;
        return Some((block, index));
    }
    None
}

/// The brace of the innermost block around a token.
fn enclosing(tokens: Tokens, at: usize) -> Option<usize> {
    let mut i = at;
    loop {
        i = i.checked_sub(1)?;
        match tokens[i].text {
            "}" | ")" | "]" if tokens[i].kind == Kind::Punct => i = partner(tokens, i)?,
            "{" if tokens[i].kind == Kind::Punct => return Some(i),
            _ => {}
        }
    }
}

/// The statements of a block, and the expression at its end.
pub(super) fn statements(tokens: Tokens, block: Range<usize>) -> Vec<Range<usize>> {
    const BLOCK_LIKE: &[&str] = &[
        "if", "match", "for", "while", "loop", "unsafe", "{", "fn", "struct", "impl",
    ];
    let mut out = vec![];
    let (mut start, mut i) = (block.start, block.start);
    while i < block.end {
        let token = tokens[i];
        if token.is(";") {
            out.push(start..i + 1);
            start = i + 1;
        } else if token.kind == Kind::Punct && ["(", "[", "{"].contains(&token.text) {
            let Some(close) = partner(tokens, i) else {
                return out;
            };
            i = close;
            let whole = token.is("{") && BLOCK_LIKE.contains(&tokens[start].text);
            let goes_on = [".", "?", ";", "else"]
                .iter()
                .any(|text| is(tokens, close + 1, text));
            if whole && !goes_on && close + 1 < block.end {
                out.push(start..close + 1);
                start = close + 1;
            }
        }
        i += 1;
    }
    if start < block.end {
        out.push(start..block.end);
    }
    out
}

/// Where a punctuation stands outside of brackets.
pub(super) fn top_level(tokens: Tokens, range: &Range<usize>, text: &str) -> Vec<usize> {
    let mut out = vec![];
    let mut i = range.start;
    while i < range.end {
        if tokens[i].kind == Kind::Punct && ["(", "[", "{"].contains(&tokens[i].text) {
            match partner(tokens, i) {
                Some(close) => i = close,
                None => return out,
            }
        } else if tokens[i].is(text) {
            out.push(i);
        }
        i += 1;
    }
    out
}

pub(super) fn top_level_any(tokens: Tokens, range: &Range<usize>, texts: &[&str]) -> bool {
    texts
        .iter()
        .any(|text| !top_level(tokens, range, text).is_empty())
}

/// Where a variable of this name stands in the range: not a field, a method or a part of a path.
pub(super) fn mentions(tokens: Tokens, range: Range<usize>, name: &str) -> Vec<usize> {
    let is_variable = |&i: &usize| {
        tokens[i].is(name)
            && !(i > 0 && (is(tokens, i - 1, ".") || is(tokens, i - 1, "::")))
            && !is(tokens, i + 1, "::")
    };
    range.filter(is_variable).collect()
}

/// Whether nothing but a path stands between: `candle_nn::ops::`.
pub(super) fn path_until(tokens: Tokens, start: usize, at: usize) -> bool {
    (start..at).all(|i| is(tokens, i, "::") || tokens[i].kind == Kind::Ident)
}
