// A barrier in a loop that some threads leave early.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    tile[tid] = x[id];
    for (uint i = 0; i < 1 + tid / 32; i++) {
        threadgroup_barrier(mem_flags::mem_threadgroup); // BUG
        if (i > 0) tile[tid] += 1.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup); // BUG
    out[id] = tile[threads - 1 - tid];
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    tile[tid] = x[id];
    for (uint i = 0; i < 2; i++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i > 0 && i < 1 + tid / 32) tile[tid] += 1.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[id] = tile[threads - 1 - tid];
}
