//! What Apple's compiler refuses is refused, and its accepted twin is not.

use softmetal_msl::{Library, Options, Version};

fn compile(body: &str, language: Version) -> Result<Library, String> {
    let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{body}\n");
    Library::new(
        &source,
        &Options {
            language,
            ..Options::default()
        },
    )
    .map_err(|error| error.to_string())
}

/// `bad` is refused in its first line with a message that has `why` in it; `good` passes.
#[track_caller]
fn twins(bad: &str, why: &str, good: &str) {
    let error = compile(bad, Version::V3_1)
        .err()
        .unwrap_or_else(|| panic!("accepted: {bad}"));
    assert!(
        error.starts_with("program_source:3:") && error.contains(why),
        "{bad}\n{error}"
    );
    if let Err(error) = compile(good, Version::V3_1) {
        panic!("{good}\n{error}");
    }
}

#[test]
fn pointers_without_address_space() {
    let why = "must have explicit address space qualifier";
    twins(
        "float f(float* p) { return p[0]; }",
        why,
        "float f(device float* p) { return p[0]; }",
    );
    twins(
        "void f() { int a = 0; int& r = a; r = 1; }",
        why,
        "void f() { int a = 0; thread int& r = a; r = 1; }",
    );
    twins(
        "struct S { float* p; };",
        why,
        "struct S { device float* p; };",
    );
    twins(
        "float f(device float* p) { return *(float*)p; }",
        why,
        "float f(device float* p) { return *(device float*)p; }",
    );
}

#[test]
fn types_that_metal_lacks() {
    twins(
        "float f() { double x = 1.0; return x; }",
        "double",
        "float f() { float x = 1.0; return x; }",
    );
    twins(
        "long f() { long long x = 1; return x; }",
        "long long",
        "long f() { long x = 1; return x; }",
    );
    twins(
        "long f() { return 1ll; }",
        "long long",
        "long f() { return 1l; }",
    );
}

#[test]
fn statements_that_metal_lacks() {
    twins(
        "void f() { goto a; a: return; }",
        "goto",
        "void f() { return; }",
    );
    twins(
        "void f(thread int* p) { delete p; }",
        "delete",
        "struct S { S() = default; S(int) = delete; };",
    );
    twins(
        "void f() { throw 1; }",
        "exceptions",
        "void f() { return; }",
    );
    twins(
        "struct S { virtual int f() { return 1; } };",
        "virtual",
        "struct S { int f() { return 1; } };",
    );
    twins(
        "int main() { return 0; }",
        "main",
        "int main_() { return 0; }",
    );
    twins(
        "int f(int a, ...) { return a; }",
        "variadic",
        "template <typename... A> int f(A... a) { return sizeof...(a); }",
    );
}

#[test]
fn lambdas_below_3_2() {
    let source = "int f() { auto g = [](int a) { return a + 1; }; return g(1); }";
    assert!(compile(source, Version::V3_1).unwrap_err().contains("3.2"));
    assert!(compile(source, Version::V3_2).is_ok());
}

#[test]
fn bfloat_below_3_1() {
    let source = "float f() { bfloat x = bfloat(1.0f); return float(x); }";
    assert!(compile(source, Version::V3_0).unwrap_err().contains("3.1"));
    assert!(compile(source, Version::V3_1).is_ok());
}

#[test]
fn implicit_conversions_to_bfloat() {
    let why = "cannot implicitly convert to 'bfloat'";
    twins(
        "bfloat f(float x) { return x; }",
        why,
        "bfloat f(float x) { return bfloat(x); }",
    );
    twins(
        "void f(device bfloat* p, float x) { p[0] = x; }",
        why,
        "void f(device half* p, float x) { p[0] = x; }",
    );
    twins(
        "bfloat f(float x) { return x; }",
        why,
        "bfloat f(int x) { return x; }",
    );
}

#[test]
fn variables() {
    twins(
        "int n = 3;",
        "constant address space",
        "constant int n = 3;",
    );
    twins(
        "struct S { static constexpr int n = 3; };",
        "constant address space",
        "struct S { static constexpr constant int n = 3; };",
    );
    twins(
        "int f() { static int n = 3; return n; }",
        "static local",
        "int f() { int n = 3; return n; }",
    );
    twins(
        "int f() { constant int n = 3; return n; }",
        "invalid address space",
        "int f() { const int n = 3; return n; }",
    );
    let call = "float g() { return 1.0f; }";
    twins(
        &format!("{call} constant float n = g();"),
        "constant expression",
        &format!("{call} constant float n = 1.0f + 2.0f;"),
    );
}

#[test]
fn threadgroup_variables() {
    let kernel = |body: &str| {
        format!("kernel void k(device float* x, uint i [[thread_position_in_grid]]) {{ {body} }}")
    };
    twins(
        "threadgroup float a[4];",
        "kernel function",
        &kernel("threadgroup float a[4]; a[i] = x[i];"),
    );
    twins(
        "void f() { threadgroup float a[4]; a[0] = 1; }",
        "kernel function",
        "void f(threadgroup float* a) { a[0] = 1; }",
    );
    twins(
        &kernel("threadgroup float a[4] = {0}; x[0] = a[0];"),
        "initializer",
        &kernel("threadgroup float a[4]; x[0] = a[0];"),
    );
}

#[test]
fn kernels() {
    twins(
        "kernel int k(device int* x) { return 1; }",
        "void return",
        "kernel void k(device int* x) { x[0] = 1; }",
    );
    twins(
        "kernel void k(device int* x, int n) { x[0] = n; }",
        "invalid type",
        "kernel void k(device int* x, constant int& n) { x[0] = n; }",
    );
    twins(
        "kernel void k(thread int* x) { x[0] = 1; }",
        "device, constant or threadgroup",
        "kernel void k(threadgroup int* x) { x[0] = 1; }",
    );
    twins(
        "struct S { kernel void k(device int* x) { } };",
        "member",
        "struct S { }; kernel void k(device int* x) { }",
    );
    twins(
        "kernel void k(device int* x) { } kernel void k(device float* x) { }",
        "twice",
        "kernel void k(device int* x) { } kernel void l(device float* x) { }",
    );
}

#[test]
fn arguments() {
    let kernel = |arguments: &str| format!("kernel void k({arguments}) {{ }}");
    twins(
        &kernel("device int* x [[buffer(1)]], device int* y [[buffer(1)]]"),
        "index 1",
        &kernel("device int* x [[buffer(1)]], device int* y [[buffer(0)]]"),
    );
    twins(
        &kernel("device int* x [[buffer(31)]]"),
        "out of bounds",
        &kernel("device int* x [[buffer(30)]]"),
    );
    twins(
        &kernel("device int* x [[threadgroup(0)]]"),
        "cannot be applied",
        &kernel("threadgroup int* x [[threadgroup(0)]]"),
    );
    twins(
        &kernel("device int* x [[bufer(0)]]"),
        "unknown attribute",
        &kernel("device int* x [[buffer(0)]]"),
    );
    twins(
        &kernel("texture2d<float> t [[texture(0)]]"),
        "texture",
        &kernel("device float* t [[buffer(0)]]"),
    );
}

#[test]
fn built_in_inputs() {
    let kernel = |arguments: &str| format!("kernel void k(device int* x, {arguments}) {{ }}");
    twins(
        &kernel("int i [[thread_position_in_grid]]"),
        "not valid",
        &kernel("uint i [[thread_position_in_grid]]"),
    );
    twins(
        &kernel("uint i [[thread_position_in_grid]], uint3 n [[threads_per_grid]]"),
        "components",
        &kernel("uint3 i [[thread_position_in_grid]], uint3 n [[threads_per_grid]]"),
    );
    twins(
        &kernel("uint i [[thread_position_in_grid]], ushort n [[threads_per_grid]]"),
        "ushort",
        &kernel("uint i [[thread_position_in_grid]], ushort n [[thread_position_in_threadgroup]]"),
    );
    twins(
        &kernel("uint2 i [[thread_index_in_simdgroup]]"),
        "not valid",
        &kernel("ushort i [[thread_index_in_simdgroup]]"),
    );
}

#[test]
fn instantiations() {
    let template = "template <typename T> [[kernel]] void k(device T* x) { x[0] = T(1); }";
    let instance = |name: &str, of: &str| {
        format!("template [[host_name(\"{name}\")]] [[kernel]] decltype({of}) {of};")
    };
    let one = instance("a", "k<int>");
    twins(
        &format!("{template} {one} {one}"),
        "used twice",
        &format!("{template} {one} {}", instance("b", "k<float>")),
    );
    twins(
        &format!("{template} {}", instance("a", "j<int>")),
        "not a kernel",
        &format!("{template} {one}"),
    );
}

#[test]
fn function_constants() {
    let constant = "constant int c [[function_constant(0)]];";
    twins(
        &format!("{constant} constant int d [[function_constant(0)]];"),
        "already used",
        &format!("{constant} constant int d [[function_constant(1)]];"),
    );
    twins(
        "constant int c [[function_constant(0)]] = 1;",
        "initialised",
        constant,
    );
    twins(
        &format!("{constant} void f() {{ vec<float, c> v; }}"),
        "constant expression",
        &format!("{constant} int f() {{ return c; }}"),
    );
    twins(
        "int c [[function_constant(0)]];",
        "constant address space",
        constant,
    );
}

#[test]
fn lenient_compilation_takes_more() {
    let source = "#include <metal_stdlib>\nfloat f(float* p) { static int n = 3; return p[n]; }\n";
    assert!(Library::new(source, &Options::default()).is_err());
    assert!(Library::new(
        source,
        &Options {
            strict: false,
            ..Options::default()
        }
    )
    .is_ok());
}
