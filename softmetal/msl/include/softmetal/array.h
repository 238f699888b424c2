// <metal_array>, and `uniform`, which only promises that all threads have one value.
#pragma once
#include "traits.h"

namespace metal {

template <typename T, size_t N>
struct array {
    T __elems[N];

    typedef T value_type;
    SM_INLINE constexpr size_t size() const { return N; }
    SM_INLINE constexpr bool empty() const { return N == 0; }
    SM_INLINE constexpr T& operator[](size_t i) { return __elems[softmetal::checked(i, N)]; }
    SM_INLINE constexpr const T& operator[](size_t i) const { return __elems[softmetal::checked(i, N)]; }
    SM_INLINE constexpr T& front() { return __elems[0]; }
    SM_INLINE constexpr const T& front() const { return __elems[0]; }
    SM_INLINE constexpr T& back() { return __elems[N - 1]; }
    SM_INLINE constexpr const T& back() const { return __elems[N - 1]; }
    SM_INLINE constexpr T* data() { return __elems; }
    SM_INLINE constexpr const T* data() const { return __elems; }
    SM_INLINE constexpr T* begin() { return __elems; }
    SM_INLINE constexpr const T* begin() const { return __elems; }
    SM_INLINE constexpr T* end() { return __elems + N; }
    SM_INLINE constexpr const T* end() const { return __elems + N; }
};

template <typename T>
struct uniform {
    T value;
    uniform() = default;
    SM_INLINE constexpr uniform(T v) : value(v) {}
    SM_INLINE constexpr operator T() const { return value; }
};
template <typename T>
SM_INLINE constexpr uniform<T> make_uniform(T value) {
    return uniform<T>(value);
}

} // namespace metal
