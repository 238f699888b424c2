// Attention: the parameters of all passes, and what a score depends on beside q and k.

#define UNROLL _Pragma("clang loop unroll(full)")

struct AttentionParams {
    // Strides of batch rows, heads and places in the sequence, in elements; gradients have dense strides.
    ulong q[3];
    ulong k[3];
    ulong v[3];
    ulong y[3];
    ulong grad[3];
    ulong dq[3];
    ulong dk[3];
    ulong dv[3];
    ulong mask[4];
    // The distance of two queries in the numbering of weights for dropout, divided by four.
    ulong dropout_row;
    uint mask_dims[4];
    uint batch;
    uint heads;
    uint kv_heads;
    uint group;  // heads of queries for each of keys
    uint queries;
    uint keys;
    uint dim;
    uint value_dim;
    // The number of packed sequences, or 0 if the batch has rows.
    uint packed;
    // The most queries of a batch row or sequence.
    uint most_queries;
    // Words of a number of keys: 1 for u32, 2 for i64, 0 if there are none.
    uint length_words;
    uint length_stride;
    uint mask_kind;  // 1: added, 2: boolean
    uint has_sinks;
    uint has_left;
    uint has_right;
    uint left;
    uint right;
    uint has_dropout;
    uint seed_low;
    uint seed_high;
    uint threshold;
    uint aligned;  // all rows may be read four elements at a time
    // Of a query's keys, for few queries.
    uint parts;
    uint part;
    // Which gradients are wanted.
    uint wants_k;
    uint wants_v;
    uint wants_mask;
    uint wants_sinks;
    // The result in f32 too.
    uint wants_wide;
    float keep;
    float scale;
    float softcap;  // 0: none
};

// Queries and keys that belong together: a batch row, or one of packed sequences.
struct Segment {
    uint batch;
    uint query;  // its first query and key in the batch row
    uint key;
    uint queries;
    uint keys;
    int position;  // of its first query, counted from its first key
};

// `lengths` holds numbers of keys, or the ends of packed queries and then of keys.
inline Segment segment_at(uint n, device const uint* lengths, constant AttentionParams& p) {
    Segment s;
    if (p.packed != 0u) {
        device const uint* keys = lengths + p.packed + 1u;
        s.batch = 0u;
        s.query = lengths[n];
        s.key = keys[n];
        s.queries = lengths[n + 1u] - s.query;
        s.keys = keys[n + 1u] - s.key;
        s.position = int(s.keys) - int(s.queries);
        return s;
    }
    s.batch = n;
    s.query = 0u;
    s.key = 0u;
    s.queries = p.queries;
    s.keys = p.keys;
    s.position = int(p.keys) - int(p.queries);
    if (p.length_words != 0u) {
        device const uint* at = lengths + ulong(n) * p.length_stride * p.length_words;
        uint length = at[0];
        if (p.length_words == 2u) {
            int high = int(at[1]);
            length = high < 0 ? 0u : (high > 0 ? 0xFFFFFFFFu : length);
        }
        s.keys = min(length, p.keys);
        s.position = max(int(s.keys) - int(p.queries), 0);
    }
    return s;
}

// The keys that a query sees, from the segment's first on.
struct Span {
    uint start;
    uint end;
};

inline Span visible(thread const Segment& s, uint i, constant AttentionParams& p) {
    int position = s.position + int(i);
    int keys = int(s.keys);
    Span span;
    int start = p.has_left != 0u ? clamp(position - int(p.left), 0, keys) : 0;
    span.start = uint(start);
    span.end = p.has_right != 0u ? uint(max(min(position + 1 + int(p.right), keys), start)) : s.keys;
    return span;
}

// The same, empty beyond the last query.
inline Span span_of(thread const Segment& s, uint i, constant AttentionParams& p) {
    Span span = visible(s, i, p);
    span.end = i < s.queries ? span.end : span.start;
    return span;
}

// What the scores of a query depend on, beside q and k.
struct Query {
    Span span;
    ulong number;  // among all queries of all heads
    ulong mask;    // where its masks begin
};

inline Query query_at(thread const Segment& s, uint head, uint i, constant AttentionParams& p) {
    Query query;
    query.span = span_of(s, i, p);
    uint at = s.query + i;
    query.number = ulong(s.batch * p.heads + head) * p.queries + at;
    query.mask = s.batch * p.mask[0] + head * p.mask[1] + at * p.mask[2];
    return query;
}

inline bool sees(thread const Query& query, uint j) {
    return j >= query.span.start && j < query.span.end;
}

// The score of a query and key, and its derivative by the capped product.
struct Score {
    float value;
    float slope;
};

template <typename T>
inline Score score(
    float product, thread const Query& query, uint j, device const T* mask, device const uchar* allowed,
    constant AttentionParams& p
) {
    Score s;
    s.value = product * p.scale;
    s.slope = 1.0f;
    if (p.softcap != 0.0f) {
        float t = precise::tanh(s.value / p.softcap);
        s.value = p.softcap * t;
        s.slope = 1.0f - t * t;
    }
    if (p.mask_kind == 1u) {
        s.value += float(mask[query.mask + ulong(j) * p.mask[3]]);
    } else if (p.mask_kind == 2u) {
        s.value = allowed[query.mask + ulong(j) * p.mask[3]] != 0u ? s.value : -INFINITY;
    }
    return s;
}

// The softmax of a query without keys, as `log_sum` saves it: every weight is 0.
inline float2 no_keys() {
    return float2(0.0f, INFINITY);
}

// A query's softmax as the backward reads it: the maximum of the scores or nearly so, and the logarithm of the sum of the
// exponentials relative to it. Their sum alone would lose the second where a mask is large (-1e9, say).
inline float2 log_sum(float top, float sum) {
    return sum == 0.0f ? no_keys() : float2(top, log(sum));
}

// The weight of a score. It is above 1 by rounding alone: the forward may have added the score up in another order, and next to
// a large mask that is much. (`log_sum.x` may be below the maximum: the forward raises it only where a score is far above it.)
inline float saved_weight(float score, float2 log_sum) {
    float weight = exp((score - log_sum.x) - log_sum.y);
    return weight > 1.0f ? 1.0f : weight;
}

// The factors of the weights of four keys from j on, a multiple of four.
inline float4 dropped4(ulong number, uint j, constant AttentionParams& p) {
    if (p.has_dropout == 0u) {
        return float4(1.0f);
    }
    ulong i = number * p.dropout_row + j / 4u;
    uint4 words = philox(uint2(p.seed_low, p.seed_high), uint4(uint(i), uint(i >> 32u), 0u, 0u));
    return select(float4(0.0f), float4(p.keep), words >= uint4(p.threshold));
}

inline float dropped(ulong number, uint j, constant AttentionParams& p) {
    float4 factors = dropped4(number, j, p);
    uint k = j % 4u;
    return k == 0u ? factors.x : (k == 1u ? factors.y : (k == 2u ? factors.z : factors.w));
}

// x times the factor; a dropped x gives 0, even if it is NaN.
inline float drop(float x, float factor) {
    return factor == 0.0f ? 0.0f : x * factor;
}

// Rows of a head where they lie.
template <typename T>
struct HeadRows {
    device const T* from;
    uint stride;  // less than 2^27
    uint cols;
    bool aligned;  // may be read four elements at a time

    // Those from a row on.
    HeadRows<T> behind(uint row) const thread {
        HeadRows<T> rows = *this;
        rows.from += ulong(row) * stride;
        return rows;
    }

    // Four columns of one of the first 32 rows; zeros beyond the last column. The first of them exists.
    float4 four(uint row, uint col) const thread {
        return load4(from + row * stride + col, cols - col, aligned, 0.0f);
    }
};

template <typename T>
inline HeadRows<T> head_rows(
    device const T* from, constant ulong* strides, uint batch, uint head, uint first, uint cols, bool aligned
) {
    HeadRows<T> rows;
    rows.from = from + batch * strides[0] + head * strides[1] + first * strides[2];
    rows.stride = uint(strides[2]);
    rows.cols = cols;
    rows.aligned = aligned;
    return rows;
}

// Keys and values where they lie: what forward kernels take their rows from.
template <typename T>
struct Numbers {
    typedef HeadRows<T> Rows;

    device const T* k;
    device const T* v;

    Rows keys(thread const Segment& s, uint kv_head, constant AttentionParams& p) const thread {
        return head_rows(k, p.k, s.batch, kv_head, s.key, p.dim, p.aligned != 0u);
    }
    Rows values(thread const Segment& s, uint kv_head, constant AttentionParams& p) const thread {
        return head_rows(v, p.v, s.batch, kv_head, s.key, p.value_dim, p.aligned != 0u);
    }
};
