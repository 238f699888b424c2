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

// e^(x - top), of a maximum that may be that of nothing.
inline float weight_of(float x, float top) {
    return exp(x - (top > -INFINITY ? top : 0.0f));
}

template <typename T>
inline void write_result(
    float x, ulong at, device T* y, device float* wide, constant AttentionParams& p
) {
    y[at] = T(x);
    if (p.wants_wide != 0u) {
        wide[at] = x;
    }
}

// The memory that a threadgroup shares.
template <uint N>
struct FewMemory {
    float4 accs[DECODE_SIMDGROUPS * 32u * N];
    float tops[DECODE_SIMDGROUPS];
    float sums[DECODE_SIMDGROUPS];
};

template <uint N, typename T, typename Source>
inline void forward_few(
    threadgroup FewMemory<N>& memory, device const T* q, Source source, device const T* mask,
    device const uchar* allowed, device const T* sinks, device const uint* lengths, device T* y,
    device float2* log_sums, device float* wide, device float* partial, constant AttentionParams& p, uint3 group,
    uint thread_index, uint lane, uint simdgroup
) {
    typedef typename Source::Rows Rows;
    Segment segment = segment_at(group.z / p.most_queries, lengths, p);
    uint i = group.z % p.most_queries;
    if (i >= segment.queries) {
        return;
    }
    uint head = group.y;
    Query query = query_at(segment, head, i, p);
    HeadRows<T> qs = head_rows(q, p.q, segment.batch, head, segment.query + i, p.dim, p.aligned != 0u);
    Rows ks = source.keys(segment, head / p.group, p);
    Rows vs = source.values(segment, head / p.group, p);
    query.span.start = max(query.span.start, group.x * p.part);
    query.span.end = min(query.span.end, group.x * p.part + p.part);

    float4 own[N];
    float4 acc[N];
    UNROLL
    for (uint c = 0u; c < N; c++) {
        uint d = 128u * c + 4u * lane;
        own[c] = d < p.dim ? qs.four(0u, d) : float4(0.0f);
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
                Rows row = ks.behind(j0 + u);
                float product = 0.0f;
                UNROLL
                for (uint c = 0u; c < N; c++) {
                    uint d = 128u * c + 4u * lane;
                    if (d < p.dim) {
                        product += dot(own[c], row.four(0u, d));
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
                Rows row = vs.behind(j0 + u);
                float weight = drop(weights[u], factors[u]);
                UNROLL
                for (uint c = 0u; c < N; c++) {
                    uint d = 128u * c + 4u * lane;
                    if (d < p.value_dim) {
                        acc[c] += weight * row.four(0u, d);
                    }
                }
            }
        }
    }
    UNROLL
    for (uint c = 0u; c < N; c++) {
        memory.accs[simdgroup * 32u * N + 32u * c + lane] = acc[c];
    }
    if (lane == 0u) {
        memory.tops[simdgroup] = total.top;
        memory.sums[simdgroup] = total.sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total.top = -INFINITY;
    total.sum = 0.0f;
    for (uint s = 0u; s < DECODE_SIMDGROUPS; s++) {
        total.top = max(total.top, memory.tops[s]);
    }
    for (uint s = 0u; s < DECODE_SIMDGROUPS; s++) {
        total.sum += memory.sums[s] * weight_of(memory.tops[s], total.top);
    }
    // A NaN in a row of scores, which the maximum passes over, is in the sum.
    float merged_top = total.top;
    bool alone = p.parts == 1u;
    float factor = alone ? finish_total(total, sinks, head, p) : 1.0f;
    ulong at = (query.number * p.parts + group.x) * (p.value_dim + 2u);
    ulong to = segment.batch * p.y[0] + head * p.y[1] + (segment.query + i) * p.y[2];
    for (uint d = thread_index; d < p.value_dim; d += 32u * DECODE_SIMDGROUPS) {
        float x = 0.0f;
        for (uint s = 0u; s < DECODE_SIMDGROUPS; s++) {
            threadgroup const float* row = (threadgroup const float*)(memory.accs + s * 32u * N);
            x += row[d] * weight_of(memory.tops[s], merged_top);
        }
        if (alone) {
            write_result(x * factor, to + d, y, wide, p);
        } else {
            partial[at + 2u + d] = x;
        }
    }
    if (thread_index == 0u) {
        if (alone) {
            log_sums[query.number] = log_sum(total.top, total.sum);
        } else {
            partial[at] = total.top;
            partial[at + 1u] = total.sum;
        }
    }
}
