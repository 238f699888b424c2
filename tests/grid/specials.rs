//! NaN, infinities, zeros, huge and tiny values come out as stock Candle has them in f32.

use super::check::{self, all, at, Verdict};
use super::Point;
use candle_core::{DType, Device, Result, Tensor};

/// What one slice of the first argument is overwritten with.
#[derive(Clone, Copy)]
enum Special {
    /// One element in the middle.
    One(f32),
    /// The whole slice.
    All(f32),
}

impl Special {
    fn is_infinite(self) -> bool {
        let (Special::One(value) | Special::All(value)) = self;
        value.is_infinite()
    }
}

const SPECIALS: [Special; 11] = [
    Special::One(f32::NAN),
    Special::One(f32::INFINITY),
    Special::One(f32::NEG_INFINITY),
    Special::All(f32::NAN),
    Special::All(f32::INFINITY),
    Special::All(f32::NEG_INFINITY),
    Special::All(-0.0),
    Special::One(1e4),
    Special::One(-1e4),
    // Subnormal in f16.
    Special::All(1e-6),
    Special::One(6e4),
];

pub fn as_stock(point: &Point) -> Result<Verdict> {
    let mut inputs = point.inputs()?;
    // Products of the last special overflow f16 on the way to a sum that needn't.
    let specials = match point.case.product {
        Some(_) => &SPECIALS[..SPECIALS.len() - 1],
        None => &SPECIALS,
    };
    let specials: Vec<Special> = specials
        .iter()
        .copied()
        .filter(|special| !(point.case.decodes_zeros && special.is_infinite()))
        .collect();
    inputs[0] = overwritten(&inputs[0], &specials)?;
    let outputs = (point.case.fused)(&inputs)?;
    let wide = inputs
        .iter()
        .map(|t| t.to_device(&Device::Cpu)?.to_dtype(DType::F32))
        .collect::<Result<Vec<_>>>()?;
    let expected = (point.case.reference)(&wide)?;
    // Stock's own f32 error comes on top.
    let mut tolerance = point.tolerance();
    tolerance.rel += 1e-5;
    all(outputs.iter().zip(&expected).enumerate(), |(i, (o, e))| {
        let e = match point.case.hides {
            true => &where_not_zero(o, e)?,
            false => e,
        };
        Ok(at(format!("output {i}"), check::close(o, e, tolerance)?))
    })
}

/// `expected`, but 0 where the output is 0.
fn where_not_zero(output: &Tensor, expected: &Tensor) -> Result<Tensor> {
    let output = output.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    output.eq(0f32)?.where_cond(&output, expected)
}

/// Slice i of the first dim gets the i-th special.
fn overwritten(x: &Tensor, specials: &[Special]) -> Result<Tensor> {
    let (dtype, device) = (x.dtype(), x.device());
    let slice = x.elem_count() / x.dim(0)?.max(1);
    let mut values = x
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F32)?
        .flatten_all()?
        .to_vec1::<f32>()?;
    for (chunk, special) in values.chunks_mut(slice.max(1)).zip(specials) {
        match special {
            Special::One(value) => chunk[slice / 2] = *value,
            Special::All(value) => chunk.fill(*value),
        }
    }
    Tensor::from_vec(values, x.shape(), &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(device)
}
