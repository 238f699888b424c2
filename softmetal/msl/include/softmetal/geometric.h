// <metal_geometric>: for vectors of float and half; in `fast` and `precise` for float.
#pragma once
#include "common.h"

namespace softmetal {
namespace single {

// In the element type, from x to w.
template <typename T, int N>
SM_INLINE constexpr T dot(const vec<T, N>& a, const vec<T, N>& b) {
    T sum = T(a[0] * b[0]);
    for (int i = 1; i < N; i++)
        sum = T(sum + a[i] * b[i]);
    return sum;
}

} // namespace single
} // namespace softmetal

namespace metal {

#define SM_GEOMETRIC(condition) \
    template <typename T, int N, softmetal::require<condition> = 0> \
    SM_INLINE T dot(vec<T, N> a, vec<T, N> b) { return softmetal::single::dot(a, b); } \
    template <typename T, int N, softmetal::require<condition> = 0> \
    SM_INLINE T length_squared(vec<T, N> v) { return softmetal::single::dot(v, v); } \
    template <typename T, int N, softmetal::require<condition> = 0> \
    SM_INLINE T length(vec<T, N> v) { return T(__builtin_sqrtf(float(softmetal::single::dot(v, v)))); } \
    template <typename T, int N, softmetal::require<condition> = 0> \
    SM_INLINE T distance_squared(vec<T, N> a, vec<T, N> b) { return softmetal::single::dot(a - b, a - b); } \
    template <typename T, int N, softmetal::require<condition> = 0> \
    SM_INLINE T distance(vec<T, N> a, vec<T, N> b) { return T(__builtin_sqrtf(float(softmetal::single::dot(a - b, a - b)))); } \
    template <typename T, int N, softmetal::require<condition> = 0> \
    SM_INLINE vec<T, N> normalize(vec<T, N> v) { return v * T(1.0f / __builtin_sqrtf(float(softmetal::single::dot(v, v)))); }

SM_GEOMETRIC(softmetal::is_math<T>)
namespace fast {
SM_GEOMETRIC((is_same_v<T, float>))
}
namespace precise {
SM_GEOMETRIC((is_same_v<T, float>))
}

template <typename T, softmetal::require<softmetal::is_math<T>> = 0>
SM_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
    return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0>
SM_INLINE vec<T, N> faceforward(vec<T, N> n, vec<T, N> incident, vec<T, N> reference) {
    return dot(reference, incident) < T(0) ? n : -n;
}
template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0>
SM_INLINE vec<T, N> reflect(vec<T, N> incident, vec<T, N> n) {
    return incident - n * T(T(2) * dot(n, incident));
}
template <typename T, int N, softmetal::require<softmetal::is_math<T>> = 0>
SM_INLINE vec<T, N> refract(vec<T, N> incident, vec<T, N> n, T eta) {
    T cosine = dot(n, incident);
    T k = T(T(1) - eta * eta * T(T(1) - cosine * cosine));
    return k < T(0) ? vec<T, N>(T(0)) : incident * eta - n * T(eta * cosine + T(__builtin_sqrtf(float(k))));
}

} // namespace metal
