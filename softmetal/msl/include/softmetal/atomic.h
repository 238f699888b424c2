// <metal_atomic>: performed with the host's atomics, after telling the runtime.
#pragma once
#include "barrier.h"

namespace metal {

template <typename T>
struct atomic {
    static_assert(is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, bool> || is_same_v<T, float> || is_same_v<T, ulong>,
        "there is no atomic of this type");
    T __s;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

} // namespace metal

namespace softmetal {

template <typename T>
SM_INLINE SM_ANY T* announce(const volatile SM_ANY T* object, u32 kind, usize pc) {
    runtime->atomic((usize)object, sizeof(T), kind, pc);
    return const_cast<SM_ANY T*>(object);
}

template <typename T>
SM_QUIET T atomic_load(const volatile SM_ANY T* object) {
    T value;
    __atomic_load(announce(object, atomic_kind::load, SM_CALLER), &value, __ATOMIC_RELAXED);
    return value;
}
template <typename T>
SM_QUIET void atomic_store(volatile SM_ANY T* object, T desired) {
    __atomic_store(announce(object, atomic_kind::store, SM_CALLER), &desired, __ATOMIC_RELAXED);
}
template <typename T>
SM_QUIET T atomic_exchange(volatile SM_ANY T* object, T desired) {
    T old;
    __atomic_exchange(announce(object, atomic_kind::rmw, SM_CALLER), &desired, &old, __ATOMIC_RELAXED);
    return old;
}

// What was there; `desired` is stored if it was `expected`, bit for bit.
template <typename T>
SM_QUIET T atomic_compare_exchange(volatile SM_ANY T* object, T expected, T desired) {
    SM_ANY T* place = announce(object, atomic_kind::rmw, SM_CALLER);
    __atomic_compare_exchange(place, &expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

// A loop of compare and exchange, for all operations alike.
template <typename Operator, typename T>
SM_QUIET T atomic_modify(volatile SM_ANY T* object, T operand) {
    SM_ANY T* place = announce(object, atomic_kind::rmw, SM_CALLER);
    T old, next;
    __atomic_load(place, &old, __ATOMIC_RELAXED);
    do
        next = Operator::apply(old, operand);
    while (!__atomic_compare_exchange(place, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

// Integers wrap around.
template <typename T>
using wrapping_t = metal::conditional_t<metal::is_same_v<T, float>, float, metal::make_unsigned_t<metal::conditional_t<metal::is_same_v<T, float>, int, T>>>;

#define SM_ATOMIC_OPERATOR(name, ...) \
    struct name { \
        template <typename T> \
        SM_INLINE static T apply(T a, T b) { \
            return T(__VA_ARGS__); \
        } \
    };
SM_ATOMIC_OPERATOR(AtomicAdd, wrapping_t<T>(a) + wrapping_t<T>(b))
SM_ATOMIC_OPERATOR(AtomicSub, wrapping_t<T>(a) - wrapping_t<T>(b))
SM_ATOMIC_OPERATOR(AtomicMin, b < a ? b : a)
SM_ATOMIC_OPERATOR(AtomicMax, a < b ? b : a)
SM_ATOMIC_OPERATOR(AtomicAnd, a & b)
SM_ATOMIC_OPERATOR(AtomicOr, a | b)
SM_ATOMIC_OPERATOR(AtomicXor, a ^ b)

template <typename T>
inline constexpr bool is_word = Same<T, int>::value || Same<T, uint>::value;
// atomic_ulong has only atomic_max_explicit and atomic_min_explicit.
template <typename T>
inline constexpr bool is_readable_atomic = !Same<T, ulong>::value;

template <typename T>
struct Identity {
    typedef T type;
};
// Not deduced: takes the type of the atomic.
template <typename T>
using plain_t = typename Identity<T>::type;

} // namespace softmetal

namespace metal {

// Metal's atomic operations are relaxed; stronger orders are for fences.
#define SM_RELAXED \
    __attribute__((diagnose_if(order != memory_order_relaxed, "atomic operations take memory_order_relaxed only", "error")))
#define SM_READABLE template <typename T, softmetal::require<softmetal::is_readable_atomic<T>> = 0>

SM_READABLE
SM_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order order) SM_RELAXED {
    return softmetal::atomic_load(&object->__s);
}
SM_READABLE
SM_INLINE void atomic_store_explicit(volatile atomic<T>* object, softmetal::plain_t<T> desired, memory_order order) SM_RELAXED {
    softmetal::atomic_store(&object->__s, desired);
}
SM_READABLE
SM_INLINE T atomic_exchange_explicit(volatile atomic<T>* object, softmetal::plain_t<T> desired, memory_order order) SM_RELAXED {
    return softmetal::atomic_exchange(&object->__s, desired);
}
SM_READABLE
SM_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, SM_ANY T* expected, softmetal::plain_t<T> desired,
    memory_order order, memory_order failure) SM_RELAXED
    __attribute__((diagnose_if(failure != memory_order_relaxed, "atomic operations take memory_order_relaxed only", "error"))) {
    T wanted = *expected;
    T found = softmetal::atomic_compare_exchange(&object->__s, wanted, desired);
    *expected = found;
    return __builtin_memcmp(&found, &wanted, sizeof(T)) == 0;
}

#define SM_FETCH(name, op, condition) \
    template <typename T, softmetal::require<condition> = 0> \
    SM_INLINE T atomic_fetch_##name##_explicit( \
        volatile atomic<T>* object, softmetal::plain_t<T> operand, memory_order order) SM_RELAXED { \
        return softmetal::atomic_modify<softmetal::op>(&object->__s, operand); \
    }
SM_FETCH(add, AtomicAdd, softmetal::is_word<T> || (is_same_v<T, float>))
SM_FETCH(sub, AtomicSub, softmetal::is_word<T> || (is_same_v<T, float>))
SM_FETCH(min, AtomicMin, softmetal::is_word<T>)
SM_FETCH(max, AtomicMax, softmetal::is_word<T>)
SM_FETCH(and, AtomicAnd, softmetal::is_word<T>)
SM_FETCH(or, AtomicOr, softmetal::is_word<T>)
SM_FETCH(xor, AtomicXor, softmetal::is_word<T>)

SM_INLINE void atomic_min_explicit(volatile atomic<ulong>* object, ulong operand, memory_order order) SM_RELAXED {
    softmetal::atomic_modify<softmetal::AtomicMin>(&object->__s, operand);
}
SM_INLINE void atomic_max_explicit(volatile atomic<ulong>* object, ulong operand, memory_order order) SM_RELAXED {
    softmetal::atomic_modify<softmetal::AtomicMax>(&object->__s, operand);
}

} // namespace metal
