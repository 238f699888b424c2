// Attention of many queries: see parts/attention_forward.metal.

template <typename T, uint W>
[[kernel]] void attention_fwd_tile(
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
    constant AttentionParams& p [[buffer(10)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup TileMemory<W> memory;
    Numbers<T> source;
    source.k = k;
    source.v = v;
    Place place = {group, thread_index, lane, simdgroup};
    forward_tile<W>(memory, q, source, mask, allowed, sinks, lengths, y, log_sums, wide, p, place);
}

FOR_DTYPES_WITH(attention_fwd_tile, "attention_fwd_tile_64", 64u)
FOR_DTYPES_WITH(attention_fwd_tile, "attention_fwd_tile_128", 128u)
