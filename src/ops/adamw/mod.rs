//! A step of AdamW (Loshchilov and Hutter, 2019) in one pass over a parameter θ, its gradient g and the moments m and v:
//!
//! ```text
//! m ← β₁·m + (1 − β₁)·g        v ← β₂·v + (1 − β₂)·g²
//! θ ← (1 − lr·λ)·θ − lr·m̂ / (√v̂ + eps)      with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ) at step t
//! ```
//!
//! All of it is computed in f32, for parameters of any dtype. Moments are kept in f32, or as 8-bit codes with a scale for each
//! block of 256 (see [`codes`]). A parameter in 16 bits is rounded by one of three rules, [`Rounding`].
//!
//! The op overwrites three or four tensors at once, which no CustomOp can; so it exports nothing, and serves `nn::AdamW`.

pub(crate) mod codes;
mod cpu;
#[cfg(feature = "metal")]
mod metal;
mod state;

use crate::check;
use crate::cpu::parallel;
use crate::op::{overwrite, ArgMut};
use candle_core::{DType, Result, Tensor, Var};
pub(crate) use state::State;

const NAME: &str = "adamw";

/// How a 16-bit parameter takes the result of a step, which is computed in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To nearest: an update below half a unit in the last place is lost.
    Nearest,
    /// Up or down by chance, right on average. The random word of element i is that of (seed, i).
    Stochastic { seed: u64 },
    /// The parameter is kept in f32 beside the moments, and rounded to nearest from there.
    Master,
}

/// The numbers of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coefficients {
    /// 1 − lr·λ
    pub decay: f64,
    pub beta1: f64,
    pub beta2: f64,
    /// lr / (1 − β₁ᵗ)
    pub rate: f64,
    /// 1 / (1 − β₂ᵗ)
    pub scale_v: f64,
    pub eps: f64,
}

/// One step of one parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub coefficients: Coefficients,
    pub rounding: Rounding,
}

/// A parameter, what a step does to it, and its gradient: of the parameter's shape, any layout, and any float dtype.
pub(crate) struct Update<'a> {
    pub step: Step,
    pub var: &'a Var,
    pub grad: &'a Tensor,
    pub state: &'a State,
}

/// Changes the parameter and its state.
pub(crate) fn adamw_step(name: &'static str, update: &Update) -> Result<()> {
    let &Update {
        step,
        var,
        grad,
        state,
    } = update;
    check::same_device(name, &["a variable", "its gradient"], &[var, grad])?;
    check::is_float(name, grad)?;
    check::ensure(
        var.shape() == grad.shape(),
        name,
        format_args!(
            "got a gradient of shape {:?}, expected the variable's {:?}",
            grad.shape(),
            var.shape()
        ),
    )?;
    if var.elem_count() == 0 {
        return Ok(());
    }
    if !check::has_kernel(var) {
        return by_reference(name, update);
    }
    let grad = match grad.dtype() {
        dtype if dtype == var.dtype() || dtype == DType::F32 => grad.clone(),
        // f64, or another 16-bit type.
        _ => grad.to_dtype(DType::F32)?,
    };
    let targets = [
        Some(var.as_tensor()),
        Some(&state.floats),
        state.codes.as_ref(),
    ];
    let targets: Vec<&Tensor> = targets.into_iter().flatten().collect();
    match var.device() {
        #[cfg(feature = "metal")]
        candle_core::Device::Metal(_) => overwrite(name, &targets, &grad, &mut |targets, grad| {
            metal::step(&step, targets, grad)
        }),
        _ => overwrite(name, &targets, &grad, &mut |targets, grad| {
            parallel::off_candle_pool(|| cpu::step(&step, targets, grad))
        }),
    }
}

/// A step of many parameters. On the CPU, small ones are shared out to threads as wholes: each is too short to be cut.
pub(crate) fn adamw_steps(name: &'static str, updates: &[Update]) -> Result<()> {
    let is_small = |&&Update { var, grad, .. }: &&Update| {
        // Gradients of another dtype are converted by Candle's pool, which takes one call at a time.
        let converted = grad.dtype() != var.dtype() && grad.dtype() != DType::F32;
        var.device().is_cpu()
            && check::has_kernel(var)
            && !converted
            && !parallel::is_shared(var.elem_count(), cpu::COST)
    };
    let mut small: Vec<_> = updates
        .iter()
        .filter(is_small)
        .map(|update| (update, Ok(())))
        .collect();
    let elements: usize = small.iter().map(|(small, _)| small.var.elem_count()).sum();
    let cost = cpu::COST * (elements / small.len().max(1)) + cpu::CALL_COST;
    parallel::off_candle_pool(|| {
        parallel::each(&mut small, cost, |(update, result)| {
            *result = adamw_step(name, update);
        })
    });
    small.into_iter().try_for_each(|(_, result)| result)?;
    let mut large = updates.iter().filter(|update| !is_small(update));
    large.try_for_each(|update| adamw_step(name, update))
}

/// The step in plain Candle: the specification, and what runs on a device or dtype without a kernel, with moments as floats.
fn by_reference(name: &'static str, update: &Update) -> Result<()> {
    let Update { var, state, .. } = update;
    let n = var.elem_count();
    let floats = &state.floats;
    if state.codes.is_some() {
        return Err(check::error(
            name,
            "got 8-bit moments, expected f32 ones on this device",
        ));
    }
    let part = |i: usize| floats.narrow(0, i * n, n)?.reshape(var.shape());
    let kept = var.as_detached_tensor();
    let theta = match state.has_master {
        true => {
            // A variable that was set by other code since the last step is taken as it is.
            let master = part(2)?;
            let current = master.to_dtype(var.dtype())?.eq(&kept)?;
            current.where_cond(&master, &kept.to_dtype(master.dtype())?)?
        }
        false => kept.to_dtype(floats.dtype())?,
    };
    let grad = update.grad.to_dtype(floats.dtype())?;
    let [theta, m, v] = reference(
        update.step.coefficients,
        &theta,
        &grad,
        &part(0)?,
        &part(1)?,
    )?;
    let parts = [&m, &v, &theta];
    for (i, part) in parts.into_iter().take(state.parts()).enumerate() {
        floats.slice_set(&part.flatten_all()?, 0, i * n)?;
    }
    var.set(&theta.to_dtype(var.dtype())?)
}

/// θ, m and v after a step, by the equations above.
pub(crate) fn reference(
    c: Coefficients,
    theta: &Tensor,
    grad: &Tensor,
    m: &Tensor,
    v: &Tensor,
) -> Result<[Tensor; 3]> {
    let m = ((m * c.beta1)? + (grad * (1.0 - c.beta1))?)?;
    let v = ((v * c.beta2)? + (grad.sqr()? * (1.0 - c.beta2))?)?;
    let denominator = ((&v * c.scale_v)?.sqrt()? + c.eps)?;
    let theta = ((theta * c.decay)? - ((&m * c.rate)? / denominator)?)?;
    Ok([theta, m, v])
}

/// The targets of a step, as [`adamw_step`] orders them.
type Targets<'a, 'b, S> = &'a mut [ArgMut<'b, S>];

/// [`Coefficients`] as kernels take them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Coefficients32 {
    decay: f32,
    beta1: f32,
    /// 1 − β₁
    gain1: f32,
    beta2: f32,
    /// 1 − β₂
    gain2: f32,
    rate: f32,
    scale_v: f32,
    eps: f32,
}

impl From<Coefficients> for Coefficients32 {
    fn from(c: Coefficients) -> Self {
        Coefficients32 {
            decay: c.decay as f32,
            beta1: c.beta1 as f32,
            gain1: (1.0 - c.beta1) as f32,
            beta2: c.beta2 as f32,
            gain2: (1.0 - c.beta2) as f32,
            rate: c.rate as f32,
            scale_v: c.scale_v as f32,
            eps: c.eps as f32,
        }
    }
}
