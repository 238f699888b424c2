//! Quantisation: numbers as codes of 1 to 8 bits, back, and both at once for training.
//!
//! Elements that share a scale (a tensor, a row, a column or a group, see [`ScaleScope`]) are encoded as
//! `code = clamp(round((x − bias) / scale) + zero)` and decoded as `v = (code − zero) · scale + bias`. The parameters are
//! computed in f32 from the elements that share them, by [`Levels`]:
//!
//! | levels | scale | zero | bias |
//! |---|---|---|---|
//! | `Ternary` | mean &#124;x&#124; | 1 | |
//! | `Sign` | 2 · mean &#124;x&#124; | ½ | |
//! | `Int8` | max &#124;x&#124; / 127 | 0 | |
//! | `ZeroPoint` | (max(x, 0) − min(x, 0)) / (2ᵇⁱᵗˢ − 1) | round(−min(x, 0) / scale) | |
//! | `Affine` | ±(max x − min x) / (2ᵇⁱᵗˢ − 1), adjusted so that a code stands for 0 | 0 | the end of the range that is farther from 0 |
//!
//! A mean, maximum or range below the scheme's eps is replaced by eps. If one of the elements is NaN or infinite, or their
//! sum or range exceeds f32, the scale and all values are NaN.
//!
//! Backward: [`fake_quantize`] is a straight-through estimator, `dx = g`; clipped, `dx = g` where x is at most half a step
//! beyond the outermost levels, and 0 elsewhere. [`dequantize`] has `dscale = Σ g · (code − zero)` and `dbias = Σ g` over the
//! elements that share them; for zero points, `dzero = −scale · Σ g`.

pub(crate) mod cpu;
mod dequantize;
mod fake;
#[cfg(feature = "metal")]
pub(crate) mod metal;
mod reference;

pub use crate::quant::{Levels, Packing, Quantized, Rounding, ScaleScope, Scheme};
pub use dequantize::{dequantize, Dequantize};
pub use fake::{fake_quantize, fake_quantize_clipped, FakeQuantize};
pub use reference::{reference, reference_dequantize, reference_quantize};

use crate::check;
use crate::op::{self, Args, Grads, MultiOp, OpResults, Spec};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Error, Result, Shape, Tensor};

const NAME: &str = "quantize";

/// The codes and scales of x. They carry no gradient: for training there is [`fake_quantize`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::quantize;
/// use candle_fused::quant::{ScaleScope, Scheme};
/// let x = Tensor::new(&[[0.5f32, -1.5, 0.0, 1.0]], &Device::Cpu)?;
/// let q = quantize(&x, Scheme::ternary(ScaleScope::Row))?;
/// assert_eq!(q.codes().to_vec2::<u8>()?, [[0b10_01_00_10]]);
/// assert_eq!(q.dequantize(DType::F32)?.to_vec2::<f32>()?, [[0.75, -0.75, 0.0, 0.75]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn quantize(x: &Tensor, scheme: Scheme) -> Result<Quantized> {
    let mut outputs = op::apply_multi(NAME, Quantize(scheme), &[&x.detach()])?.into_iter();
    let (Some(codes), Some(scales)) = (outputs.next(), outputs.next()) else {
        unreachable!("there are always codes and scales");
    };
    let (offsets, shape) = (outputs.next(), x.shape().clone());
    Ok(Quantized::from_outputs(
        codes, scales, offsets, shape, scheme,
    ))
}

/// [`quantize`]: codes, scales and, if the scheme has them, offsets.
struct Quantize(Scheme);

impl Quantize {
    /// The outputs with their shapes.
    fn shaped<S>(&self, x: &Shape, (codes, scales, offsets): Parts<S>) -> OpResults<S> {
        let shape = self.0.scales_shape(x)?;
        let offsets = offsets.map(|offsets| (offsets, shape.clone()));
        let codes = (codes, self.0.codes_shape(x)?);
        Ok([codes, (scales, shape)]
            .into_iter()
            .chain(offsets)
            .collect())
    }
}

/// Codes, scales and offsets.
type Parts<S> = (S, S, Option<S>);

impl MultiOp for Quantize {
    const ARGS: &'static [&'static str] = &["x"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_x(name, &self.0, args[0])
    }
    fn cpu(&self, args: Args<CpuStorage>) -> OpResults<CpuStorage> {
        let (codes, scales, offsets) = cpu::quantize(self.0, args[0])?;
        let parts = (
            CpuStorage::U8(codes),
            CpuStorage::F32(scales),
            offsets.map(CpuStorage::F32),
        );
        self.shaped(args[0].1.shape(), parts)
    }
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResults<MetalStorage> {
        let (x, l) = args[0];
        self.shaped(l.shape(), metal::quantize(self.0, x, l)?)
    }
    fn bwd(&self, _: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Grads {
        Err(Error::BackwardNotSupported { op: NAME })
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let q = reference_quantize(args[0], self.0)?;
        let parts = [Some(q.codes()), Some(q.scales()), q.offsets()];
        Ok(parts.into_iter().flatten().cloned().collect())
    }
}

/// A floating-point tensor that the scheme fits.
fn check_x(name: &str, scheme: &Scheme, x: Spec<'_>) -> Result<()> {
    check::is_float(name, x)?;
    scheme.check(name, x.shape()).map(drop)
}
