// Dequantisation: value = (code - zero) scale + bias, with the zero or the bias of the levels that have one.

struct DequantizeParams {
    uint cols;        // columns of a row
    uint bytes;       // bytes of a row's codes
    uint row_scales;  // scales of each row: 0 if rows share theirs
    uint scale_cols;  // neighbours in a row that share a scale
    uint bits;        // bits of a code
    uint flip;        // bits of a code that are inverted, for two's complement
    uint offsets;     // 0: none; 1: zero points; 2: biases
    uint aligned;     // the output may be written four elements at a time
    uint aligned_codes;  // the bytes of a span may be read at once
    float zero;       // the zero point, if offsets are not zero points
    float scale;      // factor of every stored scale
};

// Decodes neighbouring columns of a row.
struct Decoder {
    device const float* scales;
    device const float* offsets;
    uint index;  // which scale
    uint left;   // columns that still share it
    float zero;
    float bias;
    float scale;

    void load(constant DequantizeParams& p) thread {
        float offset = p.offsets != 0u ? offsets[index] : 0.0f;
        zero = p.offsets == 1u ? offset : p.zero;
        bias = p.offsets == 2u ? offset : 0.0f;
        scale = scales[index] * p.scale;
        left = p.scale_cols;
    }
    float value(uint code, constant DequantizeParams& p) thread {
        if (left == 0u) {
            index += 1u;
            load(p);
        }
        left -= 1u;
        float v = (float(code ^ p.flip) - zero) * scale;
        return v + bias;
    }
};

// The packed codes of a span.
template <uint SPAN>
struct Codes;

// Eight codes of b bits take b bytes.
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

// A byte holds five digits in base 3: each multiplication by 3 carries the next digit out of the byte.
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
    Decoder decoder;
    decoder.scales = scales;
    decoder.offsets = offsets;
    decoder.index = at.y * p.row_scales + col / p.scale_cols;
    decoder.load(p);
    decoder.left = p.scale_cols - col % p.scale_cols;
    uint left = min(p.cols - col, SPAN);
    Codes<SPAN> span;
    span.load(codes + ulong(at.y) * p.bytes, col, left, p);
    device T* to = y + ulong(at.y) * p.cols + col;
    for (uint k = 0u; k < SPAN; k += 4u) {
        float4 v = float4(0.0f);
        for (uint j = 0u; j < 4u && k + j < left; j++) {
            v[j] = decoder.value(span.at(k + j), p);
        }
        if (k < left) {
            store4(to + k, ulong(left - k), p.aligned != 0u, v);
        }
    }
}

FOR_DTYPES_WITH(dequantize_fwd, "dequantize_fwd_bits", 8u)
FOR_DTYPES_WITH(dequantize_fwd, "dequantize_fwd_base3", 5u)
