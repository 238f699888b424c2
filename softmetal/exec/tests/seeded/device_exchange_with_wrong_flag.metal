// Device memory behind a barrier that orders threadgroup memory.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    out[id] = x[id];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float other = out[group * threads + (tid + 1) % threads]; // BUG
    threadgroup_barrier(mem_flags::mem_device);
    out[id] = other;
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    out[id] = x[id];
    threadgroup_barrier(mem_flags::mem_device);
    float other = out[group * threads + (tid + 1) % threads];
    threadgroup_barrier(mem_flags::mem_device);
    out[id] = other;
}
