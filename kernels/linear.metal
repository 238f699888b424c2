// scale * x W^T [+ u B^T] [+ base] [+ bias], accumulated in float.
//
// Few rows of x: a GEMV that reads W once, and may end in an activation. Many rows: tiles of simdgroup matrices, for the
// products of low rank that stand beside a GEMM.

struct Params {
    ulong x_row;  // strides in elements
    ulong x_col;
    ulong w_row;
    ulong w_col;
    ulong b_row;
    ulong b_col;
    uint rows;
    uint outputs;
    uint cols;
    uint rank;
    float scale;
    uint has_base;
    uint has_bias;
    uint aligned;  // W may be read four elements at a time
    // Of the dropout of x.
    uint seed_low;
    uint seed_high;
    uint threshold;
    float keep;
    uint act;
    float act_param;
};

// x where its word of (seed, i) is at least the threshold, times `keep`; else 0, even for NaN.
inline float dropped(float x, ulong i, constant Params& p) {
    uint4 counter = uint4(uint(i / 4u), uint((i / 4u) >> 32u), 0u, 0u);
    uint4 words = philox(uint2(p.seed_low, p.seed_high), counter);
    return words[uint(i % 4u)] >= p.threshold ? x * p.keep : 0.0f;
}

// ---- Few rows ----

// Columns of x that a threadgroup holds at a time: of eight rows, 16 KB.
#define GEMV_COLS 512u
// Outputs of a simdgroup.
#define GEMV_OUTPUTS 4u

// At most R rows. A simdgroup takes four outputs; x is shared by the threadgroup, so that it is read once for all of them.
template <typename T, typename Out, uint R, bool DROP>
[[kernel]] void linear_gemv(
    device const T* x [[buffer(0)]],
    device const T* w [[buffer(1)]],
    device const float* u [[buffer(2)]],
    device const T* b [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device Out* y [[buffer(5)]],
    constant Params& p [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float xs[R * GEMV_COLS];
    uint first = (group * simdgroups + simdgroup) * GEMV_OUTPUTS;
    float acc[R][GEMV_OUTPUTS];
    for (uint r = 0u; r < R; r++) {
        for (uint o = 0u; o < GEMV_OUTPUTS; o++) {
            acc[r][o] = 0.0f;
        }
    }
    bool aligned = p.aligned != 0u;
    for (uint k0 = 0u; k0 < p.cols; k0 += GEMV_COLS) {
        uint width = min(GEMV_COLS, p.cols - k0);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < R * GEMV_COLS; i += threads) {
            uint r = i / GEMV_COLS;
            uint k = i % GEMV_COLS;
            float v = 0.0f;
            if (r < p.rows && k < width) {
                v = float(x[ulong(r) * p.x_row + ulong(k0 + k) * p.x_col]);
                if (DROP) {
                    v = dropped(v, ulong(r) * p.cols + k0 + k, p);
                }
            }
            xs[i] = v;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = lane * 4u; k < width; k += 128u) {
            for (uint o = 0u; o < GEMV_OUTPUTS; o++) {
                if (first + o < p.outputs) {
                    float4 ws = load4(w + ulong(first + o) * p.w_row + k0 + k, width - k, aligned, 0.0f);
                    for (uint r = 0u; r < R; r++) {
                        threadgroup const float* row = xs + r * GEMV_COLS + k;
                        acc[r][o] += dot(ws, float4(row[0], row[1], row[2], row[3]));
                    }
                }
            }
        }
    }
    for (uint r = 0u; r < R; r++) {
        for (uint o = 0u; o < GEMV_OUTPUTS; o++) {
            acc[r][o] *= p.scale;
        }
    }
    for (uint j0 = 0u; j0 < p.rank; j0 += GEMV_COLS) {
        uint width = min(GEMV_COLS, p.rank - j0);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < p.rows * width; i += threads) {
            uint r = i / width;
            uint j = i % width;
            xs[r * GEMV_COLS + j] = u[r * p.rank + j0 + j];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = lane; j < width; j += 32u) {
            for (uint o = 0u; o < GEMV_OUTPUTS; o++) {
                if (first + o < p.outputs) {
                    float bs = float(b[ulong(first + o) * p.b_row + ulong(j0 + j) * p.b_col]);
                    for (uint r = 0u; r < R; r++) {
                        acc[r][o] += r < p.rows ? xs[r * GEMV_COLS + j] * bs : 0.0f;
                    }
                }
            }
        }
    }
    for (uint r = 0u; r < R; r++) {
        for (uint o = 0u; o < GEMV_OUTPUTS; o++) {
            float sum = simd_sum(acc[r][o]);
            if (lane == 0u && r < p.rows && first + o < p.outputs) {
                sum += p.has_bias != 0u ? float(bias[first + o]) : 0.0f;
                y[ulong(r) * p.outputs + first + o] = Out(act_fwd(p.act, sum, p.act_param));
            }
        }
    }
}

// `wide` leaves floats, as of f32 it does anyway; `drop` too.
#define FOR_ROWS(R, rows) \
    KERNEL("linear_fwd_gemv_" rows "_f32", linear_gemv<float, float, R, false>) \
    KERNEL("linear_fwd_gemv_" rows "_f16", linear_gemv<half, half, R, false>) \
    KERNEL_BF16("linear_fwd_gemv_" rows "_bf16", linear_gemv<bfloat, bfloat, R, false>) \
    KERNEL("linear_fwd_gemv_wide_" rows "_f16", linear_gemv<half, float, R, false>) \
    KERNEL_BF16("linear_fwd_gemv_wide_" rows "_bf16", linear_gemv<bfloat, float, R, false>) \
    KERNEL("linear_fwd_gemv_drop_" rows "_f32", linear_gemv<float, float, R, true>) \
    KERNEL("linear_fwd_gemv_drop_" rows "_f16", linear_gemv<half, float, R, true>) \
    KERNEL_BF16("linear_fwd_gemv_drop_" rows "_bf16", linear_gemv<bfloat, float, R, true>)

FOR_ROWS(1, "1")
FOR_ROWS(4, "4")
FOR_ROWS(8, "8")

// ---- Many rows ----

// A threadgroup makes TILE by TILE outputs.
#define TILE 32u

// x, of which some elements may be dropped.
template <typename T, bool DROP>
struct Dropping {
    Strided<T> x;
    constant Params* p;

    bool by_row() const thread { return x.by_row(); }
    float at(uint r, uint c) const thread {
        float v = x.at(r, c);
        return DROP ? dropped(v, ulong(r) * p->cols + c, *p) : v;
    }
};

template <typename X, typename T, typename Out, bool DROP>
[[kernel]] void linear_tile(
    device const X* x [[buffer(0)]],
    device const T* w [[buffer(1)]],
    device const X* base [[buffer(2)]],
    device const T* bias [[buffer(3)]],
    device Out* y [[buffer(4)]],
    constant Params& p [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float xs[TILE * TILE_ROW(DEPTH)];
    threadgroup float ws[DEPTH * TILE_ROW(TILE)];
    uint row0 = group.y * TILE;
    uint out0 = group.x * TILE;
    Dropping<X, DROP> from_x;
    from_x.x = strided(x, p.x_row, p.x_col);
    from_x.p = &p;
    Strided<T> from_w = strided(w, p.w_col, p.w_row);
    Quarter<TILE, TILE> sums;
    sums.clear(simdgroup);
    for (uint k0 = 0u; k0 < p.cols; k0 += DEPTH) {
        load_tile<TILE, DEPTH>(xs, from_x, row0, k0, p.rows, p.cols, thread_index);
        load_tile<DEPTH, TILE>(ws, from_w, k0, out0, p.cols, p.outputs, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sums.add(xs, ws);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    sums.store(xs);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < TILE * TILE; i += TILE_THREADS) {
        uint r = i / TILE;
        uint c = i % TILE;
        if (row0 + r < p.rows && out0 + c < p.outputs) {
            ulong at = ulong(row0 + r) * p.outputs + out0 + c;
            float v = xs[r * TILE_ROW(TILE) + c] * p.scale;
            v += p.has_base != 0u ? float(base[at]) : 0.0f;
            v += p.has_bias != 0u ? float(bias[out0 + c]) : 0.0f;
            y[at] = Out(v);
        }
    }
}

// `wide` leaves floats, `narrow` takes them for x and the base, `sum` does both; of f32 all are the same.
KERNEL("linear_fwd_tile_f32", linear_tile<float, float, float, false>)
KERNEL("linear_fwd_tile_f16", linear_tile<half, half, half, false>)
KERNEL_BF16("linear_fwd_tile_bf16", linear_tile<bfloat, bfloat, bfloat, false>)
KERNEL("linear_fwd_tile_wide_f16", linear_tile<half, half, float, false>)
KERNEL_BF16("linear_fwd_tile_wide_bf16", linear_tile<bfloat, bfloat, float, false>)
KERNEL("linear_fwd_tile_narrow_f16", linear_tile<float, half, half, false>)
KERNEL_BF16("linear_fwd_tile_narrow_bf16", linear_tile<float, bfloat, bfloat, false>)
KERNEL("linear_fwd_tile_sum_f16", linear_tile<float, half, float, false>)
KERNEL_BF16("linear_fwd_tile_sum_bf16", linear_tile<float, bfloat, float, false>)
KERNEL("linear_fwd_tile_drop_f32", linear_tile<float, float, float, true>)
KERNEL("linear_fwd_tile_drop_f16", linear_tile<half, half, float, true>)
KERNEL_BF16("linear_fwd_tile_drop_bf16", linear_tile<bfloat, bfloat, float, true>)
