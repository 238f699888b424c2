//! The command line.

use candle_core::{Device, Result};
use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

pub const HELP: &str = "\
Measures stock Candle and candle-fused on the same inputs, interleaved, and prints medians.

Usage: compare [--quick] [--only SUBSTR] [--device cpu|metal] [--json FILE] [--list]

  --only SUBSTR   only cases whose name contains SUBSTR; several narrow further.
                  A name is module/op/case/dtype/pass, as --list prints it:
                  --only silu, --only '/1M inplace/', --only /f16/, --only /fwd_bwd
  --device NAME   cpu (the default) or metal
  --quick         fewer sizes and samples, under a minute
  --json FILE     also write the results to FILE
  --list          print the names of the cases and stop
  --help          print this and stop

Passes: fwd is inference. fwd_bwd is a forward and a backward; stock's side is then composed of
differentiable ops, since its fused ones lose the gradient. An `inplace` case compares our op in
x's own memory with stock's op, which has no such form. Times are wall time, allocation and release
of the results included, and on Metal the wait for the GPU.

Columns: ratio is stock / ours. GB/s is what our op reads and writes once (inputs, outputs, and the
gradients of fwd_bwd) over its time. max error is the largest difference from stock Candle's
composed ops in f32 or f64, relative to the largest value; beyond the dtype's tolerance,
and in f32 beyond stock's own error, the row fails, and so does the run.

Exit status: 0, or 1 if a case failed, or 2 for a wrong command line.
";

pub struct Options {
    pub quick: bool,
    pub list: bool,
    pub json: Option<PathBuf>,
    pub device_name: &'static str,
    only: Vec<String>,
}

impl Options {
    /// Whether `--only` admits the row of this name.
    pub fn selects(&self, key: &str) -> bool {
        self.only.iter().all(|part| key.contains(part))
    }

    pub fn only(&self) -> String {
        self.only.join(" --only ")
    }

    pub fn device(&self) -> Result<Device> {
        match self.device_name {
            "metal" if !cfg!(feature = "metal") => {
                candle_core::bail!("built without Metal: add --features metal to cargo run")
            }
            #[cfg(feature = "metal")]
            "metal" if !candle_fused::metal::is_available() => {
                candle_core::bail!("this machine has no Metal device")
            }
            "metal" => Device::new_metal(0),
            _ => Ok(Device::Cpu),
        }
    }
}

/// The options, or None where help is wanted.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
) -> std::result::Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        quick: false,
        list: false,
        json: None,
        device_name: "cpu",
        only: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_iter(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("help") | Short('h') => return Ok(None),
            Long("quick") => options.quick = true,
            Long("list") => options.list = true,
            Long("only") => options.only.push(parser.value()?.string()?),
            Long("json") => options.json = Some(parser.value()?.into()),
            Long("device") => options.device_name = device_name(&parser.value()?.string()?)?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

fn device_name(name: &str) -> std::result::Result<&'static str, lexopt::Error> {
    match name {
        "cpu" => Ok("cpu"),
        "metal" => Ok("metal"),
        _ => Err(format!("--device {name}: not one of cpu, metal").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn options(args: &str) -> super::Options {
        let args = ["compare"].into_iter().chain(args.split_whitespace());
        parse(args.map(Into::into)).unwrap().unwrap()
    }

    #[test]
    fn only_narrows() {
        let options = options("--quick --only silu --only /f32/");
        assert!(options.quick && !options.list);
        assert!(options.selects("activation/silu/1M/f32/fwd"));
        assert!(!options.selects("activation/silu/1M/f16/fwd"));
        assert!(!options.selects("activation/relu/1M/f32/fwd"));
    }

    #[test]
    fn wrong_lines_are_errors() {
        for line in ["--fast", "silu", "--only", "--device cuda", "--quick=yes"] {
            let args = ["compare"].into_iter().chain(line.split_whitespace());
            assert!(parse(args.map(Into::into)).is_err(), "{line}");
        }
    }
}
