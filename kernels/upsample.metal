// Images resized: each output is one pixel of x, or the weighted sum of four. Tables say which: a tap for each row of outputs, then
// one for each column.

struct Tap {
    uint low;
    uint high;
    float low_weight;
    float high_weight;
};

struct UpsampleParams {
    ulong x[4];  // strides in elements
    uint channels;
    uint input[2];  // (height, width)
    uint output[2];
    uint reserved;
};

template <typename T>
inline float upsample_pixel(device const T* image, uint row, uint col, constant UpsampleParams& p) {
    return float(image[ulong(row) * p.x[2] + ulong(col) * p.x[3]]);
}

// One thread for each output.
template <typename T, bool BILINEAR>
[[kernel]] void upsample_fwd(
    device const T* x [[buffer(0)]],
    device const Tap* taps [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant UpsampleParams& p [[buffer(3)]],
    uint2 gid [[thread_position_in_grid]]
) {
    uint outputs = p.output[0] * p.output[1];
    if (gid.x >= outputs) {
        return;
    }
    Tap down = taps[gid.x / p.output[1]];
    Tap along = taps[p.output[0] + gid.x % p.output[1]];
    device const T* image = x + ulong(gid.y / p.channels) * p.x[0] + ulong(gid.y % p.channels) * p.x[1];
    ulong at = ulong(gid.y) * outputs + gid.x;
    if (!BILINEAR) {
        y[at] = image[ulong(down.low) * p.x[2] + ulong(along.low) * p.x[3]];
        return;
    }
    float low = upsample_pixel(image, down.low, along.low, p) * along.low_weight +
        upsample_pixel(image, down.low, along.high, p) * along.high_weight;
    float high = upsample_pixel(image, down.high, along.low, p) * along.low_weight +
        upsample_pixel(image, down.high, along.high, p) * along.high_weight;
    y[at] = T(low * down.low_weight + high * down.high_weight);
}

// The weight of row or column `at`, which is one of the tap's two.
inline float upsample_weight(Tap tap, uint at) {
    float low = tap.low == at ? tap.low_weight : 0.0f;
    return tap.high == at ? low + tap.high_weight : low;
}

// One thread for each pixel of x. `parts` says, for each row of x and then for each column, which outputs it is a part of: begin
// to end - 1.
template <typename T>
[[kernel]] void upsample_bwd(
    device const T* g [[buffer(0)]],
    device const Tap* taps [[buffer(1)]],
    device const uint2* parts [[buffer(2)]],
    device T* dx [[buffer(3)]],
    constant UpsampleParams& p [[buffer(4)]],
    uint2 gid [[thread_position_in_grid]]
) {
    uint pixels = p.input[0] * p.input[1];
    if (gid.x >= pixels) {
        return;
    }
    uint row = gid.x / p.input[1];
    uint col = gid.x % p.input[1];
    uint2 down = parts[row];
    uint2 along = parts[p.input[0] + col];
    device const T* grad = g + ulong(gid.y) * (p.output[0] * p.output[1]);
    device const Tap* columns = taps + p.output[0];
    float sum = 0.0f;
    for (uint i = down.x; i < down.y; i++) {
        float line = 0.0f;
        for (uint j = along.x; j < along.y; j++) {
            line += upsample_weight(columns[j], col) * float(grad[i * p.output[1] + j]);
        }
        sum += upsample_weight(taps[i], row) * line;
    }
    dx[ulong(gid.y) * pixels + gid.x] = T(sum);
}

FOR_DTYPES_WITH(upsample_fwd, "upsample_fwd_nearest", false)
FOR_DTYPES_WITH(upsample_fwd, "upsample_fwd_bilinear", true)
FOR_DTYPES(upsample_bwd, "upsample_bwd")
