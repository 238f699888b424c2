// Norms over the last dim, see Moments in rows.metal: y = x_hat weight + bias. VECTORS says how many of weight and bias
// there are; where one is missing, its argument is bound to something that is not read.

struct RowNormParams {
    RowStrides x;
    RowStrides other;  // the residual, or the gradient
    uint rows;
    uint cols;
    float eps;
    uint aligned;
};

// VECTORS of weight and bias applied to four elements from i on.
template <typename T, uint VECTORS>
inline float4 affine4(
    float4 v,
    device const T* weight,
    device const T* bias,
    uint i,
    constant RowNormParams& p
) {
    ulong left = ulong(p.cols - i);
    if (VECTORS > 0u) {
        v *= load4(weight + i, left, p.aligned != 0u, 0.0f);
    }
    if (VECTORS > 1u) {
        v += load4(bias + i, left, p.aligned != 0u, 0.0f);
    }
    return v;
}

// One row; y may be x.
template <typename T, typename Kind, uint VECTORS, bool WIDE>
inline void norm_row(
    device const T* x,
    device const T* weight,
    device const T* bias,
    device T* y,
    constant RowNormParams& p,
    RowThread t
) {
    bool aligned = p.aligned != 0u;
    Row<T> row = row_at(x, p.cols, aligned, t);
    Moments m = row_moments<Kind, WIDE>(row, p.eps, t);
    for (uint i = t.first; i < p.cols; i += t.step) {
        float4 v = affine4<T, VECTORS>(m.apply(row.at(i)), weight, bias, i, p);
        store4(y + i, ulong(p.cols - i), aligned, v);
    }
}

template <typename T, typename Kind, uint VECTORS, bool WIDE>
[[kernel]] void row_norm_fwd(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant RowNormParams& p [[buffer(4)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows)
    device T* out = y + ulong(t.row) * p.cols;
    norm_row<T, Kind, VECTORS, WIDE>(x + row_offset(t.row, p.x), weight, bias, out, p, t);
}

template <typename T, typename Kind, uint VECTORS, bool WIDE>
[[kernel]] void row_norm_inplace(
    device T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    constant RowNormParams& p [[buffer(3)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows)
    device T* row = x + ulong(t.row) * p.cols;
    norm_row<T, Kind, VECTORS, WIDE>((device const T*)row, weight, bias, row, p, t);
}

// sum = x + residual as rounded to T, y its norm.
template <typename T, typename Kind, uint VECTORS, bool WIDE>
[[kernel]] void row_norm_add(
    device const T* xs [[buffer(0)]],
    device const T* residuals [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const T* bias [[buffer(3)]],
    device T* sums [[buffer(4)]],
    device T* ys [[buffer(5)]],
    constant RowNormParams& p [[buffer(6)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows)
    device const T* x = xs + row_offset(t.row, p.x);
    device const T* residual = residuals + row_offset(t.row, p.other);
    device T* sum = sums + ulong(t.row) * p.cols;
    bool aligned = p.aligned != 0u;
    for (uint i = t.first; i < p.cols; i += t.step) {
        ulong left = ulong(p.cols - i);
        float4 v = load4(x + i, left, aligned, 0.0f) + load4(residual + i, left, aligned, 0.0f);
        store4(sum + i, left, aligned, v);
    }
    // Each thread reads back only what it has written itself.
    device T* y = ys + ulong(t.row) * p.cols;
    norm_row<T, Kind, VECTORS, WIDE>((device const T*)sum, weight, bias, y, p, t);
}

// dx = scale (h - mean(h) - x_hat grad_factor sum(h x_hat)), h = g weight. `stats` keeps the rows' moments.
template <typename T, typename Kind, uint WEIGHT, bool WIDE>
[[kernel]] void row_norm_bwd_x(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device T* dx [[buffer(3)]],
    device float* stats [[buffer(4)]],
    constant RowNormParams& p [[buffer(5)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows)
    bool aligned = p.aligned != 0u;
    Row<T> xs = row_at(x + row_offset(t.row, p.x), p.cols, aligned, t);
    Row<T> gs = row_at(g + row_offset(t.row, p.other), p.cols, aligned, t);
    Moments m = row_moments<Kind, WIDE>(xs, p.eps, t);
    if (t.first == 0u) {
        save_moments(stats, t.row, m);
    }
    float4 sum = float4(0.0f);
    float4 dot4 = float4(0.0f);
    for (uint i = t.first; i < p.cols; i += t.step) {
        float4 h = affine4<T, WEIGHT>(gs.at(i), weight, weight, i, p);
        sum += h;
        dot4 = fma(h, m.apply(xs.at(i)), dot4);
    }
    float slope = row_sum<WIDE>(sum4(dot4), t) * m.grad_factor;
    float offset = 0.0f;
    if (Kind::centred()) {
        offset = row_sum<WIDE>(sum4(sum), t) / float(p.cols);
    }
    device T* out = dx + ulong(t.row) * p.cols;
    for (uint i = t.first; i < p.cols; i += t.step) {
        float4 h = affine4<T, WEIGHT>(gs.at(i), weight, weight, i, p);
        float4 v = m.scale * (h - offset - m.apply(xs.at(i)) * slope);
        store4(out + i, ulong(p.cols - i), aligned, v);
    }
}

struct RowNormPartsParams {
    RowStrides x;
    RowStrides g;
    uint rows;
    uint cols;
    uint rows_per_part;
    uint parts;
};

// Sums over a part of the rows: g x_hat and, if VECTORS is 2, g. A column for each of 32 lanes, rows along y.
template <typename T, uint VECTORS>
[[kernel]] void row_norm_bwd_weight(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const float* stats [[buffer(2)]],
    device float* sums [[buffer(3)]],
    constant RowNormPartsParams& p [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 thread_index [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]
) {
    threadgroup float partials[2 * 8 * 32];
    uint col = group.x * 32u + thread_index.x;
    uint end = min(p.rows, (group.y + 1u) * p.rows_per_part);
    float dweight = 0.0f;
    float dbias = 0.0f;
    if (col < p.cols) {
        for (uint row = group.y * p.rows_per_part + thread_index.y; row < end; row += threads.y) {
            Moments m = saved_moments(stats, row);
            float v = float(g[row_offset(row, p.g) + col]);
            float d = float(x[row_offset(row, p.x) + col]) - m.mean;
            dweight = fma(v, fma(d, m.scale, m.shift), dweight);
            dbias += v;
        }
    }
    partials[thread_index.y * 32u + thread_index.x] = dweight;
    partials[256u + thread_index.y * 32u + thread_index.x] = dbias;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index.y < VECTORS && col < p.cols) {
        float total = 0.0f;
        for (uint y = 0u; y < threads.y; y++) {
            total += partials[thread_index.y * 256u + y * 32u + thread_index.x];
        }
        sums[(ulong(group.y) * VECTORS + thread_index.y) * p.cols + col] = total;
    }
}

// The sum of the parts, each of `cols` columns.
template <typename T>
[[kernel]] void row_norm_bwd_total(
    device const float* sums [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant RowNormPartsParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    if (i >= p.cols) {
        return;
    }
    float total = 0.0f;
    for (uint part = 0u; part < p.parts; part++) {
        total += sums[ulong(part) * p.cols + i];
    }
    out[i] = T(total);
}

// fn<T, Kind, VECTORS, WIDE> as name_<kind>_<vectors>_<simd|group>_<dtype>.
#define FOR_WIDTHS(fn, name, ...) \
    FOR_DTYPES_WITH(fn, name "_simd", __VA_ARGS__, false) \
    FOR_DTYPES_WITH(fn, name "_group", __VA_ARGS__, true)

#define FOR_RESIDUAL_NORMS(fn, name) \
    FOR_WIDTHS(fn, name "_rms_0", Rms, 0) \
    FOR_WIDTHS(fn, name "_rms_1", Rms, 1) \
    FOR_WIDTHS(fn, name "_layer_0", Layer, 0) \
    FOR_WIDTHS(fn, name "_layer_1", Layer, 1) \
    FOR_WIDTHS(fn, name "_layer_2", Layer, 2)

#define FOR_NORMS(fn, name) \
    FOR_RESIDUAL_NORMS(fn, name) \
    FOR_WIDTHS(fn, name "_l2_0", L2, 0)

FOR_NORMS(row_norm_fwd, "row_norm_fwd")
FOR_NORMS(row_norm_inplace, "row_norm_inplace")
FOR_RESIDUAL_NORMS(row_norm_add, "row_norm_add")

FOR_WIDTHS(row_norm_bwd_x, "row_norm_bwd_x_rms_0", Rms, 0)
FOR_WIDTHS(row_norm_bwd_x, "row_norm_bwd_x_rms_1", Rms, 1)
FOR_WIDTHS(row_norm_bwd_x, "row_norm_bwd_x_layer_0", Layer, 0)
FOR_WIDTHS(row_norm_bwd_x, "row_norm_bwd_x_layer_1", Layer, 1)
FOR_WIDTHS(row_norm_bwd_x, "row_norm_bwd_x_l2_0", L2, 0)

FOR_DTYPES_WITH(row_norm_bwd_weight, "row_norm_bwd_weight_1", 1)
FOR_DTYPES_WITH(row_norm_bwd_weight, "row_norm_bwd_weight_2", 2)
FOR_DTYPES(row_norm_bwd_total, "row_norm_bwd_total")
