// Products of matrices by tiles in threadgroup memory. A threadgroup of four simdgroups makes ROWS by COLS outputs, each
// simdgroup a quarter, from DEPTH terms at a time.

#define DEPTH 32u
#define TILE_THREADS 128u
// Rows in threadgroup memory are so many floats longer, so that neighbouring ones lie in other banks.
#define SKEW 4u
#define TILE_ROW(cols) ((cols) + SKEW)

// A matrix where it lies.
template <typename T>
struct Strided {
    device const T* m;
    ulong row;  // strides in elements
    ulong col;

    // Whether neighbours along a row lie closer.
    bool by_row() const thread { return col <= row; }
    float at(uint r, uint c) const thread { return float(m[ulong(r) * row + ulong(c) * col]); }
};

template <typename T>
inline Strided<T> strided(device const T* m, ulong row, ulong col) {
    Strided<T> s;
    s.m = m;
    s.row = row;
    s.col = col;
    return s;
}

// ROWS rows of `rows` from `row0` and COLS columns of `cols` from `col0`, zeros beyond the end. Neighbouring threads read
// neighbouring elements, whichever way they lie.
template <uint ROWS, uint COLS, typename From>
inline void load_tile(
    threadgroup float* tile, From from, uint row0, uint col0, uint rows, uint cols, uint thread_index
) {
    bool by_row = from.by_row();
    for (uint i = thread_index; i < ROWS * COLS; i += TILE_THREADS) {
        uint r = by_row ? i / COLS : i % ROWS;
        uint c = by_row ? i % COLS : i / ROWS;
        bool inside = row0 + r < rows && col0 + c < cols;
        tile[r * TILE_ROW(COLS) + c] = inside ? from.at(row0 + r, col0 + c) : 0.0f;
    }
}

// The quarter of a simdgroup, in matrices of 8 by 8.
template <uint ROWS, uint COLS>
struct Quarter {
    simdgroup_matrix<float, 8, 8> acc[ROWS / 16u][COLS / 16u];
    uint top;
    uint left;

    void clear(uint simdgroup) thread {
        top = (simdgroup / 2u) * (ROWS / 2u);
        left = (simdgroup % 2u) * (COLS / 2u);
        for (uint i = 0u; i < ROWS / 16u; i++) {
            for (uint j = 0u; j < COLS / 16u; j++) {
                acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }

    // Adds the product of a tile of ROWS by DEPTH and one of DEPTH by COLS.
    void add(threadgroup const float* as, threadgroup const float* bs) thread {
        for (uint k = 0u; k < DEPTH; k += 8u) {
            simdgroup_matrix<float, 8, 8> a[ROWS / 16u];
            simdgroup_matrix<float, 8, 8> b[COLS / 16u];
            for (uint i = 0u; i < ROWS / 16u; i++) {
                simdgroup_load(a[i], as + (top + 8u * i) * TILE_ROW(DEPTH) + k, TILE_ROW(DEPTH));
            }
            for (uint j = 0u; j < COLS / 16u; j++) {
                simdgroup_load(b[j], bs + k * TILE_ROW(COLS) + left + 8u * j, TILE_ROW(COLS));
            }
            for (uint i = 0u; i < ROWS / 16u; i++) {
                for (uint j = 0u; j < COLS / 16u; j++) {
                    simdgroup_multiply_accumulate(acc[i][j], a[i], b[j], acc[i][j]);
                }
            }
        }
    }

    // Into a tile of ROWS by COLS.
    void store(threadgroup float* to) const thread {
        for (uint i = 0u; i < ROWS / 16u; i++) {
            for (uint j = 0u; j < COLS / 16u; j++) {
                threadgroup float* at = to + (top + 8u * i) * TILE_ROW(COLS) + left + 8u * j;
                simdgroup_store(acc[i][j], at, TILE_ROW(COLS));
            }
        }
    }
};
