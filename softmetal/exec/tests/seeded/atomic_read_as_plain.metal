// A counter that others increment is read without an atomic.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    device atomic_uint* counter = (device atomic_uint*)out;
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); // BUG
    if (tid == threads - 1) out[1] = float(((device uint*)out)[0]); // BUG
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    device atomic_uint* counter = (device atomic_uint*)out;
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    if (tid == threads - 1) out[1] = float(atomic_load_explicit(counter, memory_order_relaxed));
}
