// What a unit's numbers are measured by, which codes they have, and what the codes stand for. The equations are in
// src/ops/quantize/mod.rs. Codes are those of the CPU for the same unit, so a product and the sum behind it are two
// statements: one alone may become an fma. (Means are sums in another order, and may differ in their last bits.)

struct QuantizeParams {
    ulong len;        // elements of a unit
    ulong part;       // of them, in a part that is measured on its own
    uint parts;       // of a unit
    uint units;
    uint team;        // threads of a unit: a power of 2 up to 32, or 0 for a threadgroup
    uint cols;        // of a row
    uint row_units;   // units that each row has for itself
    uint unit_cols;   // neighbours in a row that share a unit
    uint bytes;       // of codes, of a unit or a row
    uint bits;        // of a code
    uint seed_low;
    uint seed_high;
    uint stochastic;
    uint centred;
    float eps;
    float low;        // the smallest code
    float high;       // the largest
    uint aligned;     // x, and what is made of it, may be taken four elements at a time
    uint aligned_codes;
};

// ---- Measures: two numbers. What isn't finite makes the first infinite or NaN ----

struct Sums {
    static float2 start() { return float2(0.0f); }
    static float2 of(float x) { return float2(fabs(x), x); }
    static float2 join(float2 a, float2 b) { return a + b; }
    // In place of an element that isn't there.
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

// The largest x and -x.
struct Ends {
    static float2 start() { return float2(-INFINITY); }
    static float2 of(float x) { return fabs(x) < INFINITY ? float2(x, -x) : float2(INFINITY); }
    static float2 join(float2 a, float2 b) { return max(a, b); }
    static float pad(float x) { return x; }
};

// ---- Units and codes ----

// code = clamp(round((x - bias) factor) + zero), value = (code - zero) scale + bias, as far as a grid has them.
struct Unit {
    float factor;
    float zero;
    float bias;
    float scale;
};

inline Unit unit_of(float factor, float zero, float bias, float scale) {
    Unit u;
    u.factor = factor;
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

// Multiples of the scale. A position is x in steps, with codes at the integers.
struct Scaled {
    static float code(float x, Unit u, float noise, constant QuantizeParams& p) {
        float v = x * u.factor;
        return clamped(rounded(v, noise, p) + u.zero, p);
    }
    static float position(float x, Unit u) {
        float v = x * u.factor;
        return v + u.zero;
    }
    static float value(float code, Unit u) { return (code - u.zero) * u.scale; }
};

// Above the bias or not; the bias is no part of the values.
struct Signs {
    static float code(float x, Unit u, float, constant QuantizeParams&) { return x > u.bias ? 1.0f : 0.0f; }
    static float position(float x, Unit u) {
        float v = x / u.scale;
        return v + u.zero;
    }
    static float value(float code, Unit u) { return (code - u.zero) * u.scale; }
};

// Multiples of the scale from the bias on.
struct Biased {
    static float code(float x, Unit u, float noise, constant QuantizeParams& p) {
        return clamped(rounded(position(x, u), noise, p), p);
    }
    static float position(float x, Unit u) { return (x - u.bias) / u.scale; }
    static float value(float code, Unit u) {
        float v = code * u.scale;
        return v + u.bias;
    }
};

// ---- Grids: how a unit of n elements follows from its measure; what users see of it ----

struct Ternary {
    typedef Sums Stat;
    typedef Scaled Code;
    static Unit unit(float2 s, float n, constant QuantizeParams& p) {
        float mean = max(s.x / n, p.eps);
        return unit_of(1.0f / mean, 1.0f, 0.0f, mean);
    }
    static bool has_offset() { return false; }
    static float scale(Unit u) { return u.scale; }
    static float offset(Unit) { return 0.0f; }
};

struct Sign {
    typedef Sums Stat;
    typedef Signs Code;
    static Unit unit(float2 s, float n, constant QuantizeParams& p) {
        float mean = max(s.x / n, p.eps);
        return unit_of(0.0f, 0.5f, p.centred != 0u ? s.y / n : 0.0f, 2.0f * mean);
    }
    static bool has_offset() { return false; }
    static float scale(Unit u) { return 0.5f * u.scale; }
    static float offset(Unit) { return 0.0f; }
};

struct Int8 {
    typedef AbsMax Stat;
    typedef Scaled Code;
    static Unit unit(float2 s, float, constant QuantizeParams& p) {
        float top = max(s.x, p.eps);
        return unit_of(127.0f / top, 0.0f, 0.0f, top / 127.0f);
    }
    static bool has_offset() { return false; }
    static float scale(Unit u) { return u.scale; }
    static float offset(Unit) { return 0.0f; }
};

struct ZeroPoint {
    typedef Ends Stat;
    typedef Scaled Code;
    static Unit unit(float2 s, float, constant QuantizeParams& p) {
        float top = max(s.x, 0.0f);
        float bottom = min(-s.y, 0.0f);
        float scale = max(top - bottom, p.eps) / p.high;
        return unit_of(1.0f / scale, rint(-bottom / scale), 0.0f, scale);
    }
    static bool has_offset() { return true; }
    static float scale(Unit u) { return u.scale; }
    static float offset(Unit u) { return u.zero; }
};

struct Affine {
    typedef Ends Stat;
    typedef Biased Code;
    static Unit unit(float2 s, float, constant QuantizeParams& p) {
        float top = s.x;
        float bottom = -s.y;
        float step = max((top - bottom) / p.high, p.eps);
        bool from_bottom = fabs(bottom) > fabs(top);
        float edge = from_bottom ? bottom : top;
        step = from_bottom ? step : -step;
        float nearest = rint(edge / step);
        if (nearest == 0.0f) {
            return unit_of(0.0f, 0.0f, 0.0f, step);
        }
        return unit_of(0.0f, 0.0f, edge, edge / nearest);
    }
    static bool has_offset() { return true; }
    static float scale(Unit u) { return u.scale; }
    static float offset(Unit u) { return u.bias; }
};

template <typename Grid>
inline Unit measured_unit(float2 s, constant QuantizeParams& p) {
    if (fabs(s.x) < INFINITY && fabs(s.y) < INFINITY) {
        return Grid::unit(s, float(p.len), p);
    }
    return unit_of(NAN, 0.0f, 0.0f, NAN);
}

// ---- Spans: what a thread takes at a time, whole bytes of codes ----

constant constexpr uint BITS = 8u;   // 8 codes are as many bytes as a code has bits
constant constexpr uint BASE3 = 5u;  // a byte

template <uint SPAN>
struct Span {
    float v[SPAN];
};

// `left` elements remain from p on, the rest are 0.
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

// Uniform numbers of the elements from i on, where they are needed.
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

// ---- Codes in bytes ----

template <uint SPAN>
struct Packing;

template <>
struct Packing<BITS> {
    template <typename Run>
    static Span<BITS> take(thread const Run& run, uint i) {
        return run.at(i);
    }
    // The codes of columns from `col` on, to a row (or a unit) of bytes.
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
