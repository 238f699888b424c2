// Softmax of scores v = x, scale x, or scale x + mask: exp(v - max) / sum, or v - max - log(sum).
//
// Maxima start from the lowest finite number and passed-over columns are counted, not set to -inf, so that nothing but
// the data itself brings infinities in.

enum Kind { Plain, Log, Scaled, Biased };

constant float LOWEST = -3.402823466e+38f;

struct SoftmaxParams {
    ulong cols;
    RowStrides x;
    RowStrides mask;
    uint rows;
    uint queries;  // a row sees the first (row % queries) + 1 + cols - queries columns; 0: all
    float scale;
    uint aligned;
};

inline ulong visible(uint row, constant SoftmaxParams& p) {
    if (p.queries == 0u) {
        return p.cols;
    }
    ulong end = ulong(row % p.queries) + 1u + p.cols;
    return end > p.queries ? min(end - p.queries, p.cols) : 0u;
}

// Four scores, of which `left` > 0 exist.
template <typename T, Kind kind>
inline float4 score4(device const T* x, device const T* mask, ulong left, constant SoftmaxParams& p) {
    bool aligned = p.aligned != 0u;
    float4 v = load4(x, left, aligned, 0.0f);
    if (kind == Scaled) {
        v = v * p.scale;
    }
    if (kind == Biased) {
        v = fma(v, float4(p.scale), load4(mask, left, aligned, 0.0f));
    }
    return float4(v.x, left > 1u ? v.y : LOWEST, left > 2u ? v.z : LOWEST, left > 3u ? v.w : LOWEST);
}

// NaNs are passed over; they come back with the exponentials.
inline float larger(float m, float x) {
    return x > m ? x : m;
}

inline float larger4(float m, float4 v) {
    return larger(larger(m, v.x), larger(larger(larger(LOWEST, v.y), v.z), v.w));
}

inline float4 exp4(float4 v, float m, ulong left) {
    return float4(
        exp(v.x - m),
        left > 1u ? exp(v.y - m) : 0.0f,
        left > 2u ? exp(v.z - m) : 0.0f,
        left > 3u ? exp(v.w - m) : 0.0f
    );
}

// What to multiply the exponentials by, or to subtract from the scores. A masked row without scores becomes zeros.
template <Kind kind>
inline float last_step(float sum) {
    if (kind == Log) {
        return log(sum);
    }
    bool masked = kind == Scaled || kind == Biased;
    return masked && sum == 0.0f ? 0.0f : 1.0f / sum;
}

// ---- Rows ----
//
// Find the maximum, compute the exponentials and their sum, normalise. n scores of a row exist, the columns behind them
// become 0.

// A row of up to 128 * K columns for each simdgroup, held in registers.
template <uint K>
struct SimdRow {
    static constant constexpr bool WIDE = false;

    template <typename T, Kind kind>
    static void
    run(device const T* x, device const T* mask, device T* y, ulong n, constant SoftmaxParams& p, RowThread t) {
        float4 v[K];
        float m = LOWEST;
        for (uint k = 0u; k < K; k++) {
            ulong i = t.first + k * t.step;
            v[k] = float4(0.0f);
            if (i < n) {
                v[k] = score4<T, kind>(x + i, mask + i, n - i, p);
                m = larger4(m, v[k]);
            }
        }
        m = row_max<false>(m, t);
        float sum = 0.0f;
        for (uint k = 0u; k < K; k++) {
            ulong i = t.first + k * t.step;
            if (i < n) {
                float4 e = exp4(v[k], m, n - i);
                sum += sum4(e);
                v[k] = kind == Log ? v[k] - m : e;
            }
        }
        float last = last_step<kind>(row_sum<false>(sum, t));
        for (uint k = 0u; k < K; k++) {
            ulong i = t.first + k * t.step;
            if (i < p.cols) {
                store4(y + i, p.cols - i, p.aligned != 0u, kind == Log ? v[k] - last : v[k] * last);
            }
        }
    }
};

// A row of any length for each threadgroup: the maximum and the sum in one pass, the sum rescaled whenever the maximum
// grows, then a second pass.
struct GroupRow {
    static constant constexpr bool WIDE = true;

    template <typename T, Kind kind>
    static void
    run(device const T* x, device const T* mask, device T* y, ulong n, constant SoftmaxParams& p, RowThread t) {
        float m = LOWEST;
        float sum = 0.0f;
        for (ulong i = t.first; i < n; i += t.step) {
            float4 v = score4<T, kind>(x + i, mask + i, n - i, p);
            float top = larger4(m, v);
            sum = fma(sum, exp(m - top), sum4(exp4(v, top, n - i)));
            m = top;
        }
        float top = row_max<true>(m, t);
        sum = row_sum<true>(sum * exp(m - top), t);
        float last = last_step<kind>(sum);
        for (ulong i = t.first; i < p.cols; i += t.step) {
            float4 out = float4(0.0f);
            if (i < n) {
                float4 v = score4<T, kind>(x + i, mask + i, n - i, p);
                out = kind == Log ? v - top - last : exp4(v, top, n - i) * last;
            }
            store4(y + i, p.cols - i, p.aligned != 0u, out);
        }
    }
};

// One row, x and y being the tensors. They may be the same.
template <typename T, Kind kind, typename Row>
inline void softmax_row(device const T* x, device const T* mask, device T* y, constant SoftmaxParams& p, RowThread t) {
    device const T* bias = kind == Biased ? mask + row_offset(t.row, p.mask) : mask;
    device T* out = y + ulong(t.row) * p.cols;
    Row::template run<T, kind>(x + row_offset(t.row, p.x), bias, out, visible(t.row, p), p, t);
}

template <typename T, Kind kind, typename Row>
[[kernel]] void softmax_fwd(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant SoftmaxParams& p [[buffer(2)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(Row::WIDE, p.rows)
    softmax_row<T, kind, Row>(x, x, y, p, t);
}

template <typename T, Kind kind, typename Row>
[[kernel]] void softmax_inplace(device T* x [[buffer(0)]], constant SoftmaxParams& p [[buffer(1)]], ROW_ARGUMENTS) {
    BEGIN_ROW(Row::WIDE, p.rows)
    softmax_row<T, kind, Row>((device const T*)x, (device const T*)x, x, p, t);
}

template <typename T, typename Row>
[[kernel]] void softmax_fwd_biased(
    device const T* x [[buffer(0)]],
    device const T* mask [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant SoftmaxParams& p [[buffer(3)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(Row::WIDE, p.rows)
    softmax_row<T, Biased, Row>(x, mask, y, p, t);
}

template <typename T, typename Row>
[[kernel]] void softmax_inplace_biased(
    device T* x [[buffer(0)]],
    device const T* mask [[buffer(1)]],
    constant SoftmaxParams& p [[buffer(2)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(Row::WIDE, p.rows)
    softmax_row<T, Biased, Row>((device const T*)x, mask, x, p, t);
}

// ---- Gradients of rows: dx = scale y (g - sum(g y)), or g - exp(y) sum(g) for the logarithm ----

struct SoftmaxBwdParams {
    ulong cols;
    RowStrides y;
    RowStrides g;
    uint rows;
    float scale;
    uint aligned;
    uint reserved;
};

template <bool log>
inline float4 gradient4(float4 y, float4 g, float sum, float scale) {
    return log ? g - exp(y) * sum : y * (g - sum) * scale;
}

template <typename T, bool log, bool WIDE>
[[kernel]] void softmax_bwd(
    device const T* ys [[buffer(0)]],
    device const T* gs [[buffer(1)]],
    device T* dxs [[buffer(2)]],
    constant SoftmaxBwdParams& p [[buffer(3)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows)
    device const T* y = ys + row_offset(t.row, p.y);
    device const T* g = gs + row_offset(t.row, p.g);
    device T* dx = dxs + ulong(t.row) * p.cols;
    bool aligned = p.aligned != 0u;
    float4 sums = float4(0.0f);
    for (ulong i = t.first; i < p.cols; i += t.step) {
        float4 d = load4(g + i, p.cols - i, aligned, 0.0f);
        sums = log ? sums + d : fma(d, load4(y + i, p.cols - i, aligned, 0.0f), sums);
    }
    float sum = row_sum<WIDE>(sum4(sums), t);
    for (ulong i = t.first; i < p.cols; i += t.step) {
        ulong left = p.cols - i;
        float4 v = load4(y + i, left, aligned, 0.0f);
        store4(dx + i, left, aligned, gradient4<log>(v, load4(g + i, left, aligned, 0.0f), sum, p.scale));
    }
}

// ---- Columns: [outer, n, inner] over n, a thread for each column ----

struct SoftmaxColumnParams {
    ulong n;
    uint inner;
    float scale;
};

template <typename T, bool log>
[[kernel]] void softmax_fwd_columns(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant SoftmaxColumnParams& p [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.inner) {
        return;
    }
    ulong first = ulong(at.y) * p.n * p.inner + at.x;
    ulong end = first + p.n * p.inner;
    float m = LOWEST;
    float sum = 0.0f;
    for (ulong i = first; i < end; i += p.inner) {
        float v = float(x[i]);
        float top = larger(m, v);
        sum = fma(sum, exp(m - top), exp(v - top));
        m = top;
    }
    float last = log ? metal::log(sum) : 1.0f / sum;
    for (ulong i = first; i < end; i += p.inner) {
        float v = float(x[i]) - m;
        y[i] = T(log ? v - last : exp(v) * last);
    }
}

template <typename T, bool log>
[[kernel]] void softmax_bwd_columns(
    device const T* y [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device T* dx [[buffer(2)]],
    constant SoftmaxColumnParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.inner) {
        return;
    }
    ulong first = ulong(at.y) * p.n * p.inner + at.x;
    ulong end = first + p.n * p.inner;
    float sum = 0.0f;
    for (ulong i = first; i < end; i += p.inner) {
        sum = log ? sum + float(g[i]) : fma(float(g[i]), float(y[i]), sum);
    }
    for (ulong i = first; i < end; i += p.inner) {
        float v = float(y[i]);
        float d = float(g[i]);
        dx[i] = T(log ? d - exp(v) * sum : v * (d - sum) * p.scale);
    }
}

#define FOR_ROWS(fn, name, ...) \
    FOR_DTYPES_WITH(fn, name "_simd2", __VA_ARGS__ SimdRow<2>) \
    FOR_DTYPES_WITH(fn, name "_simd8", __VA_ARGS__ SimdRow<8>) \
    FOR_DTYPES_WITH(fn, name "_group", __VA_ARGS__ GroupRow)

FOR_ROWS(softmax_fwd, "softmax_fwd_plain", Plain,)
FOR_ROWS(softmax_fwd, "softmax_fwd_log", Log,)
FOR_ROWS(softmax_fwd, "softmax_fwd_scaled", Scaled,)
FOR_ROWS(softmax_inplace, "softmax_inplace_plain", Plain,)
FOR_ROWS(softmax_inplace, "softmax_inplace_log", Log,)
FOR_ROWS(softmax_inplace, "softmax_inplace_scaled", Scaled,)
FOR_ROWS(softmax_fwd_biased, "softmax_fwd_biased",)
FOR_ROWS(softmax_inplace_biased, "softmax_inplace_biased",)
FOR_DTYPES_WITH(softmax_fwd_columns, "softmax_fwd_columns", false)
FOR_DTYPES_WITH(softmax_fwd_columns, "softmax_fwd_columns_log", true)
FOR_DTYPES_WITH(softmax_bwd, "softmax_bwd_simd", false, false)
FOR_DTYPES_WITH(softmax_bwd, "softmax_bwd_simd_log", true, false)
FOR_DTYPES_WITH(softmax_bwd, "softmax_bwd_group", false, true)
FOR_DTYPES_WITH(softmax_bwd, "softmax_bwd_group_log", true, true)
FOR_DTYPES_WITH(softmax_bwd_columns, "softmax_bwd_columns", false)
FOR_DTYPES_WITH(softmax_bwd_columns, "softmax_bwd_columns_log", true)
