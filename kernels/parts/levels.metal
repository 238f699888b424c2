// The levels of quantisation: statistics, parameters of a scale, codes and values. The equations are in
// src/ops/quantize/mod.rs. Codes equal the CPU's for the same parameters, so a product and the sum after it are two
// statements: in one statement they may be contracted to an fma. (Means are summed in another order than on the CPU and may
// differ in their last bits.)

struct QuantizeParams {
    ulong len;        // elements that share a scale
    ulong part;       // elements of a part, which a team measures
    uint parts;       // parts of the elements that share a scale
    uint scales;      // number of scales
    uint team;        // threads of a team: a power of 2 up to 32, or 0 for a threadgroup
    uint cols;        // columns of a row
    uint row_scales;  // scales of each row: 0 if rows share theirs
    uint scale_cols;  // neighbours in a row that share a scale
    uint bytes;       // bytes of the codes of a row, or of the elements that share a scale
    uint bits;        // bits of a code
    uint seed_low;
    uint seed_high;
    uint stochastic;
    uint centred;
    float eps;
    float low;        // the smallest code
    float high;       // the largest
    uint aligned;     // x and the output may be accessed four elements at a time
    uint aligned_codes;  // the bytes of a span may be accessed at once
};

// ---- Statistics: two numbers. The first is infinite or NaN if an element is ----

struct Sums {
    static float2 start() { return float2(0.0f); }
    static float2 of(float x) { return float2(fabs(x), x); }
    static float2 join(float2 a, float2 b) { return a + b; }
    // Takes the place of an element behind the end.
    static float pad(float) { return 0.0f; }
};

struct AbsMax {
    static float2 start() { return float2(-INFINITY); }
    static float2 of(float x) {
        float a = fabs(x);
        return float2(a < INFINITY ? a : INFINITY);
    }
    static float2 join(float2 a, float2 b) { return max(a, b); }
    static float pad(float x) { return x; }
};

// max x and max -x
struct MinMax {
    static float2 start() { return float2(-INFINITY); }
    static float2 of(float x) { return fabs(x) < INFINITY ? float2(x, -x) : float2(INFINITY); }
    static float2 join(float2 a, float2 b) { return max(a, b); }
    static float pad(float x) { return x; }
};

// ---- Parameters and codes ----

// code = clamp(round((x - bias) inverse_scale) + zero), value = (code - zero) scale + bias; see the codes below for what
// each kind of levels uses.
struct ScaleParams {
    float inverse_scale;
    float zero;
    float bias;
    float scale;
};

inline ScaleParams scale_params(float inverse_scale, float zero, float bias, float scale) {
    ScaleParams u;
    u.inverse_scale = inverse_scale;
    u.zero = zero;
    u.bias = bias;
    u.scale = scale;
    return u;
}

// `noise` is in [0, 1), for stochastic rounding.
inline float rounded(float v, float noise, constant QuantizeParams& p) {
    float above = v + noise;
    return p.stochastic != 0u ? floor(above) : rint(v);
}

// NaN gives the smallest code.
inline float clamped(float v, constant QuantizeParams& p) {
    v = v > p.low ? v : p.low;
    return v < p.high ? v : p.high;
}

// Multiples of the scale. A position is the code before it is rounded and clamped.
struct Scaled {
    static float code(float x, ScaleParams u, float noise, constant QuantizeParams& p) {
        float v = x * u.inverse_scale;
        return clamped(rounded(v, noise, p) + u.zero, p);
    }
    static float position(float x, ScaleParams u) {
        float v = x * u.inverse_scale;
        return v + u.zero;
    }
    static float value(float code, ScaleParams u) { return (code - u.zero) * u.scale; }
};

// Whether x is above the bias, which is not part of the value.
struct Signs {
    static float code(float x, ScaleParams u, float, constant QuantizeParams&) { return x > u.bias ? 1.0f : 0.0f; }
    static float position(float x, ScaleParams u) {
        float v = x / u.scale;
        return v + u.zero;
    }
    static float value(float code, ScaleParams u) { return (code - u.zero) * u.scale; }
};

// Multiples of the scale, plus the bias.
struct Biased {
    static float code(float x, ScaleParams u, float noise, constant QuantizeParams& p) {
        return clamped(rounded(position(x, u), noise, p), p);
    }
    static float position(float x, ScaleParams u) { return (x - u.bias) / u.scale; }
    static float value(float code, ScaleParams u) {
        float v = code * u.scale;
        return v + u.bias;
    }
};

// ---- Levels: the parameters of n elements from their statistics, and the scale and offset that are stored ----

struct Ternary {
    typedef Sums Stat;
    typedef Scaled Code;
    static ScaleParams params(float2 s, float n, constant QuantizeParams& p) {
        float mean = max(s.x / n, p.eps);
        return scale_params(1.0f / mean, 1.0f, 0.0f, mean);
    }
    static bool has_offset() { return false; }
    static float scale(ScaleParams u) { return u.scale; }
    static float offset(ScaleParams) { return 0.0f; }
};

struct Sign {
    typedef Sums Stat;
    typedef Signs Code;
    static ScaleParams params(float2 s, float n, constant QuantizeParams& p) {
        float mean = max(s.x / n, p.eps);
        return scale_params(0.0f, 0.5f, p.centred != 0u ? s.y / n : 0.0f, 2.0f * mean);
    }
    static bool has_offset() { return false; }
    static float scale(ScaleParams u) { return 0.5f * u.scale; }
    static float offset(ScaleParams) { return 0.0f; }
};

struct Int8 {
    typedef AbsMax Stat;
    typedef Scaled Code;
    static ScaleParams params(float2 s, float, constant QuantizeParams& p) {
        float top = max(s.x, p.eps);
        return scale_params(127.0f / top, 0.0f, 0.0f, top / 127.0f);
    }
    static bool has_offset() { return false; }
    static float scale(ScaleParams u) { return u.scale; }
    static float offset(ScaleParams) { return 0.0f; }
};

struct ZeroPoint {
    typedef MinMax Stat;
    typedef Scaled Code;
    static ScaleParams params(float2 s, float, constant QuantizeParams& p) {
        float top = max(s.x, 0.0f);
        float bottom = min(-s.y, 0.0f);
        float scale = max(top - bottom, p.eps) / p.high;
        return scale_params(1.0f / scale, rint(-bottom / scale), 0.0f, scale);
    }
    static bool has_offset() { return true; }
    static float scale(ScaleParams u) { return u.scale; }
    static float offset(ScaleParams u) { return u.zero; }
};

struct Affine {
    typedef MinMax Stat;
    typedef Biased Code;
    static ScaleParams params(float2 s, float, constant QuantizeParams& p) {
        float top = s.x;
        float bottom = -s.y;
        float step = max((top - bottom) / p.high, p.eps);
        bool from_bottom = fabs(bottom) > fabs(top);
        float edge = from_bottom ? bottom : top;
        step = from_bottom ? step : -step;
        float nearest = rint(edge / step);
        if (nearest == 0.0f) {
            return scale_params(0.0f, 0.0f, 0.0f, step);
        }
        return scale_params(0.0f, 0.0f, edge, edge / nearest);
    }
    static bool has_offset() { return true; }
    static float scale(ScaleParams u) { return u.scale; }
    static float offset(ScaleParams u) { return u.bias; }
};

template <typename Levels>
inline ScaleParams params_of_stats(float2 s, constant QuantizeParams& p) {
    if (fabs(s.x) < INFINITY && fabs(s.y) < INFINITY) {
        return Levels::params(s, float(p.len), p);
    }
    return scale_params(NAN, 0.0f, 0.0f, NAN);
}

// ---- Spans: the elements that a thread takes at a time, whole bytes of codes ----

constant constexpr uint BITS = 8u;   // 8 codes of b bits take b bytes
constant constexpr uint BASE3 = 5u;  // 5 codes take a byte

template <uint SPAN>
struct Span {
    float v[SPAN];
};

// Loads a span of elements. Only the first `left` of them exist; the rest is filled with zeros.
template <uint SPAN, typename T>
inline Span<SPAN> load_span(device const T* p, uint left, bool aligned) {
    Span<SPAN> s;
    uint few = min(left, SPAN);
    for (uint k = 0u; k < SPAN; k += 4u) {
        float4 v = few > k ? load4(p + k, ulong(few - k), aligned, 0.0f) : float4(0.0f);
        for (uint j = 0u; j < 4u && k + j < SPAN; j++) {
            s.v[k + j] = v[j];
        }
    }
    return s;
}

template <typename T>
inline void store_span(device T* p, uint left, bool aligned, Span<BITS> s) {
    store4(p, ulong(left), aligned, float4(s.v[0], s.v[1], s.v[2], s.v[3]));
    if (left > 4u) {
        store4(p + 4u, ulong(left - 4u), aligned, float4(s.v[4], s.v[5], s.v[6], s.v[7]));
    }
}

// Uniform random numbers in [0, 1) for the elements from i on; 0 without stochastic rounding.
template <uint SPAN>
inline Span<SPAN> noise_span(ulong i, constant QuantizeParams& p) {
    Span<SPAN> s;
    uint4 words = uint4(0u);
    for (uint k = 0u; k < SPAN; k++) {
        s.v[k] = 0.0f;
        if (p.stochastic != 0u) {
            ulong counter = (i + k) / 4u;
            uint word = uint(i + k) % 4u;
            if (k == 0u || word == 0u) {
                words = philox(uint2(p.seed_low, p.seed_high), uint4(uint(counter), uint(counter >> 32u), 0u, 0u));
            }
            s.v[k] = philox_uniform(words[word]);
        }
    }
    return s;
}

// ---- Packing of codes into bytes ----

template <uint SPAN>
struct Packing;

template <>
struct Packing<BITS> {
    template <typename Run>
    static Span<BITS> take(thread const Run& run, uint i) {
        return run.at(i);
    }
    // Packs the codes of columns from `col` on into the bytes of a row, or of the elements that share a scale.
    static void put(device uchar* row, uint col, uint left, Span<BITS> codes, constant QuantizeParams& p) {
        uint2 words = uint2(0u);
        for (uint k = 0u; k < 4u; k++) {
            words.x |= (uint(int(codes.v[k])) & 255u) << (p.bits * k);
            words.y |= (uint(int(codes.v[k + 4u])) & 255u) << (p.bits * k);
        }
        if (p.bits < 8u) {
            words.x |= words.y << (4u * p.bits);
        }
        device uchar* to = row + col / 8u * p.bits;
        if (left < 8u || p.aligned_codes == 0u) {
            uint bytes = (min(left, 8u) * p.bits + 7u) / 8u;
            for (uint b = 0u; b < bytes; b++) {
                to[b] = uchar((b < 4u ? words.x : words.y) >> (b % 4u * 8u));
            }
        } else if (p.bits == 8u) {
            *(device uint2*)to = words;
        } else if (p.bits == 4u) {
            *(device uint*)to = words.x;
        } else if (p.bits == 2u) {
            *(device ushort*)to = ushort(words.x);
        } else {
            *to = uchar(words.x);
        }
    }
};

template <>
struct Packing<BASE3> {
    template <typename Run>
    static Span<BASE3> take(thread const Run& run, uint i) {
        return load_span<BASE3>(run.p + i, run.len - i, false);
    }
    static void put(device uchar* row, uint col, uint, Span<BASE3> codes, constant QuantizeParams&) {
        uint number = 0u;
        for (uint k = 0u; k < 5u; k++) {
            number = 3u * number + uint(codes.v[k]);
        }
        row[col / 5u] = uchar((number * 256u + 242u) / 243u);
    }
};
