//! Numbers as codes of 1 to 8 bits.
//!
//! A number of a unit (a tensor, a row, a column, a group) is `v = (code − zero) · scale + bias`, where `code = clamp(round((x −
//! bias) / scale) + zero)`. By [`Grid`], over the unit's numbers and in f32:
//!
//! | grid | scale | zero | bias |
//! |---|---|---|---|
//! | `Ternary` | mean &#124;x&#124; | 1 | |
//! | `Sign` | 2 · mean &#124;x&#124; | ½ | |
//! | `Int8` | max &#124;x&#124; / 127 | 0 | |
//! | `ZeroPoint` | (max(x, 0) − min(x, 0)) / (2ᵇⁱᵗˢ − 1) | round(−min(x, 0) / scale) | |
//! | `Affine` | ±(max x − min x) / (2ᵇⁱᵗˢ − 1), adjusted so that 0 is met | 0 | the end of the range that is farther from 0 |
//!
//! Numbers below the scheme's eps count as eps before they are divided by. A unit that holds a NaN or an infinity, or whose
//! sum is beyond f32, has NaN for its scale, and so for all its values; so are the values of one whose range is beyond f32.
//!
//! Backward: [`fake_quantize`] is straight through, `dx = g`; clipped, `dx = g` where x is no further than half a step beyond
//! the codes, and 0 elsewhere. [`dequantize`] has `dscale = Σ g · (code − zero)` and `dbias = Σ g` over a unit.

pub(crate) mod cpu;
mod dequantize;
mod fake;
#[cfg(feature = "metal")]
pub(crate) mod metal;
mod quantized;
mod reference;
mod scheme;

pub use dequantize::Dequantize;
pub use fake::{Clip, FakeQuantize};
pub use quantized::Quantized;
pub use reference::{reference, reference_dequantize, reference_quantize};
pub use scheme::{Grid, Packing, Per, Rounding, Scheme};

use crate::{apply, check};
use candle_core::op::BackpropOp;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor};
use std::sync::{Arc, OnceLock};

const NAME: &str = "quantize";

/// The codes and scales of x. They carry no gradient: for training there is [`fake_quantize`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::quantize::{quantize, Per, Scheme};
/// let x = Tensor::new(&[[0.5f32, -1.5, 0.0, 1.0]], &Device::Cpu)?;
/// let q = quantize(&x, Scheme::ternary(Per::Row))?;
/// assert_eq!(q.codes().to_vec2::<u8>()?, [[0b10_01_00_10]]);
/// assert_eq!(q.dequantize(DType::F32)?.to_vec2::<f32>()?, [[0.75, -0.75, 0.0, 0.75]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn quantize(x: &Tensor, scheme: Scheme) -> Result<Quantized> {
    check::float(NAME, x)?;
    scheme.check(NAME, x.shape())?;
    let x = x.detach();
    if x.elem_count() == 0 || !check::served(&x) {
        return reference_quantize(&x, scheme);
    }
    let op = Quantize::new(scheme);
    let codes = apply::op1(&x, op.clone())?;
    let Some(Units { scales, offsets }) = op.units.get().cloned() else {
        return Err(check::error(NAME, "no scales have been computed"));
    };
    Quantized::new(codes, scales, offsets, x.shape().clone(), scheme)
}

/// The numbers that codes stand for, in f32, f16 or bf16. Scales and offsets get gradients.
pub fn dequantize(q: &Quantized, dtype: DType) -> Result<Tensor> {
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(check::unsupported_dtype("dequantize", dtype));
    }
    let (codes, scales) = (q.codes(), q.scales());
    let served = codes.device().is_cpu() || (codes.device().is_metal() && cfg!(feature = "metal"));
    if q.shape().elem_count() == 0 || !served {
        return reference_dequantize(q, dtype);
    }
    let op = Dequantize {
        scheme: *q.scheme(),
        shape: q.shape().clone(),
        dtype,
    };
    match q.offsets() {
        Some(offsets) => apply::op3(codes, scales, offsets, op),
        None => apply::op2(codes, scales, op),
    }
}

/// `dequantize(quantize(x))` in one pass, with the gradient of x itself.
pub fn fake_quantize(x: &Tensor, scheme: Scheme) -> Result<Tensor> {
    fake(x, scheme, false)
}

/// [`fake_quantize`] without a gradient where x lies more than half a step beyond the codes.
pub fn fake_quantize_clipped(x: &Tensor, scheme: Scheme) -> Result<Tensor> {
    fake(x, scheme, true)
}

fn fake(x: &Tensor, scheme: Scheme, clipped: bool) -> Result<Tensor> {
    check::float("fake_quantize", x)?;
    scheme.check("fake_quantize", x.shape())?;
    if x.elem_count() == 0 || !check::served(x) {
        return reference(x, scheme, clipped);
    }
    apply::op1(x, FakeQuantize { scheme, clipped })
}

#[derive(Clone, Debug)]
struct Units {
    scales: Tensor,
    offsets: Option<Tensor>,
}

impl Units {
    fn new(scheme: Scheme, shape: &Shape, scales: Storage, offsets: Option<Storage>) -> Self {
        let shape = scheme.scales_shape(shape);
        let tensor =
            |storage| Tensor::from_storage(storage, shape.clone(), BackpropOp::none(), false);
        Units {
            scales: tensor(scales),
            offsets: offsets.map(tensor),
        }
    }
}

/// [`quantize`] as a CustomOp: it gives the codes. The scales, which it computes on the way, are left with it and its
/// clones by its first use.
#[derive(Clone, Debug)]
pub struct Quantize {
    pub scheme: Scheme,
    units: Arc<OnceLock<Units>>,
}

impl Quantize {
    pub fn new(scheme: Scheme) -> Self {
        Quantize {
            scheme,
            units: Arc::default(),
        }
    }

    /// Of the tensor that it has been applied to.
    pub fn scales(&self) -> Option<&Tensor> {
        self.units.get().map(|units| &units.scales)
    }

    /// Of the tensor that it has been applied to, if the scheme has offsets.
    pub fn offsets(&self) -> Option<&Tensor> {
        self.units.get().and_then(|units| units.offsets.as_ref())
    }

    fn keep(&self, units: Units) -> Result<()> {
        self.units
            .set(units)
            .map_err(|_| check::error(NAME, "the op has been applied before; make another"))
    }
}

impl CustomOp1 for Quantize {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.scheme.check(NAME, l.shape())?;
        let (codes, scales, offsets) = cpu::quantize(self.scheme, x, l)?;
        let wrap = |data| Storage::Cpu(CpuStorage::F32(data));
        self.keep(Units::new(
            self.scheme,
            l.shape(),
            wrap(scales),
            offsets.map(wrap),
        ))?;
        Ok((CpuStorage::U8(codes), self.scheme.codes_shape(l.shape())))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        self.scheme.check(NAME, l.shape())?;
        let (codes, scales, offsets) = metal::quantize(self.scheme, x, l)?;
        self.keep(Units::new(
            self.scheme,
            l.shape(),
            Storage::Metal(scales),
            offsets.map(Storage::Metal),
        ))?;
        Ok((codes, self.scheme.codes_shape(l.shape())))
    }
}
