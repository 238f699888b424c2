// How compiled code reaches the runtime: the table it is bound to, the site of a call, and the functions that the
// compiler's sanitizers call.
#pragma once
#include "abi.h"

// Inlined without a trace in the line table, so that every instruction belongs to a line of the kernel.
#define SM_INLINE inline __attribute__((always_inline, nodebug, no_sanitize("alignment")))
// Never instrumented.
#define SM_QUIET __attribute__((noinline, nodebug, no_sanitize("kernel-address", "array-bounds", "alignment")))
// A point where lanes meet: stays where control flow has it.
#define SM_RENDEZVOUS SM_QUIET __attribute__((convergent))
// Called by instrumented code.
#define SM_HOOK extern "C" SM_QUIET __attribute__((used, visibility("hidden")))

namespace softmetal {

static const Runtime* runtime;

// Where a function with a defaulted argument of this type was called.
struct Here {
    SM_TEXT file;
    u32 line;
    u32 column;

    SM_INLINE constexpr Here(
        SM_TEXT file = __builtin_FILE(), u32 line = __builtin_LINE(), u32 column = __builtin_COLUMN())
        : file(file), line(line), column(column) {}

    SM_INLINE constexpr Site site() const { return {file, line, column}; }
};

#if !SOFTMETAL_SPACES
// The variable of the calling thread's threadgroup in this slot.
template <typename T>
SM_QUIET T& threadgroup_variable(u32 slot, const char* name) {
    return *static_cast<T*>(runtime->threadgroup_variable(slot, sizeof(T), alignof(T), name));
}
#endif

// The compiler reports with a size of its own choice what it may read in any alignment. The runtime takes an
// odd address of a power-of-two size for a misaligned access, so such a range goes in pieces.
template <typename Report>
SM_INLINE void report_range(Report report, usize address, usize size, usize pc) {
    usize piece = size;
    if (size != 0 && (size & (size - 1)) == 0 && (address & (size - 1)) != 0)
        piece = address & -address;
    for (usize done = 0; done < size; done += piece)
        report(address + done, piece, pc);
}

SM_QUIET inline void out_of_bounds() {
    runtime->fault(fault_kind::array_bounds, (usize)__builtin_return_address(0));
}

// An index into something of `size` elements. The compiler's own check passes over one past the end, where a reference
// is formed.
SM_INLINE constexpr usize checked(usize index, usize size) {
    if (index >= size)
        out_of_bounds();
    return index;
}

// What clang tells of a pointer that is not aligned for its type.
struct TypeMismatch {
    Site site;
    const void* type;
    u8 log_alignment;
    u8 kind;
};

enum : u8 { type_check_store = 1, type_check_constructor = 5 };

SM_INLINE void report_misaligned(const TypeMismatch* what, usize address, usize pc) {
    usize alignment = usize(1) << what->log_alignment;
    if ((address & (alignment - 1)) == 0)
        return;
    bool writes = what->kind == type_check_store || what->kind == type_check_constructor;
    (writes ? runtime->store : runtime->load)(address, alignment, pc);
}

} // namespace softmetal

#define SM_CALLER (softmetal::usize)__builtin_return_address(0)

extern "C" __attribute__((used, visibility("default"), nodebug)) SM_QUIET void
softmetal_bind(const softmetal::Runtime* runtime) {
    softmetal::runtime = runtime;
}

#define SM_ACCESS_HOOKS(size) \
    SM_HOOK void __asan_load##size##_noabort(softmetal::usize address) { \
        softmetal::runtime->load(address, size, SM_CALLER); \
    } \
    SM_HOOK void __asan_store##size##_noabort(softmetal::usize address) { \
        softmetal::runtime->store(address, size, SM_CALLER); \
    }
SM_ACCESS_HOOKS(1)
SM_ACCESS_HOOKS(2)
SM_ACCESS_HOOKS(4)
SM_ACCESS_HOOKS(8)
SM_ACCESS_HOOKS(16)

SM_HOOK void __asan_loadN_noabort(softmetal::usize address, softmetal::usize size) {
    softmetal::report_range(softmetal::runtime->load, address, size, SM_CALLER);
}
SM_HOOK void __asan_storeN_noabort(softmetal::usize address, softmetal::usize size) {
    softmetal::report_range(softmetal::runtime->store, address, size, SM_CALLER);
}
SM_HOOK void* __asan_memcpy(void* to, const void* from, softmetal::usize size) {
    softmetal::report_range(softmetal::runtime->load, (softmetal::usize)from, size, SM_CALLER);
    softmetal::report_range(softmetal::runtime->store, (softmetal::usize)to, size, SM_CALLER);
    return __builtin_memcpy(to, from, size);
}
SM_HOOK void* __asan_memmove(void* to, const void* from, softmetal::usize size) {
    softmetal::report_range(softmetal::runtime->load, (softmetal::usize)from, size, SM_CALLER);
    softmetal::report_range(softmetal::runtime->store, (softmetal::usize)to, size, SM_CALLER);
    return __builtin_memmove(to, from, size);
}
SM_HOOK void* __asan_memset(void* to, int byte, softmetal::usize size) {
    softmetal::report_range(softmetal::runtime->store, (softmetal::usize)to, size, SM_CALLER);
    return __builtin_memset(to, byte, size);
}
SM_HOOK void __asan_handle_no_return() {}

// -fsanitize=array-bounds and -fsanitize=alignment, in their full and their minimal form.
#define SM_FAULT_HOOK(name, kind) \
    SM_HOOK void name() { softmetal::runtime->fault(softmetal::fault_kind::kind, SM_CALLER); }
SM_FAULT_HOOK(__ubsan_handle_out_of_bounds_minimal, array_bounds)
SM_FAULT_HOOK(__ubsan_handle_out_of_bounds_minimal_abort, array_bounds)
SM_FAULT_HOOK(__ubsan_handle_type_mismatch_minimal, undefined)
SM_FAULT_HOOK(__ubsan_handle_type_mismatch_minimal_abort, undefined)
SM_FAULT_HOOK(__ubsan_handle_builtin_unreachable_minimal, undefined)
SM_FAULT_HOOK(__ubsan_handle_builtin_unreachable_minimal_abort, undefined)

SM_HOOK void __ubsan_handle_out_of_bounds(const void*, softmetal::usize) {
    softmetal::runtime->fault(softmetal::fault_kind::array_bounds, SM_CALLER);
}
SM_HOOK void __ubsan_handle_out_of_bounds_abort(const void*, softmetal::usize) {
    softmetal::runtime->fault(softmetal::fault_kind::array_bounds, SM_CALLER);
}
SM_HOOK void __ubsan_handle_type_mismatch_v1(const softmetal::TypeMismatch* what, softmetal::usize address) {
    softmetal::report_misaligned(what, address, SM_CALLER);
}
SM_HOOK void __ubsan_handle_type_mismatch_v1_abort(const softmetal::TypeMismatch* what, softmetal::usize address) {
    softmetal::report_misaligned(what, address, SM_CALLER);
}
SM_HOOK void __ubsan_handle_builtin_unreachable(const void*) {
    softmetal::runtime->fault(softmetal::fault_kind::undefined, SM_CALLER);
}
