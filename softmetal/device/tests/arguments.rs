//! What is bound to a kernel.

use crate::bench::{fails, params, values, Bench, SOURCE};
use softmetal::{kind, BufferOptions, CompileOptions, Library, Pipeline};

#[test]
fn every_parameter_is_bound() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    let result = bench.run(|encoder| {
        encoder.set_pipeline(&bench.pipeline("scale"));
        encoder.set_buffer(Some(&x), 0, 0);
        encoder.set_bytes(&params(4, 1.0), 2);
        encoder.dispatch_threads([4, 1, 1], [4, 1, 1]);
    });
    fails(result, &[kind::UNBOUND, "kernel scale", "argument 1 `y`"]);
    // A null buffer unbinds.
    let result = bench.run(|encoder| {
        bench.scale(encoder, &x, &bench.empty(4, BufferOptions::SHARED), 4, 1.0);
        encoder.set_buffer(None, 0, 0);
        encoder.dispatch_threads([4, 1, 1], [4, 1, 1]);
    });
    fails(result, &[kind::UNBOUND, "argument 0 `x`"]);
}

#[test]
fn a_parameter_that_is_not_used_is_noted() {
    let bench = Bench::new();
    let y = bench.empty(4, BufferOptions::SHARED);
    bench
        .run(|encoder| {
            encoder.set_pipeline(&bench.pipeline("scale"));
            encoder.set_buffer(Some(&y), 0, 1);
            encoder.set_bytes(&params(0, 1.0), 2);
            encoder.dispatch_threads([4, 1, 1], [4, 1, 1]);
        })
        .expect("no element, no access");
    assert_eq!(bench.kinds(), [kind::UNBOUND]);
}

#[test]
fn offsets_suit_the_type() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 12]);
    let y = bench.empty(8, BufferOptions::SHARED);
    let wide = bench.pipeline("wide");
    let run = |offset| {
        bench.run(|encoder| {
            encoder.set_pipeline(&wide);
            encoder.set_buffer(Some(&x), offset, 0);
            encoder.set_buffer(Some(&y), 0, 1);
            encoder.dispatch_threads([2, 1, 1], [2, 1, 1]);
        })
    };
    run(16).expect("aligned");
    fails(
        run(4),
        &[kind::MISALIGNED_OFFSET, "argument 0 `x`", "multiple of 16"],
    );
}

#[test]
fn constants_start_at_multiples_of_4() {
    let bench = Bench::new();
    let x = bench.empty(4, BufferOptions::SHARED);
    x.contents();
    let y = bench.empty(1, BufferOptions::SHARED);
    let constants = bench.pipeline("constants");
    for (offset, kinds) in [(4, &[][..]), (2, &[kind::MISALIGNED_OFFSET][..])] {
        bench
            .run(|encoder| {
                encoder.set_pipeline(&constants);
                encoder.set_buffer(Some(&x), offset, 0);
                encoder.set_buffer(Some(&y), 0, 1);
                encoder.dispatch_threads([2, 1, 1], [2, 1, 1]);
            })
            .expect("at most a note");
        assert_eq!(bench.kinds(), kinds);
    }
}

#[test]
fn offsets_stay_inside() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    bench
        .run(|encoder| encoder.set_buffer(Some(&x), 16, 0))
        .expect("the very end");
    fails(
        bench.run(|encoder| encoder.set_buffer(Some(&x), 20, 0)),
        &[kind::BOUNDS, "offset 20"],
    );
}

#[test]
fn a_reference_has_all_its_bytes() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    let y = bench.empty(4, BufferOptions::SHARED);
    let scale = bench.pipeline("scale");
    let run = |bytes: &[u8]| {
        bench.run(|encoder| {
            encoder.set_pipeline(&scale);
            encoder.set_buffer(Some(&x), 0, 0);
            encoder.set_buffer(Some(&y), 0, 1);
            encoder.set_bytes(bytes, 2);
            encoder.dispatch_threads([4, 1, 1], [4, 1, 1]);
        })
    };
    run(&params(4, 2.0)).expect("a struct");
    fails(
        run(&params(4, 2.0)[..8]),
        &[
            kind::SHORT_BINDING,
            "argument 2 `params`",
            "8 bytes",
            "has 16",
        ],
    );
}

#[test]
fn a_buffers_offset_can_move() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0, 2.0, 3.0, 4.0]);
    let y = bench.empty(4, BufferOptions::SHARED);
    bench
        .run(|encoder| {
            bench.scale(encoder, &x, &y, 2, 1.0);
            encoder.set_buffer_offset(8, 0);
            encoder.set_buffer_offset(8, 1);
            encoder.dispatch_threads([2, 1, 1], [2, 1, 1]);
        })
        .expect("runs");
    assert_eq!(values(&y), [1.0, 2.0, 3.0, 4.0]);
    fails(
        bench.run(|encoder| encoder.set_buffer_offset(0, 5)),
        &[kind::UNBOUND, "index 5"],
    );
}

#[test]
fn errors_in_kernels_name_the_place() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    let y = bench.empty(3, BufferOptions::SHARED);
    let result = bench.run(|encoder| bench.scale(encoder, &x, &y, 4, 1.0));
    fails(
        result,
        &[
            "out-of-bounds-write",
            "kernel scale",
            "argument 1 `y`",
            "byte 12",
            "thread [3, 0, 0]",
            "program_source:9:",
        ],
    );
    let finding = bench.device.take_findings().remove(0);
    assert_eq!(
        (finding.kind, finding.offset),
        ("out-of-bounds-write", Some(12))
    );
    assert_eq!(
        (finding.thread, finding.group),
        (Some([3, 0, 0]), Some([0, 0, 0]))
    );
    assert!(bench.device.findings().is_empty());
}

#[test]
fn memory_that_nobody_wrote_is_not_read() {
    let bench = Bench::new();
    let x = bench.empty(4, BufferOptions::PRIVATE);
    let y = bench.empty(4, BufferOptions::PRIVATE);
    let result = bench.run(|encoder| bench.scale(encoder, &x, &y, 4, 1.0));
    fails(result, &["uninitialised-read", "argument 0 `x`"]);
}

#[test]
fn a_label_tells_how_much_of_a_buffer_is_in_use() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    let run = |label: Option<&str>, named: &str| {
        let y = bench.empty(4, BufferOptions::SHARED);
        y.set_label(label);
        let source = SOURCE.replace("struct Params", &format!("{named}struct Params"));
        let library = Library::new(&bench.device, &source, &CompileOptions::default());
        let scale = library.expect("a library").function("scale");
        let scale = Pipeline::new(&scale.expect("a function")).expect("a pipeline");
        bench.run(|encoder| {
            encoder.set_pipeline(&scale);
            encoder.set_buffer(Some(&x), 0, 0);
            encoder.set_buffer(Some(&y), 0, 1);
            encoder.set_bytes(&params(4, 1.0), 2);
            encoder.dispatch_threads([4, 1, 1], [4, 1, 1]);
        })
    };
    let named = "#line 1 \"ours.metal\"\n";
    run(Some("used:16"), named).expect("as long as the buffer");
    run(Some("a name"), named).expect("any other label");
    run(Some("used:12"), "").expect("a source without a name");
    fails(
        run(Some("used:12"), named),
        &[kind::BOUNDS, "kernel scale", "of which 12 are in use"],
    );
}
