// act(x y + bias) for matrices and stacks of them, of any strides: accumulated in float, stored once.

// Leading dims of the output, outermost first; what isn't needed has size 1.
#define STACK_DIMS 4u

struct Params {
    ulong x_row;  // strides in elements
    ulong x_col;
    ulong y_row;
    ulong y_col;
    ulong x_stack[STACK_DIMS];
    ulong y_stack[STACK_DIMS];
    uint stack[STACK_DIMS];
    uint rows;
    uint outputs;
    uint depth;
    uint has_bias;
    uint act;
    float act_param;
};

// A threadgroup makes SIDE by SIDE outputs.
template <typename T, typename Out, uint SIDE>
[[kernel]] void matmul_act(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device Out* out [[buffer(3)]],
    constant Params& p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    // A tile of x, then one of y; in the end the outputs, which need less.
    threadgroup float tiles[SIDE * TILE_ROW(DEPTH) + DEPTH * TILE_ROW(SIDE)];
    threadgroup float* xs = tiles;
    threadgroup float* ys = tiles + SIDE * TILE_ROW(DEPTH);

    ulong x_at = 0u;
    ulong y_at = 0u;
    uint stack = group.z;
    for (uint d = STACK_DIMS; d > 0u; d--) {
        uint at = stack % p.stack[d - 1u];
        stack /= p.stack[d - 1u];
        x_at += at * p.x_stack[d - 1u];
        y_at += at * p.y_stack[d - 1u];
    }
    uint row0 = group.y * SIDE;
    uint out0 = group.x * SIDE;

    Strided<T> from_x = strided(x + x_at, p.x_row, p.x_col);
    Strided<T> from_y = strided(y + y_at, p.y_row, p.y_col);
    Quarter<SIDE, SIDE> sums;
    sums.clear(simdgroup);
    for (uint k0 = 0u; k0 < p.depth; k0 += DEPTH) {
        load_tile<SIDE, DEPTH>(xs, from_x, row0, k0, p.rows, p.depth, thread_index);
        load_tile<DEPTH, SIDE>(ys, from_y, k0, out0, p.depth, p.outputs, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sums.add(xs, ys);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    sums.store(tiles);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device Out* to = out + ulong(group.z) * p.rows * p.outputs;
    for (uint i = thread_index; i < SIDE * SIDE; i += TILE_THREADS) {
        uint r = i / SIDE;
        uint c = i % SIDE;
        if (row0 + r < p.rows && out0 + c < p.outputs) {
            float z = tiles[r * TILE_ROW(SIDE) + c];
            z += p.has_bias != 0u ? float(bias[out0 + c]) : 0.0f;
            to[ulong(row0 + r) * p.outputs + out0 + c] = Out(act_fwd(p.act, z, p.act_param));
        }
    }
}

// `wide` stores floats, to which other terms are added before they are rounded.
#define FOR_SIDE(SIDE, side) \
    KERNEL("matmul_act_fwd_" side "_f32", matmul_act<float, float, SIDE>) \
    KERNEL("matmul_act_fwd_" side "_f16", matmul_act<half, half, SIDE>) \
    KERNEL_BF16("matmul_act_fwd_" side "_bf16", matmul_act<bfloat, bfloat, SIDE>) \
    KERNEL("matmul_act_fwd_wide_" side "_f16", matmul_act<half, float, SIDE>) \
    KERNEL_BF16("matmul_act_fwd_wide_" side "_bf16", matmul_act<bfloat, float, SIDE>)

FOR_SIDE(32, "32")
FOR_SIDE(64, "64")
