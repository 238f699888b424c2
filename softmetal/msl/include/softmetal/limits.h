// <metal_limits>
#pragma once
#include "traits.h"

// Outside of namespace metal: sources specialise it where they stand, under `using namespace metal`.
template <typename T>
struct _numeric_limits_impl {
    static constexpr bool is_specialized = false;
};

#define SM_LIMITS_INTEGER(T, bits) \
    template <> \
    struct _numeric_limits_impl<T> { \
        static constexpr bool is_specialized = true; \
        static constexpr bool is_signed = T(-1) < T(0); \
        static constexpr bool is_integer = true; \
        static constexpr bool is_exact = true; \
        static constexpr bool has_infinity = false; \
        static constexpr bool has_quiet_NaN = false; \
        static constexpr bool is_bounded = true; \
        static constexpr bool is_modulo = !is_signed; \
        static constexpr int radix = 2; \
        static constexpr int digits = bits - is_signed; \
        static constexpr int digits10 = digits * 3 / 10; \
        SM_INLINE static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); } \
        SM_INLINE static constexpr T max() { return T(~0ul >> (64 - digits)); } \
        SM_INLINE static constexpr T lowest() { return min(); } \
        SM_INLINE static constexpr T epsilon() { return 0; } \
        SM_INLINE static constexpr T infinity() { return 0; } \
        SM_INLINE static constexpr T quiet_NaN() { return 0; } \
    };
SM_LIMITS_INTEGER(char, 8)
SM_LIMITS_INTEGER(uchar, 8)
SM_LIMITS_INTEGER(short, 16)
SM_LIMITS_INTEGER(ushort, 16)
SM_LIMITS_INTEGER(int, 32)
SM_LIMITS_INTEGER(uint, 32)
SM_LIMITS_INTEGER(long, 64)
SM_LIMITS_INTEGER(ulong, 64)

template <>
struct _numeric_limits_impl<signed char> : _numeric_limits_impl<char> {};

template <>
struct _numeric_limits_impl<bool> {
    static constexpr bool is_specialized = true;
    static constexpr bool is_signed = false;
    static constexpr bool is_integer = true;
    static constexpr int digits = 1;
    SM_INLINE static constexpr bool min() { return false; }
    SM_INLINE static constexpr bool max() { return true; }
    SM_INLINE static constexpr bool lowest() { return false; }
};

#define SM_LIMITS_FLOAT(T, mantissa, decimal, exponent, greatest, least, step, tiniest) \
    template <> \
    struct _numeric_limits_impl<T> { \
        static constexpr bool is_specialized = true; \
        static constexpr bool is_signed = true; \
        static constexpr bool is_integer = false; \
        static constexpr bool is_exact = false; \
        static constexpr bool has_infinity = true; \
        static constexpr bool has_quiet_NaN = true; \
        static constexpr bool is_bounded = true; \
        static constexpr bool is_modulo = false; \
        static constexpr int radix = 2; \
        static constexpr int digits = mantissa; \
        static constexpr int digits10 = decimal; \
        static constexpr int max_exponent = exponent; \
        static constexpr int min_exponent = 3 - exponent; \
        SM_INLINE static constexpr T min() { return (T)least; } \
        SM_INLINE static constexpr T max() { return (T)greatest; } \
        SM_INLINE static constexpr T lowest() { return (T)-greatest; } \
        SM_INLINE static constexpr T epsilon() { return (T)step; } \
        SM_INLINE static constexpr T round_error() { return (T)0.5f; } \
        SM_INLINE static constexpr T infinity() { return (T)__builtin_inff(); } \
        SM_INLINE static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); } \
        SM_INLINE static constexpr T signaling_NaN() { return (T)__builtin_nansf(""); } \
        SM_INLINE static constexpr T denorm_min() { return (T)tiniest; } \
    };
SM_LIMITS_FLOAT(float, 24, 6, 128, 0x1.fffffep127f, 0x1p-126f, 0x1p-23f, 0x1p-149f)
SM_LIMITS_FLOAT(half, 11, 3, 16, 0x1.ffcp15f, 0x1p-14f, 0x1p-10f, 0x1p-24f)
SM_LIMITS_FLOAT(bfloat, 8, 2, 128, 0x1.fep127f, 0x1p-126f, 0x1p-7f, 0x1p-133f)

template <typename T>
struct _fp_encoding_traits;
template <>
struct _fp_encoding_traits<float> {
    typedef uint encoding_type;
    static constexpr uint sign_mask = 0x80000000u;
    static constexpr uint inf_mask = 0x7f800000u;
};
template <>
struct _fp_encoding_traits<half> {
    typedef ushort encoding_type;
    static constexpr ushort sign_mask = 0x8000;
    static constexpr ushort inf_mask = 0x7c00;
};

namespace metal {

using ::_fp_encoding_traits;
using ::_numeric_limits_impl;

template <typename T>
struct numeric_limits : _numeric_limits_impl<T> {};
template <typename T>
struct numeric_limits<const T> : numeric_limits<T> {};
template <typename T>
struct numeric_limits<volatile T> : numeric_limits<T> {};

} // namespace metal
