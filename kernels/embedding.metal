// Rows of a weight, looked up by ids, and their gradients added up for each row of the weight.

struct EmbeddingParams {
    RowStrides rows;  // of the weight, or of the gradient
    ulong vocabulary;
    ulong cols;
    uint ids;
    uint index_bytes;
    uint aligned;
    uint reserved;
};

// Four columns of a row for each thread. An id outside of the vocabulary gives NaN.
template <typename T>
[[kernel]] void embedding_fwd(
    device const T* weight [[buffer(0)]],
    device const uchar* ids [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant EmbeddingParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong left = p.cols - col;
    bool aligned = p.aligned != 0u;
    ulong id = index_at(ids, at.y, p.index_bytes);
    float4 v = float4(as_type<float>(0x7FC00000u));
    if (id < p.vocabulary) {
        v = load4(weight + row_offset(uint(id), p.rows) + col, left, aligned, 0.0f);
    }
    store4(y + ulong(at.y) * p.cols + col, left, aligned, v);
}

// A row of the weight and 512 of its columns for each threadgroup of 128 threads. It looks at 128 ids at a time, one for each
// thread; where some are its own, all threads add the gradients of their positions, in order.
template <typename T>
[[kernel]] void embedding_bwd(
    device const T* g [[buffer(0)]],
    device const uchar* ids [[buffer(1)]],
    device T* dw [[buffer(2)]],
    constant EmbeddingParams& p [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup uint found[4];
    ulong col = ulong(group.x) * 512u + thread_index * 4u;
    bool aligned = p.aligned != 0u;
    float4 sum = float4(0.0f);
    for (uint first = 0u; first < p.ids; first += 128u) {
        uint position = first + thread_index;
        bool own = position < p.ids && index_at(ids, position, p.index_bytes) == group.y;
        uint mask = simd_or(own ? 1u << lane : 0u);
        if (lane == 0u) {
            found[simdgroup] = mask;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0u; k < 4u; k++) {
            for (uint left = found[k]; left != 0u; left &= left - 1u) {
                uint row = first + k * 32u + ctz(left);
                if (col < p.cols) {
                    sum += load4(g + row_offset(row, p.rows) + col, p.cols - col, aligned, 0.0f);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (col < p.cols) {
        store4(dw + ulong(group.y) * p.cols + col, p.cols - col, aligned, sum);
    }
}

FOR_DTYPES(embedding_fwd, "embedding_fwd")
FOR_DTYPES(embedding_bwd, "embedding_bwd")
