// Losses over classes: cross-entropy, the negative log-likelihood, and their gradients.
//
// A row keeps five numbers for its gradient, the FACTORS of the op's Rust module: its maximum, the factor of
// exp(x - max), the number subtracted at the target, the number subtracted at every class times its weight, and the target.

#define FACTORS 5u

// In the place of the target: the row does not count.
#define IGNORED 0xFFFFFFFFu

constant float LOWEST = -3.402823466e+38f;

struct LossParams {
    RowStrides x;
    ulong cols;
    ulong ignore;  // the target of rows that don't count
    uint rows;
    uint has_ignore;
    uint index_bytes;
    uint has_weight;
    float hit;     // 1 - label smoothing
    float spread;  // label smoothing / classes
    float z_loss;
    float sign;
    uint mean;
    uint aligned;
};

// The loss of a target outside of the classes.
inline float not_a_number() {
    return as_type<float>(0x7FC00000u);
}

inline bool is_ignored(ulong target, constant LossParams& p) {
    return p.has_ignore != 0u && target == p.ignore;
}

// 1 without class weights, or where there is no such class.
template <typename T>
inline float weight_of(device const T* weight, ulong target, constant LossParams& p) {
    return p.has_weight != 0u && target < p.cols ? float(weight[target]) : 1.0f;
}

// What each loss counts for in the result. The total is the divisor of a mean, and 1 for other reductions.
inline float unit_of(float total, constant LossParams& p) {
    return p.sign / total;
}

// What each loss is multiplied by before the sum: a divisor of 0 divides the sum instead.
inline float share_of(float total, constant LossParams& p) {
    return total == 0.0f ? p.sign : unit_of(total, p);
}

// A buffer that only the kernels of a mean read.
inline float total_of(device const float* total, constant LossParams& p) {
    return p.mean != 0u ? total[0] : 1.0f;
}

// ---- The divisor of a mean, and the sum of all losses: one threadgroup ----

// The weights of the targets that count.
template <typename T>
inline float weights_of_targets(
    device const uchar* targets,
    device const T* weight,
    constant LossParams& p,
    RowThread t
) {
    float sum = 0.0f;
    for (uint i = t.first / 4u; i < p.rows; i += t.step / 4u) {
        ulong target = index_at(targets, i, p.index_bytes);
        sum += is_ignored(target, p) ? 0.0f : weight_of(weight, target, p);
    }
    return row_sum<true>(sum, t);
}

// A sum divided by 0: a mean of no rows, or of weights that add up to nothing.
inline float divided_by_zero(float sum) {
    return sum == 0.0f ? not_a_number() : sum * as_type<float>(0x7F800000u);
}

// For losses that are made in several dispatches.
template <typename T>
[[kernel]] void cross_entropy_total(
    device const uchar* targets [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device float* total [[buffer(2)]],
    constant LossParams& p [[buffer(3)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, 1u)
    float sum = weights_of_targets(targets, weight, p, t);
    if (t.first == 0u) {
        total[0] = sum;
    }
}

// Of losses that have been divided by the total.
template <typename T>
[[kernel]] void cross_entropy_sum(
    device const float* losses [[buffer(0)]],
    device const float* total [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant LossParams& p [[buffer(3)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, 1u)
    float sum = 0.0f;
    for (uint i = t.first / 4u; i < p.rows; i += t.step / 4u) {
        sum += losses[i];
    }
    sum = row_sum<true>(sum, t);
    if (t.first == 0u) {
        y[0] = T(p.mean != 0u && total[0] == 0.0f ? divided_by_zero(sum) : sum);
    }
}

// The mean of losses that have not been divided yet. Divides the factors of their gradients, if there are any.
template <typename T, bool GRADIENTS>
[[kernel]] void cross_entropy_mean(
    device const float* losses [[buffer(0)]],
    device const uchar* targets [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device uint* factors [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant LossParams& p [[buffer(5)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, 1u)
    float total = weights_of_targets(targets, weight, p, t);
    float unit = unit_of(total, p);
    float share = share_of(total, p);
    float sum = 0.0f;
    for (uint i = t.first / 4u; i < p.rows; i += t.step / 4u) {
        sum += losses[i] * share;
        if (GRADIENTS) {
            device uint* f = factors + ulong(i) * FACTORS;
            f[1] = as_type<uint>(as_type<float>(f[1]) * unit);
            f[2] = as_type<uint>(as_type<float>(f[2]) * unit);
            f[3] = as_type<uint>(as_type<float>(f[3]) * unit);
        }
    }
    sum = row_sum<true>(sum, t);
    if (t.first == 0u) {
        y[0] = T(total == 0.0f ? divided_by_zero(sum) : sum);
    }
}

// Losses of rows that are not reduced, in 16 bits.
template <typename T>
[[kernel]] void cross_entropy_narrow(
    device const float* losses [[buffer(0)]],
    device const float* total [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant LossParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]]
) {
    if (i < p.rows) {
        y[i] = T(losses[i]);
    }
}

// ---- Cross-entropy: a row for each simdgroup or, WIDE, for each threadgroup ----

inline float larger(float m, float x) {
    return x > m ? x : m;
}

// NaNs are passed over; they come back with the exponentials.
inline float larger4(float m, float4 v) {
    return larger(larger(m, v.x), larger(larger(larger(LOWEST, v.y), v.z), v.w));
}

inline void write_factors(device uint* to, float4 factors, uint target) {
    to[0] = as_type<uint>(factors.x);
    to[1] = as_type<uint>(factors.y);
    to[2] = as_type<uint>(factors.z);
    to[3] = as_type<uint>(factors.w);
    to[4] = target;
}

template <typename T, bool WIDE>
[[kernel]] void cross_entropy_fwd(
    device const T* xs [[buffer(0)]],
    device const uchar* targets [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const float* total [[buffer(3)]],
    device float* losses [[buffer(4)]],
    device uint* factors [[buffer(5)]],
    constant LossParams& p [[buffer(6)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows)
    device const T* x = xs + row_offset(t.row, p.x);
    device uint* row_factors = factors + ulong(t.row) * FACTORS;
    ulong target = index_at(targets, t.row, p.index_bytes);
    if (is_ignored(target, p)) {
        if (t.first == 0u) {
            losses[t.row] = 0.0f;
            write_factors(row_factors, float4(0.0f), IGNORED);
        }
        return;
    }
    bool aligned = p.aligned != 0u;
    float m = LOWEST;
    float sum = 0.0f;
    for (ulong i = t.first; i < p.cols; i += t.step) {
        ulong left = p.cols - i;
        float4 v = load4(x + i, left, aligned, LOWEST);
        float top = larger4(m, v);
        sum = fma(sum, exp(m - top), sum4(keep4(exp(v - top), uint(min(left, ulong(4))))));
        m = top;
    }
    float top = row_max<WIDE>(m, t);
    sum = row_sum<WIDE>(sum * exp(m - top), t);

    float logits = 0.0f;
    float weights = 0.0f;
    if (p.spread > 0.0f) {
        for (ulong i = t.first; i < p.cols; i += t.step) {
            ulong left = p.cols - i;
            float4 w = p.has_weight != 0u ? load4(weight + i, left, false, 0.0f) : float4(1.0f);
            w = keep4(w, uint(min(left, ulong(4))));
            logits += sum4(w * (load4(x + i, left, aligned, top) - top));
            weights += sum4(w);
        }
        logits = row_sum<WIDE>(logits, t);
        weights = row_sum<WIDE>(weights, t);
    }
    if (t.first != 0u) {
        return;
    }
    float w = weight_of(weight, target, p);
    float divisor = total_of(total, p);
    float unit = unit_of(divisor, p);
    float log_sum = log(sum);
    float lse = top + log_sum;
    float logit = target < p.cols ? float(x[target]) : not_a_number();
    float loss = p.hit * w * ((top - logit) + log_sum);
    float scale = p.hit * w;
    if (p.spread > 0.0f) {
        loss += p.spread * (weights * log_sum - logits);
        scale += p.spread * weights;
    }
    if (p.z_loss > 0.0f) {
        loss += p.z_loss * w * lse * lse;
        scale += 2.0f * p.z_loss * w * lse;
    }
    // A target that is no class makes NaNs of the whole row.
    scale = target < p.cols ? scale : logit;
    losses[t.row] = loss * share_of(divisor, p);
    float4 kept = float4(top, scale * unit / sum, p.hit * w * unit, p.spread * unit);
    write_factors(row_factors, kept, target < p.cols ? uint(target) : 0u);
}

// ---- The gradient: four columns for each thread ----

struct GradientParams {
    RowStrides x;
    ulong cols;
    uint grad_rows;  // whether each row has a gradient of its own
    uint aligned;
    float cap;  // of CAPPED logits, inverse
    uint reserved;
};

// PER_CLASS: labels are smoothed by class weights. CAPPED: the logits are cap * tanh(v / cap), and the gradient is that of v.
template <typename T, bool PER_CLASS, bool CAPPED>
inline void gradient4(
    device const T* x,
    device const uint* factors,
    device const T* grad,
    device const T* weight,
    device T* dx,
    constant GradientParams& p,
    uint2 at
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong left = p.cols - col;
    bool aligned = p.aligned != 0u;
    device const uint* f = factors + ulong(at.y) * FACTORS;
    if (f[4] == IGNORED) {
        store4(dx + col, left, aligned, float4(0.0f));
        return;
    }
    float g = float(grad[p.grad_rows != 0u ? at.y : 0u]);
    float4 v = load4(x + col, left, aligned, LOWEST);
    float4 d = exp(v - as_type<float>(f[0])) * as_type<float>(f[1]);
    float4 w = PER_CLASS ? load4(weight + col, left, false, 0.0f) : float4(1.0f);
    d -= w * as_type<float>(f[3]);
    ulong hit = ulong(f[4]) - col;
    float4 hits = float4(hit == 0u, hit == 1u, hit == 2u, hit == 3u);
    d = (d - hits * as_type<float>(f[2])) * g;
    if (CAPPED) {
        float4 y = v * p.cap;
        d *= 1.0f - y * y;
    }
    store4(dx + col, left, aligned, d);
}

template <typename T, bool PER_CLASS>
[[kernel]] void cross_entropy_bwd(
    device const T* x [[buffer(0)]],
    device const uint* factors [[buffer(1)]],
    device const T* grad [[buffer(2)]],
    device const T* weight [[buffer(3)]],
    device T* dx [[buffer(4)]],
    constant GradientParams& p [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]
) {
    device const T* row = x + row_offset(at.y, p.x);
    gradient4<T, PER_CLASS, false>(row, factors, grad, weight, dx + ulong(at.y) * p.cols, p, at);
}

template <typename T, bool PER_CLASS, bool CAPPED>
[[kernel]] void cross_entropy_inplace(
    device T* x [[buffer(0)]],
    device const uint* factors [[buffer(1)]],
    device const T* grad [[buffer(2)]],
    device const T* weight [[buffer(3)]],
    constant GradientParams& p [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]
) {
    device T* row = x + ulong(at.y) * p.cols;
    gradient4<T, PER_CLASS, CAPPED>((device const T*)row, factors, grad, weight, row, p, at);
}

// Logits of a product, cap * tanh(v / cap). The fast tanh is NaN beyond 44.
[[kernel]] void cross_entropy_cap_f32(
    device float* x [[buffer(0)]],
    constant float2& cap [[buffer(1)]],
    constant ulong& n [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    if (i < n) {
        x[i] = cap.x * precise::tanh(x[i] * cap.y);
    }
}

// ---- The negative log-likelihood ----

template <typename T>
[[kernel]] void cross_entropy_nll(
    device const T* x [[buffer(0)]],
    device const uchar* targets [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device float* losses [[buffer(3)]],
    constant LossParams& p [[buffer(4)]],
    uint row [[thread_position_in_grid]]
) {
    if (row >= p.rows) {
        return;
    }
    ulong target = index_at(targets, row, p.index_bytes);
    float loss = 0.0f;
    if (!is_ignored(target, p)) {
        float v = target < p.cols ? float(x[row_offset(row, p.x) + target]) : not_a_number();
        loss = -v * weight_of(weight, target, p);
    }
    losses[row] = loss;
}

template <typename T>
[[kernel]] void cross_entropy_nll_bwd(
    device const T* grad [[buffer(0)]],
    device const uchar* targets [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device const float* total [[buffer(3)]],
    device T* dx [[buffer(4)]],
    constant LossParams& p [[buffer(5)]],
    constant uint& grad_rows [[buffer(6)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong target = index_at(targets, at.y, p.index_bytes);
    bool ignored = is_ignored(target, p);
    float hit = -float(grad[grad_rows != 0u ? at.y : 0u]) * weight_of(weight, target, p)
        * unit_of(total_of(total, p), p);
    float rest = ignored || target < p.cols ? 0.0f : not_a_number();
    ulong place = ignored ? ~ulong(0) : target - col;
    float4 d = float4(
        place == 0u ? hit : rest,
        place == 1u ? hit : rest,
        place == 2u ? hit : rest,
        place == 3u ? hit : rest
    );
    store4(dx + ulong(at.y) * p.cols + col, p.cols - col, p.aligned != 0u, d);
}

FOR_DTYPES(cross_entropy_total, "cross_entropy_total")
FOR_DTYPES(cross_entropy_sum, "cross_entropy_sum")
FOR_DTYPES_WITH(cross_entropy_mean, "cross_entropy_mean", true)
FOR_DTYPES_WITH(cross_entropy_mean, "cross_entropy_mean_only", false)
KERNEL("cross_entropy_narrow_f16", cross_entropy_narrow<half>)
KERNEL_BF16("cross_entropy_narrow_bf16", cross_entropy_narrow<bfloat>)
FOR_DTYPES_WITH(cross_entropy_fwd, "cross_entropy_fwd_simd", false)
FOR_DTYPES_WITH(cross_entropy_fwd, "cross_entropy_fwd_group", true)
FOR_DTYPES_WITH(cross_entropy_bwd, "cross_entropy_bwd", false)
FOR_DTYPES_WITH(cross_entropy_bwd, "cross_entropy_bwd_per_class", true)
FOR_DTYPES_WITH(cross_entropy_inplace, "cross_entropy_inplace", false, false)
FOR_DTYPES_WITH(cross_entropy_inplace, "cross_entropy_inplace_per_class", true, false)
KERNEL("cross_entropy_inplace_capped_f32", cross_entropy_inplace<float, false, true>)
KERNEL("cross_entropy_inplace_capped_per_class_f32", cross_entropy_inplace<float, true, true>)
FOR_DTYPES(cross_entropy_nll, "cross_entropy_nll")
FOR_DTYPES(cross_entropy_nll_bwd, "cross_entropy_nll_bwd")
