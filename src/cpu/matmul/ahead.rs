//! Prefetching of a matrix that is read by a few rows side by side.

/// Where such a matrix is fetched ahead of what is multiplied: further on in the same rows, and from their end on in the rows
/// that come next. The CPU begins anew to predict the reads of each row.
#[derive(Clone, Copy)]
pub struct Ahead {
    /// By how many elements.
    by: usize,
    /// From this element of the rows on, the one to fetch lies past their end.
    last: usize,
    /// How many elements further on that one is in the next rows.
    wrap: usize,
}

impl Ahead {
    /// By how many bytes. One row of x from memory takes a quarter less time in f16 with this, two rows of x an eighth less in f32.
    /// Measured on Zen 5.
    const BYTES: usize = 2048;

    /// For rows of `n` elements. What lies behind their end is fetched as if they went on, which is what comes next in neighbouring
    /// rows longer than [`Self::BYTES`].
    #[inline(always)]
    pub fn in_rows<T>(n: usize) -> Self {
        Self::across_rows::<T>(n, n, 1)
    }

    /// For rows of `n` elements, `rows` of them side by side, each `row` elements behind the one before. Rows of 1 to 4 KB take 5 to
    /// 20 % less time than with [`Self::in_rows`] in f16, and as long in f32. Measured on Zen 5.
    #[inline(always)]
    pub fn across_rows<T>(n: usize, row: usize, rows: usize) -> Self {
        let by = (Self::BYTES / size_of::<T>()).min(n);
        Ahead {
            by,
            last: n - by,
            wrap: (rows * row).wrapping_sub(n),
        }
    }

    /// The element to fetch, counted from the beginning of a row, when the one at `k` is multiplied.
    #[inline(always)]
    pub fn of(self, k: usize) -> usize {
        let next = k + self.by;
        if k < self.last {
            next
        } else {
            next.wrapping_add(self.wrap)
        }
    }
}
