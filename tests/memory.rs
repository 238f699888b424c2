//! What costs no memory: the gradient of a frozen weight, the unfolded image of a convolution, the scores of attention. Allocations are counted, so
//! these tests have a process of their own.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, ModuleT, Result, Tensor, Var};
use candle_fused::nn::attention::{flash_attn, AttnMask};
use candle_fused::nn::checkpoint;
use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig, KvCache};
use candle_fused::nn::lora::{LoraConfig, LoraLinear};
use candle_fused::ops::{attention, AttentionConfig};
use candle_fused::ops::{conv2d, conv2d_with, Act, Conv2dParams, ConvAlgo};
use candle_fused::ops::{
    linear_cross_entropy, linear_cross_entropy_grads, lora_with, Adapter, LinearCrossEntropyConfig,
};
use candle_nn::{Linear, VarBuilder, VarMap};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all work is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ALONE: Mutex<()> = Mutex::new(());

/// Bytes.
struct Memory {
    /// More than before, at most.
    peak: usize,
    /// The largest single allocation.
    largest: usize,
}

fn memory(run: impl FnOnce() -> Result<()>) -> Result<Memory> {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    LARGEST.store(0, Relaxed);
    run()?;
    Ok(Memory {
        peak: PEAK.load(Relaxed) - before,
        largest: LARGEST.load(Relaxed),
    })
}

const IN: usize = 1024;
const OUT: usize = 1536;
const WEIGHT: usize = IN * OUT * 4;

struct Layer {
    x: Tensor,
    w: Tensor,
    a: Tensor,
    b: Tensor,
}

impl Layer {
    fn new(rows: usize, rank: usize) -> Result<Self> {
        let var = |dims: (usize, usize)| {
            let values = Tensor::rand(-1f32, 1., dims, &Device::Cpu)?;
            Ok::<_, candle_core::Error>(Var::from_tensor(&values)?.into_inner())
        };
        Ok(Layer {
            x: var((rows, IN))?,
            w: Tensor::rand(-1f32, 1., (OUT, IN), &Device::Cpu)?,
            a: var((rank, IN))?,
            b: var((OUT, rank))?,
        })
    }

    fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let var = |t: &Tensor| -> Result<Tensor> {
            Ok(Var::from_tensor(&t.detach().to_dtype(dtype)?)?.into_inner())
        };
        Ok(Layer {
            x: var(&self.x)?,
            w: self.w.to_dtype(dtype)?,
            a: var(&self.a)?,
            b: var(&self.b)?,
        })
    }

    fn adapter(&self) -> Adapter<'_> {
        Adapter {
            a: &self.a,
            b: &self.b,
            scale: 2.0,
            dropout: None,
        }
    }

    fn fused(&self) -> Result<()> {
        let y = lora_with(&self.x, &self.w.clone().into(), None, self.adapter())?;
        y.backward().map(drop)
    }

    fn stock(&self) -> Result<()> {
        candle_fused::reference::lora::reference(&self.x, &self.w, None, self.adapter())?
            .backward()
            .map(drop)
    }
}

/// Where the CPU multiplies bf16 as it is, few rows of it are not widened for nothing.
#[test]
#[cfg(target_arch = "x86_64")]
fn few_rows_of_bf16_are_multiplied_as_they_are() -> Result<()> {
    if !std::is_x86_feature_detected!("avx512bf16") {
        return Ok(());
    }
    let _alone = ALONE.lock();
    let (rows, cols) = (4, 8192);
    let x = Tensor::ones((rows, cols), DType::BF16, &Device::Cpu)?;
    let w = Tensor::ones((64, cols), DType::BF16, &Device::Cpu)?;
    let product = || candle_fused::ops::linear(&x, &w, None).map(drop);
    // Threads are started by the first product.
    product()?;
    let largest = memory(product)?.largest;
    assert!(largest < rows * cols * 4, "{largest} bytes");
    Ok(())
}

#[test]
fn nothing_of_the_weights_size_is_allocated() -> Result<()> {
    let _alone = ALONE.lock();
    for (rows, rank) in [(1, 8), (8, 64), (64, 8), (128, 64)] {
        let layer = Layer::new(rows, rank)?;
        let fused = memory(|| layer.fused())?;
        assert!(
            fused.largest < WEIGHT / 2,
            "{rows} rows: {} bytes",
            fused.largest
        );
        // What is measured can be seen at all.
        let stock = memory(|| layer.stock())?;
        assert!(
            stock.largest >= WEIGHT,
            "{rows} rows: {} bytes",
            stock.largest
        );
    }
    Ok(())
}

/// 16-bit weights are widened a piece at a time.
#[test]
fn nothing_wider_than_the_activations_is_allocated() -> Result<()> {
    let _alone = ALONE.lock();
    for dtype in [DType::F16, DType::BF16] {
        let rows = 2000;
        let layer = Layer::new(rows, 8)?.to_dtype(dtype)?;
        let fused = memory(|| layer.fused())?;
        // The outputs are as long as the weight.
        let most = rows * OUT * 2;
        assert!(fused.largest <= most, "{dtype:?}: {} bytes", fused.largest);
    }
    Ok(())
}

#[test]
fn training_peaks_at_half_of_stock() -> Result<()> {
    let _alone = ALONE.lock();
    let layer = Layer::new(256, 8)?;
    let (fused, stock) = (memory(|| layer.fused())?, memory(|| layer.stock())?);
    let ratio = fused.peak as f64 / stock.peak as f64;
    println!("{} bytes, stock {}: {ratio:.2}", fused.peak, stock.peak);
    assert!(ratio <= 0.5, "{} bytes, stock {}", fused.peak, stock.peak);
    Ok(())
}

#[test]
fn a_quantised_weight_is_never_whole() -> Result<()> {
    let _alone = ALONE.lock();
    // Large enough to be dequantised in more than one piece.
    let layer = Layer::new(4, 8)?;
    let w = Arc::new(QTensor::quantize(&layer.w, GgmlDType::Q4_0)?);
    let quantized = memory(|| {
        let y = lora_with(&layer.x, &w.clone().into(), None, layer.adapter())?;
        y.backward().map(drop)
    })?;
    assert!(quantized.largest < WEIGHT, "{} bytes", quantized.largest);
    Ok(())
}

#[test]
fn doras_norms_need_no_second_weight() -> Result<()> {
    let _alone = ALONE.lock();
    let config = LoraConfig {
        use_dora: true,
        ..Default::default()
    };
    let Layer { x, w, .. } = Layer::new(16, 8)?;
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let layer = LoraLinear::new(Linear::new(w, None), &config, vb)?;
    let step = || layer.forward_t(&x, true)?.backward().map(drop);
    // What matrices are packed into is made once for each thread.
    step()?;
    let step = memory(step)?;
    assert!(step.largest < WEIGHT / 4, "{} bytes", step.largest);
    assert!(step.peak < WEIGHT / 2, "{} bytes", step.peak);
    Ok(())
}

/// An append to a cache writes its token, and neither copies the past nor allocates anything of its size.
#[test]
fn an_append_to_a_cache_allocates_no_second_one() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let tokens = |n: usize| Tensor::rand(-1f32, 1., (1, 8, n, 64), &Device::Cpu);
    let (prompt, token) = (tokens(1000)?, tokens(1)?);
    let mut growing = KvCache::new(2, 2048);
    growing.append(&prompt, &prompt)?;
    let config = FixedKvConfig::new(1, 8, 64, 2048);
    let fixed = |config| -> Result<FixedKvCache> {
        let mut cache = FixedKvCache::new(config, DType::F32, &Device::Cpu)?;
        cache.append(&prompt, &prompt)?;
        Ok(cache)
    };
    let (mut plain, mut int8, mut int4) = (
        fixed(config)?,
        fixed(config.with_int8(64))?,
        fixed(config.with_int4(64))?,
    );
    let appends = memory(|| {
        for _ in 0..100 {
            growing.append(&token, &token)?;
            plain.append(&token, &token)?;
            int8.append(&token, &token)?;
            int4.append(&token, &token)?;
        }
        Ok(())
    })?;
    let token = token.elem_count() * 4;
    assert!(appends.largest <= 4 * token, "{} bytes", appends.largest);
    assert!(appends.peak <= 16 * token, "{} bytes", appends.peak);
    Ok(())
}

/// Threads have some memory of their own, but nobody has one of the kernel's size times the image's.
#[test]
fn a_convolution_unfolds_no_image() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let window = Conv2dParams {
        padding: [1, 1],
        ..Conv2dParams::default()
    };
    for dtype in [DType::F32, DType::BF16] {
        let random = |dims| Tensor::rand(-1f32, 1., dims, &Device::Cpu)?.to_dtype(dtype);
        let (x, w) = (random((1, 32, 256, 256))?, random((32, 32, 3, 3))?);
        let unfolded = 9 * x.elem_count() * 4;
        let output = x.elem_count() * dtype.size_in_bytes();
        for algo in [ConvAlgo::ImplicitGemm, ConvAlgo::Winograd] {
            let run = || conv2d_with(&x, &w, None, window, Act::Relu, algo).map(drop);
            let peak = memory(run)?.peak;
            assert!(peak >= output && peak - output < unfolded / 4, "{peak}");
        }
        // The gradient of the weight, of half as many outputs: the backward pass itself needs a gradient of their size.
        let half = Var::from_tensor(&w.narrow(0, 0, 16)?)?;
        let y = conv2d(&x, &half, None, window, Act::Identity)?;
        let run = || y.backward().map(drop);
        let peak = memory(run)?.peak;
        assert!(peak < unfolded / 3, "{peak} of {unfolded}");
    }
    Ok(())
}

/// A loss over 4096 classes in chunks of 32 rows: the logits of all rows are never there, nor is anything of their size.
#[test]
fn a_loss_without_its_logits() -> Result<()> {
    const ROWS: usize = 512;
    const CLASSES: usize = 4096;
    const LOGITS: usize = ROWS * CLASSES * 4;
    /// A chunk, and what products keep in order to multiply.
    const SCRATCH: usize = LOGITS / 8;
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let var = |rows: usize| Var::from_tensor(&Tensor::rand(-1f32, 1., (rows, 64), &Device::Cpu)?);
    let (x, w) = (var(ROWS)?, var(CLASSES)?);
    let (dx, dw) = (x.elem_count() * 4, w.elem_count() * 4);
    let target = Tensor::zeros(ROWS, DType::U32, &Device::Cpu)?;
    let config = LinearCrossEntropyConfig {
        chunk_rows: Some(32),
        ..Default::default()
    };
    let loss = |x: &Tensor, w: &Tensor| linear_cross_entropy(x, w, &target, &config);
    let forward = memory(|| loss(&x.detach(), &w.detach()).map(drop))?;
    assert!(forward.peak < SCRATCH, "{} bytes", forward.peak);
    // Loss and gradients, and nothing else. What products pack matrices into is made once for each thread.
    let grads = || linear_cross_entropy_grads(&x, &w, &target, &config).map(drop);
    grads()?;
    let made = memory(grads)?;
    assert!(made.peak < dx + dw + SCRATCH, "{} bytes", made.peak);
    for scale in [1.0, 0.5] {
        let train = memory(|| {
            let grads = (loss(&x, &w)? * scale)?.backward()?;
            assert!(grads.get(&x).is_some() && grads.get(&w).is_some());
            Ok(())
        })?;
        // Candle's backward has each gradient three times: as it comes, zeros, and the sum.
        assert!(train.largest <= dw, "{} bytes", train.largest);
        let most = 3 * dw + 3 * dx + SCRATCH / 4;
        assert!(train.peak < most, "{scale}: {} bytes", train.peak);
        // A frozen head has no gradient.
        let train = memory(|| (loss(&x, &w.detach())? * scale)?.backward().map(drop))?;
        assert!(train.peak < 3 * dx + SCRATCH, "{} bytes", train.peak);
    }
    // The graph does not keep the gradients that a pass has been given.
    let loss = loss(&x, &w)?;
    let before = NOW.load(Relaxed);
    drop(loss.backward()?);
    let freed = before.saturating_sub(NOW.load(Relaxed));
    assert!(freed + 4096 >= dx + dw, "{freed} bytes");
    Ok(())
}

/// However large the vocabulary, the chunks of a loss whose x alone is trained take 128 MB, or a sixteenth of W, at most.
#[test]
fn a_loss_over_a_large_vocabulary() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    for (classes, cols) in [(1 << 19, 17), (1 << 20, 17)] {
        for dtype in [DType::F32, DType::BF16] {
            let x = Tensor::rand(-1f32, 1., (80, cols), &Device::Cpu)?.to_dtype(dtype)?;
            let w = Tensor::rand(-1f32, 1., (classes, cols), &Device::Cpu)?.to_dtype(dtype)?;
            let x = Var::from_tensor(&x)?;
            let target = Tensor::zeros(80, DType::U32, &Device::Cpu)?;
            let train = || {
                let loss = linear_cross_entropy(&x, &w, &target, &Default::default())?;
                loss.backward().map(drop)
            };
            train()?;
            let train = memory(train)?;
            let chunk = (128 << 20).max(classes * cols * 4 / 16);
            let peak = train.peak;
            println!("{classes} x {cols} {dtype:?}: {peak} bytes");
            assert!(
                peak < chunk + (8 << 20),
                "{classes} classes, {dtype:?}: {peak} bytes"
            );
        }
    }
    Ok(())
}

/// Neither a forward nor a backward has a tensor of queries × keys.
#[test]
fn attention_keeps_no_scores() -> Result<()> {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let (heads, len, dim) = (4, 2048, 64);
    let var = || {
        Var::from_tensor(&Tensor::randn(
            0f32,
            1.,
            (1, heads, len, dim),
            &Device::Cpu,
        )?)
    };
    let (q, k, v) = (var()?, var()?, var()?);
    let fused = memory(|| {
        let y = attention(&q, &k, &v, &AttentionConfig::default())?;
        y.backward().map(drop)
    })?;
    let stock = memory(|| {
        let scores = (q.matmul(&k.t()?)? * 0.125)?;
        let weights = candle_nn::ops::softmax(&scores, candle_core::D::Minus1)?;
        weights.matmul(&v)?.backward().map(drop)
    })?;
    let ratio = fused.peak as f64 / stock.peak as f64;
    println!("{} bytes, stock {}: {ratio:.3}", fused.peak, stock.peak);
    assert!(ratio <= 0.15, "{} bytes, stock {}", fused.peak, stock.peak);
    let scores = heads * len * len * 4;
    assert!(fused.largest < scores / 2, "{} bytes", fused.largest);
    assert!(stock.largest >= scores, "{} bytes", stock.largest);
    Ok(())
}

/// ALiBi and positions behind the last key need no bias or mask of queries × keys, which a graph would keep.
#[test]
fn alibi_needs_no_bias_of_scores() -> Result<()> {
    let _alone = ALONE.lock();
    const SEQUENCE: usize = 1024;
    const HEADS: usize = 4;
    let var = || Var::rand(-1f32, 1., (1, SEQUENCE, HEADS, 16), &Device::Cpu);
    let (q, k, v) = (var()?, var()?, var()?);
    let scores = HEADS * SEQUENCE * SEQUENCE * 4;
    for (kv_offset, max_bias) in [(0, Some(8.0)), (700, Some(8.0)), (700, None)] {
        let run = |t: [&Tensor; 3]| {
            let mask = AttnMask::Causal { kv_offset };
            flash_attn::<f32>(t[0], t[1], t[2], 0.25, mask, max_bias, None)
        };
        // The table of the bias has 64 rows, or 128 in training, and columns for queries and keys.
        let [dq, dk, dv] = [&q, &k, &v].map(|var| var.as_tensor().detach());
        let forward = memory(|| run([&dq, &dk, &dv]).map(drop))?;
        assert!(forward.largest <= scores / 8, "{} bytes", forward.largest);
        assert!(forward.peak <= scores / 2, "{} bytes", forward.peak);
        let train = memory(|| run([&q, &k, &v])?.sqr()?.sum_all()?.backward().map(drop))?;
        // The largest memory is scratch of the backward.
        assert!(train.largest < scores / 2, "{} bytes", train.largest);
    }
    Ok(())
}

/// Eight blocks in checkpoints hold the intermediate results of one at a time.
#[test]
fn checkpoints_hold_one_block_at_a_time() -> Result<()> {
    let _alone = ALONE.lock();
    const ROWS: usize = 512;
    const WIDTH: usize = 128;
    const BLOCKS: usize = 8;
    let x = Var::rand(-1f32, 1., (ROWS, WIDTH), &Device::Cpu)?;
    let weights = (0..BLOCKS).map(|_| Var::rand(-0.1f32, 0.1, (WIDTH, WIDTH), &Device::Cpu));
    let weights = weights.collect::<Result<Vec<_>>>()?;
    let block = |w: &Tensor, x: &Tensor| -> Result<Tensor> {
        let mut h = x.clone();
        for _ in 0..4 {
            h = h.matmul(w)?.tanh()?.exp()?.log()?;
        }
        Ok(h)
    };
    let train = |is_checkpointed: bool| {
        memory(|| {
            let mut h = x.as_tensor().clone();
            for w in &weights {
                let inner = w.as_tensor().clone();
                h = match is_checkpointed {
                    true => checkpoint(move |x| block(&inner, x), &h)?,
                    false => block(&inner, &h)?,
                };
            }
            let grads = h.sum_all()?.backward()?;
            assert!(weights.iter().all(|w| grads.get(w).is_some()));
            Ok(())
        })
    };
    let (plain, checkpointed) = (train(false)?.peak, train(true)?.peak);
    assert!(checkpointed < plain / 3, "{checkpointed} of {plain} bytes");
    Ok(())
}
