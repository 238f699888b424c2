//! How a tensor is quantised: the levels that codes stand for, the elements that share a scale, rounding and packing.

use crate::check;
use candle_core::{Result, Shape};

/// The numbers that codes stand for, as multiples of a scale that is computed from the tensor itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Levels {
    /// −1, 0 and 1 times the mean of |x|, as in BitNet b1.58. Codes are 0, 1 and 2.
    Ternary,
    /// ±1 times the mean of |x|: the sign of x, or of x less its mean if `centred`, with 0 as negative. Codes are 0 and 1.
    Sign { centred: bool },
    /// −127 to 127 times max |x| / 127. A code is the number in two's complement.
    Int8,
    /// 0 to 2ᵇⁱᵗˢ − 1, less a zero point in that range, times a step: 0 is represented exactly. 2, 4 or 8 bits.
    ZeroPoint { bits: u32 },
    /// 0 to 2ᵇⁱᵗˢ − 1 times a step, plus a bias, as MLX quantises. 0 is represented exactly; the end of the range that is
    /// nearer to 0 may be missed by up to one step for it. 2, 4 or 8 bits.
    Affine { bits: u32 },
}

/// The elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleScope {
    /// The whole tensor.
    Tensor,
    /// Each row along the last dim: a token, or an output of a weight.
    Row,
    /// Each index of the last dim: a channel.
    Column,
    /// Each group of this many neighbours along the last dim.
    Group(usize),
}

/// How a number between two levels is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest level, halves to the even code.
    Nearest,
    /// Up with the probability that equals the distance from the level below, in steps, so that the mean is kept. The
    /// random number of element i is a function of (seed, i) alone, the same on every device.
    Stochastic { seed: u64 },
}

/// How codes are packed into bytes. Each row of the last dim begins with a byte of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As many codes as fit into a byte, the first in the lowest bits.
    Bits,
    /// Five codes 0, 1 or 2 in a byte, 1.6 bits each. The first code is the highest digit d₀ of q = d₀d₁d₂d₃d₄ in base 3,
    /// and the byte is ⌈q · 256 / 243⌉: each multiplication by 3 then carries the next digit out of the byte.
    Base3,
}

/// An eps for tensors of any magnitude. A step of 1/255 of it and the step's inverse are still normal numbers: GPUs flush
/// subnormal ones to 0, and 0 / 0 is NaN.
const TINY: f32 = 1e-30;

/// How a tensor is quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    pub levels: Levels,
    pub scope: ScaleScope,
    pub rounding: Rounding,
    pub packing: Packing,
    /// The lower bound of the mean, maximum or range that a scale is computed from.
    pub eps: f32,
}

impl Scheme {
    /// Nearest rounding, packed bits, and an eps that suits the levels.
    pub const fn new(levels: Levels, scope: ScaleScope) -> Self {
        Scheme {
            levels,
            scope,
            rounding: Rounding::Nearest,
            packing: Packing::Bits,
            eps: match levels {
                // MLX's own. A constant tensor far from 0 has a range of 0 and needs no larger eps.
                Levels::Affine { .. } => 1e-7,
                Levels::ZeroPoint { .. } => TINY,
                _ => 1e-5,
            },
        }
    }

    /// [`Levels::Ternary`]
    pub const fn ternary(scope: ScaleScope) -> Self {
        Self::new(Levels::Ternary, scope)
    }

    /// [`Levels::Sign`], centred
    pub const fn sign(scope: ScaleScope) -> Self {
        Self::new(Levels::Sign { centred: true }, scope)
    }

    /// [`Levels::Int8`]
    pub const fn int8(scope: ScaleScope) -> Self {
        Self::new(Levels::Int8, scope)
    }

    /// [`Levels::ZeroPoint`] of 8 bits. With a scale per tensor this is known as dynamic quantisation.
    pub const fn uint8(scope: ScaleScope) -> Self {
        Self::new(Levels::ZeroPoint { bits: 8 }, scope)
    }

    /// MLX's layout: [`Levels::Affine`] with per-group scales. MLX itself has groups of 32, 64 or 128.
    pub const fn mlx(bits: u32, group: usize) -> Self {
        Self::new(Levels::Affine { bits }, ScaleScope::Group(group))
    }

    /// For gradients: [`Levels::Int8`] with per-group scales, stochastic rounding, and an eps for numbers of any magnitude.
    pub const fn gradient(group: usize, seed: u64) -> Self {
        Scheme {
            rounding: Rounding::Stochastic { seed },
            eps: TINY,
            ..Self::new(Levels::Int8, ScaleScope::Group(group))
        }
    }

    pub const fn with_packing(self, packing: Packing) -> Self {
        Scheme { packing, ..self }
    }

    pub const fn with_rounding(self, rounding: Rounding) -> Self {
        Scheme { rounding, ..self }
    }

    /// Bits of an unpacked code.
    pub const fn bits(&self) -> u32 {
        match self.levels {
            Levels::Sign { .. } => 1,
            Levels::Ternary => 2,
            Levels::Int8 => 8,
            Levels::ZeroPoint { bits } | Levels::Affine { bits } => bits,
        }
    }

    /// Whether there are offsets beside the scales: zero points or biases.
    pub const fn has_offsets(&self) -> bool {
        matches!(
            self.levels,
            Levels::ZeroPoint { .. } | Levels::Affine { .. }
        )
    }

    /// The shape of the scales of a tensor of this shape. They broadcast to it, except per-group scales, which have the
    /// number of groups for their last dim.
    pub fn scales_shape(&self, shape: &Shape) -> Result<Shape> {
        let (leading, cols) = self.check("scales_shape", shape)?;
        let per_row = |n: usize| Shape::from([leading, &[n]].concat());
        Ok(match self.scope {
            ScaleScope::Tensor => 1.into(),
            ScaleScope::Row => per_row(1),
            ScaleScope::Column => cols.into(),
            ScaleScope::Group(group) => per_row(cols / group),
        })
    }

    /// The shape of the packed codes of a tensor of this shape.
    pub fn codes_shape(&self, shape: &Shape) -> Result<Shape> {
        let (leading, cols) = self.check("codes_shape", shape)?;
        Ok([leading, &[self.row_bytes(cols)]].concat().into())
    }

    /// Codes in a byte. The scheme has passed [`Scheme::check`].
    pub(crate) const fn per_byte(&self) -> usize {
        match self.packing {
            Packing::Bits => 8 / self.bits() as usize,
            Packing::Base3 => 5,
        }
    }

    /// Bytes of a row of `cols` codes. The scheme has passed [`Scheme::check`].
    pub(crate) const fn row_bytes(&self, cols: usize) -> usize {
        cols.div_ceil(self.per_byte())
    }

    /// The smallest code; those of [`Levels::Int8`] are signed.
    pub(crate) const fn min_code(&self) -> i32 {
        match self.levels {
            Levels::Int8 => -128,
            _ => 0,
        }
    }

    /// The largest code. The scheme has passed [`Scheme::check`].
    pub(crate) const fn max_code(&self) -> i32 {
        match self.levels {
            Levels::Sign { .. } => 1,
            Levels::Ternary => 2,
            Levels::Int8 => 127,
            Levels::ZeroPoint { bits } | Levels::Affine { bits } => (1 << bits) - 1,
        }
    }

    /// The leading dims and the last dim of a tensor's shape, if the scheme is sound and fits the shape. Kernels rely on it.
    pub(crate) fn check<'a>(&self, name: &str, shape: &'a Shape) -> Result<(&'a [usize], usize)> {
        let fail = |message: String| Err(check::error(name, message));
        let Some((&cols, leading)) = shape.dims().split_last() else {
            return fail("got a scalar (rank 0), expected rank 1 or more".into());
        };
        check::fits_in_memory(name, "the quantised tensor", shape.dims())?;
        // A tensor without rows still has a scale for each column.
        check::fits_in_memory(name, "a row", &[cols])?;
        if let Levels::ZeroPoint { bits } | Levels::Affine { bits } = self.levels {
            if !matches!(bits, 2 | 4 | 8) {
                return fail(format!("got {bits} bits, expected 2, 4 or 8"));
            }
        }
        if self.packing == Packing::Base3 && self.levels != Levels::Ternary {
            return fail(format!("got {:?} in base 3, expected Ternary", self.levels));
        }
        check::eps(name, self.eps.into())?;
        match self.scope {
            ScaleScope::Group(group) if group == 0 || cols % group != 0 => fail(format!(
                "got groups of {group}, expected a divisor of the last dim, {cols}"
            )),
            _ => Ok((leading, cols)),
        }
    }
}
