// x W^T + bias with x as integers of 8 bits, one scale to a row, and W of -1, 0 and 1 or of -1 and 1, summed up as integers.
//
// Few rows of x: a GEMV on bits. x's integers are taken apart into eight planes of a bit each; what 32 of them add is found
// by counting the bits that a plane has in common with W's codes as they lie. Many rows: tiles of simdgroup matrices.

struct GemvParams {
    ulong x_row;  // strides in elements
    ulong x_col;
    uint rows;
    uint outputs;
    uint cols;
    uint row_bytes;
    uint scale_stride;  // 0 where one serves all outputs
    uint has_bias;
    uint aligned;  // codes may be read four bytes at a time
    float eps;
};

struct TileParams {
    uint rows;
    uint outputs;
    uint cols;
    uint row_bytes;
    uint scale_stride;
    uint has_bias;
    uint aligned;
};

// The same roundings as on the CPU.
inline float finish(int sum, float x_scale, float w_scale, float bias) {
#pragma METAL fp contract(off)
    float scaled = float(sum) * (x_scale * w_scale);
    return scaled + bias;
}

// ---- Few rows ----

// The eight planes of 32 integers, and their sum. An odd stride keeps lanes in banks of their own.
#define PLANES 9u

// Of at most R rows: integers that a threadgroup holds at a time of each, in words of 32 (9 or 18 KB in all), and outputs of
// a simdgroup.
#define HELD(R) ((R) == 1u ? 256u : 64u)
#define OUTPUTS(R) ((R) == 1u ? 8u : 4u)

// Values of x that a thread keeps between measuring a row and rounding it.
#define KEPT 8u

// Which of 32 neighbouring integers a lane brings: neighbouring bits of W's words are of neighbouring columns, or, of two
// bits, of columns in two words.
template <uint BITS>
inline uint place(uint lane) {
    return BITS == 1u ? lane : lane / 2u + (lane % 2u) * 16u;
}

// Writes the planes of 32 integers, one of each lane.
inline void store_planes(threadgroup uint* to, int q, uint lane) {
    uint mine = uint(simd_sum(q));
    for (uint bit = 0u; bit < 8u; bit++) {
        uint plane = uint(simd_vote::vote_t(simd_ballot(((q >> int(bit)) & 1) != 0)));
        mine = lane == bit ? plane : mine;
    }
    if (lane < PLANES) {
        to[lane] = mine;
    }
}

// The sum of those of 32 integers that are chosen by bits.
inline int chosen(thread const uint* planes, uint bits) {
    int sum = -int(popcount(planes[7] & bits));
    for (uint i = 7u; i > 0u; i--) {
        sum = 2 * sum + int(popcount(planes[i - 1u] & bits));
    }
    return sum;
}

// W's codes for 32 integers.
template <uint BITS>
struct Chunk {
    uint low;
    uint high;

    void load(device const uchar* row, uint word, uint row_bytes, bool aligned) thread {
        uint a = load_word(row, word * 4u * BITS, row_bytes, aligned);
        low = a;
        high = 0u;
        if (BITS == 2u) {
            uint b = load_word(row, word * 8u + 4u, row_bytes, aligned);
            low = (a & 0x55555555u) | ((b & 0x55555555u) << 1u);
            high = ((a >> 1u) & 0x55555555u) | (b & 0xAAAAAAAAu);
        }
    }

    // Of what the codes stand for, code - 1 or 2 code - 1, and the integers.
    int dot(thread const uint* planes) const thread {
        int sum = int(planes[8]);
        int codes = chosen(planes, low);
        return BITS == 2u ? codes + 2 * chosen(planes, high) - sum : 2 * codes - sum;
    }
};

struct Here {
    uint lane;
    uint simdgroup;
    uint simdgroups;
};

// Integers of words from `word0` on, up to `count` of them, of the rows that there are.
template <uint BITS, uint R, typename X>
inline void store_integers(
    threadgroup uint* planes, device const X* x, constant GemvParams& p, uint word0, uint count, Here here
) {
    for (uint i = here.simdgroup; i < p.rows * count; i += here.simdgroups) {
        uint r = i / count;
        uint word = i % count;
        uint k = (word0 + word) * 32u + place<BITS>(here.lane);
        int q = k < p.cols ? int(x[ulong(r) * p.x_row + ulong(k) * p.x_col]) : 0;
        store_planes(planes + (r * HELD(R) + word) * PLANES, q, here.lane);
    }
}

// A finite |x|, or infinity.
inline float size_of(float x) {
    float a = fabs(x);
    return a < INFINITY ? a : INFINITY;
}

// Rounds a row, and gives its scale: NaN if one of its numbers isn't finite.
template <uint BITS, typename X>
inline float round_row(
    threadgroup uint* planes, device const X* x, constant GemvParams& p, threadgroup float* scratch, Here here
) {
    uint words = (p.cols + 31u) / 32u;
    uint offset = place<BITS>(here.lane);
    float kept[KEPT];
    float most = 0.0f;
    for (uint i = 0u; i < KEPT; i++) {
        uint k = (here.simdgroup + i * here.simdgroups) * 32u + offset;
        kept[i] = k < p.cols ? float(x[ulong(k) * p.x_col]) : 0.0f;
        most = max(most, size_of(kept[i]));
    }
    for (uint word = here.simdgroup + KEPT * here.simdgroups; word < words; word += here.simdgroups) {
        uint k = word * 32u + offset;
        most = max(most, k < p.cols ? size_of(float(x[ulong(k) * p.x_col])) : 0.0f);
    }
    most = tg_max(most, scratch, here.lane, here.simdgroup, here.simdgroups);
    bool finite = most < INFINITY;
    most = max(most, p.eps);
    float factor = finite ? 127.0f / most : 0.0f;
    for (uint i = 0u; i < KEPT; i++) {
        uint word = here.simdgroup + i * here.simdgroups;
        if (word < words) {
            int q = finite ? int(rint(kept[i] * factor)) : 0;
            store_planes(planes + word * PLANES, q, here.lane);
        }
    }
    for (uint word = here.simdgroup + KEPT * here.simdgroups; word < words; word += here.simdgroups) {
        uint k = word * 32u + offset;
        float v = finite && k < p.cols ? float(x[ulong(k) * p.x_col]) : 0.0f;
        store_planes(planes + word * PLANES, int(rint(v * factor)), here.lane);
    }
    return finite ? most / 127.0f : NAN;
}

// At most R rows. x is shared by the threadgroup, so that it is read once for all its outputs. FUSED, it is given as numbers,
// which each threadgroup rounds itself and has to hold as a whole; otherwise as integers.
template <typename T, typename X, bool FUSED, uint BITS, uint R>
[[kernel]] void bitlinear_gemv(
    device const X* x [[buffer(0)]],
    device const float* x_scales [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const float* scales [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant GemvParams& p [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup uint planes[R * HELD(R) * PLANES];
    threadgroup float scratch[32];
    Here here;
    here.lane = lane;
    here.simdgroup = simdgroup;
    here.simdgroups = simdgroups;
    uint first = (group * simdgroups + simdgroup) * OUTPUTS(R);
    float x_scale[R];
    int acc[R][OUTPUTS(R)];
    for (uint r = 0u; r < R; r++) {
        x_scale[r] = 0.0f;
        if (FUSED && r < p.rows) {
            x_scale[r] = round_row<BITS>(planes + r * HELD(R) * PLANES, x + ulong(r) * p.x_row, p, scratch, here);
        }
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            acc[r][o] = 0;
        }
    }
    bool aligned = p.aligned != 0u;
    uint words = (p.cols + 31u) / 32u;
    for (uint word0 = 0u; word0 < words; word0 += HELD(R)) {
        uint count = min(HELD(R), words - word0);
        if (!FUSED) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            store_integers<BITS, R>(planes, x, p, word0, count, here);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint word = lane; word < count; word += 32u) {
            Chunk<BITS> chunks[OUTPUTS(R)];
            for (uint o = 0u; o < OUTPUTS(R); o++) {
                device const uchar* row = codes + ulong(first + o) * p.row_bytes;
                // Of one beyond the end nothing is read.
                chunks[o].load(row, word0 + word, first + o < p.outputs ? p.row_bytes : 0u, aligned);
            }
            for (uint r = 0u; r < R; r++) {
                if (r < p.rows) {
                    uint mine[PLANES];
                    for (uint i = 0u; i < PLANES; i++) {
                        mine[i] = planes[(r * HELD(R) + word) * PLANES + i];
                    }
                    for (uint o = 0u; o < OUTPUTS(R); o++) {
                        acc[r][o] += chunks[o].dot(mine);
                    }
                }
            }
        }
    }
    // Lane o ends output o.
    uint output = first + lane;
    bool ends = lane < OUTPUTS(R) && output < p.outputs;
    bool reads = p.scale_stride == 0u ? lane == 0u : ends;
    float w_scale = reads ? scales[ulong(output) * p.scale_stride] : 0.0f;
    w_scale = p.scale_stride == 0u ? simd_broadcast(w_scale, 0u) : w_scale;
    float b = ends && p.has_bias != 0u ? float(bias[output]) : 0.0f;
    for (uint r = 0u; r < R; r++) {
        if (r < p.rows) {
            int sum = 0;
            for (uint o = 0u; o < OUTPUTS(R); o++) {
                int total = simd_sum(acc[r][o]);
                sum = lane == o ? total : sum;
            }
            float scale = x_scale[r];
            if (!FUSED) {
                scale = simd_broadcast(lane == 0u ? x_scales[r] : 0.0f, 0u);
            }
            if (ends) {
                y[ulong(r) * p.outputs + output] = T(finish(sum, scale, w_scale, b));
            }
        }
    }
}

// `fused` rounds x on the way.
#define FOR_GEMV(BITS, R, name) \
    KERNEL("bitlinear_fwd_gemv_" name "_f32", bitlinear_gemv<float, char, false, BITS, R>) \
    KERNEL("bitlinear_fwd_gemv_" name "_f16", bitlinear_gemv<half, char, false, BITS, R>) \
    KERNEL_BF16("bitlinear_fwd_gemv_" name "_bf16", bitlinear_gemv<bfloat, char, false, BITS, R>) \
    KERNEL("bitlinear_fwd_gemv_fused_" name "_f32", bitlinear_gemv<float, float, true, BITS, R>) \
    KERNEL("bitlinear_fwd_gemv_fused_" name "_f16", bitlinear_gemv<half, half, true, BITS, R>) \
    KERNEL_BF16("bitlinear_fwd_gemv_fused_" name "_bf16", bitlinear_gemv<bfloat, bfloat, true, BITS, R>)

FOR_GEMV(1, 1, "1_1")
FOR_GEMV(1, 8, "1_8")
FOR_GEMV(2, 1, "2_1")
FOR_GEMV(2, 8, "2_8")

// ---- Many rows ----

// A threadgroup makes so many rows of DEPTH outputs.
#define ROWS 64u
// Outputs of a thread.
#define SHARE (ROWS * DEPTH / TILE_THREADS)
// Columns whose sums floats hold exactly: 127 times as many is below 2^24.
#define EXACT 131072u

// -1, 0 and 1, or -1 and 1.
template <uint BITS>
struct Whole {
    bool shared_by_eight() const thread { return true; }
    Unit at(uint, uint) const thread {
        Unit unit;
        unit.scale = BITS == 2u ? 1.0f : 2.0f;
        unit.zero = BITS == 2u ? 1.0f : 0.5f;
        unit.bias = 0.0f;
        return unit;
    }
};

template <typename T, uint BITS>
[[kernel]] void bitlinear_tile(
    device const char* x [[buffer(0)]],
    device const float* x_scales [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const float* scales [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant TileParams& p [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float xs[ROWS * TILE_ROW(DEPTH)];
    threadgroup float ws[DEPTH * TILE_ROW(DEPTH)];
    uint row0 = group.y * ROWS;
    uint out0 = group.x * DEPTH;
    CodeRows w;
    w.codes = codes;
    w.outputs = p.outputs;
    w.cols = p.cols;
    w.row_bytes = p.row_bytes;
    w.flip = 0u;
    w.aligned = p.aligned != 0u;
    Strided<char> from_x = strided(x, p.cols, 1u);
    Whole<BITS> units;
    int totals[SHARE];
    for (uint i = 0u; i < SHARE; i++) {
        totals[i] = 0;
    }
    for (uint begin = 0u; begin < p.cols; begin += EXACT) {
        uint end = min(p.cols, begin + EXACT);
        Quarter<ROWS, DEPTH> sums;
        sums.clear(simdgroup);
        for (uint k0 = begin; k0 < end; k0 += DEPTH) {
            load_tile<ROWS, DEPTH>(xs, from_x, row0, k0, p.rows, p.cols, thread_index);
            load_codes<Bits<BITS>, false>(ws, w, units, out0, k0, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (row0 + sums.top < p.rows) {
                sums.add(xs, ws);
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        sums.store(xs);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0u; i < SHARE; i++) {
            uint at = i * TILE_THREADS + thread_index;
            totals[i] += int(xs[at / DEPTH * TILE_ROW(DEPTH) + at % DEPTH]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0u; i < SHARE; i++) {
        uint at = i * TILE_THREADS + thread_index;
        uint row = row0 + at / DEPTH;
        uint output = out0 + at % DEPTH;
        if (row < p.rows && output < p.outputs) {
            float b = p.has_bias != 0u ? float(bias[output]) : 0.0f;
            float v = finish(totals[i], x_scales[row], scales[ulong(output) * p.scale_stride], b);
            y[ulong(row) * p.outputs + output] = T(v);
        }
    }
}

FOR_DTYPES_WITH(bitlinear_tile, "bitlinear_fwd_tile_1", 1)
FOR_DTYPES_WITH(bitlinear_tile, "bitlinear_fwd_tile_2", 2)
