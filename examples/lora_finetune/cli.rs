//! The command line.

use crate::number::{number, steps};
use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

pub const HELP: &str = "\
Trains a small character-level transformer on plain prose, then teaches it verse with a LoRA adapter
while its own weights stay frozen. Writes the base model, the adapter in PEFT's format and a chart of
the losses; prints text before and after, and the peak memory of a step with stock Candle and with
candle-fused.

Usage: lora_finetune [--steps N] [--base-steps N] [--seed N] [--out DIR]

  --steps N        steps of fine-tuning (default 400)
  --base-steps N   steps of the training before it (default 800)
  --seed N         of all random numbers (default 1); the same seed gives the same run
  --out DIR        where the files go (default: candle-fused-lora-finetune in the system's
                   directory for temporary files)
  --help           print this and stop

Runs on one thread unless the environment variable RAYON_NUM_THREADS says otherwise.
";

pub struct Options {
    pub steps: usize,
    pub base_steps: usize,
    pub seed: u64,
    pub out: PathBuf,
}

/// The options, or None where help is wanted.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        steps: 400,
        base_steps: 800,
        seed: 1,
        out: std::env::temp_dir().join("candle-fused-lora-finetune"),
    };
    let mut parser = lexopt::Parser::from_iter(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("help") | Short('h') => return Ok(None),
            Long("steps") => options.steps = steps("--steps", parser.value()?)?,
            Long("base-steps") => options.base_steps = steps("--base-steps", parser.value()?)?,
            Long("seed") => options.seed = number("--seed", parser.value()?)?,
            Long("out") => options.out = parser.value()?.into(),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}
