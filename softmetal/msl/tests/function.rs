//! From a source to a function that can be called.

mod common;

use softmetal_abi::{Builtins, Space};
use softmetal_msl::{CompileError, Constant, Library, MathMode, Options};
use std::ffi::c_void;

fn library(source: &str) -> Library {
    Library::new(source, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn pointer<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

const AFFINE: &str = "#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void affine(
    device const T* x [[buffer(0)]],
    device T* y,
    constant float& factor [[buffer(2)]],
    uint i [[thread_position_in_grid]]
) {
    y[i] =
        T(x[i] * factor);
}
template [[host_name(\"affine_f32\")]] [[kernel]] decltype(affine<float>) affine<float>;
template [[host_name(\"affine_f16\")]] [[kernel]] decltype(affine<half>) affine<half>;
";

#[test]
fn a_kernel_is_called() {
    let library = library(AFFINE);
    assert_eq!(library.functions(), ["affine_f32", "affine_f16"]);
    assert!(library.function("affine", &[]).unwrap().is_none());
    let function = library.function("affine_f32", &[]).unwrap().unwrap();
    let shown: Vec<_> = function
        .params
        .iter()
        .map(|p| {
            (
                p.name.as_str(),
                p.space,
                p.index,
                p.read_only,
                p.reference,
                p.size,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("x", Space::Device, 0, true, false, 4),
            ("y", Space::Device, 1, false, false, 4),
            ("factor", Space::Constant, 2, true, true, 4),
        ]
    );
    let (mut x, mut y, mut factor) = ([1.0f32, 2.0, 3.0], [0.0f32; 3], 10.0f32);
    let builtins = Builtins {
        thread_position_in_grid: [1, 0, 0],
        ..Builtins::default()
    };
    common::run(
        &function,
        &[pointer(&mut x), pointer(&mut y), pointer(&mut factor)],
        &builtins,
    );
    assert_eq!(y, [0.0, 20.0, 0.0]);
    let lines: Vec<_> = common::ACCESSES.with_borrow(|list| {
        list.iter()
            .map(|(_, _, pc)| (function.locate)(pc - 1).map(|l| (l.file, l.line)))
            .collect()
    });
    let line = |line| Some(("program_source".to_owned(), line));
    assert_eq!(lines, [line(12), line(12), line(11)]);
    let code = function.entry as usize;
    assert!(function.image.iter().any(|range| range.contains(&code)));
}

#[test]
fn unknown_names_are_none() {
    assert!(library(AFFINE)
        .function("affine_f64", &[])
        .unwrap()
        .is_none());
}

#[test]
fn constants() {
    let library = library(
        "#include <metal_stdlib>
         using namespace metal;
         constant bool on [[function_constant(3)]];
         constant ushort n [[function_constant(4)]];
         constant uint extra [[function_constant(5)]];
         constant bool both = on && n > 2;
         constant uint more = is_function_constant_defined(extra) ? extra : 7u;
         kernel void k(device uint* out, device const uint* mask [[function_constant(both)]], constant uint& z [[buffer(7)]]) {
             out[0] = on ? n : 100u;
             out[1] = more;
             out[2] = both ? mask[0] : 9u;
         }",
    );
    let run = |constants: &[(u32, Constant)]| {
        let function = library.function("k", constants).unwrap().unwrap();
        let (mut out, mut mask, mut z) = ([0u32; 3], 55u32, 0u32);
        common::run(
            &function,
            &[pointer(&mut out), pointer(&mut mask), pointer(&mut z)],
            &Builtins::default(),
        );
        (out, function.params[1].enabled, function.params[1].index)
    };
    use Constant::{Bool, U16, U32};
    assert_eq!(
        run(&[(3, Bool(true)), (4, U16(12))]),
        ([12, 7, 55], true, 1)
    );
    assert_eq!(
        run(&[(3, Bool(false)), (4, U16(12)), (5, U32(1)), (99, U32(1))]),
        ([100, 1, 9], false, 1)
    );
    let missing = library.function("k", &[(3, Bool(true))]).err();
    assert_eq!(
        missing,
        Some(CompileError::Constants(
            "function constant 'n' is used but has no value".into()
        ))
    );
    let wrong = library.function("k", &[(3, Bool(true)), (4, U32(1))]).err();
    assert!(
        matches!(wrong, Some(CompileError::Constants(_))),
        "{wrong:?}"
    );
}

#[test]
fn threadgroup_memory_and_limits() {
    let library = library(
        "#include <metal_stdlib>
         using namespace metal;
         template <typename T, int N>
         [[kernel, max_total_threads_per_threadgroup(N * 32)]] void k(
             device T* out, threadgroup T* given [[threadgroup(1)]], uint i [[thread_index_in_threadgroup]]
         ) {
             threadgroup T a[N];
             threadgroup T b;
             a[i] = T(1);
             b = T(2);
             given[0] = a[i] + b;
             out[0] = given[0];
         }
         template [[host_name(\"k4\")]] kernel void k<float, 4>(device float*, threadgroup float*, uint);
         template [[host_name(\"k8\")]] kernel void k<float, 8>(device float*, threadgroup float*, uint);",
    );
    let function = library.function("k4", &[]).unwrap().unwrap();
    assert_eq!(
        (function.max_threads, function.static_threadgroup),
        (Some(128), 20)
    );
    assert_eq!(
        (function.params[1].space, function.params[1].index),
        (Space::Threadgroup, 1)
    );
    let (mut out, mut given) = (0.0f32, 0.0f32);
    common::run(
        &function,
        &[pointer(&mut out), pointer(&mut given)],
        &Builtins::default(),
    );
    assert_eq!(out, 3.0);
    let other = library.function("k8", &[]).unwrap().unwrap();
    assert_eq!(
        (other.max_threads, other.static_threadgroup),
        (Some(256), 36)
    );
}

#[test]
fn fast_math_rounds_an_operand_once() {
    // tanh(1.8809) is just below the middle of two halves between one and two, and rounds to the middle.
    let source = "#include <metal_stdlib>
         using namespace metal;
         template <typename T> T f(T x, float3 v) {
             T unused = v.x * T(v.y) - T(2) * static_cast<T>(v.z) / T(1.5h);
             return static_cast<T>(1.0) + T(precise::tanh(x)) + T(0) * unused;
         }
         kernel void k(device half* x) { x[1] = f(x[0], float3(1)); }";
    let run = |math| {
        let options = Options {
            math,
            ..Options::default()
        };
        let library = Library::new(source, &options).unwrap_or_else(|error| panic!("{error}"));
        let function = library.function("k", &[]).unwrap().unwrap();
        let mut x = [0x3f86u16, 0];
        common::run(&function, &[pointer(&mut x)], &Builtins::default());
        x[1]
    };
    assert_eq!(run(MathMode::Fast), 0x3fd1);
    assert_eq!(run(MathMode::Safe), 0x3fd2);
}

#[test]
fn errors_carry_the_authors_lines() {
    let fail = |source: &str| {
        Library::new(source, &Options::default())
            .unwrap_err()
            .to_string()
    };
    let text = fail("#include <metal_stdlib>\nusing namespace metal;\nkernel void k(device float* x) {\n    x[0] = y;\n}\n");
    assert_eq!(
        text,
        "program_source:4:12: error: use of undeclared identifier 'y'"
    );
    let text = fail("#line 1 \"op.metal\"\nint f() {\n  return 1\n}\n");
    assert_eq!(
        text,
        "op.metal:2:11: error: expected ';' after return statement"
    );
    let text = fail("#include <nothing>\n");
    assert_eq!(text, "program_source:1:10: error: 'nothing' file not found");
}
