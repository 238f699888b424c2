// Attention of few queries: see parts/attention_few.metal.

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
    device float2* log_sums [[buffer(8)]],
    device float* wide [[buffer(9)]],
    device float* partial [[buffer(10)]],
    constant AttentionParams& p [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup FewMemory<N> memory;
    Numbers<T> source;
    source.k = k;
    source.v = v;
    forward_few<N>(
        memory, q, source, mask, allowed, sinks, lengths, y, log_sums, wide, partial, p, group, thread_index, lane, simdgroup
    );
}

// A threadgroup for each query of a head.
template <typename T>
[[kernel]] void attention_fwd_merge(
    device const float* partial [[buffer(0)]],
    device const T* sinks [[buffer(1)]],
    device T* y [[buffer(2)]],
    device float2* log_sums [[buffer(3)]],
    device float* wide [[buffer(4)]],
    constant AttentionParams& p [[buffer(5)]],
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
    ulong to = batch * p.y[0] + head * p.y[1] + at * p.y[2];
    for (uint d = thread_index; d < p.value_dim; d += threads) {
        float x = 0.0f;
        for (uint n = 0u; n < p.parts; n++) {
            x += parts[n * row + 2u + d] * weight_of(parts[n * row], top);
        }
        write_result(x * factor, to + d, y, wide, p);
    }
    if (thread_index == 0u) {
        log_sums[number] = log_sum(total.top, total.sum);
    }
}

FOR_DTYPES_WITH(attention_fwd_decode, "attention_fwd_decode_128", 1u)
FOR_DTYPES_WITH(attention_fwd_decode, "attention_fwd_decode_512", 4u)
FOR_DTYPES(attention_fwd_merge, "attention_fwd_merge")
