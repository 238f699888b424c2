// mask act(x) [+ residual]; each thread takes four neighbours, the four words of one Philox counter.

struct DropoutParams {
    ulong n;
    uint seed_low;
    uint seed_high;
    uint threshold;
    float scale;
    uint aligned;
};

// A dropped NaN or infinity is 0.
inline float4 masked4(float4 x, ulong i, constant DropoutParams& p) {
    uint4 counter = uint4(uint(i / 4u), uint((i / 4u) >> 32u), 0u, 0u);
    uint4 words = philox(uint2(p.seed_low, p.seed_high), counter);
    float4 v = float4(0.0f);
    for (uint k = 0u; k < 4u; k++) {
        v[k] = words[k] >= p.threshold ? x[k] * p.scale : 0.0f;
    }
    return v;
}

template <typename T, typename Act>
[[kernel]] void dropout_fwd(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant DropoutParams& p [[buffer(2)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    float4 v = act_fwd4<Act>(load4(x + i, p.n - i, aligned, 0.0f), 0.0f);
    store4(y + i, p.n - i, aligned, masked4(v, i, p));
}

template <typename T, typename Act>
[[kernel]] void dropout_inplace(
    device T* x [[buffer(0)]],
    constant DropoutParams& p [[buffer(1)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    float4 v = act_fwd4<Act>(load4((device const T*)x + i, p.n - i, aligned, 0.0f), 0.0f);
    store4(x + i, p.n - i, aligned, masked4(v, i, p));
}

template <typename T>
[[kernel]] void dropout_add(
    device const T* x [[buffer(0)]],
    device const T* residual [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant DropoutParams& p [[buffer(3)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    ulong left = p.n - i;
    bool aligned = p.aligned != 0u;
    float4 kept = masked4(load4(x + i, left, aligned, 0.0f), i, p);
    store4(y + i, left, aligned, kept + load4(residual + i, left, aligned, 0.0f));
}

FOR_DTYPES_WITH(dropout_fwd, "dropout_fwd_identity", Identity)
FOR_DTYPES_WITH(dropout_fwd, "dropout_fwd_relu", Relu)
FOR_DTYPES_WITH(dropout_inplace, "dropout_inplace_identity", Identity)
FOR_DTYPES_WITH(dropout_inplace, "dropout_inplace_relu", Relu)
FOR_DTYPES(dropout_add, "dropout_add")
