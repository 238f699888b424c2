// Tokens to their slots in a cache. Bits are moved as they are, in the widest unit that divides all offsets and strides.

struct KvAppendParams {
    ulong x_strides[4];
    ulong x_token;
    ulong cache_first;
    uint x_dims[4];
    uint starts[32];
    uint counts[32];
    uint first_sequence;
    uint rank;
    uint tokens;
    uint capacity;
    uint width;
    uint per_place;
};

// One thread for each unit of each token: x is the unit, y is (sequence, token).
template <typename T>
[[kernel]] void kv_append(
    device const T* x [[buffer(0)]],
    device T* cache [[buffer(1)]],
    constant KvAppendParams& p [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint sequence = at.y / p.tokens;
    uint token = at.y % p.tokens;
    uint place = sequence / p.per_place;
    if (at.x >= p.width || token >= p.counts[place]) {
        return;
    }
    ulong from = ulong(token) * p.x_token;
    uint rest = p.first_sequence + sequence;
    for (uint d = p.rank; d > 0u; d--) {
        uint dim = p.x_dims[d - 1u];
        from += ulong(rest % dim) * p.x_strides[d - 1u];
        rest /= dim;
    }
    // start < capacity and token < capacity: one subtraction is the remainder.
    uint slot = p.starts[place] + token;
    slot = slot >= p.capacity ? slot - p.capacity : slot;
    ulong to = p.cache_first + (ulong(sequence) * p.capacity + slot) * p.width;
    cache[to + at.x] = x[from + at.x];
}

KERNEL("kv_append_u8", kv_append<uchar>)
KERNEL("kv_append_u16", kv_append<ushort>)
KERNEL("kv_append_u32", kv_append<uint>)
KERNEL("kv_append_u128", kv_append<uint4>)
