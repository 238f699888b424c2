//! Quantised keys or values of attention.

use super::{Packing, Quantized, ScaleScope, Scheme};
use crate::check;
use candle_core::{DType, Result, Shape, Tensor};

/// The codes of quantised keys or values, as they lie in a cache, where [`attention_codes`](crate::ops::attention_codes) reads
/// them.
///
/// The row of token t of head h of sequence b is codes, scales and offsets at `[b, h, t]`:
///
/// ```text
/// codes    u8   [batch, heads, tokens, bytes]     int8: one byte for each number; int4: two, the first in the low bits
/// scales   f32  [batch, heads, tokens, groups]    groups = head_dim / group: numbers that lie together share a scale
/// offsets  f32  [batch, heads, tokens, groups]    for schemes that have them
/// ```
///
/// Number i of the row, in group g = i / group, is `codes[i] · scales[g]` for [`Levels::Int8`](super::Levels::Int8),
/// whose codes are in two's complement, `(codes[i] − offsets[g]) · scales[g]` for
/// [`Levels::ZeroPoint`](super::Levels::ZeroPoint), and `codes[i] · scales[g] + offsets[g]` for
/// [`Levels::Affine`](super::Levels::Affine). So a product of q with a row is, group by group,
/// `scales[g] · Σ q[i]·codes[i] + offsets[g] · Σ q[i]` for the last of these.
#[derive(Clone, Debug)]
pub struct KvCodes {
    pub codes: Tensor,
    pub scales: Tensor,
    pub offsets: Option<Tensor>,
    pub scheme: Scheme,
    /// The numbers of a row.
    pub head_dim: usize,
}

impl KvCodes {
    /// Views of the first `len` tokens.
    pub fn first(&self, len: usize) -> Result<Self> {
        let part = |t: &Tensor| t.narrow(2, 0, len);
        Ok(KvCodes {
            codes: part(&self.codes)?,
            scales: part(&self.scales)?,
            offsets: self.offsets.as_ref().map(part).transpose()?,
            ..*self
        })
    }

    /// As a tensor that can be dequantised; what is not contiguous is copied.
    pub fn quantized(&self) -> Result<Quantized> {
        let KvCodes {
            codes,
            scales,
            offsets,
            scheme,
            ..
        } = self;
        let shape = self.shape("KvCodes::quantized")?;
        Quantized::new(
            codes.clone(),
            scales.clone(),
            offsets.clone(),
            shape,
            *scheme,
        )
    }

    /// `[batch, heads, tokens, head_dim]`
    pub(crate) fn shape(&self, name: &str) -> Result<Shape> {
        let got = self.codes.dims();
        match got {
            &[batch, heads, tokens, _] => Ok((batch, heads, tokens, self.head_dim).into()),
            _ => {
                let message = format_args!(
                    "got codes of shape {got:?}, expected [batch, heads, tokens, bytes]"
                );
                Err(check::error(name, message))
            }
        }
    }

    /// The numbers' shape, if the tensors are what the type says. Kernels rely on it.
    pub(crate) fn check(&self, name: &str, called: &str) -> Result<Shape> {
        let (shape, scheme) = (self.shape(name)?, &self.scheme);
        scheme.check(name, &shape)?;
        let scope = scheme.scope;
        let message = format_args!(
            "got {called} with scales for each {scope:?}, expected them for each row or group"
        );
        let own = matches!(scope, ScaleScope::Row | ScaleScope::Group(_));
        check::ensure(own, name, message)?;
        let (has, given) = (scheme.has_offsets(), self.offsets.is_some());
        let message =
            format_args!("got {called} with offsets: {given}, expected {has} for {scheme:?}");
        check::ensure(has == given, name, message)?;
        let scales = scheme.scales_shape(&shape)?;
        let parts = [
            (
                "codes",
                Some(&self.codes),
                DType::U8,
                scheme.codes_shape(&shape)?,
            ),
            ("scales", Some(&self.scales), DType::F32, scales.clone()),
            ("offsets", self.offsets.as_ref(), DType::F32, scales),
        ];
        for (what, tensor, dtype, expected) in parts {
            let Some(tensor) = tensor else { continue };
            let message = format_args!(
                "got {what} of {called} of shape {:?} and dtype {:?}, expected {expected:?} and {dtype:?}",
                tensor.shape(),
                tensor.dtype()
            );
            let sound = tensor.shape() == &expected && tensor.dtype() == dtype;
            check::ensure(sound, name, message)?;
        }
        Ok(shape)
    }

    /// How many numbers share a scale.
    pub(crate) fn group(&self) -> usize {
        match self.scheme.scope {
            ScaleScope::Group(group) => group,
            _ => self.head_dim,
        }
    }

    /// The bits of a code, if attention's kernels read such codes: 4 or 8.
    pub(crate) fn kernel_bits(&self) -> Option<u32> {
        let bits = self.scheme.bits();
        let suits = self.scheme.packing == Packing::Bits && matches!(bits, 4 | 8);
        suits.then_some(bits)
    }

    /// Codes, scales and perhaps offsets.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.codes, &self.scales].into_iter().chain(&self.offsets)
    }
}
