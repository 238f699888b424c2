//! The cache is cut into the sequences that threads may write at once; each token is one copy of memory.

use super::{KvAppend, Place};
use crate::check;
use crate::cpu::parallel;
use crate::cpu::simd::prefetch;
use candle_core::{CpuStorage, Layout, Result};

pub fn append(
    plan: &KvAppend,
    (cache, cache_layout): (&mut CpuStorage, &Layout),
    (x, x_layout): (&CpuStorage, &Layout),
) -> Result<()> {
    use CpuStorage::*;
    let (to, from) = (cache_layout.start_offset(), x_layout.start_offset());
    macro_rules! same_dtype {
        ($($kind:ident)*) => {
            match (cache, x) {
                $(($kind(cache), $kind(x)) => {
                    plan.check_bounds((cache.len(), cache_layout), (x.len(), x_layout))?;
                    copy(plan, &mut cache[to..], &x[from..])
                })*
                _ => return Err(check::error(plan.name, "got tensors of dtypes that cannot be cached")),
            }
        };
    }
    same_dtype!(U8 U32 I16 I32 I64 BF16 F16 F32 F64 F8E4M3);
    Ok(())
}

fn copy<T: Copy + Send + Sync>(plan: &KvAppend, cache: &mut [T], x: &[T]) {
    let (width, sequence) = (plan.width, plan.capacity * plan.width);
    let cache = &mut cache[..plan.sequences * sequence];
    let work = |i: usize, cache: &mut [T]| {
        // Divisions take longer than the copy of a token of a hundred bytes.
        let Place { start, count } = match plan.places {
            [place] => *place,
            places => places[i / plan.per_place % places.len()],
        };
        let from = plan.lead.offset(i);
        for t in 0..count {
            let slot = match start + t {
                slot if slot < plan.capacity => slot * width,
                slot => (slot - plan.capacity) * width,
            };
            let token = from + t * plan.lead.token;
            cache[slot..slot + width].copy_from_slice(&x[token..token + width]);
        }
        // The next token's slot, for which its write would else wait.
        if count > 0 && start + count < plan.capacity {
            let next = cache[(start + count) * width..][..width].as_ptr();
            for byte in (0..width * size_of::<T>()).step_by(64) {
                prefetch(next.cast::<u8>().wrapping_add(byte));
            }
        }
    };
    let cost = plan.tokens * width;
    if !parallel::is_shared(plan.sequences, cost) {
        let cut = cache.chunks_exact_mut(sequence);
        return cut.enumerate().for_each(|(i, cache)| work(i, cache));
    }
    let mut cut: Vec<_> = cache.chunks_exact_mut(sequence).enumerate().collect();
    parallel::each(&mut cut, cost, |(i, cache)| work(*i, cache));
}
