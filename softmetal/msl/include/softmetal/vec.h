// vec<T, N>: a class, since clang's own vectors neither construct nor convert as Metal's do.
#pragma once
#include "traits.h"

namespace metal {

template <typename T, int N>
struct vec;
template <typename T, int N>
struct packed_vec;

} // namespace metal

namespace softmetal {

using metal::packed_vec;
using metal::vec;

template <typename T, int N, int... I>
struct SwizzleRef;

// The vector type that an operand stands for; `void` for anything else.
template <typename A>
struct VecOf {
    typedef void type;
    static constexpr int size = 0;
};
template <typename T, int N>
struct VecOf<vec<T, N>> {
    typedef vec<T, N> type;
    typedef T element;
    static constexpr int size = N;
};
template <typename T, int N>
struct VecOf<packed_vec<T, N>> : VecOf<vec<T, N>> {};
template <typename T, int N, int... I>
struct VecOf<SwizzleRef<T, N, I...>> : VecOf<vec<T, sizeof...(I)>> {};
template <typename A>
using vec_of_t = typename VecOf<A>::type;
template <typename T>
struct ElementOf {
    typedef T type;
};
template <typename T, int N>
struct ElementOf<vec<T, N>> {
    typedef T type;
};
template <typename T>
using element_t = typename ElementOf<T>::type;
template <typename A>
inline constexpr bool is_vec_like = VecOf<A>::size > 0;

// A scalar operand widens to a vector, except that a floating-point number doesn't become an integer.
template <typename S, typename V>
inline constexpr bool splats = metal::is_arithmetic<S>::value &&
    (metal::is_floating_point<typename VecOf<V>::element>::value || metal::is_integral<S>::value);

template <typename... A>
struct FirstVec {
    typedef void type;
};
template <typename A, typename... Rest>
struct FirstVec<A, Rest...>
    : metal::conditional_t<is_vec_like<A>, metal::enable_if<true, vec_of_t<A>>, FirstVec<Rest...>> {};

template <typename A, typename V>
constexpr bool joins() {
    if constexpr (is_vec_like<A>)
        return Same<vec_of_t<A>, V>::value;
    else if constexpr (is_vec_like<V>)
        return splats<A, V>;
    else
        return false;
}

// The vector type in which vectors and scalars meet: all vectors are of one type, or it does not exist.
template <typename... A>
using meet_t = typename metal::enable_if<
    (joins<A, typename FirstVec<A...>::type>() && ...), typename FirstVec<A...>::type>::type;

// How many components a constructor argument brings; vectors must have the element type of the whole.
template <typename T, typename A>
inline constexpr int components = metal::is_arithmetic<A>::value || metal::is_enum<A>::value ? 1
    : VecOf<A>::size > 0 && Same<vec_of_t<A>, vec<T, (VecOf<A>::size > 0 ? VecOf<A>::size : 2)>>::value ? VecOf<A>::size
    : 1000;
template <typename T, int N, typename... A>
inline constexpr bool fills = sizeof...(A) > 1 && (components<T, A> + ... + 0) == N;

template <int I, typename V>
SM_INLINE constexpr auto& member(V& v) {
    if constexpr (I == 0)
        return v.x;
    else if constexpr (I == 1)
        return v.y;
    else if constexpr (I == 2)
        return v.z;
    else
        return v.w;
}

// Two or four elements as the compiler's own vector, so that they are read and written in one access. It claims no more
// than 8 bytes of alignment: the runtime sees from its size that an access is misaligned, but the processor doesn't trap.
template <typename T>
struct Word {
    typedef T type;
};
template <>
struct Word<bool> {
    typedef uchar type;
};
template <>
struct Word<bfloat> {
    typedef ushort type;
};
template <typename T, int N>
struct Words {
    static constexpr int size = N == 3 ? 2 : N;
    static constexpr int align = size * sizeof(T) < 8 ? size * sizeof(T) : 8;
    typedef typename Word<T>::type natural __attribute__((ext_vector_type(size)));
    typedef natural type __attribute__((aligned(align), may_alias));
};
template <typename T, int N>
SM_INLINE const typename Words<T, N>::type& words(const vec<T, N>& v) {
    return *reinterpret_cast<const typename Words<T, N>::type*>(&v);
}
template <typename T, int N>
SM_INLINE typename Words<T, N>::type& words(vec<T, N>& v) {
    return *reinterpret_cast<typename Words<T, N>::type*>(&v);
}

// Component I of a vector that is read whole.
template <int I, typename T, int N>
SM_INLINE constexpr T loaded(const vec<T, N>& v) {
    if (__builtin_is_constant_evaluated())
        return member<I>(v);
    if constexpr (N == 3 && I == 2)
        return v.z;
    else if constexpr (Same<T, bool>::value)
        return words(v)[I] != 0;
    else
        return __builtin_bit_cast(T, typename Word<T>::type(words(v)[I]));
}

// Component i.
template <int N, typename V>
SM_INLINE constexpr auto& member_at(V& v, size_t i) {
    if (!__builtin_is_constant_evaluated())
        return v.e[checked(i, N)];
    if constexpr (N > 3)
        if (i == 3)
            return v.w;
    if constexpr (N > 2)
        if (i == 2)
            return v.z;
    return i == 1 ? v.y : v.x;
}

// Component i of constructor arguments.
template <typename T>
SM_INLINE constexpr T component(size_t) {
    return T();
}
template <typename T, typename A, typename... Rest>
SM_INLINE constexpr T component(size_t i, SM_IN(A) first, SM_IN(Rest)... rest) {
    if constexpr (is_vec_like<A>) {
        if (i < VecOf<A>::size)
            return vec_of_t<A>(first)[i];
        return component<T>(i - VecOf<A>::size, rest...);
    } else {
        if (i == 0)
            return cast<T>(first);
        return component<T>(i - 1, rest...);
    }
}

} // namespace softmetal

namespace metal {

#define SM_VEC_MEMBERS(N) \
    vec() = default; \
    SM_INLINE constexpr vec& operator=(const vec& v) { \
        if (__builtin_is_constant_evaluated()) { \
            for (size_t i = 0; i < N; i++) \
                (*this)[i] = v[i]; \
        } else { \
            softmetal::words(*this) = softmetal::words(v); \
            if constexpr (N == 3) \
                e[N - 1] = v.e[N - 1]; \
        } \
        return *this; \
    } \
    SM_INLINE constexpr vec(const packed_vec<T, N>& v); \
    template <int M, int... I> \
    SM_INLINE constexpr vec(const softmetal::SwizzleRef<T, M, I...>& v) : vec(v.value()) {} \
    template <typename U> \
    SM_INLINE explicit constexpr vec(const packed_vec<U, N>& v) : vec(vec<U, N>(v)) {} \
    SM_INLINE constexpr T& operator[](size_t i) { return softmetal::member_at<N>(*this, i); } \
    SM_INLINE constexpr const T& operator[](size_t i) const { return softmetal::member_at<N>(*this, i); } \
    template <int... I> \
    SM_INLINE constexpr vec<T, sizeof...(I)> get() const { \
        return vec<T, sizeof...(I)>(softmetal::member<I>(*this)...); \
    } \
    template <int... I> \
    SM_INLINE constexpr softmetal::SwizzleRef<T, N, I...> ref() { \
        return softmetal::SwizzleRef<T, N, I...>(*this); \
    } \
    SM_INLINE constexpr vec& operator++() { return *this = *this + T(1); } \
    SM_INLINE constexpr vec& operator--() { return *this = *this - T(1); } \
    SM_INLINE constexpr vec operator++(int) { vec old = *this; ++*this; return old; } \
    SM_INLINE constexpr vec operator--(int) { vec old = *this; --*this; return old; } \
    SM_VEC_ASSIGN(+) SM_VEC_ASSIGN(-) SM_VEC_ASSIGN(*) SM_VEC_ASSIGN(/) SM_VEC_ASSIGN(%) \
    SM_VEC_ASSIGN(&) SM_VEC_ASSIGN(|) SM_VEC_ASSIGN(^) SM_VEC_ASSIGN(<<) SM_VEC_ASSIGN(>>)
#define SM_VEC_ASSIGN(op) \
    template <typename B> \
    SM_INLINE constexpr auto operator op##=(SM_IN(B) b)->decltype(*this = *this op b) { return *this = *this op b; }

template <typename T>
struct alignas(2 * sizeof(T)) __attribute__((trivial_abi)) vec<T, 2> {
    union {
        struct { T x, y; };
        struct { T r, g; };
        T e[2];
    };
    SM_INLINE constexpr vec(const vec& v) : x(softmetal::loaded<0>(v)), y(softmetal::loaded<1>(v)) {}
    SM_INLINE constexpr vec(T s) : x(s), y(s) {}
    template <typename A, typename B, softmetal::require<softmetal::fills<T, 2, A, B>> = 0>
    SM_INLINE constexpr vec(SM_IN(A) a, SM_IN(B) b) : x(softmetal::cast<T>(a)), y(softmetal::cast<T>(b)) {}
    template <typename U, softmetal::require<!softmetal::Same<T, U>::value> = 0>
    SM_INLINE explicit constexpr vec(const vec<U, 2>& v) : x(softmetal::cast<T>(softmetal::loaded<0>(v))), y(softmetal::cast<T>(softmetal::loaded<1>(v))) {}
    SM_VEC_MEMBERS(2)
};

template <typename T>
struct alignas(4 * sizeof(T)) __attribute__((trivial_abi)) vec<T, 3> {
    union {
        struct { T x, y, z; };
        struct { T r, g, b; };
        T e[3];
    };
    SM_INLINE constexpr vec(const vec& v) : x(softmetal::loaded<0>(v)), y(softmetal::loaded<1>(v)), z(softmetal::loaded<2>(v)) {}
    SM_INLINE constexpr vec(T s) : x(s), y(s), z(s) {}
    template <typename... A, softmetal::require<softmetal::fills<T, 3, A...>> = 0>
    SM_INLINE constexpr vec(SM_IN(A)... a)
        : x(softmetal::component<T>(0, a...)), y(softmetal::component<T>(1, a...)), z(softmetal::component<T>(2, a...)) {}
    template <typename U, softmetal::require<!softmetal::Same<T, U>::value> = 0>
    SM_INLINE explicit constexpr vec(const vec<U, 3>& v)
        : x(softmetal::cast<T>(softmetal::loaded<0>(v))), y(softmetal::cast<T>(softmetal::loaded<1>(v))), z(softmetal::cast<T>(softmetal::loaded<2>(v))) {}
    SM_VEC_MEMBERS(3)
};

template <typename T>
struct alignas(4 * sizeof(T)) __attribute__((trivial_abi)) vec<T, 4> {
    union {
        struct { T x, y, z, w; };
        struct { T r, g, b, a; };
        T e[4];
    };
    SM_INLINE constexpr vec(const vec& v) : x(softmetal::loaded<0>(v)), y(softmetal::loaded<1>(v)), z(softmetal::loaded<2>(v)), w(softmetal::loaded<3>(v)) {}
    SM_INLINE constexpr vec(T s) : x(s), y(s), z(s), w(s) {}
    template <typename... A, softmetal::require<softmetal::fills<T, 4, A...>> = 0>
    SM_INLINE constexpr vec(SM_IN(A)... a)
        : x(softmetal::component<T>(0, a...)), y(softmetal::component<T>(1, a...)),
          z(softmetal::component<T>(2, a...)), w(softmetal::component<T>(3, a...)) {}
    template <typename U, softmetal::require<!softmetal::Same<T, U>::value> = 0>
    SM_INLINE explicit constexpr vec(const vec<U, 4>& v)
        : x(softmetal::cast<T>(softmetal::loaded<0>(v))), y(softmetal::cast<T>(softmetal::loaded<1>(v))), z(softmetal::cast<T>(softmetal::loaded<2>(v))), w(softmetal::cast<T>(softmetal::loaded<3>(v))) {}
    SM_VEC_MEMBERS(4)
};

} // namespace metal
