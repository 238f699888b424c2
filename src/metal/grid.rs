//! How work is cut into threadgroups.
//!
//! Everything here is arithmetic on sizes, so that it can be tested on any machine. An op picks a policy, its kernel
//! follows the indexing that the policy documents, and [`Grid::fit`] adapts the grid to the limit of the pipeline: a
//! dispatch above it would be dropped by Metal in silence.

/// Lanes of a simdgroup, on every Apple GPU.
pub(crate) const SIMD: usize = 32;
/// Threads of a threadgroup that no pipeline exceeds.
const MAX_THREADS: usize = 1024;
/// Threads of an elementwise threadgroup: eight simdgroups leave the scheduler enough to hide latency with, and a
/// pipeline that allows fewer is rare.
const ELEMENTWISE_THREADS: usize = 256;
/// Rows that a threadgroup of [`columns`] reads at the same time.
const COLUMN_ROWS: usize = 8;

/// What may be done about a pipeline that allows fewer threads than the policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shrink {
    /// The kernel loops by `threads_per_threadgroup.x`.
    X,
    /// The kernel loops by `threads_per_threadgroup.y`.
    Y,
    /// Smaller groups, but more of them: this many threads are wanted along x in all.
    Regroup(usize),
    /// Nothing: the kernel counts on its threads.
    Never,
}

/// The threadgroups of a dispatch and the threads of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) groups: [usize; 3],
    pub(crate) threads: [usize; 3],
    shrink: Shrink,
}

impl Grid {
    /// The same grid `n` times along z: `threadgroup_position_in_grid.z` counts them.
    pub(crate) fn times(mut self, n: usize) -> Self {
        self.groups[2] = n;
        self
    }

    /// The same work with at most `limit` threads in a group, or why it can't be dispatched.
    pub(crate) fn fit(mut self, limit: usize) -> Result<Self, String> {
        if self.threads.iter().product::<usize>() > limit {
            let [x, y, z] = self.threads;
            match self.shrink {
                Shrink::Never => {
                    return Err(format!(
                        "the pipeline allows {limit} threads, the kernel needs {}",
                        x * y * z
                    ))
                }
                Shrink::X => self.threads[0] = limit / (y * z) / SIMD * SIMD,
                Shrink::Y => self.threads[1] = limit / (x * z),
                Shrink::Regroup(total) => {
                    let threads = limit / (y * z) / SIMD * SIMD;
                    self.threads[0] = threads;
                    self.groups[0] = if threads == 0 {
                        0
                    } else {
                        total.div_ceil(threads)
                    };
                }
            }
            if self.threads.contains(&0) {
                return Err(format!(
                    "the pipeline allows {limit} threads, one simdgroup needs {SIMD}"
                ));
            }
        }
        for (groups, threads) in self.groups.iter().zip(self.threads) {
            // Thread positions are 32-bit; a grid beyond that wraps and leaves work undone.
            match groups.checked_mul(threads) {
                Some(0) => return Err("the grid is empty".to_string()),
                Some(n) if n <= u32::MAX as usize => (),
                _ => {
                    return Err(format!(
                        "{groups} groups of {threads} threads are more than 2^32-1 threads"
                    ))
                }
            }
        }
        Ok(self)
    }
}

fn round_up_simd(n: usize) -> usize {
    n.div_ceil(SIMD).saturating_mul(SIMD)
}

/// One thread for each `per_thread` consecutive elements of `n`.
///
/// Kernel: `i = thread_position_in_grid` handles the elements from `i * per_thread` on, and must check against `n`.
pub(crate) fn elementwise(n: usize, per_thread: usize) -> Grid {
    let total = n.div_ceil(per_thread);
    let threads = round_up_simd(total).clamp(SIMD, ELEMENTWISE_THREADS);
    Grid {
        groups: [total.div_ceil(threads), 1, 1],
        threads: [threads, 1, 1],
        shrink: Shrink::Regroup(total),
    }
}

/// One thread for each `per_thread` consecutive columns of each row.
///
/// Kernel: `thread_position_in_grid.x * per_thread` is the first column, to be checked; `.y` is the row, exact.
pub(crate) fn elementwise_rows(rows: usize, cols: usize, per_thread: usize) -> Grid {
    let Grid {
        groups,
        threads,
        shrink,
    } = elementwise(cols, per_thread);
    Grid {
        groups: [groups[0], rows, 1],
        threads,
        shrink,
    }
}

/// One threadgroup for each row, whose threads take `per_thread` columns at a time.
///
/// Kernel: `threadgroup_position_in_grid` is the row; it loops over the columns by `threads_per_threadgroup`, which is
/// a multiple of 32 but may be less than the columns need.
pub(crate) fn row_per_threadgroup(rows: usize, cols: usize, per_thread: usize) -> Grid {
    let threads = round_up_simd(cols.div_ceil(per_thread)).clamp(SIMD, MAX_THREADS);
    Grid {
        groups: [rows, 1, 1],
        threads: [threads, 1, 1],
        shrink: Shrink::X,
    }
}

/// One simdgroup for each row, `simdgroups` of them in a threadgroup: for rows too short to fill a threadgroup.
///
/// Kernel: the row is `threadgroup_position_in_grid * simdgroups_per_threadgroup + simdgroup_index_in_threadgroup`,
/// to be checked against the rows.
pub(crate) fn row_per_simdgroup(rows: usize, simdgroups: usize) -> Grid {
    let simdgroups = simdgroups.clamp(1, MAX_THREADS / SIMD).min(rows.max(1));
    Grid {
        groups: [rows.div_ceil(simdgroups), 1, 1],
        threads: [simdgroups * SIMD, 1, 1],
        shrink: Shrink::Regroup(rows.saturating_mul(SIMD)),
    }
}

/// Lanes of a simdgroup that share work of `steps` steps: a power of 2, so that simdgroups are cut evenly.
///
/// Kernel: with [`elementwise`] over all lanes, those of one share are neighbours in one simdgroup.
pub(crate) fn lanes(steps: usize) -> usize {
    steps.clamp(1, SIMD).next_power_of_two()
}

/// 32 columns for each threadgroup along x, one part of the rows for each along y: for reductions over rows.
///
/// Kernel: the column is `threadgroup_position_in_grid.x * 32 + thread_position_in_threadgroup.x`, to be checked; the
/// part is `threadgroup_position_in_grid.y`, and its rows are taken by `thread_position_in_threadgroup.y` in steps of
/// `threads_per_threadgroup.y` (at most 8).
pub(crate) fn columns(cols: usize, parts: usize) -> Grid {
    Grid {
        groups: [cols.div_ceil(SIMD), parts, 1],
        threads: [SIMD, COLUMN_ROWS, 1],
        shrink: Shrink::Y,
    }
}

/// A grid of threadgroups with a given number of simdgroups, for kernels that compute their place from both counts.
///
/// Kernel: every `threadgroup_position_in_grid` is one piece of work.
pub(crate) fn counted(groups: [usize; 3], simdgroups: usize) -> Grid {
    Grid {
        groups,
        threads: [simdgroups * SIMD, 1, 1],
        shrink: Shrink::Never,
    }
}

/// A threadgroup of four simdgroups for each tile of `side` by `side` elements.
///
/// Kernel: the tile begins at row `threadgroup_position_in_grid.y * side` and column `.x * side`, to be checked.
pub(crate) fn tiles(rows: usize, cols: usize, side: usize) -> Grid {
    blocks(rows, cols, [side; 2])
}

/// [`tiles`] of `height` rows and `width` columns.
pub(crate) fn blocks(rows: usize, cols: usize, [height, width]: [usize; 2]) -> Grid {
    Grid {
        groups: [cols.div_ceil(width), rows.div_ceil(height), 1],
        threads: [4 * SIMD, 1, 1],
        shrink: Shrink::Never,
    }
}

/// [`row_per_simdgroup`] for a product of few rows with a packed weight. A simdgroup makes `per` outputs, and a threadgroup
/// reads x, of `x_bytes` for each column, once for all its outputs.
///
/// A threadgroup has as many simdgroups as make the bytes of x at most a 32nd of the bytes of codes that it reads, but 32 at
/// most. A small layer gets smaller threadgroups, of four simdgroups at least, until there are four threadgroups.
pub(crate) fn gemv(outputs: usize, per: usize, codes_per_byte: usize, x_bytes: usize) -> Grid {
    let sharing = 32 * x_bytes * codes_per_byte;
    let mut simdgroups = sharing.div_ceil(per).next_power_of_two().clamp(4, 32);
    while simdgroups > 4 && outputs < 4 * per * simdgroups {
        simdgroups /= 2;
    }
    row_per_simdgroup(outputs.div_ceil(per), simdgroups)
}

/// Into how many parts a reduction over `rows` should be cut; 1 says that a second pass would not pay.
///
/// A part keeps at least 64 rows, so that the partial sums stay a small share of what is read, and cutting stops at
/// some 512 threadgroups, more than any Apple GPU runs at once. Depends on the sizes alone: results don't change with
/// the device.
pub(crate) fn column_parts(rows: usize, cols: usize) -> usize {
    let wanted = 512usize.div_ceil(cols.div_ceil(SIMD).max(1));
    (rows / 64).clamp(1, wanted)
}

/// Into how many parts rows should be cut for [`row_per_threadgroup`], and how long a part is; 1 says that a second
/// pass would not pay.
///
/// A part keeps at least 16 loads of four elements for each of 256 threads. The length is a multiple of 4, and so keeps
/// the alignment of the row. Depends on the sizes alone, as [`column_parts`].
pub(crate) fn row_parts(rows: usize, cols: usize) -> (usize, usize) {
    let wanted = 512usize.div_ceil(rows.max(1));
    let part = cols
        .div_ceil((cols / (16 * 4 * 256)).clamp(1, wanted))
        .next_multiple_of(4);
    (cols.div_ceil(part), part)
}

/// Into how many parts the sums of `terms` terms should be cut that each of `tiles` threadgroups would form, and how many
/// terms a part has; 1 says that a second pass would not pay.
///
/// A part keeps at least 512 terms. Depends on the sizes alone, as [`column_parts`].
pub(crate) fn sum_parts(tiles: usize, terms: usize) -> (usize, usize) {
    let wanted = 512usize.div_ceil(tiles.max(1));
    let share = terms.div_ceil((terms / 512).clamp(1, wanted)).max(1);
    (terms.div_ceil(share).max(1), share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 14] = [
        1,
        2,
        31,
        32,
        33,
        63,
        64,
        255,
        256,
        257,
        1023,
        1025,
        4097,
        1 << 24,
    ];
    const LIMITS: [usize; 6] = [32, 64, 100, 256, 832, 1024];

    fn fitted(grid: Grid) -> impl Iterator<Item = Grid> {
        LIMITS.into_iter().map(move |limit| {
            let grid = grid.fit(limit).unwrap();
            assert!(grid.threads.iter().product::<usize>() <= limit);
            assert_eq!(grid.threads[0] % SIMD, 0);
            assert!(grid.groups.iter().chain(&grid.threads).all(|&n| n > 0));
            grid
        })
    }

    #[test]
    fn elementwise_covers_each_element_without_idle_groups() {
        for n in SIZES {
            for per_thread in [1, 2, 4, 8] {
                for grid in fitted(elementwise(n, per_thread)) {
                    let per_group = grid.threads[0] * per_thread;
                    assert!(grid.groups[0] * per_group >= n);
                    assert!((grid.groups[0] - 1) * per_group < n);
                    assert_eq!((grid.groups[1], grid.groups[2]), (1, 1));
                }
            }
        }
    }

    #[test]
    fn elementwise_rows_repeats_the_columns_for_each_row() {
        for cols in SIZES {
            for grid in fitted(elementwise_rows(7, cols, 4)) {
                assert!(grid.groups[0] * grid.threads[0] * 4 >= cols);
                assert_eq!((grid.groups[1], grid.threads[1]), (7, 1));
            }
        }
    }

    #[test]
    fn a_row_has_one_threadgroup_whatever_the_limit() {
        for cols in SIZES {
            let asked = row_per_threadgroup(5, cols, 4);
            assert!(asked.threads[0] * 4 >= cols.min(4096));
            for grid in fitted(asked) {
                assert_eq!(grid.groups, [5, 1, 1]);
                assert!(grid.threads[0] <= asked.threads[0]);
            }
        }
    }

    #[test]
    fn shares_cut_simdgroups_evenly() {
        for steps in SIZES {
            let lanes = lanes(steps);
            assert!(SIMD.is_multiple_of(lanes) && lanes >= steps.min(SIMD) && lanes < 2 * steps);
        }
    }

    #[test]
    fn every_row_has_a_simdgroup() {
        for rows in SIZES {
            for simdgroups in [1, 4, 8, 64] {
                for grid in fitted(row_per_simdgroup(rows, simdgroups)) {
                    let per_group = grid.threads[0] / SIMD;
                    assert!(grid.groups[0] * per_group >= rows);
                    assert!((grid.groups[0] - 1) * per_group < rows);
                }
            }
        }
    }

    #[test]
    fn columns_keep_their_32_lanes() {
        for cols in SIZES {
            for grid in fitted(columns(cols, 3)) {
                assert!(grid.groups[0] * SIMD >= cols && (grid.groups[0] - 1) * SIMD < cols);
                assert_eq!((grid.groups[1], grid.threads[0]), (3, SIMD));
                assert!(grid.threads[1] <= COLUMN_ROWS);
            }
        }
    }

    #[test]
    fn parts_are_worth_their_second_pass() {
        for rows in SIZES {
            for cols in SIZES {
                let parts = column_parts(rows, cols);
                assert!(parts >= 1 && (parts == 1 || rows / parts >= 64));
                assert!((parts - 1) * cols.div_ceil(SIMD) < 512);
            }
        }
    }

    #[test]
    fn parts_of_rows_cover_them() {
        for rows in SIZES {
            for cols in SIZES {
                let (parts, part) = row_parts(rows, cols);
                assert!(part * parts >= cols && part * (parts - 1) < cols);
                assert!(part % 4 == 0 && (parts == 1 || part >= 16 * 4 * 256));
                assert!((parts - 1) * rows < 512);
            }
        }
    }

    #[test]
    fn tiles_cover_a_matrix_and_keep_their_threads() {
        for rows in SIZES {
            for cols in SIZES {
                let grid = tiles(rows, cols, 32).fit(128).unwrap();
                assert!(grid.groups[0] * 32 >= cols && (grid.groups[0] - 1) * 32 < cols);
                assert!(grid.groups[1] * 32 >= rows && (grid.groups[1] - 1) * 32 < rows);
                assert_eq!(grid.threads, [128, 1, 1]);
            }
        }
        let refused = tiles(1, 1, 32).fit(64).unwrap_err();
        assert!(
            refused.contains("64") && refused.contains("128"),
            "{refused}"
        );
    }

    #[test]
    fn a_gemv_reads_little_of_x() {
        for outputs in [1024, 2560, 13_824] {
            for (per, codes_per_byte) in [(8, 1), (8, 2), (16, 4), (16, 5)] {
                for x_bytes in [1, 2, 4] {
                    let grid = gemv(outputs, per, codes_per_byte, x_bytes);
                    let share = grid.groups[0] * codes_per_byte * x_bytes;
                    let little = share as f32 <= 0.045 * outputs as f32;
                    assert!(little || grid.groups[0] == 4, "{grid:?} {outputs}");
                }
            }
        }
        assert_eq!(gemv(64, 8, 2, 2).threads, [4 * SIMD, 1, 1]);
        assert_eq!(gemv(1, 16, 8, 4).threads, [SIMD, 1, 1]);
    }

    #[test]
    fn blocks_may_be_taller_than_wide() {
        let grid = blocks(65, 33, [64, 32]).times(7);
        assert_eq!((grid.groups, grid.threads), ([2, 2, 7], [128, 1, 1]));
    }

    #[test]
    fn parts_of_sums_cover_them() {
        for tiles in SIZES {
            for terms in SIZES.into_iter().chain([0]) {
                let (parts, share) = sum_parts(tiles, terms);
                assert!(parts * share >= terms && (parts == 1 || (parts - 1) * share < terms));
                assert!(parts == 1 || share >= 512);
                assert!((parts - 1) * tiles < 512);
            }
        }
    }

    #[test]
    fn what_metal_would_drop_is_refused() {
        let empty = elementwise(0, 1).fit(1024).unwrap_err();
        assert!(empty.contains("empty"), "{empty}");
        let wraps = row_per_threadgroup(1 << 23, 4096, 4).fit(1024).unwrap_err();
        assert!(wraps.contains("2^32"), "{wraps}");
        assert!(row_per_threadgroup(usize::MAX, 4096, 4).fit(1024).is_err());
        assert!(elementwise(usize::MAX, 1).fit(1024).is_err());
        assert!(row_per_threadgroup(1, 4096, 4)
            .fit(31)
            .unwrap_err()
            .contains("31"));
        assert!(elementwise(100, 1).fit(31).is_err());
    }
}
