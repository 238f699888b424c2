//! Gradients against central differences of the reference in f64: an oracle that shares no backward
//! formula, neither ours nor Candle's, with what it judges.

use super::check::{self, all, at, Verdict};
use super::gradients::gradients;
use super::{Point, Sizes};
use crate::cases::{self, Fill, OpCase, Size};
use candle_core::{DType, Device, Result, Tensor};

/// Two evaluations for each element: larger arguments are left to autograd, and so are those of calls that take long.
const MOST: usize = 1000;
/// The most elements of an argument times the elements of all arguments, which an evaluation reads.
const MOST_READ: usize = 1 << 20;

/// What is small enough of most ops.
pub const SIZES: Sizes = Sizes::Only(&[&[3, 5]]);

/// Truncation (h²) and cancellation (1e-16/h) both stay far below the f32 tolerance.
const STEP: f64 = 1e-4;

/// Whether the gradient to the argument of that index is checked, if all have so many elements.
fn is_small_enough(counts: &[usize], argument: usize) -> bool {
    let count = counts[argument];
    count <= MOST && count * counts.iter().sum::<usize>() <= MOST_READ
}

/// Cases that are about large arguments. Others of their ops have the same gradients, of smaller ones.
const LARGE: [&str; 3] = [
    "lora/lora_rank_64",
    "matmul_act/heads_gelu",
    "matmul_act/vectors_gelu",
];

/// Every gradient of every other case is checked at some size.
#[test]
fn no_gradient_is_left_out() {
    let mut left_out = Vec::new();
    let cases = cases::all();
    for name in LARGE {
        assert!(cases.iter().any(|case| case.id() == name), "no {name}");
    }
    let small = |case: &&OpCase| !case.straight_through && !LARGE.contains(&&*case.id());
    for case in cases.iter().filter(small) {
        let sizes = SIZES.of(case);
        let of_size = |size: &Size| -> Vec<usize> {
            let shapes = case.args.iter().map(|arg| (arg.shape)(*size));
            shapes.map(|dims| dims.iter().product()).collect()
        };
        let counts: Vec<Vec<usize>> = sizes.iter().map(of_size).collect();
        for (i, arg) in case.args.iter().enumerate().filter(|(_, arg)| arg.grad) {
            let checked = |counts: &Vec<usize>| counts[i] > 0 && is_small_enough(counts, i);
            if !counts.iter().any(checked) {
                left_out.push(format!("{}: {}", case.id(), arg.name));
            }
        }
    }
    assert!(left_out.is_empty(), "{}", left_out.join("\n"));
}

pub fn agree(point: &Point) -> Result<Verdict> {
    if point.case.straight_through {
        return Ok(Ok(()));
    }
    let inputs = point.inputs()?;
    let got = gradients(&point.case.fused, &inputs, point.dtype)?;
    let exact = check::exact(&inputs)?;
    let counts: Vec<usize> = inputs.iter().map(Tensor::elem_count).collect();
    let wanted = point.case.args.iter().enumerate();
    let wanted = wanted.filter(|(i, arg)| arg.grad && is_small_enough(&counts, *i));
    all(wanted, |(i, arg)| {
        let want = differences(point, &exact, i)?;
        let verdict = match &got[i] {
            Some(got) => check::close(got, &want, point.gradient_tolerance(got, &inputs))?,
            None => Err("missing".into()),
        };
        Ok(at(format!("gradient to {}", arg.name), verdict))
    })
}

fn differences(point: &Point, args: &[Tensor], which: usize) -> Result<Tensor> {
    let values = args[which].flatten_all()?.to_vec1::<f64>()?;
    let loss_at = |i: usize, step: f64| {
        let mut moved = values.clone();
        moved[i] += step;
        let mut args = args.to_vec();
        args[which] = Tensor::from_vec(moved, args[which].shape(), &Device::Cpu)?;
        loss(point, &args)
    };
    let slopes = (0..values.len())
        .map(|i| Ok((loss_at(i, STEP)? - loss_at(i, -STEP)?) / (2.0 * STEP)))
        .collect::<Result<Vec<f64>>>()?;
    Tensor::from_vec(slopes, args[which].shape(), &Device::Cpu)
}

/// Σ output·g, with the g of `gradients::backward`.
fn loss(point: &Point, args: &[Tensor]) -> Result<f64> {
    let mut loss = 0.0;
    for (i, output) in (point.case.reference)(args)?.iter().enumerate() {
        let g = Fill::Signal.tensor(output.dims(), 100 + i as u64, point.dtype, &Device::Cpu)?;
        loss += (output * g.to_dtype(DType::F64)?)?
            .sum_all()?
            .to_scalar::<f64>()?;
    }
    Ok(loss)
}
