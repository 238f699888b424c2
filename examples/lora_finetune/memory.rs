//! What a step of fine-tuning takes in memory, counted by the allocator.

use crate::data::Batch;
use crate::layers::Pass;
use crate::model::Model;
use crate::rng::Rng;
use crate::shape::Shape;
use crate::{model, train};
use candle_core::{Result, Tensor, Var};
use candle_fused::nn::lora::LoraConfig;
use candle_fused::nn::{AdamW, Optimizer};
use candle_fused::ops::{self, Adapter};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with a note of how much is in use.
pub struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let now = NOW.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(now, Relaxed);
}

// SAFETY: all work is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // As if a new block stood beside the old one for a moment.
        grown(size);
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.realloc(p, layout, size) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.dealloc(p, layout) }
    }
}

/// How many bytes more than before are in use at most.
fn peak(mut run: impl FnMut() -> Result<()>) -> Result<usize> {
    // Threads and caches of a first run are no part of a step.
    run()?;
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    run()?;
    Ok(PEAK.load(Relaxed) - before)
}

/// The same step with stock Candle and with this crate, in bytes.
pub struct Peaks {
    pub what: String,
    pub stock: usize,
    pub fused: usize,
}

/// One linear layer with an adapter, forward and backward.
pub fn layer(dim: usize, rows: usize, rank: usize, rng: &mut Rng) -> Result<Peaks> {
    let mut draw = |rows: usize, cols: usize| rng.uniform(&(rows, cols).into(), 0.1);
    let weight = draw(dim, dim)?;
    let x = Var::from_tensor(&draw(rows, dim)?)?;
    let a = Var::from_tensor(&draw(rank, dim)?)?;
    let b = Var::from_tensor(&draw(dim, rank)?)?;
    let step = |y: Result<Tensor>| y?.backward().map(drop);
    Ok(Peaks {
        what: format!("one {dim}×{dim} layer, {rows} rows"),
        stock: peak(|| {
            step(candle_fused::reference::lora::reference(
                &x,
                &weight,
                None,
                Adapter::new(&a, &b, 2.0),
            ))
        })?,
        fused: peak(|| step(ops::lora(&x, &weight, None, &a, &b, 2.0)))?,
    })
}

/// A whole step: forward, backward and optimizer.
pub fn step(what: &str, model: &Model, vars: Vec<Var>, batch: &Batch) -> Result<Peaks> {
    // The variables stay as they are, so that both sides see the same.
    let mut params = train::adam();
    params.lr = 0.0;
    let mut optimizer = AdamW::new(vars, params)?;
    let mut losses = vec![];
    let mut measure = |pass| -> Result<usize> {
        let bytes = peak(|| {
            let loss = model.loss(batch, pass)?;
            optimizer.backward_step(&loss)
        });
        losses.push(model.loss(batch, pass)?.to_scalar::<f32>()?);
        bytes
    };
    let (stock, fused) = (measure(Pass::Stock)?, measure(Pass::Eval)?);
    if (losses[0] - losses[1]).abs() > 1e-3 {
        candle_core::bail!("{what}: the losses differ, {losses:?}");
    }
    let (windows, context) = batch.inputs.dims2()?;
    Ok(Peaks {
        what: format!("{what}, {windows}×{context} characters"),
        stock,
        fused,
    })
}

/// The same of a model that is large beside its batch, as those that are fine-tuned are.
pub fn wide(shape: Shape, config: &LoraConfig, ids: &[u32], rng: &mut Rng) -> Result<Peaks> {
    let weights = {
        let (_, vars) = model::untrained(shape, rng)?;
        let data = vars.data().lock().expect("no thread has panicked");
        let detached = data.iter().map(|(name, var)| (name.clone(), var.detach()));
        detached.collect()
    };
    let (model, lora) = model::adapted(&weights, shape, config, rng)?;
    let batch = Batch::random(ids, 1, shape.context, rng)?;
    let what = format!("{} wide", shape.dim);
    step(&what, &model, lora.adapter_vars(), &batch)
}
