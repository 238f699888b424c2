//! Ports Rust code from `candle_nn` to `candle_fused::nn`: paths, methods of tensors that have a fused form, and Cargo.toml.
//! What it cannot show to mean the same it leaves alone.

pub mod attention;
pub mod crates;
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
    /// Whether activations and compositions are rewritten too.
    pub fuse: bool,
    /// The trait whose methods take the place of pooling and upsampling, if they are rewritten too.
    pub resizing: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            from: "candle_nn".into(),
            to: "candle_fused::nn".into(),
            fuse: true,
            resizing: Some(methods::TRAIT.into()),
        }
    }
}

/// The edits of a file, and remarks for whoever reads them.
#[derive(Debug, Default)]
pub struct Ported {
    pub edits: Vec<Edit>,
    pub remarks: Vec<String>,
    /// Whether a name of `candle_nn` is left.
    pub keeps_from: bool,
}

/// Ports one file. `defined` are the methods that its crate defines itself ([`methods::defined`]).
pub fn port(code: &str, options: &Options, defined: &BTreeSet<&str>) -> Ported {
    let tokens = tokens::tokens(code);
    let paths = paths::rewrite(&tokens, &options.from, &options.to);
    let keeps_from = !paths.left.is_empty();
    let (mut edits, mut remarks) = (paths.edits, paths.left);
    let methods = methods::rewrite(code, &tokens, defined, options);
    edits.extend(methods.edits);
    remarks.extend(methods.left);
    if options.fuse {
        edits.extend(linear::rewrite(code));
        edits = attention::rewrite(code, &tokens, &options.from, edits);
    }
    Ported {
        edits,
        remarks,
        keeps_from,
    }
}
