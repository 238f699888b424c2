//! The forward of few queries: keys and values are read once, as they are.
//!
//! Keys are cut into pieces of [`PIECE`], so that few heads keep all threads busy too. A unit of work is one piece of a head of
//! keys, for all queries that share it ([`piece`]): scores as dot products, weights e^(score − max) with the piece's own maximum,
//! and the sums of weighted values. Then each query adds up its pieces, in their order ([`join`]):
//!
//! ```text
//! M = max mᵢ      L = Σ lᵢ·e^(mᵢ − M)      O = Σ oᵢ·e^(mᵢ − M)
//! ```

mod join;
mod piece;

use super::call::Call;
use super::output::Output;
use super::rows::KvRows;
use crate::cpu::element::Element;
use crate::cpu::matmul::micro::COLS;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::scratch;
use crate::cpu::simd::dispatch;
use join::Join;
use piece::Piece;

/// The most queries that share a head of keys.
const MOST: usize = 16;
/// The keys of a unit.
const PIECE: usize = 512;

/// Whether a call has so few queries that packing keys would not pay.
pub fn suits<T: Element, R>(call: &Call<T, R>) -> bool {
    let rows = call.segments.iter().map(|segment| segment.queries).max();
    rows.unwrap_or(0) * call.geometry.group() <= MOST
}

/// The queries that share a head of keys of a segment.
#[derive(Clone, Copy)]
struct Head {
    segment: usize,
    kv_head: usize,
    /// How many there are.
    rows: usize,
    /// Pieces of its keys.
    pieces: usize,
    /// The first row of the head's results. There is a row for each query of the head's first piece, then a row for each query of
    /// its second piece, and so on.
    at: usize,
}

/// A piece of a head, by their numbers.
#[derive(Clone, Copy)]
struct Unit {
    head: usize,
    piece: usize,
}

/// The results of all pieces, by their rows: a maximum, a sum and `width` weighted sums of each.
struct Results {
    width: usize,
    maxima: Vec<f32>,
    sums: Vec<f32>,
    values: Vec<f32>,
}

/// The heads of all segments.
fn heads<T: Element, R>(call: &Call<T, R>) -> Vec<Head> {
    let g = &call.geometry;
    let (mut heads, mut at) = (Vec::with_capacity(call.segments.len() * g.kv_heads), 0);
    for (i, segment) in call.segments.iter().enumerate() {
        let rows = segment.queries * g.group();
        let pieces = segment.keys.div_ceil(PIECE);
        for kv_head in 0..g.kv_heads {
            heads.push(Head {
                segment: i,
                kv_head,
                rows,
                pieces,
                at,
            });
            at += rows * pieces;
        }
    }
    heads
}

/// Computes all outputs.
pub fn run<T: Element, R: KvRows>(call: &Call<T, R>, output: Output<T>) {
    let g = &call.geometry;
    let heads = heads(call);
    let all = |(i, head): (usize, &Head)| {
        let pieces = if head.rows > 0 { head.pieces } else { 0 };
        (0..pieces).map(move |piece| Unit { head: i, piece })
    };
    let units: Vec<Unit> = heads.iter().enumerate().flat_map(all).collect();
    let rows = heads.iter().map(|head| head.rows).max().unwrap_or(0);
    let count = heads
        .last()
        .map_or(0, |head| head.at + head.rows * head.pieces);
    let width = g.value_dim.next_multiple_of(COLS);
    let mut results = Results {
        width,
        maxima: vec![f32::NEG_INFINITY; count],
        sums: vec![0.0; count],
        values: vec![0.0; count * width],
    };
    let [maxima, sums] =
        [&mut results.maxima, &mut results.sums].map(|v| Shared::new(v.as_mut_ptr()));
    let values = Shared::new(results.values.as_mut_ptr());
    let cost = PIECE * rows * (g.dim + g.value_dim) / 8;
    let dim = g.dim.next_multiple_of(COLS);
    parallel::ranges(units.len(), cost, 1, |range| {
        scratch::with([rows * dim, rows * PIECE], |[q, scores]| {
            for &Unit { head, piece } in &units[range.clone()] {
                let head = &heads[head];
                let at = head.at + piece * head.rows;
                // SAFETY: each unit has `head.rows` maxima, sums and rows of values of its own, and the thread its scratch.
                dispatch(Piece {
                    call,
                    head,
                    first: piece * PIECE,
                    q,
                    scores,
                    maxima: maxima.get().wrapping_add(at),
                    sums: sums.get().wrapping_add(at),
                    values: values.get().wrapping_add(at * width),
                    width,
                });
            }
        })
    });
    let cost = count / heads.len().max(1) * width / 4;
    parallel::ranges(heads.len(), cost.max(1), 1, |range| {
        dispatch(Join {
            call,
            output,
            results: &results,
            heads: &heads[range],
        })
    });
}
