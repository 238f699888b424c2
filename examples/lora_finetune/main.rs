//! Fine-tuning with LoRA from end to end: a small transformer learns prose, then an adapter beside its frozen weights
//! learns verse, is saved in PEFT's format, loaded again and merged.
//!
//!     cargo run --release --example lora_finetune -- --help

mod check;
mod cli;
mod data;
mod draw;
mod exit;
mod init;
mod layers;
mod memory;
mod model;
mod number;
mod print;
mod report;
mod rng;
mod same_bits;
mod sample;
mod shape;
mod svg;
mod train;

use candle_core::{Device, Result, Var};
use candle_fused::nn::lora::{LoraConfig, LoraModel, DEFAULT_ADAPTER};
use cli::Options;
use data::{Batch, Vocabulary};
use exit::Outcome;
use model::Model;
use rng::Rng;
use sample::sample;
use shape::Shape;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use train::{evaluate, Curve, Plan};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const WINDOWS: usize = 8;
const RANK: usize = 8;
/// A new line is how both texts begin a passage.
const PROMPT: &str = "\n";

fn main() -> ExitCode {
    // Candle's threads spin while they wait for each other. A product of this size is done before that pays, and on a
    // busy machine a run took several times as long.
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        std::env::set_var("RAYON_NUM_THREADS", "1");
    }
    exit::run(
        "lora_finetune",
        cli::HELP,
        cli::parse(std::env::args_os()),
        run,
    )
}

/// What all parts of the run share.
struct Run<'a> {
    options: &'a Options,
    out: io::Stdout,
    rng: Rng,
    vocabulary: Vocabulary,
    shape: Shape,
    config: LoraConfig,
    held_out: Batch,
}

fn run(options: &Options) -> Outcome<()> {
    let start = Instant::now();
    let dir = &options.out;
    // Now rather than after the training.
    std::fs::create_dir_all(dir).map_err(|e| format!("--out {}: {e}", dir.display()))?;
    let files = ["base.safetensors", "adapter", "loss.svg"].map(|name| dir.join(name));
    let [base, adapter, chart] = &files;

    let (verse, rest) = data::split(data::TUNED);
    let mut run = Run::new(options, rest)?;
    let prose_curve = run.train_base(base)?;
    let weights = candle_core::safetensors::load(base, &Device::Cpu)?;
    let verse = run.vocabulary.encode(verse)?;
    let (model, lora) = model::adapted(&weights, run.shape, &run.config, &mut run.rng)?;
    let verse_curve = run.fine_tune(&model, &lora, &verse)?;
    check::unchanged(&weights, base)?;
    writeln!(
        run.out,
        "The base got no gradient, and its weights are the same bits"
    )?;

    lora.save_peft(DEFAULT_ADAPTER, adapter)?;
    check::reloaded((&model, &weights, run.shape), &run.held_out, adapter)?;
    writeln!(
        run.out,
        "Saved for PEFT and reloaded: the logits are the same bits"
    )?;
    let merged = check::merged(&model, &lora, &run.held_out, || run.sample(&model))?;
    report::merged(&mut run.out, &merged)?;
    run.compare_memory(&model, &lora, &verse)?;

    std::fs::write(chart, report::chart(&prose_curve, &verse_curve))
        .map_err(|e| format!("{}: {e}", chart.display()))?;
    print::files(&mut run.out, &files)?;
    writeln!(run.out, "Total: {:.0} s", start.elapsed().as_secs_f64())?;
    Ok(())
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, held_out: &str) -> Result<Self> {
        let vocabulary = Vocabulary::of(&[data::BASE, data::TUNED]);
        let shape = Shape {
            vocabulary: vocabulary.len(),
            context: 64,
            dim: 128,
            hidden: 320,
            heads: 4,
            layers: 2,
        };
        let config = LoraConfig {
            rank: RANK,
            alpha: 2.0 * RANK as f64,
            dropout: 0.1,
            ..Default::default()
        };
        Ok(Run {
            options,
            out: io::stdout(),
            rng: Rng::new(options.seed),
            held_out: Batch::whole(&vocabulary.encode(held_out)?, shape.context)?,
            vocabulary,
            shape,
            config,
        })
    }

    /// All weights, on prose.
    fn train_base(&mut self, path: &Path) -> Outcome<Curve> {
        let start = Instant::now();
        let (model, vars) = model::untrained(self.shape, &mut self.rng)?;
        let count = parameters(&vars.all_vars());
        writeln!(
            self.out,
            "Training a transformer of {count} weights on prose"
        )?;
        let plan = Plan {
            name: "prose",
            text: &self.vocabulary.encode(data::BASE)?,
            held_out: &self.held_out,
            steps: self.options.base_steps,
            windows: WINDOWS,
            learning_rate: 4e-3,
        };
        let curve = train::train(&model, vars.all_vars(), &plan, &mut self.rng)?;
        vars.save(path)?;
        print::phase(&mut self.out, &curve, start.elapsed())?;
        Ok(curve)
    }

    /// The adapter alone, on verse.
    fn fine_tune(&mut self, model: &Model, lora: &LoraModel, verse: &[u32]) -> Outcome<Curve> {
        let before = (self.sample(model)?, evaluate(model, &self.held_out)?);
        let start = Instant::now();
        let vars = lora.adapter_vars();
        let count = parameters(&vars);
        writeln!(
            self.out,
            "Fine-tuning an adapter of {count} weights on verse"
        )?;
        let plan = Plan {
            name: "verse",
            text: verse,
            held_out: &self.held_out,
            steps: self.options.steps,
            windows: WINDOWS,
            learning_rate: 1e-2,
        };
        let curve = train::train(model, vars, &plan, &mut self.rng)?;
        print::phase(&mut self.out, &curve, start.elapsed())?;
        let after = (self.sample(model)?, evaluate(model, &self.held_out)?);
        report::texts(&mut self.out, [before, after])?;
        Ok(curve)
    }

    fn sample(&self, model: &Model) -> Result<String> {
        sample(model, &self.vocabulary, PROMPT, 240, self.options.seed)
    }

    fn compare_memory(&mut self, model: &Model, lora: &LoraModel, verse: &[u32]) -> Outcome<()> {
        let (shape, rng) = (self.shape, &mut self.rng);
        let batch = Batch::random(verse, WINDOWS, shape.context, rng)?;
        let wide = Shape {
            dim: 1024,
            hidden: 2560,
            heads: 16,
            ..shape
        };
        let peaks = [
            memory::layer(1024, 64, RANK, rng)?,
            memory::step("this model", model, lora.adapter_vars(), &batch)?,
            memory::wide(wide, &self.config, verse, rng)?,
        ];
        Ok(report::peaks(&mut self.out, &peaks)?)
    }
}

fn parameters(vars: &[Var]) -> usize {
    vars.iter().map(|var| var.elem_count()).sum()
}
