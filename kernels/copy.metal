// Contiguous to strided, for in-place ops on tensors that are not contiguous. Bits are moved as they are, so that the
// width of an element is all that matters.

struct StridedParams {
    ulong strides[8];
    uint dims[8];
    uint count;
    uint rank;
};

template <typename T>
[[kernel]] void copy_to_strided(
    device const T* src [[buffer(0)]],
    device T* dst [[buffer(1)]],
    constant StridedParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    if (i >= p.count) {
        return;
    }
    ulong at = 0;
    uint rest = i;
    for (uint d = p.rank; d > 0u; d--) {
        uint dim = p.dims[d - 1u];
        at += ulong(rest % dim) * p.strides[d - 1u];
        rest /= dim;
    }
    dst[at] = src[i];
}

KERNEL("copy_to_strided_u16", copy_to_strided<ushort>)
KERNEL("copy_to_strided_u32", copy_to_strided<uint>)
