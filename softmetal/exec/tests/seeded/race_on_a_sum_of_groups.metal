// Each group adds its part to one element.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    float total = simd_sum(x[id]);
    if (tid == 0) out[0] += total; // BUG
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    float total = simd_sum(x[id]);
    if (tid == 0) atomic_fetch_add_explicit((device atomic_float*)out, total, memory_order_relaxed);
}
