// Attention by tiles of 32 queries and 32 keys: what the passes share.
//
// A threadgroup has four simdgroups. Each makes 8 rows of the tile; in between, a lane owns 8 of its elements:
//
//            32 columns
//          c   c+4  c+8 ..            c = lane % 4
//   row  [ x    x    x    x    x    x    x    x ]        row = 8 simdgroup + lane / 4
//
// Forward and for the gradient of q, rows are queries and columns keys; for the gradients of k and v, rows are keys and columns queries.

#define BLOCK 32u
#define BLOCK_THREADS 128u
// Rows in threadgroup memory are four floats longer, so that neighbouring ones lie in other banks.
#define WEIGHT_ROW 36u
#define STAGED_ROW(cols) ((cols) + 4u)
// The weights of a simdgroup: 8 rows of 32.
#define WEIGHTS (8u * WEIGHT_ROW)

// 32 rows from `row0` on, W columns from `col0` on; zeros beyond the `count` rows and the columns.
template <uint W, typename Rows>
inline void stage(threadgroup float4* tile, Rows all, uint row0, uint count, uint col0, uint thread_index) {
    uint left = count > row0 ? count - row0 : 0u;
    Rows rows = all.behind(row0);
    uint cols = rows.cols > col0 ? rows.cols - col0 : 0u;
    UNROLL
    for (uint n = 0u; n < BLOCK * W / 4u / BLOCK_THREADS; n++) {
        uint i = n * BLOCK_THREADS + thread_index;
        uint r = i / (W / 4u);
        uint c = i % (W / 4u) * 4u;
        float4 x = float4(0.0f);
        if (r < left && c < cols) {
            x = rows.four(r, col0 + c);
        }
        tile[(r * STAGED_ROW(W) + c) / 4u] = x;
    }
}

// 8 rows of a simdgroup by 32 columns.
struct Products {
    simdgroup_matrix<float, 8, 8> acc[4];

    void clear() thread {
        UNROLL
        for (uint j = 0u; j < 4u; j++) {
            acc[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }

    // Adds a b^T of 8 columns of the simdgroup's rows and of 32 rows b that are staged W wide.
    template <uint W>
    void add(simdgroup_matrix<float, 8, 8> a, threadgroup const float* b) thread {
        UNROLL
        for (uint j = 0u; j < 4u; j++) {
            simdgroup_matrix<float, 8, 8> m;
            simdgroup_load(m, b + 8u * j * STAGED_ROW(W), STAGED_ROW(W), ulong2(0, 0), true);
            simdgroup_multiply_accumulate(acc[j], a, m, acc[j]);
        }
    }

    void store(threadgroup float* to) const thread {
        UNROLL
        for (uint j = 0u; j < 4u; j++) {
            simdgroup_store(acc[j], to + 8u * j, WEIGHT_ROW);
        }
    }
};

// 8 rows of a simdgroup by W columns.
template <uint W>
struct Sums {
    simdgroup_matrix<float, 8, 8> acc[W / 8u];

    void clear() thread {
        UNROLL
        for (uint c = 0u; c < W / 8u; c++) {
            acc[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }

    // Adds the product of the simdgroup's weights and 32 staged rows. Only the first `cols` columns of the rows exist.
    void add(threadgroup const float* weights, threadgroup const float* rows, uint cols) thread {
        UNROLL
        for (uint k = 0u; k < 4u; k++) {
            simdgroup_matrix<float, 8, 8> w;
            simdgroup_load(w, weights + 8u * k, WEIGHT_ROW);
            UNROLL
            for (uint c = 0u; c < W / 8u; c++) {
                if (8u * c < cols) {
                    simdgroup_matrix<float, 8, 8> m;
                    simdgroup_load(m, rows + 8u * k * STAGED_ROW(W) + 8u * c, STAGED_ROW(W));
                    simdgroup_multiply_accumulate(acc[c], w, m, acc[c]);
                }
            }
        }
    }

    // Multiplies each row by the factor of its lanes, by way of the simdgroup's scratch memory.
    void scale(threadgroup float* scratch, float factor, uint lane) thread {
        threadgroup float* row = scratch + lane / 4u * WEIGHT_ROW + lane % 4u;
        UNROLL
        for (uint c = 0u; c < W / 8u; c += 4u) {
            simdgroup_barrier(mem_flags::mem_threadgroup);
            store_four(scratch, c);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL
            for (uint n = 0u; n < 8u; n++) {
                row[4u * n] *= factor;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL
            for (uint j = 0u; j < 4u; j++) {
                simdgroup_load(acc[c + j], scratch + 8u * j, WEIGHT_ROW);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    void store_four(threadgroup float* scratch, uint c) const thread {
        UNROLL
        for (uint j = 0u; j < 4u; j++) {
            simdgroup_store(acc[c + j], scratch + 8u * j, WEIGHT_ROW);
        }
    }

    // Writes `cols` columns of a lane's row, times its factor, if it `exists`.
    template <typename T>
    void write(
        threadgroup float* scratch, device T* to, uint cols, float factor, bool exists, bool aligned, uint lane
    ) const thread {
        threadgroup const float* row = scratch + lane / 4u * WEIGHT_ROW;
        UNROLL
        for (uint c = 0u; c < W / 8u; c += 4u) {
            simdgroup_barrier(mem_flags::mem_threadgroup);
            store_four(scratch, c);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL
            for (uint half_of = 0u; half_of < 2u; half_of++) {
                uint at = lane % 4u * 4u + 16u * half_of;
                uint col = 8u * c + at;
                if (exists && col < cols) {
                    float4 x = float4(row[at], row[at + 1u], row[at + 2u], row[at + 3u]);
                    store4(to + col, cols - col, aligned, x * factor);
                }
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
};
