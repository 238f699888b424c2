// The numbers that codes stand for: (code - zero) scale + bias. What a grid has of these is parameters of a unit.

struct DequantizeParams {
    uint cols;       // of a row
    uint bytes;      // of its codes
    uint row_units;  // units that each row has for itself
    uint unit_cols;  // neighbours in a row that share a unit
    uint bits;       // of a code
    uint flip;       // bits of a code that are inverted, for two's complement
    uint offsets;    // 0: there are none; 1: zeros; 2: biases
    uint aligned;
    uint aligned_codes;
    float zero;      // where offsets are no zeros
    float scale;     // of a scale
};

struct Unpacking {
    device const float* scales;
    device const float* offsets;
    uint unit;
    uint left;  // columns of the unit
    float zero;
    float bias;
    float scale;

    void load(constant DequantizeParams& p) thread {
        float offset = p.offsets != 0u ? offsets[unit] : 0.0f;
        zero = p.offsets == 1u ? offset : p.zero;
        bias = p.offsets == 2u ? offset : 0.0f;
        scale = scales[unit] * p.scale;
        left = p.unit_cols;
    }
    float value(uint code, constant DequantizeParams& p) thread {
        if (left == 0u) {
            unit += 1u;
            load(p);
        }
        left -= 1u;
        float v = (float(code ^ p.flip) - zero) * scale;
        return v + bias;
    }
};

// The codes of a span, as few bytes as they are in.
template <uint SPAN>
struct Codes;

// Eight codes are as many bytes as a code has bits.
template <>
struct Codes<8u> {
    uint2 words;
    uint bits;

    void load(device const uchar* row, uint col, uint left, constant DequantizeParams& p) thread {
        device const uchar* from = row + col / 8u * p.bits;
        words = uint2(0u);
        bits = p.bits;
        if (left < 8u || p.aligned_codes == 0u) {
            uint bytes = (min(left, 8u) * bits + 7u) / 8u;
            for (uint b = 0u; b < bytes; b++) {
                uint byte = uint(from[b]) << (b % 4u * 8u);
                words.x |= b < 4u ? byte : 0u;
                words.y |= b < 4u ? 0u : byte;
            }
        } else if (bits == 8u) {
            words = *(device const uint2*)from;
        } else if (bits == 4u) {
            words.x = *(device const uint*)from;
        } else if (bits == 2u) {
            words.x = uint(*(device const ushort*)from);
        } else {
            words.x = uint(*from);
        }
        words.y = bits == 8u ? words.y : words.x >> (4u * bits);
    }
    uint at(uint k) const thread {
        uint word = k < 4u ? words.x : words.y;
        return (word >> (k % 4u * bits)) & ((1u << bits) - 1u);
    }
};

// A byte holds five digits in base 3: times 3, they come out above it one by one.
template <>
struct Codes<5u> {
    uint byte;

    void load(device const uchar* row, uint col, uint, constant DequantizeParams&) thread { byte = row[col / 5u]; }
    uint at(uint k) const thread {
        uint rest = byte;
        for (uint j = 0u; j < k; j++) {
            rest = (rest * 3u) & 255u;
        }
        return (rest * 3u) >> 8u;
    }
};

// A span of a row for each thread.
template <typename T, uint SPAN>
[[kernel]] void dequantize_fwd(
    device const uchar* codes [[buffer(0)]],
    device const float* scales [[buffer(1)]],
    device const float* offsets [[buffer(2)]],  // scales again where there are none
    device T* y [[buffer(3)]],
    constant DequantizeParams& p [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint col = at.x * SPAN;
    if (col >= p.cols) {
        return;
    }
    Unpacking unit;
    unit.scales = scales;
    unit.offsets = offsets;
    unit.unit = at.y * p.row_units + col / p.unit_cols;
    unit.load(p);
    unit.left = p.unit_cols - col % p.unit_cols;
    uint left = min(p.cols - col, SPAN);
    Codes<SPAN> span;
    span.load(codes + ulong(at.y) * p.bytes, col, left, p);
    device T* to = y + ulong(at.y) * p.cols + col;
    for (uint k = 0u; k < SPAN; k += 4u) {
        float4 v = float4(0.0f);
        for (uint j = 0u; j < 4u && k + j < left; j++) {
            v[j] = unit.value(span.at(k + j), p);
        }
        if (k < left) {
            store4(to + k, ulong(left - k), p.aligned != 0u, v);
        }
    }
}

FOR_DTYPES_WITH(dequantize_fwd, "dequantize_fwd_bits", 8u)
FOR_DTYPES_WITH(dequantize_fwd, "dequantize_fwd_base3", 5u)
