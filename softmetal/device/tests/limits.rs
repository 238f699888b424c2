//! What the hardware has.

use crate::bench::{fails, params, values, Bench};
use softmetal::{kind, limits, Buffer, BufferOptions, Settings};

#[test]
fn there_are_31_buffers() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0]);
    bench
        .run(|encoder| encoder.set_buffer(Some(&x), 0, 30))
        .expect("the last one");
    fails(
        bench.run(|encoder| encoder.set_buffer(Some(&x), 0, 31)),
        &[kind::LIMIT, "index 31"],
    );
    fails(
        bench.run(|encoder| encoder.set_bytes(&[0; 4], 31)),
        &[kind::LIMIT, "index 31"],
    );
}

#[test]
fn bytes_are_fewer_than_4096() {
    let bench = Bench::new();
    bench
        .run(|encoder| encoder.set_bytes(&[0; 4095], 0))
        .expect("just fits");
    fails(
        bench.run(|encoder| encoder.set_bytes(&[0; 4096], 0)),
        &[kind::LIMIT, "setBytes of 4096 bytes"],
    );
}

#[test]
fn empty_bytes_are_noted() {
    let bench = Bench::new();
    bench
        .run(|encoder| encoder.set_bytes(&[], 0))
        .expect("only a note");
    assert_eq!(bench.kinds(), [kind::EMPTY]);
}

#[test]
fn threadgroup_lengths_are_multiples_of_16() {
    let bench = Bench::new();
    let shared = bench.pipeline("shared");
    let run = |length| {
        let y = bench.empty(32, BufferOptions::SHARED);
        let result = bench.run(|encoder| {
            encoder.set_pipeline(&shared);
            encoder.set_buffer(Some(&y), 0, 0);
            encoder.set_threadgroup_memory_length(length, 0);
            encoder.dispatch_threadgroups([1, 1, 1], [32, 1, 1]);
        });
        result.map(|()| values(&y)[0])
    };
    assert_eq!(run(128), Ok(31.0));
    fails(run(136).map(|_| ()), &[kind::LIMIT, "not a multiple of 16"]);
    fails(
        run(0).map(|_| ()),
        &[kind::UNBOUND, "`scratch`", "no length"],
    );
}

#[test]
fn threadgroup_memory_is_32_kib_in_all() {
    let bench = Bench::new();
    let large = bench.pipeline("large");
    assert_eq!(large.static_threadgroup_memory(), 16 * 1024);
    let run = |length| {
        let y = bench.empty(32, BufferOptions::SHARED);
        bench.run(|encoder| {
            encoder.set_pipeline(&large);
            encoder.set_buffer(Some(&y), 0, 0);
            encoder.set_threadgroup_memory_length(length, 0);
            encoder.dispatch_threadgroups([1, 1, 1], [32, 1, 1]);
        })
    };
    run(16 * 1024).expect("just fits");
    fails(
        run(16 * 1024 + 16),
        &[kind::LIMIT, "32784 bytes of threadgroup memory"],
    );
}

#[test]
fn groups_keep_to_the_pipelines_limit() {
    let bench = Bench::new();
    let narrow = bench.pipeline("narrow");
    assert_eq!(narrow.max_threads(), 64);
    assert_eq!(bench.pipeline("wide").max_threads(), 1024);
    let run = |group| {
        let y = bench.empty(2048, BufferOptions::SHARED);
        bench.run(|encoder| {
            encoder.set_pipeline(&narrow);
            encoder.set_buffer(Some(&y), 0, 0);
            encoder.dispatch_threads([2048, 1, 1], group);
        })
    };
    run([64, 1, 1]).expect("just fits");
    fails(run([65, 1, 1]), &[kind::LIMIT, "limit is 64"]);
    fails(run([0, 1, 1]), &[kind::LIMIT, "empty"]);
}

#[test]
fn the_limit_of_all_pipelines_can_be_lowered() {
    let bench = Bench::with(Settings {
        max_threads: 256,
        ..Settings::checked()
    });
    assert_eq!(bench.pipeline("wide").max_threads(), 256);
    assert_eq!(bench.pipeline("narrow").max_threads(), 64);
}

#[test]
fn grids_are_neither_empty_nor_too_large() {
    let bench = Bench::new();
    let (x, y) = (
        bench.floats(&[1.0; 32]),
        bench.empty(32, BufferOptions::SHARED),
    );
    let scale = bench.pipeline("scale");
    let encode = |encoder: &softmetal::ComputeEncoder| {
        encoder.set_pipeline(&scale);
        encoder.set_buffer(Some(&x), 0, 0);
        encoder.set_buffer(Some(&y), 0, 1);
        encoder.set_bytes(&params(32, 1.0), 2);
    };
    let threads = |grid| {
        bench.run(|encoder| {
            encode(encoder);
            encoder.dispatch_threads(grid, [32, 1, 1]);
        })
    };
    let groups = |grid| {
        bench.run(|encoder| {
            encode(encoder);
            encoder.dispatch_threadgroups(grid, [32, 1, 1]);
        })
    };
    threads([33, 1, 1]).expect("a grid");
    fails(threads([0, 1, 1]), &[kind::LIMIT, "empty"]);
    fails(groups([1, 0, 1]), &[kind::LIMIT, "empty"]);
    fails(threads([1 << 32, 1, 1]), &[kind::LIMIT, "32 bits"]);
    fails(groups([1 << 27, 1, 1]), &[kind::LIMIT, "32 bits"]);
}

#[test]
fn buffers_have_a_largest_length() {
    let bench = Bench::new();
    assert!(Buffer::new(&bench.device, limits::BUFFER + 1, BufferOptions::SHARED).is_none());
    assert_eq!(bench.kinds(), [kind::LIMIT]);
}

#[test]
fn a_queue_has_64_command_buffers() {
    let bench = Bench::new();
    let open: Vec<_> = (0..64).map(|_| bench.command_buffer()).collect();
    assert!(bench.queue.command_buffer().is_none());
    assert_eq!(bench.kinds(), [kind::LIMIT]);
    drop(open);
    // Those that are committed are waited for.
    for _ in 0..200 {
        bench.command_buffer().commit();
    }
}

#[test]
fn memory_is_counted() {
    let bench = Bench::new();
    let x = bench.empty(100, BufferOptions::PRIVATE);
    assert_eq!(bench.device.allocated(), 400);
    drop(x);
    assert_eq!(bench.device.allocated(), 0);
}
