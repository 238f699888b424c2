// A matrix is loaded where only seven rows are left.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 a, b, c;
    simdgroup_load(a, x + 8, 8); // BUG
    simdgroup_store(a, out, 8);
}

kernel void fixed(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
          uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 a, b, c;
    simdgroup_load(a, x, 8);
    simdgroup_store(a, out, 8);
}
