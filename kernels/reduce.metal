// Sum (or mean) and max of rows and of columns, and the gradient of max.
//
// Long rows and tall columns are cut into parts: a first launch leaves one float for each part (Pass::Part), a second
// reduces those (Pass::Join). Where one launch does, it is Pass::Whole.

enum Pass { Whole, Part, Join };

template <typename T, Pass pass>
struct Types {
    typedef T In;
    typedef T Out;
};
template <typename T>
struct Types<T, Part> {
    typedef T In;
    typedef float Out;
};
template <typename T>
struct Types<T, Join> {
    typedef float In;
    typedef T Out;
};

struct Sum {
    static float start(float) { return 0.0f; }
    static float step(float a, float x) { return a + x; }
    static float4 step(float4 a, float4 x) { return a + x; }
    static float join(float4 a) { return (a.x + a.y) + (a.z + a.w); }
    template <bool WIDE>
    static float row(float v, float, RowThread t) {
        return row_sum<WIDE>(v, t);
    }
};

// Starts from the row's first element, so that no infinity is needed. A NaN there is the result, as in stock Candle; any
// other loses every comparison.
struct Max {
    static float start(float first) { return first; }
    static float step(float a, float x) { return x > a ? x : a; }
    static float4 step(float4 a, float4 x) {
        return float4(step(a.x, x.x), step(a.y, x.y), step(a.z, x.z), step(a.w, x.w));
    }
    static float join(float4 a) { return step(step(a.x, a.y), step(a.z, a.w)); }
    template <bool WIDE>
    static float row(float v, float first, RowThread t) {
        v = row_max<WIDE>(v, t);
        return first == first ? v : first;
    }
};

struct RowParams {
    RowStrides x;
    ulong cols;
    ulong part;  // columns of a part, a multiple of 4
    uint rows;
    uint parts;  // of a row
    float scale;
    uint aligned;
};

// A part of a row for each threadgroup (WIDE), or a row, of one part, for each simdgroup.
template <typename T, typename Op, Pass pass, bool WIDE>
[[kernel]] void reduce_fwd(
    device const typename Types<T, pass>::In* x [[buffer(0)]],
    device typename Types<T, pass>::Out* y [[buffer(1)]],
    constant RowParams& p [[buffer(2)]],
    ROW_ARGUMENTS
) {
    BEGIN_ROW(WIDE, p.rows * p.parts)
    ulong at = ulong(t.row % p.parts) * p.part;
    ulong n = min(p.part, p.cols - at);
    bool aligned = p.aligned != 0u;
    device const typename Types<T, pass>::In* row = x + row_offset(t.row / p.parts, p.x);
    float start = Op::start(float(row[0]));
    float4 acc = float4(start);
    for (ulong i = t.first; i < n; i += t.step) {
        acc = Op::step(acc, load4(row + at + i, n - i, aligned, start));
    }
    float v = Op::template row<WIDE>(Op::join(acc), start, t);
    if (t.first == 0u) {
        y[t.row] = typename Types<T, pass>::Out(v * p.scale);
    }
}

struct ColumnParams {
    ulong rows;  // the middle dim
    ulong part;  // rows of a part
    uint cols;   // the inner dim
    uint parts;
    float scale;
    uint reserved;
};

// [outer, rows, cols] to [outer, parts, cols]: a column for each x, a part of the rows for each threadgroup.
template <typename T, typename Op, Pass pass>
[[kernel]] void reduce_columns(
    device const typename Types<T, pass>::In* x [[buffer(0)]],
    device typename Types<T, pass>::Out* y [[buffer(1)]],
    constant ColumnParams& p [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_index [[thread_position_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]]
) {
    threadgroup float values[256];
    uint col = group.x * 32u + thread_index.x;
    float value = 0.0f;
    if (col < p.cols) {
        ulong row = ulong(group.y) * p.part + thread_index.y;
        ulong end = min(p.rows, ulong(group.y + 1u) * p.part);
        device const typename Types<T, pass>::In* first = x + ulong(group.z) * p.rows * p.cols + col;
        value = Op::start(float(*first));
        device const typename Types<T, pass>::In* at = first + row * p.cols;
        for (; row < end; row += threads.y) {
            value = Op::step(value, float(*at));
            at += ulong(threads.y) * p.cols;
        }
    }
    values[thread_index.y * 32u + thread_index.x] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index.y == 0u && col < p.cols) {
        for (uint k = 1u; k < threads.y; k++) {
            value = Op::step(value, values[k * 32u + thread_index.x]);
        }
        y[(ulong(group.z) * p.parts + group.y) * p.cols + col] = typename Types<T, pass>::Out(value * p.scale);
    }
}

struct MaxBwdParams {
    ulong cols;
    uint aligned;
    uint reserved;
};

// dx = g where x is the maximum y of its row, else 0.
template <typename T>
[[kernel]] void reduce_bwd_max(
    device const T* x [[buffer(0)]],
    device const T* y [[buffer(1)]],
    device const T* g [[buffer(2)]],
    device T* dx [[buffer(3)]],
    constant MaxBwdParams& p [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]
) {
    ulong col = ulong(at.x) * 4u;
    if (col >= p.cols) {
        return;
    }
    ulong i = ulong(at.y) * p.cols + col;
    ulong left = p.cols - col;
    float4 v = load4(x + i, left, p.aligned != 0u, 0.0f);
    float top = float(y[at.y]);
    float grad = float(g[at.y]);
    float4 d = float4(
        v.x == top ? grad : 0.0f,
        v.y == top ? grad : 0.0f,
        v.z == top ? grad : 0.0f,
        v.w == top ? grad : 0.0f
    );
    store4(dx + i, left, p.aligned != 0u, d);
}

FOR_DTYPES_WITH(reduce_fwd, "reduce_fwd_sum_simd", Sum, Whole, false)
FOR_DTYPES_WITH(reduce_fwd, "reduce_fwd_max_simd", Max, Whole, false)
FOR_DTYPES_WITH(reduce_fwd, "reduce_fwd_sum", Sum, Whole, true)
// Partial results are f32, so that the first and the second pass of an f32 tensor are the kernels of a whole one.
FOR_16_BITS_WITH(reduce_fwd, "reduce_fwd_sum_part", Sum, Part, true)
FOR_16_BITS_WITH(reduce_fwd, "reduce_fwd_sum_join", Sum, Join, true)
FOR_DTYPES_WITH(reduce_fwd, "reduce_fwd_max", Max, Whole, true)
FOR_16_BITS_WITH(reduce_fwd, "reduce_fwd_max_part", Max, Part, true)
FOR_16_BITS_WITH(reduce_fwd, "reduce_fwd_max_join", Max, Join, true)
FOR_DTYPES_WITH(reduce_columns, "reduce_columns_sum", Sum, Whole)
FOR_16_BITS_WITH(reduce_columns, "reduce_columns_sum_part", Sum, Part)
FOR_16_BITS_WITH(reduce_columns, "reduce_columns_sum_join", Sum, Join)
FOR_DTYPES_WITH(reduce_columns, "reduce_columns_max", Max, Whole)
FOR_16_BITS_WITH(reduce_columns, "reduce_columns_max_part", Max, Part)
FOR_16_BITS_WITH(reduce_columns, "reduce_columns_max_join", Max, Join)
FOR_DTYPES(reduce_bwd_max, "reduce_bwd_max")
