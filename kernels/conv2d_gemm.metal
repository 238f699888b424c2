// Implicit GEMM: convolutions and their gradients as one product of matrices. The second matrix, im2col, is gathered into
// threadgroup memory tile by tile and never stored.
//
// Its element (k, n) is the pixel at `step(k) + column(n)`, or 0 outside of the image. Each of these structs says what the
// rows, k and the columns n are:
//
//                rows                k                             columns
//   Forward      channels of y       channels of x and taps        pixels of y
//   Transposed   channels of x       channels of y and taps        pixels of x
//   Correlated   channels of y       images and pixels of y        channels of x and taps

// The place of term k in the first matrix and in the image.
struct Step {
    ulong row;
    long image;
    int y;
    int x;
};

// The place of a column in the image.
struct Column {
    long image;
    int y;
    int x;
};

// A row or column outside of every image: none has 2^30 rows.
#define OUTSIDE -1073741824

inline long along(int y, int x, constant ulong* strides) {
    return long(y) * long(strides[2]) + long(x) * long(strides[3]);
}

// ---- y = x * w ----

struct Forward {
    // z is image * groups + group.
    static uint rows(constant Conv2dParams& p) { return p.c_out; }
    static uint columns(constant Conv2dParams& p, uint) { return p.output[0] * p.output[1]; }
    static uint begin(constant Conv2dParams&, uint) { return 0u; }
    static uint end(constant Conv2dParams& p, uint) { return p.c_in * p.kernel_size[0] * p.kernel_size[1]; }
    static uint2 image_size(constant Conv2dParams& p) { return uint2(p.input[0], p.input[1]); }
    static ulong row(constant Conv2dParams& p, uint z) { return ulong(z % p.groups * p.c_out) * p.w[0]; }
    static ulong row_stride(constant Conv2dParams& p) { return p.w[0]; }
    static uint channel(constant Conv2dParams& p, uint z, uint row) { return z % p.groups * p.c_out + row; }

    static Step step(constant Conv2dParams& p, uint, uint k) {
        uint taps = p.kernel_size[0] * p.kernel_size[1];
        uint c = k / taps;
        uint i = k % taps / p.kernel_size[1];
        uint j = k % p.kernel_size[1];
        Step s;
        s.row = ulong(c) * p.w[1] + ulong(i) * p.w[2] + ulong(j) * p.w[3];
        s.y = int(i * p.dilation[0]);
        s.x = int(j * p.dilation[1]);
        s.image = long(ulong(c) * p.x[1]) + along(s.y, s.x, p.x);
        return s;
    }

    static Column column(constant Conv2dParams& p, uint z, uint n) {
        Column c;
        c.y = int(n / p.output[1] * p.stride[0]) - int(p.padding[0]);
        c.x = int(n % p.output[1] * p.stride[1]) - int(p.padding[1]);
        c.image = long(ulong(z / p.groups) * p.x[0] + ulong(z % p.groups * p.c_in) * p.x[1]) + along(c.y, c.x, p.x);
        return c;
    }

    static ulong out(constant Conv2dParams& p, uint z, uint row, uint n) {
        return (ulong(z) * p.c_out + row) * columns(p, z) + n;
    }
};

// ---- x = y * w, transposed ----

// The pixels of one phase of a dim, (pixel + padding) mod stride = phase, and the taps that contribute to them: from `tap` on,
// every lattice-th, where lattice = stride / gcd(stride, dilation). A sum over these taps needs no test for divisibility.
struct Phase {
    uint pixel;   // the first one
    uint pixels;
    uint tap;
    uint taps;
    int y;  // what the first tap of the first pixel leads to
};

inline Phase phase_of(constant Conv2dParams& p, uint dim, uint phase) {
    uint stride = p.stride[dim];
    Phase f;
    f.pixel = (phase + stride - p.padding[dim] % stride) % stride;
    f.pixels = f.pixel < p.input[dim] ? (p.input[dim] - f.pixel - 1u) / stride + 1u : 0u;
    uint kernel_size = p.kernel_size[dim];
    f.tap = 0u;
    while (f.tap < kernel_size && f.tap * p.dilation[dim] % stride != phase) {
        f.tap++;
    }
    f.taps = f.tap < kernel_size ? (kernel_size - 1u - f.tap) / p.lattice[dim] + 1u : 0u;
    f.y = (int(f.pixel + p.padding[dim]) - int(f.tap * p.dilation[dim])) / int(stride);
    return f;
}

struct Transposed {
    // z is (image * groups + group) * phases + phase.
    static uint phases(constant Conv2dParams& p) { return p.stride[0] * p.stride[1]; }
    static Phase down(constant Conv2dParams& p, uint z) { return phase_of(p, 0u, z % phases(p) / p.stride[1]); }
    static Phase across(constant Conv2dParams& p, uint z) { return phase_of(p, 1u, z % phases(p) % p.stride[1]); }

    static uint rows(constant Conv2dParams& p) { return p.c_in; }
    static uint columns(constant Conv2dParams& p, uint z) { return down(p, z).pixels * across(p, z).pixels; }
    static uint begin(constant Conv2dParams&, uint) { return 0u; }
    static uint end(constant Conv2dParams& p, uint z) { return p.c_out * down(p, z).taps * across(p, z).taps; }
    static uint2 image_size(constant Conv2dParams& p) { return uint2(p.output[0], p.output[1]); }
    static ulong row(constant Conv2dParams& p, uint z) { return ulong(z / phases(p) % p.groups * p.c_out) * p.w[0]; }
    static ulong row_stride(constant Conv2dParams& p) { return p.w[1]; }

    static uint channel(constant Conv2dParams& p, uint z, uint row) {
        return z / phases(p) % p.groups * p.c_in + row;
    }

    static Step step(constant Conv2dParams& p, uint z, uint k) {
        Phase f = down(p, z);
        Phase h = across(p, z);
        uint c = k / (f.taps * h.taps);
        uint i = k / h.taps % f.taps;
        uint j = k % h.taps;
        Step s;
        s.row = ulong(c) * p.w[0] + ulong(f.tap + i * p.lattice[0]) * p.w[2] +
            ulong(h.tap + j * p.lattice[1]) * p.w[3];
        s.y = -int(i * p.lattice[0] * p.dilation[0] / p.stride[0]);
        s.x = -int(j * p.lattice[1] * p.dilation[1] / p.stride[1]);
        s.image = long(ulong(c) * p.y[1]) + along(s.y, s.x, p.y);
        return s;
    }

    static Column column(constant Conv2dParams& p, uint z, uint n) {
        Phase f = down(p, z);
        Phase h = across(p, z);
        uint image = z / phases(p) / p.groups;
        uint first = z / phases(p) % p.groups * p.c_out;
        Column c;
        c.y = f.y + int(n / h.pixels);
        c.x = h.y + int(n % h.pixels);
        c.image = long(ulong(image) * p.y[0] + ulong(first) * p.y[1]) + along(c.y, c.x, p.y);
        return c;
    }

    static ulong out(constant Conv2dParams& p, uint z, uint row, uint n) {
        Phase f = down(p, z);
        Phase h = across(p, z);
        uint iy = f.pixel + n / h.pixels * p.stride[0];
        uint ix = h.pixel + n % h.pixels * p.stride[1];
        return ((ulong(z / phases(p)) * p.c_in + row) * p.input[0] + iy) * p.input[1] + ix;
    }
};

// ---- w = x * y, over all images ----

struct Correlated {
    // z is part * groups + group.
    static uint rows(constant Conv2dParams& p) { return p.c_out; }
    static uint columns(constant Conv2dParams& p, uint) { return p.c_in * p.kernel_size[0] * p.kernel_size[1]; }
    static uint begin(constant Conv2dParams& p, uint z) { return z / p.groups * p.share; }
    static uint2 image_size(constant Conv2dParams& p) { return uint2(p.input[0], p.input[1]); }
    static ulong row(constant Conv2dParams& p, uint z) { return ulong(z % p.groups * p.c_out) * p.y[1]; }
    static ulong row_stride(constant Conv2dParams& p) { return p.y[1]; }
    static uint channel(constant Conv2dParams&, uint, uint row) { return row; }

    static uint end(constant Conv2dParams& p, uint z) {
        return min(begin(p, z) + p.share, p.batch * p.output[0] * p.output[1]);
    }

    static Step step(constant Conv2dParams& p, uint, uint k) {
        uint pixels = p.output[0] * p.output[1];
        uint n = k / pixels;
        uint oy = k % pixels / p.output[1];
        uint ox = k % pixels % p.output[1];
        Step s;
        s.row = ulong(n) * p.y[0] + ulong(oy) * p.y[2] + ulong(ox) * p.y[3];
        s.y = int(oy * p.stride[0]) - int(p.padding[0]);
        s.x = int(ox * p.stride[1]) - int(p.padding[1]);
        s.image = long(ulong(n) * p.x[0]) + along(s.y, s.x, p.x);
        return s;
    }

    static Column column(constant Conv2dParams& p, uint z, uint n) {
        uint taps = p.kernel_size[0] * p.kernel_size[1];
        Column c;
        c.y = int(n % taps / p.kernel_size[1] * p.dilation[0]);
        c.x = int(n % p.kernel_size[1] * p.dilation[1]);
        c.image = long(ulong(z % p.groups * p.c_in + n / taps) * p.x[1]) + along(c.y, c.x, p.x);
        return c;
    }

    static ulong out(constant Conv2dParams& p, uint z, uint row, uint n) {
        return (ulong(z) * p.c_out + row) * columns(p, z) + n;
    }
};

// ---- The product ----

// A threadgroup computes ROWS by SIDE outputs. Each thread gathers one column of the im2col tile.
#define SIDE DEPTH

template <typename Walk>
inline Step step_or_outside(constant Conv2dParams& p, uint z, uint k, uint end) {
    if (k < end) {
        return Walk::step(p, z, k);
    }
    Step s;
    s.row = 0u;
    s.image = 0;
    s.y = OUTSIDE;
    s.x = OUTSIDE;
    return s;
}

template <typename T, typename Out, uint ROWS, typename Walk>
[[kernel]] void conv2d_gemm(
    device const T* rows [[buffer(0)]],
    device const T* image [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device Out* out [[buffer(3)]],
    constant Conv2dParams& p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float as[ROWS * TILE_ROW(DEPTH)];
    threadgroup float bs[DEPTH * TILE_ROW(SIDE)];
    // Double buffering: the terms of this step and of the next.
    threadgroup Step steps[2u * SIDE];
    uint z = group.z;
    uint row0 = group.y * ROWS;
    uint col0 = group.x * SIDE;
    uint columns = Walk::columns(p, z);
    // Uniform over the threadgroup.
    if (col0 >= columns) {
        return;
    }
    uint line = thread_index / SIDE;
    uint lane = thread_index % SIDE;
    uint left_rows = min(ROWS, Walk::rows(p) - row0);
    uint begin = Walk::begin(p, z);
    uint end = Walk::end(p, z);
    uint2 size = Walk::image_size(p);
    // A column past the end is gathered like the last one, and not written.
    Column column = Walk::column(p, z, min(col0 + lane, columns - 1u));
    device const T* first = rows + Walk::row(p, z) + ulong(row0) * Walk::row_stride(p);
    Quarter<ROWS, SIDE> sums;
    sums.clear(simdgroup);
    if (line == 0u) {
        steps[lane] = step_or_outside<Walk>(p, z, begin + lane, end);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint turn = 0u;
    for (uint k0 = begin; k0 < end; k0 += SIDE) {
        ulong step = steps[turn + lane].row;
        for (uint r = line; r < ROWS; r += 4u) {
            bool there = r < left_rows && k0 + lane < end;
            as[r * TILE_ROW(SIDE) + lane] = there ? float(first[ulong(r) * Walk::row_stride(p) + step]) : 0.0f;
        }
        for (uint k = line; k < SIDE; k += 4u) {
            int y = column.y + steps[turn + k].y;
            int x = column.x + steps[turn + k].x;
            bool there = uint(y) < size.x && uint(x) < size.y;
            bs[k * TILE_ROW(SIDE) + lane] = there ? float(image[column.image + steps[turn + k].image]) : 0.0f;
        }
        turn = SIDE - turn;
        if (line == 0u) {
            steps[turn + lane] = step_or_outside<Walk>(p, z, k0 + SIDE + lane, end);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sums.add(as, bs);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    sums.store(as);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (col0 + lane < columns) {
        for (uint r = line; r < left_rows; r += 4u) {
            float sum = as[r * TILE_ROW(SIDE) + lane];
            uint channel = Walk::channel(p, z, row0 + r);
            out[Walk::out(p, z, row0 + r, col0 + lane)] = Out(conv2d_finish(sum, bias, channel, p));
        }
    }
}

#define FOR_ROWS(name, Walk) \
    KERNEL(name "_f32", conv2d_gemm<float, float, 32, Walk>) \
    KERNEL(name "_f16", conv2d_gemm<half, half, 32, Walk>) \
    KERNEL_BF16(name "_bf16", conv2d_gemm<bfloat, bfloat, 32, Walk>) \
    KERNEL(name "_tall_f32", conv2d_gemm<float, float, 64, Walk>) \
    KERNEL(name "_tall_f16", conv2d_gemm<half, half, 64, Walk>) \
    KERNEL_BF16(name "_tall_bf16", conv2d_gemm<bfloat, bfloat, 64, Walk>)

FOR_ROWS("conv2d_fwd_gemm", Forward)
FOR_ROWS("conv2d_bwd_x_gemm", Transposed)
FOR_ROWS("conv2d_bwd_weight_gemm", Correlated)

// Partial sums are written as floats, without rounding to T.
KERNEL("conv2d_bwd_weight_gemm_part_f16", conv2d_gemm<half, float, 32, Correlated>)
KERNEL_BF16("conv2d_bwd_weight_gemm_part_bf16", conv2d_gemm<bfloat, float, 32, Correlated>)
KERNEL("conv2d_bwd_weight_gemm_tall_part_f16", conv2d_gemm<half, float, 64, Correlated>)
KERNEL_BF16("conv2d_bwd_weight_gemm_tall_part_bf16", conv2d_gemm<bfloat, float, 64, Correlated>)

template <typename T>
[[kernel]] void conv2d_bwd_weight_sum(
    device const float* parts [[buffer(0)]],
    device T* dw [[buffer(1)]],
    constant Conv2dParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    uint count = p.groups * p.c_out * p.c_in * p.kernel_size[0] * p.kernel_size[1];
    if (i >= count) {
        return;
    }
    float sum = 0.0f;
    for (uint part = 0u; part < p.parts; part++) {
        sum += parts[ulong(part) * count + i];
    }
    dw[i] = T(sum);
}

FOR_DTYPES(conv2d_bwd_weight_sum, "conv2d_bwd_weight_sum")
