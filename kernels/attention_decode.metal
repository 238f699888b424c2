// Attention of few queries: a threadgroup for each query of a head and each part of its keys, whose simdgroups take four keys
// at a time. Lanes share the dims: lane l has those from 4 l on, and from 128 + 4 l on, and so on, N times.
//
// If there are several parts, a second kernel merges them, in their order.

#define DECODE_SIMDGROUPS 8u

// The weights' maximum and sum, of one part or all.
struct Total {
    float top;
    float sum;
};

// Adds the sink; returns the factor of the weighted sums.
template <typename T>
inline float finish_total(thread Total& total, device const T* sinks, uint head, constant AttentionParams& p) {
    float factor = 1.0f;
    if (p.has_sinks != 0u) {
        float sink = float(sinks[head]);
        float higher = max(total.top, sink);
        float base = higher > -INFINITY ? higher : 0.0f;
        factor = exp(total.top - base);
        total.sum = total.sum * factor + exp(sink - base);
        total.top = base;
    }
    return total.sum == 0.0f ? 0.0f : factor / total.sum;
}

inline float log_sum(thread const Total& total) {
    return total.sum == 0.0f ? INFINITY : total.top + log(total.sum);
}

// e^(x - top), of a maximum that may be that of nothing.
inline float weight_of(float x, float top) {
    return exp(x - (top > -INFINITY ? top : 0.0f));
}

template <typename T, uint N>
[[kernel]] void attention_fwd_decode(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const T* mask [[buffer(3)]],
    device const uchar* allowed [[buffer(4)]],
    device const T* sinks [[buffer(5)]],
    device const uint* lengths [[buffer(6)]],
    device T* y [[buffer(7)]],
    device float* log_sums [[buffer(8)]],
    device float* partial [[buffer(9)]],
    constant AttentionParams& p [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float4 accs[DECODE_SIMDGROUPS * 32u * N];
    threadgroup float tops[DECODE_SIMDGROUPS];
    threadgroup float sums[DECODE_SIMDGROUPS];
    Segment segment = segment_at(group.z / p.most_queries, lengths, p);
    uint i = group.z % p.most_queries;
    if (i >= segment.queries) {
        return;
    }
    uint head = group.y;
    bool aligned = p.aligned != 0u;
    Query query = query_at(segment, head, i, p);
    HeadRows<T> qs = head_rows(q, p.q, segment.batch, head, segment.query + i, p.dim);
    HeadRows<T> ks = head_rows(k, p.k, segment.batch, head / p.group, segment.key, p.dim);
    HeadRows<T> vs = head_rows(v, p.v, segment.batch, head / p.group, segment.key, p.value_dim);
    query.span.start = max(query.span.start, group.x * p.part);
    query.span.end = min(query.span.end, group.x * p.part + p.part);

    float4 own[N];
    float4 acc[N];
    UNROLL
    for (uint c = 0u; c < N; c++) {
        uint d = 128u * c + 4u * lane;
        own[c] = d < p.dim ? load4(qs.from + d, p.dim - d, aligned, 0.0f) : float4(0.0f);
        acc[c] = float4(0.0f);
    }
    Total total;
    total.top = -INFINITY;
    total.sum = 0.0f;
    for (uint j0 = query.span.start / 4u * 4u + 4u * simdgroup; j0 < query.span.end; j0 += 4u * DECODE_SIMDGROUPS) {
        float4 t = float4(-INFINITY);
        UNROLL
        for (uint u = 0u; u < 4u; u++) {
            if (sees(query, j0 + u)) {
                device const T* row = ks.from + ulong(j0 + u) * ks.stride;
                float product = 0.0f;
                UNROLL
                for (uint c = 0u; c < N; c++) {
                    uint d = 128u * c + 4u * lane;
                    if (d < p.dim) {
                        product += dot(own[c], load4(row + d, p.dim - d, aligned, 0.0f));
                    }
                }
                t[u] = score(simd_sum(product), query, j0 + u, mask, allowed, p).value;
            }
        }
        float top = max(total.top, max(max(t.x, t.y), max(t.z, t.w)));
        float factor = weight_of(total.top, top);
        float4 weights = exp(t - (top > -INFINITY ? top : 0.0f));
        total.top = top;
        total.sum = total.sum * factor + (weights.x + weights.y + weights.z + weights.w);
        float4 factors = dropped4(query.number, j0, p);
        UNROLL
        for (uint c = 0u; c < N; c++) {
            acc[c] *= factor;
        }
        UNROLL
        for (uint u = 0u; u < 4u; u++) {
            if (sees(query, j0 + u)) {
                device const T* row = vs.from + ulong(j0 + u) * vs.stride;
                float weight = drop(weights[u], factors[u]);
                UNROLL
                for (uint c = 0u; c < N; c++) {
                    uint d = 128u * c + 4u * lane;
                    if (d < p.value_dim) {
                        acc[c] += weight * load4(row + d, p.value_dim - d, aligned, 0.0f);
                    }
                }
            }
        }
    }
    UNROLL
    for (uint c = 0u; c < N; c++) {
        accs[simdgroup * 32u * N + 32u * c + lane] = acc[c];
    }
    if (lane == 0u) {
        tops[simdgroup] = total.top;
        sums[simdgroup] = total.sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total.top = -INFINITY;
    total.sum = 0.0f;
    for (uint s = 0u; s < DECODE_SIMDGROUPS; s++) {
        total.top = max(total.top, tops[s]);
    }
    for (uint s = 0u; s < DECODE_SIMDGROUPS; s++) {
        total.sum += sums[s] * weight_of(tops[s], total.top);
    }
    // A NaN in a row of scores, which the maximum passes over, is in the sum.
    float merged_top = total.top;
    bool alone = p.parts == 1u;
    float factor = alone ? finish_total(total, sinks, head, p) : 1.0f;
    ulong at = (query.number * p.parts + group.x) * (p.value_dim + 2u);
    device T* to = y + segment.batch * p.y[0] + head * p.y[1] + (segment.query + i) * p.y[2];
    for (uint d = thread_index; d < p.value_dim; d += 32u * DECODE_SIMDGROUPS) {
        float x = 0.0f;
        for (uint s = 0u; s < DECODE_SIMDGROUPS; s++) {
            threadgroup const float* row = (threadgroup const float*)(accs + s * 32u * N);
            x += row[d] * weight_of(tops[s], merged_top);
        }
        if (alone) {
            to[d] = T(x * factor);
        } else {
            partial[at + 2u + d] = x;
        }
    }
    if (thread_index == 0u) {
        if (alone) {
            log_sums[query.number] = log_sum(total);
        } else {
            partial[at] = total.top;
            partial[at + 1u] = total.sum;
        }
    }
}

// A threadgroup for each query of a head.
template <typename T>
[[kernel]] void attention_fwd_merge(
    device const float* partial [[buffer(0)]],
    device const T* sinks [[buffer(1)]],
    device T* y [[buffer(2)]],
    device float* log_sums [[buffer(3)]],
    constant AttentionParams& p [[buffer(4)]],
    uint number [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]
) {
    uint head = number / p.queries % p.heads;
    uint batch = number / p.queries / p.heads;
    uint at = number % p.queries;
    uint row = p.value_dim + 2u;
    device const float* parts = partial + ulong(number) * p.parts * row;
    Total total;
    total.top = -INFINITY;
    total.sum = 0.0f;
    for (uint n = 0u; n < p.parts; n++) {
        total.top = max(total.top, parts[n * row]);
    }
    float top = total.top;
    for (uint n = 0u; n < p.parts; n++) {
        total.sum += parts[n * row + 1u] * weight_of(parts[n * row], top);
    }
    float factor = finish_total(total, sinks, head, p);
    device T* to = y + batch * p.y[0] + head * p.y[1] + at * p.y[2];
    for (uint d = thread_index; d < p.value_dim; d += threads) {
        float x = 0.0f;
        for (uint n = 0u; n < p.parts; n++) {
            x += parts[n * row + 2u + d] * weight_of(parts[n * row], top);
        }
        to[d] = T(x * factor);
    }
    if (thread_index == 0u) {
        log_sums[number] = log_sum(total);
    }
}

FOR_DTYPES_WITH(attention_fwd_decode, "attention_fwd_decode_128", 1u)
FOR_DTYPES_WITH(attention_fwd_decode, "attention_fwd_decode_512", 4u)
FOR_DTYPES(attention_fwd_merge, "attention_fwd_merge")
