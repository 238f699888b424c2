// Kernels that work row by row: which rows and columns a thread has, sums and maxima over a row, where the rows of a
// strided tensor begin, and the moments of a row for the norms.
//
// A row belongs to a threadgroup (WIDE, grid::row_per_threadgroup) or to a simdgroup (grid::row_per_simdgroup).

// ---- Threads of a row ----

// Floats of threadgroup memory that a row kernel needs: one for each simdgroup.
#define ROW_SCRATCH 32

// What a thread knows of its place. It takes four neighbouring columns from `first` on, then four that are `step` further
// on, and so forth: the same ones in every loop over the row.
struct RowThread {
    uint row;
    uint first;
    uint step;
    uint lane;
    uint simdgroup;
    uint simdgroups;
    threadgroup float* scratch;
};

template <bool WIDE>
inline RowThread row_thread(threadgroup float* scratch, uint group, uint lane, uint simdgroup, uint simdgroups) {
    RowThread t;
    t.row = WIDE ? group : group * simdgroups + simdgroup;
    t.first = WIDE ? (simdgroup * 32u + lane) * 4u : lane * 4u;
    t.step = WIDE ? simdgroups * 128u : 128u;
    t.lane = lane;
    t.simdgroup = simdgroup;
    t.simdgroups = simdgroups;
    t.scratch = scratch;
    return t;
}

// The last arguments of a row kernel.
#define ROW_ARGUMENTS \
    uint group_ [[threadgroup_position_in_grid]], \
    uint lane_ [[thread_index_in_simdgroup]], \
    uint simdgroup_ [[simdgroup_index_in_threadgroup]], \
    uint simdgroups_ [[simdgroups_per_threadgroup]]

// The first lines of a row kernel: `t` is the thread's place, and threads without a row are gone. All threads that meet at
// a barrier have the same row, so that they leave together.
#define BEGIN_ROW(WIDE, rows) \
    threadgroup float scratch_[ROW_SCRATCH]; \
    RowThread t = row_thread<WIDE>(scratch_, group_, lane_, simdgroup_, simdgroups_); \
    if (t.row >= (rows)) { \
        return; \
    }

// The sum of v over the threads of a row, which all get it.
template <bool WIDE>
inline float row_sum(float v, RowThread t) {
    return WIDE ? tg_sum(v, t.scratch, t.lane, t.simdgroup, t.simdgroups) : simd_sum(v);
}

// The largest v, NaNs passed over.
template <bool WIDE>
inline float row_max(float v, RowThread t) {
    return WIDE ? tg_max(v, t.scratch, t.lane, t.simdgroup, t.simdgroups) : simd_max(v);
}

inline float sum4(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

// The first `left` components, zeros behind them.
inline float4 keep4(float4 v, uint left) {
    return float4(v.x, left > 1u ? v.y : 0.0f, left > 2u ? v.z : 0.0f, left > 3u ? v.w : 0.0f);
}

// ---- Rows of a strided tensor ----

// Sizes and strides, in elements, of the dims that count rows; the last one changes fastest. Mirrors metal::RowStrides.
struct RowStrides {
    ulong strides[6];
    uint dims[6];
    uint rank;
    uint reserved;
};

// Where a row begins.
inline ulong row_offset(uint row, constant RowStrides& s) {
    ulong at = 0;
    for (uint d = s.rank; d > 1u; d--) {
        uint dim = s.dims[d - 1u];
        at += ulong(row % dim) * s.strides[d - 1u];
        row /= dim;
    }
    return s.rank > 0u ? at + ulong(row) * s.strides[0] : at;
}

// A row that is read more than once. A thread's first four elements stay in registers, which is all of them for rows
// of up to 128 elements (4096 if WIDE).
template <typename T>
struct Row {
    device const T* p;
    uint cols;
    uint first;
    bool aligned;
    float4 head;

    float4 at(uint i) const thread {
        return i == first ? head : load4(p + i, ulong(cols - i), aligned, 0.0f);
    }
};

template <typename T>
inline Row<T> row_at(device const T* p, uint cols, bool aligned, RowThread t) {
    Row<T> row;
    row.p = p;
    row.cols = cols;
    row.first = t.first;
    row.aligned = aligned;
    row.head = float4(0.0f);
    if (t.first < cols) {
        row.head = load4(p + t.first, ulong(cols - t.first), aligned, 0.0f);
    }
    return row;
}

// ---- Norms ----
//
// The normalised x is x_hat = (x - mean) scale + shift. The shift is what the mean lost by rounding to float, so that rows
// far from 0 keep their digits.

struct Moments {
    float mean;
    float scale;
    float shift;
    float grad_factor;  // of x_hat sum(h x_hat) in the gradient of a row

    float4 apply(float4 x) const thread { return fma(x - mean, float4(scale), float4(shift)); }
};

// A row's moments for another kernel, grad_factor excepted.
inline void save_moments(device float* stats, uint row, Moments m) {
    stats[ulong(row) * 3u] = m.mean;
    stats[ulong(row) * 3u + 1u] = m.scale;
    stats[ulong(row) * 3u + 2u] = m.shift;
}

inline Moments saved_moments(device const float* stats, uint row) {
    Moments m;
    m.mean = stats[ulong(row) * 3u];
    m.scale = stats[ulong(row) * 3u + 1u];
    m.shift = stats[ulong(row) * 3u + 2u];
    m.grad_factor = 0.0f;
    return m;
}

struct Rms {
    static bool centred() { return false; }
    static float scale(float squares, float n, float eps) { return rsqrt(squares / n + eps); }
    static float grad_factor(float, float n, float) { return 1.0f / n; }
};

struct Layer {
    static bool centred() { return true; }
    static float scale(float squares, float n, float eps) { return rsqrt(squares / n + eps); }
    static float grad_factor(float, float n, float) { return 1.0f / n; }
};

// A NaN is not below eps, and stays.
struct L2 {
    static bool centred() { return false; }
    static float scale(float squares, float, float eps) {
        float norm = sqrt(squares);
        return 1.0f / (norm < eps ? eps : norm);
    }
    static float grad_factor(float squares, float, float eps) { return sqrt(squares) < eps ? 0.0f : 1.0f; }
};

// Sums over a row, about `mean`, which is the row's mean as rounded to float, or 0 if the norm is not centred.
struct MomentSums {
    float mean;
    float rest;
    float squares;
};

// `row` has `cols` elements, four from i on being `row.at(i)`.
template <typename Kind, bool WIDE, typename R>
inline MomentSums row_moment_sums(thread const R& row, RowThread t) {
    MomentSums m;
    m.mean = 0.0f;
    m.rest = 0.0f;
    if (Kind::centred()) {
        float4 sum = float4(0.0f);
        for (uint i = t.first; i < row.cols; i += t.step) {
            sum += row.at(i);
        }
        m.mean = row_sum<WIDE>(sum4(sum), t) / float(row.cols);
    }
    float4 sum = float4(0.0f);
    float4 squares = float4(0.0f);
    for (uint i = t.first; i < row.cols; i += t.step) {
        float4 d = keep4(row.at(i) - m.mean, row.cols - i);
        sum += d;
        squares = fma(d, d, squares);
    }
    m.squares = row_sum<WIDE>(sum4(squares), t);
    if (Kind::centred()) {
        m.rest = row_sum<WIDE>(sum4(sum), t);
    }
    return m;
}

template <typename Kind, bool WIDE, typename R>
inline Moments row_moments(thread const R& row, float eps, RowThread t) {
    float n = float(row.cols);
    MomentSums sums = row_moment_sums<Kind, WIDE>(row, t);
    float squares = sums.squares;
    if (Kind::centred()) {
        squares -= sums.rest * (sums.rest / n);
        squares = squares < 0.0f ? 0.0f : squares;
    }
    Moments m;
    m.mean = sums.mean;
    m.scale = Kind::scale(squares, n, eps);
    m.grad_factor = Kind::grad_factor(squares, n, eps);
    m.shift = Kind::centred() ? -(sums.rest / n) * m.scale : 0.0f;
    return m;
}
