//! Groups of which a vector of codes has one or more, each as whole lanes. A block of x is a group.
//!
//! The scales of W and x are multiplied for as many groups as lanes at a time. Each vector of codes then takes those of its
//! groups by a permutation. With 8 lanes and 2 groups to a vector, scales s0 to s7 serve four vectors:
//!
//! ```text
//! vector 0   s0 s0 s0 s0 s1 s1 s1 s1
//! vector 1   s2 s2 s2 s2 s3 s3 s3 s3
//! vector 2   s4 s4 s4 s4 s5 s5 s5 s5
//! vector 3   s6 s6 s6 s6 s7 s7 s7 s7
//! ```

use super::{Block, Lanes};
use crate::cpu::activation_bytes::RecordLayout;
use crate::cpu::byte_simd::ByteSimd;
use crate::cpu::simd::MAX_LANES;

pub struct SmallGroups {
    /// Groups of a vector.
    per_vector: usize,
    /// For each of the vectors that share as many groups as lanes.
    permutations: Vec<Permutation>,
}

/// Lane i takes the scale of group `0[i]`. Aligned, so that none lies in two cache lines.
#[repr(align(64))]
struct Permutation([i32; MAX_LANES]);

impl SmallGroups {
    /// `group` is in columns. `None` if a vector has no whole number of groups, or a group no whole lane.
    pub fn new(record: RecordLayout, group: usize) -> Option<Self> {
        let lanes = record.width / 4;
        let per_vector = record.cols() / group;
        if !record.cols().is_multiple_of(group) || per_vector > lanes {
            return None;
        }
        let permutation = |vector: usize| {
            Permutation(std::array::from_fn(|lane| {
                (vector * per_vector + lane % lanes * per_vector / lanes) as i32
            }))
        };
        Some(SmallGroups {
            per_vector,
            permutations: (0..lanes / per_vector).map(permutation).collect(),
        })
    }
}

impl<B: ByteSimd, const R: usize, const O: usize> Block<'_, B, R, O> {
    /// [`Block::products`] for small groups.
    #[inline(always)]
    pub fn small_groups<const BITS: usize, const LOWEST: usize>(
        &self,
        kind: &SmallGroups,
    ) -> Lanes<B, R, O> {
        let (b, x, values) = (self.b, &self.gemv.x, self.gemv.values);
        let groups = x.columns.groups();
        let mut totals = [[b.splat(0.0); O]; R];
        for first in (0..groups).step_by(B::LANES) {
            self.add_sums(first, &mut totals);
            let mut products = [[b.splat(0.0); O]; R];
            for (o, of_output) in self.scales.iter().enumerate() {
                let scales = b.load_first(&of_output.scales[first..]);
                let scales = b.mul(scales, b.splat(values.factor));
                for (r, products) in products.iter_mut().enumerate() {
                    let x_scales = b.load_first(self.groups_of_row(&x.scales, r, first));
                    products[o] = b.mul(scales, x_scales);
                }
            }
            let vectors = (groups - first).min(B::LANES).div_ceil(kind.per_vector);
            let permutations = &kind.permutations[..vectors];
            for (record, permutation) in (first / kind.per_vector..).zip(permutations) {
                let mut scales = products;
                for scales in &mut scales {
                    for scale in scales {
                        *scale = b.permute(*scale, &permutation.0);
                    }
                }
                // SAFETY: the record has one of the row's groups, so it is one of x's.
                unsafe { self.add_vector::<BITS, LOWEST>(record, scales, &mut totals) };
            }
        }
        totals
    }
}
