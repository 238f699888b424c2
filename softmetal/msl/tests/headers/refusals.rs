//! What Metal refuses is refused, with a message that says why; next to it what Metal accepts.

use crate::compiler::complaints;

/// Each body with a part of the message that refuses it.
fn refused(cases: &[(&str, &str)]) {
    let bodies: Vec<&str> = cases.iter().map(|(body, _)| *body).collect();
    for ((body, message), complaint) in cases.iter().zip(complaints(&bodies)) {
        assert!(!complaint.is_empty(), "accepted: {body}");
        assert!(complaint.contains(message), "{body}: {complaint}");
    }
}

fn accepted(bodies: &[&str]) {
    for (body, complaint) in bodies.iter().zip(complaints(bodies)) {
        assert!(complaint.is_empty(), "{body}: {complaint}");
    }
}

#[test]
fn vectors_do_not_convert_by_themselves() {
    refused(&[
        ("float4 f(int4 v) { return v; }", "no viable conversion"),
        ("float4 f(half4 v) { return v; }", "no viable conversion"),
        (
            "void f(float4 a, half4 b) { a = b; }",
            "no viable overloaded '='",
        ),
        ("float3 f(float4 v) { return float3(v); }", "no matching"),
        ("float4 f(float3 v) { return float4(v); }", "no matching"),
        (
            "uint4 f(uint4 a, int4 b) { return a * b; }",
            "invalid operands",
        ),
        (
            "float4 f(float4 a, half4 b) { return a + b; }",
            "invalid operands",
        ),
        ("int4 f(int4 a) { return a * 1.5f; }", "invalid operands"),
        ("float4 f() { return float4(1, 2, 3); }", "no matching"),
        (
            "float4 f() { return float4(half2(1, 2), half2(3, 4)); }",
            "no matching",
        ),
        ("float4x4 f() { return 1.0f; }", "no viable conversion"),
    ]);
    accepted(&[
        "float4 f(int4 v, half4 h) { return float4(v) + float4(h); }",
        "half4 f(half4 v) { return v * 1.5f + 1; }",
        "float4 f(packed_float4 p) { float4 v = p; return v + p; }",
    ]);
}

#[test]
fn arguments_of_different_types_are_ambiguous() {
    refused(&[
        ("uint f(uint a) { return max(a, 1); }", "ambiguous"),
        ("float f(float a) { return max(a, 1); }", "ambiguous"),
        (
            "float f(float a, half b) { return min(a, b); }",
            "ambiguous",
        ),
        ("float f(int a) { return exp(a); }", "ambiguous"),
    ]);
    accepted(&[
        "float f(int a, float b, half c) { return fast::exp(a) + precise::max(b, c) + max(b, float(c)) + pow(b, 2); }",
        "float f(bfloat a, float b) { return max(a, b) + exp(a) + fma(b, b, b); }",
    ]);
}

#[test]
fn what_metal_lacks_is_missing() {
    for name in [
        "erf",
        "erfc",
        "expm1",
        "log1p",
        "lgamma",
        "tgamma",
        "cbrt",
        "hypot",
        "remainder",
    ] {
        let plain = format!("float f(float x) {{ return {name}(x); }}");
        let qualified = format!("float f(float x) {{ return metal::{name}(x); }}");
        refused(&[(&plain, "undeclared"), (&qualified, "no member")]);
    }
    refused(&[
        (
            "float f(int4 i) { return dot(i, i); }",
            "no matching function",
        ),
        (
            "float f(bfloat4 h) { return exp(h).x; }",
            "no matching function",
        ),
    ]);
    accepted(&[
        "template <typename T> T erf(T x) { return x; } float f(float x) { return erf(x); }",
        "} namespace metal { template <typename...> using void_t = void; bfloat exp(bfloat x) { return x; } }
         namespace body { bfloat f(bfloat x) { return metal::exp(x); }",
    ]);
}

#[test]
fn lanes_exchange_no_bool_no_bfloat_and_nothing_of_64_bits() {
    let names = [
        "simd_sum",
        "simd_max",
        "simd_broadcast_first",
        "simd_prefix_exclusive_sum",
        "quad_sum",
    ];
    let uses = |types: &[&str]| -> Vec<String> {
        let one = |name: &str, ty: &&str| format!("void f({ty} x) {{ {name}(x); }}");
        names
            .iter()
            .flat_map(|name| types.iter().map(move |ty| one(name, ty)))
            .collect()
    };
    let wrong = uses(&[
        "bool", "bfloat", "long", "ulong", "size_t", "ulong2", "bfloat4",
    ]);
    refused(
        &wrong
            .iter()
            .map(|body| (body.as_str(), "no matching function"))
            .collect::<Vec<_>>(),
    );
    let right = uses(&[
        "float", "half", "int", "uint", "short", "ushort", "char", "uchar", "float4", "half3",
        "uchar2",
    ]);
    accepted(&right.iter().map(String::as_str).collect::<Vec<_>>());
    refused(&[
        (
            "void f(bfloat x) { simd_shuffle_down(x, 1); }",
            "no matching function",
        ),
        ("void f(float x) { simd_xor(x); }", "no matching function"),
    ]);
    accepted(&[
        "bfloat simd_shuffle_down(bfloat v, ushort d) { return as_type<bfloat>(metal::simd_shuffle_down(as_type<ushort>(v), d)); }
         bfloat f(bfloat x) { return simd_shuffle_down(x, 1); }",
    ]);
}

#[test]
fn matrices_and_atomics_have_their_types() {
    refused(&[
        ("simdgroup_matrix<int, 8, 8> m;", "half, float or bfloat"),
        ("simdgroup_matrix<float, 16, 16> m;", "8x8"),
        (
            "void f(half* p) { simdgroup_float8x8 m; simdgroup_load(m, p); }",
            "no matching function",
        ),
        (
            "simdgroup_float8x8 f() { return 1.0f; }",
            "no viable conversion",
        ),
        ("atomic<half> a;", "no atomic of this type"),
        (
            "void f(atomic_uint* a) { atomic_fetch_add_explicit(a, 1u, memory_order_seq_cst); }",
            "memory_order_relaxed only",
        ),
        (
            "void f(atomic_float* a) { atomic_fetch_max_explicit(a, 1.0f, memory_order_relaxed); }",
            "no matching function",
        ),
        (
            "void f(atomic_ulong* a) { atomic_fetch_add_explicit(a, 1ul, memory_order_relaxed); }",
            "no matching function",
        ),
        (
            "uint f(float2 x) { return as_type<uint>(x); }",
            "differ in size",
        ),
    ]);
    accepted(&["float f(volatile atomic_float* a) { return atomic_fetch_add_explicit(a, 1, memory_order_relaxed); }"]);
}
