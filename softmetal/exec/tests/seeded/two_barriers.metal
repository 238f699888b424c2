// Both sides of a branch have a barrier of their own.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    if (tid < 32) {
        tile[tid] = x[id];
        threadgroup_barrier(mem_flags::mem_threadgroup); // BUG
    } else {
        tile[tid] = -x[id];
        threadgroup_barrier(mem_flags::mem_threadgroup); // BUG
    }
    out[id] = tile[threads - 1 - tid];
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    if (tid < 32) tile[tid] = x[id];
    else tile[tid] = -x[id];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[id] = tile[threads - 1 - tid];
}
