// Attention of many queries: a threadgroup for each 32 queries of a head, which goes through their keys 32 at a time.
//
// The maximum of a row is raised only when a score exceeds it by more than 8, because raising it scales all sums; weights
// are then at most e^8, which floats hold without loss. Dims beyond W are taken in chunks, values by further threadgroups.

#define RAISE 8.0f

// 8 rows of q for a simdgroup, by W columns.
template <uint W>
struct HeldRows {
    simdgroup_matrix<float, 8, 8> m[W / 8u];

    void load(threadgroup const float* rows) thread {
        UNROLL
        for (uint c = 0u; c < W / 8u; c++) {
            simdgroup_load(m[c], rows + 8u * c, STAGED_ROW(W));
        }
    }
};

// The memory that a threadgroup shares.
template <uint W>
struct TileMemory {
    float4 tile[BLOCK * STAGED_ROW(W) / 4u];
    float scratch[4u * WEIGHTS];
};

// Where a thread stands.
struct Place {
    uint3 group;
    uint thread_index;
    uint lane;
    uint simdgroup;
};

template <uint W, typename T, typename Source>
inline void forward_tile(
    threadgroup TileMemory<W>& memory, device const T* q, Source source, device const T* mask,
    device const uchar* allowed, device const T* sinks, device const uint* lengths, device T* y,
    device float2* log_sums, device float* wide, constant AttentionParams& p, Place place
) {
    typedef typename Source::Rows Rows;
    uint3 group = place.group;
    uint thread_index = place.thread_index;
    uint lane = place.lane;
    uint simdgroup = place.simdgroup;
    threadgroup float4* tile = memory.tile;
    threadgroup const float* rows = (threadgroup const float*)tile;
    threadgroup float* weights = memory.scratch + simdgroup * WEIGHTS;
    threadgroup float* own = weights + lane / 4u * WEIGHT_ROW + lane % 4u;
    Segment segment = segment_at(group.z, lengths, p);
    uint first = group.x * BLOCK;
    if (first >= segment.queries) {
        return;
    }
    uint head = group.y % p.heads;
    uint col0 = group.y / p.heads * W;
    uint cols = min(W, p.value_dim - col0);
    HeadRows<T> qs = head_rows(q, p.q, segment.batch, head, segment.query, p.dim, p.aligned != 0u);
    Rows ks = source.keys(segment, head / p.group, p);
    Rows vs = source.values(segment, head / p.group, p);
    uint i = first + 8u * simdgroup + lane / 4u;
    Query query = query_at(segment, head, i, p);
    uint k0 = visible(segment, first, p).start / BLOCK * BLOCK;
    uint end = visible(segment, min(first + BLOCK, segment.queries) - 1u, p).end;

    HeldRows<W> held;
    bool once = p.dim <= W;
    if (once) {
        stage<W>(tile, qs, first, segment.queries, 0u, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        held.load(rows + 8u * simdgroup * STAGED_ROW(W));
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    Sums<W> sums;
    sums.clear();
    float top = -INFINITY;
    float sum = 0.0f;  // of this lane's columns
    for (; k0 < end; k0 += BLOCK) {
        Products products;
        products.clear();
        for (uint d0 = 0u; d0 < p.dim; d0 += W) {
            if (!once) {
                stage<W>(tile, qs, first, segment.queries, d0, thread_index);
                threadgroup_barrier(mem_flags::mem_threadgroup);
                held.load(rows + 8u * simdgroup * STAGED_ROW(W));
                threadgroup_barrier(mem_flags::mem_threadgroup);
            }
            stage<W>(tile, ks, k0, segment.keys, d0, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL
            for (uint c = 0u; c < W / 8u; c++) {
                if (d0 + 8u * c < p.dim) {
                    products.template add<W>(held.m[c], rows + 8u * c);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        stage<W>(tile, vs, k0, segment.keys, col0, thread_index);
        products.store(weights);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        float t[8];
        float highest = -INFINITY;
        UNROLL
        for (uint n = 0u; n < 8u; n++) {
            uint j = k0 + 4u * n + lane % 4u;
            t[n] = sees(query, j) ? score(own[4u * n], query, j, mask, allowed, p).value : -INFINITY;
            highest = max(highest, t[n]);
        }
        highest = max(highest, simd_shuffle_xor(highest, 1u));
        highest = max(highest, simd_shuffle_xor(highest, 2u));
        bool raise = highest > top + RAISE;
        bool scales = raise && top > -INFINITY;
        if (simd_any(scales)) {
            float factor = scales ? exp(top - highest) : 1.0f;
            sum *= factor;
            sums.scale(weights, factor, lane);
        }
        top = raise ? highest : top;
        float base = top > -INFINITY ? top : 0.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL
        for (uint n = 0u; n < 8u; n++) {
            float weight = exp(t[n] - base);
            sum += weight;
            if (p.has_dropout != 0u) {
                weight = drop(weight, dropped(query.number, k0 + 4u * n + lane % 4u, p));
            }
            own[4u * n] = weight;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sums.add(weights, rows, cols);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    sum += simd_shuffle_xor(sum, 1u);
    sum += simd_shuffle_xor(sum, 2u);
    float factor = 1.0f;
    if (p.has_sinks != 0u) {
        float sink = float(sinks[head]);
        float higher = max(top, sink);
        float base = higher > -INFINITY ? higher : 0.0f;
        factor = exp(top - base);
        sum = sum * factor + exp(sink - base);
        top = base;
    }
    bool exists = i < segment.queries;
    factor = sum == 0.0f ? 0.0f : factor / sum;
    ulong at = segment.batch * p.y[0] + head * p.y[1] + (segment.query + i) * p.y[2] + col0;
    sums.write(weights, y + at, cols, factor, exists, p.value_dim % 4u == 0u, lane);
    if (p.wants_wide != 0u) {
        sums.write(weights, wide + at, cols, factor, exists, p.value_dim % 4u == 0u, lane);
    }
    if (exists && lane % 4u == 0u && col0 == 0u) {
        log_sums[query.number] = log_sum(top, sum);
    }
}
