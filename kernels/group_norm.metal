// Group norm: rows are the groups of each batch item, `cols` = channels per group x `spatial` elements long. y = x_hat
// weight[c] + bias[c]. VECTORS says how many of weight and bias there are; where one is missing, its argument is bound to
// something that is not read.

struct GroupNormParams {
    uint rows;
    uint cols;
    uint channels;
    uint spatial;
    uint groups;
    float eps;
    uint aligned;
};

// One row; y may be x.
template <typename T, uint VECTORS>
inline void norm_group(
    device const T* x,
    device const T* weight,
    device const T* bias,
    device T* y,
    constant GroupNormParams& p,
    RowThread t
) {
    bool aligned = p.aligned != 0u;
    Row<T> row = row_at(x, p.cols, aligned, t);
    Moments m = row_moments<Layer, true>(row, p.eps, t);
    for (uint i = t.first; i < p.cols; i += t.step) {
        float4 v = m.apply(row.at(i));
        if (VECTORS > 0u) {
            v *= channel4(weight, i, p.spatial, p.cols);
        }
        if (VECTORS > 1u) {
            v += channel4(bias, i, p.spatial, p.cols);
        }
        store4(y + i, ulong(p.cols - i), aligned, v);
    }
}

// The first channel of a row.
inline uint first_channel(uint row, constant GroupNormParams& p) {
    return row % p.groups * (p.channels / p.groups);
}

template <typename T, uint VECTORS>
[[kernel]] void group_norm_fwd(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant GroupNormParams& p [[buffer(4)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, p.rows)
    uint row = t.row;
    ulong at = ulong(row) * p.cols;
    uint c = first_channel(row, p);
    norm_group<T, VECTORS>(x + at, weight + c, bias + c, y + at, p, t);
}

template <typename T, uint VECTORS>
[[kernel]] void group_norm_inplace(
    device T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    constant GroupNormParams& p [[buffer(3)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, p.rows)
    uint row = t.row;
    device T* start = x + ulong(row) * p.cols;
    uint c = first_channel(row, p);
    norm_group<T, VECTORS>((device const T*)start, weight + c, bias + c, start, p, t);
}

// Mean, scale and shift of each row.
template <typename T>
[[kernel]] void group_norm_bwd_stats(
    device const T* x [[buffer(0)]],
    device float* stats [[buffer(1)]],
    constant GroupNormParams& p [[buffer(2)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, p.rows)
    uint row = t.row;
    Row<T> xs = row_at(x + ulong(row) * p.cols, p.cols, p.aligned != 0u, t);
    Moments m = row_moments<Layer, true>(xs, p.eps, t);
    if (t.first == 0u) {
        save_moments(stats, row, m);
    }
}

// For each channel of each batch item: the sums of g x_hat, behind those of all channels the sums of g. `p.aligned` is
// about the start of a channel here.
template <typename T>
[[kernel]] void group_norm_bwd_sums(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const float* stats [[buffer(2)]],
    device float* sums [[buffer(3)]],
    constant GroupNormParams& p [[buffer(4)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, p.rows / p.groups * p.channels)
    uint channel = t.row;
    ulong at = ulong(channel) * p.spatial;
    Moments m = saved_moments(stats, channel / (p.channels / p.groups));
    float4 sum = float4(0.0f);
    float4 dot4 = float4(0.0f);
    for (uint i = t.first; i < p.spatial; i += t.step) {
        ulong left = ulong(p.spatial - i);
        float4 v = load4(g + at + i, left, p.aligned != 0u, 0.0f);
        sum += v;
        dot4 = fma(v, m.apply(load4(x + at + i, left, p.aligned != 0u, 0.0f)), dot4);
    }
    float dot = row_sum<true>(sum4(dot4), t);
    float total = row_sum<true>(sum4(sum), t);
    if (t.first == 0u) {
        ulong item = ulong(channel / p.channels) * 2u * p.channels;
        sums[item + channel % p.channels] = dot;
        sums[item + p.channels + channel % p.channels] = total;
    }
}

// dx = scale (h - mean(h) - x_hat mean(h x_hat)), h = g weight.
template <typename T, uint WEIGHT>
[[kernel]] void group_norm_bwd_x(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const float* stats [[buffer(3)]],
    device const float* sums [[buffer(4)]],
    device T* dx [[buffer(5)]],
    constant GroupNormParams& p [[buffer(6)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, p.rows)
    uint row = t.row;
    uint first = first_channel(row, p);
    device const float* dots = sums + ulong(row / p.groups) * 2u * p.channels + first;
    float dot = 0.0f;
    float sum = 0.0f;
    for (uint c = t.first / 4u; c < p.channels / p.groups; c += t.step / 4u) {
        float w = WEIGHT > 0u ? float(weight[first + c]) : 1.0f;
        dot = fma(w, dots[c], dot);
        sum = fma(w, dots[p.channels + c], sum);
    }
    float slope = row_sum<true>(dot, t) / float(p.cols);
    float offset = row_sum<true>(sum, t) / float(p.cols);
    Moments m = saved_moments(stats, row);
    ulong at = ulong(row) * p.cols;
    bool aligned = p.aligned != 0u;
    for (uint i = t.first; i < p.cols; i += t.step) {
        ulong left = ulong(p.cols - i);
        float4 h = load4(g + at + i, left, aligned, 0.0f);
        if (WEIGHT > 0u) {
            h *= channel4(weight + first, i, p.spatial, p.cols);
        }
        float4 v = m.scale * (h - offset - m.apply(load4(x + at + i, left, aligned, 0.0f)) * slope);
        store4(dx + at + i, left, aligned, v);
    }
}

// dweight, then dbias: the sums over the batch. `rows` batch items, `cols` of the 2 x channels sums are wanted.
template <typename T>
[[kernel]] void group_norm_bwd_weight(
    device const float* sums [[buffer(0)]],
    device T* out [[buffer(1)]],
    constant GroupNormParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    if (i >= p.cols) {
        return;
    }
    float total = 0.0f;
    for (uint item = 0u; item < p.rows; item++) {
        total += sums[ulong(item) * 2u * p.channels + i];
    }
    out[i] = T(total);
}

FOR_DTYPES_WITH(group_norm_fwd, "group_norm_fwd_0", 0)
FOR_DTYPES_WITH(group_norm_fwd, "group_norm_fwd_1", 1)
FOR_DTYPES_WITH(group_norm_fwd, "group_norm_fwd_2", 2)
FOR_DTYPES_WITH(group_norm_inplace, "group_norm_inplace_0", 0)
FOR_DTYPES_WITH(group_norm_inplace, "group_norm_inplace_1", 1)
FOR_DTYPES_WITH(group_norm_inplace, "group_norm_inplace_2", 2)
FOR_DTYPES(group_norm_bwd_stats, "group_norm_bwd_stats")
FOR_DTYPES(group_norm_bwd_sums, "group_norm_bwd_sums")
FOR_DTYPES_WITH(group_norm_bwd_x, "group_norm_bwd_x_0", 0)
FOR_DTYPES_WITH(group_norm_bwd_x, "group_norm_bwd_x_1", 1)
FOR_DTYPES(group_norm_bwd_weight, "group_norm_bwd_weight")
