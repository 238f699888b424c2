//! Ports Rust code from `candle_nn` to `candle_fused::nn`: paths, methods of tensors that have a fused form, and Cargo.toml.
//! What it cannot show to mean the same it leaves alone.

pub mod attention;
pub mod edit;
mod imports;
pub mod linear;
pub mod manifest;
pub mod methods;
pub mod paths;
pub mod tokens;

use edit::Edit;
use std::collections::BTreeSet;

/// What takes the place of what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name that the code has for `candle_nn`.
    pub from: String,
    /// The path that takes its place.
    pub to: String,
    /// Whether methods and compositions are rewritten too, and not paths alone.
    pub fuse: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            from: "candle_nn".into(),
            to: "candle_fused::nn".into(),
            fuse: true,
        }
    }
}

/// The edits of a file, and remarks for whoever reads them.
#[derive(Debug, Default)]
pub struct Ported {
    pub edits: Vec<Edit>,
    pub remarks: Vec<String>,
}

/// Ports one file. `defined` are the methods that its crate defines itself ([`methods::defined`]).
pub fn port(code: &str, options: &Options, defined: &BTreeSet<&str>) -> Ported {
    let tokens = tokens::tokens(code);
    let paths = paths::rewrite(&tokens, &options.from, &options.to);
    let mut edits = paths.edits;
    if options.fuse {
        edits.extend(methods::rewrite(code, &tokens, defined));
        edits.extend(linear::rewrite(code));
        edits = attention::rewrite(code, &tokens, &options.from, edits);
    }
    Ported {
        edits,
        remarks: paths.left,
    }
}
