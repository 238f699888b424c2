//! BitNet from end to end: a small transformer learns with ternary weights, is packed into 2 bits for each, saved and loaded
//! again, and writes.
//!
//!     cargo run --release --example bitnet -- --help

mod cli;
#[path = "../lora_finetune/data.rs"]
mod data;
#[path = "../compare/difference.rs"]
mod difference;
#[path = "../lora_finetune/draw.rs"]
mod draw;
#[path = "../lora_finetune/exit.rs"]
mod exit;
mod generate;
#[path = "../lora_finetune/init.rs"]
mod init;
#[allow(dead_code, reason = "compare reads more of it")]
#[path = "../compare/measure.rs"]
mod measure;
mod model;
#[path = "../lora_finetune/number.rs"]
mod number;
#[path = "../lora_finetune/print.rs"]
mod print;
mod projection;
mod report;
#[path = "../lora_finetune/rng.rs"]
mod rng;
#[path = "../lora_finetune/same_bits.rs"]
mod same_bits;
#[path = "../lora_finetune/shape.rs"]
mod shape;
#[cfg(test)]
mod tests;
#[path = "../lora_finetune/train.rs"]
mod train;
mod wide;

use candle_core::{safetensors, Device, Result, Tensor};
use candle_fused::nn::quantized::Tensors;
use candle_fused::nn::VarMap;
use cli::Options;
use data::{Batch, Vocabulary};
use difference::max_error;
use exit::Outcome;
use generate::generate;
use measure::{interleaved, Budget, Call};
use model::Model;
use projection::Form;
use rng::Rng;
use same_bits::same_bits;
use shape::Shape;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;
use train::{evaluate, Plan};

const WINDOWS: usize = 2;
/// As a stanza begins.
const PROMPT: &str = "\n\nWho ";
/// How far the packed model's logits may be from the trained one's, relative to the largest: sums of floats and of integers
/// differ in their last bits, and where such a bit rounds an input of the next layer to the neighbouring one of 255 integers,
/// the difference grows to that.
const TOLERANCE: f64 = 0.02;

const THREADS: &str = "RAYON_NUM_THREADS";

fn main() -> ExitCode {
    let options = cli::parse(std::env::args_os());
    exit::run("bitnet", cli::HELP, options, |options| match options.wide {
        true => measure_wide(options),
        false => run(options),
    })
}

fn run(options: &Options) -> Outcome<()> {
    let start = Instant::now();
    // Candle's threads spin while they wait for each other. A product of this size is done before that pays, and on a
    // busy machine a run took several times as long.
    let threads = std::env::var_os(THREADS);
    if threads.is_none() {
        std::env::set_var(THREADS, "1");
    }
    let dir = &options.out;
    // Now rather than after the training.
    std::fs::create_dir_all(dir).map_err(|e| format!("--out {}: {e}", dir.display()))?;
    let path = dir.join("model.safetensors");

    let mut run = Run::new(options)?;
    let (model, vars) = run.train()?;
    let tensors = model.frozen(&vars)?;
    let packed = run.freeze(&model, &tensors)?;
    run.reload(&packed, &tensors, &path)?;
    run.write_and_time(&packed, &tensors)?;
    wide_with(threads, options.seed)?;
    print::files(&mut run.out, &[path])?;
    writeln!(run.out, "Total: {:.0} s", start.elapsed().as_secs_f64())?;
    Ok(())
}

/// The wide layer is worth all threads, but their number is fixed at the first product: a process of its own takes them.
fn wide_with(threads: Option<OsString>, seed: u64) -> Outcome<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--wide", "--seed", &seed.to_string()]);
    if threads.is_none() {
        command.env_remove(THREADS);
    }
    match command.status()?.success() {
        true => Ok(()),
        false => Err("the wide layer could not be measured".into()),
    }
}

fn measure_wide(options: &Options) -> Outcome<()> {
    let times = wide::measure(&wide::SHAPES, &mut Rng::new(options.seed))?;
    Ok(report::wide(&mut io::stdout(), &times)?)
}

/// What all parts of the run share.
struct Run<'a> {
    options: &'a Options,
    out: io::Stdout,
    rng: Rng,
    vocabulary: Vocabulary,
    shape: Shape,
    text: Vec<u32>,
    held_out: Batch,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options) -> Outcome<Self> {
        let vocabulary = Vocabulary::of(&[data::BASE, data::TUNED]);
        let shape = Shape {
            vocabulary: vocabulary.len(),
            context: 128,
            dim: 256,
            hidden: 640,
            heads: 8,
            layers: 2,
        };
        let (verse, rest) = data::split(data::TUNED);
        Ok(Run {
            options,
            out: io::stdout(),
            rng: Rng::new(options.seed),
            text: vocabulary.encode(&format!("{}\n{verse}", data::BASE))?,
            held_out: Batch::whole(&vocabulary.encode(rest)?, shape.context)?,
            vocabulary,
            shape,
        })
    }

    fn train(&mut self) -> Outcome<(Model, VarMap)> {
        let start = Instant::now();
        let (model, vars) = Model::untrained(self.shape, &mut self.rng)?;
        let ternary: usize = model.projections().map(|p| p.weights()).sum();
        let all: usize = vars.all_vars().iter().map(|var| var.elem_count()).sum();
        writeln!(
            self.out,
            "Training a transformer of {all} weights, {ternary} of them ternary, on prose and verse"
        )?;
        let plan = Plan {
            name: "training",
            text: &self.text,
            held_out: &self.held_out,
            steps: self.options.steps,
            windows: WINDOWS,
            learning_rate: 1.5e-3,
        };
        let curve = train::train(&model, vars.all_vars(), &plan, &mut self.rng)?;
        print::phase(&mut self.out, &curve, start.elapsed())?;
        let (loss, bound) = (curve.last(), cli::BOUND);
        if plan.steps >= cli::STEPS && loss > bound {
            return Err(format!("the loss ends at {loss:.3}, at most {bound} is accepted").into());
        }
        Ok((model, vars))
    }

    /// The packed model, whose logits are the trained one's.
    fn freeze(&mut self, model: &Model, tensors: &Tensors) -> Outcome<Model> {
        let packed = Model::load(self.shape, Form::Packed, tensors)?;
        let error = max_error(&[self.logits(&packed)?], &[self.logits(model)?])?;
        if error > TOLERANCE {
            let message = format!("packing changes the logits by {error:.1e} of the largest");
            return Err(format!("{message}, {TOLERANCE} accepted").into());
        }
        let losses = (
            evaluate(model, &self.held_out)?,
            evaluate(&packed, &self.held_out)?,
        );
        report::packed(&mut self.out, error, losses)?;
        Ok(packed)
    }

    fn reload(&mut self, packed: &Model, tensors: &Tensors, path: &Path) -> Outcome<()> {
        safetensors::save(tensors, path)?;
        let tensors = safetensors::load(path, &Device::Cpu)?;
        let again = Model::load(self.shape, Form::Packed, &tensors)?;
        if !same_bits(&self.logits(packed)?, &self.logits(&again)?)? {
            return Err("the reloaded model gives other logits".into());
        }
        writeln!(self.out, "Saved and reloaded: the logits are the same bits")?;
        Ok(())
    }

    fn logits(&self, model: &Model) -> Result<Tensor> {
        model.forward(&self.held_out.inputs, None)
    }

    /// A sample, and how long it takes packed and with floats.
    fn write_and_time(&mut self, packed: &Model, tensors: &Tensors) -> Outcome<()> {
        let float = Model::load(self.shape, Form::Float, tensors)?;
        let prompt = self.vocabulary.encode(PROMPT)?;
        let (context, seed) = (self.shape.context, self.options.seed);
        let write = |model| generate(model, &prompt, context, seed);
        let text = self.vocabulary.decode(&write(packed)?);
        report::text(&mut self.out, &text)?;
        let call = |model| Call::new(move || write(model).map(drop));
        let calls = [&float, packed].map(call).into();
        let micros = interleaved(calls, &Device::Cpu, &Budget::FULL)?;
        let speed = |micros: f64| (context - prompt.len()) as f64 / micros * 1e6;
        let rows = [(&float, micros[0]), (packed, micros[1])];
        let [float, packed] = rows.map(|(model, micros)| report::Side {
            weights: model.projections().map(|p| p.weights()).sum(),
            bytes: model.projections().map(|p| p.bytes()).sum(),
            speed: speed(micros),
        });
        Ok(report::sides(&mut self.out, &float, &packed)?)
    }
}
