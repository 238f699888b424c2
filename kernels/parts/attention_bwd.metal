// The tiles of attention's gradients: products of 32 rows with 32 others, and the weights' gradients.

// Columns of both factors of a product that are staged at a time.
#define CHUNK 64u
// Room for two chunks, or for 128 columns.
#define STAGED (2u * BLOCK * STAGED_ROW(CHUNK) / 4u)

// Adds a b^T of 32 rows of each, chunk by chunk.
template <typename T>
inline void add_products(
    thread Products& products, threadgroup float4* tile, HeadRows<T> a, uint a0, uint a_count, HeadRows<T> b, uint b0,
    uint b_count, uint thread_index, uint simdgroup
) {
    threadgroup float4* second = tile + BLOCK * STAGED_ROW(CHUNK) / 4u;
    threadgroup const float* left = (threadgroup const float*)tile + 8u * simdgroup * STAGED_ROW(CHUNK);
    threadgroup const float* right = (threadgroup const float*)second;
    for (uint d0 = 0u; d0 < a.cols; d0 += CHUNK) {
        stage<CHUNK>(tile, a, a0, a_count, d0, thread_index);
        stage<CHUNK>(second, b, b0, b_count, d0, thread_index);
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
    float product, float dp, thread const Query& query, uint j, float2 log_sum, float delta, device const T* mask,
    device const uchar* allowed, constant AttentionParams& p
) {
    Weight w;
    w.dropped = 0.0f;
    w.dt = 0.0f;
    w.ds = 0.0f;
    if (sees(query, j)) {
        Score s = score(product, query, j, mask, allowed, p);
        float weight = saved_weight(s.value, log_sum);
        float factor = dropped(query.number, j, p);
        w.dropped = drop(weight, factor);
        w.dt = weight * (drop(dp, factor) - delta);
        w.ds = w.dt * s.slope * p.scale;
    }
    return w;
}

// Whether a query of 32 from `first` on sees a key of 32 from `k0` on.
inline bool overlap(thread const Segment& s, uint first, uint k0, constant AttentionParams& p) {
    uint start = visible(s, first, p).start;
    uint end = visible(s, min(first + BLOCK, s.queries) - 1u, p).end;
    return start < k0 + BLOCK && end > k0;
}
