// <metal_simdgroup> and <metal_quadgroup>
#pragma once
#include "gather.h"

namespace metal {

#define SM_LANE_TYPE template <typename T, softmetal::require<__is_valid_simdgroup_type<T>::value> = 0>

#define SM_REDUCE(group, width, name, op, condition) \
    template <typename T, softmetal::require<__is_valid_simdgroup_type<T>::value && (condition)> = 0> \
    SM_INLINE T group##_##name(T data, softmetal::Here here = {}) { \
        return softmetal::reduce<width, softmetal::op>(data, here); \
    }
#define SM_PREFIX(group, width, name, op, inclusive, neutral) \
    SM_LANE_TYPE \
    SM_INLINE T group##_prefix_##name(T data, softmetal::Here here = {}) { \
        return softmetal::prefix<width, softmetal::op, inclusive>(data, T(neutral), here); \
    }
#define SM_SHUFFLE(group, width, name, how) \
    SM_LANE_TYPE \
    SM_INLINE T group##_##name(T data, ushort argument, softmetal::Here here = {}) { \
        return softmetal::shuffle<width, softmetal::how>(data, argument, here); \
    }
#define SM_SHUFFLE_AND_FILL(group, width, name, down) \
    SM_LANE_TYPE \
    SM_INLINE T group##_##name(T data, T filling_data, ushort delta, softmetal::Here here = {}) { \
        return softmetal::shuffle_and_fill<width, down>(data, filling_data, delta, width, here); \
    } \
    SM_LANE_TYPE \
    SM_INLINE T group##_##name(T data, T filling_data, ushort delta, ushort modulo, softmetal::Here here = {}) { \
        return softmetal::shuffle_and_fill<width, down>(data, filling_data, delta, modulo, here); \
    }

#define SM_GROUP(group, width, Vote, word) \
    SM_REDUCE(group, width, sum, Sum, true) \
    SM_REDUCE(group, width, product, Product, true) \
    SM_REDUCE(group, width, min, Least, true) \
    SM_REDUCE(group, width, max, Greatest, true) \
    SM_REDUCE(group, width, and, BitAnd, is_integral_v<softmetal::element_t<T>>) \
    SM_REDUCE(group, width, or, BitOr, is_integral_v<softmetal::element_t<T>>) \
    SM_REDUCE(group, width, xor, BitXor, is_integral_v<softmetal::element_t<T>>) \
    SM_PREFIX(group, width, inclusive_sum, Sum, true, 0) \
    SM_PREFIX(group, width, exclusive_sum, Sum, false, 0) \
    SM_PREFIX(group, width, inclusive_product, Product, true, 1) \
    SM_PREFIX(group, width, exclusive_product, Product, false, 1) \
    SM_SHUFFLE(group, width, shuffle, Indexed) \
    SM_SHUFFLE(group, width, shuffle_down, Down) \
    SM_SHUFFLE(group, width, shuffle_up, Up) \
    SM_SHUFFLE(group, width, shuffle_rotate_down, RotateDown) \
    SM_SHUFFLE(group, width, shuffle_rotate_up, RotateUp) \
    SM_SHUFFLE(group, width, shuffle_xor, Xor) \
    SM_SHUFFLE(group, width, broadcast, Broadcast) \
    SM_SHUFFLE_AND_FILL(group, width, shuffle_and_fill_down, true) \
    SM_SHUFFLE_AND_FILL(group, width, shuffle_and_fill_up, false) \
    SM_LANE_TYPE \
    SM_INLINE T group##_broadcast_first(T data, softmetal::Here here = {}) { \
        return softmetal::broadcast_first<width>(data, here); \
    } \
    class Vote { \
        word votes; \
\
    public: \
        typedef word vote_t; \
        SM_INLINE explicit constexpr Vote(vote_t v = 0) : votes(v) {} \
        SM_INLINE explicit constexpr operator vote_t() const { return votes; } \
        SM_INLINE constexpr bool all() const { return (votes & lanes) == lanes; } \
        SM_INLINE constexpr bool any() const { return (votes & lanes) != 0; } \
\
    private: \
        static constexpr vote_t lanes = (vote_t(1) << width) - 1; \
    }; \
    SM_INLINE Vote group##_ballot(bool expression, softmetal::Here here = {}) { \
        return Vote(softmetal::ballot<width>(expression, here)); \
    } \
    SM_INLINE Vote group##_active_threads_mask(softmetal::Here here = {}) { \
        return Vote(softmetal::activity<width>(here).mask); \
    } \
    SM_INLINE bool group##_is_first(softmetal::Here here = {}) { return softmetal::activity<width>(here).first; } \
    SM_INLINE bool group##_all(bool expression, softmetal::Here here = {}) { \
        return softmetal::ballot<width>(!expression, here) == 0; \
    } \
    SM_INLINE bool group##_any(bool expression, softmetal::Here here = {}) { \
        return softmetal::ballot<width>(expression, here) != 0; \
    }
SM_GROUP(simd, 32, simd_vote, uint64_t)
SM_GROUP(quad, 4, quad_vote, uint32_t)

} // namespace metal
