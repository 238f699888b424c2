//! How much a busy machine costs: a small Llama's tokens per second alone, beside other programs, and of several threads at
//! once, through stock Candle and through this crate.
//!
//! ```text
//! cargo run --release --example busy [SECONDS FOR EACH FIGURE]
//! ```

mod fused;
mod stock;

use candle_core::Result;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The argument by which this program becomes one that never rests.
const RESTLESS: &str = "--restless";

/// Programs beside this one, while it lives.
struct Others(Vec<Child>);

impl Others {
    fn new(count: usize) -> std::io::Result<Self> {
        let mut others = Others(Vec::new());
        for _ in 0..count {
            let own = std::env::current_exe()?;
            others.0.push(Command::new(own).arg(RESTLESS).spawn()?);
        }
        std::thread::sleep(Duration::from_millis(100));
        Ok(others)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for other in &mut self.0 {
            // One that has ended by itself is gone too.
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

/// Tokens per second of one model that generates, and of several threads that read a prompt of 16 tokens each.
macro_rules! speeds {
    ($library:ident) => {
        (
            |seconds: f64| -> Result<f64> {
                let mut model = $library::model::Model::new(4)?;
                model.forward(&$library::model::tokens(512)?)?;
                let token = $library::model::tokens(1)?;
                per_second(seconds, || model.forward(&token).map(|_| 1))
            },
            |threads: usize, seconds: f64| -> Result<f64> {
                let total = AtomicUsize::new(0);
                let start = Instant::now();
                let read = || -> Result<()> {
                    let mut model = $library::model::Model::new(1)?;
                    let prompt = $library::model::tokens(16)?;
                    while start.elapsed().as_secs_f64() < seconds {
                        model.reset();
                        model.forward(&prompt)?;
                        total.fetch_add(16, Ordering::Relaxed);
                    }
                    Ok(())
                };
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
                    threads
                        .into_iter()
                        .try_for_each(|thread| thread.join().expect("no panic"))
                })?;
                Ok(total.into_inner() as f64 / start.elapsed().as_secs_f64())
            },
        )
    };
}

fn per_second(seconds: f64, mut step: impl FnMut() -> Result<usize>) -> Result<f64> {
    let (start, mut tokens) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        tokens += step()?;
    }
    Ok(tokens as f64 / start.elapsed().as_secs_f64())
}

/// The median of each speed over rounds that take turns, so that what else the machine does meets both.
fn medians(mut both: impl FnMut() -> Result<[f64; 2]>) -> Result<[f64; 2]> {
    let mut rounds = Vec::new();
    for _ in 0..5 {
        rounds.push(both()?);
    }
    Ok([0, 1].map(|i| {
        let mut speeds: Vec<f64> = rounds.iter().map(|round| round[i]).collect();
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    }))
}

fn row(name: &str, [stock, fused]: [f64; 2], alone: Option<f64>) {
    let share = alone.map_or(String::new(), |alone| format!("{:6.2}", fused / alone));
    println!(
        "{name:34} {stock:8.0} {fused:8.0} {:6.2} {share}",
        fused / stock
    );
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some(RESTLESS) {
        // As long as anyone would measure.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(600) {
            std::hint::black_box(start);
        }
        return Ok(());
    }
    let seconds: f64 = argument.map_or(Ok(2.0), |s| s.parse())?;
    let (stock, fused) = (speeds!(stock), speeds!(fused));
    println!(
        "{:34} {:>8} {:>8}  ratio  of alone",
        "tokens/s", "stock", "fused"
    );
    let decode = || medians(|| Ok([stock.0(seconds)?, fused.0(seconds)?]));
    let alone = decode()?;
    row("decode, alone", alone, None);
    for others in [1, 2, 4] {
        let _others = Others::new(others)?;
        let name = format!("decode, beside {others} other programs");
        row(&name, decode()?, Some(alone[1]));
    }
    for threads in [1, 2, 4, 8] {
        let both = || Ok([stock.1(threads, seconds)?, fused.1(threads, seconds)?]);
        row(&format!("prompts, {threads} threads"), medians(both)?, None);
    }
    Ok(())
}
