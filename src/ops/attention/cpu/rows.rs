//! The rows of q, k and v, and of gradients, as kernels read them.

use crate::cpu::element::Element;
use crate::cpu::gather;
use crate::cpu::matmul::micro::{
    cols_of_tile,
    pack::{self, Source},
};
use crate::cpu::simd::{prefetch, Simd};
use crate::op::on_cpu::Arg;
use crate::ops::attention::geometry::{Axes, Strides};
use candle_core::{Layout, Result};
use std::borrow::Cow;

/// A tensor whose rows, of the last dim, are dense.
pub struct Rows<'a, T: Clone> {
    data: Cow<'a, [T]>,
    pub(super) strides: Strides,
}

impl<'a, T: Clone> Rows<'a, T> {
    /// The elements where they are if rows are dense, and by `copy`, which makes them contiguous, otherwise.
    pub(super) fn of(
        axes: Axes,
        data: &'a [T],
        layout: &Layout,
        copy: impl FnOnce(&'a [T], &Layout) -> Cow<'a, [T]>,
    ) -> Self {
        let last = layout.dims().len() - 1;
        let dense = layout.dims()[last] == 1 || layout.stride()[last] == 1;
        let (data, strides) = match dense {
            true => (Cow::Borrowed(data), Strides::new(axes, layout)),
            false => (
                copy(data, layout),
                Strides::new(axes, &Layout::contiguous(layout.shape())),
            ),
        };
        Rows { data, strides }
    }

    /// A row. It exists, and so the pointer is valid, if the tensor has such a batch row, head and place in the sequence.
    #[inline(always)]
    pub fn row(&self, batch: usize, head: usize, seq: usize) -> *const T {
        let Strides {
            start,
            batch: b,
            head: h,
            seq: s,
        } = self.strides;
        let at = start + batch * b + head * h + seq * s;
        self.data.as_ptr().wrapping_add(at)
    }
}

impl<'a, T: Element> Rows<'a, T> {
    pub fn new(axes: Axes, (storage, layout): Arg<'a>) -> Result<Self> {
        let data = storage.as_slice::<T>()?;
        Ok(Rows::of(axes, data, layout, gather::contiguous))
    }
}

/// Rows one behind the other, as the kernel of few queries reads them.
pub trait Fetch: Copy {
    type Row: Copy;

    /// Row i, which exists if there are more than i rows.
    fn row(&self, i: usize) -> Self::Row;

    /// The numbers from `col` on, a multiple of the lanes; those beyond the `left` ones are 0.
    ///
    /// # Safety
    /// The row exists, and has `left` > 0 numbers from `col` on.
    unsafe fn load<S: Simd>(&self, s: S, row: Self::Row, col: usize, left: usize) -> S::F;

    /// Asks for the line of memory that begins with the number at `col` of row i, if one does. The row need not exist.
    fn ask_for(&self, i: usize, col: usize);

    /// The bytes that `dim` numbers of a row take.
    fn row_bytes(&self, dim: usize) -> usize;
}

/// The bytes that memory is read by.
pub const LINE: usize = 64;

/// Rows of elements, `stride` apart.
#[derive(Clone, Copy)]
pub struct Dense<T> {
    first: *const T,
    stride: usize,
}

impl<T: Element> Fetch for Dense<T> {
    type Row = *const T;

    #[inline(always)]
    fn row(&self, i: usize) -> *const T {
        self.first.wrapping_add(i * self.stride)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: *const T, col: usize, left: usize) -> S::F {
        // SAFETY: `left` elements of the row follow.
        unsafe { T::load_upto(s, row.add(col), left) }
    }
    #[inline(always)]
    fn ask_for(&self, i: usize, col: usize) {
        if col.is_multiple_of(LINE / size_of::<T>()) {
            prefetch(self.row(i).wrapping_add(col));
        }
    }
    #[inline(always)]
    fn row_bytes(&self, dim: usize) -> usize {
        dim * size_of::<T>()
    }
}

/// Rows of keys, or of values, which are numbers of f32 once they are loaded.
pub trait KvRows: Sync {
    type Row: Copy;
    type Direct: Fetch;

    /// The rows of a block and those behind it, which have `dim` numbers, in a form that is read faster than the block itself, if
    /// they have one.
    fn direct(block: Block<'_, Self>, dim: usize) -> Option<Self::Direct>;

    /// A row. It exists if there is such a batch row, head and place in the sequence.
    fn row(&self, batch: usize, head: usize, seq: usize) -> Self::Row;

    /// The numbers from `col` on, a multiple of the lanes; those beyond the `left` ones are 0.
    ///
    /// # Safety
    /// The row exists, and has `left` > 0 numbers from `col` on.
    unsafe fn load<S: Simd>(&self, s: S, row: Self::Row, col: usize, left: usize) -> S::F;

    /// Packs `len` rows of `dim` numbers as strips, as [`pack::strips_of`] does with the width of a tile.
    ///
    /// # Safety
    /// The rows of the block exist, and `out` has room for them.
    unsafe fn pack_keys<S: Simd>(
        block: Block<'_, Self>,
        s: S,
        len: usize,
        dim: usize,
        out: *mut f32,
    );
}

/// Rows of a head one behind the other, from `first` on.
pub struct Block<'a, R: ?Sized> {
    pub rows: &'a R,
    pub batch: usize,
    pub head: usize,
    pub first: usize,
}

impl<R: ?Sized> Clone for Block<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ?Sized> Copy for Block<'_, R> {}

impl<R: KvRows + ?Sized> Fetch for Block<'_, R> {
    type Row = R::Row;

    #[inline(always)]
    fn row(&self, i: usize) -> R::Row {
        self.rows.row(self.batch, self.head, self.first + i)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: R::Row, col: usize, left: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { self.rows.load(s, row, col, left) }
    }
    #[inline(always)]
    fn ask_for(&self, _: usize, _: usize) {}
    #[inline(always)]
    fn row_bytes(&self, dim: usize) -> usize {
        dim * size_of::<f32>()
    }
}

impl<R: KvRows + ?Sized> Source for Block<'_, R> {
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: usize, col: usize, left: usize) -> S::F {
        // SAFETY: the contract is the same.
        unsafe { self.rows.load(s, self.row(row), col, left) }
    }
}

impl<T: Element> KvRows for Rows<'_, T> {
    type Row = *const T;
    type Direct = Dense<T>;

    #[inline(always)]
    fn direct(block: Block<Self>, _: usize) -> Option<Dense<T>> {
        Some(Dense {
            first: block.rows.row(block.batch, block.head, block.first),
            stride: block.rows.strides.seq,
        })
    }
    #[inline(always)]
    fn row(&self, batch: usize, head: usize, seq: usize) -> *const T {
        Rows::row(self, batch, head, seq)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, s: S, row: *const T, col: usize, left: usize) -> S::F {
        // SAFETY: `left` elements of the row follow.
        unsafe { T::load_upto(s, row.add(col), left) }
    }
    #[inline(always)]
    unsafe fn pack_keys<S: Simd>(block: Block<Self>, s: S, len: usize, dim: usize, out: *mut f32) {
        let Block {
            rows,
            batch,
            head,
            first,
        } = block;
        let (width, row) = (cols_of_tile::<S>(), |i| rows.row(batch, head, first + i));
        // SAFETY: the contract is the same.
        unsafe { pack::strips_of(s, len, dim, width, row, out) }
    }
}
