//! Softmax over a dim that is not the last: `[outer, n, inner]` over n, with the columns of `inner` side by side in a
//! vector.
//!
//! A tile is all n rows of some columns, narrow enough to stay in the L2 cache between the passes. Where the columns don't
//! fill the tile's last vector, that vector begins earlier and overlaps the one before it: the output is not the input
//! here, so that columns may be computed twice.

use super::backward::{cost, gradient};
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::math;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{dispatch, Kernel, Simd, MAX_LANES};
use std::mem::MaybeUninit;

/// Elements of a tile, at least: 128 KB in f32, a part of an L2 cache that leaves room for the output.
const TILE: usize = 32 * 1024;
/// Columns of a tile, at most, so that its accumulators take 4 KB of stack.
const MAX_WIDTH: usize = 256;

/// Calls `work(offset, tile, scratch)` for the tiles, in parallel. `scratch` is the thread's own, and keeps its capacity from
/// tile to tile. A tile has at least [`MAX_LANES`] columns, or all `inner` where there are fewer.
fn for_each_tile(
    [outer, n, inner]: [usize; 3],
    cost: usize,
    work: impl Fn(usize, Tile, &mut Vec<f32>) + Send + Sync,
) {
    if n == 0 {
        return;
    }
    let width = (TILE / n).clamp(MAX_LANES, MAX_WIDTH) / MAX_LANES * MAX_LANES;
    // The last tile takes the columns that are left over too, fewer than `width`.
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
            let tile = Tile {
                n,
                stride: inner,
                width: end - start,
            };
            work(outer * n * inner + start, tile, &mut scratch);
        }
    });
}

/// `inner` must be [`MAX_LANES`] at least.
pub fn forward<T: Element, const LOG: bool>(x: &[T], size: [usize; 3]) -> Vec<T> {
    let [outer, n, inner] = size;
    assert!(x.len() == outer * n * inner && inner >= MAX_LANES);
    // SAFETY: the tiles are disjoint and cover all of x and y.
    unsafe {
        alloc::build(x.len(), |y: *mut T| {
            let y = Shared::new(y);
            for_each_tile(size, parallel::EXP, |offset, tile, scratch| {
                dispatch(Forward::<T, LOG> {
                    x: &x[offset..],
                    y: Shared::new(y.get().add(offset)),
                    scratch,
                    tile,
                })
            });
        })
    }
}

/// `inner` must be [`MAX_LANES`] at least.
pub fn backward<T: Element, const LOG: bool>(
    y: &[T],
    g: &[T],
    scale: f32,
    size: [usize; 3],
) -> Vec<T> {
    let [outer, n, inner] = size;
    assert!(y.len() == outer * n * inner && g.len() == y.len() && inner >= MAX_LANES);
    // SAFETY: the tiles are disjoint and cover all of y, g and dx.
    unsafe {
        alloc::build(y.len(), |dx: *mut T| {
            let dx = Shared::new(dx);
            for_each_tile(size, cost(LOG), |offset, tile, _| {
                dispatch(Backward::<T, LOG> {
                    y: &y[offset..],
                    g: &g[offset..],
                    dx: Shared::new(dx.get().add(offset)),
                    scale,
                    tile,
                })
            });
        })
    }
}

/// `n` rows of `width` columns, `stride` elements apart.
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
    /// The first column of a vector; the last vector overlaps the one before it.
    #[inline(always)]
    fn column<S: Simd>(self, vector: usize) -> usize {
        (vector * S::LANES).min(self.width - S::LANES)
    }
}

/// A value for each lane of each vector of a tile, which is less than `2 · MAX_WIDTH` wide.
type Accumulators = MaybeUninit<[f32; 2 * MAX_WIDTH + MAX_LANES]>;

struct Forward<'a, T, const LOG: bool> {
    x: &'a [T],
    y: Shared<T>,
    scratch: &'a mut Vec<f32>,
    tile: Tile,
}

impl<T: Element, const LOG: bool> Kernel for Forward<'_, T, LOG> {
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
        // SAFETY: x and y have the tile's n rows of `width` columns, and a vector begins at most `LANES` columns before
        // their end. `max` and `sum` have room for `vectors` vectors: a tile is less than 2 · MAX_WIDTH wide. So has each of
        // the n rows of the scratch.
        unsafe {
            for v in 0..vectors {
                s.store_f32(max.add(v * S::LANES), s.splat(f32::NEG_INFINITY));
                s.store_f32(sum.add(v * S::LANES), s.splat(0.0));
            }
            // Find the maxima.
            for r in 0..tile.n {
                let x = self.x.as_ptr().add(r * tile.stride);
                for v in 0..vectors {
                    let top = max.add(v * S::LANES);
                    let x = T::load(s, x.add(tile.column::<S>(v)));
                    s.store_f32(top, s.max(x, s.load_f32(top)));
                }
            }
            // Compute the exponentials and their sums.
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
            // Normalise.
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
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (tile, vectors) = (self.tile, self.tile.vectors::<S>());
        let mut sum = Accumulators::uninit();
        let sum = sum.as_mut_ptr().cast::<f32>();
        let scale = s.splat(self.scale);
        // SAFETY: as in `Forward`, for y, g and dx.
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
                    let d = gradient::<S, LOG>(s, y, g, total, scale);
                    T::store(s, self.dx.get().add(at + col), d);
                }
            }
        }
    }
}
