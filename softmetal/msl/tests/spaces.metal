// Right in Metal, and near to what mixes up address spaces: one case a line.
#include <metal_stdlib>
using namespace metal;
namespace n0 { struct S { float x; S() { init(); } void init() { x = 1; } }; }
namespace n1 { struct V { float e[4]; thread float& operator[](int i) { return e[i]; } const thread float& operator[](int i) const { return e[i]; } thread V& operator+=(V o) { e[0] += o.e[0]; return *this; } }; float f() { V v; v[0] = 1; v += v; const V w = v; thread float& r = v[1]; r = w[2]; return v[0]; } }
namespace n2 { struct S { float x; int y; }; kernel void k(device S* d, constant S& c) { threadgroup S g; S l = c; g = l; d[0] = g; l = d[1]; g = c; d[2] = c; } }
namespace n3 { struct P { int n[4]; float f; }; float g(constant const int* s) { return s[0]; } float f(constant P& p, device P* q) { constant int* s = p.n; device int* t = q->n; t[0] = s[1]; return g(p.n) + g(&p.n[1]) + g(s + 1); } }
namespace n4 { void f(thread float x[4]) { x[0] = 1; } void g() { float a[4]; f(a); } }
namespace n5 { void f(threadgroup float x[4], device float y[2], constant float z[2]) { x[0] = y[0] + z[0]; } void g(threadgroup float* a, device float* b, constant float* c) { f(a, b, c); } }
namespace n6 { kernel void k(device float* x, threadgroup float s[32] [[threadgroup(0)]]) { s[0] = x[0]; threadgroup float* p = s; x[0] = p[0]; } }
namespace n7 { void f(thread float (&a)[4]) { a[0] = 1; } void g(threadgroup float (&a)[4]) { a[0] = 1; } kernel void k(device float* x) { float a[4]; f(a); threadgroup float b[4]; g(b); x[0] = a[0] + b[0]; } }
namespace n8 { kernel void k(device float* x) { threadgroup float a[8][32]; threadgroup float (*p)[32] = a; threadgroup float* q = a[1]; p[0][1] = q[2]; x[0] = a[0][0]; } }
namespace n9 { template <typename T> void swap_(thread T& a, thread T& b) { T t = a; a = b; b = t; } void f() { int a = 1, b = 2; swap_(a, b); float v[2]; swap_(v[0], v[1]); } }
namespace n10 { template <typename T> T g(const thread T& x) { return x; } float f() { return g(1.0f) + g<float>(2); } }
namespace n11 { float f(device float* p, bool c) { device float* q = c ? p : nullptr; if (q == nullptr || q != p) return 0; return *(c ? q : p + 1); } }
namespace n12 { uint f(float x) { return *(thread uint*)&x + *reinterpret_cast<thread uint*>(&x) + reinterpret_cast<thread uint&>(x); } }
namespace n13 { float f(device const uchar* p) { device const half* h = (device const half*)p; device const float4* v = reinterpret_cast<device const float4*>(p + 16); return h[0] + v[0].x + ((device const float2*)h)->y; } }
namespace n14 { struct B { float b; float get() const { return b; } }; struct D : B { float both() const { return get() + b; } }; float f() { D d; d.b = 1; return d.both() + d.get(); } }
namespace n15 { struct S { device float* p; threadgroup float* t; float at(int i) const { return p[i] + t[i]; } }; S make(device float* p, threadgroup float* t) { S s = {p, t}; return s; } float f(device float* p, threadgroup float* t) { S s{p, t}; return make(p, t).at(0) + s.at(1); } }
namespace n16 { struct T { float a; float get() const constant { return a; } }; constant T table[2] = {{1}, {2}}; float f(int i) { return table[i].a + table[i].get(); } }
namespace n17 { float g(device float* p) { return 1; } float g(threadgroup float* p) { return 1; } float g(thread float* p) { return 1; } float g(constant float* p) { return 1; } float f(device float* p, threadgroup float* q, constant float* r) { float x; return g(p) + g(q) + g(r) + g(&x); } }
namespace n18 { void f(device atomic_uint* a, threadgroup atomic_int* b, volatile device atomic_float* c) { atomic_fetch_add_explicit(a, 1u, memory_order_relaxed); atomic_store_explicit(b, 1, memory_order_relaxed); atomic_fetch_add_explicit(c, 1.0f, memory_order_relaxed); uint e = 0; atomic_compare_exchange_weak_explicit(a, &e, 1u, memory_order_relaxed, memory_order_relaxed); } }
namespace n19 { void f(device half* p, threadgroup half* q, device float* r) { simdgroup_half8x8 a, b; simdgroup_load(a, p, 8); simdgroup_load(b, q, 8); simdgroup_float8x8 c = make_filled_simdgroup_matrix<float, 8>(0.0f); simdgroup_multiply_accumulate(c, a, b, c); simdgroup_store(c, r, 8); simdgroup_float8x8 d[2]; d[0] = c; c = d[1]; c.thread_elements()[0] = 1; } }
namespace n20 { float f(float4 v, device float4* p, threadgroup float4* q, constant float4& c) { v.xy = p[0].zw; p[0].x = q[0].y; q[0] = c; p[1] += c * 2; v[1] = p[0][2]; thread float& r = v.y; r = dot(v, p[0]) + length(q[0]) + max(c.x, p[0].x); return min(p[0], c).x + select(v, p[0], v > c).x; } }
namespace n21 { void f(float x) { float c; float s = sincos(x, c); float w; x = modf(s, w) + c + w; int e; x = frexp(x, e); } }
namespace n22 { float f(device float* p) { float s = 0; float a[4] = {1, 2, 3, 4}; for (thread float& x : a) x += 1; for (device float* q = p; q < p + 4; ++q) s += *q; return s + a[0]; } }
namespace n23 { union U { float f; uint u; uchar b[4]; }; uint f(float x) { U u; u.f = x; thread uchar* b = u.b; return b[0] + u.u; } }
namespace n24 { template <typename P> struct E; template <typename T> struct E<device T*> { typedef T type; }; template <typename T> struct E<const device T*> { typedef T type; }; template <typename P> typename E<P>::type f(P p) { typename E<P>::type x = p[0]; return x; } float g(device float* p, const device float* q) { return f(p) + f(q); } }
namespace n25 { template <typename T, int N> struct Tile { T v[N]; thread T& at(int i) { return v[i]; } void load(const device T* p) { for (int i = 0; i < N; i++) v[i] = p[i]; } template <typename U> void add(thread Tile<U, N>& o) { for (int i = 0; i < N; i++) v[i] += T(o.at(i)); } }; void f(device float* p) { Tile<float, 4> a, b; a.load(p); b.load(p); a.add(b); p[0] = a.at(0); } }
namespace n26 { struct Op { template <typename T> T operator()(T a, T b) { return a + b; } }; template <typename O, typename T> T apply(device T* p, threadgroup T* q) { return O()(p[0], q[0]) + O{}(p[1], q[1]); } float f(device float* p, threadgroup float* q) { return apply<Op>(p, q); } }
namespace n27 { struct Id { int v; constexpr operator int() const { return v; } }; int f(device int* p) { Id i{2}; return p[i] + i; } }
namespace n28 { struct Acc { float s; Acc() thread = default; Acc() threadgroup = default; Acc(float x) : s(x) { } thread Acc& operator=(const thread Acc& o) { s = o.s; return *this; } }; kernel void k(device float* x) { threadgroup float t[2]; Acc a(1.0f); Acc b = a; b = a; t[0] = b.s; x[0] = t[0]; } }
namespace n29 { struct MD { float m; float d; MD() = default; MD() threadgroup = default; }; kernel void k(device float* x) { threadgroup MD s[4]; MD a; a.m = 1; a.d = 2; s[0].m = a.m; s[1].d = 1; x[0] = s[0].m; } }
namespace n30 { template <typename T, void (*F)(device const T*, thread float4&)> float g(device const T* p) { float4 v; F(p, v); return v.x; } void one(device const half* p, thread float4& v) { v = float4(p[0]); } float f(device const half* p) { return g<half, one>(p); } }
namespace n31 { constant float t[3] = {1, 2, 3}; constant int n = 3; float g(constant const int& n) { return n; } float f() { float s = 0; for (int i = 0; i < n; i++) s += t[i]; return s + g(n) + t[n - 1]; } }
namespace n32 { namespace a { struct S { int x; int get() thread const { return x; } }; inline int f(thread const S& s) { return s.get(); } } int f() { a::S s = {1}; return a::f(s) + f(s); } }
namespace n33 { float f(device float* p, uint i) { device float& r = p[i]; r += 1; device float* thread* q = &p; thread auto& s = p; s += 1; return **q + *s; } }
namespace n34 { inline device float* shift(device float* p, int n) { return p + n; } template <typename T> device T* cast(device void* p) { return (device T*)p; } float f(device float* p) { return *shift(p, 1) + *cast<float>(p) + *static_cast<device float*>(static_cast<device void*>(p)); } }
namespace n35 { int f(int local, int global) { int generic = local + global; int half_ = generic; return half_; } }
namespace n36 { struct L { int local; int global; }; int f(L l) { return l.local + l.global; } }
namespace n37 { enum class K : uchar { A, B }; template <K k> float f(device float* p) { if (k == K::A) return p[0]; switch (k) { case K::A: return 1; default: return p[1]; } } float g(device float* p) { return f<K::B>(p); } }
namespace n38 { bool f(device float* p, device float* q) { return p < q || p - q > 3; } }
namespace n39 { void copy(threadgroup float4* d, const device float4* s, uint n) { for (uint i = 0; i < n; ++i) { *d++ = *s++; } } }
namespace n40 { float f(volatile threadgroup float* p, volatile device float* q) { p[0] = q[0]; return p[0]; } }
namespace n41 { struct R { float4 head; float4 at(int i) const thread { return i == 0 ? head : float4(1); } }; float f() { R r; r.head = 0; return r.at(0).x; } }
namespace n42 { float g(thread float* p, int n = 4) { return p[n - 1]; } float f() { float a[4] = {}; float b[2][4] = {}; return g(a) + g(b[1]) + g(&b[0][0]); } }
