// <metal_integer>. Like Metal's overloads, arguments of different types are refused as ambiguous.
#pragma once
#include "limits.h"
#include "math.h"

namespace softmetal {

template <int bytes>
struct WideOf;
template <>
struct WideOf<1> {
    typedef short sign;
    typedef ushort plain;
};
template <>
struct WideOf<2> {
    typedef int sign;
    typedef uint plain;
};
template <>
struct WideOf<4> {
    typedef long sign;
    typedef ulong plain;
};
template <>
struct WideOf<8> {
    typedef __int128 sign;
    typedef unsigned __int128 plain;
};
// Twice as wide, so that sums and products are exact.
template <typename T>
using wide_t = metal::conditional_t<metal::is_signed<T>::value, typename WideOf<sizeof(T)>::sign, typename WideOf<sizeof(T)>::plain>;
template <typename T>
using unsigned_t = metal::make_unsigned_t<T>;

namespace whole {

template <typename T>
SM_INLINE constexpr T saturated(wide_t<T> v) {
    constexpr wide_t<T> low = metal::numeric_limits<T>::min(), high = metal::numeric_limits<T>::max();
    return T(v < low ? low : v > high ? high : v);
}
template <typename T>
SM_INLINE constexpr T abs(T x) {
    return x < 0 ? T(-unsigned_t<T>(x)) : x;
}
template <typename T>
SM_INLINE constexpr unsigned_t<T> absdiff(T x, T y) {
    return x < y ? unsigned_t<T>(y) - unsigned_t<T>(x) : unsigned_t<T>(x) - unsigned_t<T>(y);
}
template <typename T>
SM_INLINE constexpr T addsat(T x, T y) {
    return saturated<T>(wide_t<T>(x) + wide_t<T>(y));
}
template <typename T>
SM_INLINE constexpr T subsat(T x, T y) {
    if constexpr (metal::is_unsigned<T>::value)
        return x < y ? T(0) : T(x - y);
    else
        return saturated<T>(wide_t<T>(x) - wide_t<T>(y));
}
template <typename T>
SM_INLINE constexpr T hadd(T x, T y) {
    return T((wide_t<T>(x) + wide_t<T>(y)) >> 1);
}
template <typename T>
SM_INLINE constexpr T rhadd(T x, T y) {
    return T((wide_t<T>(x) + wide_t<T>(y) + 1) >> 1);
}
template <typename T>
SM_INLINE constexpr T max(T x, T y) {
    return x < y ? y : x;
}
template <typename T>
SM_INLINE constexpr T min(T x, T y) {
    return y < x ? y : x;
}
template <typename T>
SM_INLINE constexpr T mulhi(T x, T y) {
    return T((wide_t<T>(x) * wide_t<T>(y)) >> (8 * sizeof(T)));
}
template <typename T>
SM_INLINE constexpr T clz(T x) {
    T n = 0;
    for (unsigned_t<T> bit = unsigned_t<T>(1) << (8 * sizeof(T) - 1); bit != 0 && !(unsigned_t<T>(x) & bit); bit >>= 1)
        n++;
    return n;
}
template <typename T>
SM_INLINE constexpr T ctz(T x) {
    return x == 0 ? T(8 * sizeof(T)) : T(__builtin_ctzl(ulong(unsigned_t<T>(x))));
}
template <typename T>
SM_INLINE constexpr T popcount(T x) {
    return T(__builtin_popcountl(ulong(unsigned_t<T>(x))));
}
template <typename T>
SM_INLINE constexpr T reverse_bits(T x) {
    return T(__builtin_bitreverse64(ulong(unsigned_t<T>(x))) >> (64 - 8 * sizeof(T)));
}
template <typename T>
SM_INLINE constexpr T rotate(T x, T count) {
    constexpr uint bits = 8 * sizeof(T);
    uint n = uint(count) & (bits - 1);
    return T(unsigned_t<T>(x) << n | unsigned_t<T>(x) >> ((bits - n) & (bits - 1)));
}
template <typename T>
SM_INLINE constexpr T clamp(T x, T low, T high) {
    return min(max(x, low), high);
}
template <typename T>
SM_INLINE constexpr T max3(T x, T y, T z) {
    return max(x, max(y, z));
}
template <typename T>
SM_INLINE constexpr T min3(T x, T y, T z) {
    return min(x, min(y, z));
}
template <typename T>
SM_INLINE constexpr T median3(T x, T y, T z) {
    return max(min(x, y), min(max(x, y), z));
}
template <typename T>
SM_INLINE constexpr T madhi(T x, T y, T z) {
    return T(unsigned_t<T>(mulhi(x, y)) + unsigned_t<T>(z));
}
template <typename T>
SM_INLINE constexpr T madsat(T x, T y, T z) {
    return saturated<T>(wide_t<T>(x) * wide_t<T>(y) + wide_t<T>(z));
}

// The low 24 bits count; Metal leaves the rest undefined.
SM_INLINE constexpr int low24(int x) { return int(uint(x) << 8) >> 8; }
SM_INLINE constexpr uint low24(uint x) { return x & 0xffffffu; }
template <typename T>
SM_INLINE constexpr T mul24(T x, T y) {
    return T(uint(low24(x)) * uint(low24(y)));
}
template <typename T>
SM_INLINE constexpr T mad24(T x, T y, T z) {
    return T(uint(mul24(x, y)) + uint(z));
}

} // namespace whole

} // namespace softmetal

namespace metal {

#define SM_FOR_INTEGERS(X, name) \
    X(name, char) X(name, uchar) X(name, short) X(name, ushort) X(name, int) X(name, uint) X(name, long) X(name, ulong)
#define SM_SCALAR_1(name, T) \
    SM_INLINE constexpr auto name(T x) { return softmetal::whole::name<T>(x); }
#define SM_SCALAR_2(name, T) \
    SM_INLINE constexpr auto name(T x, T y) { return softmetal::whole::name<T>(x, y); }
#define SM_SCALAR_3(name, T) \
    SM_INLINE constexpr auto name(T x, T y, T z) { return softmetal::whole::name<T>(x, y, z); }
#define SM_INTEGER_VECTOR typename T = typename softmetal::VecOf<V>::element, softmetal::require<softmetal::is_integer<T>> = 0

#define SM_INTEGER_1(name) \
    SM_FOR_INTEGERS(SM_SCALAR_1, name) \
    template <typename V, SM_INTEGER_VECTOR> \
    SM_INLINE constexpr V name(SM_IN(V) v) { \
        return softmetal::map([](T x) __attribute__((always_inline, nodebug)) { return T(softmetal::whole::name<T>(x)); }, v); \
    }
#define SM_INTEGER_2(name) \
    SM_FOR_INTEGERS(SM_SCALAR_2, name) \
    template <typename A, typename B, typename V = softmetal::meet_t<A, B>, SM_INTEGER_VECTOR> \
    SM_INLINE constexpr V name(SM_IN(A) a, SM_IN(B) b) { \
        return softmetal::map([](T x, T y) __attribute__((always_inline, nodebug)) { return T(softmetal::whole::name<T>(x, y)); }, \
            softmetal::widen<V>(a), softmetal::widen<V>(b)); \
    }
#define SM_INTEGER_3(name) \
    SM_FOR_INTEGERS(SM_SCALAR_3, name) \
    template <typename A, typename B, typename C, typename V = softmetal::meet_t<A, B, C>, SM_INTEGER_VECTOR> \
    SM_INLINE constexpr V name(SM_IN(A) a, SM_IN(B) b, SM_IN(C) c) { \
        return softmetal::map([](T x, T y, T z) __attribute__((always_inline, nodebug)) { return T(softmetal::whole::name<T>(x, y, z)); }, \
            softmetal::widen<V>(a), softmetal::widen<V>(b), softmetal::widen<V>(c)); \
    }
SM_INTEGER_1(abs) SM_INTEGER_1(clz) SM_INTEGER_1(ctz) SM_INTEGER_1(popcount) SM_INTEGER_1(reverse_bits)
SM_INTEGER_2(absdiff) SM_INTEGER_2(addsat) SM_INTEGER_2(hadd) SM_INTEGER_2(max) SM_INTEGER_2(min) SM_INTEGER_2(mulhi)
SM_INTEGER_2(rhadd) SM_INTEGER_2(rotate) SM_INTEGER_2(subsat)
SM_INTEGER_3(clamp) SM_INTEGER_3(max3) SM_INTEGER_3(median3) SM_INTEGER_3(min3) SM_INTEGER_3(madhi) SM_INTEGER_3(madsat)

#define SM_24_BITS(X, name) X(name, int) X(name, uint)
SM_24_BITS(SM_SCALAR_2, mul24)
SM_24_BITS(SM_SCALAR_3, mad24)

template <typename T, softmetal::require<softmetal::is_integer<T>> = 0>
SM_INLINE constexpr T extract_bits(T x, uint offset, uint bits) {
    if (bits == 0)
        return T(0);
    uint above = 8 * sizeof(T) - offset - bits;
    return T(T(softmetal::unsigned_t<T>(x) << above) >> (above + offset));
}
template <typename T, int N>
SM_INLINE constexpr vec<T, N> extract_bits(vec<T, N> x, uint offset, uint bits) {
    for (int i = 0; i < N; i++)
        x[i] = extract_bits(x[i], offset, bits);
    return x;
}
template <typename T, softmetal::require<softmetal::is_integer<T>> = 0>
SM_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint bits) {
    typedef softmetal::unsigned_t<T> U;
    if (bits == 0)
        return base;
    U mask = U(U(~U(0)) >> (8 * sizeof(T) - bits)) << offset;
    return T((U(base) & ~mask) | (U(insert) << offset & mask));
}
template <typename T, int N>
SM_INLINE constexpr vec<T, N> insert_bits(vec<T, N> base, vec<T, N> insert, uint offset, uint bits) {
    for (int i = 0; i < N; i++)
        base[i] = insert_bits(base[i], insert[i], offset, bits);
    return base;
}

} // namespace metal
