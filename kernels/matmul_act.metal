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

// A threadgroup of four simdgroups makes SIDE by SIDE outputs, each simdgroup a quarter. It takes so many columns of x,
// and rows of y, at a time.
#define DEPTH 32u
// Rows in threadgroup memory are so many floats longer, so that neighbouring ones lie in other banks.
#define SKEW 4u
#define THREADS 128u

// ROWS rows of m from `row0` and COLS columns from `col0`, zeros beyond its end.
template <uint ROWS, uint COLS, typename T>
inline void load_tile(
    threadgroup float* tile, device const T* m, ulong row, ulong col, uint row0, uint col0, uint rows, uint cols,
    uint thread_index
) {
    // Neighbouring threads read neighbouring elements, whichever way they lie.
    bool by_row = col <= row;
    for (uint i = thread_index; i < ROWS * COLS; i += THREADS) {
        uint r = by_row ? i / COLS : i % ROWS;
        uint c = by_row ? i % COLS : i / ROWS;
        bool inside = row0 + r < rows && col0 + c < cols;
        tile[r * (COLS + SKEW) + c] = inside ? float(m[ulong(row0 + r) * row + ulong(col0 + c) * col]) : 0.0f;
    }
}

template <typename T, uint SIDE>
[[kernel]] void matmul_act(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant Params& p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    // A tile of x, then one of y; in the end the outputs, which need less.
    threadgroup float tiles[SIDE * (DEPTH + SKEW) + DEPTH * (SIDE + SKEW)];
    threadgroup float* xs = tiles;
    threadgroup float* ys = tiles + SIDE * (DEPTH + SKEW);
    const uint x_len = DEPTH + SKEW;
    const uint y_len = SIDE + SKEW;

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

    // The quarter of this simdgroup: N by N matrices.
    const uint N = SIDE / 16u;
    uint top = (simdgroup / 2u) * (SIDE / 2u);
    uint left = (simdgroup % 2u) * (SIDE / 2u);
    simdgroup_matrix<float, 8, 8> acc[N][N];
    for (uint i = 0u; i < N; i++) {
        for (uint j = 0u; j < N; j++) {
            acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    for (uint k0 = 0u; k0 < p.depth; k0 += DEPTH) {
        load_tile<SIDE, DEPTH>(xs, x + x_at, p.x_row, p.x_col, row0, k0, p.rows, p.depth, thread_index);
        load_tile<DEPTH, SIDE>(ys, y + y_at, p.y_row, p.y_col, k0, out0, p.depth, p.outputs, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0u; k < DEPTH; k += 8u) {
            simdgroup_matrix<float, 8, 8> a[N];
            simdgroup_matrix<float, 8, 8> b[N];
            for (uint i = 0u; i < N; i++) {
                simdgroup_load(a[i], xs + (top + 8u * i) * x_len + k, x_len);
                simdgroup_load(b[i], ys + k * y_len + left + 8u * i, y_len);
            }
            for (uint i = 0u; i < N; i++) {
                for (uint j = 0u; j < N; j++) {
                    simdgroup_multiply_accumulate(acc[i][j], a[i], b[j], acc[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    for (uint i = 0u; i < N; i++) {
        for (uint j = 0u; j < N; j++) {
            simdgroup_store(acc[i][j], tiles + (top + 8u * i) * y_len + left + 8u * j, y_len);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device T* to = out + ulong(group.z) * p.rows * p.outputs;
    for (uint i = thread_index; i < SIDE * SIDE; i += THREADS) {
        uint r = i / SIDE;
        uint c = i % SIDE;
        if (row0 + r < p.rows && out0 + c < p.outputs) {
            float z = tiles[r * y_len + c];
            z += p.has_bias != 0u ? float(bias[out0 + c]) : 0.0f;
            to[ulong(row0 + r) * p.outputs + out0 + c] = T(act_fwd(p.act, z, p.act_param));
        }
    }
}

FOR_DTYPES_WITH(matmul_act, "matmul_act_fwd_32", 32)
FOR_DTYPES_WITH(matmul_act, "matmul_act_fwd_64", 64)
