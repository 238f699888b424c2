// The RMS norm of each head of q and k, and their rotation, in one pass.
//
// A team of 1 to 32 neighbouring lanes has a head at one position: oct `lane` and, with two STEPS, oct `lane + 32`. All of it
// stays in registers. Rows, i.e. heads at a position, are counted through q and then k, positions first.

struct QkNormRopeParams {
    HeadStrides q;
    HeadStrides k;
    HeadStrides q_grad;
    HeadStrides k_grad;
    HeadStrides q_out;
    HeadStrides k_out;
    RotaryParams rotary;
    uint q_rows;
    uint k_rows;
    uint q_heads;
    uint k_heads;
    uint octs;
    uint lanes;
    uint parts;
    uint weights;
    uint aligned;
    float eps;
    float weight_offset;
    uint reserved;
};

#define UNROLL _Pragma("clang loop unroll(full)")

// The sum over a team, whose lanes all get it.
inline float team_sum(float v, uint lanes) {
    for (uint distance = lanes / 2u; distance > 0u; distance /= 2u) {
        v += simd_shuffle_xor(v, ushort(distance));
    }
    return v;
}

// A lane's octs of a head, zeros where there are none.
template <uint STEPS>
struct Octs {
    float4 low[STEPS];
    float4 high[STEPS];
};

template <typename T, bool INTERLEAVED, uint STEPS>
inline Octs<STEPS> load_octs(device const T* p, constant QkNormRopeParams& params, uint lane) {
    Octs<STEPS> octs;
    bool aligned = params.aligned != 0u;
    UNROLL for (uint k = 0u; k < STEPS; k++) {
        uint i = lane + k * 32u;
        octs.low[k] = float4(0.0f);
        octs.high[k] = float4(0.0f);
        if (i < params.octs) {
            Oct o = oct_at<INTERLEAVED>(i, params.rotary);
            octs.low[k] = load4(p + o.low, ulong(o.low_left), aligned, 0.0f);
            octs.high[k] = load4(p + o.high, ulong(o.high_left), aligned, 0.0f);
        }
    }
    return octs;
}

// Weights with their offset.
template <typename T, bool INTERLEAVED, uint STEPS>
inline Octs<STEPS> load_weights(device const T* p, constant QkNormRopeParams& params, uint lane) {
    Octs<STEPS> octs = load_octs<T, INTERLEAVED, STEPS>(p, params, lane);
    UNROLL for (uint k = 0u; k < STEPS; k++) {
        octs.low[k] += params.weight_offset;
        octs.high[k] += params.weight_offset;
    }
    return octs;
}

template <typename T, bool INTERLEAVED, uint STEPS>
inline void store_octs(device T* p, constant QkNormRopeParams& params, uint lane, thread const Octs<STEPS>& octs) {
    bool aligned = params.aligned != 0u;
    UNROLL for (uint k = 0u; k < STEPS; k++) {
        uint i = lane + k * 32u;
        if (i < params.octs) {
            Oct o = oct_at<INTERLEAVED>(i, params.rotary);
            store4(p + o.low, ulong(o.low_left), aligned, octs.low[k]);
            store4(p + o.high, ulong(o.high_left), aligned, octs.high[k]);
        }
    }
}

template <typename T, bool INTERLEAVED, uint STEPS>
inline void rotate_octs(
    thread Octs<STEPS>& octs,
    device const T* cos,
    device const T* sin,
    device const uint* ids,
    constant QkNormRopeParams& p,
    uint batch,
    uint position,
    uint lane
) {
    UNROLL for (uint k = 0u; k < STEPS; k++) {
        uint i = lane + k * 32u;
        if (i < rotated_octs(p.rotary)) {
            Angles a = angles_at(cos, sin, ids, p.rotary, batch, position, 4u * i);
            rotate_pairs<INTERLEAVED>(octs.low[k], octs.high[k], a);
        }
    }
}

// The sum of a times b.
template <uint STEPS>
inline float octs_dot(thread const Octs<STEPS>& a, thread const Octs<STEPS>& b) {
    float sum = 0.0f;
    UNROLL for (uint k = 0u; k < STEPS; k++) {
        sum += dot(a.low[k], b.low[k]) + dot(a.high[k], b.high[k]);
    }
    return sum;
}

// Where a row of q or of k is.
struct RowPlace {
    uint batch;
    uint head;
    uint position;
};

inline RowPlace row_place(uint row, uint heads, uint positions) {
    RowPlace at;
    uint rest = row / positions;
    at.position = row - rest * positions;
    at.batch = rest / heads;
    at.head = rest - at.batch * heads;
    return at;
}

template <typename T, bool INTERLEAVED, uint STEPS>
[[kernel]] void qk_norm_rope_fwd(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* q_weight [[buffer(2)]],
    device const T* k_weight [[buffer(3)]],
    device const T* cos [[buffer(4)]],
    device const T* sin [[buffer(5)]],
    device const uint* ids [[buffer(6)]],
    device T* q_out [[buffer(7)]],
    device T* k_out [[buffer(8)]],
    constant QkNormRopeParams& p [[buffer(9)]],
    uint i [[thread_position_in_grid]]
) {
    // All lanes shuffle: those behind the last row take it once more, and store nothing.
    uint team = i / p.lanes;
    uint lane = i - team * p.lanes;
    bool live = team < p.q_rows + p.k_rows;
    uint row = live ? team : p.q_rows + p.k_rows - 1u;
    bool is_q = row < p.q_rows;
    RowPlace at = row_place(is_q ? row : row - p.q_rows, is_q ? p.q_heads : p.k_heads, p.rotary.positions);
    device const T* x = is_q ? q + head_offset(p.q, at.batch, at.head, at.position)
                             : k + head_offset(p.k, at.batch, at.head, at.position);
    Octs<STEPS> v = load_octs<T, INTERLEAVED, STEPS>(x, p, lane);
    float squares = team_sum(octs_dot<STEPS>(v, v), p.lanes);
    float scale = rsqrt(squares / float(p.rotary.dim) + p.eps);
    Octs<STEPS> w = load_weights<T, INTERLEAVED, STEPS>(is_q ? q_weight : k_weight, p, lane);
    UNROLL for (uint n = 0u; n < STEPS; n++) {
        v.low[n] *= scale * w.low[n];
        v.high[n] *= scale * w.high[n];
    }
    rotate_octs<T, INTERLEAVED, STEPS>(v, cos, sin, ids, p, at.batch, at.position, lane);
    if (live) {
        device T* y = is_q ? q_out + head_offset(p.q_out, at.batch, at.head, at.position)
                           : k_out + head_offset(p.k_out, at.batch, at.head, at.position);
        store_octs<T, INTERLEAVED, STEPS>(y, p, lane, v);
    }
}

// ---- Gradients ----

// Elements of a head that the kernels can hold, and simdgroups of a threadgroup.
#define QK_DIM 512u
#define QK_SIMDGROUPS 8u

// The lane's elements to the sums of its simdgroup.
inline void keep_sums(threadgroup float* sums, uint at, uint left, float4 v) {
    if (left > 0u) {
        sums[at] = v.x;
    }
    if (left > 1u) {
        sums[at + 1u] = v.y;
    }
    if (left > 2u) {
        sums[at + 2u] = v.z;
    }
    if (left > 3u) {
        sums[at + 3u] = v.w;
    }
}

inline float4 shuffle4(float4 v, uint distance) {
    ushort d = ushort(distance);
    return float4(
        simd_shuffle_xor(v.x, d), simd_shuffle_xor(v.y, d), simd_shuffle_xor(v.z, d), simd_shuffle_xor(v.w, d)
    );
}

// dq or dk, by the group's z, of a part of the rows, and the sums of u x_hat over them: [2, parts, dim]. The params rotate
// back.
template <typename T, bool INTERLEAVED, uint STEPS>
[[kernel]] void qk_norm_rope_bwd(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* q_weight [[buffer(2)]],
    device const T* k_weight [[buffer(3)]],
    device const T* q_grad [[buffer(4)]],
    device const T* k_grad [[buffer(5)]],
    device const T* cos [[buffer(6)]],
    device const T* sin [[buffer(7)]],
    device const uint* ids [[buffer(8)]],
    device T* dq [[buffer(9)]],
    device T* dk [[buffer(10)]],
    device float* sums [[buffer(11)]],
    constant QkNormRopeParams& p [[buffer(12)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simd_lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]]
) {
    threadgroup float partials[QK_SIMDGROUPS * QK_DIM];
    bool is_q = group.z == 0u;
    uint rows = is_q ? p.q_rows : p.k_rows;
    uint heads = is_q ? p.q_heads : p.k_heads;
    uint per_part = (rows + p.parts - 1u) / p.parts;
    uint start = group.x * per_part;
    uint end = min(rows, start + per_part);
    uint team = thread_index / p.lanes;
    uint lane = thread_index - team * p.lanes;
    uint teams = threads.x / p.lanes;
    Octs<STEPS> w = load_weights<T, INTERLEAVED, STEPS>(is_q ? q_weight : k_weight, p, lane);
    Octs<STEPS> dw;
    UNROLL for (uint n = 0u; n < STEPS; n++) {
        dw.low[n] = float4(0.0f);
        dw.high[n] = float4(0.0f);
    }
    // All lanes shuffle: teams without a row take the last once more, and keep nothing of it.
    for (uint base = start; base < end; base += teams) {
        bool live = base + team < end;
        RowPlace at = row_place(live ? base + team : end - 1u, heads, p.rotary.positions);
        device const T* x = is_q ? q + head_offset(p.q, at.batch, at.head, at.position)
                                 : k + head_offset(p.k, at.batch, at.head, at.position);
        device const T* g = is_q ? q_grad + head_offset(p.q_grad, at.batch, at.head, at.position)
                                 : k_grad + head_offset(p.k_grad, at.batch, at.head, at.position);
        Octs<STEPS> v = load_octs<T, INTERLEAVED, STEPS>(x, p, lane);
        Octs<STEPS> u = load_octs<T, INTERLEAVED, STEPS>(g, p, lane);
        rotate_octs<T, INTERLEAVED, STEPS>(u, cos, sin, ids, p, at.batch, at.position, lane);
        float n = float(p.rotary.dim);
        float scale = rsqrt(team_sum(octs_dot<STEPS>(v, v), p.lanes) / n + p.eps);
        Octs<STEPS> h;
        UNROLL for (uint s = 0u; s < STEPS; s++) {
            v.low[s] *= scale;
            v.high[s] *= scale;
            h.low[s] = u.low[s] * w.low[s];
            h.high[s] = u.high[s] * w.high[s];
        }
        float slope = team_sum(octs_dot<STEPS>(h, v), p.lanes) / n;
        UNROLL for (uint s = 0u; s < STEPS; s++) {
            h.low[s] = scale * (h.low[s] - v.low[s] * slope);
            h.high[s] = scale * (h.high[s] - v.high[s] * slope);
            dw.low[s] += live ? u.low[s] * v.low[s] : float4(0.0f);
            dw.high[s] += live ? u.high[s] * v.high[s] : float4(0.0f);
        }
        if (live) {
            device T* dx = is_q ? dq + head_offset(p.q_out, at.batch, at.head, at.position)
                                : dk + head_offset(p.k_out, at.batch, at.head, at.position);
            store_octs<T, INTERLEAVED, STEPS>(dx, p, lane, h);
        }
    }
    if (p.weights == 0u) {
        return;
    }
    UNROLL for (uint s = 0u; s < STEPS; s++) {
        // The teams of a simdgroup first.
        for (uint distance = p.lanes; distance < 32u; distance *= 2u) {
            dw.low[s] += shuffle4(dw.low[s], distance);
            dw.high[s] += shuffle4(dw.high[s], distance);
        }
        uint i = simd_lane + s * 32u;
        if (simd_lane < p.lanes && i < p.octs) {
            Oct o = oct_at<INTERLEAVED>(i, p.rotary);
            keep_sums(partials + simdgroup * QK_DIM, o.low, o.low_left, dw.low[s]);
            keep_sums(partials + simdgroup * QK_DIM, o.high, o.high_left, dw.high[s]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device float* out = sums + (ulong(group.z) * p.parts + group.x) * p.rotary.dim;
    for (uint e = thread_index; e < p.rotary.dim; e += threads.x) {
        float total = 0.0f;
        for (uint s = 0u; s < threads.x / 32u; s++) {
            total += partials[s * QK_DIM + e];
        }
        out[e] = total;
    }
}

// The sums of the parts: y = 0 for q's weight, 1 for k's.
template <typename T>
[[kernel]] void qk_norm_rope_bwd_total(
    device const float* sums [[buffer(0)]],
    device T* dq_weight [[buffer(1)]],
    device T* dk_weight [[buffer(2)]],
    constant QkNormRopeParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.rotary.dim) {
        return;
    }
    float total = 0.0f;
    for (uint part = 0u; part < p.parts; part++) {
        total += sums[(ulong(at.y) * p.parts + part) * p.rotary.dim + at.x];
    }
    if (at.y == 0u) {
        dq_weight[at.x] = T(total);
    } else {
        dk_weight[at.x] = T(total);
    }
}

FOR_DTYPES_WITH(qk_norm_rope_fwd, "qk_norm_rope_fwd_half_1", false, 1)
FOR_DTYPES_WITH(qk_norm_rope_fwd, "qk_norm_rope_fwd_half_2", false, 2)
FOR_DTYPES_WITH(qk_norm_rope_fwd, "qk_norm_rope_fwd_interleaved_1", true, 1)
FOR_DTYPES_WITH(qk_norm_rope_fwd, "qk_norm_rope_fwd_interleaved_2", true, 2)
FOR_DTYPES_WITH(qk_norm_rope_bwd, "qk_norm_rope_bwd_half_1", false, 1)
FOR_DTYPES_WITH(qk_norm_rope_bwd, "qk_norm_rope_bwd_half_2", false, 2)
FOR_DTYPES_WITH(qk_norm_rope_bwd, "qk_norm_rope_bwd_interleaved_1", true, 1)
FOR_DTYPES_WITH(qk_norm_rope_bwd, "qk_norm_rope_bwd_interleaved_2", true, 2)
FOR_DTYPES(qk_norm_rope_bwd_total, "qk_norm_rope_bwd_total")
