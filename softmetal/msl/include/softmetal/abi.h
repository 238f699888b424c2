// The C++ side of softmetal-abi (abi/src/lib.rs): what a kernel and the runtime that executes it say to each other.
#pragma once
#include "spaces.h"

namespace softmetal {

typedef __SIZE_TYPE__ usize;
typedef __UINT32_TYPE__ u32;
typedef __UINT8_TYPE__ u8;

constexpr u32 simd_width = 32;

struct Site {
    SM_TEXT file;
    u32 line;
    u32 column;
};

struct Builtins {
    u32 thread_position_in_grid[3];
    u32 threads_per_grid[3];
    u32 thread_position_in_threadgroup[3];
    u32 threads_per_threadgroup[3];
    u32 dispatch_threads_per_threadgroup[3];
    u32 threadgroup_position_in_grid[3];
    u32 threadgroups_per_grid[3];
    u32 thread_index_in_threadgroup;
    u32 thread_index_in_simdgroup;
    u32 threads_per_simdgroup;
    u32 simdgroup_index_in_threadgroup;
    u32 simdgroups_per_threadgroup;
    u32 dispatch_simdgroups_per_threadgroup;
};

struct alignas(64) Gathered {
    u32 mask;
    u32 lane;
    u32 pad[14];
    u8 values[simd_width][64];
};

namespace mem_flag {
constexpr u32 none = 0, device = 1, threadgroup = 2, texture = 4;
}

namespace barrier_scope {
constexpr u32 threadgroup = 0, simdgroup = 1;
}

namespace atomic_kind {
constexpr u32 load = 1, store = 2, rmw = 3;
}

namespace gather_kind {
constexpr u32 reduce = 0, shuffle_uniform = 1, shuffle = 2, matrix = 3;
}

namespace fault_kind {
constexpr u32 array_bounds = 1, undefined = 2;
}

struct Runtime {
    SM_ENTRY(void, load)(usize address, usize size, usize pc);
    SM_ENTRY(void, store)(usize address, usize size, usize pc);
    SM_ENTRY(void, atomic)(usize address, usize size, u32 kind, usize pc);
    SM_ENTRY(void*, threadgroup_variable)(u32 slot, usize size, usize align, const char* name);
    SM_ENTRY(void, barrier)(u32 scope, u32 flags, const Site* site);
    SM_ENTRY(void, fence)(u32 flags, const Site* site);
    SM_ENTRY(const Gathered*, gather)(const void* value, u32 size, u32 width, u32 kind, u32 argument, const Site* site);
    SM_ENTRY(void, inactive_lane)(u32 lane, const Site* site);
    SM_ENTRY(void, fault)(u32 kind, usize pc);
};

static_assert(sizeof(void*) == 8, "kernels are compiled for 64-bit hosts");
static_assert(sizeof(Site) == 16 && __builtin_offsetof(Site, column) == 12);
static_assert(sizeof(Builtins) == 27 * 4 && __builtin_offsetof(Builtins, thread_index_in_threadgroup) == 84);
static_assert(sizeof(Gathered) == 64 + 32 * 64 && alignof(Gathered) == 64 && __builtin_offsetof(Gathered, values) == 64);
#if !SOFTMETAL_SPACES
static_assert(sizeof(Runtime) == 9 * sizeof(void*) && __builtin_offsetof(Runtime, fault) == 8 * sizeof(void*));
#endif

} // namespace softmetal
