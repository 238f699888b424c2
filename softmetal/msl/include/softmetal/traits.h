// <metal_type_traits>. Only names that Metal has: sources define the missing ones themselves in namespace metal.
#pragma once
#include "scalar.h"

namespace metal {

template <typename T, T v>
struct integral_constant {
    static constexpr T value = v;
    typedef T value_type;
    typedef integral_constant type;
    SM_INLINE constexpr operator T() const { return v; }
    SM_INLINE constexpr T operator()() const { return v; }
};
template <bool v>
using bool_constant = integral_constant<bool, v>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool C, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
    typedef T type;
};
template <bool C, typename T = void>
using enable_if_t = typename enable_if<C, T>::type;

template <bool C, typename A, typename B>
struct conditional {
    typedef A type;
};
template <typename A, typename B>
struct conditional<false, A, B> {
    typedef B type;
};
template <bool C, typename A, typename B>
using conditional_t = typename conditional<C, A, B>::type;

#define SM_TRANSFORM(name, pattern, result) \
    template <typename T> \
    struct name { \
        typedef T type; \
    }; \
    template <typename T> \
    struct name<pattern> { \
        typedef result type; \
    }; \
    template <typename T> \
    using name##_t = typename name<T>::type;
SM_TRANSFORM(remove_const, const T, T)
SM_TRANSFORM(remove_volatile, volatile T, T)
SM_TRANSFORM(remove_pointer, T*, T)
// Address spaces are gone before this is compiled.
template <typename T>
struct remove_addrspace {
    typedef T type;
};
template <typename T>
using remove_addrspace_t = T;

template <typename T>
struct remove_reference {
    typedef T type;
};
template <typename T>
struct remove_reference<T&> {
    typedef T type;
};
template <typename T>
struct remove_reference<T&&> {
    typedef T type;
};
template <typename T>
using remove_reference_t = typename remove_reference<T>::type;

template <typename T>
struct remove_cv : remove_const<typename remove_volatile<T>::type> {};
template <typename T>
using remove_cv_t = typename remove_cv<T>::type;

template <typename T>
struct remove_extent {
    typedef T type;
};
template <typename T>
struct remove_extent<T[]> {
    typedef T type;
};
template <typename T, size_t N>
struct remove_extent<T[N]> {
    typedef T type;
};
template <typename T>
using remove_extent_t = typename remove_extent<T>::type;

template <typename T>
struct add_const {
    typedef const T type;
};
template <typename T>
using add_const_t = const T;
template <typename T>
struct add_volatile {
    typedef volatile T type;
};
template <typename T>
using add_volatile_t = volatile T;
template <typename T>
struct add_cv {
    typedef const volatile T type;
};
template <typename T>
using add_cv_t = const volatile T;

template <typename T>
struct make_signed {
    typedef __make_signed(T) type;
};
template <typename T>
using make_signed_t = typename make_signed<T>::type;
template <typename T>
struct make_unsigned {
    typedef __make_unsigned(T) type;
};
template <typename T>
using make_unsigned_t = typename make_unsigned<T>::type;

template <typename T>
struct underlying_type {
    typedef __underlying_type(T) type;
};
template <typename T>
using underlying_type_t = typename underlying_type<T>::type;

template <typename T>
struct decay {
    typedef __decay(T) type;
};
template <typename T>
using decay_t = typename decay<T>::type;

template <typename T>
remove_reference_t<T>&& declval() noexcept;

template <typename... Ts>
struct common_type {};
template <typename T>
struct common_type<T> : decay<T> {};
template <typename A, typename B>
struct common_type<A, B> {
    typedef decay_t<decltype(false ? declval<A>() : declval<B>())> type;
};
template <typename A, typename B, typename C, typename... Rest>
struct common_type<A, B, C, Rest...> : common_type<typename common_type<A, B>::type, C, Rest...> {};
template <typename... Ts>
using common_type_t = typename common_type<Ts...>::type;

#define SM_TRAIT(name, ...) \
    template <typename T> \
    struct name : bool_constant<__VA_ARGS__> {}; \
    template <typename T> \
    inline constexpr bool name##_v = name<T>::value;
#define SM_TRAIT_2(name, ...) \
    template <typename T, typename U> \
    struct name : bool_constant<__VA_ARGS__> {}; \
    template <typename T, typename U> \
    inline constexpr bool name##_v = name<T, U>::value;

SM_TRAIT_2(is_same, __is_same(T, U))
SM_TRAIT_2(is_convertible, __is_convertible_to(T, U))
SM_TRAIT_2(is_base_of, __is_base_of(T, U))
SM_TRAIT_2(is_assignable, __is_assignable(T, U))

SM_TRAIT(is_void, __is_void(T))
SM_TRAIT(is_floating_point, __is_same(remove_cv_t<T>, float) || __is_same(remove_cv_t<T>, half) || __is_same(remove_cv_t<T>, bfloat))
SM_TRAIT(is_integral, __is_integral(T))
SM_TRAIT(is_arithmetic, is_integral<T>::value || is_floating_point<T>::value)
SM_TRAIT(is_scalar, is_arithmetic<T>::value || __is_enum(T) || __is_pointer(T))
SM_TRAIT(is_signed, is_floating_point<T>::value || __is_signed(T))
SM_TRAIT(is_unsigned, __is_unsigned(T))
SM_TRAIT(is_const, __is_const(T))
SM_TRAIT(is_volatile, __is_volatile(T))
SM_TRAIT(is_reference, __is_reference(T))
SM_TRAIT(is_lvalue_reference, __is_lvalue_reference(T))
SM_TRAIT(is_rvalue_reference, __is_rvalue_reference(T))
SM_TRAIT(is_pointer, __is_pointer(T))
SM_TRAIT(is_array, __is_array(T))
SM_TRAIT(is_enum, __is_enum(T))
SM_TRAIT(is_union, __is_union(T))
SM_TRAIT(is_class, __is_class(T))
SM_TRAIT(is_function, __is_function(T))
SM_TRAIT(is_trivial, __is_trivial(T))
SM_TRAIT(is_trivially_copyable, __is_trivially_copyable(T))
SM_TRAIT(is_standard_layout, __is_standard_layout(T))
SM_TRAIT(is_pod, __is_pod(T))

template <typename T, typename... Args>
struct is_constructible : bool_constant<__is_constructible(T, Args...)> {};
template <typename T, typename... Args>
inline constexpr bool is_constructible_v = is_constructible<T, Args...>::value;

template <typename T>
struct rank : integral_constant<size_t, 0> {};
template <typename T, size_t N>
struct rank<T[N]> : integral_constant<size_t, rank<T>::value + 1> {};

template <typename... Ts>
struct _disjunction : false_type {};
template <typename T, typename... Rest>
struct _disjunction<T, Rest...> : bool_constant<T::value || _disjunction<Rest...>::value> {};
template <typename... Ts>
struct _conjunction : true_type {};
template <typename T, typename... Rest>
struct _conjunction<T, Rest...> : bool_constant<T::value && _conjunction<Rest...>::value> {};
template <typename T>
struct _negation : bool_constant<!T::value> {};

} // namespace metal

namespace softmetal {

// A floating-point type that mathematical functions take.
template <typename T>
inline constexpr bool is_math = Same<T, float>::value || Same<T, half>::value;
template <typename T>
inline constexpr bool is_bfloat = Same<T, bfloat>::value;
template <typename T>
inline constexpr bool is_integer = metal::is_integral<T>::value && !Same<T, bool>::value;

template <bool C, typename T = int>
using require = typename metal::enable_if<C, T>::type;

} // namespace softmetal
