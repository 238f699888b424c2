// Lanes of a simdgroup exchange values and count on running in step.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    tile[tid] = x[id]; // BUG
    out[id] = tile[tid ^ 1]; // BUG
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    tile[tid] = x[id];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[id] = tile[tid ^ 1];
}
