//! Copies and fills.

use crate::bench::{fails, values, Bench};
use softmetal::{kind, BlitEncoder, Buffer, BufferOptions};
use std::sync::Arc;

fn blit(bench: &Bench, encode: impl FnOnce(&BlitEncoder)) -> Result<(), String> {
    let buffer = bench.command_buffer();
    let encoder = buffer.blit_encoder();
    encode(&encoder);
    encoder.end_encoding();
    bench.finish(&buffer)
}

#[test]
fn copies_and_fills() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0, 2.0, 3.0]);
    let y = bench.empty(4, BufferOptions::SHARED);
    blit(&bench, |encoder| {
        encoder.fill(&y, 0..16, 0);
        encoder.copy(&x, 4, &y, 8, 8);
    })
    .expect("runs");
    assert_eq!(values(&y), [0.0, 0.0, 2.0, 3.0]);
    assert!(bench.device.findings().is_empty());
}

#[test]
fn both_ends_are_checked() {
    let bench = Bench::new();
    let (x, y) = (bench.floats(&[1.0; 2]), bench.floats(&[1.0; 4]));
    let copy = |from: &Arc<Buffer>, from_offset, to: &Arc<Buffer>, to_offset, size| {
        blit(&bench, |encoder| {
            encoder.copy(from, from_offset, to, to_offset, size)
        })
    };
    copy(&x, 0, &y, 8, 8).expect("fits");
    fails(copy(&x, 4, &y, 0, 8), &[kind::BOUNDS, "source"]);
    fails(copy(&x, 0, &y, 12, 8), &[kind::BOUNDS, "destination"]);
    fails(copy(&x, usize::MAX, &y, 0, 8), &[kind::BOUNDS, "source"]);
    fails(
        blit(&bench, |encoder| encoder.fill(&x, 4..12, 0)),
        &[kind::BOUNDS, "fillBuffer"],
    );
}

#[test]
fn a_copy_within_a_buffer_does_not_overlap() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0, 2.0, 3.0, 4.0]);
    blit(&bench, |encoder| encoder.copy(&x, 0, &x, 8, 8)).expect("apart");
    assert_eq!(values(&x), [1.0, 2.0, 1.0, 2.0]);
    fails(
        blit(&bench, |encoder| encoder.copy(&x, 0, &x, 4, 8)),
        &[kind::BOUNDS, "overlap"],
    );
}

#[test]
fn empty_copies_are_noted() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0]);
    blit(&bench, |encoder| encoder.copy(&x, 0, &x, 99, 0)).expect("nothing to do");
    assert_eq!(bench.kinds(), [kind::EMPTY]);
}

#[test]
fn a_copy_of_garbage_is_garbage() {
    let bench = Bench::new();
    let x = bench.empty(4, BufferOptions::PRIVATE);
    let y = bench.empty(4, BufferOptions::PRIVATE);
    let z = bench.empty(4, BufferOptions::PRIVATE);
    blit(&bench, |encoder| encoder.copy(&x, 0, &y, 0, 16)).expect("copying is no use");
    fails(
        bench.run(|encoder| bench.scale(encoder, &y, &z, 4, 1.0)),
        &["uninitialised-read"],
    );
    blit(&bench, |encoder| {
        encoder.fill(&x, 0..16, 0);
        encoder.copy(&x, 0, &y, 0, 16);
    })
    .expect("runs");
    bench
        .run(|encoder| bench.scale(encoder, &y, &z, 4, 1.0))
        .expect("written");
}
