// <metal_relational>
#pragma once
#include "common.h"

namespace metal {

#define SM_CLASSIFY(name, ...) \
    SM_INLINE bool name(float x) { return __VA_ARGS__; } \
    SM_INLINE bool name(half h) { \
        float x = h; \
        return __VA_ARGS__; \
    } \
    template <typename T, softmetal::require<softmetal::is_bfloat<T>> = 0> \
    SM_INLINE bool name(T x) { return name(float(x)); } \
    template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0> \
    SM_INLINE vec<bool, N> name(vec<T, N> v) { \
        vec<bool, N> r(false); \
        for (int i = 0; i < N; i++) \
            r[i] = name(v[i]); \
        return r; \
    }
SM_CLASSIFY(isnan, __builtin_isnan(x))
SM_CLASSIFY(isinf, __builtin_isinf(x))
SM_CLASSIFY(isfinite, __builtin_isfinite(x))
SM_CLASSIFY(signbit, __builtin_signbitf(x) != 0)

#define SM_NORMAL(type, least, greatest) \
    SM_INLINE bool isnormal(type x) { return fabs(x) >= least && fabs(x) <= greatest; }
SM_NORMAL(float, 0x1p-126f, 0x1.fffffep127f)
SM_NORMAL(half, 0x1p-14f, 65504.0f)
template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0>
SM_INLINE vec<bool, N> isnormal(vec<T, N> v) {
    vec<bool, N> r(false);
    for (int i = 0; i < N; i++)
        r[i] = isnormal(v[i]);
    return r;
}

#define SM_ORDERED(name, op) \
    SM_INLINE bool name(float x, float y) { return op(__builtin_isnan(x) || __builtin_isnan(y)); } \
    SM_INLINE bool name(half x, half y) { return name(float(x), float(y)); } \
    template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0> \
    SM_INLINE vec<bool, N> name(vec<T, N> x, vec<T, N> y) { \
        vec<bool, N> r(false); \
        for (int i = 0; i < N; i++) \
            r[i] = name(x[i], y[i]); \
        return r; \
    }
SM_ORDERED(isordered, !)
SM_ORDERED(isunordered, !!)

SM_INLINE constexpr bool all(bool x) { return x; }
SM_INLINE constexpr bool any(bool x) { return x; }
template <int N>
SM_INLINE constexpr bool all(vec<bool, N> v) {
    bool r = true;
    for (int i = 0; i < N; i++)
        r &= v[i];
    return r;
}
template <int N>
SM_INLINE constexpr bool any(vec<bool, N> v) {
    bool r = false;
    for (int i = 0; i < N; i++)
        r |= v[i];
    return r;
}

// b where c holds, a elsewhere.
#define SM_SELECT(unused, T) \
    SM_INLINE constexpr T select(T a, T b, bool c) { return c ? b : a; }
SM_FOR_INTEGERS(SM_SELECT, select)
SM_SELECT(select, bool)
SM_SELECT(select, half)
SM_SELECT(select, float)
template <typename T, softmetal::require<softmetal::is_bfloat<T>> = 0>
SM_INLINE constexpr T select(T a, T b, bool c) {
    return c ? b : a;
}
template <typename A, typename B, typename V = softmetal::meet_t<A, B>>
SM_INLINE constexpr V select(SM_IN(A) a, SM_IN(B) b, softmetal::bools_t<V> c) {
    V r = softmetal::widen<V>(a), y = softmetal::widen<V>(b);
    for (int i = 0; i < softmetal::VecOf<V>::size; i++)
        r[i] = c[i] ? y[i] : r[i];
    return r;
}

} // namespace metal
