// Rotary embedding of q and k by one dispatch: a thread takes one oct of one position for up to four heads, so that the
// angles are read once for them. Heads are counted through q and then k.

struct RopeParams {
    HeadStrides q;
    HeadStrides k;
    HeadStrides q_out;
    HeadStrides k_out;
    RotaryParams rotary;
    uint q_heads;
    uint heads;   // of both
    uint groups;  // of four heads
    uint octs;    // of a head
    uint aligned;
    uint reserved;
};

#define ROPE_HEADS 4u

// What a thread knows of its place.
struct RopeThread {
    uint batch;
    uint position;
    uint i;
    uint first;
    uint end;
};

inline RopeThread rope_thread(constant RopeParams& p, uint2 at) {
    RopeThread t;
    t.position = at.x / p.octs;
    t.i = at.x - t.position * p.octs;
    t.batch = at.y / p.groups;
    t.first = (at.y - t.batch * p.groups) * ROPE_HEADS;
    t.end = min(t.first + ROPE_HEADS, p.heads);
    return t;
}

// One oct of one head; y may be x.
template <typename T, bool INTERLEAVED>
inline void rope_oct(device const T* x, device T* y, Oct o, bool rotated, Angles a, bool aligned) {
    float4 low = load4(x + o.low, ulong(o.low_left), aligned, 0.0f);
    float4 high = load4(x + o.high, ulong(o.high_left), aligned, 0.0f);
    if (rotated) {
        rotate_pairs<INTERLEAVED>(low, high, a);
    }
    store4(y + o.low, ulong(o.low_left), aligned, low);
    store4(y + o.high, ulong(o.high_left), aligned, high);
}

template <typename T, bool INTERLEAVED>
[[kernel]] void rope_fwd(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* cos [[buffer(2)]],
    device const T* sin [[buffer(3)]],
    device const uint* ids [[buffer(4)]],
    device T* q_out [[buffer(5)]],
    device T* k_out [[buffer(6)]],
    constant RopeParams& p [[buffer(7)]],
    uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.octs * p.rotary.positions) {
        return;
    }
    RopeThread t = rope_thread(p, at);
    Oct o = oct_at<INTERLEAVED>(t.i, p.rotary);
    bool rotated = t.i < rotated_octs(p.rotary);
    Angles a;
    a.cos = float4(0.0f);
    a.sin = float4(0.0f);
    if (rotated) {
        a = angles_at(cos, sin, ids, p.rotary, t.batch, t.position, 4u * t.i);
    }
    bool aligned = p.aligned != 0u;
    for (uint h = t.first; h < t.end; h++) {
        if (h < p.q_heads) {
            device const T* x = q + head_offset(p.q, t.batch, h, t.position);
            device T* y = q_out + head_offset(p.q_out, t.batch, h, t.position);
            rope_oct<T, INTERLEAVED>(x, y, o, rotated, a, aligned);
        } else {
            device const T* x = k + head_offset(p.k, t.batch, h - p.q_heads, t.position);
            device T* y = k_out + head_offset(p.k_out, t.batch, h - p.q_heads, t.position);
            rope_oct<T, INTERLEAVED>(x, y, o, rotated, a, aligned);
        }
    }
}

// Only the octs that are rotated.
template <typename T, bool INTERLEAVED>
[[kernel]] void rope_inplace(
    device T* x [[buffer(0)]],
    device const T* cos [[buffer(1)]],
    device const T* sin [[buffer(2)]],
    device const uint* ids [[buffer(3)]],
    constant RopeParams& p [[buffer(4)]],
    uint2 at [[thread_position_in_grid]]
) {
    if (at.x >= p.octs * p.rotary.positions) {
        return;
    }
    RopeThread t = rope_thread(p, at);
    Oct o = oct_at<INTERLEAVED>(t.i, p.rotary);
    Angles a = angles_at(cos, sin, ids, p.rotary, t.batch, t.position, 4u * t.i);
    bool aligned = p.aligned != 0u;
    for (uint h = t.first; h < t.end; h++) {
        device T* row = x + head_offset(p.q, t.batch, h, t.position);
        rope_oct<T, INTERLEAVED>((device const T*)row, row, o, true, a, aligned);
    }
}

FOR_DTYPES_WITH(rope_fwd, "rope_fwd_half", false)
FOR_DTYPES_WITH(rope_fwd, "rope_fwd_interleaved", true)
FOR_DTYPES_WITH(rope_inplace, "rope_inplace_half", false)
FOR_DTYPES_WITH(rope_inplace, "rope_inplace_interleaved", true)
