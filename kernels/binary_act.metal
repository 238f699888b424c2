// act(x + y) and act(x y), y broadcast to x; each thread takes four neighbours.

struct BinaryActParams {
    ulong n;
    Spread y;
    float act_param;
    uint aligned;
};

struct Add {
    static float4 combine(float4 x, float4 y) { return x + y; }
};

struct Mul {
    static float4 combine(float4 x, float4 y) { return x * y; }
};

template <typename T, typename Act, typename Op>
[[kernel]] void binary_act_fwd(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device T* out [[buffer(2)]],
    constant BinaryActParams& p [[buffer(3)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    float4 b = load4_spread(y, p.y, i, p.n, aligned);
    float4 z = Op::combine(load4(x + i, p.n - i, aligned, 0.0f), b);
    store4(out + i, p.n - i, aligned, act_fwd4<Act>(z, p.act_param));
}

template <typename T, typename Act, typename Op>
[[kernel]] void binary_act_inplace(
    device T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    constant BinaryActParams& p [[buffer(2)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    float4 b = load4_spread(y, p.y, i, p.n, aligned);
    float4 z = Op::combine(load4((device const T*)x + i, p.n - i, aligned, 0.0f), b);
    store4(x + i, p.n - i, aligned, act_fwd4<Act>(z, p.act_param));
}

// dz = g act'(x + y)
template <typename T, typename Act>
[[kernel]] void binary_act_bwd_add(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device const T* g [[buffer(2)]],
    device T* dz [[buffer(3)]],
    constant BinaryActParams& p [[buffer(4)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    ulong left = p.n - i;
    bool aligned = p.aligned != 0u;
    float4 z = load4(x + i, left, aligned, 0.0f) + load4_spread(y, p.y, i, p.n, aligned);
    store4(dz + i, left, aligned, load4(g + i, left, aligned, 0.0f) * act_grad4<Act>(z, p.act_param));
}

// dx = dz y, and n elements behind it dy = dz x, with dz = g act'(x y)
template <typename T, typename Act>
[[kernel]] void binary_act_bwd_mul(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device const T* g [[buffer(2)]],
    device T* grads [[buffer(3)]],
    constant BinaryActParams& p [[buffer(4)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    ulong left = p.n - i;
    bool aligned = p.aligned != 0u;
    float4 a = load4(x + i, left, aligned, 0.0f);
    float4 b = load4_spread(y, p.y, i, p.n, aligned);
    float4 dz = load4(g + i, left, aligned, 0.0f) * act_grad4<Act>(a * b, p.act_param);
    store4(grads + i, left, aligned, dz * b);
    store4(grads + p.n + i, left, aligned && p.n % 4u == 0u, dz * a);
}

FOR_ACTS_WITH(binary_act_fwd, "binary_act_fwd_add", Add)
FOR_ACTS_WITH(binary_act_fwd, "binary_act_fwd_mul", Mul)
FOR_ACTS_WITH(binary_act_inplace, "binary_act_inplace_add", Add)
FOR_ACTS_WITH(binary_act_inplace, "binary_act_inplace_mul", Mul)
FOR_ACTS_BUT_IDENTITY(binary_act_bwd_add, "binary_act_bwd_add")
FOR_ACTS(binary_act_bwd_mul, "binary_act_bwd_mul")
