//! What Metal refuses is refused, with a message that says why; next to it what Metal accepts.

use crate::harness::check_syntax;

fn refused(body: &str, message: &str) {
    match check_syntax(body) {
        Ok(()) => panic!("accepted: {body}"),
        Err(messages) => assert!(messages.contains(message), "{body}: {messages}"),
    }
}

fn accepted(body: &str) {
    if let Err(messages) = check_syntax(body) {
        panic!("{body}: {messages}");
    }
}

#[test]
fn vectors_do_not_convert_by_themselves() {
    refused("float4 f(int4 v) { return v; }", "no viable conversion");
    refused("float4 f(half4 v) { return v; }", "no viable conversion");
    refused("float3 f(float4 v) { return float3(v); }", "no matching");
    refused("float4 f(float3 v) { return float4(v); }", "no matching");
    refused("uint4 f(uint4 a, int4 b) { return a * b; }", "invalid operands");
    refused("float4 f(float4 a, half4 b) { return a + b; }", "invalid operands");
    refused("int4 f(int4 a) { return a * 1.5f; }", "invalid operands");
    refused("float4 f() { return float4(1, 2, 3); }", "no matching");
    refused("float4 f() { return float4(half2(1, 2), half2(3, 4)); }", "no matching");
    refused("float4x4 f() { return 1.0f; }", "no viable conversion");
    accepted("float4 f(int4 v, half4 h) { return float4(v) + float4(h); }");
    accepted("half4 f(half4 v) { return v * 1.5f + 1; }");
    accepted("float4 f(packed_float4 p) { float4 v = p; return v + p; }");
}

#[test]
fn arguments_of_different_types_are_ambiguous() {
    refused("uint f(uint a) { return max(a, 1); }", "ambiguous");
    refused("float f(float a) { return max(a, 1); }", "ambiguous");
    refused("float f(float a, half b) { return min(a, b); }", "ambiguous");
    refused("float f(int a) { return exp(a); }", "ambiguous");
    accepted("float f(int a, float b, half c) { return fast::exp(a) + precise::max(b, c) + max(b, float(c)) + pow(b, 2); }");
    accepted("float f(bfloat a, float b) { return max(a, b) + exp(a) + fma(b, b, b); }");
}

#[test]
fn what_metal_lacks_is_missing() {
    for name in ["erf", "erfc", "expm1", "log1p", "lgamma", "tgamma", "cbrt", "remainder"] {
        refused(&format!("float f(float x) {{ return {name}(x); }}"), "undeclared");
        refused(&format!("float f(float x) {{ return metal::{name}(x); }}"), "no member");
    }
    refused("float f(float x) { return hypot(x, x); }", "undeclared");
    refused("float f(half4 h, int4 i) { return dot(i, i); }", "no matching function");
    refused("float f(bfloat4 h) { return exp(h).x; }", "no matching function");
    accepted("template <typename T> T erf(T x) { return x; } float f(float x) { return erf(x); }");
    accepted("namespace metal { template <typename...> using void_t = void; bfloat exp(bfloat x) { return x; } } bfloat f(bfloat x) { return exp(x); }");
}

#[test]
fn lanes_exchange_no_bool_no_bfloat_and_nothing_of_64_bits() {
    for name in ["simd_sum", "simd_max", "simd_broadcast_first", "simd_prefix_exclusive_sum", "quad_sum"] {
        for ty in ["bool", "bfloat", "long", "ulong", "size_t", "ulong2", "bfloat4"] {
            refused(&format!("void f({ty} x) {{ {name}(x); }}"), "no matching function");
        }
        for ty in ["float", "half", "int", "uint", "short", "ushort", "char", "uchar", "float4", "half3", "uchar2"] {
            accepted(&format!("void f({ty} x) {{ {name}(x); }}"));
        }
    }
    refused("void f(bfloat x) { simd_shuffle_down(x, 1); }", "no matching function");
    refused("void f(float x) { simd_xor(x); }", "no matching function");
    accepted(
        "bfloat simd_shuffle_down(bfloat v, ushort d) { return as_type<bfloat>(simd_shuffle_down(as_type<ushort>(v), d)); }
         bfloat f(bfloat x) { return simd_shuffle_down(x, 1); }",
    );
}

#[test]
fn matrices_and_atomics_have_their_types() {
    refused("simdgroup_matrix<int, 8, 8> m;", "half, float or bfloat");
    refused("simdgroup_matrix<float, 16, 16> m;", "8x8");
    refused("void f(half* p) { simdgroup_float8x8 m; simdgroup_load(m, p); }", "no matching function");
    refused("simdgroup_float8x8 f() { return 1.0f; }", "no viable conversion");
    refused("atomic<half> a;", "no atomic of this type");
    refused("void f(atomic_uint* a) { atomic_fetch_add_explicit(a, 1u, memory_order_seq_cst); }", "memory_order_relaxed only");
    refused("void f(atomic_float* a) { atomic_fetch_max_explicit(a, 1.0f, memory_order_relaxed); }", "no matching function");
    refused("void f(atomic_ulong* a) { atomic_fetch_add_explicit(a, 1ul, memory_order_relaxed); }", "no matching function");
    refused("uint f(float2 x) { return as_type<uint>(x); }", "differ in size");
}
