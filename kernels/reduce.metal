// Sum (or mean) and max of rows, sums of columns, and the gradient of max.
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
    static float4 step(float4 a, float4 x) { return a + x; }
    static float join(float4 a) { return (a.x + a.y) + (a.z + a.w); }
    static float simd(float v, float) { return simd_sum(v); }
    static float group(float v, float, threadgroup float* scratch, uint lane, uint simdgroup, uint simdgroups) {
        return tg_sum(v, scratch, lane, simdgroup, simdgroups);
    }
};

// Starts from the row's first element, so that no infinity is needed. A NaN there is the result, as in stock Candle; any
// other loses every comparison.
struct Max {
    static float start(float first) { return first; }
    static float larger(float a, float x) { return x > a ? x : a; }
    static float4 step(float4 a, float4 x) {
        return float4(larger(a.x, x.x), larger(a.y, x.y), larger(a.z, x.z), larger(a.w, x.w));
    }
    static float join(float4 a) { return larger(larger(a.x, a.y), larger(a.z, a.w)); }
    static float simd(float v, float first) { return first == first ? simd_max(v) : first; }
    static float group(float v, float first, threadgroup float* scratch, uint lane, uint simdgroup, uint simdgroups) {
        v = tg_max(v, scratch, lane, simdgroup, simdgroups);
        return first == first ? v : first;
    }
};

struct RowParams {
    ulong cols;
    ulong part;  // columns of a part, a multiple of 4
    uint rows;
    uint parts;  // of a row
    float scale;
    uint aligned;
};

// What one thread sees of a part that begins at x: four columns in every 4 * threads.
template <typename Op, typename In>
inline float reduce_strip(device const In* x, float start, ulong n, uint thread_index, uint threads, bool aligned) {
    float4 acc = float4(start);
    for (ulong i = ulong(thread_index) * 4u; i < n; i += ulong(threads) * 4u) {
        acc = Op::step(acc, load4(x + i, n - i, aligned, start));
    }
    return Op::join(acc);
}

// A row for each simdgroup.
template <typename T, typename Op>
[[kernel]] void reduce_fwd_simd(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant RowParams& p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    uint row = group * simdgroups + simdgroup;
    if (row >= p.rows) {
        return;
    }
    device const T* first = x + ulong(row) * p.cols;
    float start = Op::start(float(first[0]));
    float v = reduce_strip<Op>(first, start, p.cols, lane, 32u, p.aligned != 0u);
    v = Op::simd(v, start);
    if (lane == 0u) {
        y[row] = T(v * p.scale);
    }
}

// A part of a row for each threadgroup.
template <typename T, typename Op, Pass pass>
[[kernel]] void reduce_fwd_group(
    device const typename Types<T, pass>::In* x [[buffer(0)]],
    device typename Types<T, pass>::Out* y [[buffer(1)]],
    constant RowParams& p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_position_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float scratch[32];
    ulong row = group / p.parts;
    ulong at = ulong(group % p.parts) * p.part;
    ulong n = min(p.part, p.cols - at);
    device const typename Types<T, pass>::In* first = x + row * p.cols;
    float start = Op::start(float(first[0]));
    float v = reduce_strip<Op>(first + at, start, n, thread_index, threads, p.aligned != 0u);
    v = Op::group(v, start, scratch, lane, simdgroup, simdgroups);
    if (thread_index == 0u) {
        y[group] = typename Types<T, pass>::Out(v * p.scale);
    }
}

struct ColumnParams {
    ulong rows;  // the middle dim
    ulong part;  // rows of a part
    uint cols;   // the inner dim
    uint parts;
};

// [outer, rows, cols] to [outer, parts, cols]: a column for each x, a part of the rows for each threadgroup.
template <typename T, Pass pass>
[[kernel]] void reduce_columns(
    device const typename Types<T, pass>::In* x [[buffer(0)]],
    device typename Types<T, pass>::Out* y [[buffer(1)]],
    constant ColumnParams& p [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_index [[thread_position_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]]
) {
    threadgroup float sums[256];
    uint col = group.x * 32u + thread_index.x;
    float sum = 0.0f;
    if (col < p.cols) {
        ulong row = ulong(group.y) * p.part + thread_index.y;
        ulong end = min(p.rows, ulong(group.y + 1u) * p.part);
        device const typename Types<T, pass>::In* at = x + (ulong(group.z) * p.rows + row) * p.cols + col;
        for (; row < end; row += threads.y) {
            sum += float(*at);
            at += threads.y * p.cols;
        }
    }
    sums[thread_index.y * 32u + thread_index.x] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index.y == 0u && col < p.cols) {
        for (uint k = 1u; k < threads.y; k++) {
            sum += sums[k * 32u + thread_index.x];
        }
        y[(ulong(group.z) * p.parts + group.y) * p.cols + col] = typename Types<T, pass>::Out(sum);
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

FOR_DTYPES_WITH(reduce_fwd_simd, "reduce_fwd_sum_simd", Sum)
FOR_DTYPES_WITH(reduce_fwd_simd, "reduce_fwd_max_simd", Max)
FOR_DTYPES_WITH(reduce_fwd_group, "reduce_fwd_sum", Sum, Whole)
FOR_DTYPES_WITH(reduce_fwd_group, "reduce_fwd_sum_part", Sum, Part)
FOR_DTYPES_WITH(reduce_fwd_group, "reduce_fwd_sum_join", Sum, Join)
FOR_DTYPES_WITH(reduce_fwd_group, "reduce_fwd_max", Max, Whole)
FOR_DTYPES_WITH(reduce_fwd_group, "reduce_fwd_max_part", Max, Part)
FOR_DTYPES_WITH(reduce_fwd_group, "reduce_fwd_max_join", Max, Join)
FOR_DTYPES_WITH(reduce_columns, "reduce_columns", Whole)
FOR_DTYPES_WITH(reduce_columns, "reduce_columns_part", Part)
FOR_DTYPES_WITH(reduce_columns, "reduce_columns_join", Join)
FOR_DTYPES(reduce_bwd_max, "reduce_bwd_max")
