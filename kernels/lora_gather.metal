// An adapter for each row: u = x A^T and y = base + scale u B^T with the row's own A and B, and the sums over the rows of
// an adapter that are their gradients.

struct GatherParams {
    ulong x_row;  // strides in elements
    ulong x_col;
    ulong a_stack;
    ulong a_row;
    ulong a_col;
    uint rows;
    uint outputs;
    uint cols;
    uint has_bias;
};

#define NO_ADAPTER 0xFFFFFFFFu

// A simdgroup for each u[row, j]; 0 without an adapter.
template <typename T, typename Out>
[[kernel]] void lora_gather_down(
    device const T* x [[buffer(0)]],
    device const T* a [[buffer(1)]],
    device const uint* adapter_of_row [[buffer(2)]],
    device Out* u [[buffer(3)]],
    constant GatherParams& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    uint unit = group * simdgroups + simdgroup;
    if (unit >= p.rows * p.outputs) {
        return;
    }
    uint row = unit / p.outputs;
    uint j = unit % p.outputs;
    uint adapter = adapter_of_row[row];
    float sum = 0.0f;
    if (adapter != NO_ADAPTER) {
        device const T* xs = x + ulong(row) * p.x_row;
        device const T* as = a + ulong(adapter) * p.a_stack + ulong(j) * p.a_row;
        for (uint k = lane; k < p.cols; k += 32u) {
            sum += float(xs[ulong(k) * p.x_col]) * float(as[ulong(k) * p.a_col]);
        }
        sum = simd_sum(sum);
    }
    if (lane == 0u) {
        u[unit] = Out(sum);
    }
}

// A thread for each output; x is u here, and A is B. All terms are floats until the sum is stored.
template <typename T>
[[kernel]] void lora_gather_up(
    device const float* u [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device const uint* adapter_of_row [[buffer(2)]],
    device const float* scales [[buffer(3)]],
    device const float* base [[buffer(4)]],
    device const T* bias [[buffer(5)]],
    device T* y [[buffer(6)]],
    constant GatherParams& p [[buffer(7)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint output = at.x;
    uint row = at.y;
    if (output >= p.outputs) {
        return;
    }
    ulong i = ulong(row) * p.outputs + output;
    float v = base[i];
    v += p.has_bias != 0u ? float(bias[output]) : 0.0f;
    uint adapter = adapter_of_row[row];
    if (adapter != NO_ADAPTER) {
        device const T* bs = b + ulong(adapter) * p.a_stack + ulong(output) * p.a_row;
        float sum = 0.0f;
        for (uint j = 0u; j < p.cols; j++) {
            sum += u[ulong(row) * p.cols + j] * float(bs[ulong(j) * p.a_col]);
        }
        v += scales[adapter] * sum;
    }
    y[i] = T(v);
}

struct OuterParams {
    ulong p_row;  // strides in elements
    ulong p_col;
    ulong q_row;
    ulong q_col;
    uint height;
    uint width;
};

// A thread for each element of each adapter's sum of p^T q, over the adapter's rows in their order.
template <typename T>
[[kernel]] void lora_gather_outer(
    device const T* p [[buffer(0)]],
    device const T* q [[buffer(1)]],
    device const uint* order [[buffer(2)]],
    device const uint* starts [[buffer(3)]],
    device const float* scales [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant OuterParams& params [[buffer(6)]],
    uint3 at [[thread_position_in_grid]]
) {
    uint column = at.x;
    uint line = at.y;
    uint adapter = at.z;
    if (column >= params.width) {
        return;
    }
    float sum = 0.0f;
    for (uint i = starts[adapter]; i < starts[adapter + 1u]; i++) {
        ulong row = ulong(order[i]);
        sum += float(p[row * params.p_row + ulong(line) * params.p_col])
            * float(q[row * params.q_row + ulong(column) * params.q_col]);
    }
    y[(ulong(adapter) * params.height + line) * params.width + column] = T(scales[adapter] * sum);
}

KERNEL("lora_gather_down_f32", lora_gather_down<float, float>)
KERNEL("lora_gather_down_f16", lora_gather_down<half, half>)
KERNEL_BF16("lora_gather_down_bf16", lora_gather_down<bfloat, bfloat>)
KERNEL("lora_gather_down_wide_f16", lora_gather_down<half, float>)
KERNEL_BF16("lora_gather_down_wide_bf16", lora_gather_down<bfloat, float>)
FOR_DTYPES(lora_gather_up, "lora_gather_up")
FOR_DTYPES(lora_gather_outer, "lora_gather_outer")
