// A convolution of x [batch, groups * c_in, ..input] with w [groups * c_out, c_in, ..kernel] to y [batch, groups * c_out, ..output].
// Two of them are read with any strides; the third is the result, which is contiguous. Pairs are (height, width).
struct Conv2dParams {
    ulong x[4];  // strides in elements
    ulong w[4];
    ulong y[4];
    ulong bias;
    uint batch;
    uint groups;
    uint c_in;
    uint c_out;
    uint input[2];
    uint kernel_size[2];
    uint output[2];
    uint stride[2];
    uint padding[2];
    uint dilation[2];
    uint lattice[2];  // stride / gcd(stride, dilation): every so many taps reach the same pixels
    uint has_bias;
    uint act;
    float act_param;
    uint parts;  // of the sum for the gradient of w
    uint share;  // what each of them sums up
};

// The epilogue of a sum: bias and activation.
template <typename T>
inline float conv2d_finish(float z, device const T* bias, uint channel, constant Conv2dParams& p) {
    if (p.has_bias != 0u) {
        z += float(bias[channel * p.bias]);
    }
    return act_fwd(p.act, z, p.act_param);
}
