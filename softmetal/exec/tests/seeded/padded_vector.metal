// Packed triples are read as float3, which takes 16 bytes.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    device const float3* points = (device const float3*)x;
    float3 p = points[id]; // BUG
    out[id] = p.x + p.y + p.z;
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    device const packed_float3* points = (device const packed_float3*)x;
    float3 p = points[id];
    out[id] = p.x + p.y + p.z;
}
