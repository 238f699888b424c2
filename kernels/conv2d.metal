// Direct convolutions, for few channels and for depthwise ones.

// ---- One thread for each output ----

template <typename T>
[[kernel]] void conv2d_direct(
    device const T* x [[buffer(0)]],
    device const T* w [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant Conv2dParams& p [[buffer(4)]],
    uint3 gid [[thread_position_in_grid]]
) {
    uint pixels = p.output[0] * p.output[1];
    if (gid.x >= pixels) {
        return;
    }
    uint channel = gid.y;
    int top = int(gid.x / p.output[1] * p.stride[0]) - int(p.padding[0]);
    int left = int(gid.x % p.output[1] * p.stride[1]) - int(p.padding[1]);
    device const T* image = x + ulong(gid.z) * p.x[0] + ulong(channel / p.c_out * p.c_in) * p.x[1];
    device const T* taps = w + ulong(channel) * p.w[0];
    float sum = 0.0f;
    for (uint c = 0u; c < p.c_in; c++) {
        for (uint i = 0u; i < p.kernel_size[0]; i++) {
            int iy = top + int(i * p.dilation[0]);
            if (uint(iy) >= p.input[0]) {
                continue;
            }
            device const T* row = image + ulong(c) * p.x[1] + ulong(iy) * p.x[2];
            device const T* tap = taps + ulong(c) * p.w[1] + ulong(i) * p.w[2];
            for (uint j = 0u; j < p.kernel_size[1]; j++) {
                int ix = left + int(j * p.dilation[1]);
                if (uint(ix) < p.input[1]) {
                    sum += float(row[ulong(ix) * p.x[3]]) * float(tap[ulong(j) * p.w[3]]);
                }
            }
        }
    }
    ulong at = (ulong(gid.z) * p.groups * p.c_out + channel) * pixels + gid.x;
    y[at] = T(conv2d_finish(sum, bias, channel, p));
}

FOR_DTYPES(conv2d_direct, "conv2d_fwd_direct")

// The gradient of x, or a transposed convolution: here x is written, and y's channels are summed over.
template <typename T>
[[kernel]] void conv2d_bwd_x_direct(
    device const T* y [[buffer(0)]],
    device const T* w [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* x [[buffer(3)]],
    constant Conv2dParams& p [[buffer(4)]],
    uint3 gid [[thread_position_in_grid]]
) {
    uint pixels = p.input[0] * p.input[1];
    if (gid.x >= pixels) {
        return;
    }
    uint channel = gid.y;
    uint first = channel / p.c_in * p.c_out;
    uint bottom = gid.x / p.input[1] + p.padding[0];
    uint right = gid.x % p.input[1] + p.padding[1];
    device const T* image = y + ulong(gid.z) * p.y[0] + ulong(first) * p.y[1];
    device const T* taps = w + ulong(first) * p.w[0] + ulong(channel % p.c_in) * p.w[1];
    float sum = 0.0f;
    for (uint i = 0u; i < p.kernel_size[0] && i * p.dilation[0] <= bottom; i++) {
        uint down = bottom - i * p.dilation[0];
        uint oy = down / p.stride[0];
        if (oy * p.stride[0] != down || oy >= p.output[0]) {
            continue;
        }
        for (uint j = 0u; j < p.kernel_size[1] && j * p.dilation[1] <= right; j++) {
            uint along = right - j * p.dilation[1];
            uint ox = along / p.stride[1];
            if (ox * p.stride[1] != along || ox >= p.output[1]) {
                continue;
            }
            device const T* pixel = image + ulong(oy) * p.y[2] + ulong(ox) * p.y[3];
            device const T* tap = taps + ulong(i) * p.w[2] + ulong(j) * p.w[3];
            for (uint o = 0u; o < p.c_out; o++) {
                sum += float(pixel[ulong(o) * p.y[1]]) * float(tap[ulong(o) * p.w[0]]);
            }
        }
    }
    ulong at = (ulong(gid.z) * p.groups * p.c_in + channel) * pixels + gid.x;
    x[at] = T(conv2d_finish(sum, bias, channel, p));
}

FOR_DTYPES(conv2d_bwd_x_direct, "conv2d_bwd_x_direct")

// ---- Groups of one channel ----

template <typename T>
inline float pixel_or_zero(device const T* row, int ix, constant Conv2dParams& p) {
    return uint(ix) < p.input[1] ? float(row[ulong(ix) * p.x[3]]) : 0.0f;
}

// Each thread computes four neighbouring outputs of a row and loads each weight once for them. With stride and dilation for
// which the windows of neighbours overlap tap by tap, it loads each pixel once, too.
template <typename T>
[[kernel]] void conv2d_depthwise(
    device const T* x [[buffer(0)]],
    device const T* w [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant Conv2dParams& p [[buffer(4)]],
    uint3 gid [[thread_position_in_grid]]
) {
    uint across = (p.output[1] + 3u) / 4u;
    if (gid.x >= across * p.output[0]) {
        return;
    }
    uint channel = gid.y;
    uint oy = gid.x / across;
    uint ox = gid.x % across * 4u;
    int top = int(oy * p.stride[0]) - int(p.padding[0]);
    int left = int(ox * p.stride[1]) - int(p.padding[1]);
    int step = int(p.stride[1]);
    bool slides = p.stride[1] == p.dilation[1];
    device const T* image = x + ulong(gid.z) * p.x[0] + ulong(channel / p.c_out) * p.x[1];
    device const T* taps = w + ulong(channel) * p.w[0];
    float4 sums = float4(0.0f);
    for (uint i = 0u; i < p.kernel_size[0]; i++) {
        int iy = top + int(i * p.dilation[0]);
        if (uint(iy) >= p.input[0]) {
            continue;
        }
        device const T* row = image + ulong(iy) * p.x[2];
        device const T* tap = taps + ulong(i) * p.w[2];
        float4 v = float4(0.0f);
        for (uint j = 0u; j < p.kernel_size[1]; j++) {
            int ix = left + int(j * p.dilation[1]);
            if (slides && j > 0u) {
                v = float4(v.y, v.z, v.w, pixel_or_zero(row, ix + 3 * step, p));
            } else {
                v = float4(
                    pixel_or_zero(row, ix, p),
                    pixel_or_zero(row, ix + step, p),
                    pixel_or_zero(row, ix + 2 * step, p),
                    pixel_or_zero(row, ix + 3 * step, p)
                );
            }
            sums += float(tap[ulong(j) * p.w[3]]) * v;
        }
    }
    device T* out = y + ((ulong(gid.z) * p.groups * p.c_out + channel) * p.output[0] + oy) * p.output[1] + ox;
    for (uint q = 0u; q < 4u && ox + q < p.output[1]; q++) {
        out[q] = T(conv2d_finish(sums[q], bias, channel, p));
    }
}

FOR_DTYPES(conv2d_depthwise, "conv2d_fwd_depthwise")

// A simdgroup computes one element of the weight's gradient: its lanes share the sum over all images and pixels.
template <typename T>
[[kernel]] void conv2d_bwd_weight_depthwise(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device T* dw [[buffer(2)]],
    constant Conv2dParams& p [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    uint taps = p.kernel_size[0] * p.kernel_size[1];
    uint at = group * simdgroups + simdgroup;
    if (at >= p.groups * p.c_out * taps) {
        return;
    }
    uint channel = at / taps;
    int down = int(at % taps / p.kernel_size[1] * p.dilation[0]) - int(p.padding[0]);
    int along = int(at % p.kernel_size[1] * p.dilation[1]) - int(p.padding[1]);
    uint pixels = p.output[0] * p.output[1];
    float sum = 0.0f;
    for (uint n = 0u; n < p.batch; n++) {
        device const T* image = x + ulong(n) * p.x[0] + ulong(channel / p.c_out) * p.x[1];
        device const T* grad = g + ulong(n) * p.y[0] + ulong(channel) * p.y[1];
        for (uint k = lane; k < pixels; k += 32u) {
            uint oy = k / p.output[1];
            uint ox = k % p.output[1];
            int iy = int(oy * p.stride[0]) + down;
            int ix = int(ox * p.stride[1]) + along;
            if (uint(iy) < p.input[0] && uint(ix) < p.input[1]) {
                sum += float(image[ulong(iy) * p.x[2] + ulong(ix) * p.x[3]]) *
                    float(grad[ulong(oy) * p.y[2] + ulong(ox) * p.y[3]]);
            }
        }
    }
    sum = simd_sum(sum);
    if (lane == 0u) {
        dw[at] = T(sum);
    }
}

FOR_DTYPES(conv2d_bwd_weight_depthwise, "conv2d_bwd_weight_depthwise")

// ---- Tiles ----

// A threadgroup of 128 threads computes 8 by 16 outputs of 8 channels. Its memory holds their pixels, with the halo, and
// their weights, for as many channels of x at a time as there is room for. `Tile` in algo.rs has the same numbers.
#define TILE_ROWS 8u
#define TILE_COLS 16u
#define TILE_CHANNELS 8u
#define TILE_PIXELS 2048u
#define TILE_WEIGHTS 256u

template <typename T>
[[kernel]] void conv2d_tiled(
    device const T* x [[buffer(0)]],
    device const T* w [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant Conv2dParams& p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]
) {
    threadgroup float pixels[TILE_PIXELS];
    // Each element has the weights of four channels.
    threadgroup float4 weights[TILE_WEIGHTS];
    const uint threads = TILE_ROWS * TILE_COLS;
    uint across = (p.output[1] + TILE_COLS - 1u) / TILE_COLS;
    uint oy = group.x / across * TILE_ROWS;
    uint ox = group.x % across * TILE_COLS;
    uint blocks = (p.c_out + TILE_CHANNELS - 1u) / TILE_CHANNELS;
    uint part = group.y / blocks;
    uint first = group.y % blocks * TILE_CHANNELS;
    int top = int(oy * p.stride[0]) - int(p.padding[0]);
    int left = int(ox * p.stride[1]) - int(p.padding[1]);
    uint height = (TILE_ROWS - 1u) * p.stride[0] + (p.kernel_size[0] - 1u) * p.dilation[0] + 1u;
    uint width = (TILE_COLS - 1u) * p.stride[1] + (p.kernel_size[1] - 1u) * p.dilation[1] + 1u;
    uint area = height * width;
    uint taps = p.kernel_size[0] * p.kernel_size[1];
    uint most = min(TILE_PIXELS / area, TILE_WEIGHTS / (2u * taps));
    uint row = thread_index / TILE_COLS;
    uint col = thread_index % TILE_COLS;
    uint corner = row * p.stride[0] * width + col * p.stride[1];
    device const T* image = x + ulong(group.z) * p.x[0] + ulong(part * p.c_in) * p.x[1];
    device const T* kernels = w + ulong(part * p.c_out) * p.w[0];
    float4 low = float4(0.0f);
    float4 high = float4(0.0f);
    for (uint c0 = 0u; c0 < p.c_in; c0 += most) {
        uint channels = min(most, p.c_in - c0);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < channels * area; i += threads) {
            int iy = top + int(i % area / width);
            int ix = left + int(i % area % width);
            bool inside = uint(iy) < p.input[0] && uint(ix) < p.input[1];
            ulong at = ulong(c0 + i / area) * p.x[1];
            pixels[i] = inside ? float(image[at + ulong(iy) * p.x[2] + ulong(ix) * p.x[3]]) : 0.0f;
        }
        for (uint i = thread_index; i < channels * taps * 2u; i += threads) {
            uint tap = i / 2u % taps;
            ulong at = ulong(c0 + i / 2u / taps) * p.w[1] + ulong(tap / p.kernel_size[1]) * p.w[2] +
                ulong(tap % p.kernel_size[1]) * p.w[3];
            float4 v = float4(0.0f);
            for (uint q = 0u; q < 4u; q++) {
                uint o = first + i % 2u * 4u + q;
                if (o < p.c_out) {
                    v[q] = float(kernels[at + ulong(o) * p.w[0]]);
                }
            }
            weights[i] = v;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint tap = 0u;
        for (uint c = 0u; c < channels; c++) {
            for (uint i = 0u; i < p.kernel_size[0]; i++) {
                uint line = c * area + corner + i * p.dilation[0] * width;
                for (uint j = 0u; j < p.kernel_size[1]; j++) {
                    float v = pixels[line + j * p.dilation[1]];
                    low += v * weights[tap];
                    high += v * weights[tap + 1u];
                    tap += 2u;
                }
            }
        }
    }
    oy += row;
    ox += col;
    if (oy < p.output[0] && ox < p.output[1]) {
        for (uint q = 0u; q < TILE_CHANNELS && first + q < p.c_out; q++) {
            uint channel = part * p.c_out + first + q;
            ulong at = ulong(group.z) * p.groups * p.c_out + channel;
            float z = q < 4u ? low[q] : high[q - 4u];
            y[(at * p.output[0] + oy) * p.output[1] + ox] = T(conv2d_finish(z, bias, channel, p));
        }
    }
}

FOR_DTYPES(conv2d_tiled, "conv2d_fwd_tiled")
