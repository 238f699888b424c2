// Threads leave floats, and read their halves: no barrier between them.
#include <metal_stdlib>
using namespace metal;

kernel void bug(device const float* x [[buffer(0)]],
                device float* y [[buffer(1)]],
                constant uint& n [[buffer(2)]],
                uint i [[thread_position_in_threadgroup]]) {
    threadgroup float tile[64];
    tile[i] = x[i]; // BUG
    threadgroup const half* halves = (threadgroup const half*)tile;
    y[i] = float(halves[2 * (n - 1 - i)]); // BUG
}

kernel void fixed(device const float* x [[buffer(0)]],
                  device float* y [[buffer(1)]],
                  constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_threadgroup]]) {
    threadgroup float tile[64];
    tile[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup const half* halves = (threadgroup const half*)tile;
    y[i] = float(halves[2 * (n - 1 - i)]);
}
