//! Softmax over a dim that is not the last: `[outer, n, inner]` over n, vectorised across inner.
//!
//! A tile is all n rows of some columns, narrow enough to stay in the L2 cache between the passes. Its
//! last vector reaches back over the one before it where the columns don't fill it: outputs are not
//! inputs here, so that lanes may be computed twice.

use super::backward::slope;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use crate::ops::softmax::SoftmaxBwd;
use std::mem::MaybeUninit;

/// Elements of a tile, at least; 128 KB in f32.
const TILE: usize = 32 * 1024;
const MAX_WIDTH: usize = 256;

/// Calls `work(offset, width, scratch)` for the tiles, in parallel; a thread's scratch stays what it was. No tile is narrower than a vector, as long
/// as `inner` is not.
fn tiles(
    [outer, n, inner]: [usize; 3],
    cost: usize,
    work: impl Fn(usize, usize, &mut Vec<f32>) + Send + Sync,
) {
    let width = (TILE / n.max(1)).clamp(MAX_LANES, MAX_WIDTH) / MAX_LANES * MAX_LANES;
    // The last tile takes what is left over, which may be a width and a bit.
    let tiles = (inner / width).max(1);
    parallel::ranges(outer * tiles, n * width * cost, 1, |units| {
        let mut scratch = Vec::new();
        for unit in units {
            let (outer, tile) = (unit / tiles, unit % tiles);
            let start = tile * width;
            let end = if tile + 1 == tiles {
                inner
            } else {
                start + width
            };
            work(outer * n * inner + start, end - start, &mut scratch);
        }
    });
}

pub fn forward<T: Element>(x: &[T], log: bool, dims: [usize; 3]) -> Vec<T> {
    let [_, n, inner] = dims;
    // SAFETY: the tiles are disjoint and cover all of the output; inner is at least a vector.
    unsafe {
        alloc::build(x.len(), |y: *mut T| {
            let y = Shared::new(y);
            tiles(dims, parallel::EXP, |offset, width, scratch| {
                let tile = Tile {
                    n,
                    stride: inner,
                    width,
                };
                let (x, y) = (&x[offset..], Shared::new(y.get().add(offset)));
                if log {
                    dispatch(Forward::<T, true> {
                        x,
                        y,
                        scratch,
                        tile,
                    })
                } else {
                    dispatch(Forward::<T, false> {
                        x,
                        y,
                        scratch,
                        tile,
                    })
                }
            });
        })
    }
}

pub fn backward<T: Element>(y: &[T], g: &[T], op: SoftmaxBwd, dims: [usize; 3]) -> Vec<T> {
    let ([_, n, inner], scale) = (dims, op.scale);
    // SAFETY: as in `forward`.
    unsafe {
        alloc::build(y.len(), |dx: *mut T| {
            let dx = Shared::new(dx);
            let cost = if op.log { parallel::EXP } else { 2 };
            tiles(dims, cost, |offset, width, _| {
                let tile = Tile {
                    n,
                    stride: inner,
                    width,
                };
                let (y, g) = (&y[offset..], &g[offset..]);
                let dx = Shared::new(dx.get().add(offset));
                if op.log {
                    dispatch(Backward::<T, true> {
                        y,
                        g,
                        dx,
                        scale,
                        tile,
                    })
                } else {
                    dispatch(Backward::<T, false> {
                        y,
                        g,
                        dx,
                        scale,
                        tile,
                    })
                }
            });
        })
    }
}

#[derive(Clone, Copy)]
struct Tile {
    n: usize,
    stride: usize,
    width: usize,
}

impl Tile {
    #[inline(always)]
    fn vectors<S: Simd>(self) -> usize {
        self.width.div_ceil(S::LANES)
    }
    /// The first column of a vector.
    #[inline(always)]
    fn column<S: Simd>(self, vector: usize) -> usize {
        (vector * S::LANES).min(self.width - S::LANES)
    }
}

/// A value for each lane of each vector of a tile.
type Accumulators = MaybeUninit<[f32; 2 * MAX_WIDTH + MAX_LANES]>;

struct Forward<'a, T, const LOG: bool> {
    x: &'a [T],
    y: Shared<T>,
    scratch: &'a mut Vec<f32>,
    tile: Tile,
}

impl<T: Element, const LOG: bool> Kernel for Forward<'_, T, LOG> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (tile, vectors) = (self.tile, self.tile.vectors::<S>());
        let (mut max, mut sum) = (Accumulators::uninit(), Accumulators::uninit());
        let (max, sum) = (
            max.as_mut_ptr().cast::<f32>(),
            sum.as_mut_ptr().cast::<f32>(),
        );
        let pitch = vectors * S::LANES;
        if !LOG {
            self.scratch.reserve(tile.n * pitch);
        }
        let e = self.scratch.as_mut_ptr();
        // SAFETY: x and y have n rows of `width` columns, the accumulators and each row of the
        // scratch have all vectors of one.
        unsafe {
            for v in 0..vectors {
                s.store_f32(max.add(v * S::LANES), s.splat(f32::NEG_INFINITY));
                s.store_f32(sum.add(v * S::LANES), s.splat(0.0));
            }
            for r in 0..tile.n {
                let x = self.x.as_ptr().add(r * tile.stride);
                for v in 0..vectors {
                    let top = max.add(v * S::LANES);
                    let x = T::load(s, x.add(tile.column::<S>(v)));
                    s.store_f32(top, s.max(x, s.load_f32(top)));
                }
            }
            for r in 0..tile.n {
                let x = self.x.as_ptr().add(r * tile.stride);
                for v in 0..vectors {
                    let (at, x) = (v * S::LANES, T::load(s, x.add(tile.column::<S>(v))));
                    let value = math::exp_nonpositive(s, s.sub(x, s.load_f32(max.add(at))));
                    s.store_f32(sum.add(at), s.add(s.load_f32(sum.add(at)), value));
                    if !LOG {
                        s.store_f32(e.add(r * pitch + at), value);
                    }
                }
            }
            for v in 0..vectors {
                let sum = sum.add(v * S::LANES);
                let total = s.load_f32(sum);
                let last = if LOG {
                    math::log(s, total)
                } else {
                    s.div(s.splat(1.0), total)
                };
                s.store_f32(sum, last);
            }
            for r in 0..tile.n {
                let at = r * tile.stride;
                let (x, y) = (self.x.as_ptr().add(at), self.y.get().add(at));
                for v in 0..vectors {
                    let (at, col) = (v * S::LANES, tile.column::<S>(v));
                    let last = s.load_f32(sum.add(at));
                    let value = if LOG {
                        let x = T::load(s, x.add(col));
                        s.sub(s.sub(x, s.load_f32(max.add(at))), last)
                    } else {
                        s.mul(s.load_f32(e.add(r * pitch + at)), last)
                    };
                    T::store(s, y.add(col), value);
                }
            }
        }
    }
}

struct Backward<'a, T, const LOG: bool> {
    y: &'a [T],
    g: &'a [T],
    dx: Shared<T>,
    scale: f32,
    tile: Tile,
}

impl<T: Element, const LOG: bool> Kernel for Backward<'_, T, LOG> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (tile, vectors) = (self.tile, self.tile.vectors::<S>());
        let mut sum = Accumulators::uninit();
        let sum = sum.as_mut_ptr().cast::<f32>();
        let scale = s.splat(self.scale);
        // SAFETY: y, g and dx have n rows of `width` columns, the accumulators all vectors of one.
        unsafe {
            for v in 0..vectors {
                s.store_f32(sum.add(v * S::LANES), s.splat(0.0));
            }
            for r in 0..tile.n {
                let at = r * tile.stride;
                let (y, g) = (self.y.as_ptr().add(at), self.g.as_ptr().add(at));
                for v in 0..vectors {
                    let (sum, col) = (sum.add(v * S::LANES), tile.column::<S>(v));
                    let g = T::load(s, g.add(col));
                    let total = s.load_f32(sum);
                    let total = if LOG {
                        s.add(total, g)
                    } else {
                        s.fma(g, T::load(s, y.add(col)), total)
                    };
                    s.store_f32(sum, total);
                }
            }
            for r in 0..tile.n {
                let at = r * tile.stride;
                let (y, g) = (self.y.as_ptr().add(at), self.g.as_ptr().add(at));
                for v in 0..vectors {
                    let (total, col) = (s.load_f32(sum.add(v * S::LANES)), tile.column::<S>(v));
                    let (y, g) = (T::load(s, y.add(col)), T::load(s, g.add(col)));
                    let d = slope::<S, LOG>(s, y, g, total, scale);
                    T::store(s, self.dx.get().add(at + col), d);
                }
            }
        }
    }
}
