// scale * x W^T [+ u B^T] [+ base] [+ bias], accumulated in float.
//
// Few rows of x: a GEMV that reads W once, and may end in an activation. Many rows: tiles of simdgroup matrices, for the products of low rank that stand
// beside a GEMM.

struct GemvParams {
    ulong x_row;  // strides in elements
    ulong x_col;
    ulong w_row;
    ulong b_row;
    ulong b_col;
    uint rows;
    uint outputs;
    uint cols;
    uint rank;
    float scale;
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

struct TileParams {
    ulong x_row;
    ulong x_col;
    ulong w_row;
    ulong w_col;
    uint rows;
    uint outputs;
    uint cols;
    float scale;
    uint has_base;
    uint has_bias;
    uint seed_low;
    uint seed_high;
    uint threshold;
    float keep;
};

// x where its word of (seed, i) is at least the threshold, times `keep`; else 0, even for NaN.
template <typename Params>
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
    constant GemvParams& p [[buffer(6)]],
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

// A threadgroup of four simdgroups makes 32 by 32 outputs, each simdgroup a quarter. Rows in threadgroup memory are four
// floats longer, so that neighbouring ones lie in other banks.
#define TILE 32u
#define TILE_ROW 36u

// TILE rows of m from `row0` and TILE columns from `col0`, zeros beyond its end.
template <typename T, bool DROP>
inline void load_tile(
    threadgroup float* tile, device const T* m, ulong row, ulong col, uint row0, uint col0, uint rows, uint cols,
    uint thread_index, uint threads, constant TileParams& p
) {
    // Neighbouring threads read neighbouring elements, whichever way they lie.
    bool by_row = col <= row;
    for (uint i = thread_index; i < TILE * TILE; i += threads) {
        uint r = by_row ? i / TILE : i % TILE;
        uint c = by_row ? i % TILE : i / TILE;
        float v = 0.0f;
        if (row0 + r < rows && col0 + c < cols) {
            v = float(m[ulong(row0 + r) * row + ulong(col0 + c) * col]);
            if (DROP) {
                v = dropped(v, ulong(row0 + r) * cols + col0 + c, p);
            }
        }
        tile[r * TILE_ROW + c] = v;
    }
}

template <typename X, typename T, typename Out, bool DROP>
[[kernel]] void linear_tile(
    device const X* x [[buffer(0)]],
    device const T* w [[buffer(1)]],
    device const T* base [[buffer(2)]],
    device const T* bias [[buffer(3)]],
    device Out* y [[buffer(4)]],
    constant TileParams& p [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float xs[TILE * TILE_ROW];
    threadgroup float ws[TILE * TILE_ROW];
    const uint threads = 128u;
    uint row0 = group.y * TILE;
    uint out0 = group.x * TILE;
    // The quarter of this simdgroup: two by two matrices.
    uint top = (simdgroup / 2u) * 16u;
    uint left = (simdgroup % 2u) * 16u;
    simdgroup_matrix<float, 8, 8> acc[2][2];
    for (uint i = 0u; i < 2u; i++) {
        for (uint j = 0u; j < 2u; j++) {
            acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    for (uint k0 = 0u; k0 < p.cols; k0 += TILE) {
        load_tile<X, DROP>(xs, x, p.x_row, p.x_col, row0, k0, p.rows, p.cols, thread_index, threads, p);
        load_tile<T, false>(ws, w, p.w_row, p.w_col, out0, k0, p.outputs, p.cols, thread_index, threads, p);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0u; k < TILE; k += 8u) {
            simdgroup_matrix<float, 8, 8> a[2];
            simdgroup_matrix<float, 8, 8> b[2];
            for (uint i = 0u; i < 2u; i++) {
                simdgroup_load(a[i], xs + (top + 8u * i) * TILE_ROW + k, TILE_ROW);
                simdgroup_load(b[i], ws + (left + 8u * i) * TILE_ROW + k, TILE_ROW, ulong2(0), true);
            }
            for (uint i = 0u; i < 2u; i++) {
                for (uint j = 0u; j < 2u; j++) {
                    simdgroup_multiply_accumulate(acc[i][j], a[i], b[j], acc[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0u; i < 2u; i++) {
        for (uint j = 0u; j < 2u; j++) {
            simdgroup_store(acc[i][j], xs + (top + 8u * i) * TILE_ROW + left + 8u * j, TILE_ROW);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < TILE * TILE; i += threads) {
        uint r = i / TILE;
        uint c = i % TILE;
        if (row0 + r < p.rows && out0 + c < p.outputs) {
            ulong at = ulong(row0 + r) * p.outputs + out0 + c;
            float v = xs[r * TILE_ROW + c] * p.scale;
            v += p.has_base != 0u ? float(base[at]) : 0.0f;
            v += p.has_bias != 0u ? float(bias[out0 + c]) : 0.0f;
            y[at] = Out(v);
        }
    }
}

// `wide` leaves floats, `narrow` takes them for x; of f32 all are the same.
KERNEL("linear_fwd_tile_f32", linear_tile<float, float, float, false>)
KERNEL("linear_fwd_tile_f16", linear_tile<half, half, half, false>)
KERNEL_BF16("linear_fwd_tile_bf16", linear_tile<bfloat, bfloat, bfloat, false>)
KERNEL("linear_fwd_tile_wide_f16", linear_tile<half, half, float, false>)
KERNEL_BF16("linear_fwd_tile_wide_bf16", linear_tile<bfloat, bfloat, float, false>)
KERNEL("linear_fwd_tile_narrow_f16", linear_tile<float, half, half, false>)
KERNEL_BF16("linear_fwd_tile_narrow_bf16", linear_tile<float, bfloat, bfloat, false>)
KERNEL("linear_fwd_tile_drop_f32", linear_tile<float, float, float, true>)
KERNEL("linear_fwd_tile_drop_f16", linear_tile<half, half, float, true>)
KERNEL_BF16("linear_fwd_tile_drop_bf16", linear_tile<bfloat, bfloat, float, true>)
