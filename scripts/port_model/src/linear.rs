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

use crate::edit::Edit;
use crate::tokens::{tokens, Token};

/// With a name for each word in capitals. `WEIGHT` may be a field too.
const PATTERN: &str = "let W = match * X . dims ( ) {
    [ A , B , _ , _ ] => WEIGHT . broadcast_left ( ( A , B ) ) ? . t ( ) ? ,
    [ C , _ , _ ] => WEIGHT . broadcast_left ( C ) ? . t ( ) ? ,
    _ => WEIGHT . t ( ) ? , } ; X . matmul ( & W ) }";

pub fn rewrite(code: &str) -> Vec<Edit> {
    // Fields are one word here, as locals are.
    let masked = code.replace("self.weight", "self_weight");
    let (pattern, tokens) = (tokens(PATTERN), tokens(&masked));
    let windows = tokens.windows(pattern.len());
    windows
        .filter_map(|window| matched(code, &masked, window, &pattern))
        .collect()
}

fn matched(code: &str, masked: &str, window: &[Token], pattern: &[Token]) -> Option<Edit> {
    let mut names: Vec<(&str, &str)> = vec![];
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
    let name = |name: &str| {
        names
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, bound)| *bound)
    };
    let weight = name("WEIGHT")?.replace("self_weight", "self.weight");
    // `self_weight` is as long as `self.weight`: places in one are places in the other.
    debug_assert_eq!(code.len(), masked.len());
    let brace = window.len() - 1;
    Some(Edit {
        range: window[0].start..window[brace - 1].end(),
        text: format!("candle_fused::ops::linear({}, &{weight}, None)", name("X")?),
    })
}
