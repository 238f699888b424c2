//! The encoder: measures the elements that share a scale, then encodes them while they are in the cache.
//!
//! A row with a scale of its own, and each of its groups, is measured and encoded by one thread. Few long rows, and tensors
//! with one scale, are cut into blocks of columns, all of which are measured before any is encoded; see [`two_pass`].

use super::columns;
use super::params::{RowParams, ScaleParams};
use super::rounding::{AnyScheme, NearestMultiple, RoundingRule};
use super::sink::{RowCursor, Sink, STAGED};
use super::statistics::Stats;
use super::COST;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::row_view::RowView;
use crate::cpu::simd::{prefetch, Simd};
use crate::cpu::two_pass::{self, RowPart, TwoPassRow};
use crate::quant::{ScaleScope, Scheme};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows up to this many bytes prefetch the next row: two of them fit into an L1 cache.
const PREFETCHED: usize = 16 << 10;

/// Encodes rows of x into a sink.
pub(super) struct Encoder<'a, T, K> {
    scheme: &'a Scheme,
    x: &'a RowView<'a, T>,
    rows: usize,
    cols: usize,
    sink: K,
}

impl<'a, T: Element, K: Sink<T>> Encoder<'a, T, K> {
    /// # Safety
    /// The scheme has been checked for x; x and the sink have `rows` rows of `cols` columns.
    pub(super) unsafe fn new(
        scheme: &'a Scheme,
        x: &'a RowView<'a, T>,
        (rows, cols): (usize, usize),
        sink: K,
    ) -> Self {
        Encoder {
            scheme,
            x,
            rows,
            cols,
            sink,
        }
    }

    /// Encodes the whole tensor. Returns the parameters in the order of the scales; none for an empty tensor.
    pub(super) fn run(&self) -> Vec<ScaleParams> {
        if self.rows == 0 || self.cols == 0 {
            return Vec::new();
        }
        match self.scheme.scope {
            ScaleScope::Column => columns::run(self),
            ScaleScope::Tensor => self.by_tensor(),
            ScaleScope::Row => self.by_row(),
            ScaleScope::Group(group) => self.by_group(group),
        }
    }

    /// One scale for all elements.
    fn by_tensor(&self) -> Vec<ScaleParams> {
        let op = EncodeRow {
            encoder: self,
            group: self.cols,
            sharing: self.rows * self.cols,
            params: None,
        };
        // SAFETY: `new` was promised that x and the sink have these rows and columns. All are measured before any is written.
        unsafe {
            let rows = two_pass::measure_rows(op, self.rows, self.cols);
            let all = two_pass::join_all(&op, &rows);
            two_pass::apply_rows(op, self.cols, &vec![all; self.rows]);
            vec![ScaleParams::new(self.scheme, all, op.sharing)]
        }
    }

    /// A scale for each row.
    fn by_row(&self) -> Vec<ScaleParams> {
        // SAFETY: `new` was promised that x and the sink have these rows and columns. There is room for the parameters of each
        // row, and the op writes them all.
        unsafe {
            alloc::build(self.rows, |params| {
                let op = self.with_params(self.cols, params);
                two_pass::run(op, self.rows, self.cols);
            })
        }
    }

    /// A scale for each group of neighbours in a row. Rows are not cut: groups need not end where a byte of codes does.
    fn by_group(&self, group: usize) -> Vec<ScaleParams> {
        // SAFETY: as in `by_row`, with the parameters of every group; the ranges give each row to one thread.
        unsafe {
            alloc::build(self.rows * (self.cols / group), |params| {
                let op = self.with_params(group, params);
                parallel::ranges(self.rows, COST * self.cols, 1, |rows| {
                    two_pass::run_here(op, rows, self.cols)
                });
            })
        }
    }

    /// # Safety
    /// `params` is valid for writes of an element for each group of each row.
    unsafe fn with_params(&self, group: usize, params: *mut ScaleParams) -> EncodeRow<'_, T, K> {
        EncodeRow {
            encoder: self,
            group,
            sharing: group,
            params: Some(Shared::new(params)),
        }
    }

    /// The statistics of columns of a row.
    ///
    /// # Safety
    /// The row has these columns, one at least.
    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> Stats {
        // SAFETY: the caller promises that the row has these columns, one at least.
        unsafe {
            let x = self.x.row(row).add(cols.start);
            Stats::of(s, self.scheme.levels, x, cols.len())
        }
    }

    /// Encodes columns of the row that is being staged. What is not yet packed stays staged, for [`Encoder::flush`] or for
    /// the next columns of the row.
    ///
    /// # Safety
    /// The row is one of the encoder's and has these columns, no other thread writes them, `params` has them, and the
    /// columns before them since the last multiple of STAGED were encoded with the same `staging`.
    #[inline(always)]
    pub(super) unsafe fn encode<S: Simd, P: RowParams>(
        &self,
        s: S,
        cols: Range<usize>,
        params: P,
        staging: &mut Staging,
    ) {
        // SAFETY: both have this function's contract.
        unsafe {
            match NearestMultiple::new(self.scheme) {
                Some(rule) => self.encode_by(s, cols, params, staging, rule),
                None => self.encode_by(s, cols, params, staging, AnyScheme(*self.scheme)),
            }
        }
    }

    /// # Safety
    /// As for [`Encoder::encode`].
    #[inline(always)]
    unsafe fn encode_by<S: Simd, P: RowParams, R: RoundingRule>(
        &self,
        s: S,
        cols: Range<usize>,
        params: P,
        staging: &mut Staging,
        rule: R,
    ) {
        let row = staging.row;
        let (first, staged) = (self.x.row(row), staging.codes.as_mut_ptr().cast::<u8>());
        // A copy, because the compiler must assume that writes through the sink's pointer change `self`.
        let (sink, index) = (self.sink, row * self.cols);
        // The next row is measured next. It comes to the cache while this one is encoded.
        let ahead = match self.cols * size_of::<T>() <= PREFETCHED {
            true => self.cols,
            false => 0,
        };
        let mut start = cols.start;
        while start < cols.end {
            let chunk = start / STAGED * STAGED;
            let end = cols.end.min(chunk + STAGED);
            let whole = start + (end - start) / S::LANES * S::LANES;
            let at = |col: usize| RowCursor {
                row,
                col,
                staged: staged.wrapping_add(col - chunk),
            };
            // SAFETY: x, `params` and the sink have the columns start..end of the row, which are this thread's. Column
            // `col` < chunk + STAGED is staged at byte `col − chunk` < STAGED, and a chunk that ends here has been put
            // from its first column on, by this call or by those before.
            unsafe {
                for col in (start..whole).step_by(S::LANES) {
                    prefetch(first.wrapping_add(col + ahead));
                    let x = T::load(s, first.add(col));
                    let lanes = params.lanes(s, col, S::LANES);
                    sink.put(s, at(col), S::LANES, rule.encode(s, x, index + col, lanes));
                }
                if whole < end {
                    let count = end - whole;
                    let x = T::load_few(s, first.add(whole), count);
                    let lanes = params.lanes(s, whole, count);
                    let encoded = rule.encode(s, x, index + whole, lanes);
                    sink.put(s, at(whole), count, encoded);
                }
                if end == chunk + STAGED {
                    sink.flush(row, chunk..end, staged);
                }
            }
            start = end;
        }
    }

    /// Packs what is still staged after the columns up to `end` have been encoded.
    ///
    /// # Safety
    /// As for [`Encoder::encode`], which has been called for the columns from the last multiple of STAGED up to `end`.
    #[inline(always)]
    pub(super) unsafe fn flush(&self, end: usize, staging: &Staging) {
        let start = end / STAGED * STAGED;
        if start < end {
            let staged = staging.codes.as_ptr().cast();
            // SAFETY: start is a multiple of STAGED, and the caller has put all columns from there on.
            unsafe { self.sink.flush(staging.row, start..end, staged) };
        }
    }

    pub(super) fn scheme(&self) -> &'a Scheme {
        self.scheme
    }

    pub(super) fn x(&self) -> &'a RowView<'a, T> {
        self.x
    }

    /// Rows and columns.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }
}

/// Codes of STAGED columns of a row, one to a byte, that wait to be packed.
pub(super) struct Staging {
    row: usize,
    codes: MaybeUninit<[u8; STAGED]>,
}

impl Staging {
    #[inline(always)]
    pub(super) fn new(row: usize) -> Self {
        Staging {
            row,
            codes: MaybeUninit::uninit(),
        }
    }
}

/// The encoder as an op on rows.
struct EncodeRow<'a, T, K> {
    encoder: &'a Encoder<'a, T, K>,
    /// Columns of a group: those of the row, if it has one scale.
    group: usize,
    /// Elements that share a scale.
    sharing: usize,
    /// Where the parameters of the groups go, row by row; none if rows share their scale.
    params: Option<Shared<ScaleParams>>,
}

impl<T, K> Clone for EncodeRow<'_, T, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, K> Copy for EncodeRow<'_, T, K> {}

impl<T: Element, K: Sink<T>> EncodeRow<'_, T, K> {
    /// The parameters of a group with these statistics, which are kept if rows have their own.
    ///
    /// # Safety
    /// The tensor has this group, counted through all rows, and no other thread has it.
    #[inline(always)]
    unsafe fn params(&self, group: Option<usize>, stats: Stats) -> ScaleParams {
        let params = ScaleParams::new(self.encoder.scheme, stats, self.sharing);
        if let (Some(group), Some(to)) = (group, self.params) {
            // SAFETY: `with_params` was promised room for each group of each row, and this one is the caller's alone.
            unsafe { to.get().add(group).write(params) };
        }
        params
    }
}

impl<T: Element, K: Sink<T>> TwoPassRow for EncodeRow<'_, T, K> {
    type Stat = Stats;
    /// Blocks end where staged columns do, and so with a whole byte; near the 16 K columns that other ops have.
    const BLOCK: usize = 25 * STAGED;
    const OWN_LOOP: bool = true;

    fn cost(cols: usize) -> usize {
        COST * cols
    }

    #[inline(always)]
    unsafe fn measure<S: Simd>(&self, s: S, row: usize, cols: Range<usize>) -> Stats {
        // SAFETY: the op is made for the encoder's rows and columns, so the row has these, and no range is empty.
        unsafe { self.encoder.measure(s, row, cols) }
    }

    fn join(&self, a: Stats, b: Stats) -> Stats {
        a.join(b, self.encoder.scheme.levels)
    }

    #[inline(always)]
    unsafe fn apply<S: Simd>(&self, s: S, row: usize, cols: Range<usize>, stats: Stats) {
        let part = RowPart {
            row,
            cols,
            stat: Some(stats),
            scratch: std::ptr::null_mut(),
        };
        // SAFETY: the caller's promise is the same, and no scratch is needed.
        unsafe { self.process_row(s, part) }
    }

    #[inline(always)]
    unsafe fn process_row<S: Simd>(&self, s: S, part: RowPart<Stats>) {
        let RowPart {
            row,
            cols,
            stat: stats,
            ..
        } = part;
        let mut staging = Staging::new(row);
        // Of a block the row's statistics are known: it is coded like one group.
        let group = match stats {
            Some(_) => cols.len(),
            None => self.group,
        };
        let groups = cols.len() / group;
        // SAFETY: the caller gives this thread these columns of a row of the encoder's. The groups, n < groups, cover them in
        // order, so that all columns before those of a group were encoded with the same staging memory, or come before a
        // block, which begins with a multiple of STAGED: none of those is staged. Of the threads that encode a row's blocks
        // only the first block's keeps the parameters.
        unsafe {
            for n in 0..groups {
                let first = cols.start + n * group;
                let cols = first..first + group;
                let (kept, stats) = match stats {
                    Some(stats) => ((first == 0).then_some(row), stats),
                    None => {
                        let stats = self.encoder.measure(s, row, cols.clone());
                        (Some(row * groups + n), stats)
                    }
                };
                let params = self.params(kept, stats);
                self.encoder.encode(s, cols, params, &mut staging);
            }
            self.encoder.flush(cols.end, &staging);
        }
    }
}
