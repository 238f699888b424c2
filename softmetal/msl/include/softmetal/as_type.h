// as_type: the same bits as another type.
#pragma once
#include "vec_ops.h"

namespace metal {

template <typename To, typename From>
SM_INLINE constexpr To as_type(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "as_type: the types differ in size");
    static_assert(is_trivially_copyable<To>::value && is_trivially_copyable<From>::value, "as_type: not a plain type");
    return __builtin_bit_cast(To, from);
}

} // namespace metal
