// What the gradients of attention begin with, delta = g y of each query, and what they end with: the gradients of the mask and
// of the sinks,
//
//   dmask = p (dp - delta)               summed over all that an element is repeated for
//   dsink = -e^(sink - L) delta          summed over the queries of a head
//
// Nothing is added up by atomics: a threadgroup for each tile of the mask and for each sink makes the sums in order.

// ---- delta ----

// A simdgroup for each query of a head.
template <typename T>
[[kernel]] void attention_bwd_delta(
    device const float* y [[buffer(0)]],
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
    device const float* ys = y + batch * p.y[0] + head * p.y[1] + at * p.y[2];
    device const T* gs = grad + batch * p.grad[0] + head * p.grad[1] + at * p.grad[2];
    float sum = 0.0f;
    for (uint d = lane; d < p.value_dim; d += 32u) {
        sum += ys[d] * float(gs[d]);
    }
    sum = simd_sum(sum);
    if (lane == 0u) {
        delta[number] = sum;
    }
}

FOR_DTYPES(attention_bwd_delta, "attention_bwd_delta")

// ---- The mask and the sinks ----

// A threadgroup for each tile of each of the mask's matrices; if the sinks are wanted, each threadgroup of the last plane takes a head.
template <typename T>
[[kernel]] void attention_bwd_rest(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const T* mask [[buffer(3)]],
    device const T* sinks [[buffer(4)]],
    device const uint* lengths [[buffer(5)]],
    device const T* grad [[buffer(6)]],
    device const float2* log_sums [[buffer(7)]],
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
                    float2 saved = log_sums[number + i];
                    sum -= exp((sink - saved.x) - saved.y) * delta[number + i];
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
            HeadRows<T> qs = head_rows(q, p.q, batch, head, 0u, p.dim, aligned);
            HeadRows<T> gs = head_rows(grad, p.grad, batch, head, 0u, p.value_dim, aligned);
            HeadRows<T> ks = head_rows(k, p.k, batch, head / p.group, 0u, p.dim, aligned);
            HeadRows<T> vs = head_rows(v, p.v, batch, head / p.group, 0u, p.value_dim, aligned);
            for (uint first = q0; first < q1; first += BLOCK) {
                uint i = first + 8u * simdgroup + lane / 4u;
                bool exists = i < p.queries;
                Query query = query_at(segment, head, i, p);
                float2 log_sum = exists ? log_sums[query.number] : no_keys();
                float d = exists ? delta[query.number] : 0.0f;
                for (uint key = k0; key < k1; key += BLOCK) {
                    if (!overlap(segment, first, key, p)) {
                        continue;
                    }
                    Products products;
                    products.clear();
                    add_products(
                        products, tile, qs, first, p.queries, ks, key, segment.keys, thread_index, simdgroup
                    );
                    products.store(weights);
                    products.clear();
                    add_products(
                        products, tile, gs, first, p.queries, vs, key, segment.keys, thread_index, simdgroup
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
