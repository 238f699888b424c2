//! What instrumented code tells the runtime of its memory accesses.

use crate::compiler::INSTRUMENT;
use crate::harness::{build, Event};
use softmetal_abi::fault;

/// 64-byte aligned memory to read and write.
#[repr(align(64))]
struct Block {
    _bytes: [u8; 256],
}

impl Block {
    fn zeroed() -> Self {
        Self { _bytes: [0; 256] }
    }
}

/// The accesses of one lane to its block, as offsets: `(is a store, offset, size)`.
fn accesses(source: &str) -> Vec<(bool, usize, usize)> {
    let mut block = [Block::zeroed()];
    let base = block.as_ptr() as usize;
    let inside = |address: usize| address.checked_sub(base).filter(|offset| *offset < 256);
    build(source, INSTRUMENT)
        .run_on(1, &mut block)
        .into_iter()
        .filter_map(|(_, event)| match event {
            Event::Load { address, size } => inside(address).map(|offset| (false, offset, size)),
            Event::Store { address, size } => inside(address).map(|offset| (true, offset, size)),
            other => panic!("unexpected {other:?}"),
        })
        .collect()
}

fn covered(accesses: &[(bool, usize, usize)], stores: bool) -> Vec<usize> {
    let mut bytes: Vec<usize> = accesses
        .iter()
        .filter(|(store, ..)| *store == stores)
        .flat_map(|(_, offset, size)| *offset..offset + size)
        .collect();
    bytes.sort_unstable();
    bytes
}

fn misaligned(accesses: &[(bool, usize, usize)]) -> Vec<(bool, usize, usize)> {
    let odd = |size: usize, offset: usize| size.is_power_of_two() && !offset.is_multiple_of(size);
    accesses
        .iter()
        .copied()
        .filter(|(_, offset, size)| odd(*size, *offset))
        .collect()
}

#[test]
fn every_byte_is_told_once() {
    let seen = accesses("RUN { float* p = (float*)data; p[1] = p[0] + p[3]; ((half*)data)[20] = ((uchar*)data)[70]; }");
    assert_eq!(covered(&seen, false), [0, 1, 2, 3, 12, 13, 14, 15, 70]);
    assert_eq!(covered(&seen, true), [4, 5, 6, 7, 40, 41]);
}

#[test]
fn vectors_and_structures_are_told_whole() {
    let seen = accesses(
        "struct S { float4 a; int b[8]; };
         RUN { float4* p = (float4*)data; p[1] = p[0] * 2; S* s = (S*)(p + 2); s[1] = s[0]; }",
    );
    let mut loads: Vec<usize> = (0..16).collect();
    loads.extend(32..80);
    let mut stores: Vec<usize> = (16..32).collect();
    stores.extend(80..128);
    assert_eq!(covered(&seen, false), loads);
    assert_eq!(covered(&seen, true), stores);
    assert_eq!(misaligned(&seen), []);
}

#[test]
fn misaligned_vectors_are_told() {
    let seen = accesses("RUN { float* p = (float*)data; float4 v = *(float4*)(p + 1); *(half4*)((half*)data + 65) = half4(v); }");
    assert_eq!(misaligned(&seen), [(false, 4, 16), (true, 130, 8)]);
}

#[test]
fn packed_vectors_need_no_alignment() {
    let seen = accesses(
        "RUN { float* p = (float*)data; packed_float4* q = (packed_float4*)(p + 1); q[2] = q[0]; \
         packed_float3 r = *(packed_float3*)(p + 5); *(packed_float3*)(p + 15) = r * 2; }",
    );
    assert_eq!(misaligned(&seen), []);
    assert_eq!(covered(&seen, true).len(), 28);
}

#[test]
fn private_arrays_are_checked_for_their_bounds() {
    let source = "RUN {
        volatile uint i = lane;
        float a[4] = {1, 2, 3, 4};
        float4 v(1, 2, 3, 4);
        float4x4 m(1.0f);
        array<int, 4> n = {1, 2, 3, 4};
        CHECK(a[i + 3] + v[i + 3] + m[i + 3][i] + n[i + 3] > 0);
    }";
    let object = build(source, INSTRUMENT);
    let faults = |lane: u32| {
        let events = object.run_on::<u8>(1 << lane, &mut []);
        events
            .iter()
            .filter(|(_, event)| {
                *event
                    == Event::Fault {
                        kind: fault::ARRAY_BOUNDS,
                    }
            })
            .count()
    };
    assert_eq!(faults(0), 0);
    assert_eq!(faults(1), 4);
}

#[test]
fn what_the_headers_do_themselves_is_not_told() {
    let source = "RUN { float x = simd_sum(float(lane)) + simd_shuffle_xor(float4(lane), 1).x; \
        simdgroup_float8x8 m(x); simdgroup_multiply(m, m, m); threadgroup_barrier(mem_flags::mem_none); \
        if (m.thread_elements().x < 0) *(float*)data = 1; }";
    let events = build(source, INSTRUMENT).run_on::<u8>(u32::MAX, &mut []);
    let told = |event: &Event| {
        matches!(
            event,
            Event::Load { .. } | Event::Store { .. } | Event::Fault { .. }
        )
    };
    let wrong: Vec<_> = events.iter().filter(|(_, event)| told(event)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn matrix_loads_and_stores_are_told_by_every_lane() {
    let mut block = [Block::zeroed()];
    let base = block.as_ptr() as usize;
    let source = "RUN { simdgroup_float8x8 m; simdgroup_load(m, (float*)data); simdgroup_store(m, (float*)data); }";
    let events = build(source, INSTRUMENT).run_on(u32::MAX, &mut block);
    let mut loads: Vec<usize> = events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Load { address, size } => {
                Some((*address..address + size).map(|byte| byte - base))
            }
            _ => None,
        })
        .flatten()
        .collect();
    loads.sort_unstable();
    assert_eq!(loads, (0..256).collect::<Vec<_>>());
    assert_eq!(
        events
            .iter()
            .filter(|(_, event)| matches!(event, Event::Store { .. }))
            .count()
            % 32,
        0
    );
}
