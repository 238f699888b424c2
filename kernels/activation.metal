// y = act(x) and dx = g act'(x); each thread takes four neighbours.

struct ActivationParams {
    ulong n;
    float act_param;
    uint aligned;
};

template <typename T, typename Act>
[[kernel]] void activation_fwd(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant ActivationParams& p [[buffer(2)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    float4 v = load4(x + i, p.n - i, p.aligned != 0u, 0.0f);
    store4(y + i, p.n - i, p.aligned != 0u, act_fwd4<Act>(v, p.act_param));
}

template <typename T, typename Act>
[[kernel]] void activation_inplace(
    device T* x [[buffer(0)]],
    constant ActivationParams& p [[buffer(1)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    float4 v = load4((device const T*)x + i, p.n - i, p.aligned != 0u, 0.0f);
    store4(x + i, p.n - i, p.aligned != 0u, act_fwd4<Act>(v, p.act_param));
}

template <typename T, typename Act>
[[kernel]] void activation_bwd(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device T* dx [[buffer(2)]],
    constant ActivationParams& p [[buffer(3)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    ulong left = p.n - i;
    bool aligned = p.aligned != 0u;
    float4 slope = act_grad4<Act>(load4(x + i, left, aligned, 0.0f), p.act_param);
    store4(dx + i, left, aligned, slope * load4(g + i, left, aligned, 0.0f));
}

FOR_ACTS(activation_fwd, "activation_fwd")
FOR_ACTS(activation_inplace, "activation_inplace")
FOR_ACTS_BUT_IDENTITY(activation_bwd, "activation_bwd")
