//! A linear layer that is written as a product with a transposed weight becomes one call of `candle_fused::ops::linear`.
//!
//! What is recognised repeats the weight for each leading dim of x, and then uses the repeated weight for nothing else:
//!
//! ```text
//! let w = match *x.dims() {
//!     [b1, b2, _, _] => weight.broadcast_left((b1, b2))?.t()?,
//!     [b, _, _] => weight.broadcast_left(b)?.t()?,
//!     _ => weight.t()?,
//! };
//! x.matmul(&w)
//! ```
//!
//! Code with comments inside is left alone: there would be no place for them.

use crate::edit::Edit;
use crate::tokens::{tokens, Token};

/// With a name for each word in capitals. `WEIGHT` may be a field too.
const PATTERN: &str = "let W = match * X . dims ( ) {
    [ A , B , _ , _ ] => WEIGHT . broadcast_left ( ( A , B ) ) ? . t ( ) ? ,
    [ C , _ , _ ] => WEIGHT . broadcast_left ( C ) ? . t ( ) ? ,
    _ => WEIGHT . t ( ) ? , } ; X . matmul ( & W ) }";

pub fn rewrite(code: &str) -> Vec<Edit> {
    // Fields are one word here, as locals are: `self_weight` is as long as `self.weight`.
    let masked = code.replace("self.weight", "self_weight");
    let (pattern, tokens) = (tokens(PATTERN), tokens(&masked));
    let windows = tokens.windows(pattern.len()).enumerate();
    let edit = |(at, window): (usize, &[Token])| {
        let Layer { x, weight } = matched(window, &pattern)?;
        let range = window[0].start..window[window.len() - 2].end();
        let comment = |pair: &[Token]| !masked[pair[0].end()..pair[1].start].trim().is_empty();
        if window.windows(2).any(comment) {
            return None;
        }
        let borrow = if is_reference(&tokens[..at], x) {
            ""
        } else {
            "&"
        };
        let weight = weight.replace("self_weight", "self.weight");
        Some(Edit {
            range,
            text: format!("candle_fused::ops::linear({borrow}{x}, &{weight}, None)"),
        })
    };
    windows.filter_map(edit).collect()
}

struct Layer<'a> {
    x: &'a str,
    weight: &'a str,
}

fn matched<'a>(window: &[Token<'a>], pattern: &[Token]) -> Option<Layer<'a>> {
    let mut names: Vec<(&str, &'a str)> = vec![];
    for (token, wanted) in window.iter().zip(pattern) {
        if !wanted.text.chars().all(char::is_uppercase) || wanted.text.is_empty() {
            if token.text != wanted.text {
                return None;
            }
            continue;
        }
        match names.iter().find(|(name, _)| *name == wanted.text) {
            Some((_, bound)) if *bound != token.text => return None,
            Some(_) => {}
            None => names.push((wanted.text, token.text)),
        }
    }
    let name = |name: &str| names.iter().find(|(n, _)| *n == name).map(|(_, t)| *t);
    Some(Layer {
        x: name("X")?,
        weight: name("WEIGHT")?,
    })
}

/// Whether x is shown to be a reference behind these tokens: an argument `x: &…` of the function, whose methods alone are
/// called until then.
fn is_reference(before: &[Token], x: &str) -> bool {
    let begin = before.iter().rposition(|t| t.is("fn")).unwrap_or(0);
    let mut uses = (begin..before.len()).filter(|&i| before[i].is(x));
    let followed = |i: usize, text: &str| before.get(i).is_some_and(|t| t.is(text));
    let argument = uses.next();
    argument.is_some_and(|i| followed(i + 1, ":") && followed(i + 2, "&"))
        && uses.all(|i| followed(i + 1, "."))
}
