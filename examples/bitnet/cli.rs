//! The command line.

use crate::number::{number, steps};
use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

pub const HELP: &str = "\
Trains a small character-level transformer whose projections are BitNet's: weights of -1, 0 and 1 times
a scale, inputs of 8 bits. Freezes it to 2 bits for each weight, saves and reloads it, writes text with
it, and prints size and speed beside those of f32 weights, for this model and for a layer of BitNet
b1.58 2B4T.

Usage: bitnet [--steps N] [--seed N] [--out DIR] [--wide]

  --steps N   steps of training (default 800)
  --seed N    of all random numbers (default 1); the same seed gives the same model and text
  --out DIR   where the packed model goes (default: candle-fused-bitnet in the system's directory for
              temporary files)
  --wide      only measure the layer of BitNet b1.58 2B4T
  --help      print this and stop

After the default number of steps or more, a loss above 1.2 nats per character is an error. Trains and
writes on one thread, and measures the layer with as many as Candle takes, unless the environment
variable RAYON_NUM_THREADS says otherwise.
";

/// What the loss must reach after the default number of steps.
pub const BOUND: f64 = 1.2;
pub const STEPS: usize = 800;

pub struct Options {
    pub steps: usize,
    pub seed: u64,
    pub out: PathBuf,
    pub wide: bool,
}

/// The options, or None where help is wanted.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        steps: STEPS,
        seed: 1,
        out: std::env::temp_dir().join("candle-fused-bitnet"),
        wide: false,
    };
    let mut parser = lexopt::Parser::from_iter(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("help") | Short('h') => return Ok(None),
            Long("steps") => options.steps = steps("--steps", parser.value()?)?,
            Long("seed") => options.seed = number("--seed", parser.value()?)?,
            Long("out") => options.out = parser.value()?.into(),
            Long("wide") => options.wide = true,
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}
