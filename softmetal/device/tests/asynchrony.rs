//! The host and the device at the same time.

use crate::bench::{fails, values, Bench};
use softmetal::{kind, BufferOptions, Fence, Status};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc};

#[test]
fn a_result_is_read_after_the_wait() {
    for waits in [true, false] {
        let bench = Bench::new();
        let x = bench.floats(&[1.0; 4]);
        let y = bench.empty(4, BufferOptions::SHARED);
        let buffer = bench.command_buffer();
        let encoder = buffer.compute_encoder(false);
        bench.scale(&encoder, &x, &y, 4, 1.0);
        encoder.end_encoding();
        buffer.commit();
        if waits {
            buffer.wait_until_completed();
        } else {
            // Even if the work is done by now, nobody has asked.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        y.contents();
        x.contents();
        let found: Vec<_> = bench
            .device
            .findings()
            .iter()
            .map(|f| (f.kind, f.is_error()))
            .collect();
        let expected = [(kind::IN_FLIGHT, true), (kind::IN_FLIGHT, false)];
        assert_eq!(found, if waits { &[][..] } else { &expected[..] });
        buffer.wait_until_completed();
        // What the host did wrong fails the next command buffer, and no other.
        for fails in [!waits, false] {
            let next = bench.command_buffer();
            next.commit();
            next.wait_until_completed();
            assert_eq!(next.status() == Status::Error, fails);
        }
    }
}

#[test]
fn a_handler_counts_as_a_wait() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    let y = bench.empty(4, BufferOptions::SHARED);
    let buffer = bench.command_buffer();
    let encoder = buffer.compute_encoder(false);
    bench.scale(&encoder, &x, &y, 4, 3.0);
    encoder.end_encoding();
    let (sender, receiver) = mpsc::channel();
    let result = y.clone();
    buffer.add_completed_handler(Box::new(move |buffer| {
        sender
            .send((buffer.status(), values(&result)))
            .expect("a receiver");
    }));
    buffer.commit();
    assert_eq!(receiver.recv(), Ok((Status::Completed, vec![3.0; 4])));
    assert!(bench.device.findings().is_empty());
}

#[test]
fn private_buffers_have_no_contents() {
    let bench = Bench::new();
    let x = bench.empty(4, BufferOptions::PRIVATE);
    let contents = x.contents();
    // SAFETY: there are so many bytes, though not the buffer's.
    unsafe { contents.write_bytes(1, 16) };
    assert_eq!(bench.kinds(), [kind::PRIVATE]);
    assert!(softmetal::Buffer::with_bytes(&bench.device, &[1], BufferOptions::PRIVATE).is_none());
}

#[test]
fn command_buffers_keep_what_they_use() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 4]);
    let y = bench.empty(4, BufferOptions::SHARED);
    let buffer = bench.command_buffer();
    let encoder = buffer.compute_encoder(false);
    bench.scale(&encoder, &x, &y, 4, 1.0);
    encoder.end_encoding();
    let weak = Arc::downgrade(&x);
    drop((x, encoder));
    assert!(weak.upgrade().is_some());
    bench.finish(&buffer).expect("runs");
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_failed_command_buffer_lets_others_go_on() {
    let bench = Bench::new();
    let options = BufferOptions::SHARED.untracked();
    let x = bench.floats_with(&[1.0; 4], options);
    let (short, y) = (bench.empty(1, options), bench.empty(4, options));
    let fence = Arc::new(Fence::default());
    let handled = Arc::new(AtomicUsize::new(0));

    let failing = bench.command_buffer();
    let encoder = failing.compute_encoder(true);
    bench.scale(&encoder, &x, &short, 4, 1.0);
    // Not executed any more.
    bench.scale(&encoder, &x, &y, 4, 7.0);
    encoder.update_fence(&fence);
    encoder.end_encoding();
    let count = handled.clone();
    failing.add_completed_handler(Box::new(move |buffer| {
        assert_eq!(buffer.status(), Status::Error);
        count.fetch_add(1, Ordering::SeqCst);
    }));
    failing.commit();

    let next = bench.command_buffer();
    let encoder = next.compute_encoder(true);
    encoder.wait_for_fence(&fence);
    bench.scale(&encoder, &x, &y, 4, 2.0);
    encoder.end_encoding();
    bench.finish(&next).expect("the next one is all right");
    assert_eq!(values(&y), [2.0; 4]);
    assert_eq!(failing.status(), Status::Error);
    assert_eq!(handled.load(Ordering::SeqCst), 1);
    let error = failing.error().expect("an error");
    assert_eq!(error.domain, "MTLCommandBufferErrorDomain");
    fails(
        Err(error.description),
        &["out-of-bounds-write", "kernel scale"],
    );
}
