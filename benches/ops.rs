//! The rows of `examples/compare` under criterion, one group per op.
//!
//!     cargo bench --bench ops -- activation/silu/1M

#[path = "../tests/cases/mod.rs"]
mod cases;
#[allow(dead_code, reason = "compare reads more of it")]
#[path = "../examples/compare/plan.rs"]
mod plan;
#[allow(dead_code, reason = "compare reads more of it")]
#[path = "../examples/compare/workload.rs"]
mod workload;

use candle_core::Device;
use criterion::{criterion_group, criterion_main, Bencher, Criterion};
use plan::{Kind, Row};
use std::cell::LazyCell;
use std::time::{Duration, Instant};
use workload::{Workload, MOST_IN_PLACE};

criterion_group! {
    name = ops;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = bench
}
criterion_main!(ops);

fn bench(criterion: &mut Criterion) {
    let cases = cases::measured();
    let rows = plan::rows(&cases, false);
    for rows in rows.chunk_by(|a, b| a.case.op == b.case.op) {
        let mut group = criterion.benchmark_group(rows[0].case.op);
        for row in rows {
            // Made by the first measurement, so that a filtered-out row costs nothing.
            let work = LazyCell::new(|| Workload::new(row, &Device::Cpu).expect("inputs"));
            group.bench_function(id(row, "stock"), |b| {
                if let Err(error) = work.stock() {
                    eprintln!("stock Candle does not support this: {error}");
                }
                b.iter(|| work.stock())
            });
            group.bench_function(id(row, "fused"), |b| bench_fused(b, &work));
        }
        group.finish();
    }
}

/// The row's name without the op's, which is the group's.
fn id(row: &Row, side: &str) -> String {
    let key = row.key();
    let (_, name) = key.split_once('/').expect("op/name");
    format!("{name}/{side}")
}

fn bench_fused(bencher: &mut Bencher, work: &Workload) {
    match work.row.kind {
        Kind::InPlace => bencher.iter_custom(|calls| in_place(work, calls)),
        _ => bencher.iter(|| work.fused().expect("fused")),
    }
}

fn in_place(work: &Workload, calls: u64) -> Duration {
    let mut total = Duration::ZERO;
    for call in 0..calls {
        if call.is_multiple_of(MOST_IN_PLACE as u64) {
            work.reset().expect("reset");
        }
        let start = Instant::now();
        work.fused().expect("fused");
        total += start.elapsed();
    }
    total
}
