//! Masks that are added to scores, and caps of scores.

use super::numbers::field_is;
use super::statements::{are, is, let_of, mentions, statements};
use super::Tokens;
use crate::tokens::{partner, Kind};
use std::ops::Range;

/// A mask that is added to the scores.
pub(super) enum Mask {
    Always(Range<usize>),
    /// `if let Some(name) = option { prelude; … argument … }`
    If {
        option: Range<usize>,
        name: Range<usize>,
        prelude: Range<usize>,
        argument: Range<usize>,
    },
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
