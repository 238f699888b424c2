//! Methods of `Tensor` that have a fused form: `x.gelu_erf()?` becomes `x.apply(&candle_fused::nn::ops::gelu_erf)?`.

use crate::edit::Edit;
use crate::tokens::{Kind, Token};
use std::collections::BTreeSet;

/// A method, what takes its place, and whether a `?` has to follow because numbers have a method of this name too.
const METHODS: &[(&str, &str, bool)] = &[
    ("gelu", "candle_fused::nn::ops::gelu", false),
    ("gelu_erf", "candle_fused::nn::ops::gelu_erf", false),
    ("silu", "candle_fused::nn::ops::silu", false),
    // The activation takes integers, as the method does.
    ("relu", "candle_fused::nn::Activation::Relu", false),
    ("tanh", "candle_fused::nn::ops::tanh", true),
];

/// The names of [`METHODS`] that the code defines itself: there a call says nothing about its receiver.
pub fn defined(tokens: &[Token]) -> BTreeSet<&'static str> {
    let names = METHODS.iter().map(|m| m.0);
    let is_defined = |name: &&'static str| {
        let mut places = tokens.windows(2).enumerate();
        places.any(|(i, pair)| pair[0].is("fn") && pair[1].is(name) && takes_self(&tokens[i + 2..]))
    };
    names.filter(is_defined).collect()
}

/// Whether a function's arguments, which begin here, begin with `self`.
fn takes_self(tokens: &[Token]) -> bool {
    let open = tokens.iter().position(|t| t.is("("));
    let args = open.map_or(&[][..], |open| &tokens[open + 1..]);
    let first = args
        .iter()
        .find(|t| !t.is("&") && !t.is("mut") && t.kind != Kind::Lifetime);
    first.is_some_and(|t| t.is("self"))
}

/// Rewrites the calls without arguments of methods that only tensors have.
pub fn rewrite(tokens: &[Token], defined: &BTreeSet<&str>) -> Vec<Edit> {
    if !uses_candle(tokens) {
        return vec![];
    }
    let mut edits = vec![];
    for (i, call) in tokens.windows(4).enumerate() {
        if !(call[0].is(".") && call[2].is("(") && call[3].is(")")) {
            continue;
        }
        let method = METHODS.iter().find(|m| call[1].is(m.0));
        let Some((name, fused, asks)) = method else {
            continue;
        };
        let asked = tokens.get(i + 4).is_some_and(|t| t.is("?"));
        if defined.contains(name) || (*asks && !asked) {
            continue;
        }
        edits.push(Edit {
            range: call[1].start..call[3].end(),
            text: format!("apply(&{fused})"),
        });
    }
    edits
}

/// Whether a path into Candle stands in the file.
fn uses_candle(tokens: &[Token]) -> bool {
    let roots = ["candle", "candle_core", "candle_nn"];
    tokens
        .iter()
        .any(|t| t.kind == Kind::Ident && roots.contains(&t.text))
}
