//! Commands that may meet.

use crate::bench::{fails, values, Bench};
use softmetal::{kind, Buffer, BufferOptions, Event, Fence, Queue};
use std::sync::Arc;

const UNTRACKED: BufferOptions = BufferOptions::SHARED.untracked();

struct Chain {
    x: Arc<Buffer>,
    y: Arc<Buffer>,
    z: Arc<Buffer>,
}

/// x is written into y, y into z.
fn chain(bench: &Bench, options: BufferOptions) -> Chain {
    Chain {
        x: bench.floats_with(&[1.0; 64], options),
        y: bench.empty(64, options),
        z: bench.empty(64, options),
    }
}

#[test]
fn a_concurrent_encoder_needs_barriers() {
    let run = |barrier: fn(&softmetal::ComputeEncoder, &Chain)| {
        let bench = Bench::new();
        let chain = chain(&bench, BufferOptions::SHARED);
        let buffer = bench.command_buffer();
        let encoder = buffer.compute_encoder(true);
        bench.scale(&encoder, &chain.x, &chain.y, 64, 2.0);
        barrier(&encoder, &chain);
        bench.scale(&encoder, &chain.y, &chain.z, 64, 2.0);
        encoder.end_encoding();
        bench
            .finish(&buffer)
            .map(|()| assert_eq!(values(&chain.z), [4.0; 64]))
    };
    fails(
        run(|_, _| ()),
        &[
            kind::MISSING_BARRIER,
            "kernel scale",
            "reads what it writes",
            "bytes 0..256",
        ],
    );
    run(|encoder, _| encoder.barrier()).expect("ordered");
    run(|encoder, chain| encoder.barrier_for(std::slice::from_ref(&chain.y))).expect("ordered");
    fails(
        run(|encoder, chain| encoder.barrier_for(std::slice::from_ref(&chain.x))),
        &[kind::MISSING_BARRIER],
    );
}

#[test]
fn a_serial_encoder_needs_none() {
    let bench = Bench::new();
    let Chain { x, y, z } = chain(&bench, UNTRACKED);
    bench
        .run(|encoder| {
            bench.scale(encoder, &x, &y, 64, 2.0);
            bench.scale(encoder, &y, &z, 64, 2.0);
            bench.scale(encoder, &x, &y, 64, 3.0);
        })
        .expect("in order");
    assert_eq!(values(&z), [4.0; 64]);
}

#[test]
fn writes_after_reads_and_writes_need_barriers_too() {
    let run = |second: fn(&Bench, &softmetal::ComputeEncoder, &Chain)| {
        let bench = Bench::new();
        let chain = chain(&bench, BufferOptions::SHARED);
        let buffer = bench.command_buffer();
        let encoder = buffer.compute_encoder(true);
        bench.scale(&encoder, &chain.x, &chain.y, 64, 2.0);
        second(&bench, &encoder, &chain);
        encoder.end_encoding();
        bench.finish(&buffer)
    };
    fails(
        run(|bench, encoder, chain| {
            bench.scale(encoder, &bench.floats(&[0.0; 64]), &chain.x, 64, 1.0);
        }),
        &[kind::MISSING_BARRIER, "writes what it reads"],
    );
    fails(
        run(|bench, encoder, chain| bench.scale(encoder, &chain.x, &chain.y, 64, 1.0)),
        &[kind::MISSING_BARRIER, "writes what it writes"],
    );
    run(|bench, encoder, chain| bench.scale(encoder, &chain.x, &chain.z, 64, 1.0))
        .expect("two readers");
}

#[test]
fn ranges_that_don_t_touch_don_t_meet() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 64]);
    let y = bench.empty(64, BufferOptions::SHARED);
    let buffer = bench.command_buffer();
    let encoder = buffer.compute_encoder(true);
    bench.scale(&encoder, &x, &y, 32, 2.0);
    encoder.set_buffer(Some(&y), 128, 1);
    encoder.dispatch_threads([32, 1, 1], [32, 1, 1]);
    encoder.end_encoding();
    bench.finish(&buffer).expect("two halves");
    assert_eq!(values(&y), [2.0; 64]);
}

/// Two encoders of one command buffer, with or without a fence.
fn two_encoders(options: BufferOptions, fence: Option<Arc<Fence>>) -> Result<(), String> {
    let bench = Bench::new();
    let Chain { x, y, z } = chain(&bench, options);
    let buffer = bench.command_buffer();
    let encoder = buffer.compute_encoder(true);
    bench.scale(&encoder, &x, &y, 64, 2.0);
    if let Some(fence) = &fence {
        encoder.update_fence(fence);
    }
    encoder.end_encoding();
    let encoder = buffer.blit_encoder();
    if let Some(fence) = &fence {
        encoder.wait_for_fence(fence);
    }
    encoder.copy(&y, 0, &z, 0, 256);
    encoder.end_encoding();
    bench.finish(&buffer)
}

#[test]
fn untracked_buffers_need_fences_between_encoders() {
    fails(
        two_encoders(UNTRACKED, None),
        &[
            kind::MISSING_FENCE,
            "copyFromBuffer",
            "reads what it writes of scale",
        ],
    );
    two_encoders(UNTRACKED, Some(Arc::default())).expect("fenced");
    two_encoders(BufferOptions::SHARED, None).expect("tracked");
}

#[test]
fn fences_order_command_buffers_and_what_they_waited_for() {
    let run = |fenced: bool| {
        let bench = Bench::new();
        let Chain { x, y, z } = chain(&bench, UNTRACKED);
        let (first, second) = (Arc::new(Fence::default()), Arc::new(Fence::default()));
        let one = bench.command_buffer();
        let encoder = one.compute_encoder(true);
        bench.scale(&encoder, &x, &y, 64, 2.0);
        encoder.update_fence(&first);
        encoder.end_encoding();
        one.commit();
        // Does nothing with y, but waits for whoever wrote it.
        let two = bench.command_buffer();
        let encoder = two.blit_encoder();
        encoder.wait_for_fence(&first);
        encoder.update_fence(&second);
        encoder.end_encoding();
        two.commit();
        let three = bench.command_buffer();
        let encoder = three.compute_encoder(true);
        if fenced {
            encoder.wait_for_fence(&second);
        }
        bench.scale(&encoder, &y, &z, 64, 2.0);
        encoder.end_encoding();
        bench.finish(&three)
    };
    run(true).expect("ordered by both fences");
    fails(run(false), &[kind::MISSING_FENCE]);
}

#[test]
fn a_wait_of_the_host_orders_too() {
    let run = |wait: fn(&softmetal::CommandBuffer)| {
        let bench = Bench::new();
        let Chain { x, y, z } = chain(&bench, UNTRACKED);
        let one = bench.command_buffer();
        let encoder = one.compute_encoder(true);
        bench.scale(&encoder, &x, &y, 64, 2.0);
        encoder.end_encoding();
        one.commit();
        wait(&one);
        bench.run(|encoder| bench.scale(encoder, &y, &z, 64, 2.0))
    };
    run(|buffer| buffer.wait_until_completed()).expect("waited");
    run(|buffer| while buffer.status() != softmetal::Status::Completed {}).expect("polled");
    // That it has long completed doesn't help if nobody looked.
    fails(
        run(|_| std::thread::sleep(std::time::Duration::from_millis(50))),
        &[kind::MISSING_FENCE],
    );
}

#[test]
fn queues_need_events() {
    let run = |event: Option<Arc<Event>>| {
        let bench = Bench::new();
        let Chain { x, y, z } = chain(&bench, BufferOptions::SHARED);
        let other = Queue::new(&bench.device);
        let one = other.command_buffer().expect("a command buffer");
        let encoder = one.compute_encoder(true);
        bench.scale(&encoder, &x, &y, 64, 2.0);
        encoder.end_encoding();
        if let Some(event) = &event {
            one.signal_event(event, 1);
        }
        one.commit();
        one.wait_until_scheduled();
        let two = bench.command_buffer();
        match &event {
            Some(event) => two.wait_for_event(event, 1),
            None => std::thread::sleep(std::time::Duration::from_millis(100)),
        }
        let encoder = two.compute_encoder(true);
        bench.scale(&encoder, &y, &z, 64, 2.0);
        encoder.end_encoding();
        bench.finish(&two)
    };
    run(Some(Arc::default())).expect("ordered");
    fails(run(None), &[kind::MISSING_EVENT]);
}
