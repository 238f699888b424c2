// A second reduction overwrites partial results that others still read.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float part[32];
    float top = simd_max(x[id]);
    if (lane == 0) part[tid / 32] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = simd_max(lane < threads / 32 ? part[lane] : x[id]); // BUG
    float total = simd_sum(x[id] - top);
    if (lane == 0) part[tid / 32] = total; // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = simd_sum(lane < threads / 32 ? part[lane] : 0.0f);
    if (tid == 0) out[group] = total;
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float part[32];
    float top = simd_max(x[id]);
    if (lane == 0) part[tid / 32] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = simd_max(lane < threads / 32 ? part[lane] : x[id]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = simd_sum(x[id] - top);
    if (lane == 0) part[tid / 32] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = simd_sum(lane < threads / 32 ? part[lane] : 0.0f);
    if (tid == 0) out[group] = total;
}
