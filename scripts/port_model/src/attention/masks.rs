//! Masks that are added to scores, and caps of scores.

use super::numbers::field_is;
use super::statements::{are, is, let_of, mentions, statements};
use super::Tokens;
use crate::tokens::{partner, Kind};
use std::ops::Range;

/// A mask that is added to the scores.
#[derive(Clone)]
pub(super) enum Mask {
    Always(Range<usize>),
    /// `if let Some(name) = option { prelude; … argument … }`
    If {
        option: Range<usize>,
        name: Range<usize>,
        prelude: Range<usize>,
        argument: Range<usize>,
    },
    /// Scores are −∞ where `hidden` is not 0, unless a condition holds. The function `masked_fill` is the file's own.
    Fill {
        unless: Option<Range<usize>>,
        hidden: Range<usize>,
    },
}

/// `masked_fill(&x, &mask, f32::NEG_INFINITY)?` as x and the mask's name.
pub(super) fn filled<'a>(tokens: Tokens<'a>, init: &Range<usize>) -> Option<(&'a str, &'a str)> {
    let mut call: Vec<&str> = init.clone().map(|i| tokens[i].text).collect();
    let cast = [".", "to_dtype", "(", "DType", "::", "F32", ")", "?"];
    if call.get(4..12).is_some_and(|found| found == cast) {
        call.drain(4..12);
    }
    let [_, _, _, x, _, _, mask, ..] = call[..] else {
        return None;
    };
    let wanted = [
        "masked_fill",
        "(",
        "&",
        x,
        ",",
        "&",
        mask,
        ",",
        "f32",
        "::",
        "NEG_INFINITY",
    ];
    let ends = [&[")", "?"][..], &[",", ")", "?"][..]];
    let matches = call.len() > 11 && call[..11] == wanted && ends.contains(&&call[11..]);
    (matches && fills(tokens)).then_some((x, mask))
}

/// Whether the file's `masked_fill` puts its last argument where the mask is not 0.
fn fills(tokens: Tokens) -> bool {
    const BODY: &[&str] = &[
        "fn",
        "masked_fill",
        "(",
        "on_false",
        ":",
        "&",
        "Tensor",
        ",",
        "mask",
        ":",
        "&",
        "Tensor",
        ",",
        "on_true",
        ":",
        "f32",
        ")",
        "->",
        "Result",
        "<",
        "Tensor",
        ">",
        "{",
        "let",
        "shape",
        "=",
        "mask",
        ".",
        "shape",
        "(",
        ")",
        ";",
        "let",
        "on_true",
        "=",
        "Tensor",
        "::",
        "new",
        "(",
        "on_true",
        ",",
        "on_false",
        ".",
        "device",
        "(",
        ")",
        ")",
        "?",
        ".",
        "broadcast_as",
        "(",
        "shape",
        ".",
        "dims",
        "(",
        ")",
        ")",
        "?",
        ";",
        "let",
        "m",
        "=",
        "mask",
        ".",
        "where_cond",
        "(",
        "&",
        "on_true",
        ",",
        "on_false",
        ")",
        "?",
        ";",
        "Ok",
        "(",
        "m",
        ")",
        "}",
    ];
    let begins = |i: &usize| is(tokens, *i, "fn") && is(tokens, i + 1, "masked_fill");
    let mut definitions = (0..tokens.len()).filter(begins);
    // The new code names the dtype of `on_true`.
    tokens.iter().any(|t| t.is("DType"))
        && definitions.any(|i| are(tokens, &(i..i + BODY.len()), BODY))
}

/// `let mask = hidden.broadcast_as(x.shape())?;` as the range of `hidden`.
pub(super) fn broadcast_to(
    tokens: Tokens,
    statement: &Range<usize>,
    mask: &str,
    x: &str,
) -> Option<Range<usize>> {
    let binding = let_of(tokens, statement)?;
    let init = binding.init;
    let tail = [
        ".",
        "broadcast_as",
        "(",
        x,
        ".",
        "shape",
        "(",
        ")",
        ")",
        "?",
    ];
    let at = init
        .end
        .checked_sub(tail.len())
        .filter(|&at| at > init.start)?;
    (binding.name == mask && are(tokens, &(at..init.end), &tail)).then_some(init.start..at)
}

/// `if condition { x } else { let mask = …; masked_fill(…)? }` as x and the mask.
pub(super) fn filled_unless<'a>(
    tokens: Tokens<'a>,
    init: &Range<usize>,
) -> Option<(&'a str, Mask)> {
    if init.is_empty() || !is(tokens, init.start, "if") || is(tokens, init.start + 1, "let") {
        return None;
    }
    let open = (init.start..init.end).find(|&i| is(tokens, i, "{"))?;
    let (x, other) = (tokens.get(open + 1)?.text, open + 4);
    if !are(tokens, &(open + 2..open + 4), &["}", "else"])
        || partner(tokens, other)? + 1 != init.end
    {
        return None;
    }
    let inside = statements(tokens, other + 1..init.end - 1);
    let [broadcast, fill] = &inside[..] else {
        return None;
    };
    let (from, mask) = filled(tokens, fill)?;
    let hidden = broadcast_to(tokens, broadcast, mask, x)?;
    let unless = Some(init.start + 1..open);
    (from == x).then_some((x, Mask::Fill { unless, hidden }))
}

/// `x.broadcast_add(mask)?` as x and the mask.
pub(super) fn added_mask<'a>(tokens: Tokens<'a>, init: &Range<usize>) -> Option<(&'a str, Mask)> {
    let (from, argument) = broadcast_add(tokens, init)?;
    Some((from, Mask::Always(argument)))
}

fn broadcast_add<'a>(tokens: Tokens<'a>, range: &Range<usize>) -> Option<(&'a str, Range<usize>)> {
    let call = range.start + 1..range.start + 4;
    if range.len() < 7 || !are(tokens, &call, &[".", "broadcast_add", "("]) {
        return None;
    }
    let close = partner(tokens, range.start + 3)?;
    let argument = range.start + 4..close;
    let ends = close + 2 == range.end && is(tokens, close + 1, "?");
    // A name or a field, borrowed or not: nothing that could be a temporary.
    let plain = argument
        .clone()
        .all(|i| tokens[i].kind == Kind::Ident || is(tokens, i, "&") || is(tokens, i, "."));
    (ends && plain).then(|| (tokens[range.start].text, argument))
}

/// `match option { None => x, Some(name) => arm }`
struct OptionMatch<'a> {
    x: &'a str,
    option: Range<usize>,
    name: Range<usize>,
    arm: Range<usize>,
}

fn option_match<'a>(tokens: Tokens<'a>, init: &Range<usize>) -> Option<OptionMatch<'a>> {
    if init.is_empty() || !is(tokens, init.start, "match") {
        return None;
    }
    let open = (init.start..init.end).find(|&i| is(tokens, i, "{"))?;
    let close = partner(tokens, open)?;
    let none = open + 1;
    let some = none + 4;
    let well_formed = close + 1 == init.end
        && are(tokens, &(none..none + 2), &["None", "=>"])
        && is(tokens, none + 3, ",")
        && are(tokens, &(some..some + 2), &["Some", "("])
        && are(tokens, &(some + 3..some + 5), &[")", "=>"]);
    if !well_formed {
        return None;
    }
    let mut arm = some + 5..close;
    if is(tokens, arm.end - 1, ",") {
        arm.end -= 1;
    }
    Some(OptionMatch {
        x: tokens[none + 2].text,
        option: init.start + 1..open,
        name: some + 2..some + 3,
        arm,
    })
}

pub(super) fn matched_mask<'a>(tokens: Tokens<'a>, init: &Range<usize>) -> Option<(&'a str, Mask)> {
    let OptionMatch {
        x: from,
        option,
        name,
        arm,
    } = option_match(tokens, init)?;
    let (added, argument) = broadcast_add(tokens, &arm)?;
    let prelude = 0..0;
    (added == from).then_some((
        from,
        Mask::If {
            option,
            name,
            prelude,
            argument,
        },
    ))
}

/// `match self.cap { None => x, Some(c) => ((x / c)?.tanh()? * c)? }` of a field that is an `Option<f64>`.
pub(super) fn matched_cap<'a>(
    tokens: Tokens<'a>,
    init: &Range<usize>,
) -> Option<(&'a str, Range<usize>)> {
    let OptionMatch {
        x: from,
        option,
        name,
        arm,
    } = option_match(tokens, init)?;
    let c = tokens[name.start].text;
    let cap = [
        "(", "(", from, "/", c, ")", "?", ".", "tanh", "(", ")", "?", "*", c, ")", "?",
    ];
    let field = option.len() == 3
        && is(tokens, option.start, "self")
        && field_is(
            tokens,
            tokens[option.start + 2].text,
            &["Option", "<", "f64", ">"],
        );
    (field && are(tokens, &arm, &cap)).then_some((from, option))
}

/// `if let Some(name) = option { prelude; x = x.broadcast_add(mask)?; }`
pub(super) fn conditional_mask(tokens: Tokens, statement: &Range<usize>, x: &str) -> Option<Mask> {
    let start = statement.start;
    if !are(tokens, &(start..start + 4), &["if", "let", "Some", "("])
        || !are(tokens, &(start + 5..start + 7), &[")", "="])
    {
        return None;
    }
    let open = (start..statement.end).find(|&i| is(tokens, i, "{"))?;
    let close = partner(tokens, open)?;
    if close + 1 != statement.end {
        return None;
    }
    let inside = statements(tokens, open + 1..close);
    let (last, prelude) = inside.split_last()?;
    let mut sum = last.start + 2..last.end;
    if is(tokens, sum.end - 1, ";") {
        sum.end -= 1;
    }
    let (from, argument) = broadcast_add(tokens, &sum)?;
    let assigns = tokens[last.start].is(x) && is(tokens, last.start + 1, "=") && from == x;
    let lets = prelude
        .iter()
        .all(|s| let_of(tokens, s).is_some_and(|l| mentions(tokens, l.init, x).is_empty()));
    let prelude = prelude
        .first()
        .map_or(0..0, |first| first.start..last.start);
    (assigns && lets).then_some(Mask::If {
        option: start + 7..open,
        name: start + 4..start + 5,
        prelude,
        argument,
    })
}
