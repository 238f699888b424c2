//! Groups of one vector of codes or more, up to the whole row. A block of x is a record: its scale is the same in all lanes, and
//! the scale of W is multiplied once for each group.

use super::{Block, Lanes};
use crate::cpu::activation_bytes::RecordLayout;
use crate::cpu::byte_simd::ByteSimd;

pub struct LargeGroups {
    /// Vectors of a group. The last group of a row ends with the row.
    vectors: usize,
}

impl LargeGroups {
    /// `group` is in columns.
    pub fn new(record: RecordLayout, group: usize) -> Self {
        LargeGroups {
            vectors: group.div_ceil(record.cols()),
        }
    }
}

impl<B: ByteSimd, const R: usize, const O: usize> Block<'_, B, R, O> {
    /// [`Block::products`] for large groups.
    #[inline(always)]
    pub fn large_groups<const BITS: usize, const LOWEST: usize>(
        &self,
        kind: &LargeGroups,
    ) -> Lanes<B, R, O> {
        let (b, x, values) = (self.b, &self.gemv.x, self.gemv.values);
        let (groups, records) = (x.columns.groups(), x.bytes.records());
        let mut totals = [[b.splat(0.0); O]; R];
        for first in (0..groups).step_by(B::LANES) {
            self.add_sums(first, &mut totals);
        }
        for group in 0..groups {
            let mut sums = [[b.splat(0.0); O]; R];
            for record in group * kind.vectors..records.min((group + 1) * kind.vectors) {
                let mut scales = [[b.splat(0.0); O]; R];
                for (r, scales) in scales.iter_mut().enumerate() {
                    *scales = [b.splat(x.scales[(self.row + r) * records + record]); O];
                }
                // SAFETY: the record is below the number of x's records.
                unsafe { self.add_vector::<BITS, LOWEST>(record, scales, &mut sums) };
            }
            for (o, of_output) in self.scales.iter().enumerate() {
                let scale = b.splat(of_output.scales[group] * values.factor);
                for r in 0..R {
                    totals[r][o] = b.fma(sums[r][o], scale, totals[r][o]);
                }
            }
        }
        totals
    }
}
