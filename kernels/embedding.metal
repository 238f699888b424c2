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

// ---- Positions sorted by their ids ----
//
// A key is an id above its position: sorted keys have equal ids side by side, in the order of their positions. Blocks of keys
// are sorted in threadgroup memory, and then each key finds its place among the others by a binary search in every other
// block. Ids outside of the vocabulary come last.

#define SORT_BLOCK 1024u

struct SortParams {
    ulong vocabulary;
    uint ids;
    uint index_bytes;
    uint width;  // keys of a block, a power of 2 up to SORT_BLOCK
    uint blocks;
};

inline ulong key_at(device const uchar* ids, uint position, constant SortParams& p) {
    if (position >= p.ids) {
        return ~ulong(0);
    }
    ulong id = index_at(ids, position, p.index_bytes);
    return (id < p.vocabulary ? id << 32 : ulong(0xFFFFFFFFu) << 32) | ulong(position);
}

// A bitonic sort of one block by one threadgroup: runs of `size` keys, which rise and fall by turns, are merged.
[[kernel]] void embedding_sort(
    device const uchar* ids [[buffer(0)]],
    device ulong* keys [[buffer(1)]],
    constant SortParams& p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]
) {
    threadgroup ulong block[SORT_BLOCK];
    uint first = group * p.width;
    for (uint i = thread_index; i < p.width; i += threads) {
        block[i] = key_at(ids, first + i, p);
    }
    for (uint size = 2u; size <= p.width; size *= 2u) {
        for (uint stride = size / 2u; stride > 0u; stride /= 2u) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = thread_index; i < p.width / 2u; i += threads) {
                uint low = 2u * i - (i & (stride - 1u));
                uint high = low + stride;
                bool falls = (low & size) != 0u;
                ulong a = block[low];
                ulong b = block[high];
                bool swap = (a > b) != falls;
                block[low] = swap ? b : a;
                block[high] = swap ? a : b;
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < p.width; i += threads) {
        if (first + i < p.ids) {
            keys[first + i] = block[i];
        }
    }
}

// The first of the keys from `low` to `high` that is not below `key`.
inline uint lower_bound(device const ulong* keys, uint low, uint high, ulong key) {
    while (low < high) {
        uint middle = low + (high - low) / 2u;
        if (keys[middle] < key) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

// A thread for each key.
[[kernel]] void embedding_merge(
    device const ulong* keys [[buffer(0)]],
    device ulong* sorted [[buffer(1)]],
    constant SortParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    if (i >= p.ids) {
        return;
    }
    ulong key = keys[i];
    uint own = i / p.width;
    uint place = i - own * p.width;
    for (uint block = 0u; block < p.blocks; block++) {
        if (block != own) {
            uint first = block * p.width;
            uint end = first + min(p.width, p.ids - first);
            place += lower_bound(keys, first, end, key) - first;
        }
    }
    sorted[place] = key;
}

// ---- The gradient: four columns of a row of the weight for each thread, which adds up the segment of the row's id ----

template <typename T>
[[kernel]] void embedding_bwd(
    device const T* g [[buffer(0)]],
    device const ulong* keys [[buffer(1)]],
    device T* dw [[buffer(2)]],
    constant EmbeddingParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong left = p.cols - col;
    bool aligned = p.aligned != 0u;
    float4 sum = float4(0.0f);
    ulong end = (ulong(at.y) + 1u) << 32;
    for (uint i = lower_bound(keys, 0u, p.ids, ulong(at.y) << 32); i < p.ids; i++) {
        ulong key = keys[i];
        if (key >= end) {
            break;
        }
        sum += load4(g + row_offset(uint(key), p.rows) + col, left, aligned, 0.0f);
    }
    store4(dw + ulong(at.y) * p.cols + col, left, aligned, sum);
}

FOR_DTYPES(embedding_fwd, "embedding_fwd")
FOR_DTYPES(embedding_bwd, "embedding_bwd")
