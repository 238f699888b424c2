// x W^T + bias with x rounded to 8-bit integers, one scale to a row, and W of -1, 0 and 1 or of -1 and 1, summed as integers.
//
// Few rows of x: a GEMV on bits. 32 integers of x are stored as eight bit planes, words that hold one bit of each. The sum of
// the integers that W's codes choose is found by counting the bits that each plane and the word of codes have in common.
// Many rows: tiles of simdgroup matrices.

struct Params {
    ulong x_row;  // strides in elements
    ulong x_col;
    uint rows;
    uint outputs;
    uint cols;
    uint row_bytes;
    uint has_bias;
    uint aligned;       // codes may be read four bytes at a time
    uint scale_stride;  // 0 where one scale serves all outputs
    float eps;          // of x's scales, where the GEMV rounds x
};

// Rounded as on the CPU, without a fused multiplication and addition.
inline float finish(int sum, float x_scale, float w_scale, float bias) {
#pragma METAL fp contract(off)
    float scaled = float(sum) * (x_scale * w_scale);
    return scaled + bias;
}

// ---- Few rows ----

// Words that stand for 32 integers: their eight bit planes, and their sum. An odd number keeps neighbouring lanes in
// different banks of threadgroup memory.
#define PLANES 9u

// For at most R rows: how many times 32 columns of each row are in threadgroup memory at a time (9 or 18 KB in all), and the
// outputs of a simdgroup. src/ops/bitlinear/metal.rs has both numbers too.
#define STAGED(R) ((R) == 1u ? 256u : 64u)
#define OUTPUTS(R) ((R) == 1u ? 8u : 4u)

// Numbers of x that a thread keeps in registers between finding the largest of a row and rounding it.
#define KEPT 8u

// Which of 32 neighbouring columns becomes bit `lane` of a plane. Codes of 1 bit are in order. Two words of 2-bit codes hold 16
// columns each, and Chunk interleaves their bits.
template <uint BITS>
inline uint column_of_bit(uint lane) {
    return BITS == 1u ? lane : lane / 2u + (lane % 2u) * 16u;
}

// Writes the digit planes and the sum of 32 integers. Each lane of the simdgroup holds one of the integers.
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

// The sum of the integers whose bit in `bits` is set. Plane 7 holds the sign bits, which count -128.
inline int masked_sum(thread const uint* planes, uint bits) {
    int sum = -int(popcount(planes[7] & bits));
    for (uint i = 7u; i > 0u; i--) {
        sum = 2 * sum + int(popcount(planes[i - 1u] & bits));
    }
    return sum;
}

// W's codes of 32 columns, as bit planes too.
template <uint BITS>
struct Chunk {
    uint low;
    uint high;  // of codes of 2 bits

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

    // The sum of the products of 32 integers and weights, which are code - 1 or, of 1 bit, 2 code - 1.
    int dot(thread const uint* planes) const thread {
        int sum = int(planes[8]);
        int codes = masked_sum(planes, low);
        return BITS == 2u ? codes + 2 * masked_sum(planes, high) - sum : 2 * codes - sum;
    }
};

// Where a thread is in its threadgroup.
struct ThreadPlace {
    uint lane;
    uint simdgroup;
    uint simdgroups;
};

// Writes the planes of `count` times 32 integers, from `word0` times 32 on, for all rows.
template <uint BITS, uint R, typename X>
inline void store_integers(
    threadgroup uint* planes, device const X* x, constant Params& p, uint word0, uint count, ThreadPlace here
) {
    for (uint i = here.simdgroup; i < p.rows * count; i += here.simdgroups) {
        uint r = i / count;
        uint word = i % count;
        uint k = (word0 + word) * 32u + column_of_bit<BITS>(here.lane);
        int q = k < p.cols ? int(x[ulong(r) * p.x_row + ulong(k) * p.x_col]) : 0;
        store_planes(planes + (r * STAGED(R) + word) * PLANES, q, here.lane);
    }
}

// |x| if it is finite, otherwise infinity.
inline float size_of(float x) {
    float a = fabs(x);
    return a < INFINITY ? a : INFINITY;
}

// Rounds a row to 8-bit integers, writes their planes and returns their scale: NaN if one of the numbers is not finite.
template <uint BITS, typename X>
inline float round_row(
    threadgroup uint* planes, device const X* x, constant Params& p, threadgroup float* scratch, ThreadPlace here
) {
    uint words = (p.cols + 31u) / 32u;
    uint offset = column_of_bit<BITS>(here.lane);
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

// A GEMV of at most R rows. The planes of x are shared by the threadgroup, so that x is read once for all its outputs. If FUSED,
// x is floats, which each threadgroup rounds itself; then whole rows must fit STAGED. Otherwise x is integers.
template <typename T, typename X, bool FUSED, uint BITS, uint R>
[[kernel]] void bitlinear_gemv(
    device const X* x [[buffer(0)]],
    device const float* x_scales [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const float* scales [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant Params& p [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup uint planes[R * STAGED(R) * PLANES];
    threadgroup float scratch[32];
    ThreadPlace here;
    here.lane = lane;
    here.simdgroup = simdgroup;
    here.simdgroups = simdgroups;
    uint first = (group * simdgroups + simdgroup) * OUTPUTS(R);
    float x_scale[R];
    int acc[R][OUTPUTS(R)];
    for (uint r = 0u; r < R; r++) {
        x_scale[r] = 0.0f;
        if (FUSED && r < p.rows) {
            x_scale[r] = round_row<BITS>(planes + r * STAGED(R) * PLANES, x + ulong(r) * p.x_row, p, scratch, here);
        }
        for (uint o = 0u; o < OUTPUTS(R); o++) {
            acc[r][o] = 0;
        }
    }
    bool aligned = p.aligned != 0u;
    uint words = (p.cols + 31u) / 32u;
    for (uint word0 = 0u; word0 < words; word0 += STAGED(R)) {
        uint count = min(STAGED(R), words - word0);
        if (!FUSED) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            store_integers<BITS, R>(planes, x, p, word0, count, here);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint word = lane; word < count; word += 32u) {
            Chunk<BITS> chunks[OUTPUTS(R)];
            for (uint o = 0u; o < OUTPUTS(R); o++) {
                device const uchar* row = codes + ulong(first + o) * p.row_bytes;
                // Of an output beyond the last one, 0 bytes are read.
                chunks[o].load(row, word0 + word, first + o < p.outputs ? p.row_bytes : 0u, aligned);
            }
            for (uint r = 0u; r < R; r++) {
                if (r < p.rows) {
                    uint mine[PLANES];
                    for (uint i = 0u; i < PLANES; i++) {
                        mine[i] = planes[(r * STAGED(R) + word) * PLANES + i];
                    }
                    for (uint o = 0u; o < OUTPUTS(R); o++) {
                        acc[r][o] += chunks[o].dot(mine);
                    }
                }
            }
        }
    }
    // Lane o scales and writes output o.
    uint output = first + lane;
    bool writes = lane < OUTPUTS(R) && output < p.outputs;
    bool reads = p.scale_stride == 0u ? lane == 0u : writes;
    float w_scale = reads ? scales[ulong(output) * p.scale_stride] : 0.0f;
    w_scale = p.scale_stride == 0u ? simd_broadcast(w_scale, 0u) : w_scale;
    float b = writes && p.has_bias != 0u ? float(bias[output]) : 0.0f;
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
            if (writes) {
                y[ulong(r) * p.outputs + output] = T(finish(sum, scale, w_scale, b));
            }
        }
    }
}

// Those named `fused` round x themselves.
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

// Outputs of a thread.
#define THREAD_OUTPUTS (PACKED_ROWS * DEPTH / TILE_THREADS)
// Columns whose sums a float holds exactly: 127 times this number is below 2^24. After as many, sums are added to an integer.
#define EXACT_COLS 131072u

// Decodes weights to -1, 0 and 1, or to -1 and 1: W's scale is left to the end.
template <uint BITS>
struct UnitScale {
    bool same_for_eight() const thread { return true; }
    GroupScale at(uint, uint) const thread {
        GroupScale group;
        group.scale = BITS == 2u ? 1.0f : 2.0f;
        group.zero = BITS == 2u ? 1.0f : 0.5f;
        group.bias = 0.0f;
        return group;
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
    constant Params& p [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]
) {
    threadgroup float xs[PACKED_ROWS * TILE_ROW(DEPTH)];
    threadgroup float ws[DEPTH * TILE_ROW(DEPTH)];
    uint row0 = group.y * PACKED_ROWS;
    uint out0 = group.x * DEPTH;
    CodeRows w;
    w.codes = codes;
    w.outputs = p.outputs;
    w.cols = p.cols;
    w.row_bytes = p.row_bytes;
    w.sign_bit = 0u;
    w.aligned = p.aligned != 0u;
    Strided<char> from_x = strided(x, p.cols, 1u);
    UnitScale<BITS> unit_scale;
    int totals[THREAD_OUTPUTS];
    for (uint i = 0u; i < THREAD_OUTPUTS; i++) {
        totals[i] = 0;
    }
    for (uint begin = 0u; begin < p.cols; begin += EXACT_COLS) {
        uint end = min(p.cols, begin + EXACT_COLS);
        Quarter<PACKED_ROWS, DEPTH> sums;
        sums.clear(simdgroup);
        add_terms<Bits<BITS>, false>(
            sums, xs, ws, from_x, w, unit_scale, row0, out0, begin, end, p.rows, thread_index
        );
        sums.store(xs);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0u; i < THREAD_OUTPUTS; i++) {
            uint at = i * TILE_THREADS + thread_index;
            totals[i] += int(xs[at / DEPTH * TILE_ROW(DEPTH) + at % DEPTH]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0u; i < THREAD_OUTPUTS; i++) {
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
