// <metal_pack>: normalised integers to and from half and float.
#pragma once
#include "as_type.h"
#include "common.h"

namespace softmetal {

template <u32 bits>
SM_INLINE u32 to_unorm(float x) {
    return u32(__builtin_rintf(single::saturate(x) * float((1u << bits) - 1)));
}
template <u32 bits>
SM_INLINE u32 to_snorm(float x) {
    constexpr float top = float((1u << (bits - 1)) - 1);
    return u32(int(__builtin_rintf(single::clamp(x, -1.0f, 1.0f) * top))) & ((1u << bits) - 1);
}
template <u32 bits>
SM_INLINE float from_unorm(u32 x) {
    return float(x & ((1u << bits) - 1)) / float((1u << bits) - 1);
}
template <u32 bits>
SM_INLINE float from_snorm(u32 x) {
    constexpr float top = float((1u << (bits - 1)) - 1);
    return single::max(float(int(x << (32 - bits)) >> (32 - bits)) / top, -1.0f);
}
SM_INLINE float to_srgb(float x) {
    x = single::saturate(x);
    return x < 0.0031308f ? 12.92f * x : 1.055f * __builtin_powf(x, 1.0f / 2.4f) - 0.055f;
}
SM_INLINE float from_srgb(float x) {
    return x <= 0.04045f ? x / 12.92f : __builtin_powf((x + 0.055f) / 1.055f, 2.4f);
}

} // namespace softmetal

namespace metal {

#define SM_PACK_4X8(T, kind, V) \
    SM_INLINE uint pack_##T##_to_##kind##4x8(V v) { \
        return softmetal::to_##kind<8>(v.x) | softmetal::to_##kind<8>(v.y) << 8 | softmetal::to_##kind<8>(v.z) << 16 | \
            softmetal::to_##kind<8>(v.w) << 24; \
    } \
    SM_INLINE V unpack_##kind##4x8_to_##T(uint x) { \
        return V(softmetal::from_##kind<8>(x), softmetal::from_##kind<8>(x >> 8), softmetal::from_##kind<8>(x >> 16), \
            softmetal::from_##kind<8>(x >> 24)); \
    }
#define SM_PACK_2X16(T, kind, V) \
    SM_INLINE uint pack_##T##_to_##kind##2x16(V v) { \
        return softmetal::to_##kind<16>(v.x) | softmetal::to_##kind<16>(v.y) << 16; \
    } \
    SM_INLINE V unpack_##kind##2x16_to_##T(uint x) { \
        return V(softmetal::from_##kind<16>(x), softmetal::from_##kind<16>(x >> 16)); \
    }
#define SM_PACK(T, V2, V3, V4) \
    SM_PACK_4X8(T, unorm, V4) \
    SM_PACK_4X8(T, snorm, V4) \
    SM_PACK_2X16(T, unorm, V2) \
    SM_PACK_2X16(T, snorm, V2) \
    SM_INLINE uint pack_##T##_to_srgb_unorm4x8(V4 v) { \
        return pack_float_to_unorm4x8(float4(softmetal::to_srgb(v.x), softmetal::to_srgb(v.y), softmetal::to_srgb(v.z), v.w)); \
    } \
    SM_INLINE V4 unpack_unorm4x8_srgb_to_##T(uint x) { \
        float4 v = unpack_unorm4x8_to_float(x); \
        return V4(softmetal::from_srgb(v.x), softmetal::from_srgb(v.y), softmetal::from_srgb(v.z), v.w); \
    } \
    SM_INLINE uint pack_##T##_to_unorm10a2(V4 v) { \
        return softmetal::to_unorm<10>(v.x) | softmetal::to_unorm<10>(v.y) << 10 | softmetal::to_unorm<10>(v.z) << 20 | \
            softmetal::to_unorm<2>(v.w) << 30; \
    } \
    SM_INLINE V4 unpack_unorm10a2_to_##T(uint x) { \
        return V4(softmetal::from_unorm<10>(x), softmetal::from_unorm<10>(x >> 10), softmetal::from_unorm<10>(x >> 20), \
            softmetal::from_unorm<2>(x >> 30)); \
    } \
    SM_INLINE ushort pack_##T##_to_unorm565(V3 v) { \
        return ushort(softmetal::to_unorm<5>(v.x) | softmetal::to_unorm<6>(v.y) << 5 | softmetal::to_unorm<5>(v.z) << 11); \
    } \
    SM_INLINE V3 unpack_unorm565_to_##T(ushort x) { \
        return V3(softmetal::from_unorm<5>(x), softmetal::from_unorm<6>(x >> 5), softmetal::from_unorm<5>(x >> 11)); \
    }
SM_PACK(float, float2, float3, float4)
SM_PACK(half, half2, half3, half4)

} // namespace metal
