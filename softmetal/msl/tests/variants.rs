//! Each refusal in the forms that a source can give it, and what looks alike but is right.

use softmetal_msl::{Library, Options};
use std::collections::BTreeSet;

const HEAD: &str = "#include <metal_stdlib>\n\
    #define PTR(T) T*\n#define REAL double\n#define STATIC static\n#define GROUP threadgroup\n\
    #define LAMBDA [](int a) { return a; }\n#line 1\nusing namespace metal;\n";

/// The lines, each in a namespace of its own.
fn compile<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Library, String> {
    let mut source = HEAD.to_owned();
    for (n, line) in lines.enumerate() {
        source += &format!("namespace n{n} {{ {line} }}\n");
    }
    Library::new(&source, &Options::default()).map_err(|error| error.to_string())
}

/// Every line of `bad` has an error, no line of `good`. Clang stops at its first mistaken pass, so what is refused is taken
/// out until nothing is.
#[track_caller]
fn check(bad: &[&str], good: &[&str]) {
    if let Err(error) = compile(good.iter().copied()) {
        panic!("{error}");
    }
    let mut left: BTreeSet<usize> = (0..bad.len()).collect();
    let text = |left: &BTreeSet<usize>, n: usize| if left.contains(&n) { bad[n] } else { "" };
    while let Err(error) = compile((0..bad.len()).map(|n| text(&left, n))) {
        let before = left.len();
        for line in error.lines() {
            let number = line
                .strip_prefix("program_source:")
                .and_then(|rest| rest.split(':').next());
            if let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) {
                left.remove(&(number - 2));
            }
        }
        assert!(left.len() < before, "{error}");
    }
    let accepted: Vec<_> = left.into_iter().map(|n| bad[n]).collect();
    assert!(accepted.is_empty(), "accepted: {accepted:#?}");
}

#[test]
fn pointers_name_their_space() {
    check(
        &[
        "template <typename T> void f(T* p) { p[0] = T(0); }",
        "template <typename T> void f(T& p) { p = T(0); }",
        "template <typename T> struct S { T* p; };",
        "struct S { void m(float* p) { } };",
        "struct S { float& m(thread float& x) { return x; } };",
        "template <typename T> struct S { template <typename U> void m(U* p) { } };",
        "typedef float* P;",
        "using P = float*;",
        "template <typename T> using P = T*;",
        "template <typename T> using P = const T&;",
        "void f(device float* p) { auto* q = p; }",
        "void f(device float* p) { auto& q = p[0]; q = 1; }",
        "void f(device float* p) { const auto& q = p[0]; }",
        "void f(device float* p) { auto&& q = p[0]; q = 1; }",
        "float* f(device float* p);",
        "void f(device float* p) { float* a[2]; }",
        "struct S { float* a[2]; };",
        "void f(device float* a[2]) { device float* const* q = a; }",
        "void f(device float* p) { float x = *((float*)p); }",
        "void f(device float* p) { auto q = static_cast<const float*>(p); }",
        "void f(device float* p) { auto q = reinterpret_cast<float4*>(p); }",
        "void f(device float* p) { auto q = const_cast<float*>(p); }",
        "template <typename T> void f(device T* p) { auto q = (vec<T, 4>*)p; }",
        "template <typename T> void g(T x) { } void f(device float* p) { g<float*>(0); }",
        "void f(device float* p) { for (const float& x : {1.0f, 2.0f}) { } }",
        "void f(float (*p)[4]);",
        "void f(float (&p)[4]);",
        "struct S { operator float*() { return 0; } };",
        "struct S { friend S& operator+(thread S& a, int b); };",
        "int f() { int a = 0; if (int* p = &a) { return 1; } return 0; }",
        "struct S { int a, *p; };",
        "void f() { int a; (void)static_cast<int&>(a); }",
        "template <typename A, typename B = float*> struct S { };",
        "size_t f() { return sizeof(float*); }",
        "auto f(device float* p) -> float* { return 0; }",
        "void f(thread float* thread* p, float** q) { }",
        "void f(device void* p) { float* q = (device float*)p; }",
        "namespace n { struct S { struct T { int* p; }; }; }",
        "template <int N> struct S; template <> struct S<1> { int* p; };",
        "union U { int* p; int q; };",
        "void f() { struct L { int* p; }; }",
        "void f() { typedef int* P; }",
        "void f() { using P = int*; }",
        "void f(device float* p) { switch (1) { case 1: float* q = 0; } }",
        "void f(device float* p) { do { float& r = p[0]; } while (0); }",
        "void f(PTR(float) p) { }",
        ],
        &[
        "template <typename T> void f(device T* p) { p[0] = T(0); }",
        "template <typename P> void f(P p) { p[0] = 0; } void g(device float* p) { f(p); f<device float*>(p); }",
        "void f(device float* p) { auto q = p; device auto* r = p; device auto& s = p[0]; s = 1; q = r; }",
        "int f(int a, int b) { int c = a * b; int d = a & b; return (a) * b + (a) & b + sizeof(a) * b; }",
        "struct S { int x; S operator*(S o) { return o; } S operator&(S o) { return o; } };",
        "template <int A, int B> struct S { enum { v = A * B, w = A & B }; };",
        "constant int A = 2; constant int B = A * A; constant int C = (A) & B;",
        "void f(device float* p) { thread float* a[2]; device float* const b[1] = {p}; device float* c = b[0]; }",
        "typedef device float* P; using Q = threadgroup const half*; template <typename T> using R = constant T&;",
        "void f(const float x, thread const float (&p)[4]) { }",
        "template <typename T> struct is_p { enum { v = 0 }; }; template <typename T> struct is_p<T*> { enum { v = 1 }; }; template <typename T> struct is_p<device T*> { enum { v = 1 }; };",
        "bool f(bool a, bool b) { return a && b || (a) && b; }",
        "int f(int a, int b) { int x[2] = {a * b, a & b}; return x[a * b > 3 && b]; }",
        ],
    );
}

#[test]
fn there_is_no_double() {
    check(
        &[
        "template <typename T> struct S { double x; };",
        "typedef double D;",
        "float f(float x) { return (double)x; }",
        "float f(float x) { return static_cast<double>(x); }",
        "template <typename T> T g(T x) { return x; } float f(float x) { return g<double>(x); }",
        "double f();",
        "float f(float x) { return x * 1.0L; }",
        "float f(float x) { return sizeof(long double); }",
        "double2 f();",
        "constant double pi = 3.14;",
        "REAL f();",
        ],
        &[
        "float f(float x) { return x * 1.0 + 1e-3; }",
        ],
    );
}

#[test]
fn there_are_no_static_locals() {
    check(
        &[
            "template <typename T> T f() { static T x = T(1); return x; }",
            "struct S { int m() { static int n = 0; return n; } };",
            "int f() { if (true) { static const int n = 3; return n; } return 0; }",
            "int f() { const static int n = 3; return n; }",
            "int f() { constexpr static int n = 3; return n; }",
            "int f(int k) { switch (k) { case 1: static int n = 3; return n; } return 0; }",
            "int f() { for (static int i = 0; i < 3; i++) { } return 0; }",
            "int f() { static constexpr int n = 3; return n; }",
            "int f() { STATIC int n = 3; return n; }",
        ],
        &[
            "int f() { static constant int n = 3; constexpr int m = 4; return n + m; }",
            "int f() { static constexpr constant int n = 3; return n; }",
            "struct S { static int m() { return 1; } }; static int f() { return S::m(); }",
        ],
    );
}

#[test]
fn threadgroup_variables_are_of_kernels_and_uninitialised() {
    check(
        &[
        "struct S { void m() { threadgroup float a[2]; a[0] = 1; } };",
        "template <typename T> void f() { threadgroup T a[2]; a[0] = 1; }",
        "kernel void k(device float* x) { threadgroup float a = 0.0f; x[0] = a; }",
        "kernel void k(device float* x) { threadgroup float a{0.0f}; x[0] = a; }",
        "kernel void k(device float* x) { threadgroup float a, b = 1; x[0] = a; }",
        "kernel void k(device float* x) { if (x) { threadgroup float a[2] = {}; x[0] = a[0]; } }",
        r#"template <typename T> kernel void k(device T* x) { threadgroup T a[2] = {T(0)}; x[0] = a[0]; } template [[host_name("k")]] kernel void k<float>(device float* x);"#,
        "namespace n { threadgroup int x; }",
        "static threadgroup int x;",
        "struct S { threadgroup int x; };",
        "struct S { static threadgroup int x; };",
        "void f(threadgroup float x) { }",
        "threadgroup float f();",
        "void f() { GROUP int x; x = 1; }",
        ],
        &[
        "kernel void k(device float* x) { threadgroup float a[2], b; threadgroup float* p = a; b = 1; p[0] = b; x[0] = a[0]; }",
        r#"template <typename T> [[kernel]] void k(device T* x) { threadgroup T a[2]; x[0] = a[0]; } template [[host_name("k")]] [[kernel]] void k<float>(device float* x);"#,
        ],
    );
}

#[test]
fn lambdas_are_of_3_2() {
    check(
        &[
        "int f() { return [] { return 1; }(); }",
        "template <typename F> int g(F f) { return f(1); } int f(int k) { return g([k](int a) { return a + k; }); }",
        "struct S { int m() { auto l = [this]() { return 1; }; return l(); } };",
        "int f() { int a[1] = {[](int x) { return x; }(1)}; return a[0]; }",
        "int f(bool c) { return c && [](int x) { return x; }(1); }",
        "int f() { auto l = LAMBDA; return l(1); }",
        ],
        &[
        ],
    );
}

#[test]
fn vectors_do_not_convert() {
    check(
        &[
        "float4 f(int4 v) { return v; }",
        "void f(thread float4& a, half4 b) { a = b; }",
        "void f(device float4* a, half4 b) { *a = b; }",
        "void f(thread float4& a, half4 b) { a += b; }",
        "float4 g(float4 x); float4 f(half4 x) { return g(x); }",
        "float4 f(half4 x, bool c) { return c ? x : float4(0); }",
        "float3 f(float4 x) { return x; }",
        "float f(float4 x) { return x; }",
        "float4 f(bool4 x) { return x; }",
        "void f(half4 b) { float4 a = b; }",
        "void f(half4 b) { float4 a[1] = {b}; }",
        "struct S { float4 v; }; S f(half4 b) { return S{b}; }",
        "template <typename T> vec<T, 4> f(vec<float, 4> x) { return x; } half4 g(float4 x) { return f<half>(x); }",
        "float4 f(float4 x, uint4 y) { return x * y; }",
        "uint4 f(uint4 x, int y) { return x * float4(1); }",
        "float4 f(packed_half4 x) { return x; }",
        "bfloat4 f(float4 x) { return x; }",
        "float2x2 f(half2x2 x) { return x; }",
        "float2x2 f() { return 1.0f; }",
        "bool f(float4 a, float4 b) { return a == b; }",
        "bool f(float4 a, float4 b) { if (a == b) return true; return false; }",
        "float4 f(bool4 c, float4 a, float4 b) { return c ? a : b; }",
        ],
        &[
        "float4 f(half4 x, float s) { float4 a = float4(x); a = s; a *= 2; return a + s; }",
        "bool f(float4 a, float4 b) { return all(a == b); }",
        ],
    );
}

#[test]
fn nothing_becomes_a_bfloat_by_itself() {
    check(
        &[
        "bfloat f() { return 1.0f; }",
        "bfloat f() { return 1.0; }",
        "bfloat f() { return -1.0f; }",
        "bfloat f(bool c) { return c ? 1.0f : 0.0f; }",
        "bfloat f(bool c, bfloat b) { return c ? b : 0.0f; }",
        "bfloat f() { bfloat x = 0.5f; return x; }",
        "bfloat f() { bfloat x{0.5f}; return x; }",
        "bfloat f() { bfloat x(0.5f + 0.5f); return x; }",
        "bfloat f() { const bfloat x[2] = {0.5f, 1.0f}; return x[0]; }",
        "void f(device bfloat* p) { p[0] = 1.0f; }",
        "void f(device bfloat* p) { p[0] += 1.0f; }",
        "void f(device bfloat* p) { p[0] *= 2.0f; }",
        "bfloat g(bfloat x); void f() { g(1.0f); }",
        "template <typename T> T f() { return 1.0f; } void g() { f<bfloat>(); }",
        "template <typename T> void f(device T* p) { p[0] = 0.0f; } void g(device bfloat* p) { f(p); }",
        "template <typename T> void f(device T* p) { T x = 0.0; p[0] = x; } void g(device bfloat* p) { f(p); }",
        "struct S { bfloat b = 1.0f; }; bfloat f() { S s; return s.b; }",
        "struct S { bfloat b; }; S f() { return S{1.0f}; }",
        "struct S { bfloat b; S() : b(1.0f) { } }; bfloat f() { S s; return s.b; }",
        "bfloat f(half x) { return x; }",
        "half f(bfloat x) { return x; }",
        "bfloat f(bfloat x) { return x * 2.0f; }",
        "bfloat f(bfloat x) { return exp(x); }",
        "bfloat4 f(float x) { return bfloat4(x) * 1.0f; }",
        "bfloat f(bfloat x, half y) { return x + y; }",
        "void f(device bfloat* p, half h) { p[0] = h; }",
        "void f(device bfloat* p, float h) { p[0] -= h; }",
        "constant bfloat c = 1.0f;",
        "bfloat f() { return INFINITY; }",
        "bfloat f() { return M_PI_F; }",
        "bfloat f() { return 1e3f; }",
        "void f(bfloat x = 1.0f) { }",
        ],
        &[
        "bfloat f() { return 1.0bf; }",
        "bfloat f(float x) { return bfloat(x) + bfloat(1.0f) * static_cast<bfloat>(x) + (bfloat)x; }",
        "bfloat f() { bfloat x = 0; x += 1bf; x = bfloat(x * 2.0f); return x; }",
        "float f(bfloat x) { return x * 2.0f + x; }",
        "template <typename T> T f(float x) { return T(x); } bfloat g() { return f<bfloat>(1.0f); }",
        "half f(float x) { return x; }",
        ],
    );
}

#[test]
fn program_scope_is_constant() {
    check(
        &[
        "const int n = 3;",
        "static const float t[2] = {1, 2};",
        "constexpr int n = 3;",
        "static constexpr int n = 3;",
        "namespace n { const int x = 1; }",
        "namespace { int x = 1; }",
        "template <typename T> constexpr T pi = T(3);",
        "template <typename T> struct S { static constexpr int n = 1; };",
        "device int x;",
        "thread int x = 1;",
        "static device int* p;",
        "constant int n;",
        "constant int n = 3; void f() { n = 4; }",
        "constant int t[2] = {1, 2}; void f() { t[0] = 4; }",
        "constant int t[2] = {1, 2}; void f() { constant int* p = t; *p = 4; }",
        "constant int t[2] = {1, 2}; void f() { t[0]++; }",
        "float g() { return 1; } constant float x = g();",
        "constant float x = sin(1.0f);",
        "inline int n = 3;",
        "extern int n;",
        "struct S { int a; } s;",
        "int n;",
        "void f() { constant int x = 1; }",
        "void f() { device int x = 1; }",
        "void f() { const device int x = 1; }",
        "void f() { constant int t[2] = {1, 2}; }",
        "kernel void k(device int* x) { device int y; x[0] = y; }",
        ],
        &[
        "constant int n = 3; constant float t[n] = {1, 2, 3}; constant constexpr int m = n + 1; static constant int k = 2;",
        "struct S { static constant constexpr int n = 1; }; struct T { int a; }; constant T t = {1};",
        "namespace n { constant int x = 1; } template <typename T> constant constexpr T pi = T(3);",
        ],
    );
}

#[test]
fn inputs_have_their_types() {
    check(
        &[
        "kernel void k(device int* x, uint4 i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, thread uint& i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, ulong i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, size_t i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, uint2 i [[thread_position_in_grid]], uint j [[threadgroup_position_in_grid]]) { }",
        "kernel void k(device int* x, uint3 i [[thread_index_in_threadgroup]]) { }",
        "kernel void k(device int* x, float i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, uint i [[thread_position_in_grid]], uint j [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, device uint* i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, uint i) { }",
        "template <typename T> kernel void k(device T* x, T i [[thread_position_in_grid]]) { }",
        "typedef int I; kernel void k(device int* x, I i [[thread_position_in_grid]]) { }",
        ],
        &[
        "typedef uint I; kernel void k(device int* x, I i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, vec<uint, 3> i [[thread_position_in_grid]]) { }",
        "kernel void k(device int* x, uint3 i [[threadgroup_position_in_grid]], ushort3 t [[thread_position_in_threadgroup]], ushort l [[thread_index_in_simdgroup]]) { }",
        ],
    );
}
