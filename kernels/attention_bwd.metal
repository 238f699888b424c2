// The gradients of attention, from the log-sum-exps that the forward has saved. With g the gradient of the result y:
//
//   delta = g y           of each query
//   dp = drop(g v^T)
//   dt = p (dp - delta)   the gradient of the mask
//   ds = dt slope scale
//
// Nothing is added up by atomics: a threadgroup for each 32 keys sums over the queries, one for each 32 queries over the
// keys, and one for each tile of the mask over all that it is repeated for.

// Columns of both factors of a product that are staged at a time.
#define CHUNK 64u
// Room for two chunks, or for 128 columns.
#define STAGED (2u * BLOCK * STAGED_ROW(CHUNK) / 4u)

// ---- delta ----

// A simdgroup for each query of a head.
template <typename T>
[[kernel]] void attention_bwd_delta(
    device const T* y [[buffer(0)]],
    device const T* grad [[buffer(1)]],
    device float* delta [[buffer(2)]],
    constant AttentionParams& p [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    uint number = group * simdgroups + simdgroup;
    if (number >= p.batch * p.heads * p.queries) {
        return;
    }
    uint head = number / p.queries % p.heads;
    uint batch = number / p.queries / p.heads;
    uint at = number % p.queries;
    device const T* ys = y + batch * p.y[0] + head * p.y[1] + at * p.y[2];
    device const T* gs = grad + batch * p.grad[0] + head * p.grad[1] + at * p.grad[2];
    float sum = 0.0f;
    for (uint d = lane; d < p.value_dim; d += 32u) {
        sum += float(ys[d]) * float(gs[d]);
    }
    sum = simd_sum(sum);
    if (lane == 0u) {
        delta[number] = sum;
    }
}

FOR_DTYPES(attention_bwd_delta, "attention_bwd_delta")

// ---- Tiles ----

// Adds a b^T of 32 rows of each, chunk by chunk.
template <typename T>
inline void add_products(
    thread Products& products, threadgroup float4* tile, HeadRows<T> a, uint a0, uint a_count, HeadRows<T> b, uint b0,
    uint b_count, bool aligned, uint thread_index, uint simdgroup
) {
    threadgroup float4* second = tile + BLOCK * STAGED_ROW(CHUNK) / 4u;
    threadgroup const float* left = (threadgroup const float*)tile + 8u * simdgroup * STAGED_ROW(CHUNK);
    threadgroup const float* right = (threadgroup const float*)second;
    for (uint d0 = 0u; d0 < a.cols; d0 += CHUNK) {
        stage<CHUNK>(tile, a, a0, a_count, d0, aligned, thread_index);
        stage<CHUNK>(second, b, b0, b_count, d0, aligned, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL
        for (uint c = 0u; c < CHUNK / 8u; c++) {
            if (d0 + 8u * c < a.cols) {
                simdgroup_matrix<float, 8, 8> m;
                simdgroup_load(m, left + 8u * c, STAGED_ROW(CHUNK));
                products.template add<CHUNK>(m, right + 8u * c);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// Of one weight.
struct Weight {
    float dropped;  // drop(p)
    float dt;
    float ds;
};

template <typename T>
inline Weight weight_at(
    float product, float dp, thread const Query& query, uint j, float log_sum, float delta, device const T* mask,
    device const uchar* allowed, constant AttentionParams& p
) {
    Weight w;
    w.dropped = 0.0f;
    w.dt = 0.0f;
    w.ds = 0.0f;
    if (sees(query, j)) {
        Score s = score(product, query, j, mask, allowed, p);
        float weight = exp(s.value - log_sum);
        float factor = dropped(query.number, j, p);
        w.dropped = drop(weight, factor);
        w.dt = weight * (drop(dp, factor) - delta);
        w.ds = w.dt * s.slope * p.scale;
    }
    return w;
}

// ---- dk, dv ----

// Whether a query of 32 from `first` on sees a key of 32 from `k0` on.
inline bool overlap(thread const Segment& s, uint first, uint k0, constant AttentionParams& p) {
    uint start = visible(s, first, p).start;
    uint end = visible(s, min(first + BLOCK, s.queries) - 1u, p).end;
    return start < k0 + BLOCK && end > k0;
}

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
    device const float* log_sums [[buffer(7)]],
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
    // Keys that don't exist get zeros, except that those of another sequence get its gradients.
    uint last = p.packed != 0u ? segment.keys : p.keys;
    if (k0 >= last) {
        return;
    }
    uint kv_head = group.y % p.kv_heads;
    uint col0 = group.y / p.kv_heads * W;
    uint k_cols = p.dim > col0 ? min(W, p.dim - col0) : 0u;
    uint v_cols = p.value_dim > col0 ? min(W, p.value_dim - col0) : 0u;
    bool aligned = p.aligned != 0u;
    HeadRows<T> ks = head_rows(k, p.k, segment.batch, kv_head, segment.key, p.dim);
    HeadRows<T> vs = head_rows(v, p.v, segment.batch, kv_head, segment.key, p.value_dim);
    uint j = k0 + 8u * simdgroup + lane / 4u;
    Sums<W> k_sums;
    Sums<W> v_sums;
    k_sums.clear();
    v_sums.clear();
    for (uint head = kv_head * p.group; head < (kv_head + 1u) * p.group; head++) {
        HeadRows<T> qs = head_rows(q, p.q, segment.batch, head, segment.query, p.dim);
        HeadRows<T> gs = head_rows(grad, p.grad, segment.batch, head, segment.query, p.value_dim);
        for (uint first = 0u; first < segment.queries; first += BLOCK) {
            if (!overlap(segment, first, k0, p)) {
                continue;
            }
            Products products;
            products.clear();
            add_products(
                products, tile, ks, k0, segment.keys, qs, first, segment.queries, aligned, thread_index, simdgroup
            );
            products.store(weights);
            products.clear();
            add_products(
                products, tile, vs, k0, segment.keys, gs, first, segment.queries, aligned, thread_index, simdgroup
            );
            products.store(slopes);
            stage<W>(tile, gs, first, segment.queries, col0, aligned, thread_index);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL
            for (uint n = 0u; n < 8u; n++) {
                uint i = first + 4u * n + lane % 4u;
                uint at = own + 4u * n;
                Query query = query_at(segment, head, i, p);
                bool exists = i < segment.queries;
                float log_sum = exists ? log_sums[query.number] : INFINITY;
                float d = exists ? delta[query.number] : 0.0f;
                Weight w = weight_at(weights[at], slopes[at], query, j, log_sum, d, mask, allowed, p);
                weights[at] = w.dropped;
                slopes[at] = w.ds;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            v_sums.add(weights, rows, v_cols);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage<W>(tile, qs, first, segment.queries, col0, aligned, thread_index);
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
    device const float* log_sums [[buffer(7)]],
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
    HeadRows<T> qs = head_rows(q, p.q, segment.batch, head, segment.query, p.dim);
    HeadRows<T> gs = head_rows(grad, p.grad, segment.batch, head, segment.query, p.value_dim);
    HeadRows<T> ks = head_rows(k, p.k, segment.batch, head / p.group, segment.key, p.dim);
    HeadRows<T> vs = head_rows(v, p.v, segment.batch, head / p.group, segment.key, p.value_dim);
    uint i = first + 8u * simdgroup + lane / 4u;
    bool exists = i < segment.queries;
    Query query = query_at(segment, head, i, p);
    float log_sum = exists ? log_sums[query.number] : INFINITY;
    float d = exists ? delta[query.number] : 0.0f;
    uint k0 = visible(segment, first, p).start / BLOCK * BLOCK;
    uint end = visible(segment, min(first + BLOCK, segment.queries) - 1u, p).end;
    Sums<W> sums;
    sums.clear();
    for (; k0 < end; k0 += BLOCK) {
        Products products;
        products.clear();
        add_products(
            products, tile, qs, first, segment.queries, ks, k0, segment.keys, aligned, thread_index, simdgroup
        );
        products.store(weights);
        products.clear();
        add_products(
            products, tile, gs, first, segment.queries, vs, k0, segment.keys, aligned, thread_index, simdgroup
        );
        products.store(slopes);
        stage<W>(tile, ks, k0, segment.keys, col0, aligned, thread_index);
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

// ---- The mask and the sinks ----

// A threadgroup for each tile of each of the mask's matrices; if the sinks are wanted, those of the last plane take a head each.
template <typename T>
[[kernel]] void attention_bwd_rest(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const T* mask [[buffer(3)]],
    device const T* sinks [[buffer(4)]],
    device const uint* lengths [[buffer(5)]],
    device const T* grad [[buffer(6)]],
    device const float* log_sums [[buffer(7)]],
    device const float* delta [[buffer(8)]],
    device T* dmask [[buffer(9)]],
    device T* dsinks [[buffer(10)]],
    constant AttentionParams& p [[buffer(11)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float4 tile[STAGED];
    threadgroup float weights_of_all[4u * WEIGHTS];
    threadgroup float slopes_of_all[4u * WEIGHTS];
    threadgroup float scratch[32];
    threadgroup float* weights = weights_of_all + simdgroup * WEIGHTS;
    threadgroup float* slopes = slopes_of_all + simdgroup * WEIGHTS;
    uint own = lane / 4u * WEIGHT_ROW + lane % 4u;
    if (p.wants_sinks != 0u && group.z + 1u == groups.z) {
        for (uint head = group.y * groups.x + group.x; head < p.heads; head += groups.x * groups.y) {
            float sink = float(sinks[head]);
            float sum = 0.0f;
            for (uint batch = 0u; batch < p.batch; batch++) {
                ulong number = ulong(batch * p.heads + head) * p.queries;
                for (uint i = thread_index; i < p.queries; i += BLOCK_THREADS) {
                    sum -= exp(sink - log_sums[number + i]) * delta[number + i];
                }
            }
            sum = tg_sum(sum, scratch, lane, simdgroup, 4u);
            if (thread_index == 0u) {
                dsinks[head] = T(sum);
            }
        }
        return;
    }
    // Of the mask, and what each of its elements is repeated for.
    uint b0 = group.z / p.mask_dims[1];
    uint h0 = group.z % p.mask_dims[1];
    uint b1 = p.mask_dims[0] == 1u ? p.batch : b0 + 1u;
    uint h1 = p.mask_dims[1] == 1u ? p.heads : h0 + 1u;
    bool all_queries = p.mask_dims[2] == 1u;
    bool all_keys = p.mask_dims[3] == 1u;
    uint q0 = group.y * BLOCK;
    uint q1 = all_queries ? p.queries : q0 + 1u;
    uint k0 = group.x * BLOCK;
    uint k1 = all_keys ? p.keys : k0 + 1u;
    bool aligned = p.aligned != 0u;
    float sums[8];
    UNROLL
    for (uint n = 0u; n < 8u; n++) {
        sums[n] = 0.0f;
    }
    for (uint batch = b0; batch < b1; batch++) {
        Segment segment = segment_at(batch, lengths, p);
        for (uint head = h0; head < h1; head++) {
            HeadRows<T> qs = head_rows(q, p.q, batch, head, 0u, p.dim);
            HeadRows<T> gs = head_rows(grad, p.grad, batch, head, 0u, p.value_dim);
            HeadRows<T> ks = head_rows(k, p.k, batch, head / p.group, 0u, p.dim);
            HeadRows<T> vs = head_rows(v, p.v, batch, head / p.group, 0u, p.value_dim);
            for (uint first = q0; first < q1; first += BLOCK) {
                uint i = first + 8u * simdgroup + lane / 4u;
                bool exists = i < p.queries;
                Query query = query_at(segment, head, i, p);
                float log_sum = exists ? log_sums[query.number] : INFINITY;
                float d = exists ? delta[query.number] : 0.0f;
                for (uint key = k0; key < k1; key += BLOCK) {
                    if (!overlap(segment, first, key, p)) {
                        continue;
                    }
                    Products products;
                    products.clear();
                    add_products(
                        products, tile, qs, first, p.queries, ks, key, segment.keys, aligned, thread_index, simdgroup
                    );
                    products.store(weights);
                    products.clear();
                    add_products(
                        products, tile, gs, first, p.queries, vs, key, segment.keys, aligned, thread_index, simdgroup
                    );
                    products.store(slopes);
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    UNROLL
                    for (uint n = 0u; n < 8u; n++) {
                        uint at = own + 4u * n;
                        uint j = key + 4u * n + lane % 4u;
                        device const uchar* none = (device const uchar*)mask;
                        sums[n] += weight_at(weights[at], slopes[at], query, j, log_sum, d, mask, none, p).dt;
                    }
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                }
            }
        }
    }
    UNROLL
    for (uint n = 0u; n < 8u; n++) {
        weights[own + 4u * n] = sums[n];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint height = all_queries ? 1u : BLOCK;
    uint width = all_keys ? 1u : BLOCK;
    device T* to = dmask + ulong(group.z) * p.mask_dims[2] * p.mask_dims[3];
    for (uint n = thread_index; n < height * width; n += BLOCK_THREADS) {
        uint r = n / width;
        uint c = n % width;
        if (q0 + r < p.mask_dims[2] && k0 + c < p.mask_dims[3]) {
            float sum = 0.0f;
            for (uint i = r; i < (all_queries ? BLOCK : r + 1u); i++) {
                for (uint j = c; j < (all_keys ? BLOCK : c + 1u); j++) {
                    sum += weights_of_all[i * WEIGHT_ROW + j];
                }
            }
            to[ulong(q0 + r) * p.mask_dims[3] + k0 + c] = T(sum);
        }
    }
}

FOR_DTYPES(attention_bwd_rest, "attention_bwd_rest")
