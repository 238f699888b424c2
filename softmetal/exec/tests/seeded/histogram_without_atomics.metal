// Counts in threadgroup memory that several threads increment.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint counts[4];
    if (tid < 4) counts[tid] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    counts[uint(x[id]) % 4] += 1; // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 4) out[tid] = float(counts[tid]);
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup atomic_uint counts[4];
    if (tid < 4) atomic_store_explicit(&counts[tid], 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&counts[uint(x[id]) % 4], 1, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 4) out[tid] = float(atomic_load_explicit(&counts[tid], memory_order_relaxed));
}
