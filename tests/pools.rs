//! Ops from the threads of other pools: none waits for another for ever, and all give the same bits.
//!
//! Every test runs on a thread of its own and fails when that has not come back after two minutes.

use candle_core::backprop::GradStore;
use candle_core::utils::barrier_pool;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{AdamW, Optimizer};
use candle_fused::ops::{self, AttentionConfig};
use candle_fused::quant::{Levels, ScaleScope, Scheme};
use rayon::prelude::*;
use std::panic::{catch_unwind, resume_unwind};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const DEADLOCK: Duration = Duration::from_secs(120);

/// Fails if `work` does not end. Where the CPU is left out it is not begun.
fn ends(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    if !crate::devices::devices().iter().any(Device::is_cpu) {
        return Ok(());
    }
    let (done, end) = channel();
    let worker = thread::spawn(move || {
        let result = work();
        // The receiver has given up if this fails.
        let _ = done.send(());
        result
    });
    if end.recv_timeout(DEADLOCK) == Err(RecvTimeoutError::Timeout) {
        panic!("deadlock");
    }
    worker.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// A small model's layer: ops of ours, large enough to be shared out, among ops of stock Candle that use Candle's pool and rayon.
struct Layer {
    x: Tensor,
    weight: Tensor,
    bits: Vec<u32>,
}

impl Layer {
    fn new() -> Result<Self> {
        let wave = |rows: usize, cols: usize| {
            let n = (rows * cols) as f32;
            let angles = Tensor::arange(0f32, n, &Device::Cpu)?.affine(0.37, 0.)?;
            angles.sin()?.reshape((rows, cols))
        };
        let mut layer = Layer {
            x: wave(160, 512)?,
            weight: wave(256, 512)?,
            bits: Vec::new(),
        };
        layer.bits = layer.forward()?;
        Ok(layer)
    }

    /// Ops of ours alone.
    fn fused(&self, x: &Tensor) -> Result<Tensor> {
        let h = ops::rms_norm(x, None, 1e-5)?;
        ops::softmax_last_dim(&ops::linear(&h, &self.weight, None)?)
    }

    fn forward(&self) -> Result<Vec<u32>> {
        let y = self.fused(&(&self.x + 1.)?)?;
        bits(&self.fused(&(y.matmul(&self.weight)? + &self.x)?)?)
    }

    fn check(&self) -> Result<()> {
        assert!(self.forward()? == self.bits, "other bits");
        Ok(())
    }
}

fn bits(x: &Tensor) -> Result<Vec<u32>> {
    let values = x.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

/// Kept by what calls stock ops from rayon's threads, and by what calls them within Candle's pool: those threads would wait for that
/// pool, which would wait for rayon's threads to multiply a matrix.
static STOCK: Mutex<()> = Mutex::new(());

#[test]
fn threads_of_rayon() -> Result<()> {
    ends(|| {
        let _stock = STOCK.lock();
        let layer = Layer::new()?;
        (0..24).into_par_iter().try_for_each(|_| layer.check())?;
        // A rayon pool of the user's own, and work that waits inside for work on the same pool.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build();
        pool.expect("three threads").install(|| {
            (0..4).into_par_iter().try_for_each(|_| {
                let (a, b) = rayon::join(|| layer.check(), || layer.check());
                a.and(b)
            })
        })
    })
}

/// Who calls from one of its workers does the work alone.
#[test]
fn workers_of_candle_s_pool() -> Result<()> {
    ends(|| {
        let _stock = STOCK.lock();
        let layer = Layer::new()?;
        let pool = barrier_pool();
        for _ in 0..5 {
            let result = Mutex::new(Ok(()));
            pool.execute(|thread| {
                if thread < pool.n_workers() {
                    let checked = layer.check();
                    let mut all = result.lock().unwrap();
                    if all.is_ok() {
                        *all = checked;
                    }
                }
            });
            result.into_inner().unwrap()?;
            layer.check()?;
        }
        Ok(())
    })
}

/// Whoever calls Candle's pool works on a share, too, and a stock op from within waits for its own caller for ever. Ours does
/// not where it keeps out of that pool.
#[test]
fn the_caller_of_candle_s_pool() -> Result<()> {
    if std::env::var("CANDLE_FUSED_POOL").as_deref() != Ok("own") {
        return Ok(());
    }
    ends(|| {
        let layer = Layer::new()?;
        let want = bits(&layer.fused(&layer.x)?)?;
        let found = Mutex::new(Vec::new());
        barrier_pool().execute(|_| {
            let y = layer.fused(&layer.x).and_then(|y| bits(&y));
            found.lock().unwrap().push(y);
        });
        for y in found.into_inner().unwrap() {
            assert!(y? == want, "other bits");
        }
        Ok(())
    })
}

#[test]
fn many_threads() -> Result<()> {
    ends(|| {
        let layer = Layer::new()?;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..12)
                .map(|_| scope.spawn(|| (0..3).try_for_each(|_| layer.check())))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    })
}

/// Threads that take tasks from a bounded queue, as tokio's `spawn_blocking` runs them.
#[test]
fn a_pool_of_blocking_threads() -> Result<()> {
    ends(|| {
        let layer = Arc::new(Layer::new()?);
        let (give, take) = sync_channel::<Box<dyn FnOnce() + Send>>(2);
        let take = Arc::new(Mutex::new(take));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let take = take.clone();
                thread::spawn(move || loop {
                    let task = take.lock().unwrap().recv();
                    match task {
                        Ok(task) => task(),
                        Err(_) => return,
                    }
                })
            })
            .collect();
        let (done, results) = channel();
        for _ in 0..24 {
            let (layer, done) = (layer.clone(), done.clone());
            let task = Box::new(move || done.send(layer.check()).expect("someone listens"));
            give.send(task).expect("a thread listens");
        }
        drop((give, done));
        assert_eq!(results.iter().collect::<Result<Vec<()>>>()?.len(), 24);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        Ok(())
    })
}

/// A step of many small variables, each of which it locks, while a stock op that holds one of them locked for reading wants
/// Candle's pool.
#[test]
fn a_step_beside_stock_ops_on_the_same_variables() -> Result<()> {
    ends(|| {
        let var = |_| Var::ones(4096, DType::F32, &Device::Cpu);
        let vars = (0..40).map(var).collect::<Result<Vec<Var>>>()?;
        let mut grads = GradStore::default();
        for var in &vars {
            grads.insert(var, var.ones_like()?);
        }
        let mut adam = AdamW::new_lr(vars.clone(), 1e-3)?;
        let x = Tensor::ones((64, 4096), DType::F32, &Device::Cpu)?;
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                (0..400).try_for_each(|i| x.broadcast_add(&vars[i % vars.len()]).map(drop))
            });
            (0..400).try_for_each(|_| adam.step(&grads))?;
            reader.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    })
}

/// A step of a large variable, whose gradient is gathered while the variable is locked, beside a user's own closure on Candle's pool
/// that reads the variable.
#[test]
fn a_step_beside_a_closure_that_reads_the_variable() -> Result<()> {
    ends(|| {
        let var = Var::ones((512, 512), DType::F32, &Device::Cpu)?;
        let mut grads = GradStore::default();
        grads.insert(&var, var.ones_like()?.t()?);
        let mut adam = AdamW::new_lr(vec![var.clone()], 1e-3)?;
        let (pool, over) = (barrier_pool(), AtomicBool::new(false));
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    pool.execute(|_| drop(var.storage_and_layout()));
                }
            });
            let steps = (0..1000).try_for_each(|_| adam.step(&grads));
            over.store(true, Ordering::Relaxed);
            reader.join().unwrap_or_else(|panic| resume_unwind(panic));
            steps
        })
    })
}

/// A user's panic on Candle's pool, which every later stock op on that pool panics from, does not stop ours.
#[test]
fn after_a_panic_on_candle_s_pool() -> Result<()> {
    const CHILD: &str = "CANDLE_FUSED_TEST_POISONED_POOL";
    if std::env::var_os(CHILD).is_none() {
        let name = "pools::after_a_panic_on_candle_s_pool";
        child_passes(
            Command::new(std::env::current_exe()?)
                .args([name, "--exact"])
                .env(CHILD, "1"),
        );
        return Ok(());
    }
    ends(|| {
        let layer = Layer::new()?;
        let want = bits(&layer.fused(&layer.x)?)?;
        let panic = catch_unwind(|| barrier_pool().execute(|_| panic!("the user's")));
        assert!(panic.is_err());
        for _ in 0..3 {
            assert!(bits(&layer.fused(&layer.x)?)? == want, "other bits");
        }
        Ok(())
    })
}

/// Whether these tests run on an emulated CPU, where no process can be started. `test.sh` says so.
pub fn is_emulated() -> bool {
    std::env::var_os("CANDLE_FUSED_TEST_EMULATED").is_some()
}

/// Runs a process of these tests, which must find some and pass. On an emulated CPU to start it is an error, or has the exit status
/// of a command that was not found.
fn child_passes(command: &mut Command) {
    let output = command.stderr(Stdio::inherit()).output();
    let missing = |output: &Output| output.status.code() == Some(127);
    if is_emulated() && output.as_ref().map_or(true, missing) {
        return;
    }
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("ok. ") && !text.contains("ok. 0 passed");
    assert!(passed, "{command:?}: {}\n{text}", output.status);
}

/// What depends on the order of additions, by name. All of it is large enough to be shared out.
fn sums() -> Result<Vec<(&'static str, Tensor)>> {
    let wave = |dims: &[usize], speed: f64| {
        let n: usize = dims.iter().product();
        let angles = Tensor::arange(0f32, n as f32, &Device::Cpu)?.affine(speed, 0.)?;
        angles.sin()?.reshape(dims)
    };
    let layer = Layer::new()?;
    let mut sums = vec![("layer", layer.fused(&layer.x)?)];

    let x = wave(&[4300, 1030], 0.37)?;
    sums.push(("sum of rows", ops::sum_last_dim(&x)?));
    sums.push(("sum of columns", ops::sum(&x, 0)?));
    sums.push(("sum of all", ops::sum_all(&x)?));

    let x = Var::from_tensor(&wave(&[700, 1030], 0.37)?)?;
    let grad = wave(&[700, 1030], 0.11)?;
    let weight = Var::from_tensor(&wave(&[1030], 0.7)?)?;
    let bias = Var::from_tensor(&wave(&[1030], 0.3)?)?;
    let y = ops::layer_norm(&x, Some(&weight), Some(&bias), 1e-5)?;
    let norm = (y * &grad)?.backward()?;
    for (name, var) in [
        ("norm x", &x),
        ("norm weight", &weight),
        ("norm bias", &bias),
    ] {
        sums.push((name, norm.get(var).expect("a gradient").clone()));
    }

    let weight = Var::from_tensor(&wave(&[530, 1030], 0.7)?)?;
    let grad = wave(&[700, 530], 0.11)?;
    let linear = (ops::linear(&x, &weight, None)? * &grad)?.backward()?;
    for (name, var) in [("linear x", &x), ("linear weight", &weight)] {
        sums.push((name, linear.get(var).expect("a gradient").clone()));
    }

    let scheme = Scheme::new(Levels::Affine { bits: 4 }, ScaleScope::Group(64));
    let weight = ops::quantize(&wave(&[1000, 1024], 0.7)?, scheme)?;
    let x = wave(&[9, 1024], 0.37)?;
    let int8 = ops::mixed_matmul_with(&x, &weight, None, ops::Activations::Int8)?;
    sums.push(("int8", int8));

    let var = |speed| Var::from_tensor(&wave(&[2, 3, 150, 64], speed)?);
    let (q, k, v) = (var(0.37)?, var(0.7)?, var(0.11)?);
    let causal = true;
    #[rustfmt::skip]
    let config = AttentionConfig { causal, ..AttentionConfig::default() };
    let y = ops::attention(&q, &k, &v, &config)?;
    sums.push(("attention", y.clone()));
    let attention = (&y * wave(&[2, 3, 150, 64], 0.53)?)?.backward()?;
    for (name, var) in [
        ("attention q", &q),
        ("attention k", &k),
        ("attention v", &v),
    ] {
        sums.push((name, attention.get(var).expect("a gradient").clone()));
    }
    Ok(sums)
}

/// The bits of ours, which do not depend on the number of threads or on the pool.
#[test]
fn bits_of_a_layer() -> Result<()> {
    ends(|| {
        let mut digests = String::new();
        for (name, sum) in sums()? {
            let digest = bits(&sum)?.iter().fold(0u64, |digest, &bits| {
                (digest ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3)
            });
            digests += &format!("{name}: {digest}\n");
        }
        match std::env::var(BITS) {
            Ok(want) => assert_eq!(digests, want, "other bits on other threads"),
            Err(_) => again_on_other_threads(&digests)?,
        }
        Ok(())
    })
}

/// To a process that runs these tests for another one: the bits that this has found.
const BITS: &str = "CANDLE_FUSED_TEST_POOLS_BITS";

/// All of these tests once more, where all work goes to the crate's own pool, and with other numbers of threads.
fn again_on_other_threads(digests: &str) -> Result<()> {
    for (pool, threads) in [("candle", "1"), ("own", "1"), ("own", "2"), ("own", "5")] {
        child_passes(
            Command::new(std::env::current_exe()?)
                .arg("pools::")
                .env(BITS, digests)
                .env("CANDLE_FUSED_POOL", pool)
                .env("CANDLE_NUM_THREADS", threads),
        );
    }
    Ok(())
}
