// A matrix product inside a branch that half the lanes take.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 a, b, c;
    simdgroup_load(a, x, 8);
    simdgroup_load(b, x + 64, 8);
    c = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    if (lane < 16)
        simdgroup_multiply(c, a, b); // BUG
    simdgroup_store(c, out, 8);
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 a, b, c;
    simdgroup_load(a, x, 8);
    simdgroup_load(b, x + 64, 8);
    simdgroup_multiply(c, a, b);
    simdgroup_store(c, out, 8);
}
