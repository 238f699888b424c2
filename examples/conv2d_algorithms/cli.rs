//! The command line.

use candle_core::{Device, Result};
use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

pub const HELP: &str = "\
Runs convolutions by every algorithm of candle-fused and by stock Candle, in f32 and interleaved, checks
that the results agree, and prints medians.

Usage: conv2d_algorithms [--quick] [--only SUBSTRING] [--device cpu|metal] [--svg PATH]

  --only SUBSTRING   only shapes whose name contains it: --only ResNet, --only 3×3, --only 800×600;
                     x stands for × and -> for →
  --device NAME      cpu (the default) or metal
  --svg PATH         also draw the results as bars
  --quick            fewer shapes and samples, under 20 seconds
  --help             print this and stop

An algorithm that can't serve a shape hands it on to another: the last column names those that end up in
the same code, which is measured once. `auto` is the one that conv2d chooses by itself; `prepared` is for a
weight that stays the same, as a layer's in inference, and is transformed once. GFLOP/s counts the
operations of the definition, so that Winograd, which needs fewer, may exceed what the machine can do. max
error is the largest difference from stock, relative to the largest value.

Exit status: 0, or 1 if results disagree, or 2 for a wrong command line.
";

#[derive(Debug)]
pub struct Options {
    pub quick: bool,
    pub only: String,
    pub svg: Option<PathBuf>,
    pub device_name: &'static str,
}

impl Options {
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
        only: String::new(),
        svg: None,
        device_name: "cpu",
    };
    let mut parser = lexopt::Parser::from_iter(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("help") | Short('h') => return Ok(None),
            Long("quick") => options.quick = true,
            Long("only") => options.only = typed(&parser.value()?.string()?),
            Long("svg") => options.svg = Some(parser.value()?.into()),
            Long("device") => options.device_name = device_name(&parser.value()?.string()?)?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

/// A part of a shape's name from what keyboards have. The names of the models have an x too, but none between digits.
fn typed(text: &str) -> String {
    let text: Vec<char> = text.replace("->", "→").chars().collect();
    let is_digit = |at: Option<usize>| {
        at.and_then(|at| text.get(at))
            .is_some_and(char::is_ascii_digit)
    };
    let character = |(at, &c): (usize, &char)| match c {
        'x' if is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)) => '×',
        c => c,
    };
    text.iter().enumerate().map(character).collect()
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
    use super::*;

    fn parsed(line: &str) -> std::result::Result<Option<Options>, lexopt::Error> {
        let args = ["conv2d_algorithms"]
            .into_iter()
            .chain(line.split_whitespace());
        parse(args.map(Into::into))
    }

    #[test]
    fn options_are_read() {
        let options = parsed("--quick --only ResNet --svg a.svg --device metal").unwrap();
        let options = options.unwrap();
        assert!(options.quick);
        assert_eq!(options.only, "ResNet");
        assert_eq!(options.svg, Some("a.svg".into()));
        assert_eq!(options.device_name, "metal");
        assert!(parsed("--quick --help").unwrap().is_none());
    }

    #[test]
    fn nothing_means_all_on_the_cpu() {
        let options = parsed("").unwrap().unwrap();
        assert!(!options.quick && options.svg.is_none());
        assert_eq!((options.only.as_str(), options.device_name), ("", "cpu"));
    }

    #[test]
    fn names_can_be_typed() {
        assert_eq!(typed("64->64 3x3"), "64→64 3×3");
        assert_eq!(typed("ResNext"), "ResNext");
    }

    #[test]
    fn wrong_lines_are_errors() {
        for line in ["--fast", "ResNet", "--only", "--device cuda", "--quick=yes"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
