// x W^T + bias, or x W, with W as packed codes of 1 to 8 bits, accumulated in float.
//
// Few rows of x: a GEMV that reads W once and decodes it in registers. Many rows, and x W: tiles of simdgroup matrices, for
// which tiles of W are decoded to threadgroup memory.

struct Params {
    ulong x_row;  // strides in elements
    ulong x_col;
    uint rows;
    uint outputs;  // W's
    uint cols;
    uint row_bytes;
    uint has_bias;
    uint aligned;        // codes may be read four bytes at a time
    uint group;          // columns that share a scale; 0 where a row has one scale at most
    uint scales_stride;  // scales from an output to the next; 0 where one serves all
    uint offsets;        // ZERO_POINTS, BIASES or neither
    uint sign_bit;       // of codes in two's complement, or 0
    float zero;          // the code that stands for 0, where the codes have no zero points
    float factor;        // by which scales are multiplied: 2 for codes 0 and 1 that stand for -1 and 1
};

#define ZERO_POINTS 1u
#define BIASES 2u

// The scales of all groups of W.
struct GroupScales {
    device const float* scales;
    device const float* offsets;
    constant Params* p;

    bool same_for_eight() const thread { return p->group % 8u == 0u; }

    GroupScale number(ulong i) const thread {
        GroupScale group;
        float offset = p->offsets != 0u ? offsets[i] : 0.0f;
        group.scale = scales[i] * p->factor;
        group.zero = p->offsets == ZERO_POINTS ? offset : p->zero;
        group.bias = p->offsets == BIASES ? offset : 0.0f;
        return group;
    }
    GroupScale at(uint output, uint col) const thread {
        return number(ulong(output) * p->scales_stride + (p->group == 0u ? 0u : col / p->group));
    }
};

inline GroupScales group_scales(device const float* scales, device const float* offsets, constant Params& p) {
    GroupScales all;
    all.scales = scales;
    all.offsets = offsets;
    all.p = &p;
    return all;
}

inline CodeRows code_rows(device const uchar* codes, constant Params& p) {
    CodeRows w;
    w.codes = codes;
    w.outputs = p.outputs;
    w.cols = p.cols;
    w.row_bytes = p.row_bytes;
    w.sign_bit = p.sign_bit;
    w.aligned = p.aligned != 0u;
    return w;
}

// ---- Few rows ----

// For at most R rows: columns of each row that are in threadgroup memory at a time (20 KB in all), a multiple of the block of
// every packing, and the outputs of a simdgroup. The fewer bits a code has, the more outputs have to share a read of x, so that
// those reads stay few beside the reads of W.
#define STAGED(R) ((R) == 1u ? 5120u : 640u)
#define OUTPUTS(R) ((R) == 1u ? (Codes::COLS > 8u ? 16u : 8u) : 4u)
// Outputs that are decoded at a time: more would not fit the registers.
#define BATCH 4u

// A group's scale in the form of one multiplication and addition: a code stands for code scale + shift.
struct ScaleShift {
    float scale;
    float shift;
};

inline ScaleShift scale_shift(GroupScale group) {
    ScaleShift s;
    s.scale = group.scale;
    s.shift = group.bias - group.zero * group.scale;
    return s;
}

// The scales of the next step: 32 blocks of columns, one to a lane, from column `base` on. Where several lanes are in one group,
// the first of them reads its scale for all. A group that began in an earlier step has its scale in that step's last lane.
template <typename Codes>
inline ScaleShift next_scales(
    ScaleShift last, GroupScales scales, uint output, uint base, bool first_step, bool reads, uint lane
) {
    uint group = scales.p->group;
    uint col = base + lane * Codes::COLS;
    uint begin = col / group * group;
    uint from = begin > base ? (begin - base) / Codes::COLS : 0u;
    ScaleShift next;
    next.scale = 0.0f;
    next.shift = 0.0f;
    if (!first_step && base % group != 0u) {
        next.scale = simd_shuffle(last.scale, 31u);
        next.shift = simd_shuffle(last.shift, 31u);
    }
    bool begins = first_step || begin >= base;
    if (reads && begins && lane == from) {
        next = scale_shift(scales.at(output, col));
    }
    next.scale = simd_shuffle(next.scale, ushort(from));
    next.shift = simd_shuffle(next.shift, ushort(from));
    return next;
}

// Copies `width` columns of x from `col0` on to threadgroup memory, with zeros up to a whole block. The first columns of all
// blocks come first, then the second ones and so on: lanes, which have a block each, read neighbours.
template <typename T, typename Codes, uint R>
inline void stage_x(
    threadgroup float* xs, device const T* x, constant Params& p, uint col0, uint width, uint thread_index, uint threads
) {
    uint padded = (width + Codes::COLS - 1u) / Codes::COLS * Codes::COLS;
    for (uint r = 0u; r < p.rows; r++) {
        for (uint k = thread_index; k < padded; k += threads) {
            float v = k < width ? float(x[ulong(r) * p.x_row + ulong(col0 + k) * p.x_col]) : 0.0f;
            xs[r * STAGED(R) + k % Codes::COLS * (STAGED(R) / Codes::COLS) + k / Codes::COLS] = v;
        }
    }
}

// The outputs of a simdgroup: for each, this lane's sums, and its block of codes with their scale.
template <typename Codes, uint R>
struct Outputs {
    uint first;
    float acc[R][OUTPUTS(R)];
    ScaleShift scales[OUTPUTS(R)];
    uint words[OUTPUTS(R)][Codes::WORDS];

    void clear(GroupScales groups, uint lane) thread {
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            for (uint r = 0u; r < R; r++) {
                acc[r][o] = 0.0f;
            }
            scales[o].scale = 0.0f;
            scales[o].shift = 0.0f;
            if (groups.p->group == 0u) {
                if (lane == 0u && first + o < groups.p->outputs) {
                    scales[o] = scale_shift(groups.at(first + o, 0u));
                }
                scales[o].scale = simd_broadcast(scales[o].scale, 0u);
                scales[o].shift = simd_broadcast(scales[o].shift, 0u);
            }
        }
    }

    // Loads the codes of the block that begins at column `col`, with zeros beyond the end.
    void load(thread const CodeRows& w, uint col) thread {
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            uint row_bytes = first + o < w.outputs ? w.row_bytes : 0u;
            for (uint i = 0u; i < Codes::WORDS; i++) {
                uint at = (col / Codes::COLS * Codes::WORDS + i) * 4u;
                words[o][i] = load_word(w.row(first + o), at, row_bytes, w.aligned);
            }
        }
    }

    void load_scales(GroupScales groups, uint base, bool first_step, bool inside, uint lane) thread {
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            bool reads = inside && first + o < groups.p->outputs;
            scales[o] = next_scales<Codes>(scales[o], groups, first + o, base, first_step, reads, lane);
        }
    }

    // Weight k of the block that begins at column `col`. If the block is not `in_one_group`, every column reads its own scale.
    float weight(uint o, uint k, uint col, GroupScales groups, bool in_one_group) const thread {
        ScaleShift s = scales[o];
        if (!in_one_group && col + k < groups.p->cols && first + o < groups.p->outputs) {
            s = scale_shift(groups.at(first + o, col + k));
        }
        return fma(Codes::code(words[o], k, groups.p->sign_bit), s.scale, s.shift);
    }

    // Adds the products of the block and its columns of x, which lie a `stride` apart.
    void add(threadgroup const float* xs, uint stride, uint col, GroupScales groups, bool in_one_group) thread {
        for (uint k = 0u; k < Codes::COLS; k += Codes::STEP) {
            for (uint o0 = 0u; o0 < OUTPUTS(R); o0 += BATCH) {
                float weights[BATCH][Codes::STEP];
                for (uint o = 0u; o < BATCH; o++) {
                    for (uint i = 0u; i < Codes::STEP; i++) {
                        weights[o][i] = weight(o0 + o, k + i, col, groups, in_one_group);
                    }
                }
                for (uint r = 0u; r < R; r++) {
                    for (uint i = 0u; i < Codes::STEP && r < groups.p->rows; i++) {
                        float v = xs[r * STAGED(R) + (k + i) * stride];
                        for (uint o = 0u; o < BATCH; o++) {
                            acc[r][o0 + o] = fma(weights[o][i], v, acc[r][o0 + o]);
                        }
                    }
                }
            }
        }
    }
};

// A GEMV of at most R rows. x is shared by the threadgroup, so that it is read once for all its outputs.
template <typename T, typename Codes, uint R>
[[kernel]] void mixed_gemv(
    device const T* x [[buffer(0)]],
    device const uchar* codes [[buffer(1)]],
    device const float* scales [[buffer(2)]],
    device const float* offsets [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant Params& p [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float xs[R * STAGED(R)];
    GroupScales groups = group_scales(scales, offsets, p);
    CodeRows w = code_rows(codes, p);
    bool in_one_group = p.group % Codes::COLS == 0u;
    Outputs<Codes, R> outputs;
    outputs.first = (group * simdgroups + simdgroup) * OUTPUTS(R);
    outputs.clear(groups, lane);
    for (uint col0 = 0u; col0 < p.cols; col0 += STAGED(R)) {
        uint width = min(STAGED(R), p.cols - col0);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        stage_x<T, Codes, R>(xs, x, p, col0, width, thread_index, threads);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint base = 0u; base < width; base += 32u * Codes::COLS) {
            uint block = base / Codes::COLS + lane;
            uint col = col0 + block * Codes::COLS;
            bool inside = col < col0 + width;
            if (inside) {
                outputs.load(w, col);
            }
            if (in_one_group && p.group != 0u) {
                outputs.load_scales(groups, col0 + base, base == 0u, inside, lane);
            }
            if (inside) {
                outputs.add(xs + block, STAGED(R) / Codes::COLS, col, groups, in_one_group);
            }
        }
    }
    // Lane o writes output o.
    uint output = outputs.first + lane;
    bool writes = lane < OUTPUTS(R) && output < p.outputs;
    float b = writes && p.has_bias != 0u ? float(bias[output]) : 0.0f;
    for (uint r = 0u; r < R; r++) {
        if (r < p.rows) {
            float sum = 0.0f;
            for (uint o = 0u; o < OUTPUTS(R); o++) {
                float total = simd_sum(outputs.acc[r][o]);
                sum = lane == o ? total : sum;
            }
            if (writes) {
                y[ulong(r) * p.outputs + output] = T(sum + b);
            }
        }
    }
}

// ---- Many rows ----

// x W^T + bias, or x W if ACROSS.
template <typename T, typename Codes, bool ACROSS>
[[kernel]] void mixed_tile(
    device const T* x [[buffer(0)]],
    device const uchar* codes [[buffer(1)]],
    device const float* scales [[buffer(2)]],
    device const float* offsets [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant Params& p [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float xs[PACKED_ROWS * TILE_ROW(DEPTH)];
    threadgroup float ws[DEPTH * TILE_ROW(DEPTH)];
    uint row0 = group.y * PACKED_ROWS;
    uint out0 = group.x * DEPTH;
    uint terms = ACROSS ? p.outputs : p.cols;
    uint width = ACROSS ? p.cols : p.outputs;
    GroupScales groups = group_scales(scales, offsets, p);
    CodeRows w = code_rows(codes, p);
    Strided<T> from_x = strided(x, p.x_row, p.x_col);
    Quarter<PACKED_ROWS, DEPTH> sums;
    sums.clear(simdgroup);
    add_terms<Codes, ACROSS>(sums, xs, ws, from_x, w, groups, row0, out0, 0u, terms, p.rows, thread_index);
    sums.store(xs);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < PACKED_ROWS * DEPTH; i += TILE_THREADS) {
        uint row = row0 + i / DEPTH;
        uint output = out0 + i % DEPTH;
        if (row < p.rows && output < width) {
            float v = xs[i / DEPTH * TILE_ROW(DEPTH) + i % DEPTH];
            v += p.has_bias != 0u ? float(bias[output]) : 0.0f;
            y[ulong(row) * width + output] = T(v);
        }
    }
}

#define FOR_CODES(name, ...) \
    FOR_DTYPES_WITH(mixed_gemv, "mixed_matmul_fwd_gemv_" name "_1", __VA_ARGS__, 1) \
    FOR_DTYPES_WITH(mixed_gemv, "mixed_matmul_fwd_gemv_" name "_8", __VA_ARGS__, 8) \
    FOR_DTYPES_WITH(mixed_tile, "mixed_matmul_fwd_tile_" name, __VA_ARGS__, false) \
    FOR_DTYPES_WITH(mixed_tile, "mixed_matmul_bwd_x_tile_" name, __VA_ARGS__, true)

FOR_CODES("1", Bits<1>)
FOR_CODES("2", Bits<2>)
FOR_CODES("4", Bits<4>)
FOR_CODES("8", Bits<8>)
FOR_CODES("base3", Base3)
