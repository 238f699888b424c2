//! What a chunk asks for from memory ahead of its use.

use super::{Chunks, Unit};
use crate::cpu::element::Element;
use crate::cpu::simd::prefetch;
use crate::ops::attention::cpu::rows::{Block, Fetch, KvRows, LINE};
use crate::ops::attention::cpu::KEY_BLOCK;

/// A block of keys: its segment, its head and its first key.
type KeyBlock = (usize, usize, usize);

/// What is packed next: the queries of a unit and a block of keys and values. They are asked for as `rows` rows are worked on.
pub(super) struct Ahead<'a> {
    pub queries: Option<&'a Unit>,
    pub keys: Option<KeyBlock>,
    pub rows: usize,
}

impl<T: Element, R: KvRows> Chunks<'_, T, R> {
    /// The block behind the one at `first`: of the same head, or the first of the next one.
    #[inline(always)]
    pub(super) fn next_keys(
        &self,
        unit: &Unit,
        next: Option<&Unit>,
        first: usize,
    ) -> Option<KeyBlock> {
        let behind = first + KEY_BLOCK;
        if behind < self.call.segments[unit.segment].keys {
            return Some((unit.segment, unit.kv_head, behind));
        }
        let next = next.map(|next| (next.segment, next.kv_head));
        let other = next.filter(|next| *next != (unit.segment, unit.kv_head));
        other.map(|(segment, kv_head)| (segment, kv_head, 0))
    }

    /// Asks for what belongs to row r.
    #[inline(always)]
    pub(super) fn ask_for(&self, ahead: &Ahead, r: usize) {
        let (call, g) = (self.call, &self.call.geometry);
        if let Some(unit) = ahead.queries.filter(|unit| r < unit.rows) {
            let segment = &call.segments[unit.segment];
            let query = call.query(segment, unit.kv_head, unit.first + r);
            let row = call.q.row(query.batch, query.head, query.at).cast::<u8>();
            for i in (0..g.dim * size_of::<T>()).step_by(LINE) {
                prefetch(row.wrapping_add(i));
            }
        }
        let Some((segment, kv_head, first)) = ahead.keys else {
            return;
        };
        let segment = &call.segments[segment];
        let len = KEY_BLOCK.min(segment.keys.saturating_sub(first));
        for (rows, dim) in [(&call.k, g.dim), (&call.v, g.value_dim)] {
            let block = Block {
                rows,
                batch: segment.batch,
                head: kv_head,
                first: segment.key + first,
            };
            let Some(rows) = R::direct(block, dim) else {
                continue;
            };
            for i in (r..len).step_by(ahead.rows.max(1)) {
                for col in (0..dim).step_by(LINE / size_of::<f32>()) {
                    rows.ask_for(i, col);
                }
            }
        }
    }
}
