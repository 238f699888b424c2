//! Launches of kernels/kv_append.metal: one for each 32 places.

use super::{KvAppend, Lead, Place};
use crate::check;
use crate::metal::{grid, sources, Launch, Operand};
use candle_core::backend::BackendStorage;
use candle_core::{Layout, MetalStorage, Result};

/// Places of one launch.
const PLACES: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct KvAppendParams {
    /// In units, as all strides are.
    x_strides: [u64; Lead::MAX],
    x_token: u64,
    cache_first: u64,
    x_dims: [u32; Lead::MAX],
    starts: [u32; PLACES],
    counts: [u32; PLACES],
    first_sequence: u32,
    rank: u32,
    tokens: u32,
    capacity: u32,
    width: u32,
    per_place: u32,
}

pub fn append(
    plan: &KvAppend,
    (cache, cache_layout): (&mut MetalStorage, &Layout),
    (x, x_layout): (&MetalStorage, &Layout),
) -> Result<()> {
    let size = cache.dtype().size_in_bytes();
    let len = |storage: &MetalStorage| storage.buffer().length() / size.max(1);
    plan.check_bounds((len(cache), cache_layout), (len(x), x_layout))?;
    let counts = [
        plan.sequences,
        plan.capacity,
        plan.tokens,
        plan.width * size,
    ];
    let message = "got more than 2^32-1 sequences, slots, tokens or bytes of a token";
    let short = counts.iter().all(|&n| u32::try_from(n).is_ok());
    check::ensure(short, plan.name, message)?;
    // A slot past the end is start + token before it is brought back.
    let message = "got more than 2^31 slots, expected fewer";
    check::ensure(plan.capacity <= 1 << 31, plan.name, message)?;
    let operand = Operand::strided(x, x_layout);
    let cache_offset = cache_layout.start_offset() * size;
    let (unit, kernel) = unit(plan, size, cache_offset | operand.offset());
    let units = |elements: usize| (elements * size / unit) as u64;
    let mut params = KvAppendParams {
        x_strides: [0; Lead::MAX],
        x_token: units(plan.lead.token),
        cache_first: 0,
        x_dims: [1; Lead::MAX],
        starts: [0; PLACES],
        counts: [0; PLACES],
        first_sequence: 0,
        rank: plan.lead.rank as u32,
        tokens: plan.tokens as u32,
        capacity: plan.capacity as u32,
        width: units(plan.width) as u32,
        per_place: plan.per_place as u32,
    };
    for (i, &(dim, stride)) in plan.lead.dims[..plan.lead.rank].iter().enumerate() {
        (params.x_dims[i], params.x_strides[i]) = (dim as u32, units(stride));
    }
    for (i, places) in plan.places.chunks(PLACES).enumerate() {
        let first = i * PLACES * plan.per_place;
        let tokens = places.iter().map(|place| place.count).max().unwrap_or(0);
        if tokens == 0 {
            continue;
        }
        params.first_sequence = first as u32;
        params.cache_first = first as u64 * units(plan.capacity * plan.width);
        params.tokens = tokens as u32;
        for (k, &Place { start, count }) in places.iter().enumerate() {
            (params.starts[k], params.counts[k]) = (start as u32, count as u32);
        }
        let rows = places.len() * plan.per_place * tokens;
        Launch::new(cache.device(), &sources::KV_APPEND, kernel)?
            .input(&operand)
            .overwrite(cache.buffer(), cache_offset)
            .params(&params)
            .run(grid::elementwise_rows(rows, params.width as usize, 1))?;
    }
    Ok(())
}

/// The widest unit, in bytes, in which all offsets and strides can be counted, and its kernel.
fn unit(plan: &KvAppend, size: usize, offsets: usize) -> (usize, &'static str) {
    let lead = &plan.lead;
    let strides = lead.dims[..lead.rank].iter().map(|&(_, stride)| stride);
    let bytes = strides.fold((plan.width | lead.token) * size, |bits, stride| {
        bits | (stride * size)
    });
    match (bytes | offsets).trailing_zeros() {
        0 => (1, "kv_append_u8"),
        1 => (2, "kv_append_u16"),
        2 | 3 => (4, "kv_append_u32"),
        _ => (16, "kv_append_u128"),
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    KvAppendParams => "kv_append" KvAppendParams {
        x_strides, x_token, cache_first, x_dims, starts, counts, first_sequence, rank, tokens, capacity, width, per_place
    }
}
