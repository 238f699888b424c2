//! Sources, functions and pipelines.

use crate::bench::{values, Bench};
use softmetal::{BufferOptions, CompileOptions, Constant, Library, Pipeline, Settings};

#[test]
fn errors_have_the_line() {
    let bench = Bench::new();
    let source = "#include <metal_stdlib>\nusing namespace metal;\nkernel void k(device float* x) { x[0] = nothing; }\n";
    let error = Library::new(&bench.device, source, &CompileOptions::default())
        .err()
        .expect("refused");
    assert_eq!(error.domain, "MTLLibraryErrorDomain");
    assert!(error.description.contains("program_source:3:"), "{error}");
    assert!(error.description.contains("nothing"), "{error}");
}

#[test]
fn unknown_names_are_none() {
    let bench = Bench::new();
    assert!(bench.library().function("nowhere").is_none());
    assert!(bench.library().specialised("nowhere", &[]).is_err());
    assert!(bench.library().names().iter().any(|name| name == "scale"));
}

#[test]
fn constants_are_baked_in() {
    let bench = Bench::new();
    let run = |twice, bias| {
        let constants = [(0, Constant::Bool(twice)), (1, Constant::F32(bias))];
        let function = bench
            .library()
            .specialised("specialised", &constants)
            .expect("a function");
        let pipeline = Pipeline::new(&function).expect("a pipeline");
        let y = bench.empty(3, BufferOptions::SHARED);
        bench
            .run(|encoder| {
                encoder.set_pipeline(&pipeline);
                encoder.set_buffer(Some(&y), 0, 0);
                encoder.dispatch_threads([3, 1, 1], [3, 1, 1]);
            })
            .expect("runs");
        values(&y)
    };
    assert_eq!(run(false, 0.5), [0.5, 1.5, 2.5]);
    assert_eq!(run(true, 0.0), [0.0, 2.0, 4.0]);
}

#[test]
fn too_much_threadgroup_memory_makes_no_pipeline() {
    let bench = Bench::new();
    let source = |count: usize| {
        format!(
            "#include <metal_stdlib>\nusing namespace metal;\nkernel void k(device float* y [[buffer(0)]], uint i \
             [[thread_index_in_threadgroup]]) {{ threadgroup float s[{count}]; s[i] = 1.0f; \
             threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = s[i]; }}\n"
        )
    };
    let make = |count| {
        let library = Library::new(&bench.device, &source(count), &CompileOptions::default())?;
        Pipeline::new(&library.function("k").expect("a function"))
    };
    assert!(make(8192).is_ok());
    let error = make(8193).err().expect("refused");
    assert!(
        error
            .description
            .contains("32772 bytes of threadgroup memory"),
        "{error}"
    );
}

#[test]
fn unchecked_devices_compute_the_same() {
    let mut settings = Settings::checked();
    (settings.check, settings.execution.check) = (false, false);
    let bench = Bench::with(settings);
    let x = bench.floats(&[1.0, 2.0, 3.0]);
    let y = bench.empty(3, BufferOptions::SHARED);
    bench
        .run(|encoder| bench.scale(encoder, &x, &y, 3, 2.0))
        .expect("runs");
    assert_eq!(values(&y), [2.0, 4.0, 6.0]);
}
