// Quantisation: the codes of x (fwd), the values of the codes (fake), and the clipped gradient (bwd_x).
//
// If the elements that share a scale are neighbours and have their bytes of codes to themselves, one kernel measures and
// encodes them. Otherwise a first pass measures them (quantize_measure or quantize_columns) and derives the parameters
// of every scale (quantize_params), and the kernels called `second_pass` encode row by row.

// ---- Teams: the threads that work on the elements of one scale, or on a part of them ----

struct Team {
    uint item;  // which scale, or which part
    uint index;
    uint size;
    uint lane;
    uint simdgroup;
    uint simdgroups;
};

inline Team team_of(uint position, uint threads, uint lane, uint simdgroup, uint simdgroups, constant QuantizeParams& p) {
    Team t;
    t.size = p.team == 0u ? threads : p.team;
    t.item = position / t.size;
    t.index = position % t.size;
    t.lane = lane;
    t.simdgroup = simdgroup;
    t.simdgroups = p.team == 0u ? simdgroups : 1u;
    return t;
}

// Joins the statistics of `lanes` neighbouring lanes. All of them get the result.
template <typename Stat>
inline float2 join_lanes(float2 s, uint lanes) {
    for (uint d = 1u; d < lanes; d *= 2u) {
        s = Stat::join(s, simd_shuffle_xor(s, ushort(d)));
    }
    return s;
}

// Joins the statistics of a team. All threads of the threadgroup must call it, once.
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

// The elements of a team. Each thread keeps its first span in registers for the second pass.
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

// The order of additions depends on the length alone, so every kernel derives the same parameters from the same elements.
template <typename Stat, typename T>
inline float2 measure(thread const Run<T>& x, threadgroup float2* scratch, Team t) {
    // Four independent accumulators: the additions need not wait for each other, and shorter sums lose fewer digits.
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

// ---- Sinks: what an element becomes ----

template <typename Code>
struct Codes {
    static float of(float x, float noise, float, ScaleParams u, constant QuantizeParams& p) {
        return Code::code(x, u, noise, p);
    }
};

template <typename Code>
struct Values {
    static bool takes_grad() { return false; }
    static float of(float x, float noise, float, ScaleParams u, constant QuantizeParams& p) {
        return Code::value(Code::code(x, u, noise, p), u);
    }
};

// A NaN position fails both comparisons and gets no gradient.
template <typename Code>
struct Clipped {
    static bool takes_grad() { return true; }
    static float of(float x, float, float g, ScaleParams u, constant QuantizeParams& p) {
        float v = Code::position(x, u);
        return v >= p.low - 0.5f && v <= p.high + 0.5f ? g : 0.0f;
    }
};

// The same parameters for all elements.
struct OneScale {
    ScaleParams u;

    ScaleParams next() thread { return u; }
};

// The parameters of neighbouring columns of a row.
struct RowScales {
    device const float4* at;
    uint left;
    uint scale_cols;
    ScaleParams u;

    ScaleParams next() thread {
        if (left == 0u) {
            at += 1;
            load();
        }
        left -= 1u;
        return u;
    }
    void load() thread {
        float4 v = *at;
        u = scale_params(v.x, v.y, v.z, v.w);
        left = scale_cols;
    }
};

inline RowScales row_scales(device const float4* params, uint row, uint col, constant QuantizeParams& p) {
    RowScales r;
    r.at = params + row * p.row_scales + col / p.scale_cols;
    r.scale_cols = p.scale_cols;
    r.load();
    r.left = p.scale_cols - col % p.scale_cols;
    return r;
}

// Encodes a span. i is the index of its first element in the tensor; elements from `left` on do not exist and give 0.
template <typename Sink, uint SPAN, typename Scales>
inline Span<SPAN> encode_span(
    Span<SPAN> x, Span<SPAN> g, uint left, ulong i, thread Scales& scales, constant QuantizeParams& p
) {
    Span<SPAN> noise = noise_span<SPAN>(i, p);
    Span<SPAN> out;
    for (uint k = 0u; k < SPAN; k++) {
        out.v[k] = 0.0f;
        if (k < left) {
            out.v[k] = Sink::of(x.v[k], noise.v[k], g.v[k], scales.next(), p);
        }
    }
    return out;
}

// ---- One pass: elements that share a scale are measured and encoded by one team ----

template <typename T, typename Levels, uint SPAN>
[[kernel]] void quantize_fwd(
    device const T* x [[buffer(0)]],
    device uchar* codes [[buffer(1)]],
    device float* scales [[buffer(2)]],
    device float* offsets [[buffer(3)]],  // of the levels that have them
    constant QuantizeParams& p [[buffer(4)]],
    uint position [[thread_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float2 scratch[32];
    Team t = team_of(position, threads, lane, simdgroup, simdgroups, p);
    uint len = t.item < p.scales ? uint(p.len) : 0u;
    ulong start = ulong(t.item) * p.len;
    Run<T> run = run_of(x + start, len, p.aligned != 0u, t);
    OneScale one;
    one.u = params_of_stats<Levels>(measure<typename Levels::Stat>(run, scratch, t), p);
    if (t.index == 0u && len > 0u) {
        scales[t.item] = Levels::scale(one.u);
        if (Levels::has_offset()) {
            offsets[t.item] = Levels::offset(one.u);
        }
    }
    device uchar* to = codes + ulong(t.item) * p.bytes;
    for (uint i = t.index * SPAN; i < len; i += t.size * SPAN) {
        Span<SPAN> s = Packing<SPAN>::take(run, i);
        s = encode_span<Codes<typename Levels::Code>>(s, s, len - i, start + i, one, p);
        Packing<SPAN>::put(to, i, len - i, s, p);
    }
}

// g is bound to x again where the sink takes no gradient.
template <typename T, typename Levels, typename Sink>
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
    uint len = t.item < p.scales ? uint(p.len) : 0u;
    ulong start = ulong(t.item) * p.len;
    bool aligned = p.aligned != 0u;
    Run<T> run = run_of(x + start, len, aligned, t);
    OneScale one;
    one.u = params_of_stats<Levels>(measure<typename Levels::Stat>(run, scratch, t), p);
    for (uint i = run.first; i < len; i += t.size * BITS) {
        Span<BITS> s = run.at(i);
        Span<BITS> grad = s;
        if (Sink::takes_grad()) {
            grad = load_span<BITS>(g + start + i, len - i, aligned);
        }
        s = encode_span<Sink>(s, grad, len - i, start + i, one, p);
        store_span(y + start + i, len - i, aligned, s);
    }
}

// ---- Two passes ----

// Statistics of neighbours that share a scale, a team for each part of them.
template <typename T, typename Stat>
[[kernel]] void quantize_measure(
    device const T* x [[buffer(0)]],
    device float2* stats [[buffer(1)]],  // [scales, parts]
    constant QuantizeParams& p [[buffer(2)]],
    uint position [[thread_position_in_grid]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    threadgroup float2 scratch[32];
    Team t = team_of(position, threads, lane, simdgroup, simdgroups, p);
    uint scale = t.item / p.parts;
    ulong start = ulong(t.item % p.parts) * p.part;
    uint len = scale < p.scales ? uint(min(p.part, p.len - start)) : 0u;
    Run<T> run = run_of(x + ulong(scale) * p.len + start, len, p.aligned != 0u, t);
    float2 s = measure<Stat>(run, scratch, t);
    if (t.index == 0u && len > 0u) {
        stats[t.item] = s;
    }
}

// Statistics of columns: a column for each thread in x, a part of the rows for each threadgroup.
template <typename T, typename Stat>
[[kernel]] void quantize_columns(
    device const T* x [[buffer(0)]],
    device float2* stats [[buffer(1)]],  // [scales, parts]
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
            // Sums of 32 rows are added up by themselves: one long sum would lose the small elements of tall columns.
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

// The parameters of every scale from the statistics of its parts: a simdgroup for each scale.
template <typename Levels>
[[kernel]] void quantize_params(
    device const float2* stats [[buffer(0)]],
    device float4* params [[buffer(1)]],
    device float* scales [[buffer(2)]],
    device float* offsets [[buffer(3)]],  // of the levels that have them
    constant QuantizeParams& p [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]
) {
    typedef typename Levels::Stat Stat;
    uint scale = group * simdgroups + simdgroup;
    if (scale >= p.scales) {
        return;
    }
    float2 s = Stat::start();
    for (uint i = lane; i < p.parts; i += 32u) {
        s = Stat::join(s, stats[ulong(scale) * p.parts + i]);
    }
    ScaleParams u = params_of_stats<Levels>(join_lanes<Stat>(s, 32u), p);
    if (lane == 0u) {
        params[scale] = float4(u.inverse_scale, u.zero, u.bias, u.scale);
        scales[scale] = Levels::scale(u);
        if (Levels::has_offset()) {
            offsets[scale] = Levels::offset(u);
        }
    }
}

// A span of a row for each thread.
template <typename T, typename Code, uint SPAN>
[[kernel]] void quantize_fwd_second_pass(
    device const T* x [[buffer(0)]],
    device const float4* params [[buffer(1)]],
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
    RowScales row = row_scales(params, at.y, col, p);
    Span<SPAN> s = load_span<SPAN>(x + i, left, p.aligned != 0u && SPAN % 4u == 0u);
    s = encode_span<Codes<Code>>(s, s, left, i, row, p);
    Packing<SPAN>::put(codes + ulong(at.y) * p.bytes, col, left, s, p);
}

template <typename T, typename Sink>
[[kernel]] void quantize_values_second_pass(
    device const T* x [[buffer(0)]],
    device const T* g [[buffer(1)]],
    device const float4* params [[buffer(2)]],
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
    RowScales row = row_scales(params, at.y, col, p);
    Span<BITS> s = load_span<BITS>(x + i, left, aligned);
    Span<BITS> grad = s;
    if (Sink::takes_grad()) {
        grad = load_span<BITS>(g + i, left, aligned);
    }
    s = encode_span<Sink>(s, grad, left, i, row, p);
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
FOR_DTYPES_WITH(quantize_measure, "quantize_measure_min_max", MinMax)
FOR_DTYPES_WITH(quantize_columns, "quantize_columns_sums", Sums)
FOR_DTYPES_WITH(quantize_columns, "quantize_columns_abs_max", AbsMax)
FOR_DTYPES_WITH(quantize_columns, "quantize_columns_min_max", MinMax)
KERNEL("quantize_params_ternary", quantize_params<Ternary>)
KERNEL("quantize_params_sign", quantize_params<Sign>)
KERNEL("quantize_params_int8", quantize_params<Int8>)
KERNEL("quantize_params_zero_point", quantize_params<ZeroPoint>)
KERNEL("quantize_params_affine", quantize_params<Affine>)
FOR_DTYPES_WITH(quantize_fwd_second_pass, "quantize_fwd_second_pass_scaled", Scaled, BITS)
FOR_DTYPES_WITH(quantize_fwd_second_pass, "quantize_fwd_second_pass_base3", Scaled, BASE3)
FOR_DTYPES_WITH(quantize_fwd_second_pass, "quantize_fwd_second_pass_signs", Signs, BITS)
FOR_DTYPES_WITH(quantize_fwd_second_pass, "quantize_fwd_second_pass_biased", Biased, BITS)
FOR_DTYPES_WITH(quantize_values_second_pass, "quantize_fake_second_pass_scaled", Values<Scaled>)
FOR_DTYPES_WITH(quantize_values_second_pass, "quantize_fake_second_pass_signs", Values<Signs>)
FOR_DTYPES_WITH(quantize_values_second_pass, "quantize_fake_second_pass_biased", Values<Biased>)
FOR_DTYPES_WITH(quantize_values_second_pass, "quantize_bwd_x_second_pass_scaled", Clipped<Scaled>)
FOR_DTYPES_WITH(quantize_values_second_pass, "quantize_bwd_x_second_pass_signs", Clipped<Signs>)
FOR_DTYPES_WITH(quantize_values_second_pass, "quantize_bwd_x_second_pass_biased", Clipped<Biased>)
