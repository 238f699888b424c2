// Shared by all kernels: this text stands in front of each kernels/<op>.metal.

#include <metal_stdlib>

using namespace metal;

// ---- Instantiation ----

#define KERNEL(host, ...) template [[host_name(host)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

#if defined(__HAVE_BFLOAT__)
#define KERNEL_BF16(host, ...) KERNEL(host, __VA_ARGS__)
#else
#define KERNEL_BF16(host, ...)
#endif

// fn<T> as name_f32, name_f16, name_bf16.
#define FOR_DTYPES(fn, name) \
    KERNEL(name "_f32", fn<float>) \
    KERNEL(name "_f16", fn<half>) \
    KERNEL_BF16(name "_bf16", fn<bfloat>)

// The same with more template arguments behind T.
#define FOR_DTYPES_WITH(fn, name, ...) \
    KERNEL(name "_f32", fn<float, __VA_ARGS__>) \
    KERNEL(name "_f16", fn<half, __VA_ARGS__>) \
    KERNEL_BF16(name "_bf16", fn<bfloat, __VA_ARGS__>)

// The same for f16 and bf16 alone: for kernels that differ from another one only in that their intermediate numbers are f32.
#define FOR_16_BITS_WITH(fn, name, ...) \
    KERNEL(name "_f16", fn<half, __VA_ARGS__>) \
    KERNEL_BF16(name "_bf16", fn<bfloat, __VA_ARGS__>)

// fn<T, Act> as name_<act>_<dtype>.
#define FOR_ACTS(fn, name) \
    FOR_DTYPES_WITH(fn, name "_identity", Identity) \
    FOR_ACTS_BUT_IDENTITY(fn, name)

// The same without the identity, whose gradient needs no kernel.
#define FOR_ACTS_BUT_IDENTITY(fn, name) \
    FOR_DTYPES_WITH(fn, name "_relu", Relu) \
    FOR_DTYPES_WITH(fn, name "_relu2", Relu2) \
    FOR_DTYPES_WITH(fn, name "_leaky_relu", LeakyRelu) \
    FOR_DTYPES_WITH(fn, name "_gelu_tanh", GeluTanh) \
    FOR_DTYPES_WITH(fn, name "_gelu_erf", GeluErf) \
    FOR_DTYPES_WITH(fn, name "_silu", Silu) \
    FOR_DTYPES_WITH(fn, name "_sigmoid", Sigmoid) \
    FOR_DTYPES_WITH(fn, name "_tanh", Tanh) \
    FOR_DTYPES_WITH(fn, name "_softplus", Softplus)

// fn<T, Act, ...> as name_<act>_<dtype>.
#define FOR_ACTS_WITH(fn, name, ...) \
    FOR_DTYPES_WITH(fn, name "_identity", Identity, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_relu", Relu, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_relu2", Relu2, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_leaky_relu", LeakyRelu, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_gelu_tanh", GeluTanh, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_gelu_erf", GeluErf, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_silu", Silu, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_sigmoid", Sigmoid, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_tanh", Tanh, __VA_ARGS__) \
    FOR_DTYPES_WITH(fn, name "_softplus", Softplus, __VA_ARGS__)

// ---- Loads and stores of four neighbours ----
//
// `left` elements remain from p on; fewer than four are read one by one, the rest being `pad`. `aligned` says that p may be
// read as a vector: it is the same for all threads.

template <typename T>
inline float4 load4(device const T* p, ulong left, bool aligned, float pad) {
    if (left >= 4u && aligned) {
        return float4(*(device const vec<T, 4>*)p);
    }
    return float4(
        left > 0u ? float(p[0]) : pad,
        left > 1u ? float(p[1]) : pad,
        left > 2u ? float(p[2]) : pad,
        left > 3u ? float(p[3]) : pad
    );
}

template <typename T>
inline void store4(device T* p, ulong left, bool aligned, float4 v) {
    if (left >= 4u && aligned) {
        *(device vec<T, 4>*)p = vec<T, 4>(v);
        return;
    }
    for (uint k = 0u; k < 4u && k < left; k++) {
        p[k] = T(v[k]);
    }
}

// ---- Broadcast operands ----

// Element i is p[(i / repeat) % period].
struct Spread {
    ulong period;
    ulong repeat;
};

inline ulong spread_index(constant Spread& s, ulong i) {
    // 64-bit division is slow: avoid it where the index is short.
    if (i <= 0xFFFFFFFFu && s.repeat <= 0xFFFFFFFFu) {
        uint at = uint(i) / uint(s.repeat);
        return s.period <= 0xFFFFFFFFu ? ulong(at % uint(s.period)) : ulong(at);
    }
    return (i / s.repeat) % s.period;
}

// Elements i to i + 3 of n, or the fewer that are left.
template <typename T>
inline float4 load4_spread(device const T* p, constant Spread& s, ulong i, ulong n, bool aligned) {
    if (s.repeat == 1u && s.period % 4u == 0u) {
        return load4(p + spread_index(s, i), n - i, aligned, 0.0f);
    }
    float4 v = float4(0.0f);
    for (uint k = 0u; k < 4u && i + k < n; k++) {
        v[k] = float(p[spread_index(s, i + k)]);
    }
    return v;
}

// ---- Functions that <metal_math> lacks ----

// log(1 + x) for x in [0, 1], as 2 atanh(x / (2 + x)). Within 2 ulp.
inline float log1p_f(float x) {
    float s = x / (2.0f + x);
    float u = s * s;
    float p = fma(0.140891671f, u, 0.139803007f);
    p = fma(p, u, 0.200124547f);
    p = fma(p, u, 0.333331585f);
    p = fma(p, u, 1.0f);
    return 2.0f * s * p;
}

// exp(z^2) erfc(z) for z in [0, 10.5]: a polynomial in (z - 2) / (z + 2), over 1 + 2z.
inline float erfcx_f(float z) {
    float t = (z - 2.0f) / (z + 2.0f);
    float p = fma(-0.000396104413f, t, -0.00122233853f);
    p = fma(p, t, 0.00131256809f);
    p = fma(p, t, 0.00862535462f);
    p = fma(p, t, -0.00806088746f);
    p = fma(p, t, -0.0542026199f);
    p = fma(p, t, 0.16405566f);
    p = fma(p, t, -0.166031569f);
    p = fma(p, t, -0.0927639976f);
    p = fma(p, t, 1.27697837f);
    return p / fma(2.0f, z, 1.0f);
}

// exp(-a b), without the error that rounding a large product would bring.
inline float exp_minus_product(float a, float b) {
    float high = a * b;
    float low = fma(a, b, -high);
    float e = exp(-high);
    return fma(-e, low, e);
}

// Within 3 ulp; NaN stays NaN.
inline float erf_f(float x) {
    float a = fabs(x);
    if (a >= 1.0f) {
        float z = a > 4.0f ? 4.0f : a;
        float r = 1.0f - exp_minus_product(z, z) * erfcx_f(z);
        return x < 0.0f ? -r : r;
    }
    float u = x * x;
    float p = fma(7.85386073e-05f, u, -0.000801019371f);
    p = fma(p, u, 0.00518832775f);
    p = fma(p, u, -0.0268538129f);
    p = fma(p, u, 0.112835854f);
    p = fma(p, u, -0.37612626f);
    p = fma(p, u, 1.12837911f);
    return x * p;
}

// The distribution function of the normal distribution. The relative error stays within some 8 ulp in the lower tail
// too, down to the smallest normal number; NaN stays NaN.
inline float normal_cdf(float x) {
    float a = fabs(x);
    a = a > 14.8f ? 14.8f : a;
    float tail = 0.5f * exp_minus_product(0.5f * a, a) * erfcx_f(0.707106781f * a);
    return x < 0.0f ? tail : 1.0f - tail;
}

// The exponent is never positive, so nothing overflows.
inline float sigmoid_f(float x) {
    float e = exp(-fabs(x));
    float r = 1.0f / (1.0f + e);
    return x < 0.0f ? e * r : r;
}

// sigmoid(x) * (1 - sigmoid(x)) without the cancellation.
inline float sigmoid_grad_f(float x) {
    float e = exp(-fabs(x));
    float r = 1.0f / (1.0f + e);
    return e * r * r;
}

// ---- Activations: value and derivative, in float. `param` is the slope of LeakyRelu ----

struct Identity {
    static float fwd(float x, float) { return x; }
    static float grad(float, float) { return 1.0f; }
};

// NaN gives 0, as Candle's CPU relu does.
struct Relu {
    static float fwd(float x, float) { return x > 0.0f ? x : 0.0f; }
    static float grad(float x, float) { return x > 0.0f ? 1.0f : 0.0f; }
};

struct Relu2 {
    static float fwd(float x, float) { return x > 0.0f ? x * x : 0.0f; }
    static float grad(float x, float) { return x > 0.0f ? 2.0f * x : 0.0f; }
};

struct LeakyRelu {
    static float fwd(float x, float slope) { return x > 0.0f ? x : slope * x; }
    static float grad(float x, float slope) { return x > 0.0f ? 1.0f : slope; }
};

// 0.5 x (1 + tanh u) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): the sigmoid keeps the digits that
// 1 + tanh u loses for negative x, and needs no tanh.
struct GeluTanh {
    static float twice_u(float x) { return 1.59576912f * x * fma(0.044715f * x, x, 1.0f); }
    static float fwd(float x, float) { return x * sigmoid_f(twice_u(x)); }
    static float grad(float x, float) {
        // Beyond 20 the sigmoid is flat, and x^2 must not become infinite.
        float c = x > 20.0f ? 20.0f : (x < -20.0f ? -20.0f : x);
        float slope = 1.59576912f * fma(0.134145f * c, c, 1.0f);
        return fma(c * sigmoid_grad_f(twice_u(c)), slope, sigmoid_f(twice_u(c)));
    }
};

struct GeluErf {
    static float fwd(float x, float) { return x * normal_cdf(x); }
    static float grad(float x, float) {
        float density = 0.398942280f * exp(-0.5f * x * x);
        return fma(x, density, normal_cdf(x));
    }
};

struct Silu {
    static float fwd(float x, float) { return x * sigmoid_f(x); }
    static float grad(float x, float) { return fma(x, sigmoid_grad_f(x), sigmoid_f(x)); }
};

struct Sigmoid {
    static float fwd(float x, float) { return sigmoid_f(x); }
    static float grad(float x, float) { return sigmoid_grad_f(x); }
};

// The fast tanh is NaN beyond 44.
struct Tanh {
    static float fwd(float x, float) { return precise::tanh(x); }
    static float grad(float x, float) {
        // 1 - tanh^2 x = 4 sigmoid'(2x), without the cancellation.
        return 4.0f * sigmoid_grad_f(2.0f * x);
    }
};

struct Softplus {
    static float fwd(float x, float) {
        float tail = log1p_f(exp(-fabs(x)));
        return x < 0.0f ? tail : x + tail;
    }
    static float grad(float x, float) { return sigmoid_f(x); }
};

// Of the activation with this code, for kernels that apply it once to what took long to compute. Act::code() has the
// same codes.
inline float act_fwd(uint code, float x, float param) {
    switch (code) {
        case 1u: return Relu::fwd(x, param);
        case 2u: return Relu2::fwd(x, param);
        case 3u: return LeakyRelu::fwd(x, param);
        case 4u: return GeluTanh::fwd(x, param);
        case 5u: return GeluErf::fwd(x, param);
        case 6u: return Silu::fwd(x, param);
        case 7u: return Sigmoid::fwd(x, param);
        case 8u: return Tanh::fwd(x, param);
        case 9u: return Softplus::fwd(x, param);
        default: return Identity::fwd(x, param);
    }
}

template <typename Act>
inline float4 act_fwd4(float4 x, float param) {
    return float4(Act::fwd(x.x, param), Act::fwd(x.y, param), Act::fwd(x.z, param), Act::fwd(x.w, param));
}

template <typename Act>
inline float4 act_grad4(float4 x, float param) {
    return float4(Act::grad(x.x, param), Act::grad(x.y, param), Act::grad(x.z, param), Act::grad(x.w, param));
}

// ---- Reductions over a threadgroup ----
//
// `scratch` has 32 floats. All threads of the group must call, and all get the result. The last barrier is for the
// next use of `scratch`, which may follow at once.

inline float tg_sum(float v, threadgroup float* scratch, uint lane, uint simdgroup, uint simdgroups) {
    v = simd_sum(v);
    if (simdgroups == 1u) {
        return v;
    }
    if (lane == 0u) {
        scratch[simdgroup] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = simd_sum(lane < simdgroups ? scratch[lane] : 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return v;
}

// NaNs are passed over.
inline float tg_max(float v, threadgroup float* scratch, uint lane, uint simdgroup, uint simdgroups) {
    v = simd_max(v);
    if (simdgroups == 1u) {
        return v;
    }
    if (lane == 0u) {
        scratch[simdgroup] = v;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = simd_max(lane < simdgroups ? scratch[lane] : -INFINITY);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return v;
}

// ---- Random numbers: Philox4x32-10 ----
//
// Element i of a tensor uses word i % 4 of philox((seed low, seed high), (i / 4 low, i / 4 high, 0, 0)).

inline uint4 philox(uint2 key, uint4 counter) {
    for (uint round = 0u; round < 10u; round++) {
        uint high0 = mulhi(0xD2511F53u, counter.x);
        uint low0 = 0xD2511F53u * counter.x;
        uint high1 = mulhi(0xCD9E8D57u, counter.z);
        uint low1 = 0xCD9E8D57u * counter.z;
        counter = uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key = uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u);
    }
    return counter;
}

// In [0, 1), a multiple of 2^-24.
inline float philox_uniform(uint bits) {
    return float(bits >> 8u) * 5.96046448e-08f;
}
