// The divergence of rows of the target p from rows of the input q: sum(p (log p - log q)).
//
// Six numbers are kept of a row: the input's maximum and the logarithm of its sum of exponentials, the target's, the sum of p
// and the divergence. Without logits the first two, or the next two, are 0.

#define KEPT 6u

constant float LOWEST = -3.402823466e+38f;

struct KlDivParams {
    RowStrides q;
    RowStrides p;
    ulong cols;
    uint rows;
    uint q_logits;
    uint p_logits;
    uint grad_rows;  // whether each row has a gradient of its own
    float unit;      // what a row's divergence counts for
    uint aligned;
};

inline float larger(float m, float x) {
    return x > m ? x : m;
}

// The maximum of a row, and the logarithm of the sum of the exponentials about it.
template <typename T, bool WIDE>
inline float2 max_and_log_sum(device const T* x, constant KlDivParams& p, RowThread t) {
    float m = LOWEST;
    float sum = 0.0f;
    for (ulong i = t.first; i < p.cols; i += t.step) {
        ulong left = p.cols - i;
        float4 v = load4(x + i, left, p.aligned != 0u, LOWEST);
        float top = larger(larger(m, v.x), larger(larger(larger(LOWEST, v.y), v.z), v.w));
        sum = fma(sum, exp(m - top), sum4(keep4(exp(v - top), uint(min(left, ulong(4))))));
        m = top;
    }
    float top = row_max<WIDE>(m, t);
    return float2(top, log(row_sum<WIDE>(sum * exp(m - top), t)));
}

// p, log p and log q of four columns.
struct Logs4 {
    float4 p;
    float4 log_p;
    float4 log_q;
};

template <bool PROBS>
inline Logs4 logs4(float4 q, float4 p, float4 subtract) {
    Logs4 l;
    l.log_q = (q - subtract.x) - subtract.y;
    l.log_p = PROBS ? log(p) : (p - subtract.z) - subtract.w;
    l.p = PROBS ? p : exp(l.log_p);
    return l;
}

// 0 where p is 0.
inline float4 where_positive(float4 p, float4 v) {
    return float4(
        p.x == 0.0f ? 0.0f : v.x,
        p.y == 0.0f ? 0.0f : v.y,
        p.z == 0.0f ? 0.0f : v.z,
        p.w == 0.0f ? 0.0f : v.w
    );
}

template <typename T, bool PROBS, bool WIDE>
[[kernel]] void kl_div_fwd(
    device const T* qs [[buffer(0)]],
    device const T* ps [[buffer(1)]],
    device float* losses [[buffer(2)]],
    device float* kept [[buffer(3)]],
    constant KlDivParams& p [[buffer(4)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows)
    device const T* q_row = qs + row_offset(t.row, p.q);
    device const T* p_row = ps + row_offset(t.row, p.p);
    bool aligned = p.aligned != 0u;
    float4 subtract = float4(0.0f);
    if (p.q_logits != 0u) {
        subtract.xy = max_and_log_sum<T, WIDE>(q_row, p, t);
    }
    if (p.p_logits != 0u) {
        subtract.zw = max_and_log_sum<T, WIDE>(p_row, p, t);
    }
    float4 sums = float4(0.0f);
    float4 totals = float4(0.0f);
    for (ulong i = t.first; i < p.cols; i += t.step) {
        ulong left = p.cols - i;
        uint count = uint(min(left, ulong(4)));
        Logs4 l = logs4<PROBS>(load4(q_row + i, left, aligned, 0.0f), load4(p_row + i, left, aligned, 0.0f), subtract);
        sums += keep4(where_positive(l.p, l.p * (l.log_p - l.log_q)), count);
        totals += keep4(l.p, count);
    }
    float loss = row_sum<WIDE>(sum4(sums), t);
    float total = row_sum<WIDE>(sum4(totals), t);
    if (t.first == 0u) {
        losses[t.row] = loss * p.unit;
        device float* to = kept + ulong(t.row) * KEPT;
        to[0] = subtract.x;
        to[1] = subtract.y;
        to[2] = subtract.z;
        to[3] = subtract.w;
        to[4] = total;
        to[5] = loss;
    }
}

// The losses of all rows as one, by one threadgroup.
template <typename T>
[[kernel]] void kl_div_sum(
    device const float* losses [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant KlDivParams& p [[buffer(2)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(true, 1u)
    float sum = 0.0f;
    for (uint i = t.first / 4u; i < p.rows; i += t.step / 4u) {
        sum += losses[i];
    }
    sum = row_sum<true>(sum, t);
    if (t.first == 0u) {
        y[0] = T(sum);
    }
}

template <typename T>
[[kernel]] void kl_div_narrow(
    device const float* losses [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant KlDivParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    if (i < p.rows) {
        y[i] = T(losses[i]);
    }
}

// The gradient of the input, or of the TARGET: four columns for each thread.
template <typename T, bool PROBS, bool TARGET>
[[kernel]] void kl_div_bwd(
    device const T* qs [[buffer(0)]],
    device const T* ps [[buffer(1)]],
    device const float* kept [[buffer(2)]],
    device const T* grad [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant KlDivParams& p [[buffer(5)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong left = p.cols - col;
    bool aligned = p.aligned != 0u;
    device const float* k = kept + ulong(at.y) * KEPT;
    float4 q = load4(qs + row_offset(at.y, p.q) + col, left, aligned, 0.0f);
    float4 target = load4(ps + row_offset(at.y, p.p) + col, left, aligned, 0.0f);
    Logs4 l = logs4<PROBS>(q, target, float4(k[0], k[1], k[2], k[3]));
    float4 d;
    if (TARGET) {
        float4 slope = (l.log_p - l.log_q) + (p.p_logits != 0u ? -k[5] : 1.0f);
        d = where_positive(l.p, PROBS ? slope : l.p * slope);
    } else {
        d = p.q_logits != 0u ? exp(l.log_q) * k[4] - l.p : -l.p;
    }
    d *= float(grad[p.grad_rows != 0u ? at.y : 0u]) * p.unit;
    store4(out + ulong(at.y) * p.cols + col, left, aligned, d);
}

FOR_DTYPES_WITH(kl_div_fwd, "kl_div_fwd_simd", false, false)
FOR_DTYPES_WITH(kl_div_fwd, "kl_div_fwd_simd_probs", true, false)
FOR_DTYPES_WITH(kl_div_fwd, "kl_div_fwd_group", false, true)
FOR_DTYPES_WITH(kl_div_fwd, "kl_div_fwd_group_probs", true, true)
FOR_DTYPES(kl_div_sum, "kl_div_sum")
KERNEL("kl_div_narrow_f16", kl_div_narrow<half>)
KERNEL_BF16("kl_div_narrow_bf16", kl_div_narrow<bfloat>)
FOR_DTYPES_WITH(kl_div_bwd, "kl_div_bwd_input", false, false)
FOR_DTYPES_WITH(kl_div_bwd, "kl_div_bwd_input_probs", true, false)
FOR_DTYPES_WITH(kl_div_bwd, "kl_div_bwd_target", false, true)
FOR_DTYPES_WITH(kl_div_bwd, "kl_div_bwd_target_probs", true, true)
