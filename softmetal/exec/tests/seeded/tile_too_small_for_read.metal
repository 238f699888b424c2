// A tile without room for the halo that is read.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    tile[tid] = x[id];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float* mine = tile + tid;
    out[id] = mine[0] + mine[1]; // BUG
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[65];
    tile[tid] = x[id];
    if (tid == 0) tile[threads] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const float* mine = tile + tid;
    out[id] = mine[0] + mine[1];
}
