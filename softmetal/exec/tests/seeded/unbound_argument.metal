// A kernel uses an argument that the host did not bind.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          device const float* bias [[buffer(5)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    out[id] = x[id] + bias[tid]; // BUG
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          device const float* bias [[buffer(5)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    out[id] = x[id];
}
