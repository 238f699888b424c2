// Sums of squares of parts of a gradient; scaling in place; adding up in f32.

struct PartialSumsParams {
    ulong n;
    ulong part;
    uint aligned;
};

struct ScaleParams {
    ulong n;
    float factor;
    uint aligned;
};

struct AddParams {
    ulong n;
    uint aligned;
};

// A threadgroup for each part.
template <typename T>
[[kernel]] void grads_sum_squares(
    device const T* x [[buffer(0)]],
    device float* sums [[buffer(1)]],
    constant PartialSumsParams& p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float scratch[32];
    ulong start = ulong(group) * p.part;
    ulong end = min(start + p.part, p.n);
    float4 sum = float4(0.0f);
    for (ulong i = start + thread_index * 4u; i < end; i += threads * 4u) {
        float4 v = load4(x + i, end - i, p.aligned != 0u, 0.0f);
        sum = fma(v, v, sum);
    }
    float total = tg_sum(sum.x + sum.y + sum.z + sum.w, scratch, lane, simdgroup, simdgroups);
    if (thread_index == 0u) {
        sums[group] = total;
    }
}

template <typename T>
[[kernel]] void grads_scale(
    device T* x [[buffer(0)]],
    constant ScaleParams& p [[buffer(1)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    float4 v = load4((device const T*)x + i, p.n - i, aligned, 0.0f);
    store4(x + i, p.n - i, aligned, v * p.factor);
}

template <typename T>
[[kernel]] void grads_add(
    device float* sum [[buffer(0)]],
    device const T* x [[buffer(1)]],
    constant AddParams& p [[buffer(2)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    bool aligned = p.aligned != 0u;
    ulong left = p.n - i;
    float4 v = load4((device const float*)sum + i, left, aligned, 0.0f);
    store4(sum + i, left, aligned, v + load4(x + i, left, aligned, 0.0f));
}

FOR_DTYPES(grads_sum_squares, "grads_sum_squares")
FOR_DTYPES(grads_scale, "grads_scale")
FOR_DTYPES(grads_add, "grads_add")
