// Weights as codes of a few bits: rows of packed bytes, of which each begins with a byte of its own.

struct CodeRows {
    device const uchar* codes;
    uint outputs;
    uint cols;
    uint row_bytes;
    uint flip;     // the sign bit of codes in two's complement, or 0
    bool aligned;  // every row may be read four bytes at a time

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

// ---- How codes lie in words ----
//
// A lane of a GEMV takes a block of COLS columns in WORDS words, STEP columns at a time.

template <uint BITS>
struct Bits {
    enum : uint { WORDS = BITS == 8u ? 2u : 1u, COLS = 32u / BITS * WORDS, STEP = 4u };

    // Code i of a block.
    static float code(thread const uint* words, uint i, uint flip) {
        uint at = i * BITS;
        uint code = (words[at / 32u] >> (at % 32u)) & ((1u << BITS) - 1u);
        return BITS == 8u ? float(int(code ^ flip) - int(flip)) : float(code);
    }

    // Those of eight columns from k on, a multiple of eight.
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
            to[i] = code(words, i, w.flip);
        }
    }
};

// Five digits in base 3 to a byte, the first as the highest: times 3, they come out above the byte one by one.
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

// What codes stand for: (code - zero) scale + bias.
struct Unit {
    float scale;
    float zero;
    float bias;
};

// 32 outputs from `output0` on and 32 columns from `col0` on, zeros beyond the end: a column to a row of the tile, or, if
// ACROSS, an output to a row. `units` knows the unit of each, and whether eight neighbours share one.
template <typename Codes, bool ACROSS, typename Units>
inline void load_codes(
    threadgroup float* tile, thread const CodeRows& w, Units units, uint output0, uint col0, uint thread_index
) {
    uint o = thread_index / 4u;
    uint c = thread_index % 4u * 8u;
    uint output = output0 + o;
    uint col = col0 + c;
    uint left = output < w.outputs && col < w.cols ? min(8u, w.cols - col) : 0u;
    float codes[8];
    Unit unit;
    if (left > 0u) {
        Codes::eight(w.row(output), col, w, codes);
        unit = units.at(output, col);
    }
    for (uint i = 0u; i < 8u; i++) {
        float v = 0.0f;
        if (i < left) {
            if (i > 0u && !units.shared_by_eight()) {
                unit = units.at(output, col + i);
            }
            v = fma(codes[i] - unit.zero, unit.scale, unit.bias);
        }
        tile[ACROSS ? o * TILE_ROW(DEPTH) + c + i : (c + i) * TILE_ROW(DEPTH) + o] = v;
    }
}
