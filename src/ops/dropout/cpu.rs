//! Maps that make the mask as they go.

use super::philox::{philox, Mask};
use super::{Dropout, DropoutAdd, NAME};
use crate::cpu::elementwise::{self, Input, Map};
use crate::cpu::simd::{Simd, MAX_LANES};
use crate::cpu::{element::Element, gather, with_float};
use candle_core::{CpuStorage, Layout, Result, Shape};

/// Cost of ten Philox rounds, in units of [`crate::cpu::parallel`].
const COST: usize = 16;

/// x times the mask; a dropped NaN or infinity is 0.
#[inline(always)]
fn masked<S: Simd>(s: S, mask: &Mask, index: usize, x: S::F) -> S::F {
    let mut factors = [0f32; MAX_LANES];
    if index.is_multiple_of(4) {
        for block in 0..S::LANES / 4 {
            let words = philox(mask.seed, (index / 4 + block) as u64);
            for (k, &word) in words.iter().enumerate() {
                factors[4 * block + k] = mask.keep(word);
            }
        }
    } else {
        for (k, factor) in factors.iter_mut().enumerate().take(S::LANES) {
            *factor = mask.factor(index + k);
        }
    }
    // SAFETY: the array has MAX_LANES values.
    let factors = unsafe { s.load_f32(factors.as_ptr()) };
    let dropped = s.eq(factors, s.splat(0.0));
    s.select(dropped, s.splat(0.0), s.mul(x, factors))
}

#[derive(Clone, Copy)]
struct Masked(Mask);

impl Map<1, 1> for Masked {
    const COST: usize = COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, index: usize, [x]: [S::F; 1]) -> [S::F; 1] {
        [masked(s, &self.0, index, x)]
    }
}

#[derive(Clone, Copy)]
struct MaskedRelu(Mask);

impl Map<1, 1> for MaskedRelu {
    const COST: usize = COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, index: usize, [x]: [S::F; 1]) -> [S::F; 1] {
        [masked(s, &self.0, index, s.max(x, s.splat(0.0)))]
    }
}

#[derive(Clone, Copy)]
struct MaskedAdd(Mask);

impl Map<2, 1> for MaskedAdd {
    const COST: usize = COST;
    #[inline(always)]
    fn map<S: Simd>(&self, s: S, index: usize, [x, residual]: [S::F; 2]) -> [S::F; 1] {
        [s.add(masked(s, &self.0, index, x), residual)]
    }
}

pub fn forward(op: Dropout, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
    let (n, mask) = (l.shape().elem_count(), Mask::new(op.p, op.seed));
    let out = with_float!(NAME, x, T => {
        let x = Input::<T>::dense((x, l))?;
        Ok(T::wrap(if op.relu {
            elementwise::map(n, [x], MaskedRelu(mask))
        } else {
            elementwise::map(n, [x], Masked(mask))
        }))
    })?;
    Ok((out, l.shape().clone()))
}

pub fn forward_inplace(op: Dropout, x: &mut CpuStorage, l: &Layout) -> Result<()> {
    let mask = Mask::new(op.p, op.seed);
    with_float!(NAME, x, |x: &[T]| {
        gather::update(x, l, |x: &mut [T]| {
            if op.relu {
                elementwise::map_in_place(x, [], MaskedRelu(mask))
            } else {
                elementwise::map_in_place(x, [], Masked(mask))
            }
        });
        Ok(())
    })
}

pub fn forward_add(
    op: DropoutAdd,
    (x, xl): (&CpuStorage, &Layout),
    residual: (&CpuStorage, &Layout),
) -> Result<(CpuStorage, Shape)> {
    let (n, mask) = (xl.shape().elem_count(), Mask::new(op.p, op.seed));
    let out = with_float!(NAME, x, T => {
        let inputs = [Input::<T>::dense((x, xl))?, Input::dense(residual)?];
        Ok(T::wrap(elementwise::map(n, inputs, MaskedAdd(mask))))
    })?;
    Ok((out, xl.shape().clone()))
}
