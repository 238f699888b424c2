// The host gives a threadgroup argument half of what the kernel uses.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], threadgroup float* tile [[threadgroup(0)]]) {
    tile[2 * tid + 1] = x[id]; // BUG
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[id] = tile[2 * (threads - 1 - tid) + 1];
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], threadgroup float* tile [[threadgroup(0)]]) {
    tile[tid] = x[id];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[id] = tile[threads - 1 - tid];
}
