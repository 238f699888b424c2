//! Elementwise ops with a costly function in the middle, taken block by block: z of all elements into
//! a buffer in the L1 cache, the function over the buffer, outputs from inputs and buffer.
//!
//! The function is then compiled once per instruction set instead of once for each op, dtype and
//! instruction set, and is chosen once per block, never in an inner loop.

use super::element::Element;
use super::elementwise::Body;
use super::simd::{Simd, MAX_LANES};

/// Elements of a block.
const BLOCK: usize = 512;

/// A function of f32 and its derivative, over a block in place. Blocks are whole vectors of every
/// instruction set.
pub trait Function: Send + Sync {
    fn cost(&self) -> usize;
    fn value(&self, block: &mut [f32]);
    fn slope(&self, block: &mut [f32]);
}

/// What an op takes of the function in its middle.
#[derive(Clone, Copy)]
pub enum Part {
    Value,
    Slope,
}

/// What stands before and after the function: z of the inputs, the outputs of the inputs and K parts
/// of f(z). Methods must be `inline(always)`.
pub trait Around<const I: usize, const K: usize, const O: usize>: Copy + Send + Sync {
    const PARTS: [Part; K];
    fn z<S: Simd>(&self, s: S, x: [S::F; I]) -> S::F;
    fn out<S: Simd>(&self, s: S, x: [S::F; I], parts: [S::F; K]) -> [S::F; O];
}

/// The whole op, as the elementwise engine takes it.
#[derive(Clone, Copy)]
pub struct Staged<'a, A, const K: usize> {
    pub around: A,
    pub function: &'a dyn Function,
}

impl<T, A, const I: usize, const K: usize, const O: usize> Body<T, I, O> for Staged<'_, A, K>
where
    T: Element,
    A: Around<I, K, O>,
{
    fn cost(&self) -> usize {
        K * self.function.cost()
    }

    #[inline(always)]
    unsafe fn stretch<S: Simd>(&self, s: S, _: usize, x: [*const T; I], y: [*mut T; O], n: usize) {
        let mut blocks = [[0f32; BLOCK]; K];
        let mut start = 0;
        while start < n {
            let len = BLOCK.min(n - start);
            let mut i = 0;
            while i < len {
                let z = self.around.z(s, load(s, &x, start + i, len - i));
                for block in &mut blocks {
                    s.store_f32(block.as_mut_ptr().add(i), z);
                }
                i += S::LANES;
            }
            for (block, part) in blocks.iter_mut().zip(A::PARTS) {
                let block = &mut block[..len.next_multiple_of(MAX_LANES)];
                match part {
                    Part::Value => self.function.value(block),
                    Part::Slope => self.function.slope(block),
                }
            }
            i = 0;
            while i < len {
                let mut parts = [s.splat(0.0); K];
                for (part, block) in parts.iter_mut().zip(&blocks) {
                    *part = s.load_f32(block.as_ptr().add(i));
                }
                let out = self.around.out(s, load(s, &x, start + i, len - i), parts);
                for (out, y) in out.iter().zip(&y) {
                    T::store_upto(s, y.add(start + i), len - i, *out);
                }
                i += S::LANES;
            }
            start += len;
        }
    }
}

#[inline(always)]
unsafe fn load<S: Simd, T: Element, const I: usize>(
    s: S,
    x: &[*const T; I],
    at: usize,
    left: usize,
) -> [S::F; I] {
    let mut args = [s.splat(0.0); I];
    for (arg, x) in args.iter_mut().zip(x) {
        *arg = T::load_upto(s, x.add(at), left);
    }
    args
}
