//! Deterministic test data, exact in every dtype.

use candle_core::{DType, Device, Result, Tensor};

/// What an argument holds. Values are multiples of a step that the dtype holds exactly, so that the
/// f64 oracle sees the very same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Odd multiples of the step in ±4, bell-shaped: never 0, where relu has its kink.
    Signal,
    /// Even multiples of the step in ±4: added to a `Signal` it never gives 0.
    Addend,
    /// 0.5 to 1.5
    Weight,
    /// An additive mask: mostly 0 or a small bias, every fourth −inf, the second row −inf throughout.
    Mask,
    /// −127 to 127, all of them in any 255 neighbours.
    Integers,
}

impl Fill {
    /// No finite value is larger, but for integers.
    pub const LIMIT: f64 = 4.0;

    pub fn tensor(
        self,
        shape: &[usize],
        seed: u64,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let cols = shape.last().copied().unwrap_or(1);
        let step = step(dtype);
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i| self.value(random(seed, i as u64), i, cols, step))
            .collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(device)
    }

    fn value(self, bits: u64, index: usize, cols: usize, step: f32) -> f32 {
        let grid = (2.0 / step) as i64;
        // The sum of two uniform integers in −grid..grid: a bell over ±4.
        let uniform = |bits: u64| (bits & 0xffff_ffff) as i64 % (2 * grid) - grid;
        let bell = uniform(bits) + uniform(bits >> 32);
        let odd = (bell & !1) + 1;
        match self {
            Fill::Signal => odd as f32 * step,
            Fill::Addend => (bell & !1) as f32 * step,
            Fill::Weight => 1.0 + (bell / 8) as f32 * step,
            Fill::Mask if index / cols == 1 => f32::NEG_INFINITY,
            Fill::Mask if bits.is_multiple_of(4) && !index.is_multiple_of(cols) => {
                f32::NEG_INFINITY
            }
            Fill::Mask if bits.is_multiple_of(2) => 0.0,
            Fill::Mask => odd as f32 * step,
            Fill::Integers => (index * 97 % 255) as f32 - 127.0,
        }
    }
}

/// The spacing of the dtype's values in 4..8, so that the sum of two is exact too.
fn step(dtype: DType) -> f32 {
    match dtype {
        DType::BF16 => 2f32.powi(-5),
        DType::F16 => 2f32.powi(-8),
        _ => 2f32.powi(-19),
    }
}

/// SplitMix64: statistically plain, and the same everywhere.
fn random(seed: u64, index: u64) -> u64 {
    let mut z = (index + (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
