//! Training, of all weights or of an adapter alone.

use crate::data::Batch;
use crate::rng::Rng;
use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, Var};
use candle_fused::nn::{AdamW, Optimizer, ParamsAdamW};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashSet;

/// What is trained.
pub trait Learner {
    /// Characters of a window.
    fn context(&self) -> usize;
    fn training_loss(&self, batch: &Batch) -> Result<Tensor>;
    fn test_loss(&self, batch: &Batch) -> Result<Tensor>;
}

pub struct Plan<'a> {
    pub name: &'static str,
    pub text: &'a [u32],
    /// Tested with now and then.
    pub held_out: &'a Batch,
    pub steps: usize,
    pub windows: usize,
    pub learning_rate: f64,
}

/// Losses by step.
#[derive(Default)]
pub struct Curve {
    pub train: Vec<f32>,
    pub held_out: Vec<(usize, f32)>,
}

impl Curve {
    /// A running mean, of all losses at first, then mostly of the latest.
    pub fn smooth(&self) -> Vec<f64> {
        let mut mean = 0.0;
        let mut next = |(i, &loss): (usize, &f32)| {
            mean += (f64::from(loss) - mean) * (1.0 / (i + 1) as f64).max(0.1);
            mean
        };
        self.train.iter().enumerate().map(&mut next).collect()
    }

    /// The running mean at the end.
    pub fn last(&self) -> f64 {
        self.smooth().pop().unwrap_or(f64::NAN)
    }
}

/// Trains these variables, and checks at each step that nothing else got a gradient.
pub fn train(model: &impl Learner, vars: Vec<Var>, plan: &Plan, rng: &mut Rng) -> Result<Curve> {
    let trained: HashSet<TensorId> = vars.iter().map(|var| var.id()).collect();
    let mut optimizer = AdamW::new(vars, adam())?;
    let mut curve = Curve::default();
    let bar = progress(plan);
    for step in 0..plan.steps {
        if step % 20 == 0 {
            curve.held_out.push((step, evaluate(model, plan.held_out)?));
        }
        let batch = Batch::random(plan.text, plan.windows, model.context(), rng)?;
        let loss = model.training_loss(&batch)?;
        let grads = loss.backward()?;
        check(&grads, &trained)?;
        optimizer.set_learning_rate(plan.rate(step));
        optimizer.step(&grads)?;
        let loss = loss.to_scalar::<f32>()?;
        if !loss.is_finite() {
            candle_core::bail!("{}: the loss is {loss} at step {step}", plan.name);
        }
        curve.train.push(loss);
        bar.set_message(format!("loss {loss:.3}"));
        bar.inc(1);
    }
    curve
        .held_out
        .push((plan.steps, evaluate(model, plan.held_out)?));
    bar.finish_and_clear();
    Ok(curve)
}

pub fn evaluate(model: &impl Learner, batch: &Batch) -> Result<f32> {
    model.test_loss(batch)?.detach().to_scalar()
}

pub fn adam() -> ParamsAdamW {
    ParamsAdamW {
        beta2: 0.99,
        ..Default::default()
    }
}

/// The gradients that a backward pass leaves behind are those of the trained variables, all of them and no others.
fn check(grads: &GradStore, trained: &HashSet<TensorId>) -> Result<()> {
    let left: HashSet<TensorId> = grads.get_ids().copied().collect();
    let frozen: Vec<_> = left.difference(trained).collect();
    if let Some(grad) = frozen.first().and_then(|id| grads.get_id(**id)) {
        let (count, shape) = (frozen.len(), grad.shape());
        candle_core::bail!("{count} frozen tensors got a gradient, one of shape {shape:?}");
    }
    let missing = trained.difference(&left).count();
    if missing > 0 {
        candle_core::bail!("{missing} of {} variables got no gradient", trained.len());
    }
    Ok(())
}

impl Plan<'_> {
    /// Up in a straight line over the first steps, then down in half a cosine.
    fn rate(&self, step: usize) -> f64 {
        let warm = (step + 1) as f64 / 10.0;
        let done = step as f64 / self.steps as f64;
        let cosine = 0.05 + 0.475 * (1.0 + (std::f64::consts::PI * done).cos());
        self.learning_rate * warm.min(1.0) * cosine
    }
}

/// A bar on stderr, which indicatif hides where that is no terminal.
fn progress(plan: &Plan) -> ProgressBar {
    let template = "{prefix:12} {bar:40} {pos}/{len}, {eta} left  {msg}";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    ProgressBar::new(plan.steps as u64)
        .with_style(style)
        .with_prefix(plan.name)
}
