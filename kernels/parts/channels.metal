// Rows that are made of channels, each `spatial` elements long.

// The vector's value for four elements of a row from i on; `vector` begins at the row's first channel.
template <typename T>
inline float4 channel4(device const T* vector, uint i, uint spatial, uint cols) {
    uint c = i / spatial;
    if (i - c * spatial + 3u < spatial) {
        return float4(float(vector[c]));
    }
    uint last = cols - 1u;
    return float4(
        float(vector[c]),
        float(vector[min(i + 1u, last) / spatial]),
        float(vector[min(i + 2u, last) / spatial]),
        float(vector[min(i + 3u, last) / spatial])
    );
}
