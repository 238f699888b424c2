// as_type: the same bits as another type.
#pragma once
#include "vec_ops.h"

namespace softmetal {

// Vectors copy their elements, nothing else.
template <typename T>
inline constexpr bool is_plain = metal::is_trivially_copyable<T>::value || is_vec_like<T>;

} // namespace softmetal

namespace metal {

template <typename To, typename From>
SM_INLINE constexpr To as_type(SM_IN(From) from) {
    static_assert(sizeof(To) == sizeof(From), "as_type: the types differ in size");
    static_assert(softmetal::is_plain<To> && softmetal::is_plain<From>, "as_type: not a plain type");
    if constexpr (is_trivially_copyable<To>::value && is_trivially_copyable<From>::value) {
        return __builtin_bit_cast(To, from);
    } else {
        To to;
        __builtin_memcpy(&to, &from, sizeof(To));
        return to;
    }
}

} // namespace metal
