//! Gradients: near autograd of the reference, whatever the layout and whichever inputs need them.

use super::check::{self, all, at, Verdict};
use super::digest;
use super::forward::{copied, layouts};
use super::layout::Layout;
use super::tolerance::{tolerance, Tolerance};
use super::Point;
use crate::cases::{Call, Class, Fill};
use candle_core::{backprop::GradStore, DType, Device, Result, Tensor, Var};

/// Backpropagates Σ output·g, where g is made of numbers that `dtype` holds exactly.
pub fn backward(outputs: Vec<Tensor>, dtype: DType) -> Result<GradStore> {
    let mut terms = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        let g = Fill::Signal.tensor(output.dims(), 100 + i as u64, dtype, output.device())?;
        terms.push((output * g.to_dtype(output.dtype())?)?.flatten_all()?);
    }
    // Not added up: of two empty tensors Candle's sum is the first. The backward starts from ones, so
    // that g itself is what the op's backward receives.
    Tensor::cat(&terms, 0)?.backward()
}

/// The gradients to all arguments; `None` where there is none.
pub fn gradients(call: &Call, args: &[Tensor], dtype: DType) -> Result<Vec<Option<Tensor>>> {
    let vars: Vec<Var> = args.iter().map(Var::from_tensor).collect::<Result<_>>()?;
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let grads = backward(call(&tensors)?, dtype)?;
    Ok(tensors.iter().map(|t| grads.get(t).cloned()).collect())
}

impl Point<'_> {
    pub fn gradient_tolerance(&self, gradient: &Tensor, inputs: &[Tensor]) -> Tolerance {
        // The gradient to a broadcast argument sums so many terms, each about 1 and of either sign.
        let terms = inputs[0].elem_count() / gradient.elem_count().max(1);
        if terms > 1 {
            return tolerance(self.dtype, Class::Stepwise).with_scale((terms as f64).sqrt());
        }
        let tolerance = tolerance(self.dtype, self.case.grad_class);
        // A norm of one element is ±1 whatever the element: its gradient is all cancellation.
        match self.size.cols() {
            1 => tolerance.with_scale(Fill::LIMIT),
            _ => tolerance,
        }
    }
}

pub fn agree_with_reference(point: &Point) -> Result<Verdict> {
    let inputs = point.inputs()?;
    if inputs[0].elem_count() == 0 {
        return vanish(point, &inputs);
    }
    let exact = check::exact(&inputs)?;
    let want = gradients(&point.case.reference, &exact, point.dtype)?;
    let got = gradients(&point.case.fused, &inputs, point.dtype)?;
    let pairs = got.iter().zip(&want);
    all(point.case.args.iter().zip(pairs), |(arg, pair)| {
        if let (Some(got), _) = pair {
            digest::record(point, format!("gradient to {}", arg.name), got)?;
        }
        let verdict = match pair {
            _ if !arg.grad => Ok(()),
            (Some(got), Some(want)) => {
                check::close(got, want, point.gradient_tolerance(got, &inputs))?
            }
            (None, _) => Err("missing".into()),
            (_, None) => Err("missing from the reference".into()),
        };
        Ok(at(format!("gradient to {}", arg.name), verdict))
    })
}

/// Without elements nothing depends on anything. Candle's own ops lose the gradient here (they return
/// the first operand), so there is no reference.
fn vanish(point: &Point, inputs: &[Tensor]) -> Result<Verdict> {
    // On Metal the backward can't even start: Candle's ones of no elements divide by zero.
    if point.device.is_metal() || point.expected(inputs)?.is_none() {
        return Ok(Ok(()));
    }
    let got = gradients(&point.case.fused, inputs, point.dtype)?;
    let args = point.case.args.iter().zip(inputs).zip(&got);
    all(args, |((arg, x), got)| {
        let verdict = match got {
            // Of an empty sum the bias is left.
            Some(_)
                if arg.name == "bias" && point.case.product.is_some() && point.size.rows() > 0 =>
            {
                Ok(())
            }
            Some(got) => check::identical(got, &x.zeros_like()?)?,
            None if arg.grad => Err("missing".into()),
            None => Ok(()),
        };
        Ok(at(format!("gradient to {}", arg.name), verdict))
    })
}

/// The gradients to the bases must not depend on whether the op sees views or copies of them.
pub fn ignore_layout(point: &Point) -> Result<Verdict> {
    let inputs = point.inputs()?;
    if inputs[0].elem_count() == 0 {
        return Ok(Ok(()));
    }
    all(layouts(inputs.len()), |layouts| {
        let got = base_gradients(point, &inputs, &layouts, |views| Ok(views.to_vec()))?;
        let want = base_gradients(point, &inputs, &layouts, copied)?;
        let pairs = got.iter().zip(&want);
        all(point.case.args.iter().zip(pairs), |(arg, pair)| {
            let verdict = match pair {
                (Some(got), Some(want)) => {
                    let tolerance = point.gradient_tolerance(got, &inputs);
                    point.same(got, want, tolerance)?
                }
                (None, Some(_)) | (Some(_), None) => Err("missing".into()),
                (None, None) => Ok(()),
            };
            let place = format!("gradient to {}, {layouts:?}", arg.name);
            Ok(at(place, verdict))
        })
    })
}

fn base_gradients(
    point: &Point,
    inputs: &[Tensor],
    layouts: &[Layout],
    prepare: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    let mut bases = Vec::new();
    let mut views = Vec::new();
    for ((x, layout), arg) in inputs.iter().zip(layouts).zip(&point.case.args) {
        let base = layout.base(x, f32::NAN)?;
        let base = match arg.grad {
            true => Var::from_tensor(&base)?.into_inner(),
            false => base,
        };
        views.push(layout.view(&base, x.dims())?);
        bases.push(base);
    }
    let grads = backward((point.case.fused)(&prepare(&views)?)?, point.dtype)?;
    let gradient = |base: &Tensor| grads.get(base).map(added_to_zero).transpose();
    bases.iter().map(gradient).collect()
}

/// What Candle makes of a gradient that has come through a copy: a −0 becomes positive, and on some devices a subnormal of
/// bf16 becomes 0.
fn added_to_zero(grad: &Tensor) -> Result<Tensor> {
    let here = grad.to_device(&Device::Cpu)?;
    if grad.device().is_cpu() || grad.dtype() != DType::BF16 {
        return here + 0.0;
    }
    let subnormal = here.abs()?.lt(f64::from(f32::MIN_POSITIVE))?;
    subnormal.where_cond(&here.zeros_like()?, &here)
}

/// A gradient must be the same bits when no other argument needs one, and no frozen argument gets one.
pub fn reach_one_alone(point: &Point) -> Result<Verdict> {
    let inputs = point.inputs()?;
    let variables = point.case.args.iter().zip(&inputs);
    let variables = variables.map(|(arg, x)| match arg.grad {
        true => Ok(Var::from_tensor(x)?.into_inner()),
        false => Ok(x.clone()),
    });
    let variables = variables.collect::<Result<Vec<_>>>()?;
    let together = backward((point.case.fused)(&variables)?, point.dtype)?;
    let wanted = point.case.args.iter().enumerate().filter(|(_, a)| a.grad);
    all(wanted, |(i, arg)| {
        let mut args = inputs.clone();
        args[i] = Var::from_tensor(&inputs[i])?.into_inner();
        let grads = backward((point.case.fused)(&args)?, point.dtype)?;
        let frozen = args
            .iter()
            .enumerate()
            .find(|(j, t)| *j != i && grads.get(t).is_some());
        if let Some((j, _)) = frozen {
            let name = point.case.args[j].name;
            return Ok(Err(format!("frozen {name} gets a gradient")));
        }
        let verdict = match (grads.get(&args[i]), together.get(&variables[i])) {
            (Some(alone), Some(together)) => check::identical(alone, together)?,
            _ => Err("missing".into()),
        };
        Ok(at(format!("gradient to {} alone", arg.name), verdict))
    })
}

pub fn repeat(point: &Point) -> Result<Verdict> {
    let inputs = point.inputs()?;
    if inputs[0].elem_count() == 0 {
        return Ok(Ok(()));
    }
    let first = gradients(&point.case.fused, &inputs, point.dtype)?;
    let second = gradients(&point.case.fused, &inputs, point.dtype)?;
    let pairs = first.iter().flatten().zip(second.iter().flatten());
    all(pairs, |(a, b)| check::identical(a, b))
}
