// Scalar types, and the conversions between them that clang lacks.
#pragma once
#include "runtime.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;
typedef ulong uintptr_t;
typedef long intptr_t;
#ifndef half
typedef _Float16 half;
#endif
typedef __bf16 bfloat;

static_assert(char(-1) < 0, "char is signed in Metal: compile with -fsigned-char");
static_assert(sizeof(long) == 8 && sizeof(half) == 2 && sizeof(bfloat) == 2 && sizeof(bool) == 1);

// Rounds to nearest even. Clang calls this, and older run-time libraries do not have it.
extern "C" SM_QUIET __attribute__((used, visibility("hidden"))) bfloat __truncsfbf2(float value) {
    uint bits = __builtin_bit_cast(uint, value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return __builtin_bit_cast(bfloat, ushort(bits >> 16 | 0x40u));
    return __builtin_bit_cast(bfloat, ushort((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16));
}

namespace softmetal {

template <typename A, typename B>
struct Same {
    static constexpr bool value = false;
};
template <typename A>
struct Same<A, A> {
    static constexpr bool value = true;
};

template <typename T>
struct Bare {
    typedef T type;
};
template <typename T>
struct Bare<T&> : Bare<T> {};
template <typename T>
struct Bare<T&&> : Bare<T> {};
template <typename T>
struct Bare<const T> : Bare<T> {};
template <typename T>
struct Bare<volatile T> : Bare<T> {};
template <typename T>
struct Bare<const volatile T> : Bare<T> {};
template <typename T>
using bare_t = typename Bare<T>::type;

template <typename To, typename From>
inline constexpr bool between_16_bit_floats =
    (Same<To, half>::value && Same<From, bfloat>::value) || (Same<To, bfloat>::value && Same<From, half>::value);

// `static_cast<To>(from)`, also between half and bfloat, which clang refuses.
template <typename To, typename From>
SM_INLINE constexpr To cast(SM_FORWARD(From) from) {
    if constexpr (between_16_bit_floats<bare_t<To>, bare_t<From>>)
        return static_cast<To>(static_cast<float>(from));
    else
        return static_cast<To>(static_cast<From&&>(from));
}

// A float converted to half as an operand: the operation rounds, once. A constant is rounded by the compiler before.
struct Unrounded {
    float value;

    SM_INLINE explicit constexpr Unrounded(float x) : value(__builtin_constant_p(x) ? static_cast<half>(x) : x) {}
    SM_INLINE constexpr half rounded() const { return static_cast<half>(value); }
};
SM_INLINE constexpr half operator+(Unrounded x) { return x.rounded(); }
SM_INLINE constexpr half operator-(Unrounded x) { return -x.rounded(); }
#define SM_UNROUNDED(op) \
    SM_INLINE constexpr half operator op(Unrounded x, Unrounded y) { return static_cast<half>(x.value op y.value); } \
    template <typename A> \
    SM_INLINE constexpr auto operator op(Unrounded x, const A& y) { \
        if constexpr (Same<A, half>::value) \
            return static_cast<half>(x.value op y); \
        else \
            return x.rounded() op y; \
    } \
    template <typename A> \
    SM_INLINE constexpr auto operator op(const A& x, Unrounded y) { \
        if constexpr (Same<A, half>::value) \
            return static_cast<half>(x op y.value); \
        else \
            return x op y.rounded(); \
    }
SM_UNROUNDED(+) SM_UNROUNDED(-) SM_UNROUNDED(*) SM_UNROUNDED(/)

// `To(from)` as an operand of an arithmetic operator.
template <typename To, typename From>
SM_INLINE constexpr auto operand(From&& from) {
    if constexpr (Same<To, half>::value && Same<bare_t<From>, float>::value)
        return Unrounded(from);
    else if constexpr (between_16_bit_floats<To, bare_t<From>>)
        return static_cast<To>(static_cast<float>(from));
    else
        return To(static_cast<From&&>(from));
}
template <typename To, typename... From>
SM_INLINE constexpr To operand(From&&... from) {
    return To(static_cast<From&&>(from)...);
}

} // namespace softmetal
