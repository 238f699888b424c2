// Barriers and fences.
#pragma once
#include "traits.h"

namespace metal {

enum class mem_flags : uint {
    mem_none = softmetal::mem_flag::none,
    mem_device = softmetal::mem_flag::device,
    mem_threadgroup = softmetal::mem_flag::threadgroup,
    mem_texture = softmetal::mem_flag::texture,
    mem_threadgroup_imageblock = 8,
    mem_object_data = 16,
};
SM_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
SM_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }

enum memory_order { memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

} // namespace metal

namespace softmetal {

SM_RENDEZVOUS inline void barrier(u32 scope, u32 flags, SM_TEXT file, u32 line, u32 column) {
    Site site = {file, line, column};
    runtime->barrier(scope, flags, &site);
}
SM_RENDEZVOUS inline void fence(u32 flags, SM_TEXT file, u32 line, u32 column) {
    Site site = {file, line, column};
    runtime->fence(flags, &site);
}

} // namespace softmetal

namespace metal {

SM_INLINE void threadgroup_barrier(mem_flags flags, softmetal::Here here = {}) {
    softmetal::barrier(softmetal::barrier_scope::threadgroup, uint(flags), here.file, here.line, here.column);
}
SM_INLINE void simdgroup_barrier(mem_flags flags, softmetal::Here here = {}) {
    softmetal::barrier(softmetal::barrier_scope::simdgroup, uint(flags), here.file, here.line, here.column);
}
SM_INLINE void atomic_thread_fence(
    mem_flags flags, memory_order, thread_scope = thread_scope_device, softmetal::Here here = {}) {
    softmetal::fence(uint(flags), here.file, here.line, here.column);
}

} // namespace metal
