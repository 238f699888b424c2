// What simd and quad functions are made of: lanes bring a value each, and every lane computes its result from all of them.
#pragma once
#include "relational.h"

namespace metal {

// Types that simd and quad functions take: not bool, not bfloat, nothing of 64 bits.
template <typename T>
struct __is_valid_simdgroup_type
    : bool_constant<softmetal::is_math<T> || (softmetal::is_integer<T> && sizeof(T) <= 4)> {};
template <typename T, int N>
struct __is_valid_simdgroup_type<vec<T, N>> : __is_valid_simdgroup_type<T> {};

} // namespace metal

namespace softmetal {

// The values of the lanes around the caller, numbered from 0 to width.
template <typename T, u32 width>
struct Lanes {
    const Gathered* gathered;
    u32 base;
    u32 own;
    u32 mask;
    Site site;

    SM_INLINE Lanes(const T& value, u32 kind, u32 argument, Here here) : site(here.site()) {
        static_assert(sizeof(T) <= sizeof(gathered->values[0]), "too large for a rendezvous");
        gathered = runtime->gather(&value, sizeof(T), width, kind, argument, &site);
        base = gathered->lane & ~(width - 1);
        own = gathered->lane - base;
        mask = (gathered->mask >> base) & (~0u >> (32 - width));
    }

    SM_INLINE bool active(u32 lane) const { return lane < width && (mask >> lane & 1); }
    SM_INLINE u32 first() const { return u32(__builtin_ctz(mask)); }

    SM_INLINE T operator[](u32 lane) const {
        T value;
        __builtin_memcpy(&value, gathered->values[base + lane], sizeof(T));
        return value;
    }

    // The value of a lane that should be active.
    SM_INLINE T take(u32 lane) const {
        if (!active(lane))
            runtime->inactive_lane(base + lane, &site);
        return (*this)[lane < width ? lane : own];
    }
};

#define SM_OPERATOR(name, ...) \
    struct name { \
        template <typename T> \
        SM_INLINE static T apply(const T& a, const T& b) { \
            return T(__VA_ARGS__); \
        } \
    };
SM_OPERATOR(Sum, a + b)
SM_OPERATOR(Product, a * b)
SM_OPERATOR(Least, metal::min(a, b))
SM_OPERATOR(Greatest, metal::max(a, b))
SM_OPERATOR(BitAnd, a & b)
SM_OPERATOR(BitOr, a | b)
SM_OPERATOR(BitXor, a ^ b)

// Halves are folded onto each other, so every lane gets the same bits.
template <u32 width, typename Operator, typename T>
SM_RENDEZVOUS T reduce(T value, Here here) {
    Lanes<T, width> lanes(value, gather_kind::reduce, 0, here);
    T part[width];
    u32 mask = lanes.mask;
    for (u32 i = 0; i < width; i++)
        part[i] = lanes[i];
    for (u32 middle = width / 2; middle > 0; middle /= 2) {
        for (u32 i = 0; i < middle; i++) {
            if (!(mask >> (i + middle) & 1))
                continue;
            part[i] = mask >> i & 1 ? Operator::apply(part[i], part[i + middle]) : part[i + middle];
            mask |= 1u << i;
        }
    }
    return part[0];
}

// Over the active lanes before the caller, which itself counts if inclusive.
template <u32 width, typename Operator, bool inclusive, typename T>
SM_RENDEZVOUS T prefix(T value, T neutral, Here here) {
    Lanes<T, width> lanes(value, gather_kind::reduce, 0, here);
    T total = neutral;
    for (u32 i = 0; i < lanes.own + inclusive; i++) {
        if (lanes.active(i))
            total = Operator::apply(total, lanes[i]);
    }
    return total;
}

// Which lane a shuffle reads; `own` where there is none.
struct Down {
    static constexpr u32 kind = gather_kind::shuffle_uniform;
    SM_INLINE static u32 source(u32 own, u32 delta, u32 width) { return delta < width - own ? own + delta : own; }
};
struct Up {
    static constexpr u32 kind = gather_kind::shuffle_uniform;
    SM_INLINE static u32 source(u32 own, u32 delta, u32) { return delta <= own ? own - delta : own; }
};
struct RotateDown {
    static constexpr u32 kind = gather_kind::shuffle_uniform;
    SM_INLINE static u32 source(u32 own, u32 delta, u32 width) { return (own + delta) % width; }
};
struct RotateUp {
    static constexpr u32 kind = gather_kind::shuffle_uniform;
    SM_INLINE static u32 source(u32 own, u32 delta, u32 width) { return (own + width - delta % width) % width; }
};
struct Xor {
    static constexpr u32 kind = gather_kind::shuffle_uniform;
    SM_INLINE static u32 source(u32 own, u32 mask, u32) { return own ^ mask; }
};
struct Broadcast {
    static constexpr u32 kind = gather_kind::shuffle_uniform;
    SM_INLINE static u32 source(u32, u32 lane, u32) { return lane; }
};
struct Indexed {
    static constexpr u32 kind = gather_kind::shuffle;
    SM_INLINE static u32 source(u32, u32 lane, u32) { return lane; }
};

template <u32 width, typename Shuffle, typename T>
SM_RENDEZVOUS T shuffle(T value, u32 argument, Here here) {
    Lanes<T, width> lanes(value, Shuffle::kind, argument, here);
    return lanes.take(Shuffle::source(lanes.own, argument, width));
}

template <typename T>
struct Filled {
    T data;
    T fill;
};

// Moves inside blocks of `modulo` lanes; what leaves a block is replaced from the filling data.
template <u32 width, bool down, typename T>
SM_RENDEZVOUS T shuffle_and_fill(T data, T fill, u32 delta, u32 modulo, Here here) {
    Lanes<Filled<T>, width> lanes({data, fill}, gather_kind::shuffle_uniform, delta, here);
    u32 block = lanes.own / modulo * modulo;
    u32 at = down ? lanes.own - block + delta : lanes.own - block + modulo - delta % (modulo + 1);
    Filled<T> taken = lanes.take(block + at % modulo);
    return (down ? at < modulo : at >= modulo) ? taken.data : taken.fill;
}

template <u32 width, typename T>
SM_RENDEZVOUS T broadcast_first(T value, Here here) {
    Lanes<T, width> lanes(value, gather_kind::reduce, 0, here);
    return lanes[lanes.first()];
}

// Bit i is set if lane i is active and brings true.
template <u32 width>
SM_RENDEZVOUS u32 ballot(bool value, Here here) {
    Lanes<u8, width> lanes(value, gather_kind::reduce, 0, here);
    u32 votes = 0;
    for (u32 i = 0; i < width; i++)
        votes |= u32(lanes.active(i) && lanes[i]) << i;
    return votes;
}

struct Activity {
    u32 mask;
    bool first;
};

template <u32 width>
SM_RENDEZVOUS Activity activity(Here here) {
    Lanes<u8, width> lanes(0, gather_kind::reduce, 0, here);
    return {lanes.mask, lanes.first() == lanes.own};
}

} // namespace softmetal
