// act(gate) up, of two tensors or of packed rows; each thread takes four neighbours of one row.
//
// A row has `cols` elements and starts `stride` elements behind the one before: separate tensors are one row, packed
// ones have stride 2 cols. `up` begins `up_at` elements into its buffer, its gradient `dup_at` into that of both.

struct GluParams {
    ulong cols;
    ulong stride;
    ulong up_at;
    ulong dup_at;
    float act_param;
    uint aligned;
};

template <typename T, typename Act>
[[kernel]] void glu_fwd(
    device const T* gate [[buffer(0)]],
    device const T* up [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant GluParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong left = p.cols - col;
    bool aligned = p.aligned != 0u;
    ulong i = ulong(at.y) * p.stride + col;
    float4 a = act_fwd4<Act>(load4(gate + i, left, aligned, 0.0f), p.act_param);
    store4(y + ulong(at.y) * p.cols + col, left, aligned, a * load4(up + p.up_at + i, left, aligned, 0.0f));
}

template <typename T, typename Act>
[[kernel]] void glu_inplace(
    device T* gate [[buffer(0)]],
    device const T* up [[buffer(1)]],
    constant GluParams& p [[buffer(2)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong left = p.cols - col;
    bool aligned = p.aligned != 0u;
    ulong i = ulong(at.y) * p.stride + col;
    float4 a = act_fwd4<Act>(load4((device const T*)gate + i, left, aligned, 0.0f), p.act_param);
    store4(gate + i, left, aligned, a * load4(up + p.up_at + i, left, aligned, 0.0f));
}

// dgate = g up act'(gate), dup = g act(gate); both laid out as gate and up are.
template <typename T, typename Act>
[[kernel]] void glu_bwd(
    device const T* gate [[buffer(0)]],
    device const T* up [[buffer(1)]],
    device const T* g [[buffer(2)]],
    device T* grads [[buffer(3)]],
    constant GluParams& p [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong left = p.cols - col;
    bool aligned = p.aligned != 0u;
    ulong i = ulong(at.y) * p.stride + col;
    float4 v = load4(gate + i, left, aligned, 0.0f);
    float4 u = load4(up + p.up_at + i, left, aligned, 0.0f);
    float4 go = load4(g + ulong(at.y) * p.cols + col, left, aligned, 0.0f);
    store4(grads + i, left, aligned, go * u * act_grad4<Act>(v, p.act_param));
    store4(grads + p.dup_at + i, left, aligned, go * act_fwd4<Act>(v, p.act_param));
}

FOR_ACTS(glu_fwd, "glu_fwd")
FOR_ACTS(glu_inplace, "glu_inplace")
FOR_ACTS(glu_bwd, "glu_bwd")
