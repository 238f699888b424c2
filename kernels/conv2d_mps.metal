// im2col before the matrix product of Metal Performance Shaders, and the epilogue after it, for a part of the columns.

// A part of the columns, which are the output pixels of one image.
struct Conv2dColumns {
    Conv2dParams conv;
    uint image;
    uint first;
    uint columns;
    uint unused;
};

// im2col: a row for each channel and tap of the kernel, a column for each pixel of the output.
template <typename T>
[[kernel]] void conv2d_unfold(
    device const T* x [[buffer(0)]],
    device T* part [[buffer(1)]],
    constant Conv2dColumns& p [[buffer(2)]],
    uint2 gid [[thread_position_in_grid]]
) {
    if (gid.x >= p.columns) {
        return;
    }
    uint pixel = p.first + gid.x;
    uint taps = p.conv.kernel_size[0] * p.conv.kernel_size[1];
    uint c = gid.y / taps;
    uint i = gid.y % taps / p.conv.kernel_size[1];
    uint j = gid.y % taps % p.conv.kernel_size[1];
    int iy = int(pixel / p.conv.output[1] * p.conv.stride[0] + i * p.conv.dilation[0]) - int(p.conv.padding[0]);
    int ix = int(pixel % p.conv.output[1] * p.conv.stride[1] + j * p.conv.dilation[1]) - int(p.conv.padding[1]);
    T v = T(0.0f);
    if (uint(iy) < p.conv.input[0] && uint(ix) < p.conv.input[1]) {
        v = x[ulong(p.image) * p.conv.x[0] + ulong(c) * p.conv.x[1] + ulong(iy) * p.conv.x[2] +
            ulong(ix) * p.conv.x[3]];
    }
    part[ulong(gid.y) * p.columns + gid.x] = v;
}

template <typename T>
[[kernel]] void conv2d_finish_columns(
    device const float* sums [[buffer(0)]],
    device const T* bias [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant Conv2dColumns& p [[buffer(3)]],
    uint2 gid [[thread_position_in_grid]]
) {
    if (gid.x >= p.columns) {
        return;
    }
    float z = sums[ulong(gid.y) * p.columns + gid.x];
    ulong plane = ulong(p.image) * p.conv.c_out + gid.y;
    ulong pixels = ulong(p.conv.output[0]) * p.conv.output[1];
    y[plane * pixels + p.first + gid.x] = T(conv2d_finish(z, bias, gid.y, p.conv));
}

KERNEL("conv2d_fwd_unfold_f32", conv2d_unfold<float>)
KERNEL("conv2d_fwd_unfold_f16", conv2d_unfold<half>)
KERNEL("conv2d_fwd_columns_f32", conv2d_finish_columns<float>)
KERNEL("conv2d_fwd_columns_f16", conv2d_finish_columns<half>)
