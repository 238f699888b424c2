// The gradients of attention to q, k and v, from the log-sum-exps that the forward has saved. With g the gradient of the
// result y:
//
//   dp = drop(g v^T)
//   dt = p (dp - delta)
//   ds = dt slope scale
//
// Nothing is added up by atomics: a threadgroup for each 32 keys sums over the queries, one for each 32 queries over the
// keys.

// ---- dk, dv ----

// Rows are keys, columns queries.
template <typename T, uint W>
[[kernel]] void attention_bwd_keys(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const T* mask [[buffer(3)]],
    device const uchar* allowed [[buffer(4)]],
    device const uint* lengths [[buffer(5)]],
    device const T* grad [[buffer(6)]],
    device const float2* log_sums [[buffer(7)]],
    device const float* delta [[buffer(8)]],
    device T* dk [[buffer(9)]],
    device T* dv [[buffer(10)]],
    constant AttentionParams& p [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float4 tile[STAGED];
    threadgroup float weights_of_all[4u * WEIGHTS];
    threadgroup float slopes_of_all[4u * WEIGHTS];
    threadgroup const float* rows = (threadgroup const float*)tile;
    threadgroup float* weights = weights_of_all + simdgroup * WEIGHTS;
    threadgroup float* slopes = slopes_of_all + simdgroup * WEIGHTS;
    uint own = lane / 4u * WEIGHT_ROW + lane % 4u;
    Segment segment = segment_at(group.z, lengths, p);
    uint k0 = group.x * BLOCK;
    // Keys beyond the length of a batch row get zeros; a packed sequence writes the gradients of its own keys alone.
    uint last = p.packed != 0u ? segment.keys : p.keys;
    if (k0 >= last) {
        return;
    }
    uint kv_head = group.y % p.kv_heads;
    uint col0 = group.y / p.kv_heads * W;
    uint k_cols = p.dim > col0 ? min(W, p.dim - col0) : 0u;
    uint v_cols = p.value_dim > col0 ? min(W, p.value_dim - col0) : 0u;
    bool aligned = p.aligned != 0u;
    HeadRows<T> ks = head_rows(k, p.k, segment.batch, kv_head, segment.key, p.dim, aligned);
    HeadRows<T> vs = head_rows(v, p.v, segment.batch, kv_head, segment.key, p.value_dim, aligned);
    uint j = k0 + 8u * simdgroup + lane / 4u;
    Sums<W> k_sums;
    Sums<W> v_sums;
    k_sums.clear();
    v_sums.clear();
    for (uint head = kv_head * p.group; head < (kv_head + 1u) * p.group; head++) {
        HeadRows<T> qs = head_rows(q, p.q, segment.batch, head, segment.query, p.dim, aligned);
        HeadRows<T> gs = head_rows(grad, p.grad, segment.batch, head, segment.query, p.value_dim, aligned);
        for (uint first = 0u; first < segment.queries; first += BLOCK) {
            if (!overlap(segment, first, k0, p)) {
                continue;
            }
            Products products;
            products.clear();
            add_products(
                products, tile, ks, k0, segment.keys, qs, first, segment.queries, thread_index, simdgroup
            );
            products.store(weights);
            products.clear();
            add_products(
                products, tile, vs, k0, segment.keys, gs, first, segment.queries, thread_index, simdgroup
            );
            products.store(slopes);
            stage<W>(tile, gs, first, segment.queries, col0, thread_index);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            Query query = query_at(segment, head, first + lane % 4u, p);
            UNROLL
            for (uint n = 0u; n < 8u; n++) {
                uint i = first + 4u * n + lane % 4u;
                uint at = own + 4u * n;
                bool exists = i < segment.queries;
                query.span = span_of(segment, i, p);
                float2 log_sum = exists ? log_sums[query.number] : no_keys();
                float d = exists ? delta[query.number] : 0.0f;
                Weight w = weight_at(weights[at], slopes[at], query, j, log_sum, d, mask, allowed, p);
                weights[at] = w.dropped;
                slopes[at] = w.ds;
                query.number += 4u;
                query.mask += 4u * p.mask[2];
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            v_sums.add(weights, rows, v_cols);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage<W>(tile, qs, first, segment.queries, col0, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            k_sums.add(slopes, rows, k_cols);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    bool exists = j < last;
    if (p.wants_k != 0u) {
        device T* to = dk + segment.batch * p.dk[0] + kv_head * p.dk[1] + (segment.key + j) * p.dk[2] + col0;
        k_sums.write(weights, to, k_cols, 1.0f, exists, p.dim % 4u == 0u, lane);
    }
    if (p.wants_v != 0u) {
        device T* to = dv + segment.batch * p.dv[0] + kv_head * p.dv[1] + (segment.key + j) * p.dv[2] + col0;
        v_sums.write(slopes, to, v_cols, 1.0f, exists, p.value_dim % 4u == 0u, lane);
    }
}

FOR_DTYPES_WITH(attention_bwd_keys, "attention_bwd_keys_64", 64u)
FOR_DTYPES_WITH(attention_bwd_keys, "attention_bwd_keys_128", 128u)

// ---- dq ----

// Rows are queries, columns keys.
template <typename T, uint W>
[[kernel]] void attention_bwd_queries(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const T* mask [[buffer(3)]],
    device const uchar* allowed [[buffer(4)]],
    device const uint* lengths [[buffer(5)]],
    device const T* grad [[buffer(6)]],
    device const float2* log_sums [[buffer(7)]],
    device const float* delta [[buffer(8)]],
    device T* dq [[buffer(9)]],
    constant AttentionParams& p [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float4 tile[STAGED];
    threadgroup float weights_of_all[4u * WEIGHTS];
    threadgroup float slopes_of_all[4u * WEIGHTS];
    threadgroup const float* rows = (threadgroup const float*)tile;
    threadgroup float* weights = weights_of_all + simdgroup * WEIGHTS;
    threadgroup float* slopes = slopes_of_all + simdgroup * WEIGHTS;
    uint own = lane / 4u * WEIGHT_ROW + lane % 4u;
    Segment segment = segment_at(group.z, lengths, p);
    uint first = group.x * BLOCK;
    if (first >= segment.queries) {
        return;
    }
    uint head = group.y % p.heads;
    uint col0 = group.y / p.heads * W;
    uint cols = min(W, p.dim - col0);
    bool aligned = p.aligned != 0u;
    HeadRows<T> qs = head_rows(q, p.q, segment.batch, head, segment.query, p.dim, aligned);
    HeadRows<T> gs = head_rows(grad, p.grad, segment.batch, head, segment.query, p.value_dim, aligned);
    HeadRows<T> ks = head_rows(k, p.k, segment.batch, head / p.group, segment.key, p.dim, aligned);
    HeadRows<T> vs = head_rows(v, p.v, segment.batch, head / p.group, segment.key, p.value_dim, aligned);
    uint i = first + 8u * simdgroup + lane / 4u;
    bool exists = i < segment.queries;
    Query query = query_at(segment, head, i, p);
    float2 log_sum = exists ? log_sums[query.number] : no_keys();
    float d = exists ? delta[query.number] : 0.0f;
    uint k0 = visible(segment, first, p).start / BLOCK * BLOCK;
    uint end = visible(segment, min(first + BLOCK, segment.queries) - 1u, p).end;
    Sums<W> sums;
    sums.clear();
    for (; k0 < end; k0 += BLOCK) {
        Products products;
        products.clear();
        add_products(
            products, tile, qs, first, segment.queries, ks, k0, segment.keys, thread_index, simdgroup
        );
        products.store(weights);
        products.clear();
        add_products(
            products, tile, gs, first, segment.queries, vs, k0, segment.keys, thread_index, simdgroup
        );
        products.store(slopes);
        stage<W>(tile, ks, k0, segment.keys, col0, thread_index);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL
        for (uint n = 0u; n < 8u; n++) {
            uint at = own + 4u * n;
            uint j = k0 + 4u * n + lane % 4u;
            slopes[at] = weight_at(weights[at], slopes[at], query, j, log_sum, d, mask, allowed, p).ds;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sums.add(slopes, rows, cols);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    device T* to = dq + segment.batch * p.dq[0] + head * p.dq[1] + (segment.query + i) * p.dq[2] + col0;
    sums.write(weights, to, cols, 1.0f, exists, p.dim % 4u == 0u, lane);
}

FOR_DTYPES_WITH(attention_bwd_queries, "attention_bwd_queries_64", 64u)
FOR_DTYPES_WITH(attention_bwd_queries, "attention_bwd_queries_128", 128u)
