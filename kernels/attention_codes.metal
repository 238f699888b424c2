// Attention over quantised keys and values: the same as parts/attention_forward.metal and parts/attention_few.metal, of rows
// whose numbers are made of codes as they are read.

// How the codes of keys, or of values, are stored. Their own strides are in AttentionParams, in bytes.
struct AttentionCodeRows {
    // Strides of batch rows, heads and places in the sequence, in elements.
    ulong scales[3];
    uint group;         // numbers that share a scale
    uint shift;         // log2 of the group, or 32 if it is no power of two
    ulong offsets[3];
    uint kind;          // of offsets: 0 none, 1 zero points, 2 biases
    uint flip;          // bits of a code that are inverted, for two's complement
    uint bits;          // of a code: 4 or 8
    uint aligned;       // four codes may be read at once
};

struct AttentionCodeParams {
    AttentionCodeRows k;
    AttentionCodeRows v;
};

// Rows of codes of a head, with their scales and offsets: a number is (code - zero) scale + bias.
struct CodeHeadRows {
    device const uchar* codes;
    device const float* scales;
    device const float* offsets;
    uint stride;
    uint scale_stride;
    uint offset_stride;
    uint cols;
    uint bits;
    uint group;
    uint shift;
    uint flip;
    uint kind;
    bool aligned;

    CodeHeadRows behind(uint row) const thread {
        CodeHeadRows rows = *this;
        rows.codes += ulong(row) * stride;
        rows.scales += ulong(row) * scale_stride;
        rows.offsets += ulong(row) * offset_stride;
        return rows;
    }

    float number(uint code, uint row, uint col) const thread {
        uint g = shift < 32u ? col >> shift : col / group;
        float scale = scales[row * scale_stride + g];
        float offset = kind != 0u ? offsets[row * offset_stride + g] : 0.0f;
        float zero = kind == 1u ? offset : float(flip);
        return fma(float(code ^ flip) - zero, scale, kind == 2u ? offset : 0.0f);
    }

    // The codes of four columns, those beyond the last one as 0.
    uint4 four_codes(uint row, uint col) const thread {
        device const uchar* from = codes + row * stride + col * bits / 8u;
        uint left = cols - col;
        if (bits == 8u) {
            if (aligned && left >= 4u) {
                return uint4(*(device const uchar4*)from);
            }
            return uint4(
                uint(from[0]), left > 1u ? uint(from[1]) : 0u, left > 2u ? uint(from[2]) : 0u, left > 3u ? uint(from[3]) : 0u
            );
        }
        uint pairs = uint(from[0]) | (left > 2u ? uint(from[1]) << 8u : 0u);
        return (uint4(pairs) >> uint4(0u, 4u, 8u, 12u)) & uint4(15u);
    }

    float4 four(uint row, uint col) const thread {
        uint4 code = four_codes(row, col);
        uint left = cols - col;
        float4 x;
        if (group % 4u == 0u) {
            uint g = shift < 32u ? col >> shift : col / group;
            float scale = scales[row * scale_stride + g];
            float offset = kind != 0u ? offsets[row * offset_stride + g] : 0.0f;
            float zero = kind == 1u ? offset : float(flip);
            x = fma(float4(code ^ uint4(flip)) - zero, float4(scale), float4(kind == 2u ? offset : 0.0f));
        } else {
            x.x = number(code.x, row, col);
            x.y = left > 1u ? number(code.y, row, col + 1u) : 0.0f;
            x.z = left > 2u ? number(code.z, row, col + 2u) : 0.0f;
            x.w = left > 3u ? number(code.w, row, col + 3u) : 0.0f;
        }
        return float4(x.x, left > 1u ? x.y : 0.0f, left > 2u ? x.z : 0.0f, left > 3u ? x.w : 0.0f);
    }
};

struct Codes {
    typedef CodeHeadRows Rows;

    device const uchar* k;
    device const float* k_scales;
    device const float* k_offsets;
    device const uchar* v;
    device const float* v_scales;
    device const float* v_offsets;
    constant AttentionCodeParams* c;

    Rows keys(thread const Segment& s, uint kv_head, constant AttentionParams& p) const thread {
        return rows(k, k_scales, k_offsets, p.k, c->k, p.dim, s, kv_head);
    }
    Rows values(thread const Segment& s, uint kv_head, constant AttentionParams& p) const thread {
        return rows(v, v_scales, v_offsets, p.v, c->v, p.value_dim, s, kv_head);
    }

    static Rows rows(
        device const uchar* codes,
        device const float* scales,
        device const float* offsets,
        constant ulong* strides,
        constant AttentionCodeRows& c,
        uint cols,
        thread const Segment& s,
        uint kv_head
    ) {
        Rows rows;
        rows.codes = codes + s.batch * strides[0] + kv_head * strides[1] + s.key * strides[2];
        rows.scales = scales + s.batch * c.scales[0] + kv_head * c.scales[1] + s.key * c.scales[2];
        rows.offsets = offsets + s.batch * c.offsets[0] + kv_head * c.offsets[1] + s.key * c.offsets[2];
        rows.stride = uint(strides[2]);
        rows.scale_stride = uint(c.scales[2]);
        rows.offset_stride = uint(c.offsets[2]);
        rows.cols = cols;
        rows.bits = c.bits;
        rows.group = c.group;
        rows.shift = c.shift;
        rows.flip = c.flip;
        rows.kind = c.kind;
        rows.aligned = c.aligned != 0u;
        return rows;
    }
};

#define CODE_ARGUMENTS \
    device const T* q [[buffer(0)]], \
    device const uchar* k [[buffer(1)]], \
    device const float* k_scales [[buffer(2)]], \
    device const float* k_offsets [[buffer(3)]],  /* scales again where there are none */ \
    device const uchar* v [[buffer(4)]], \
    device const float* v_scales [[buffer(5)]], \
    device const float* v_offsets [[buffer(6)]], \
    device const T* mask [[buffer(7)]], \
    device const uchar* allowed [[buffer(8)]], \
    device const T* sinks [[buffer(9)]], \
    device const uint* lengths [[buffer(10)]], \
    device T* y [[buffer(11)]], \
    device float2* log_sums [[buffer(12)]], \
    device float* wide [[buffer(13)]]

template <typename T, uint W>
[[kernel]] void attention_codes_tile(
    CODE_ARGUMENTS,
    constant AttentionParams& p [[buffer(14)]],
    constant AttentionCodeParams& c [[buffer(15)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup TileMemory<W> memory;
    Codes source = {k, k_scales, k_offsets, v, v_scales, v_offsets, &c};
    Place place = {group, thread_index, lane, simdgroup};
    forward_tile<W>(memory, q, source, mask, allowed, sinks, lengths, y, log_sums, wide, p, place);
}

template <typename T, uint N>
[[kernel]] void attention_codes_few(
    CODE_ARGUMENTS,
    device float* partial [[buffer(14)]],
    constant AttentionParams& p [[buffer(15)]],
    constant AttentionCodeParams& c [[buffer(16)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup FewMemory<N> memory;
    Codes source = {k, k_scales, k_offsets, v, v_scales, v_offsets, &c};
    forward_few<N>(
        memory, q, source, mask, allowed, sinks, lengths, y, log_sums, wide, partial, p, group, thread_index, lane, simdgroup
    );
}

FOR_DTYPES_WITH(attention_codes_tile, "attention_codes_tile_64", 64u)
FOR_DTYPES_WITH(attention_codes_tile, "attention_codes_tile_128", 128u)
FOR_DTYPES_WITH(attention_codes_few, "attention_codes_few_128", 1u)
FOR_DTYPES_WITH(attention_codes_few, "attention_codes_few_512", 4u)
