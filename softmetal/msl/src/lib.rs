//! Compiles Metal Shading Language for the CPU.
//!
//! A source goes through clang's preprocessor, is taken apart into tokens and declarations, loses what
//! only Metal knows (address spaces, attributes, instantiations with host names) and is compiled by
//! clang against the headers in `include/`. What Apple's compiler would refuse is refused here.
//! [`Library`] is the way in.

mod attribute;
mod builtin;
mod cache;
mod clang;
mod compiler;
mod constants;
mod declaration;
mod diagnostics;
mod edits;
mod emit;
mod entries;
mod error;
mod headers;
mod kernel;
mod library;
mod load;
mod locate;
mod options;
mod program;
mod rewrite;
mod source;
mod spaces;
mod strict;
mod token;

pub use error::{CompileError, Message};
pub use library::Library;
pub use options::{Constant, MathMode, Options, Version};

/// The name of a source that does not name its files.
pub(crate) const MAIN_FILE: &str = "program_source";
