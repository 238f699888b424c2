// A loop loads the next tile while others still read this one.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    float total = 0.0f;
    for (uint start = 0; start < n; start += threads) {
        tile[tid] = x[start + tid]; // BUG
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < threads; i++) total += tile[i] * float(tid); // BUG
    }
    out[id] = total;
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    float total = 0.0f;
    for (uint start = 0; start < n; start += threads) {
        tile[tid] = x[start + tid];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < threads; i++) total += tile[i] * float(tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[id] = total;
}
