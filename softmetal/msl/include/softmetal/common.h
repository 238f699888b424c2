// <metal_common>: mix, sign, step, smoothstep. clamp, max, min and saturate are with the mathematical functions.
#pragma once
#include "integer.h"

namespace softmetal {
namespace single {

SM_INLINE float mix(float x, float y, float a) { return x + (y - x) * a; }
SM_INLINE float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : __builtin_isnan(x) ? 0.0f : x; }
SM_INLINE float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }
SM_INLINE float smoothstep(float edge0, float edge1, float x) {
    float t = saturate((x - edge0) / (edge1 - edge0));
    return t * t * (3.0f - 2.0f * t);
}

} // namespace single
} // namespace softmetal

namespace metal {

#define SM_COMMON(n, name) SM_FLOAT_##n(name, name) SM_HALF_##n(name, name)
SM_COMMON(1, sign)
SM_COMMON(2, step)
SM_COMMON(3, mix)
SM_COMMON(3, smoothstep)

} // namespace metal
