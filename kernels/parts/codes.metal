// Packed weights, as bitlinear and mixed_matmul read them: rows of codes of a few bits. Every row begins with a new byte.

struct CodeRows {
    device const uchar* codes;
    uint outputs;
    uint cols;
    uint row_bytes;
    uint sign_bit;  // of codes in two's complement, or 0
    bool aligned;   // every row may be read four bytes at a time

    device const uchar* row(uint output) const thread { return codes + ulong(output) * row_bytes; }
};

// Four bytes of a row from `at` on, a multiple of four, the first in the lowest bits; zeros beyond the end.
inline uint load_word(device const uchar* row, uint at, uint row_bytes, bool aligned) {
    if (aligned && at + 4u <= row_bytes) {
        return *(device const uint*)(row + at);
    }
    uint word = 0u;
    for (uint i = 0u; i < 4u; i++) {
        word |= at + i < row_bytes ? uint(row[at + i]) << (8u * i) : 0u;
    }
    return word;
}

// ---- Packings ----
//
// A lane of a GEMV takes a block of COLS columns, which are packed in WORDS words, STEP columns at a time.

template <uint BITS>
struct Bits {
    enum : uint { WORDS = BITS == 8u ? 2u : 1u, COLS = 32u / BITS * WORDS, STEP = 4u };

    // Code i of a block.
    static float code(thread const uint* words, uint i, uint sign_bit) {
        uint at = i * BITS;
        uint code = (words[at / 32u] >> (at % 32u)) & ((1u << BITS) - 1u);
        return BITS == 8u ? float(int(code ^ sign_bit) - int(sign_bit)) : float(code);
    }

    // The codes of eight columns from k on, a multiple of eight.
    static void eight(device const uchar* row, uint k, thread const CodeRows& w, thread float* to) {
        uint words[2] = {0u, 0u};
        uint at = k / 8u * BITS;
        if (BITS >= 4u) {
            for (uint i = 0u; i < BITS / 4u; i++) {
                words[i] = load_word(row, at + 4u * i, w.row_bytes, w.aligned);
            }
        } else {
            for (uint i = 0u; i < BITS; i++) {
                words[0] |= at + i < w.row_bytes ? uint(row[at + i]) << (8u * i) : 0u;
            }
        }
        for (uint i = 0u; i < 8u; i++) {
            to[i] = code(words, i, w.sign_bit);
        }
    }
};

// Five digits in base 3 to a byte, which holds them as a fraction of 256: each multiplication by 3 moves the next digit, the
// first one first, above the lower eight bits.
struct Base3 {
    enum : uint { WORDS = 1u, COLS = 20u, STEP = 5u };

    static float digit(uint byte, uint i) {
        for (uint n = 0u; n < i; n++) {
            byte = (byte * 3u) & 255u;
        }
        return float((byte * 3u) >> 8u);
    }

    static float code(thread const uint* words, uint i, uint) {
        return digit((words[0] >> (i / 5u * 8u)) & 255u, i % 5u);
    }

    static void eight(device const uchar* row, uint k, thread const CodeRows& w, thread float* to) {
        for (uint i = 0u; i < 8u; i++) {
            to[i] = k + i < w.cols ? digit(uint(row[(k + i) / 5u]), (k + i) % 5u) : 0.0f;
        }
    }
};

// ---- Tiles ----

// The scale of a group of columns: a code stands for (code - zero) scale + bias.
struct GroupScale {
    float scale;
    float zero;
    float bias;
};

// Decodes 32 outputs from `output0` on and 32 columns from `col0` on, with zeros beyond the end: a column to a row of the tile,
// or, if ACROSS, an output to a row. `scales.at` is the group's scale of an output and column; `scales.same_for_eight` says
// whether eight neighbouring columns share it.
template <typename Codes, bool ACROSS, typename Scales>
inline void load_codes(
    threadgroup float* tile, thread const CodeRows& w, Scales scales, uint output0, uint col0, uint thread_index
) {
    uint o = thread_index / 4u;
    uint c = thread_index % 4u * 8u;
    uint output = output0 + o;
    uint col = col0 + c;
    uint left = output < w.outputs && col < w.cols ? min(8u, w.cols - col) : 0u;
    float codes[8];
    GroupScale group;
    if (left > 0u) {
        Codes::eight(w.row(output), col, w, codes);
        group = scales.at(output, col);
    }
    for (uint i = 0u; i < 8u; i++) {
        float v = 0.0f;
        if (i < left) {
            if (i > 0u && !scales.same_for_eight()) {
                group = scales.at(output, col + i);
            }
            v = fma(codes[i] - group.zero, group.scale, group.bias);
        }
        tile[ACROSS ? o * TILE_ROW(DEPTH) + c + i : (c + i) * TILE_ROW(DEPTH) + o] = v;
    }
}

// A threadgroup makes PACKED_ROWS rows by DEPTH outputs.
#define PACKED_ROWS 64u

// Adds the products of terms `begin` to `end` to the tile of outputs at `row0`, `out0`: x W^T, whose terms are W's columns, or,
// if ACROSS, x W, whose terms are W's rows. x has `rows` rows of `terms` numbers. `xs` and `ws` are threadgroup memory for
// a tile of each.
template <typename Codes, bool ACROSS, typename X, typename Scales>
inline void add_terms(
    thread Quarter<PACKED_ROWS, DEPTH>& sums, threadgroup float* xs, threadgroup float* ws, X x, thread const CodeRows& w,
    Scales scales, uint row0, uint out0, uint begin, uint end, uint rows, uint thread_index
) {
    uint terms = ACROSS ? w.outputs : w.cols;
    for (uint k0 = begin; k0 < end; k0 += DEPTH) {
        load_tile<PACKED_ROWS, DEPTH>(xs, x, row0, k0, rows, terms, thread_index);
        load_codes<Codes, ACROSS>(ws, w, scales, ACROSS ? k0 : out0, ACROSS ? out0 : k0, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (row0 + sums.top < rows) {
            sums.add(xs, ws);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}
