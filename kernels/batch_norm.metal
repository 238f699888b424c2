// Batch norm. An item of the batch is `cols` = channels x `spatial` elements long. The elements of a channel lie apart, `spatial`
// neighbours in each item; to sum over them, they are counted 0 to `count` - 1 and cut into `parts` parts of `part` elements, a
// multiple of 4. Moments are the means of all channels, then the scales, then the shifts of
// x_hat = (x - mean) scale + shift. VECTORS says how many of weight and bias there are; where an argument is missing,
// something that is not read is bound to it.

struct BatchNormParams {
    uint rows;
    uint cols;
    uint channels;
    uint spatial;
    uint count;
    uint parts;
    uint part;
    float eps;
    uint aligned;
};

// ---- Sums over a channel ----

// Threadgroups take the parts of the first channel, then those of the second, and so forth.
struct Part {
    uint channel;
    uint begin;
    uint cols;
};

inline Part part_of(uint row, constant BatchNormParams& p) {
    Part part;
    part.channel = row / p.parts;
    part.begin = row % p.parts * p.part;
    part.cols = min(p.part, p.count - part.begin);
    return part;
}

// A part's elements, as a row.
template <typename T>
struct PartRow {
    device const T* channel;
    uint begin;
    uint cols;
    uint spatial;
    uint item;
    bool aligned;

    // Four from i on, zeros behind the end. They lie in one item if `aligned`, `spatial` being a multiple of 4 then.
    float4 at(uint i) const thread {
        uint left = cols - i;
        uint n = (begin + i) / spatial;
        uint s = begin + i - n * spatial;
        device const T* p = channel + ulong(n) * item;
        if (s + 3u < spatial) {
            return load4(p + s, ulong(left), aligned, 0.0f);
        }
        float4 v = float4(0.0f);
        for (uint k = 0u; k < 4u && k < left; k++) {
            v[k] = float(p[s]);
            s++;
            if (s == spatial) {
                s = 0u;
                p += item;
            }
        }
        return v;
    }
};

template <typename T>
inline PartRow<T> part_row(device const T* x, Part part, constant BatchNormParams& p) {
    PartRow<T> row;
    row.channel = x + ulong(part.channel) * p.spatial;
    row.begin = part.begin;
    row.cols = part.cols;
    row.spatial = p.spatial;
    row.item = p.cols;
    row.aligned = p.aligned != 0u;
    return row;
}

// The mean of each part, and its sums about that.
template <typename T>
[[kernel]] void batch_norm_stats_parts(
    device const T* x [[buffer(0)]],
    device float* sums [[buffer(1)]],
    constant BatchNormParams& p [[buffer(2)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, p.channels * p.parts)
    PartRow<T> row = part_row(x, part_of(t.row, p), p);
    MomentSums m = row_moment_sums<Layer, true>(row, t);
    if (t.first == 0u) {
        sums[ulong(t.row) * 3u] = m.mean;
        sums[ulong(t.row) * 3u + 1u] = m.rest;
        sums[ulong(t.row) * 3u + 2u] = m.squares;
    }
}

// A channel's statistics from those of its parts, by the formula of Chan, Golub and LeVeque. What the first part's mean differs
// from the channel's goes into the shift.
[[kernel]] void batch_norm_stats_total(
    device const float* sums [[buffer(0)]],
    device float* mean [[buffer(1)]],
    device float* var [[buffer(2)]],
    device float* moments [[buffer(3)]],
    constant BatchNormParams& p [[buffer(4)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(false, p.channels)
    device const float* parts = sums + ulong(t.row) * p.parts * 3u;
    float n = float(p.count);
    float first = parts[0];
    float distances = 0.0f;
    // Distances from infinities are NaN: the mean of such a channel is the sum of the parts' means that are not finite.
    float infinities = 0.0f;
    for (uint i = t.lane; i < p.parts; i += 32u) {
        float count = float(min(p.part, p.count - i * p.part));
        distances += (parts[i * 3u] - first) * count + parts[i * 3u + 1u];
        infinities += isfinite(parts[i * 3u]) ? 0.0f : parts[i * 3u];
    }
    float distance = row_sum<false>(distances, t) / n;
    float infinite = row_sum<false>(infinities, t);
    float squares = 0.0f;
    for (uint i = t.lane; i < p.parts; i += 32u) {
        float count = float(min(p.part, p.count - i * p.part));
        float rest = parts[i * 3u + 1u] / count;
        float off = parts[i * 3u] - first + rest - distance;
        squares += parts[i * 3u + 2u] - rest * rest * count + off * off * count;
    }
    float variance = row_sum<false>(squares, t) / n;
    variance = variance < 0.0f ? 0.0f : variance;
    if (t.lane == 0u) {
        float scale = rsqrt(variance + p.eps);
        mean[t.row] = infinite != 0.0f ? infinite : first + distance;
        var[t.row] = variance;
        moments[t.row] = first;
        moments[p.channels + t.row] = scale;
        moments[2u * p.channels + t.row] = -distance * scale;
    }
}

// ---- y ----

// x_hat of four elements of an item from i on.
inline float4 normalised4(float4 x, device const float* moments, uint i, constant BatchNormParams& p) {
    float4 mean = channel4(moments, i, p.spatial, p.cols);
    float4 scale = channel4(moments + p.channels, i, p.spatial, p.cols);
    float4 shift = channel4(moments + 2u * p.channels, i, p.spatial, p.cols);
    return fma(x - mean, scale, shift);
}

template <typename T, uint VECTORS>
inline void store_affine4(
    float4 v,
    device const T* weight,
    device const T* bias,
    device T* y,
    uint2 at,
    constant BatchNormParams& p
) {
    uint i = at.x * 4u;
    if (VECTORS > 0u) {
        v *= channel4(weight, i, p.spatial, p.cols);
    }
    if (VECTORS > 1u) {
        v += channel4(bias, i, p.spatial, p.cols);
    }
    store4(y + ulong(at.y) * p.cols + i, ulong(p.cols - i), p.aligned != 0u, v);
}

// A thread takes four neighbours of an item.
template <typename T>
inline float4 load_item4(device const T* x, uint2 at, constant BatchNormParams& p) {
    uint i = at.x * 4u;
    return load4(x + ulong(at.y) * p.cols + i, ulong(p.cols - i), p.aligned != 0u, 0.0f);
}

// By a mean and a variance that are given.
template <typename T, uint VECTORS>
[[kernel]] void batch_norm_fwd_given(
    device const T* x [[buffer(0)]],
    device const float* mean [[buffer(1)]],
    device const float* var [[buffer(2)]],
    device const T* weight [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant BatchNormParams& p [[buffer(6)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint i = at.x * 4u;
    if (i >= p.cols) {
        return;
    }
    float4 std2 = channel4(var, i, p.spatial, p.cols) + p.eps;
    float4 v = (load_item4(x, at, p) - channel4(mean, i, p.spatial, p.cols)) * rsqrt(std2);
    store_affine4<T, VECTORS>(v, weight, bias, y, at, p);
}

// By the moments of the batch.
template <typename T, uint VECTORS>
[[kernel]] void batch_norm_fwd_measured(
    device const T* x [[buffer(0)]],
    device const float* moments [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const T* bias [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant BatchNormParams& p [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint i = at.x * 4u;
    if (i >= p.cols) {
        return;
    }
    float4 v = normalised4(load_item4(x, at, p), moments, i, p);
    store_affine4<T, VECTORS>(v, weight, bias, y, at, p);
}

// ---- Gradients ----

// Of each part, the sums of g x_hat and of g.
template <typename T>
[[kernel]] void batch_norm_bwd_parts(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const float* moments [[buffer(2)]],
    device float* sums [[buffer(3)]],
    constant BatchNormParams& p [[buffer(4)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, p.channels * p.parts)
    Part part = part_of(t.row, p);
    PartRow<T> xs = part_row(x, part, p);
    PartRow<T> gs = part_row(g, part, p);
    float mean = moments[part.channel];
    float4 sum = float4(0.0f);
    float4 dot4 = float4(0.0f);
    for (uint i = t.first; i < part.cols; i += t.step) {
        float4 v = gs.at(i);
        sum += v;
        dot4 = fma(v, keep4(xs.at(i) - mean, part.cols - i), dot4);
    }
    float dot = row_sum<true>(sum4(dot4), t);
    float total = row_sum<true>(sum4(sum), t);
    if (t.first == 0u) {
        float scale = moments[p.channels + part.channel];
        float shift = moments[2u * p.channels + part.channel];
        sums[ulong(t.row) * 2u] = fma(dot, scale, total * shift);
        sums[ulong(t.row) * 2u + 1u] = total;
    }
}

// Of each channel: the sums of g x_hat of all channels, then the sums of g.
[[kernel]] void batch_norm_bwd_total(
    device const float* parts [[buffer(0)]],
    device float* sums [[buffer(1)]],
    constant BatchNormParams& p [[buffer(2)]],
    uint channel [[thread_position_in_grid]]
) {
    if (channel >= p.channels) {
        return;
    }
    device const float* from = parts + ulong(channel) * p.parts * 2u;
    float dot = 0.0f;
    float total = 0.0f;
    for (uint i = 0u; i < p.parts; i++) {
        dot += from[i * 2u];
        total += from[i * 2u + 1u];
    }
    sums[channel] = dot;
    sums[p.channels + channel] = total;
}

// dx = scale (g weight - offset - x_hat slope), the means of h = g weight and of h x_hat over a channel being offset and slope.
// With STATISTICS, the gradients of the means and then of the variances add (dmean + 2 (x - mean) dvar) / count.
template <typename T, bool STATISTICS>
[[kernel]] void batch_norm_bwd_x(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const float* moments [[buffer(2)]],
    device const T* weight [[buffer(3)]],
    device const float* sums [[buffer(4)]],
    device const float* statistics [[buffer(5)]],
    device T* dx [[buffer(6)]],
    constant BatchNormParams& p [[buffer(7)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint i = at.x * 4u;
    if (i >= p.cols) {
        return;
    }
    float n = float(p.count);
    float4 w = channel4(weight, i, p.spatial, p.cols);
    float4 scale = channel4(moments + p.channels, i, p.spatial, p.cols);
    float4 slope = w * channel4(sums, i, p.spatial, p.cols) / n;
    float4 offset = w * channel4(sums + p.channels, i, p.spatial, p.cols) / n;
    if (STATISTICS) {
        offset -= channel4(statistics, i, p.spatial, p.cols) / (n * scale);
        slope -= 2.0f * channel4(statistics + p.channels, i, p.spatial, p.cols) / (n * scale) / scale;
    }
    float4 x_hat = normalised4(load_item4(x, at, p), moments, i, p);
    float4 v = scale * (w * load_item4(g, at, p) - offset - x_hat * slope);
    store4(dx + ulong(at.y) * p.cols + i, ulong(p.cols - i), p.aligned != 0u, v);
}

FOR_DTYPES(batch_norm_stats_parts, "batch_norm_stats_parts")
FOR_DTYPES_WITH(batch_norm_fwd_given, "batch_norm_fwd_given_0", 0)
FOR_DTYPES_WITH(batch_norm_fwd_given, "batch_norm_fwd_given_1", 1)
FOR_DTYPES_WITH(batch_norm_fwd_given, "batch_norm_fwd_given_2", 2)
FOR_DTYPES_WITH(batch_norm_fwd_measured, "batch_norm_fwd_measured_0", 0)
FOR_DTYPES_WITH(batch_norm_fwd_measured, "batch_norm_fwd_measured_1", 1)
FOR_DTYPES_WITH(batch_norm_fwd_measured, "batch_norm_fwd_measured_2", 2)
FOR_DTYPES(batch_norm_bwd_parts, "batch_norm_bwd_parts")
FOR_DTYPES_WITH(batch_norm_bwd_x, "batch_norm_bwd_x_0", false)
FOR_DTYPES_WITH(batch_norm_bwd_x, "batch_norm_bwd_x_1", true)
