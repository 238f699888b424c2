// A row that is no multiple of four is read as float4 to its end.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    device const float4* x4 = (device const float4*)x;
    float total = 0.0f;
    for (uint i = id; i < (n + 3) / 4; i += threads) {
        float4 v = x4[i]; // BUG
        total += v.x + v.y + v.z + v.w;
    }
    out[id] = total;
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant uint& n [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    device const float4* x4 = (device const float4*)x;
    float total = 0.0f;
    for (uint i = id; i < n / 4; i += threads) {
        float4 v = x4[i];
        total += v.x + v.y + v.z + v.w;
    }
    for (uint i = n / 4 * 4 + id; i < n; i += threads) total += x[i];
    out[id] = total;
}
