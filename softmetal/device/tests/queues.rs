//! The order of command buffers.

use crate::bench::{values, Bench};
use softmetal::{BufferOptions, Status};
use std::sync::{Arc, Mutex};

#[test]
fn the_last_one_completes_last() {
    let bench = Bench::new();
    let (x, y) = (
        bench.floats(&[1.0; 4]),
        bench.empty(4, BufferOptions::SHARED),
    );
    let buffers: Vec<_> = (0..20)
        .map(|i| {
            let buffer = bench.command_buffer();
            let encoder = buffer.compute_encoder(false);
            bench.scale(&encoder, &x, &y, 4, i as f32);
            encoder.end_encoding();
            buffer.commit();
            buffer
        })
        .collect();
    buffers[19].wait_until_completed();
    assert!(buffers
        .iter()
        .all(|buffer| buffer.status() == Status::Completed));
    assert_eq!(values(&y), [19.0; 4]);
}

#[test]
fn places_are_kept_for_enqueued_buffers() {
    let bench = Bench::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let [first, second] = [1, 2].map(|number| {
        let buffer = bench.command_buffer();
        let order = order.clone();
        buffer.add_completed_handler(Box::new(move |_| {
            order.lock().expect("a list").push(number)
        }));
        buffer.enqueue();
        buffer
    });
    assert_eq!(first.status(), Status::Enqueued);
    second.commit();
    first.commit();
    second.wait_until_completed();
    assert_eq!(*order.lock().expect("a list"), [1, 2]);
}

#[test]
fn an_enqueued_buffer_that_is_dropped_gives_its_place_away() {
    let bench = Bench::new();
    let first = bench.command_buffer();
    first.enqueue();
    let second = bench.command_buffer();
    second.commit();
    drop(first);
    second.wait_until_completed();
    assert_eq!(second.status(), Status::Completed);
}
