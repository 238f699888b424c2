//! How much a busy machine costs: a small Llama's tokens per second alone, beside other programs, and of several threads at
//! once, through stock Candle and through this crate.
//!
//! ```text
//! cargo run --release --example busy -- [SECONDS FOR EACH FIGURE [ROW...]]
//! ```
//!
//! A row is `decode=N`, one thread that generates beside N programs that never rest, or `prompts=N`, N threads that read. Without
//! rows it is all of `benches/busy.sh`.

mod fused;
mod stock;

use candle_core::Result;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The argument by which this program becomes one that never rests.
const RESTLESS: &str = "--restless";
const ROWS: [&str; 7] = [
    "decode=0",
    "decode=1",
    "decode=2",
    "prompts=1",
    "prompts=2",
    "prompts=4",
    "prompts=8",
];

/// Programs beside this one, while it lives.
struct Others(Vec<Child>);

impl Others {
    fn new(count: usize) -> std::io::Result<Self> {
        let mut others = Others(Vec::new());
        for _ in 0..count {
            let mut own = Command::new(std::env::current_exe()?);
            others
                .0
                .push(own.arg(RESTLESS).stdin(Stdio::piped()).spawn()?);
        }
        std::thread::sleep(Duration::from_millis(300));
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

/// Never rests until the program that has started it is gone, however that ended: then the pipe to it is closed.
fn restless() -> ! {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        std::hint::black_box(RESTLESS);
    }
}

/// The model that generates tokens, and the one that several threads run at once, each with a clone that shares the weights.
macro_rules! speeds {
    ($library:ident) => {{
        let mut generates = $library::model::Model::new(4)?;
        let reads = $library::model::Model::new(1)?;
        (
            // Tokens per second behind 512 others.
            move |seconds: f64| -> Result<f64> {
                generates.reset();
                generates.forward(&$library::model::tokens(512)?)?;
                let token = $library::model::tokens(1)?;
                per_second(seconds, || generates.forward(&token).map(|_| 1))
            },
            // Tokens per second of all threads, which read a prompt of 16 again and again.
            move |threads: usize, seconds: f64| -> Result<f64> {
                let total = AtomicUsize::new(0);
                let start = Instant::now();
                let read = || -> Result<()> {
                    let mut model = reads.clone();
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
    }};
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
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == RESTLESS) {
        restless();
    }
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |s| s.parse())?;
    let mut rows: Vec<String> = arguments.collect();
    if rows.is_empty() {
        rows = ROWS.map(String::from).to_vec();
    }
    let (mut stock, mut fused) = (speeds!(stock), speeds!(fused));
    println!(
        "{:34} {:>8} {:>8}  ratio  of alone",
        "tokens/s", "stock", "fused"
    );
    let mut alone = None;
    for name in rows {
        let (what, count) = name.split_once('=').ok_or("a row is WHAT=COUNT")?;
        let count = count.parse()?;
        match what {
            "decode" => {
                let others = Others::new(count)?;
                let both = medians(|| Ok([stock.0(seconds)?, fused.0(seconds)?]))?;
                drop(others);
                row(&format!("decode, beside {count} programs"), both, alone);
                if count == 0 {
                    alone = Some(both[1]);
                }
            }
            "prompts" => {
                let both = medians(|| Ok([stock.1(count, seconds)?, fused.1(count, seconds)?]))?;
                row(&format!("prompts, {count} threads"), both, None);
            }
            _ => return Err("a row is decode=COUNT or prompts=COUNT".into()),
        }
    }
    Ok(())
}
