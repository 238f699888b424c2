//! Methods of `Tensor` that have a fused form: `x.gelu_erf()?` becomes `x.apply(&candle_fused::nn::ops::gelu_erf)?`, and
//! `x.max_pool2d(2)?` becomes `x.max_pool2d_fused(2)?` of the trait `FusedTensorOps`, which its module then uses.

use crate::edit::Edit;
use crate::tokens::{macro_bodies, partner, Kind, Token};
use crate::Options;
use std::collections::BTreeSet;
use std::ops::Range;

/// A method without arguments, what takes its place, and whether a `?` has to follow because numbers have a method of this
/// name too.
const METHODS: &[(&str, &str, bool)] = &[
    ("gelu", "candle_fused::nn::ops::gelu", false),
    ("gelu_erf", "candle_fused::nn::ops::gelu_erf", false),
    ("silu", "candle_fused::nn::ops::silu", false),
    // The activation takes integers, as the method does.
    ("relu", "candle_fused::nn::Activation::Relu", false),
    ("tanh", "candle_fused::nn::ops::tanh", true),
];

/// A method of tensors, and the one of [`TRAIT`] with the same arguments that takes its place.
const RENAMED: &[(&str, &str)] = &[
    ("max_pool2d", "max_pool2d_fused"),
    ("max_pool2d_with_stride", "max_pool2d_with_stride_fused"),
    ("avg_pool2d", "avg_pool2d_fused"),
    ("avg_pool2d_with_stride", "avg_pool2d_with_stride_fused"),
    ("interpolate1d", "upsample_nearest1d_fused"),
    ("interpolate2d", "upsample_nearest2d_fused"),
    ("upsample_nearest1d", "upsample_nearest1d_fused"),
    ("upsample_nearest2d", "upsample_nearest2d_fused"),
    ("upsample_bilinear2d", "upsample_bilinear2d_fused"),
    (
        "upsample_bilinear2d_with_scale",
        "upsample_bilinear2d_with_scale_fused",
    ),
];

/// The trait of the methods in [`RENAMED`].
pub const TRAIT: &str = "candle_fused::FusedTensorOps";

/// The names of methods that the code defines itself: there a call says nothing about its receiver.
pub fn defined(tokens: &[Token]) -> BTreeSet<&'static str> {
    let names = METHODS.iter().map(|m| m.0);
    let names = names.chain(RENAMED.iter().map(|m| m.0));
    let is_defined = |name: &&'static str| {
        let mut places = tokens.windows(2).enumerate();
        places.any(|(i, pair)| pair[0].is("fn") && pair[1].is(name) && takes_self(&tokens[i + 2..]))
    };
    names.filter(is_defined).collect()
}

/// Whether a function whose generics or arguments begin here takes `self`.
fn takes_self(tokens: &[Token]) -> bool {
    let mut depth = 0;
    let open = tokens.iter().position(|t| {
        match t.text {
            "<" => depth += 1,
            ">" => depth -= 1,
            _ => {}
        }
        depth == 0 && t.is("(")
    });
    let args = open.map_or(&[][..], |open| &tokens[open + 1..]);
    let first = args
        .iter()
        .find(|t| !t.is("&") && !t.is("mut") && t.kind != Kind::Lifetime);
    first.is_some_and(|t| t.is("self"))
}

/// The edits of calls of methods that only tensors have, and a remark on each such call that is left as it is.
#[derive(Default)]
pub struct Methods {
    pub edits: Vec<Edit>,
    pub left: Vec<String>,
}

/// Rewrites the methods that the options ask for.
pub fn rewrite(
    code: &str,
    tokens: &[Token],
    defined: &BTreeSet<&str>,
    options: &Options,
) -> Methods {
    if !uses_candle(tokens) {
        return Methods::default();
    }
    let calls = Calls {
        code,
        tokens,
        defined,
        macros: macro_bodies(tokens),
    };
    let mut out = Methods::default();
    if options.fuse {
        out.edits.extend(calls.without_arguments());
        out.left.extend(calls.left(METHODS.iter().map(|m| m.0)));
    }
    if let Some(path) = &options.resizing {
        out.edits.extend(calls.renamed(path));
        out.left.extend(calls.left(RENAMED.iter().map(|m| m.0)));
    }
    out
}

/// The code in which calls are looked for.
struct Calls<'a> {
    code: &'a str,
    tokens: &'a [Token<'a>],
    defined: &'a BTreeSet<&'a str>,
    macros: Vec<Range<usize>>,
}

impl Calls<'_> {
    fn in_macro(&self, at: usize) -> bool {
        self.macros.iter().any(|body| body.contains(&at))
    }

    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|t| t.is(text))
    }

    /// Remarks on the uses of tensors' methods that do not have the form that is rewritten.
    fn left<'b>(&self, names: impl Iterator<Item = &'b str>) -> Vec<String> {
        let names: Vec<&str> = names.filter(|name| !self.defined.contains(name)).collect();
        let mut out = vec![];
        for (i, token) in self.tokens.iter().enumerate().skip(2) {
            let (name, method) = (token.text, self.is(i - 1, "."));
            if token.kind != Kind::Ident || !names.contains(&name) {
                continue;
            }
            let what = if self.is(i - 1, "::") && self.is(i - 2, "Tensor") {
                format!("`Tensor::{name}`")
            } else if method && self.is(i + 1, "::") {
                format!("`.{name}::<..>(..)`")
            } else if method && self.is(i + 1, "(") && self.in_macro(i) {
                format!("`.{name}(..)` in a macro")
            } else {
                continue;
            };
            let line = self.code[..token.start].matches('\n').count() + 1;
            out.push(format!("line {line}: {what} stays as it is"));
        }
        out
    }

    fn without_arguments(&self) -> Vec<Edit> {
        let mut edits = vec![];
        for (i, call) in self.tokens.windows(4).enumerate() {
            let is_call = call[0].is(".") && call[2].is("(") && call[3].is(")");
            if !is_call || self.in_macro(i) {
                continue;
            }
            let method = METHODS.iter().find(|m| call[1].is(m.0));
            let Some((name, fused, asks)) = method else {
                continue;
            };
            if self.defined.contains(name) || (*asks && !self.is(i + 4, "?")) {
                continue;
            }
            edits.push(Edit {
                range: call[1].start..call[3].end(),
                text: format!("apply(&{fused})"),
            });
        }
        edits
    }

    /// New names for the methods, and a `use` of their trait at the beginning of each module that calls one.
    fn renamed(&self, path: &str) -> Vec<Edit> {
        let (code, tokens) = (self.code, self.tokens);
        let mut edits = vec![];
        let mut modules = BTreeSet::new();
        for (i, call) in tokens.windows(3).enumerate() {
            if !(call[0].is(".") && call[2].is("(")) || self.in_macro(i) {
                continue;
            }
            let method = RENAMED.iter().find(|m| call[1].is(m.0));
            let Some((_, fused)) = method.filter(|m| !self.defined.contains(m.0)) else {
                continue;
            };
            edits.push(Edit {
                range: call[1].start..call[1].end(),
                text: fused.to_string(),
            });
            modules.insert(module_around(tokens, i));
        }
        let name = path.rsplit("::").next().unwrap_or(path);
        for module in modules {
            // Whoever names the trait has it in scope, or will be told by the compiler.
            let mut names = tokens.iter().enumerate().filter(|(_, t)| t.is(name));
            if names.any(|(i, _)| module_around(tokens, i) == module) {
                continue;
            }
            let first = first_item(tokens, module.map_or(0, |open| open + 1));
            if let Some(first) = tokens.get(first) {
                let line = code[..first.start].rfind('\n').map_or(0, |end| end + 1);
                let indent = &code[line..first.start];
                let indent = if indent.trim().is_empty() { indent } else { "" };
                edits.push(Edit {
                    range: first.start..first.start,
                    text: format!("use {path} as _;\n{indent}"),
                });
            }
        }
        edits
    }
}

/// The brace that opens the innermost `mod name { .. }` around a token; `None` in the file's own module.
fn module_around(tokens: &[Token], at: usize) -> Option<usize> {
    let opens = |i: &usize| {
        tokens[*i].is("{")
            && *i >= 2
            && tokens[i - 2].is("mod")
            && tokens[i - 1].kind == Kind::Ident
    };
    let around = |i: &usize| partner(tokens, *i).is_none_or(|close| close > at);
    (0..at).rev().filter(opens).find(around)
}

/// The first token behind the inner attributes and docs of a module whose tokens begin at `at`.
fn first_item(tokens: &[Token], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        let is_doc = token.kind == Kind::Doc
            && (token.text.starts_with("//!") || token.text.starts_with("/*!"));
        let follows = |i: usize, text: &str| tokens.get(i).is_some_and(|t| t.is(text));
        let is_attribute = token.is("#") && follows(at + 1, "!") && follows(at + 2, "[");
        at = match (is_doc, is_attribute) {
            (true, _) => at + 1,
            (_, true) => partner(tokens, at + 2).map_or(tokens.len(), |close| close + 1),
            _ => return at,
        };
    }
    at
}

/// Whether a path into Candle stands in the file.
fn uses_candle(tokens: &[Token]) -> bool {
    let roots = ["candle", "candle_core", "candle_nn"];
    tokens
        .iter()
        .any(|t| t.kind == Kind::Ident && roots.contains(&t.text))
}
