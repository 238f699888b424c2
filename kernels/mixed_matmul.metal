// x W^T + bias, or x W, with W as codes of 1 to 8 bits, accumulated in float.
//
// Few rows of x: a GEMV that reads W once and decodes it in registers. Many rows, and x W: tiles of simdgroup matrices, for
// which a tile of W is decoded at a time.

struct Params {
    ulong x_row;  // strides in elements
    ulong x_col;
    uint rows;
    uint outputs;  // W's
    uint cols;
    uint row_bytes;
    uint group;         // columns of a unit; 0 where a row has no more than one
    uint units_stride;  // from an output's to the next one's; 0 where one serves all
    uint offsets;       // ZEROS, BIASES or neither
    uint flip;
    uint has_bias;
    uint aligned;  // codes may be read four bytes at a time
    // Of codes that have no offsets, and the factor of scales.
    float zero;
    float factor;
};

#define ZEROS 1u
#define BIASES 2u

struct Units {
    device const float* scales;
    device const float* offsets;
    constant Params* p;

    bool shared_by_eight() const thread { return p->group % 8u == 0u; }

    Unit of(ulong i) const thread {
        Unit unit;
        float offset = p->offsets != 0u ? offsets[i] : 0.0f;
        unit.scale = scales[i] * p->factor;
        unit.zero = p->offsets == ZEROS ? offset : p->zero;
        unit.bias = p->offsets == BIASES ? offset : 0.0f;
        return unit;
    }
    Unit at(uint output, uint col) const thread {
        return of(ulong(output) * p->units_stride + (p->group == 0u ? 0u : col / p->group));
    }
};

inline Units units_of(device const float* scales, device const float* offsets, constant Params& p) {
    Units units;
    units.scales = scales;
    units.offsets = offsets;
    units.p = &p;
    return units;
}

inline CodeRows code_rows(device const uchar* codes, constant Params& p) {
    CodeRows w;
    w.codes = codes;
    w.outputs = p.outputs;
    w.cols = p.cols;
    w.row_bytes = p.row_bytes;
    w.flip = p.flip;
    w.aligned = p.aligned != 0u;
    return w;
}

// ---- Few rows ----

// Of at most R rows: columns that a threadgroup holds at a time, whole blocks of all codes (20 KB in all), and outputs of a
// simdgroup. The fewer bits, the more outputs have to share x, so that it is little beside W.
#define HELD(R) ((R) == 1u ? 5120u : 640u)
#define OUTPUTS(R) ((R) == 1u ? (Codes::COLS > 8u ? 16u : 8u) : 4u)
#define BATCH 4u

// What codes stand for, as code scale + shift, of the block of columns of each lane.
struct Line {
    float scale;
    float shift;
};

inline Line line_of(Unit unit) {
    Line line;
    line.scale = unit.scale;
    line.shift = unit.bias - unit.zero * unit.scale;
    return line;
}

// The step of 32 blocks that begins at column `base`. Of a unit that several lanes share, the first reads for all; what the
// last step has left is taken from its last lane.
template <typename Codes>
inline Line next_line(
    Line line, Units units, uint output, uint base, bool first_step, bool reads, uint lane
) {
    uint group = units.p->group;
    uint col = base + lane * Codes::COLS;
    uint begin = col / group * group;
    uint from = begin > base ? (begin - base) / Codes::COLS : 0u;
    Line next;
    next.scale = 0.0f;
    next.shift = 0.0f;
    if (!first_step && base % group != 0u) {
        next.scale = simd_shuffle(line.scale, 31u);
        next.shift = simd_shuffle(line.shift, 31u);
    }
    bool begins = first_step || begin >= base;
    if (reads && begins && lane == from) {
        next = line_of(units.at(output, col));
    }
    next.scale = simd_shuffle(next.scale, ushort(from));
    next.shift = simd_shuffle(next.shift, ushort(from));
    return next;
}

// Numbers of x from `col0` on, sorted by their places in blocks, so that lanes read neighbours; zeros beyond the end.
template <typename T, typename Codes, uint R>
inline void hold(
    threadgroup float* xs, device const T* x, constant Params& p, uint col0, uint width, uint thread_index, uint threads
) {
    uint padded = (width + Codes::COLS - 1u) / Codes::COLS * Codes::COLS;
    for (uint r = 0u; r < p.rows; r++) {
        for (uint k = thread_index; k < padded; k += threads) {
            float v = k < width ? float(x[ulong(r) * p.x_row + ulong(col0 + k) * p.x_col]) : 0.0f;
            xs[r * HELD(R) + k % Codes::COLS * (HELD(R) / Codes::COLS) + k / Codes::COLS] = v;
        }
    }
}

// The outputs of a simdgroup.
template <typename Codes, uint R>
struct Outputs {
    uint first;
    float acc[R][OUTPUTS(R)];
    Line lines[OUTPUTS(R)];
    uint words[OUTPUTS(R)][Codes::WORDS];

    void clear(Units units, uint lane) thread {
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            for (uint r = 0u; r < R; r++) {
                acc[r][o] = 0.0f;
            }
            lines[o].scale = 0.0f;
            lines[o].shift = 0.0f;
            if (units.p->group == 0u) {
                if (lane == 0u && first + o < units.p->outputs) {
                    lines[o] = line_of(units.at(first + o, 0u));
                }
                lines[o].scale = simd_broadcast(lines[o].scale, 0u);
                lines[o].shift = simd_broadcast(lines[o].shift, 0u);
            }
        }
    }

    // The codes of the block that begins at column `col`, zeros beyond the end.
    void load(thread const CodeRows& w, uint col) thread {
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            uint row_bytes = first + o < w.outputs ? w.row_bytes : 0u;
            for (uint i = 0u; i < Codes::WORDS; i++) {
                uint at = (col / Codes::COLS * Codes::WORDS + i) * 4u;
                words[o][i] = load_word(w.row(first + o), at, row_bytes, w.aligned);
            }
        }
    }

    void load_lines(Units units, uint base, bool first_step, bool inside, uint lane) thread {
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            bool reads = inside && first + o < units.p->outputs;
            lines[o] = next_line<Codes>(lines[o], units, first + o, base, first_step, reads, lane);
        }
    }

    // Weight k of the block that begins at column `col`, of which `lines` may know the unit.
    float weight(uint o, uint k, uint col, Units units, bool shared) const thread {
        Line line = lines[o];
        if (!shared && col + k < units.p->cols && first + o < units.p->outputs) {
            line = line_of(units.at(first + o, col + k));
        }
        return fma(Codes::code(words[o], k, units.p->flip), line.scale, line.shift);
    }

    // Adds the products of the block and what meets it of x, which lies a `stride` apart.
    void add(threadgroup const float* xs, uint stride, uint col, Units units, bool shared) thread {
        for (uint k = 0u; k < Codes::COLS; k += Codes::STEP) {
            // A batch of outputs at a time, for want of registers.
            for (uint o0 = 0u; o0 < OUTPUTS(R); o0 += BATCH) {
                float weights[BATCH][Codes::STEP];
                for (uint o = 0u; o < BATCH; o++) {
                    for (uint i = 0u; i < Codes::STEP; i++) {
                        weights[o][i] = weight(o0 + o, k + i, col, units, shared);
                    }
                }
                for (uint r = 0u; r < R; r++) {
                    for (uint i = 0u; i < Codes::STEP && r < units.p->rows; i++) {
                        float v = xs[r * HELD(R) + (k + i) * stride];
                        for (uint o = 0u; o < BATCH; o++) {
                            acc[r][o0 + o] = fma(weights[o][i], v, acc[r][o0 + o]);
                        }
                    }
                }
            }
        }
    }
};

// At most R rows. x is shared by the threadgroup, so that it is read once for all its outputs.
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
    threadgroup float xs[R * HELD(R)];
    Units units = units_of(scales, offsets, p);
    CodeRows w = code_rows(codes, p);
    bool shared = p.group % Codes::COLS == 0u;
    Outputs<Codes, R> outputs;
    outputs.first = (group * simdgroups + simdgroup) * OUTPUTS(R);
    outputs.clear(units, lane);
    for (uint col0 = 0u; col0 < p.cols; col0 += HELD(R)) {
        uint width = min(HELD(R), p.cols - col0);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        hold<T, Codes, R>(xs, x, p, col0, width, thread_index, threads);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint base = 0u; base < width; base += 32u * Codes::COLS) {
            uint block = base / Codes::COLS + lane;
            uint col = col0 + block * Codes::COLS;
            bool inside = col < col0 + width;
            if (inside) {
                outputs.load(w, col);
            }
            if (shared && p.group != 0u) {
                outputs.load_lines(units, col0 + base, base == 0u, inside, lane);
            }
            if (inside) {
                outputs.add(xs + block, HELD(R) / Codes::COLS, col, units, shared);
            }
        }
    }
    // Lane o ends output o.
    uint output = outputs.first + lane;
    bool ends = lane < OUTPUTS(R) && output < p.outputs;
    float b = ends && p.has_bias != 0u ? float(bias[output]) : 0.0f;
    for (uint r = 0u; r < R; r++) {
        if (r < p.rows) {
            float sum = 0.0f;
            for (uint o = 0u; o < OUTPUTS(R); o++) {
                float total = simd_sum(outputs.acc[r][o]);
                sum = lane == o ? total : sum;
            }
            if (ends) {
                y[ulong(r) * p.outputs + output] = T(sum + b);
            }
        }
    }
}

// ---- Many rows ----

// A threadgroup makes so many rows of DEPTH outputs; x W if ACROSS.
#define ROWS 64u

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
    threadgroup float xs[ROWS * TILE_ROW(DEPTH)];
    threadgroup float ws[DEPTH * TILE_ROW(DEPTH)];
    uint row0 = group.y * ROWS;
    uint out0 = group.x * DEPTH;
    uint terms = ACROSS ? p.outputs : p.cols;
    uint width = ACROSS ? p.cols : p.outputs;
    Units units = units_of(scales, offsets, p);
    CodeRows w = code_rows(codes, p);
    Strided<T> from_x = strided(x, p.x_row, p.x_col);
    Quarter<ROWS, DEPTH> sums;
    sums.clear(simdgroup);
    for (uint k0 = 0u; k0 < terms; k0 += DEPTH) {
        load_tile<ROWS, DEPTH>(xs, from_x, row0, k0, p.rows, terms, thread_index);
        load_codes<Codes, ACROSS>(ws, w, units, ACROSS ? k0 : out0, ACROSS ? out0 : k0, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (row0 + sums.top < p.rows) {
            sums.add(xs, ws);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    sums.store(xs);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < ROWS * DEPTH; i += TILE_THREADS) {
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
