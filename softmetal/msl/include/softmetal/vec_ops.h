// Operators of vectors, swizzles that can be assigned to, packed vectors, and the names of all of them.
#pragma once
#include "vec.h"

namespace softmetal {

template <typename F, typename V>
SM_INLINE constexpr V map(F f, V v) {
    for (int i = 0; i < VecOf<V>::size; i++)
        v[i] = f(v[i]);
    return v;
}
template <typename F, typename V>
SM_INLINE constexpr V map(F f, V a, SM_IN(V) b) {
    for (int i = 0; i < VecOf<V>::size; i++)
        a[i] = f(a[i], b[i]);
    return a;
}
template <typename F, typename V>
SM_INLINE constexpr V map(F f, V a, SM_IN(V) b, SM_IN(V) c) {
    for (int i = 0; i < VecOf<V>::size; i++)
        a[i] = f(a[i], b[i], c[i]);
    return a;
}

template <typename V>
using bools_t = vec<bool, VecOf<V>::size>;

// A scalar meets the vector's element type first: half4 * float is a product of halves.
template <typename V, typename A>
SM_INLINE constexpr V widen(SM_IN(A) a) {
    if constexpr (is_vec_like<A>)
        return a;
    else
        return V(cast<typename VecOf<V>::element>(a));
}

// `v.xz` on the left of an assignment.
template <typename T, int N, int... I>
struct SwizzleRef {
    vec<T, N>& whole;
    typedef vec<T, sizeof...(I)> V;

    SM_INLINE explicit constexpr SwizzleRef(vec<T, N>& whole) : whole(whole) {}
    SwizzleRef(const SwizzleRef&) = default;
    SM_INLINE constexpr V value() const { return V(member<I>(whole)...); }
    SM_INLINE constexpr const SwizzleRef& operator=(const V& v) const {
        int i = 0;
        ((member<I>(whole) = v[i++]), ...);
        return *this;
    }
    SM_INLINE constexpr const SwizzleRef& operator=(const SwizzleRef& v) const { return *this = v.value(); }
#define SM_SWIZZLE_ASSIGN(op) \
    template <typename B> \
    SM_INLINE constexpr const SwizzleRef& operator op##=(SM_IN(B) b) const { return *this = value() op b; }
    SM_SWIZZLE_ASSIGN(+) SM_SWIZZLE_ASSIGN(-) SM_SWIZZLE_ASSIGN(*) SM_SWIZZLE_ASSIGN(/) SM_SWIZZLE_ASSIGN(%)
    SM_SWIZZLE_ASSIGN(&) SM_SWIZZLE_ASSIGN(|) SM_SWIZZLE_ASSIGN(^) SM_SWIZZLE_ASSIGN(<<) SM_SWIZZLE_ASSIGN(>>)
};

} // namespace softmetal

namespace metal {

#define SM_VEC_BINARY(op, condition) \
    template <typename A, typename B, typename V = softmetal::meet_t<A, B>, typename T = typename softmetal::VecOf<V>::element, \
        softmetal::require<condition> = 0> \
    SM_INLINE constexpr V operator op(SM_IN(A) a, SM_IN(B) b) { \
        return softmetal::map([](T x, T y) __attribute__((always_inline, nodebug)) { return T(x op y); }, \
            softmetal::widen<V>(a), softmetal::widen<V>(b)); \
    }
SM_VEC_BINARY(+, true)
SM_VEC_BINARY(-, true)
SM_VEC_BINARY(*, true)
SM_VEC_BINARY(/, true)
SM_VEC_BINARY(%, is_integral<T>::value)
SM_VEC_BINARY(&, is_integral<T>::value)
SM_VEC_BINARY(|, is_integral<T>::value)
SM_VEC_BINARY(^, is_integral<T>::value)
SM_VEC_BINARY(<<, is_integral<T>::value)
SM_VEC_BINARY(>>, is_integral<T>::value)

#define SM_VEC_COMPARE(op) \
    template <typename A, typename B, typename V = softmetal::meet_t<A, B>> \
    SM_INLINE constexpr softmetal::bools_t<V> operator op(SM_IN(A) a, SM_IN(B) b) { \
        V x = softmetal::widen<V>(a), y = softmetal::widen<V>(b); \
        softmetal::bools_t<V> r(false); \
        for (int i = 0; i < softmetal::VecOf<V>::size; i++) \
            r[i] = x[i] op y[i]; \
        return r; \
    }
SM_VEC_COMPARE(==)
SM_VEC_COMPARE(!=)
SM_VEC_COMPARE(<)
SM_VEC_COMPARE(>)
SM_VEC_COMPARE(<=)
SM_VEC_COMPARE(>=)
SM_VEC_COMPARE(&&)
SM_VEC_COMPARE(||)

#define SM_VEC_UNARY(op, condition) \
    template <typename A, typename V = softmetal::vec_of_t<A>, typename T = typename softmetal::VecOf<A>::element, \
        softmetal::require<condition> = 0> \
    SM_INLINE constexpr V operator op(SM_IN(A) a) { \
        return softmetal::map([](T x) __attribute__((always_inline, nodebug)) { return T(op x); }, V(a)); \
    }
SM_VEC_UNARY(+, true)
SM_VEC_UNARY(-, true)
SM_VEC_UNARY(~, is_integral<T>::value)

template <typename A, typename V = softmetal::vec_of_t<A>, softmetal::require<softmetal::is_vec_like<A>> = 0>
SM_INLINE constexpr softmetal::bools_t<V> operator!(SM_IN(A) a) {
    return V(a) == V(0);
}

// Elements without gaps, aligned as one element.
#define SM_PACKED_VEC(N, components, ...) \
    template <typename T> \
    struct packed_vec<T, N> { \
        union { \
            struct { T components; }; \
            T e[N]; \
        }; \
        packed_vec() = default; \
        SM_INLINE constexpr packed_vec(T s) : packed_vec(vec<T, N>(s)) {} \
        SM_INLINE constexpr packed_vec(const vec<T, N>& v) : __VA_ARGS__ {} \
        template <typename... A, softmetal::require<softmetal::fills<T, N, A...>> = 0> \
        SM_INLINE constexpr packed_vec(SM_IN(A)... a) : packed_vec(vec<T, N>(a...)) {} \
        template <typename U> \
        SM_INLINE explicit constexpr packed_vec(const vec<U, N>& v) : packed_vec(vec<T, N>(v)) {} \
        template <typename U> \
        SM_INLINE explicit constexpr packed_vec(const packed_vec<U, N>& v) : packed_vec(vec<T, N>(vec<U, N>(v))) {} \
        SM_INLINE constexpr T& operator[](size_t i) { return softmetal::member_at<N>(*this, i); } \
        SM_INLINE constexpr const T& operator[](size_t i) const { return softmetal::member_at<N>(*this, i); } \
        template <int... I> \
        SM_INLINE constexpr vec<T, sizeof...(I)> get() const { \
            return vec<T, sizeof...(I)>(softmetal::member<I>(*this)...); \
        } \
        SM_VEC_ASSIGN(+) SM_VEC_ASSIGN(-) SM_VEC_ASSIGN(*) SM_VEC_ASSIGN(/) SM_VEC_ASSIGN(%) \
        SM_VEC_ASSIGN(&) SM_VEC_ASSIGN(|) SM_VEC_ASSIGN(^) SM_VEC_ASSIGN(<<) SM_VEC_ASSIGN(>>) \
    }; \
    template <typename T> \
    SM_INLINE constexpr vec<T, N>::vec(const packed_vec<T, N>& v) : __VA_ARGS__ {}
#define SM_COMMA ,
SM_PACKED_VEC(2, x SM_COMMA y, x(v.x), y(v.y))
SM_PACKED_VEC(3, x SM_COMMA y SM_COMMA z, x(v.x), y(v.y), z(v.z))
SM_PACKED_VEC(4, x SM_COMMA y SM_COMMA z SM_COMMA w, x(v.x), y(v.y), z(v.z), w(v.w))

// The number of components, 0 for a scalar.
template <typename T>
struct vec_elements : integral_constant<uint, 0> {};
template <typename T, int N>
struct vec_elements<vec<T, N>> : integral_constant<uint, N> {};
template <typename T, int N>
struct vec_elements<packed_vec<T, N>> : integral_constant<uint, N> {};

template <typename T>
struct is_vector : bool_constant<(vec_elements<remove_cv_t<T>>::value > 0)> {};
template <typename T>
inline constexpr bool is_vector_v = is_vector<T>::value;

#define SM_FOR_SCALARS(X) \
    X(bool) X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong) X(half) X(bfloat) X(float)
#define SM_VEC_NAMES(T) \
    typedef vec<T, 2> T##2; \
    typedef vec<T, 3> T##3; \
    typedef vec<T, 4> T##4; \
    typedef packed_vec<T, 2> packed_##T##2; \
    typedef packed_vec<T, 3> packed_##T##3; \
    typedef packed_vec<T, 4> packed_##T##4;
SM_FOR_SCALARS(SM_VEC_NAMES)

} // namespace metal

#define SM_VEC_GLOBAL_NAMES(T) \
    using metal::T##2; \
    using metal::T##3; \
    using metal::T##4; \
    using metal::packed_##T##2; \
    using metal::packed_##T##3; \
    using metal::packed_##T##4;
SM_FOR_SCALARS(SM_VEC_GLOBAL_NAMES)

static_assert(sizeof(float3) == 16 && alignof(float3) == 16 && sizeof(half3) == 8 && alignof(half4) == 8);
static_assert(sizeof(packed_float3) == 12 && alignof(packed_float3) == 4 && sizeof(bool4) == 4 && alignof(ulong4) == 32);
