//! simd and quad functions, simdgroup matrices, barriers, atomics, threadgroup variables: on 32 lanes.

use crate::harness::{build, Event};
use softmetal_abi::{atomic, gather, mem, scope};

const ALL: u32 = u32::MAX;

#[test]
fn reductions() {
    let object = build(
        "RUN {
            CHECK(simd_sum(float(lane)) == 496 && simd_sum(int(lane) - 16) == -16 && simd_sum((half)1.0f) == 32);
            CHECK(simd_product(lane == 3 ? 5.0f : 1.0f) == 5 && simd_max(float(lane)) == 31 && simd_min(-float(lane)) == -31);
            CHECK(simd_and(0xffu << (lane % 2)) == 0xfe && simd_or(1u << lane) == ~0u && simd_xor(lane) == 0);
            CHECK(all(simd_sum(uint4(1, lane, 2, 0)) == uint4(32, 496, 64, 0)) && simd_sum(uchar(lane)) == uchar(496));
            CHECK(simd_max(lane == 5 ? 1.0f : __builtin_nanf(\"\")) == 1);
            CHECK(simd_prefix_inclusive_sum(lane) == lane * (lane + 1) / 2 && simd_prefix_exclusive_sum(1u) == lane);
            CHECK(simd_prefix_exclusive_product(lane < 2 ? 3.0f : 1.0f) == (lane == 0 ? 1 : lane == 1 ? 3 : 9));
            CHECK(quad_sum(lane) == (lane & ~3u) * 4 + 6 && quad_max(lane) == (lane | 3) && quad_prefix_inclusive_sum(1) == int(lane % 4) + 1);
        }",
        &[],
    );
    object.check_on(ALL);
}

#[test]
fn reductions_of_some_lanes() {
    let object = build(
        "RUN {
            CHECK(simd_sum(lane) == 5 + 8 + 31 && simd_min(lane) == 5 && simd_max(lane) == 31 && simd_product(2u) == 8);
            CHECK(simd_is_first() == (lane == 5) && simd_broadcast_first(lane) == 5);
            CHECK(simd_prefix_exclusive_sum(1u) == (lane == 5 ? 0 : lane == 8 ? 1 : 2));
            CHECK(ulong(simd_ballot(lane > 5)) == (1ul << 8 | 1ul << 31) && ulong(simd_active_threads_mask()) == (1ul << 5 | 1ul << 8 | 1ul << 31));
            CHECK(simd_all(lane >= 5) && !simd_all(lane > 5) && simd_any(lane == 8) && !simd_any(lane == 9));
            CHECK(quad_sum(lane) == lane && uint(quad_ballot(true)) == 1u << lane % 4);
        }",
        &[],
    );
    let events = object.check_on(1 << 5 | 1 << 8 | 1 << 31);
    assert!(!events
        .iter()
        .any(|(_, event)| matches!(event, Event::InactiveLane { .. })));
}

#[test]
fn shuffles() {
    let object = build(
        "RUN {
            CHECK(simd_shuffle_down(lane, 5) == (lane < 27 ? lane + 5 : lane) && simd_shuffle_up(lane, 5) == (lane < 5 ? lane : lane - 5));
            CHECK(simd_shuffle_xor(lane, 16) == (lane ^ 16) && simd_shuffle(lane, 31 - lane) == 31 - lane && simd_broadcast(lane, 7) == 7);
            CHECK(simd_shuffle_rotate_down(lane, 3) == (lane + 3) % 32 && simd_shuffle_rotate_up(lane, 3) == (lane + 29) % 32);
            CHECK(simd_shuffle_down(lane, 40) == lane && all(simd_shuffle_xor(half2(lane, 1), 1) == half2(lane ^ 1, 1)));
            CHECK(simd_shuffle_and_fill_down(lane, lane + 100, 3) == (lane < 29 ? lane + 3 : lane + 3 - 32 + 100));
            CHECK(simd_shuffle_and_fill_up(lane, lane + 100, 3) == (lane >= 3 ? lane - 3 : lane - 3 + 32 + 100));
            uint block = lane / 8 * 8, at = lane % 8;
            CHECK(simd_shuffle_and_fill_down(lane, lane + 100, 3, 8) == (at < 5 ? lane + 3 : block + at + 3 - 8 + 100));
            CHECK(simd_shuffle_and_fill_up(lane, lane + 100, 3, 8) == (at >= 3 ? lane - 3 : block + at + 5 + 100));
            CHECK(quad_shuffle_xor(lane, 1) == (lane ^ 1) && quad_broadcast(lane, 2) == (lane & ~3u) + 2 && quad_shuffle_down(lane, 1) == (lane % 4 == 3 ? lane : lane + 1));
            simd_vote all_of_them = simd_ballot(true);
            CHECK(all_of_them.all() && all_of_them.any() && !simd_ballot(false).any() && !simd_ballot(lane < 9).all());
        }",
        &[],
    );
    object.check_on(ALL);
}

#[test]
fn inactive_lanes_are_told() {
    let object = build(
        "RUN {\n simd_shuffle_xor(lane, 1);\n simd_shuffle(lane, lane == 2 ? 33 : lane);\n}",
        &[],
    );
    let told: Vec<_> = object
        .run_on::<u8>(0b0111, &mut [])
        .into_iter()
        .filter(|(_, event)| matches!(event, Event::InactiveLane { .. }))
        .collect();
    let expected = [
        (2, Event::InactiveLane { lane: 3, line: 2 }),
        (2, Event::InactiveLane { lane: 33, line: 3 }),
    ];
    assert_eq!(told, expected);
}

#[test]
fn rendezvous_carry_kind_argument_and_line() {
    let object = build(
        "RUN {\n simd_sum(1.0f);\n simd_shuffle_down(lane, 4);\n simd_shuffle(uint4(lane), 0);\n quad_sum(1);\n\
         simdgroup_float8x8 m(1.0f);\n threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);\n\
         simdgroup_barrier(mem_flags::mem_none);\n atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);\n}",
        &[],
    );
    let all = object.run_on::<u8>(ALL, &mut []);
    let events: Vec<_> = all
        .into_iter()
        .filter_map(|(lane, event)| (lane == 9).then_some(event))
        .collect();
    let gather = |size, width, kind, argument, line| Event::Gather {
        size,
        width,
        kind,
        argument,
        line,
    };
    let expected = [
        gather(4, 32, gather::REDUCE, 0, 2),
        gather(4, 32, gather::SHUFFLE_UNIFORM, 4, 3),
        gather(16, 32, gather::SHUFFLE, 0, 4),
        gather(4, 4, gather::REDUCE, 0, 5),
        gather(1, 32, gather::MATRIX, 0, 6),
        Event::Barrier {
            scope: scope::THREADGROUP,
            flags: mem::THREADGROUP | mem::DEVICE,
            line: 7,
        },
        Event::Barrier {
            scope: scope::SIMDGROUP,
            flags: mem::NONE,
            line: 8,
        },
        Event::Fence {
            flags: mem::DEVICE,
            line: 9,
        },
    ];
    assert_eq!(events, expected);
}

/// The mapping that MLX relies on.
#[test]
fn matrix_elements_lie_where_mlx_expects_them() {
    let object = build(
        "RUN {
            uint q = lane / 4, row = (q & 4) + lane / 2 % 4, column = (q & 2) * 2 + lane % 2 * 2;
            CHECK(softmetal::matrix_lane(row, column) == lane && softmetal::matrix_lane(row, column + 1) == lane);
            float a[64];
            for (int i = 0; i < 64; i++)
                a[i] = i;
            simdgroup_float8x8 m;
            simdgroup_load(m, a);
            CHECK(m.thread_elements()[0] == row * 8 + column && m.thread_elements()[1] == row * 8 + column + 1);
            simdgroup_load(m, (const float*)a, 8, 0, true);
            CHECK(m.thread_elements()[0] == column * 8 + row && m.thread_elements()[1] == column * 8 + 8 + row);
            simdgroup_load(m, a, 4, ulong2(2, 3));
            CHECK(m.thread_elements()[0] == (row + 3) * 4 + column + 2);
            simdgroup_float8x8 identity(3.0f);
            CHECK(identity.thread_elements()[0] == (row == column ? 3 : 0) && identity.thread_elements()[1] == (row == column + 1 ? 3 : 0));
            simdgroup_half8x8 ones = make_filled_simdgroup_matrix<half, 8>((half)1.0f), twos = make_filled_simdgroup_matrix<half, 8, 8>((half)2.0f);
            CHECK(all(ones.thread_elements() == half2(1, 1)) && all(twos.thread_elements() == half2(2, 2)));
        }",
        &[],
    );
    object.check_on(ALL);
}

#[test]
fn matrix_products() {
    // a, b, c of 8x8 (b with a row of 16 elements), then d = a b + c and e = a b, f = transposed a in half.
    let (n, wide) = (8, 16);
    let a: Vec<f32> = (0..64).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
    let b: Vec<f32> = (0..8 * wide).map(|i| (i * 5 % 11) as f32 - 5.0).collect();
    let c: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let mut data = [a.clone(), b.clone(), c.clone(), vec![0.0; 192]].concat();
    let object = build(
        "RUN {
            float* a = (float*)data; float* b = a + 64; float* c = b + 128; float* d = c + 64; float* e = d + 64; float* f = e + 64;
            simdgroup_float8x8 ma, mc, md, mf;
            simdgroup_load(ma, a);
            simdgroup_load(mc, c);
            simdgroup_float8x8 mb;
            simdgroup_load(mb, b, 16, ulong2(3, 0));
            simdgroup_multiply_accumulate(md, ma, mb, mc);
            simdgroup_store(md, d);
            simdgroup_half8x8 ha, hb;
            ha.thread_elements() = half2(ma.thread_elements());
            hb.thread_elements() = half2(mb.thread_elements());
            simdgroup_multiply(mf, ha, hb);
            simdgroup_store(mf, e, 8, 0, false);
            simdgroup_bfloat8x8 ba;
            ba.thread_elements() = bfloat2(ma.thread_elements());
            simdgroup_float8x8 zero = make_filled_simdgroup_matrix<float, 8>(0.0f);
            simdgroup_multiply_accumulate(mf, ba, simdgroup_bfloat8x8((bfloat)1.0f), zero);
            simdgroup_store(mf, f, 8, 0, true);
        }",
        &[],
    );
    object.run_on(ALL, &mut data);
    let product = |r: usize, col: usize| {
        (0..n)
            .map(|k| a[r * n + k] * b[k * wide + col + 3])
            .sum::<f32>()
    };
    for r in 0..n {
        for col in 0..n {
            let at = 256 + r * n + col;
            assert_eq!(
                data[at],
                product(r, col) + c[r * n + col],
                "a b + c at {r}, {col}"
            );
            assert_eq!(data[at + 64], product(r, col), "a b of half at {r}, {col}");
            assert_eq!(
                data[at + 128],
                a[col * n + r],
                "stored transposed at {r}, {col}"
            );
        }
    }
}

#[test]
fn atomics_add_up() {
    let mut data = [0u32; 6];
    data[2] = 100;
    data[4] = u32::MAX;
    let object = build(
        "RUN {
            atomic_uint* u = (atomic_uint*)data;
            atomic_fetch_add_explicit(u, 2u, memory_order_relaxed);
            atomic_fetch_max_explicit((atomic_int*)(u + 1), int(lane), memory_order_relaxed);
            atomic_fetch_min_explicit(u + 2, lane + 7, memory_order_relaxed);
            atomic_fetch_or_explicit(u + 3, 1u << lane, memory_order_relaxed);
            atomic_fetch_sub_explicit(u + 4, 1, memory_order_relaxed);
            volatile atomic_float* f = (volatile atomic_float*)(u + 5);
            float seen = atomic_load_explicit(f, memory_order_relaxed);
            while (!atomic_compare_exchange_weak_explicit(f, &seen, seen + 0.5f, memory_order_relaxed, memory_order_relaxed)) {}
            atomic_fetch_add_explicit(f, 0.5f, memory_order_relaxed);
        }",
        &[],
    );
    object.run_on(ALL, &mut data);
    assert_eq!(data, [64, 31, 7, u32::MAX, u32::MAX - 32, 32f32.to_bits()]);
}

#[test]
fn atomics_are_announced_once() {
    let object = build(
        "RUN {
            atomic_uint* u = (atomic_uint*)data;
            atomic_store_explicit(u, 3u, memory_order_relaxed);
            CHECK(atomic_load_explicit(u, memory_order_relaxed) == 3);
            CHECK(atomic_exchange_explicit(u, 4u, memory_order_relaxed) == 3);
            atomic_max_explicit((atomic_ulong*)(u + 2), 9ul, memory_order_relaxed);
        }",
        crate::compiler::INSTRUMENT,
    );
    let mut data = [0u64; 2];
    let at = data.as_ptr() as usize;
    let events: Vec<_> = object
        .run_on(1, &mut data)
        .into_iter()
        .map(|(_, event)| event)
        .collect();
    let expected = [
        (at, 4, atomic::STORE),
        (at, 4, atomic::LOAD),
        (at, 4, atomic::RMW),
        (at + 8, 8, atomic::RMW),
    ]
    .map(|(address, size, kind)| Event::Atomic {
        address,
        size,
        kind,
    });
    assert_eq!(events, expected);
    assert_eq!(data, [4, 9]);
}

#[test]
fn threadgroup_variables_are_shared() {
    let object = build(
        "RUN {
            typedef float part_t[32];
            auto& part = softmetal::threadgroup_variable<part_t>(7, \"part\");
            auto& other = softmetal::threadgroup_variable<uint>(8, \"other\");
            part[lane] = lane;
            if (lane == 3)
                other = 11;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            CHECK(part[31 - lane] == 31 - lane && other == 11);
        }",
        &[],
    );
    object.check_on(ALL);
}
