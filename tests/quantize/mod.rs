//! Codes beyond the grid: every scheme, size and layout against plain Candle, goldens, round trips, gradients.

mod codes;
mod golden;
mod gradients;
mod products;
mod specials;

use crate::cases::Fill;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::quant::{Levels, Packing, Rounding, ScaleScope, Scheme};

/// Every grid, packing and rounding, with what shares a scale left open.
fn schemes(per: ScaleScope) -> Vec<Scheme> {
    let new = |grid| Scheme::new(grid, per);
    // With bits in both halves.
    let seed = 0x5_0000_0007;
    vec![
        new(Levels::Ternary),
        new(Levels::Ternary).with_packing(Packing::Base3),
        new(Levels::Sign { centred: false }),
        new(Levels::Sign { centred: true }),
        new(Levels::Int8),
        new(Levels::Int8).with_rounding(Rounding::Stochastic { seed }),
        new(Levels::ZeroPoint { bits: 2 }),
        new(Levels::ZeroPoint { bits: 4 }),
        new(Levels::ZeroPoint { bits: 8 }),
        new(Levels::Affine { bits: 2 }),
        new(Levels::Affine { bits: 4 }),
        new(Levels::Affine { bits: 8 }),
        new(Levels::Affine { bits: 4 }).with_rounding(Rounding::Stochastic { seed }),
    ]
}

fn signal(dims: &[usize], seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
    Fill::Signal.tensor(dims, seed, dtype, device)
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
}
