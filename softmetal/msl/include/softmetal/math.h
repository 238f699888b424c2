// <metal_math>: floating-point functions. Metal declares them for float and half, and in `fast` and `precise` for float
// only; bfloat becomes float, and an integer is as ambiguous here as there. There is no erf, expm1, log1p, lgamma ...
#pragma once
#include "vec_ops.h"

namespace softmetal {

// One implementation for float; half and vectors go through it.
namespace single {

#define SM_LIBM_1(name) \
    SM_INLINE float name(float x) { return __builtin_##name##f(x); }
SM_LIBM_1(acos) SM_LIBM_1(acosh) SM_LIBM_1(asin) SM_LIBM_1(asinh) SM_LIBM_1(atan) SM_LIBM_1(atanh) SM_LIBM_1(ceil)
SM_LIBM_1(cos) SM_LIBM_1(cosh) SM_LIBM_1(exp) SM_LIBM_1(exp2) SM_LIBM_1(exp10) SM_LIBM_1(fabs) SM_LIBM_1(floor)
SM_LIBM_1(log) SM_LIBM_1(log2) SM_LIBM_1(log10) SM_LIBM_1(rint) SM_LIBM_1(round) SM_LIBM_1(sin) SM_LIBM_1(sinh)
SM_LIBM_1(sqrt) SM_LIBM_1(tan) SM_LIBM_1(tanh) SM_LIBM_1(trunc)
#define SM_LIBM_2(name) \
    SM_INLINE float name(float x, float y) { return __builtin_##name##f(x, y); }
SM_LIBM_2(atan2) SM_LIBM_2(copysign) SM_LIBM_2(fdim) SM_LIBM_2(fmod) SM_LIBM_2(pow)

SM_INLINE float abs(float x) { return __builtin_fabsf(x); }
// The other one if one is NaN.
SM_INLINE constexpr float max(float x, float y) { return x != x ? y : x < y ? y : x; }
SM_INLINE constexpr float min(float x, float y) { return x != x ? y : y < x ? y : x; }
SM_INLINE constexpr float fmax(float x, float y) { return max(x, y); }
SM_INLINE constexpr float fmin(float x, float y) { return min(x, y); }
SM_INLINE float divide(float x, float y) { return x / y; }
SM_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
SM_INLINE float powr(float x, float y) { return x < 0.0f ? __builtin_nanf("") : __builtin_powf(x, y); }
SM_INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
SM_INLINE float fract(float x) { return min(x - __builtin_floorf(x), 0x1.fffffep-1f); }
SM_INLINE float fmax3(float x, float y, float z) { return max(x, max(y, z)); }
SM_INLINE float fmin3(float x, float y, float z) { return min(x, min(y, z)); }
SM_INLINE float fmedian3(float x, float y, float z) { return max(min(x, y), min(max(x, y), z)); }
SM_INLINE float max3(float x, float y, float z) { return fmax3(x, y, z); }
SM_INLINE float min3(float x, float y, float z) { return fmin3(x, y, z); }
SM_INLINE float median3(float x, float y, float z) { return fmedian3(x, y, z); }
SM_INLINE float clamp(float x, float low, float high) { return min(max(x, low), high); }
SM_INLINE float saturate(float x) { return clamp(x, 0.0f, 1.0f); }

// The argument is reduced first: these are exact at multiples of one half.
SM_INLINE float half_turns(float x) { return x - 2.0f * __builtin_rintf(0.5f * x); }
constexpr float pi = 3.14159265358979323846f;
SM_INLINE float sinpi(float x) {
    float r = half_turns(x);
    r = __builtin_fabsf(r) > 0.5f ? __builtin_copysignf(1.0f, r) - r : r;
    return __builtin_sinf(pi * r);
}
SM_INLINE float cospi(float x) {
    float r = __builtin_fabsf(half_turns(x));
    return __builtin_sinf(pi * (0.5f - r));
}
SM_INLINE float tanpi(float x) { return sinpi(x) / cospi(x); }

// By the formula of the specification, which overflows to NaN for x above 44.
SM_INLINE float fast_tanh(float x) {
    float t = __builtin_expf(2.0f * x);
    return (t - 1.0f) / (t + 1.0f);
}

} // namespace single

} // namespace softmetal

namespace metal {

#define SM_EACH_1(name) [](auto x) __attribute__((always_inline, nodebug)) { return name(x); }
#define SM_EACH_2(name) [](auto x, auto y) __attribute__((always_inline, nodebug)) { return name(x, y); }
#define SM_EACH_3(name) [](auto x, auto y, auto z) __attribute__((always_inline, nodebug)) { return name(x, y, z); }

// For float alone.
#define SM_FLOAT_1(name, impl) \
    SM_INLINE float name(float x) { return softmetal::single::impl(x); } \
    template <int N> \
    SM_INLINE vec<float, N> name(vec<float, N> v) { \
        return softmetal::map(SM_EACH_1(name), v); \
    }
#define SM_FLOAT_2(name, impl) \
    SM_INLINE float name(float x, float y) { return softmetal::single::impl(x, y); } \
    template <typename A, typename B, typename V = softmetal::meet_t<A, B>, \
        softmetal::require<is_same_v<typename softmetal::VecOf<V>::element, float>> = 0> \
    SM_INLINE V name(SM_IN(A) a, SM_IN(B) b) { \
        return softmetal::map(SM_EACH_2(name), softmetal::widen<V>(a), softmetal::widen<V>(b)); \
    }
#define SM_FLOAT_3(name, impl) \
    SM_INLINE float name(float x, float y, float z) { return softmetal::single::impl(x, y, z); } \
    template <typename A, typename B, typename C, typename V = softmetal::meet_t<A, B, C>, \
        softmetal::require<is_same_v<typename softmetal::VecOf<V>::element, float>> = 0> \
    SM_INLINE V name(SM_IN(A) a, SM_IN(B) b, SM_IN(C) c) { \
        return softmetal::map( \
            SM_EACH_3(name), softmetal::widen<V>(a), softmetal::widen<V>(b), softmetal::widen<V>(c)); \
    }

// For half, and for bfloat as a template, so that a source may define its own.
#define SM_HALF_1(name, impl) \
    SM_INLINE half name(half x) { return half(softmetal::single::impl(float(x))); } \
    template <typename T, softmetal::require<softmetal::is_bfloat<T>> = 0> \
    SM_INLINE float name(T x) { return name(float(x)); } \
    template <int N> \
    SM_INLINE vec<half, N> name(vec<half, N> v) { \
        return softmetal::map(SM_EACH_1(name), v); \
    }
#define SM_HALF_2(name, impl) \
    SM_INLINE half name(half x, half y) { return half(softmetal::single::impl(float(x), float(y))); } \
    template <typename T, softmetal::require<softmetal::is_bfloat<T>> = 0> \
    SM_INLINE float name(T x, T y) { return name(float(x), float(y)); } \
    template <typename A, typename B, typename V = softmetal::meet_t<A, B>, \
        softmetal::require<is_same_v<typename softmetal::VecOf<V>::element, half>> = 0, typename = void> \
    SM_INLINE V name(SM_IN(A) a, SM_IN(B) b) { \
        return softmetal::map(SM_EACH_2(name), softmetal::widen<V>(a), softmetal::widen<V>(b)); \
    }
#define SM_HALF_3(name, impl) \
    SM_INLINE half name(half x, half y, half z) { \
        return half(softmetal::single::impl(float(x), float(y), float(z))); \
    } \
    template <typename T, softmetal::require<softmetal::is_bfloat<T>> = 0> \
    SM_INLINE float name(T x, T y, T z) { return name(float(x), float(y), float(z)); } \
    template <typename A, typename B, typename C, typename V = softmetal::meet_t<A, B, C>, \
        softmetal::require<is_same_v<typename softmetal::VecOf<V>::element, half>> = 0, typename = void> \
    SM_INLINE V name(SM_IN(A) a, SM_IN(B) b, SM_IN(C) c) { \
        return softmetal::map( \
            SM_EACH_3(name), softmetal::widen<V>(a), softmetal::widen<V>(b), softmetal::widen<V>(c)); \
    }

// All but tanh, which differs.
#define SM_FOR_MATH(X1, X2, X3) \
    X1(acos) X1(acosh) X1(asin) X1(asinh) X1(atan) X1(atanh) X1(ceil) X1(cos) X1(cosh) X1(cospi) X1(exp) X1(exp2) X1(exp10) \
    X1(fabs) X1(abs) X1(floor) X1(fract) X1(log) X1(log2) X1(log10) X1(rint) X1(round) X1(rsqrt) X1(saturate) X1(sin) \
    X1(sinh) X1(sinpi) X1(sqrt) X1(tan) X1(tanpi) X1(trunc) \
    X2(atan2) X2(copysign) X2(divide) X2(fdim) X2(fmax) X2(fmin) X2(fmod) X2(max) X2(min) X2(pow) X2(powr) \
    X3(clamp) X3(fma) X3(fmax3) X3(fmin3) X3(fmedian3) X3(max3) X3(min3) X3(median3)
#define SM_MATH_FLOAT_1(name) SM_FLOAT_1(name, name)
#define SM_MATH_FLOAT_2(name) SM_FLOAT_2(name, name)
#define SM_MATH_FLOAT_3(name) SM_FLOAT_3(name, name)
#define SM_MATH_HALF_1(name) SM_HALF_1(name, name)
#define SM_MATH_HALF_2(name) SM_HALF_2(name, name)
#define SM_MATH_HALF_3(name) SM_HALF_3(name, name)

#define SM_MATH_FLOAT \
    SM_FOR_MATH(SM_MATH_FLOAT_1, SM_MATH_FLOAT_2, SM_MATH_FLOAT_3) \
    SM_INLINE float sincos(float x, SM_THREAD float& c) { \
        c = cos(x); \
        return sin(x); \
    } \
    template <int N> \
    SM_INLINE vec<float, N> sincos(vec<float, N> x, vec<float, N>& c) { \
        for (int i = 0; i < N; i++) \
            x[i] = sincos(x[i], c[i]); \
        return x; \
    } \
    SM_INLINE float modf(float x, SM_THREAD float& whole) { \
        whole = trunc(x); \
        return __builtin_isinf(x) ? __builtin_copysignf(0.0f, x) : __builtin_copysignf(x - whole, x); \
    } \
    template <int N> \
    SM_INLINE vec<float, N> modf(vec<float, N> x, vec<float, N>& whole) { \
        for (int i = 0; i < N; i++) \
            x[i] = modf(x[i], whole[i]); \
        return x; \
    } \
    SM_INLINE float frexp(float x, SM_THREAD int& exponent) { \
        exponent = 0; \
        return __builtin_frexpf(x, &exponent); \
    } \
    SM_INLINE float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); } \
    template <int N> \
    SM_INLINE vec<float, N> ldexp(vec<float, N> x, vec<int, N> exponent) { \
        for (int i = 0; i < N; i++) \
            x[i] = ldexp(x[i], exponent[i]); \
        return x; \
    } \
    SM_INLINE int ilogb(float x) { return __builtin_ilogbf(x); } \
    SM_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }

namespace precise {
SM_MATH_FLOAT
SM_FLOAT_1(tanh, tanh)
} // namespace precise

namespace fast {
SM_MATH_FLOAT
SM_FLOAT_1(tanh, fast_tanh)
} // namespace fast

// Metal compiles with its fast functions unless told otherwise.
SM_MATH_FLOAT
#if SOFTMETAL_PRECISE_FUNCTIONS
SM_FLOAT_1(tanh, tanh)
#else
SM_FLOAT_1(tanh, fast_tanh)
#endif

SM_FOR_MATH(SM_MATH_HALF_1, SM_MATH_HALF_2, SM_MATH_HALF_3)
SM_HALF_1(tanh, tanh)

SM_INLINE half sincos(half x, SM_THREAD half& c) {
    c = cos(x);
    return sin(x);
}
template <int N>
SM_INLINE vec<half, N> sincos(vec<half, N> x, vec<half, N>& c) {
    c = cos(x);
    return sin(x);
}
SM_INLINE half modf(half x, SM_THREAD half& whole) {
    float w;
    half r = half(modf(float(x), w));
    whole = half(w);
    return r;
}
template <int N>
SM_INLINE vec<half, N> modf(vec<half, N> x, vec<half, N>& whole) {
    for (int i = 0; i < N; i++)
        x[i] = modf(x[i], whole[i]);
    return x;
}
SM_INLINE half frexp(half x, SM_THREAD int& exponent) { return half(frexp(float(x), exponent)); }
SM_INLINE half ldexp(half x, int exponent) { return half(ldexp(float(x), exponent)); }
SM_INLINE int ilogb(half x) { return ilogb(float(x)); }

template <int N>
SM_INLINE vec<half, N> ldexp(vec<half, N> x, vec<int, N> exponent) {
    for (int i = 0; i < N; i++)
        x[i] = ldexp(x[i], exponent[i]);
    return x;
}
template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0>
SM_INLINE vec<T, N> frexp(vec<T, N> x, vec<int, N>& exponent) {
    for (int i = 0; i < N; i++)
        x[i] = frexp(x[i], exponent[i]);
    return x;
}
template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0>
SM_INLINE vec<int, N> ilogb(vec<T, N> x) {
    vec<int, N> r(0);
    for (int i = 0; i < N; i++)
        r[i] = ilogb(x[i]);
    return r;
}

} // namespace metal
