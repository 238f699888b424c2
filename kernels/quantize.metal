// Codes of numbers, the values of the codes, and gradients without those of what is beyond the codes.
//
// Where a unit has all of its bytes for itself, it is measured and coded by one kernel. Otherwise it is measured first
// (quantize_measure, quantize_columns, then quantize_units), and the kernels called `known` code row by row.

// ---- Teams: the threads of a unit, or of a part ----

struct Team {
    uint unit;
    uint index;
    uint size;
    uint lane;
    uint simdgroup;
    uint simdgroups;
};

inline Team team_of(uint position, uint threads, uint lane, uint simdgroup, uint simdgroups, constant QuantizeParams& p) {
    Team t;
    t.size = p.team == 0u ? threads : p.team;
    t.unit = position / t.size;
    t.index = position % t.size;
    t.lane = lane;
    t.simdgroup = simdgroup;
    t.simdgroups = p.team == 0u ? simdgroups : 1u;
    return t;
}

// Among `lanes` neighbours, of which all get the result.
template <typename Stat>
inline float2 join_lanes(float2 s, uint lanes) {
    for (uint d = 1u; d < lanes; d *= 2u) {
        s = Stat::join(s, simd_shuffle_xor(s, ushort(d)));
    }
    return s;
}

// All threads of the group call, once.
template <typename Stat>
inline float2 join_team(float2 s, threadgroup float2* scratch, Team t) {
    s = join_lanes<Stat>(s, min(t.size, 32u));
    if (t.simdgroups > 1u) {
        if (t.lane == 0u) {
            scratch[t.simdgroup] = s;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        s = join_lanes<Stat>(t.lane < t.simdgroups ? scratch[t.lane] : Stat::start(), 32u);
    }
    return s;
}

// Neighbours that a team reads, of which each thread keeps its first span.
template <typename T>
struct Run {
    device const T* p;
    uint len;
    uint first;
    bool aligned;
    Span<BITS> head;

    Span<BITS> at(uint i) const thread {
        return i == first ? head : load_span<BITS>(p + i, len - i, aligned);
    }
};

template <typename T>
inline Run<T> run_of(device const T* p, uint len, bool aligned, Team t) {
    Run<T> run;
    run.p = p;
    run.len = len;
    run.first = t.index * BITS;
    run.aligned = aligned;
    run.head = load_span<BITS>(p + run.first, run.first < len ? len - run.first : 0u, aligned);
    return run;
}

// In an order that depends on the length alone, so that every kernel makes the same unit of a unit.
template <typename Stat, typename T>
inline float2 measure(thread const Run<T>& x, threadgroup float2* scratch, Team t) {
    // Sums of their own, which need not wait for each other and stay short.
    float2 stats[4] = {Stat::start(), Stat::start(), Stat::start(), Stat::start()};
    for (uint i = x.first; i < x.len; i += t.size * BITS) {
        Span<BITS> s = x.at(i);
        for (uint k = 0u; k < BITS; k++) {
            float v = k < x.len - i ? s.v[k] : Stat::pad(s.v[0]);
            stats[k % 4u] = Stat::join(stats[k % 4u], Stat::of(v));
        }
    }
    float2 all = Stat::join(Stat::join(stats[0], stats[1]), Stat::join(stats[2], stats[3]));
    return join_team<Stat>(all, scratch, t);
}

// ---- What is made of an element ----

template <typename Code>
struct Codes {
    static float of(float x, float noise, float, Unit u, constant QuantizeParams& p) {
        return Code::code(x, u, noise, p);
    }
};

template <typename Code>
struct Values {
    static bool takes_grad() { return false; }
    static float of(float x, float noise, float, Unit u, constant QuantizeParams& p) {
        return Code::value(Code::code(x, u, noise, p), u);
    }
};

// Where there is no position there is no gradient.
template <typename Code>
struct Clipped {
    static bool takes_grad() { return true; }
    static float of(float x, float, float g, Unit u, constant QuantizeParams& p) {
        float v = Code::position(x, u);
        return v >= p.low - 0.5f && v <= p.high + 0.5f ? g : 0.0f;
    }
};

struct SameUnit {
    Unit u;

    Unit next() thread { return u; }
};

// Those of neighbouring columns.
struct RowUnits {
    device const float4* at;
    uint left;
    uint unit_cols;
    Unit u;

    Unit next() thread {
        if (left == 0u) {
            at += 1;
            load();
        }
        left -= 1u;
        return u;
    }
    void load() thread {
        float4 v = *at;
        u = unit_of(v.x, v.y, v.z, v.w);
        left = unit_cols;
    }
};

inline RowUnits row_units(device const float4* units, uint row, uint col, constant QuantizeParams& p) {
    RowUnits r;
    r.at = units + row * p.row_units + col / p.unit_cols;
    r.unit_cols = p.unit_cols;
    r.load();
    r.left = p.unit_cols - col % p.unit_cols;
    return r;
}

// i is the first element's place in the tensor. What isn't there gives 0.
template <typename Make, uint SPAN, typename Units>
inline Span<SPAN> make_span(
    Span<SPAN> x, Span<SPAN> g, uint left, ulong i, thread Units& units, constant QuantizeParams& p
) {
    Span<SPAN> noise = noise_span<SPAN>(i, p);
    Span<SPAN> made;
    for (uint k = 0u; k < SPAN; k++) {
        made.v[k] = 0.0f;
        if (k < left) {
            made.v[k] = Make::of(x.v[k], noise.v[k], g.v[k], units.next(), p);
        }
    }
    return made;
}

// ---- Measured and made by one kernel ----

template <typename T, typename Grid, uint SPAN>
[[kernel]] void quantize_fwd(
    device const T* x [[buffer(0)]],
    device uchar* codes [[buffer(1)]],
    device float* scales [[buffer(2)]],
    device float* offsets [[buffer(3)]],  // of the grids that have them
    constant QuantizeParams& p [[buffer(4)]],
    uint position [[thread_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float2 scratch[32];
    Team t = team_of(position, threads, lane, simdgroup, simdgroups, p);
    uint len = t.unit < p.units ? uint(p.len) : 0u;
    ulong start = ulong(t.unit) * p.len;
    Run<T> run = run_of(x + start, len, p.aligned != 0u, t);
    SameUnit unit;
    unit.u = measured_unit<Grid>(measure<typename Grid::Stat>(run, scratch, t), p);
    if (t.index == 0u && len > 0u) {
        scales[t.unit] = Grid::scale(unit.u);
        if (Grid::has_offset()) {
            offsets[t.unit] = Grid::offset(unit.u);
        }
    }
    device uchar* to = codes + ulong(t.unit) * p.bytes;
    for (uint i = t.index * SPAN; i < len; i += t.size * SPAN) {
        Span<SPAN> s = Packing<SPAN>::take(run, i);
        s = make_span<Codes<typename Grid::Code>>(s, s, len - i, start + i, unit, p);
        Packing<SPAN>::put(to, i, len - i, s, p);
    }
}

// g is x again where it isn't taken.
template <typename T, typename Grid, typename Make>
[[kernel]] void quantize_values(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant QuantizeParams& p [[buffer(3)]],
    uint position [[thread_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float2 scratch[32];
    Team t = team_of(position, threads, lane, simdgroup, simdgroups, p);
    uint len = t.unit < p.units ? uint(p.len) : 0u;
    ulong start = ulong(t.unit) * p.len;
    bool aligned = p.aligned != 0u;
    Run<T> run = run_of(x + start, len, aligned, t);
    SameUnit unit;
    unit.u = measured_unit<Grid>(measure<typename Grid::Stat>(run, scratch, t), p);
    for (uint i = run.first; i < len; i += t.size * BITS) {
        Span<BITS> s = run.at(i);
        Span<BITS> grad = s;
        if (Make::takes_grad()) {
            grad = load_span<BITS>(g + start + i, len - i, aligned);
        }
        s = make_span<Make>(s, grad, len - i, start + i, unit, p);
        store_span(y + start + i, len - i, aligned, s);
    }
}

// ---- Measured first ----

// The parts of units that lie in one piece: a team each.
template <typename T, typename Stat>
[[kernel]] void quantize_measure(
    device const T* x [[buffer(0)]],
    device float2* stats [[buffer(1)]],  // [units, parts]
    constant QuantizeParams& p [[buffer(2)]],
    uint position [[thread_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float2 scratch[32];
    Team t = team_of(position, threads, lane, simdgroup, simdgroups, p);
    uint unit = t.unit / p.parts;
    ulong start = ulong(t.unit % p.parts) * p.part;
    uint len = unit < p.units ? uint(min(p.part, p.len - start)) : 0u;
    Run<T> run = run_of(x + ulong(unit) * p.len + start, len, p.aligned != 0u, t);
    float2 s = measure<Stat>(run, scratch, t);
    if (t.index == 0u && len > 0u) {
        stats[t.unit] = s;
    }
}

// The parts of columns: a column for each x, a part of the rows for each threadgroup.
template <typename T, typename Stat>
[[kernel]] void quantize_columns(
    device const T* x [[buffer(0)]],
    device float2* stats [[buffer(1)]],  // [units, parts]
    constant QuantizeParams& p [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_index [[thread_position_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]]
) {
    threadgroup float2 scratch[256];
    uint col = group.x * 32u + thread_index.x;
    float2 s = Stat::start();
    if (col < p.cols) {
        ulong row = ulong(group.y) * p.part + thread_index.y;
        ulong end = min(p.len, ulong(group.y + 1u) * p.part);
        device const T* at = x + row * p.cols + col;
        ulong step = ulong(threads.y) * p.cols;
        while (row < end) {
            // Short sums of their own keep the digits of tall columns.
            float2 few = Stat::start();
            for (uint k = 0u; k < 32u && row < end; k++) {
                few = Stat::join(few, Stat::of(float(*at)));
                row += threads.y;
                at += step;
            }
            s = Stat::join(s, few);
        }
    }
    scratch[thread_index.y * 32u + thread_index.x] = s;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index.y == 0u && col < p.cols) {
        for (uint k = 1u; k < threads.y; k++) {
            s = Stat::join(s, scratch[k * 32u + thread_index.x]);
        }
        stats[ulong(col) * p.parts + group.y] = s;
    }
}

// A simdgroup for each unit.
template <typename Grid>
[[kernel]] void quantize_units(
    device const float2* stats [[buffer(0)]],
    device float4* units [[buffer(1)]],
    device float* scales [[buffer(2)]],
    device float* offsets [[buffer(3)]],  // of the grids that have them
    constant QuantizeParams& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    typedef typename Grid::Stat Stat;
    uint unit = group * simdgroups + simdgroup;
    if (unit >= p.units) {
        return;
    }
    float2 s = Stat::start();
    for (uint i = lane; i < p.parts; i += 32u) {
        s = Stat::join(s, stats[ulong(unit) * p.parts + i]);
    }
    Unit u = measured_unit<Grid>(join_lanes<Stat>(s, 32u), p);
    if (lane == 0u) {
        units[unit] = float4(u.factor, u.zero, u.bias, u.scale);
        scales[unit] = Grid::scale(u);
        if (Grid::has_offset()) {
            offsets[unit] = Grid::offset(u);
        }
    }
}

// A span of a row for each thread.
template <typename T, typename Code, uint SPAN>
[[kernel]] void quantize_fwd_known(
    device const T* x [[buffer(0)]],
    device const float4* units [[buffer(1)]],
    device uchar* codes [[buffer(2)]],
    constant QuantizeParams& p [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint col = at.x * SPAN;
    if (col >= p.cols) {
        return;
    }
    uint left = p.cols - col;
    ulong i = ulong(at.y) * p.cols + col;
    RowUnits row = row_units(units, at.y, col, p);
    Span<SPAN> s = load_span<SPAN>(x + i, left, p.aligned != 0u && SPAN % 4u == 0u);
    s = make_span<Codes<Code>>(s, s, left, i, row, p);
    Packing<SPAN>::put(codes + ulong(at.y) * p.bytes, col, left, s, p);
}

template <typename T, typename Make>
[[kernel]] void quantize_values_known(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const float4* units [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant QuantizeParams& p [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]
) {
    uint col = at.x * BITS;
    if (col >= p.cols) {
        return;
    }
    uint left = p.cols - col;
    ulong i = ulong(at.y) * p.cols + col;
    bool aligned = p.aligned != 0u;
    RowUnits row = row_units(units, at.y, col, p);
    Span<BITS> s = load_span<BITS>(x + i, left, aligned);
    Span<BITS> grad = s;
    if (Make::takes_grad()) {
        grad = load_span<BITS>(g + i, left, aligned);
    }
    s = make_span<Make>(s, grad, left, i, row, p);
    store_span(y + i, left, aligned, s);
}

FOR_DTYPES_WITH(quantize_fwd, "quantize_fwd_ternary", Ternary, BITS)
FOR_DTYPES_WITH(quantize_fwd, "quantize_fwd_base3", Ternary, BASE3)
FOR_DTYPES_WITH(quantize_fwd, "quantize_fwd_sign", Sign, BITS)
FOR_DTYPES_WITH(quantize_fwd, "quantize_fwd_int8", Int8, BITS)
FOR_DTYPES_WITH(quantize_fwd, "quantize_fwd_zero_point", ZeroPoint, BITS)
FOR_DTYPES_WITH(quantize_fwd, "quantize_fwd_affine", Affine, BITS)
FOR_DTYPES_WITH(quantize_values, "quantize_fake_ternary", Ternary, Values<Scaled>)
FOR_DTYPES_WITH(quantize_values, "quantize_fake_sign", Sign, Values<Signs>)
FOR_DTYPES_WITH(quantize_values, "quantize_fake_int8", Int8, Values<Scaled>)
FOR_DTYPES_WITH(quantize_values, "quantize_fake_zero_point", ZeroPoint, Values<Scaled>)
FOR_DTYPES_WITH(quantize_values, "quantize_fake_affine", Affine, Values<Biased>)
FOR_DTYPES_WITH(quantize_values, "quantize_bwd_x_ternary", Ternary, Clipped<Scaled>)
FOR_DTYPES_WITH(quantize_values, "quantize_bwd_x_sign", Sign, Clipped<Signs>)
FOR_DTYPES_WITH(quantize_values, "quantize_bwd_x_int8", Int8, Clipped<Scaled>)
FOR_DTYPES_WITH(quantize_values, "quantize_bwd_x_zero_point", ZeroPoint, Clipped<Scaled>)
FOR_DTYPES_WITH(quantize_values, "quantize_bwd_x_affine", Affine, Clipped<Biased>)

FOR_DTYPES_WITH(quantize_measure, "quantize_measure_sums", Sums)
FOR_DTYPES_WITH(quantize_measure, "quantize_measure_abs_max", AbsMax)
FOR_DTYPES_WITH(quantize_measure, "quantize_measure_ends", Ends)
FOR_DTYPES_WITH(quantize_columns, "quantize_columns_sums", Sums)
FOR_DTYPES_WITH(quantize_columns, "quantize_columns_abs_max", AbsMax)
FOR_DTYPES_WITH(quantize_columns, "quantize_columns_ends", Ends)
KERNEL("quantize_units_ternary", quantize_units<Ternary>)
KERNEL("quantize_units_sign", quantize_units<Sign>)
KERNEL("quantize_units_int8", quantize_units<Int8>)
KERNEL("quantize_units_zero_point", quantize_units<ZeroPoint>)
KERNEL("quantize_units_affine", quantize_units<Affine>)
FOR_DTYPES_WITH(quantize_fwd_known, "quantize_fwd_known_scaled", Scaled, BITS)
FOR_DTYPES_WITH(quantize_fwd_known, "quantize_fwd_known_base3", Scaled, BASE3)
FOR_DTYPES_WITH(quantize_fwd_known, "quantize_fwd_known_signs", Signs, BITS)
FOR_DTYPES_WITH(quantize_fwd_known, "quantize_fwd_known_biased", Biased, BITS)
FOR_DTYPES_WITH(quantize_values_known, "quantize_fake_known_scaled", Values<Scaled>)
FOR_DTYPES_WITH(quantize_values_known, "quantize_fake_known_signs", Values<Signs>)
FOR_DTYPES_WITH(quantize_values_known, "quantize_fake_known_biased", Values<Biased>)
FOR_DTYPES_WITH(quantize_values_known, "quantize_bwd_x_known_scaled", Clipped<Scaled>)
FOR_DTYPES_WITH(quantize_values_known, "quantize_bwd_x_known_signs", Clipped<Signs>)
FOR_DTYPES_WITH(quantize_values_known, "quantize_bwd_x_known_biased", Clipped<Biased>)
