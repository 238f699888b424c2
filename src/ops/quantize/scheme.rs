//! Which codes stand for which numbers.

use crate::check;
use candle_core::{Result, Shape};

/// The numbers that codes stand for, as multiples of a scale that is made of the numbers themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grid {
    /// −1, 0 and 1 times the mean of |x|, as in BitNet b1.58. Codes are 0, 1 and 2.
    Ternary,
    /// ±1 times the mean of |x|: the sign of x, or of x less its mean if `centred`, with 0 as negative. Codes are 0 and 1.
    Sign { centred: bool },
    /// −127 to 127 times max |x| / 127. A code is the number in two's complement.
    Int8,
    /// 0 to 2ᵇⁱᵗˢ − 1, less a zero point between them, times a step: 0 is met exactly. 2, 4 or 8 bits.
    ZeroPoint { bits: u32 },
    /// 0 to 2ᵇⁱᵗˢ − 1 times a step, plus a bias, as MLX quantises: 0 is met exactly, for which the end of the range that is
    /// nearer to 0 may be missed by a step at most. 2, 4 or 8 bits.
    Affine { bits: u32 },
}

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    /// The whole tensor.
    Tensor,
    /// Each row along the last dim: a token, or an output of a weight.
    Row,
    /// Each index of the last dim: a channel.
    Column,
    /// So many neighbours along the last dim.
    Group(usize),
}

/// Where a number between two codes goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest, halves to the even one.
    Nearest,
    /// Up with the probability of what is above the lower one, so that the mean is kept. Element i is decided by (seed, i)
    /// alone, on every device the same.
    Stochastic { seed: u64 },
}

/// How codes lie in bytes; each row of the last dim begins with a byte of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As many as fit, the first in the lowest bits.
    Bits,
    /// Five of 0, 1 and 2, the first as the highest digit d₀ of the number q = d₀d₁d₂d₃d₄ in base 3, which is stored as
    /// ⌈q · 256 / 243⌉: times 3, the digits come out above the byte one by one. 1.6 bits each.
    Base3,
}

/// For numbers of any size. Steps that are 1/255 of it and their inverses are normal numbers still: GPUs take others for
/// 0, and what is 0 divided by 0 is NaN.
const TINY: f32 = 1e-30;

/// How a tensor is quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    pub grid: Grid,
    pub per: Per,
    pub rounding: Rounding,
    pub packing: Packing,
    /// Means, maxima and ranges below this count as this.
    pub eps: f32,
}

impl Scheme {
    pub const fn new(grid: Grid, per: Per) -> Self {
        Scheme {
            grid,
            per,
            rounding: Rounding::Nearest,
            packing: Packing::Bits,
            eps: match grid {
                // As MLX has it; a range is not a size, so a constant tensor far from 0 needs no more.
                Grid::Affine { .. } => 1e-7,
                Grid::ZeroPoint { .. } => TINY,
                _ => 1e-5,
            },
        }
    }

    /// [`Grid::Ternary`]
    pub const fn ternary(per: Per) -> Self {
        Self::new(Grid::Ternary, per)
    }

    /// [`Grid::Sign`], centred
    pub const fn sign(per: Per) -> Self {
        Self::new(Grid::Sign { centred: true }, per)
    }

    /// [`Grid::Int8`]
    pub const fn int8(per: Per) -> Self {
        Self::new(Grid::Int8, per)
    }

    /// [`Grid::ZeroPoint`] of 8 bits. Of the whole tensor it is what others call dynamic quantisation.
    pub const fn uint8(per: Per) -> Self {
        Self::new(Grid::ZeroPoint { bits: 8 }, per)
    }

    /// MLX's layout: [`Grid::Affine`] by groups, 32, 64 or 128 in MLX itself.
    pub const fn mlx(bits: u32, group: usize) -> Self {
        Self::new(Grid::Affine { bits }, Per::Group(group))
    }

    /// For gradients: [`Grid::Int8`] by groups, however small the numbers are, with stochastic rounding.
    pub const fn gradient(group: usize, seed: u64) -> Self {
        Scheme {
            rounding: Rounding::Stochastic { seed },
            eps: TINY,
            ..Self::new(Grid::Int8, Per::Group(group))
        }
    }

    pub const fn with_packing(self, packing: Packing) -> Self {
        Scheme { packing, ..self }
    }

    pub const fn with_rounding(self, rounding: Rounding) -> Self {
        Scheme { rounding, ..self }
    }

    /// Of a code.
    pub const fn bits(&self) -> u32 {
        match self.grid {
            Grid::Sign { .. } => 1,
            Grid::Ternary => 2,
            Grid::Int8 => 8,
            Grid::ZeroPoint { bits } | Grid::Affine { bits } => bits,
        }
    }

    /// Codes in a byte.
    pub const fn per_byte(&self) -> usize {
        match self.packing {
            Packing::Bits => 8 / self.bits() as usize,
            Packing::Base3 => 5,
        }
    }

    /// Bytes of a row of so many codes.
    pub const fn row_bytes(&self, cols: usize) -> usize {
        cols.div_ceil(self.per_byte())
    }

    /// Whether there are offsets beside the scales: zero points or biases.
    pub const fn has_offsets(&self) -> bool {
        matches!(self.grid, Grid::ZeroPoint { .. } | Grid::Affine { .. })
    }

    /// The smallest code; those of [`Grid::Int8`] are signed.
    pub(crate) const fn min_code(&self) -> i32 {
        match self.grid {
            Grid::Int8 => -128,
            _ => 0,
        }
    }

    /// The largest code.
    pub(crate) const fn max_code(&self) -> i32 {
        match self.grid {
            Grid::Sign { .. } => 1,
            Grid::Ternary => 2,
            Grid::Int8 => 127,
            Grid::ZeroPoint { bits } | Grid::Affine { bits } => (1 << bits) - 1,
        }
    }

    /// The shape of the scales of a tensor: they broadcast to it, but for groups, which stand where their elements do.
    pub fn scales_shape(&self, shape: &Shape) -> Shape {
        let dims = shape.dims();
        let Some((&cols, leading)) = dims.split_last() else {
            return 1.into();
        };
        let per_row = |n: usize| Shape::from([leading, &[n]].concat());
        match self.per {
            Per::Tensor => 1.into(),
            Per::Row => per_row(1),
            Per::Column => cols.into(),
            Per::Group(group) => per_row(cols / group.max(1)),
        }
    }

    /// The shape of the codes of a tensor.
    pub fn codes_shape(&self, shape: &Shape) -> Shape {
        let dims = shape.dims();
        match dims.split_last() {
            Some((&cols, leading)) => [leading, &[self.row_bytes(cols)]].concat().into(),
            None => 1.into(),
        }
    }

    /// Whether a tensor of this shape can be quantised like this.
    pub(crate) fn check(&self, op: &str, shape: &Shape) -> Result<()> {
        let Some(&cols) = shape.dims().last() else {
            let message = "a scalar (rank 0) given, rank 1 or more accepted";
            return Err(check::error(op, message));
        };
        if let Grid::ZeroPoint { bits } | Grid::Affine { bits } = self.grid {
            if !matches!(bits, 2 | 4 | 8) {
                let message = format!("{bits} bits given, 2, 4 or 8 accepted");
                return Err(check::error(op, message));
            }
        }
        if self.packing == Packing::Base3 && self.grid != Grid::Ternary {
            let message = format!("{:?} in base 3 given, Ternary accepted", self.grid);
            return Err(check::error(op, message));
        }
        check::eps(op, self.eps.into())?;
        match self.per {
            Per::Group(group) if group == 0 || cols % group != 0 => {
                let message = format!(
                    "groups of {group} given, x's last dim is {cols}, a divisor of it accepted"
                );
                Err(check::error(op, message))
            }
            _ => Ok(()),
        }
    }
}
