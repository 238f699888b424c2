// Address spaces. A source is executed without them; with SOFTMETAL_SPACES it is only type-checked, as C++ for OpenCL, where
// pointers and references have them. `device` and `constant` are two spaces of OpenCL that convert to `__generic`, the space of
// all pointers in these headers, but not to each other.
#pragma once

#if SOFTMETAL_SPACES

#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

#define SM_DEVICE __attribute__((opencl_global_device))
#define SM_CONSTANT __attribute__((opencl_global_host)) const

// A deduced reference would keep the space in the type.
#define SM_IN(...) __VA_ARGS__
#define SM_FORWARD(T) T
#define SM_ANY __generic
#define SM_THREAD __private
#define SM_TEXT const __constant char*
// OpenCL has no pointers to functions in structures.
#define SM_ENTRY(result, name) static result name

// Words of OpenCL that mean nothing in Metal.
#define half _Float16
#define global sm_global
#define local sm_local
#define generic sm_generic
#define pipe sm_pipe
#define read_only sm_read_only
#define write_only sm_write_only
#define read_write sm_read_write
#define event_t sm_event_t
#define vec_step sm_vec_step
#define atomic_int sm_atomic_int
#define atomic_uint sm_atomic_uint
#define atomic_long sm_atomic_long
#define atomic_ulong sm_atomic_ulong
#define atomic_float sm_atomic_float
#define atomic_double sm_atomic_double
#define atomic_flag sm_atomic_flag

namespace softmetal {

template <typename T>
__local T& threadgroup_variable();

// An operand of `?:`, where OpenCL finds no common type for a variable of a class and a temporary.
template <typename T>
constexpr T operand(T value) {
    return value;
}

// A literal whose value clang knows only where it must: it lets those that fit become bfloats without a word.
float unknown(float value);
constexpr float literal(float value) {
    return __builtin_is_constant_evaluated() ? value : unknown(value);
}

// A table at program scope, which OpenCL does not let live in `SM_CONSTANT`.
template <typename T>
SM_CONSTANT T& constant_table(const __global T& table);

} // namespace softmetal

#else

#define SM_IN(...) const __VA_ARGS__&
#define SM_FORWARD(T) T&&
#define SM_ANY
#define SM_THREAD
#define SM_TEXT const char*
#define SM_ENTRY(result, name) result (*name)

#endif
