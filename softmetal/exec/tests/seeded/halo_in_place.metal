// Groups smooth in place and read what their neighbours write.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    float left = id > 0 ? out[id - 1] : 0.0f; // BUG
    threadgroup_barrier(mem_flags::mem_device);
    out[id] = left + 1.0f; // BUG
}

kernel void fixed(device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    float left = tid > 0 ? out[id - 1] : 0.0f;
    threadgroup_barrier(mem_flags::mem_device);
    out[id] = left + 1.0f;
}
