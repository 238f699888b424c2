// A step of AdamW in one pass; each thread takes four neighbours. `floats` holds the first moment, the second and, if there
// is one, the master copy of the parameter; with codes, scales of blocks of 256 stand for the moments.

struct Coefficients {
    float decay;
    float beta1;
    float gain1;
    float beta2;
    float gain2;
    float rate;
    float scale_v;
    float eps;
};

struct AdamwParams {
    ulong n;
    Coefficients c;
    uint seed_low;
    uint seed_high;
    uint wide_grad;
    uint aligned;
};

struct AdamwCodesParams {
    AdamwParams step;
    float signed_magnitudes[129];
    float unsigned_magnitudes[256];
};

constant uint BLOCK = 256u;

// ---- How the parameter takes the result ----

struct Nearest {
    template <typename T>
    static float4 load(device const T* param, device const float*, ulong i, constant AdamwParams& p) {
        return load4(param + i, p.n - i, p.aligned != 0u, 0.0f);
    }
    template <typename T>
    static void store(device T* param, device float*, ulong i, constant AdamwParams& p, float4 theta) {
        store4(param + i, p.n - i, p.aligned != 0u, theta);
    }
};

struct Master {
    // A parameter that was set by other code since the last step is taken as it is.
    template <typename T>
    static float4 load(device const T* param, device const float* master, ulong i, constant AdamwParams& p) {
        float4 current = Nearest::load(param, master, i, p);
        float4 exact = load4(master + i, p.n - i, p.aligned != 0u, 0.0f);
        for (uint k = 0u; k < 4u; k++) {
            float rounded = float(T(exact[k]));
            exact[k] = as_type<uint>(rounded) == as_type<uint>(current[k]) ? exact[k] : current[k];
        }
        return exact;
    }
    template <typename T>
    static void store(device T* param, device float* master, ulong i, constant AdamwParams& p, float4 theta) {
        store4(master + i, p.n - i, p.aligned != 0u, theta);
        Nearest::store(param, master, i, p, theta);
    }
};

// x among the numbers of T above and below, by chance; the store rounds it no further.
template <typename T>
inline float rounded_by_chance(float x, uint word);

// A number beyond the largest finite one of T, an infinity and a NaN are returned as they are: the store rounds them.
template <>
inline float rounded_by_chance<half>(float x, uint word) {
    float size = fabs(x);
    if (size < 6.103515625e-05f) {
        // Below the smallest normal number, steps are of 2^-24.
        float steps = floor(size * 16777216.0f + float(word >> 19u) * 1.220703125e-04f);
        return copysign(steps * 5.9604644775390625e-08f, x);
    }
    return size <= 65504.0f ? as_type<float>((as_type<uint>(x) + (word >> 19u)) & 0xFFFFE000u) : x;
}

#if defined(__HAVE_BFLOAT__)
template <>
inline float rounded_by_chance<bfloat>(float x, uint word) {
    bool finite = (as_type<uint>(x) & 0x7FFFFFFFu) <= 0x7F7F0000u;
    return finite ? as_type<float>((as_type<uint>(x) + (word >> 16u)) & 0xFFFF0000u) : x;
}
#endif

struct Chance {
    template <typename T>
    static float4 load(device const T* param, device const float* master, ulong i, constant AdamwParams& p) {
        return Nearest::load(param, master, i, p);
    }
    template <typename T>
    static void store(device T* param, device float* master, ulong i, constant AdamwParams& p, float4 theta) {
        uint4 counter = uint4(uint(i / 4u), uint((i / 4u) >> 32u), 0u, 0u);
        uint4 words = philox(uint2(p.seed_low, p.seed_high), counter);
        for (uint k = 0u; k < 4u; k++) {
            theta[k] = rounded_by_chance<T>(theta[k], words[k]);
        }
        Nearest::store(param, master, i, p, theta);
    }
};

// ---- The step ----

// The kernel waits for memory, so that a branch which all threads take alike costs nothing.
template <typename T>
inline float4 load_grad(device const T* grad, ulong i, constant AdamwParams& p) {
    bool aligned = p.aligned != 0u;
    if (p.wide_grad != 0u) {
        return load4((device const float*)grad + i, p.n - i, aligned, 0.0f);
    }
    return load4(grad + i, p.n - i, aligned, 0.0f);
}

inline float4 updated(float4 theta, float4 g, thread float4& m, thread float4& v, constant Coefficients& c) {
    m = fma(float4(c.beta1), m, c.gain1 * g);
    v = fma(float4(c.beta2), v, c.gain2 * (g * g));
    return c.decay * theta - (c.rate * m) / (sqrt(v * c.scale_v) + c.eps);
}

template <typename T, typename R>
[[kernel]] void adamw_floats(
    device T* param [[buffer(0)]],
    device const T* grad [[buffer(1)]],
    device float* floats [[buffer(2)]],
    constant AdamwParams& p [[buffer(3)]],
    uint thread_index [[thread_position_in_grid]]
) {
    ulong i = ulong(thread_index) * 4u;
    if (i >= p.n) {
        return;
    }
    ulong left = p.n - i;
    bool aligned = p.aligned != 0u;
    device float* m_at = floats + i;
    device float* v_at = floats + p.n + i;
    device float* master = floats + 2u * p.n;
    float4 m = load4((device const float*)m_at, left, aligned, 0.0f);
    float4 v = load4((device const float*)v_at, left, aligned, 0.0f);
    float4 theta = R::load((device const T*)param, (device const float*)master, i, p);
    theta = updated(theta, load_grad(grad, i, p), m, v, p.c);
    store4(m_at, left, aligned, m);
    store4(v_at, left, aligned, v);
    R::store(param, master, i, p, theta);
}

// ---- 8-bit moments ----

// The code of the magnitude that is nearest to x.
inline uint nearest_code(constant float* magnitudes, uint last, float x) {
    uint low = 0u;
    uint high = last;
    while (low < high) {
        uint between = (low + high) / 2u;
        if (x > 0.5f * (magnitudes[between] + magnitudes[between + 1u])) {
            low = between + 1u;
        } else {
            high = between;
        }
    }
    return low;
}

inline float largest4(float4 x) {
    float largest = 0.0f;
    for (uint k = 0u; k < 4u; k++) {
        bool finite = (as_type<uint>(x[k]) & 0x7F800000u) != 0x7F800000u;
        largest = max(largest, finite ? fabs(x[k]) : INFINITY);
    }
    return largest;
}

// What values are multiplied by before they get their codes; changes the largest magnitude to the block's scale.
inline float factor_of(thread float& largest) {
    if (largest == INFINITY) {
        largest = NAN;
        return 0.0f;
    }
    largest = largest < 1.17549435e-38f ? 0.0f : largest;
    return largest == 0.0f ? 0.0f : 1.0f / largest;
}

template <typename T, typename R>
[[kernel]] void adamw_codes(
    device T* param [[buffer(0)]],
    device const T* grad [[buffer(1)]],
    device float* floats [[buffer(2)]],
    device uchar* codes [[buffer(3)]],
    constant AdamwCodesParams& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_position_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float scratch[32];
    ulong n = p.step.n;
    ulong blocks = (n + BLOCK - 1u) / BLOCK;
    ulong i = ulong(group) * BLOCK + thread_index * 4u;
    uint count = i < n ? uint(min(n - i, ulong(4u))) : 0u;
    device float* m_scale = floats + group;
    device float* v_scale = floats + blocks + group;
    device float* master = floats + 2u * blocks;
    float4 m = float4(0.0f);
    float4 v = float4(0.0f);
    float4 theta = float4(0.0f);
    for (uint k = 0u; k < count; k++) {
        uint code = codes[i + k];
        float magnitude = p.signed_magnitudes[code > 128u ? code - 128u : code];
        m[k] = (code > 128u ? -magnitude : magnitude) * *m_scale;
        v[k] = p.unsigned_magnitudes[codes[n + i + k]] * *v_scale;
    }
    if (count > 0u) {
        theta = R::load((device const T*)param, (device const float*)master, i, p.step);
        theta = updated(theta, load_grad(grad, i, p.step), m, v, p.step.c);
    }
    // All threads have read the scales before one writes them.
    threadgroup_barrier(mem_flags::mem_device);
    float m_largest = tg_max(largest4(m), scratch, lane, simdgroup, simdgroups);
    // The square of a finite gradient may be infinite. An infinite gradient is seen by the first moment.
    float v_largest = min(tg_max(largest4(v), scratch, lane, simdgroup, simdgroups), 3.40282347e+38f);
    float m_factor = factor_of(m_largest);
    float v_factor = factor_of(v_largest);
    if (thread_index == 0u) {
        *m_scale = m_largest;
        *v_scale = v_largest;
    }
    for (uint k = 0u; k < count; k++) {
        float x = m[k] * m_factor;
        uint code = nearest_code(p.signed_magnitudes, 128u, fabs(x));
        bool negative = x < 0.0f && code > 0u;
        codes[i + k] = uchar(negative ? min(code, 127u) + 128u : code);
        x = v[k] * v_factor;
        code = nearest_code(p.unsigned_magnitudes, 255u, x);
        codes[n + i + k] = uchar(x > 0.0f ? max(code, 1u) : code);
    }
    if (count > 0u) {
        R::store(param, master, i, p.step, theta);
    }
}

FOR_DTYPES_WITH(adamw_floats, "adamw_floats_nearest", Nearest)
FOR_16_BITS_WITH(adamw_floats, "adamw_floats_chance", Chance)
FOR_16_BITS_WITH(adamw_floats, "adamw_floats_master", Master)
FOR_DTYPES_WITH(adamw_codes, "adamw_codes_nearest", Nearest)
FOR_16_BITS_WITH(adamw_codes, "adamw_codes_chance", Chance)
FOR_16_BITS_WITH(adamw_codes, "adamw_codes_master", Master)
