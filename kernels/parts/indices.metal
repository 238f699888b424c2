// Integer arguments of u8, u32 or i64, by the number of their bytes. A negative one is larger than any size, so that one
// comparison finds whatever lies outside.

inline ulong index_at(device const uchar* indices, ulong i, uint bytes) {
    if (bytes == 8u) {
        return ((device const ulong*)indices)[i];
    }
    if (bytes == 4u) {
        return ulong(((device const uint*)indices)[i]);
    }
    return ulong(indices[i]);
}
