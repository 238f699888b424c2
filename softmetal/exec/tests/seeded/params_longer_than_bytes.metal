// The kernel's parameter struct has a field that the host does not send.
#include <metal_stdlib>
using namespace metal;

struct Params {
    uint n;
    float scale;
};
kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant Params& p [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    out[id] = x[id] * p.scale; // BUG
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          constant Params& p [[buffer(2)]], uint id [[thread_position_in_grid]],
          uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
          uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    out[id] = x[id] * float(p.n);
}
