//! The states of command buffers and encoders.

use crate::bench::{fails, Bench};
use softmetal::{kind, BufferOptions};

#[test]
fn nothing_is_set_after_the_end() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    let y = bench.empty(4, BufferOptions::SHARED);
    let buffer = bench.command_buffer();
    let encoder = buffer.compute_encoder(false);
    bench.scale(&encoder, &x, &y, 4, 1.0);
    encoder.end_encoding();
    encoder.set_buffer(Some(&x), 0, 0);
    fails(
        bench.finish(&buffer),
        &[kind::STATE, "setBuffer on an encoder that has ended"],
    );
}

#[test]
fn an_encoder_ends_once() {
    let bench = Bench::new();
    let buffer = bench.command_buffer();
    let encoder = buffer.blit_encoder();
    encoder.end_encoding();
    encoder.end_encoding();
    fails(
        bench.finish(&buffer),
        &[kind::STATE, "endEncoding on an encoder that has ended"],
    );
}

#[test]
fn a_dispatch_needs_a_pipeline() {
    let bench = Bench::new();
    let result = bench.run(|encoder| encoder.dispatch_threads([1, 1, 1], [1, 1, 1]));
    fails(result, &[kind::STATE, "dispatchThreads without a pipeline"]);
}

#[test]
fn one_encoder_at_a_time() {
    let bench = Bench::new();
    let buffer = bench.command_buffer();
    let first = buffer.compute_encoder(true);
    let second = buffer.blit_encoder();
    second.end_encoding();
    first.end_encoding();
    fails(
        bench.finish(&buffer),
        &[
            kind::STATE,
            "a blit encoder while a compute encoder is open",
        ],
    );

    let buffer = bench.command_buffer();
    buffer.compute_encoder(true).end_encoding();
    buffer.blit_encoder().end_encoding();
    bench.finish(&buffer).expect("one after the other");
}

#[test]
fn all_encoders_end_before_the_commit() {
    let bench = Bench::new();
    let buffer = bench.command_buffer();
    let encoder = buffer.compute_encoder(true);
    fails(
        bench.finish(&buffer),
        &[kind::STATE, "commit while a compute encoder is open"],
    );
    drop(encoder);
}

#[test]
fn an_encoder_is_not_dropped_open() {
    let bench = Bench::new();
    let buffer = bench.command_buffer();
    drop(buffer.compute_encoder(true));
    fails(
        bench.finish(&buffer),
        &[kind::STATE, "released without endEncoding"],
    );
}

#[test]
fn nothing_is_encoded_after_the_commit() {
    let bench = Bench::new();
    let buffer = bench.command_buffer();
    bench.finish(&buffer).expect("empty");
    buffer.compute_encoder(true).end_encoding();
    buffer.add_completed_handler(Box::new(|_| ()));
    buffer.commit();
    assert_eq!(bench.kinds(), [kind::STATE; 4]);
    assert!(bench
        .device
        .findings()
        .iter()
        .all(|finding| finding.detail.contains("committed")));
}

#[test]
fn an_uncommitted_buffer_is_not_waited_for() {
    let bench = Bench::new();
    let buffer = bench.command_buffer();
    buffer.wait_until_completed();
    fails(
        bench.finish(&buffer),
        &[kind::STATE, "not committed would never end"],
    );
}

#[test]
fn debug_groups_are_balanced() {
    let bench = Bench::new();
    bench
        .run(|encoder| {
            encoder.push_debug_group();
            encoder.pop_debug_group();
        })
        .expect("balanced");
    let result = bench.run(|encoder| encoder.pop_debug_group());
    fails(result, &[kind::STATE, "popDebugGroup"]);
}

#[test]
fn a_fence_is_not_waited_for_after_its_update() {
    let bench = Bench::new();
    let fence = Default::default();
    bench
        .run(|encoder| {
            encoder.wait_for_fence(&fence);
            encoder.update_fence(&fence);
        })
        .expect("in order");
    let result = bench.run(|encoder| {
        encoder.update_fence(&fence);
        encoder.wait_for_fence(&fence);
    });
    fails(result, &[kind::STATE, "waitForFence"]);
}
