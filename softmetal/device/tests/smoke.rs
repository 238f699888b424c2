//! A kernel runs.

use crate::bench::{values, Bench};
use softmetal::BufferOptions;

#[test]
fn a_kernel_computes() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0, 2.0, 3.0]);
    let y = bench.empty(3, BufferOptions::SHARED);
    bench
        .run(|encoder| bench.scale(encoder, &x, &y, 3, 2.5))
        .expect("runs");
    assert_eq!(values(&y), [2.5, 5.0, 7.5]);
    assert!(bench.device.findings().is_empty());
    let totals = bench.device.totals();
    assert_eq!(totals.dispatches, 1);
    assert_eq!(totals.counters.threads, 3);
    assert_eq!(totals.counters.device_written, 12);
}
