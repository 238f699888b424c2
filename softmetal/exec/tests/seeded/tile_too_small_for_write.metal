// A tile without room for the halo that is written.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    tile[tid + 1] = x[id]; // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid > 0) out[id] = tile[tid];
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[65];
    tile[tid + 1] = x[id];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid > 0) out[id] = tile[tid];
}
