// Stands in front of the rewritten source: how entries take their arguments apart.
namespace softmetal_entry {
template <class T> struct measure { static constexpr unsigned long size = sizeof(T), align = alignof(T); };
template <> struct measure<void> { static constexpr unsigned long size = 1, align = 1; };
template <> struct measure<const void> : measure<void> {};
template <class A> struct argument;
template <class T> struct argument<T*> : measure<T> {
    static inline __attribute__((always_inline, no_sanitize("kernel-address"))) T* at(void* p) { return (T*)p; }
};
template <class T> struct argument<T&> : measure<T> {
    static inline __attribute__((always_inline, no_sanitize("kernel-address"))) T& at(void* p) { return *(T*)p; }
};
template <int I, class A, class... Rest> struct nth : nth<I - 1, Rest...> {};
template <class A, class... Rest> struct nth<0, A, Rest...> : argument<A> {};
template <int I, class F> struct parameter;
template <int I, class... A> struct parameter<I, void (*)(A...)> : nth<I, A...> {};
}
