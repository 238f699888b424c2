// float4 is read from an element that is not a multiple of four.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    float4 v = *(device const float4*)(x + 1); // BUG
    out[id] = v.x + v.w;
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    float4 v = float4(*(device const packed_float4*)(x + 1));
    out[id] = v.x + v.w;
}
