// act(x scale + bias), scale and bias broadcast to x; each thread takes four neighbours.

struct AffineActParams {
    ulong n;
    Spread scale;
    Spread bias;
    float act_param;
    uint aligned;
};

template <typename T, typename Act>
[[kernel]] void affine_act_fwd(
    device const T* x [[buffer(0)]],
    device const T* scale [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant AffineActParams& p [[buffer(4)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    float4 s = load4_spread(scale, p.scale, i, p.n, aligned);
    float4 b = load4_spread(bias, p.bias, i, p.n, aligned);
    float4 z = fma(load4(x + i, p.n - i, aligned, 0.0f), s, b);
    store4(y + i, p.n - i, aligned, act_fwd4<Act>(z, p.act_param));
}

template <typename T, typename Act>
[[kernel]] void affine_act_inplace(
    device T* x [[buffer(0)]],
    device const T* scale [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    constant AffineActParams& p [[buffer(3)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    float4 s = load4_spread(scale, p.scale, i, p.n, aligned);
    float4 b = load4_spread(bias, p.bias, i, p.n, aligned);
    float4 z = fma(load4((device const T*)x + i, p.n - i, aligned, 0.0f), s, b);
    store4(x + i, p.n - i, aligned, act_fwd4<Act>(z, p.act_param));
}

FOR_ACTS(affine_act_fwd, "affine_act_fwd")
FOR_ACTS(affine_act_inplace, "affine_act_inplace")
