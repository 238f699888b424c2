// Rotary embedding, for the kernels that rotate heads: which elements a thread has, their angles, and the rotation.

// Strides, in elements, from one batch row, head and position to the next.
struct HeadStrides {
    ulong batch;
    ulong head;
    ulong position;
};

inline ulong head_offset(constant HeadStrides& s, uint batch, uint head, uint position) {
    return ulong(batch) * s.batch + ulong(head) * s.head + ulong(position) * s.position;
}

struct RotaryParams {
    ulong cos[3];  // strides by axis, batch and row
    ulong sin[3];
    ulong ids[3];  // strides by axis, batch and position
    ulong first;   // the row of position 0, if there are no ids
    ulong rows;
    uint id_words;  // 0 without ids, 1 for u32, 2 for i64
    uint axes;      // 3 with sections, else 1
    uint section0;  // pairs of the first two sections; of the last two if they take turns
    uint section1;
    uint taking_turns;
    uint pairs;
    uint dim;
    uint positions;
    float sin_sign;
    uint aligned_tables;
};

// ---- Elements ----
//
// A head is cut into octs: four pairs each, and behind the pairs eight neighbours each that pass through.

// Two runs of up to four neighbours: where they begin, and how many elements are left there.
struct Oct {
    uint low;
    uint high;
    uint low_left;
    uint high_left;
};

inline uint rotated_octs(constant RotaryParams& p) {
    return (p.pairs + 3u) / 4u;
}

// Oct i. Half: pairs j to j + 3 are low and high. INTERLEAVED: they are eight neighbours.
template <bool INTERLEAVED>
inline Oct oct_at(uint i, constant RotaryParams& p) {
    Oct o;
    uint rotated = rotated_octs(p);
    if (i < rotated && !INTERLEAVED) {
        o.low = 4u * i;
        o.high = p.pairs + 4u * i;
        o.low_left = p.pairs - 4u * i;
        o.high_left = o.low_left;
        return o;
    }
    uint end = i < rotated ? 2u * p.pairs : p.dim;
    o.low = i < rotated ? 8u * i : 2u * p.pairs + 8u * (i - rotated);
    o.high = o.low + 4u;
    o.low_left = end - o.low;
    o.high_left = o.low_left > 4u ? o.low_left - 4u : 0u;
    return o;
}

// ---- Angles ----

struct Angles {
    float4 cos;
    float4 sin;
};

// The row of a position, p.rows or more if an id is beyond the table.
inline ulong table_row(device const uint* ids, constant RotaryParams& p, uint axis, uint batch, uint position) {
    if (p.id_words == 0u) {
        return p.first + position;
    }
    ulong at = ulong(axis) * p.ids[0] + ulong(batch) * p.ids[1] + ulong(position) * p.ids[2];
    if (p.id_words == 1u) {
        return ulong(ids[at]);
    }
    // The two words of an i64; as unsigned, a negative one is beyond every table.
    return ulong(ids[2u * at]) | (ulong(ids[2u * at + 1u]) << 32u);
}

// Which of the three positions rotates pair j.
inline uint axis_of(constant RotaryParams& p, uint j) {
    if (p.taking_turns != 0u) {
        uint turn = j / 3u;
        uint axis = j - 3u * turn;
        return (axis == 1u && turn < p.section0) || (axis == 2u && turn < p.section1) ? axis : 0u;
    }
    return j < p.section0 ? 0u : (j < p.section0 + p.section1 ? 1u : 2u);
}

// cos and sin of pair j, 0 behind the last.
template <typename T>
inline float2 angle_of(
    device const T* cos,
    device const T* sin,
    device const uint* ids,
    constant RotaryParams& p,
    uint batch,
    uint position,
    uint j
) {
    if (j >= p.pairs) {
        return float2(0.0f);
    }
    uint axis = axis_of(p, j);
    ulong row = table_row(ids, p, axis, batch, position);
    if (row >= p.rows) {
        return float2(NAN);
    }
    ulong cos_at = ulong(axis) * p.cos[0] + ulong(batch) * p.cos[1] + row * p.cos[2] + j;
    ulong sin_at = ulong(axis) * p.sin[0] + ulong(batch) * p.sin[1] + row * p.sin[2] + j;
    return float2(float(cos[cos_at]), float(sin[sin_at]));
}

// cos and sin of the pairs j to j + 3. Where an id is beyond the table, they are NaN.
template <typename T>
inline Angles angles_at(
    device const T* cos,
    device const T* sin,
    device const uint* ids,
    constant RotaryParams& p,
    uint batch,
    uint position,
    uint j
) {
    Angles a;
    if (p.axes == 1u) {
        ulong row = table_row(ids, p, 0u, batch, position);
        a.cos = float4(NAN);
        a.sin = float4(NAN);
        if (row < p.rows) {
            ulong left = ulong(p.pairs - j);
            bool aligned = p.aligned_tables != 0u;
            a.cos = load4(cos + ulong(batch) * p.cos[1] + row * p.cos[2] + j, left, aligned, 0.0f);
            a.sin = load4(sin + ulong(batch) * p.sin[1] + row * p.sin[2] + j, left, aligned, 0.0f);
        }
    } else {
        float2 v0 = angle_of(cos, sin, ids, p, batch, position, j);
        float2 v1 = angle_of(cos, sin, ids, p, batch, position, j + 1u);
        float2 v2 = angle_of(cos, sin, ids, p, batch, position, j + 2u);
        float2 v3 = angle_of(cos, sin, ids, p, batch, position, j + 3u);
        a.cos = float4(v0.x, v1.x, v2.x, v3.x);
        a.sin = float4(v0.y, v1.y, v2.y, v3.y);
    }
    a.sin *= p.sin_sign;
    return a;
}

// ---- Rotation ----

template <bool INTERLEAVED>
inline void rotate_pairs(thread float4& low, thread float4& high, Angles t) {
    float4 a = INTERLEAVED ? float4(low.x, low.z, high.x, high.z) : low;
    float4 b = INTERLEAVED ? float4(low.y, low.w, high.y, high.w) : high;
    float4 y = a * t.cos - b * t.sin;
    float4 z = b * t.cos + a * t.sin;
    low = INTERLEAVED ? float4(y.x, z.x, y.y, z.y) : y;
    high = INTERLEAVED ? float4(y.z, z.z, y.w, z.w) : z;
}
