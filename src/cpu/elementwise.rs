//! One pass over memory for any elementwise op: I inputs, O outputs.

use super::element::Element;
use super::parallel::{self, Shared};
use super::simd::{dispatch, Kernel, Simd};
use super::{alloc, gather};
use candle_core::{CpuStorage, Layout, Result};
use std::array::from_fn;
use std::borrow::Cow;

/// The arithmetic of one vector of elements.
///
/// What an implementation must satisfy: `map` is `inline(always)`, and a lane of a result depends on the same lane of the
/// arguments alone.
pub trait Map<const I: usize, const O: usize>: Copy {
    /// See [`ElementwiseOp::cost`].
    const COST: usize;
    fn map<S: Simd>(&self, s: S, x: [S::F; I]) -> [S::F; O];
}

/// An elementwise op of I inputs and O outputs over adjacent elements.
pub trait ElementwiseOp<T, const I: usize, const O: usize>: Copy + Send + Sync {
    /// What an element costs beside a plain copy (see [`parallel`]).
    fn cost(&self) -> usize;
    /// `y[o][i] = op(x[0][i], x[1][i], …)` for i < n. Must be `inline(always)`; `index` is the position of the first element
    /// in the whole tensor.
    ///
    /// # Safety
    /// Each x is valid for reads and each y for writes of `n` elements. An x may equal a y, so every element of x must be
    /// read before the same element of y is written; otherwise they don't overlap.
    unsafe fn run<S: Simd>(&self, s: S, index: usize, x: [*const T; I], y: [*mut T; O], n: usize);
}

/// The number of elements before the first vector of `y` that does not straddle a cache line, which would take two
/// accesses; 0 if `n` is too short for that to matter.
#[inline(always)]
pub fn aligned_after<S: Simd, T>(y: *mut T, n: usize) -> usize {
    match n >= 8 * S::LANES {
        true => y.align_offset(S::LANES * size_of::<T>()) % S::LANES,
        false => 0,
    }
}

/// Runs a [`Map`] over `n` adjacent elements.
///
/// # Safety
/// As for [`ElementwiseOp::run`].
#[inline(always)]
pub unsafe fn map_run<S: Simd, T: Element, M: Map<I, O>, const I: usize, const O: usize>(
    s: S,
    m: M,
    x: [*const T; I],
    y: [*mut T; O],
    n: usize,
) {
    let head = aligned_after::<S, T>(y[0], n);
    let mut i = head;
    if M::COST < parallel::EXP {
        while i + S::LANES <= n {
            let mut args = [s.splat(0.0); I];
            // Plain loops: a closure might not inline into the target-feature function.
            for (arg, x) in args.iter_mut().zip(&x) {
                // SAFETY: i + LANES ≤ n, and each x has n elements.
                *arg = unsafe { T::load(s, x.add(i)) };
            }
            let out = m.map(s, args);
            for (out, y) in out.iter().zip(&y) {
                // SAFETY: i + LANES ≤ n, and each y has n elements.
                unsafe { T::store(s, y.add(i), *out) };
            }
            i += S::LANES;
        }
        // The elements before the first vector and after the last.
        for (i, n) in [(0, head), (i, n - i)] {
            if n > 0 {
                // SAFETY: both parts lie within the n elements: the first `head` elements, and the last n − i elements.
                unsafe { map_upto(s, m, x, y, i, n) };
            }
        }
        return;
    }
    // A costly map is compiled into one loop that takes whole vectors and their parts alike: beside its arithmetic, the
    // comparison that tells them apart takes no time.
    let (mut i, mut end) = (0, if head > 0 { head } else { n });
    while i < n {
        // SAFETY: i < end ≤ n, and at most end − i elements are touched.
        unsafe { map_upto(s, m, x, y, i, end - i) };
        i = end.min(i + S::LANES);
        end = n;
    }
}

/// Maps the vector that begins at element `i`, or the elements that are `left` if those are fewer.
///
/// # Safety
/// Each x is valid for reads and each y for writes of min(left, LANES) elements from `i` on.
#[inline(always)]
unsafe fn map_upto<S: Simd, T: Element, M: Map<I, O>, const I: usize, const O: usize>(
    s: S,
    m: M,
    x: [*const T; I],
    y: [*mut T; O],
    i: usize,
    left: usize,
) {
    let mut args = [s.splat(0.0); I];
    for (arg, x) in args.iter_mut().zip(&x) {
        // SAFETY: x has the fewer of `left` and LANES elements from i on.
        *arg = unsafe { T::load_upto(s, x.add(i), left) };
    }
    let out = m.map(s, args);
    for (out, y) in out.iter().zip(&y) {
        // SAFETY: y has the fewer of `left` and LANES elements from i on.
        unsafe { T::store_upto(s, y.add(i), left, *out) };
    }
}

/// Where element i lies: `data[start + i / len * stride + i % len]`. Covers contiguous data
/// (`len` = all), a period (`stride` = 0) and one half of packed rows (`stride` = 2·`len`).
#[derive(Clone, Copy)]
pub struct Walk {
    pub start: usize,
    pub len: usize,
    pub stride: usize,
}

impl Walk {
    pub fn contiguous(n: usize) -> Self {
        Walk {
            start: 0,
            len: n,
            stride: n,
        }
    }
    /// Whether the first `n` elements lie in data of this length.
    fn fits(&self, n: usize, data: usize) -> bool {
        let Some(last) = n.checked_sub(1) else {
            return true;
        };
        let (rows, at) = (last / self.len, last % self.len);
        // The last element, or the last one of the row before it.
        let before = rows.saturating_sub(1) * self.stride + self.len.min(n);
        self.start + before.max(rows * self.stride + at + 1) <= data
    }
    /// The two halves of rows that are 2·`len` long.
    pub fn halves(len: usize) -> [Self; 2] {
        [0, len].map(|start| Walk {
            start,
            len,
            stride: 2 * len,
        })
    }
}

/// One operand: data and the walk over it.
pub struct Input<'a, T: Element>(Cow<'a, [T]>, Walk);

impl<'a, T: Element> Input<'a, T> {
    /// The tensor's elements in order.
    pub fn dense((data, layout): (&'a CpuStorage, &Layout)) -> Result<Self> {
        let data = gather::contiguous(data.as_slice::<T>()?, layout);
        let walk = Walk::contiguous(data.len());
        Ok(Self(data, walk))
    }

    /// The tensor broadcast to the shape of `to`.
    pub fn spread((data, layout): (&'a CpuStorage, &Layout), to: &Layout) -> Result<Self> {
        let (n, whole) = (to.shape().elem_count(), layout.shape().elem_count());
        let data = data.as_slice::<T>()?;
        let data = if whole == n || to.dims().ends_with(layout.dims()) {
            // Dims of size 1 and leading ones change nothing in what is repeated.
            gather::contiguous(data, layout)
        } else {
            gather::periodic(data, &layout.broadcast_as(to.shape())?)
        };
        if data.len() == n {
            let walk = Walk::contiguous(data.len());
            return Ok(Self(data, walk));
        }
        /// Shorter periods are repeated up to this length, so that inner loops stay long.
        const MIN_PERIOD: usize = 512;
        let repeats = MIN_PERIOD.div_ceil(data.len().max(1));
        let data = if repeats > 1 {
            Cow::Owned(data.repeat(repeats))
        } else {
            data
        };
        let walk = Walk {
            start: 0,
            len: data.len(),
            stride: 0,
        };
        Ok(Self(data, walk))
    }

    /// For ops of `n` elements.
    fn cursor(&self, n: usize) -> Cursor<T> {
        assert!(self.1.fits(n, self.0.len()));
        Cursor::new(self.0.as_ptr().cast_mut(), self.1)
    }

    /// Part of `data`.
    pub fn walked(data: &'a [T], walk: Walk) -> Self {
        Self(Cow::Borrowed(data), walk)
    }
}

/// An [`ElementwiseOp`] as a trait object: everything around its loop is compiled once for each element type, not once for
/// each op.
trait ErasedOp<T, const I: usize, const O: usize>: Sync {
    fn cost(&self) -> usize;
    /// # Safety
    /// As for [`ElementwiseOp::run`].
    unsafe fn run(&self, index: usize, x: [*const T; I], y: [*mut T; O], n: usize);
}

impl<T: Element, P: ElementwiseOp<T, I, O>, const I: usize, const O: usize> ErasedOp<T, I, O>
    for P
{
    fn cost(&self) -> usize {
        ElementwiseOp::cost(self)
    }
    unsafe fn run(&self, index: usize, x: [*const T; I], y: [*mut T; O], n: usize) {
        let op = *self;
        dispatch(Run { op, index, x, y, n })
    }
}

/// The arguments of [`ElementwiseOp::run`]. `ErasedOp::run` alone makes this struct, and has the same contract.
struct Run<T, P, const I: usize, const O: usize> {
    op: P,
    index: usize,
    x: [*const T; I],
    y: [*mut T; O],
    n: usize,
}

impl<T: Element, P: ElementwiseOp<T, I, O>, const I: usize, const O: usize> Kernel
    for Run<T, P, I, O>
{
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: these are the arguments of a call of `ErasedOp::run`, whose contract is the same.
        unsafe { self.op.run(s, self.index, self.x, self.y, self.n) }
    }
}

/// The O outputs of `n` elements each, one after the other in one buffer.
pub fn map<T: Element, const I: usize, const O: usize>(
    n: usize,
    inputs: [Input<'_, T>; I],
    op: impl ElementwiseOp<T, I, O>,
) -> Vec<T> {
    let walks = from_fn(|o| Walk {
        start: o * n,
        ..Walk::contiguous(n)
    });
    build(n, inputs, walks, &op)
}

/// As [`map`], the outputs laid out by `walks`, which together cover the buffer of O·n elements.
pub fn map_to<T: Element, const I: usize, const O: usize>(
    n: usize,
    inputs: [Input<'_, T>; I],
    walks: [Walk; O],
    op: impl ElementwiseOp<T, I, O>,
) -> Vec<T> {
    build(n, inputs, walks, &op)
}

fn build<T: Element, const I: usize, const O: usize>(
    n: usize,
    inputs: [Input<'_, T>; I],
    walks: [Walk; O],
    op: &dyn ErasedOp<T, I, O>,
) -> Vec<T> {
    assert!(walks.iter().all(|walk| walk.fits(n, n * O)));
    let cursors = inputs.each_ref().map(|input| input.cursor(n));
    // SAFETY: all walks fit what they walk over, and inputs live until the end of this function. The walks over outputs
    // together cover the buffer, every element once.
    unsafe {
        alloc::build(n * O, |p: *mut T| {
            run(n, cursors, walks.map(|w| Cursor::new(p, w)), op)
        })
    }
}

/// data[i] = op(data[i], inputs[0] at i, …): the first argument is the data itself.
pub fn map_in_place<T: Element, const I: usize, const N: usize>(
    data: &mut [T],
    inputs: [Input<'_, T>; I],
    op: impl ElementwiseOp<T, N, 1>,
) {
    overwrite(data, inputs, &op)
}

fn overwrite<T: Element, const I: usize, const N: usize>(
    data: &mut [T],
    inputs: [Input<'_, T>; I],
    op: &dyn ErasedOp<T, N, 1>,
) {
    const { assert!(N == I + 1) };
    let n = data.len();
    let own = Cursor::new(data.as_mut_ptr(), Walk::contiguous(n));
    let mut cursors = [own; N];
    for (cursor, input) in cursors[1..].iter_mut().zip(&inputs) {
        *cursor = input.cursor(n);
    }
    // SAFETY: the first input is the output: both are read and written at the same elements, a vector being read whole
    // before it is written, by one thread. The walks over the other inputs fit their data.
    unsafe { run(n, cursors, [own], op) }
}

/// `x[i] = op(x[i])`, on this thread.
pub fn apply_in_place<T: Element>(x: &mut [T], op: &impl ElementwiseOp<T, 1, 1>) {
    let (p, n) = (x.as_mut_ptr(), x.len());
    // SAFETY: x has n elements, and is both the input and the output.
    unsafe { ErasedOp::run(op, 0, [p.cast_const()], [p], n) }
}

/// A position on a [`Walk`].
#[derive(Clone, Copy)]
struct Cursor<T> {
    data: Shared<T>,
    walk: Walk,
    /// Pointer offset of the current element, and how many elements follow without a jump.
    at: usize,
    run: usize,
}

impl<T: Element> Cursor<T> {
    fn new(data: *mut T, walk: Walk) -> Self {
        Cursor {
            data: Shared::new(data),
            walk,
            at: walk.start,
            run: walk.len,
        }
    }
    fn seek(mut self, i: usize) -> Self {
        if i == 0 {
            return self;
        }
        let Walk { start, len, stride } = self.walk;
        self.at = start + i / len * stride + i % len;
        self.run = len - i % len;
        self
    }
    #[inline(always)]
    fn advance(&mut self, n: usize) {
        self.at += n;
        self.run -= n;
        if self.run == 0 {
            self.at = self.at - self.walk.len + self.walk.stride;
            self.run = self.walk.len;
        }
    }
    #[inline(always)]
    fn ptr(&self) -> *mut T {
        // In bounds for as long as the element index is; wrapping covers the step past the last one.
        self.data.get().wrapping_add(self.at)
    }
}

/// # Safety
/// For every i < n, inputs are valid for reads and outputs for writes at their walk's element i.
unsafe fn run<T: Element, const I: usize, const O: usize>(
    n: usize,
    inputs: [Cursor<T>; I],
    outputs: [Cursor<T>; O],
    op: &dyn ErasedOp<T, I, O>,
) {
    // Ranges of 64 elements, so that no two threads write to one cache line of an output that begins at one.
    parallel::ranges(n, op.cost(), 64, |range| {
        let mut inputs = inputs.map(|c| c.seek(range.start));
        let mut outputs = outputs.map(|c| c.seek(range.start));
        let mut index = range.start;
        while index < range.end {
            let runs = inputs.iter().chain(&outputs).map(|c| c.run);
            let n = runs.fold(range.end - index, usize::min);
            let x = inputs.map(|c| c.ptr().cast_const());
            let y = outputs.map(|c| c.ptr());
            // SAFETY: no walk jumps within the next n elements, so they are neighbours; index + n ≤ range.end, and no
            // other range has these outputs.
            unsafe { op.run(index, x, y, n) };
            for c in inputs.iter_mut().chain(&mut outputs) {
                c.advance(n);
            }
            index += n;
        }
    });
}
