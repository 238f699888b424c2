// Pooling of images: each output is the maximum, or the mean, of a window of x. Pairs are (height, width).

struct Pool2dParams {
    ulong x[4];  // strides in elements
    uint channels;
    uint input[2];
    uint kernel_size[2];
    uint output[2];
    uint stride[2];
    uint padding[2];
    uint include_pad;  // whether padding counts in a mean's divisor
};

// What a window covers: rows or columns begin to end - 1 of x.
inline uint2 pool2d_window(uint dim, uint o, constant Pool2dParams& p) {
    uint start = o * p.stride[dim];
    uint begin = start > p.padding[dim] ? start - p.padding[dim] : 0u;
    return uint2(begin, min(start + p.kernel_size[dim] - p.padding[dim], p.input[dim]));
}

// The outputs, begin to end - 1, whose windows cover a row or column of x.
inline uint2 pool2d_windows_over(uint dim, uint at, constant Pool2dParams& p) {
    uint place = at + p.padding[dim];
    uint skipped = place + 1u > p.kernel_size[dim] ? place + 1u - p.kernel_size[dim] : 0u;
    uint begin = (skipped + p.stride[dim] - 1u) / p.stride[dim];
    return uint2(begin, min(place / p.stride[dim] + 1u, p.output[dim]));
}

// The pixels that a mean over a window divides by.
inline float pool2d_count(uint2 rows, uint2 cols, constant Pool2dParams& p) {
    if (p.include_pad != 0u) {
        return float(p.kernel_size[0]) * float(p.kernel_size[1]);
    }
    return float(rows.y - rows.x) * float(cols.y - cols.x);
}

template <typename T>
inline device const T* pool2d_plane(device const T* x, uint plane, constant Pool2dParams& p) {
    return x + ulong(plane / p.channels) * p.x[0] + ulong(plane % p.channels) * p.x[1];
}

// One thread for each output.
template <typename T, bool MEAN>
[[kernel]] void pool2d_fwd(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant Pool2dParams& p [[buffer(2)]],
    uint2 gid [[thread_position_in_grid]]
) {
    uint outputs = p.output[0] * p.output[1];
    if (gid.x >= outputs) {
        return;
    }
    uint2 rows = pool2d_window(0u, gid.x / p.output[1], p);
    uint2 cols = pool2d_window(1u, gid.x % p.output[1], p);
    device const T* image = pool2d_plane(x, gid.y, p);
    // A NaN that comes first is the maximum, as in stock Candle; any other loses every comparison.
    float value = MEAN ? 0.0f : float(image[ulong(rows.x) * p.x[2] + ulong(cols.x) * p.x[3]]);
    for (uint i = rows.x; i < rows.y; i++) {
        device const T* row = image + ulong(i) * p.x[2];
        for (uint j = cols.x; j < cols.y; j++) {
            float pixel = float(row[ulong(j) * p.x[3]]);
            if (MEAN) {
                value += pixel;
            } else {
                value = pixel > value ? pixel : value;
            }
        }
    }
    if (MEAN) {
        value /= pool2d_count(rows, cols, p);
    }
    y[ulong(gid.y) * outputs + gid.x] = T(value);
}

// One thread for each pixel of x, which collects from the windows that it lies in, in their order.
template <typename T>
[[kernel]] void pool2d_bwd_avg(
    device const T* g [[buffer(0)]],
    device T* dx [[buffer(1)]],
    constant Pool2dParams& p [[buffer(2)]],
    uint2 gid [[thread_position_in_grid]]
) {
    uint pixels = p.input[0] * p.input[1];
    if (gid.x >= pixels) {
        return;
    }
    uint2 down = pool2d_windows_over(0u, gid.x / p.input[1], p);
    uint2 along = pool2d_windows_over(1u, gid.x % p.input[1], p);
    device const T* grad = g + ulong(gid.y) * (p.output[0] * p.output[1]);
    float sum = 0.0f;
    for (uint i = down.x; i < down.y; i++) {
        uint2 rows = pool2d_window(0u, i, p);
        for (uint j = along.x; j < along.y; j++) {
            sum += float(grad[i * p.output[1] + j]) / pool2d_count(rows, pool2d_window(1u, j, p), p);
        }
    }
    dx[ulong(gid.y) * pixels + gid.x] = T(sum);
}

// Whether the pixel at (row, col) is the window's first maximum, which is NaN where the window's first pixel is.
template <typename T>
inline bool pool2d_is_first(
    device const T* image,
    uint2 rows,
    uint2 cols,
    uint row,
    uint col,
    float top,
    constant Pool2dParams& p
) {
    if (top != top) {
        return row == rows.x && col == cols.x;
    }
    if (float(image[ulong(row) * p.x[2] + ulong(col) * p.x[3]]) != top) {
        return false;
    }
    for (uint i = rows.x; i <= row; i++) {
        device const T* line = image + ulong(i) * p.x[2];
        uint end = i == row ? col : cols.y;
        for (uint j = cols.x; j < end; j++) {
            if (float(line[ulong(j) * p.x[3]]) == top) {
                return false;
            }
        }
    }
    return true;
}

template <typename T>
[[kernel]] void pool2d_bwd_max(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device const T* g [[buffer(2)]],
    device T* dx [[buffer(3)]],
    constant Pool2dParams& p [[buffer(4)]],
    uint2 gid [[thread_position_in_grid]]
) {
    uint pixels = p.input[0] * p.input[1];
    if (gid.x >= pixels) {
        return;
    }
    uint row = gid.x / p.input[1];
    uint col = gid.x % p.input[1];
    uint2 down = pool2d_windows_over(0u, row, p);
    uint2 along = pool2d_windows_over(1u, col, p);
    device const T* image = pool2d_plane(x, gid.y, p);
    ulong first = ulong(gid.y) * (p.output[0] * p.output[1]);
    float sum = 0.0f;
    for (uint i = down.x; i < down.y; i++) {
        uint2 rows = pool2d_window(0u, i, p);
        for (uint j = along.x; j < along.y; j++) {
            uint2 cols = pool2d_window(1u, j, p);
            ulong at = first + (i * p.output[1] + j);
            if (pool2d_is_first(image, rows, cols, row, col, float(y[at]), p)) {
                sum += float(g[at]);
            }
        }
    }
    dx[ulong(gid.y) * pixels + gid.x] = T(sum);
}

FOR_DTYPES_WITH(pool2d_fwd, "pool2d_fwd_max", false)
FOR_DTYPES_WITH(pool2d_fwd, "pool2d_fwd_avg", true)
FOR_DTYPES(pool2d_bwd_max, "pool2d_bwd_max")
FOR_DTYPES(pool2d_bwd_avg, "pool2d_bwd_avg")
