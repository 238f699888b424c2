//! How much work the Metal paths do: dispatches, and bytes of device memory.

mod losses;
mod rotary;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{attention, AttentionConfig};
use candle_fused::ops::{bitlinear, lora_gather, mixed_matmul};
use candle_fused::ops::{conv2d_with, linear, matmul_act, Act, Conv2dParams, ConvAlgo};
use candle_fused::ops::{fake_quantize, quantize};
use candle_fused::ops::{lora_with, Adapter, AdapterDropout, FrozenWeight};
use candle_fused::quant::{Levels, Packing, Quantized, ScaleScope, Scheme};
use std::sync::Mutex;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The device counts for the whole process.
static RECORDING: Mutex<()> = Mutex::new(());

struct Work {
    kernels: Vec<String>,
    read: u64,
    written: u64,
}

impl Work {
    /// Dispatches of an op's own kernels.
    fn count(&self, op: &str) -> usize {
        self.kernels.iter().filter(|k| k.starts_with(op)).count()
    }
}

fn work(device: &Device, call: impl FnOnce() -> Result<Tensor>) -> Result<Work> {
    let _alone = RECORDING.lock().unwrap_or_else(|e| e.into_inner());
    device.synchronize()?;
    softmetal::start_recording();
    let y = call()?;
    device.synchronize()?;
    let records = softmetal::stop_recording();
    drop(y);
    Ok(Work {
        kernels: records.iter().map(|r| r.kernel.clone()).collect(),
        read: records.iter().map(|r| r.counters.device_read).sum(),
        written: records.iter().map(|r| r.counters.device_written).sum(),
    })
}

fn tensor(dims: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| ((i % 7) as f32 - 3.0) / 8.0).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(device)
}

#[test]
fn lora_takes_three_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for rows in [1, 2, 8, 9, 40] {
            for (cols, outputs, rank) in [(33, 17, 1), (64, 64, 8), (40, 129, 64)] {
                let x = tensor(&[rows, cols], dtype, &device)?;
                let w = tensor(&[outputs, cols], dtype, &device)?;
                let bias = tensor(&[outputs], dtype, &device)?;
                let frozen = FrozenWeight::Dense(w.clone());
                let (a, b) = (
                    tensor(&[rank, cols], dtype, &device)?,
                    tensor(&[outputs, rank], dtype, &device)?,
                );
                for dropout in [None, Some(AdapterDropout { p: 0.5, seed: 1 })] {
                    let adapter = Adapter {
                        a: &a,
                        b: &b,
                        scale: 0.5,
                        dropout,
                    };
                    let call = || lora_with(&x, &frozen, Some(&bias), adapter);
                    let work = work(&device, call)?;
                    let most = if rows <= 8 { 2 } else { 3 };
                    assert!(
                        work.kernels.len() <= most,
                        "{rows} rows: {:?}",
                        work.kernels
                    );
                }
                let (a, b) = (a.unsqueeze(0)?, b.unsqueeze(0)?);
                let scales = Tensor::new(&[1f32], &Device::Cpu)?;
                let routes = Tensor::zeros(rows, DType::U32, &Device::Cpu)?;
                let call = || lora_gather(&x, &w, Some(&bias), &a, &b, &scales, &routes);
                let work = work(&device, call)?;
                assert!(work.kernels.len() <= 3, "{rows} rows: {:?}", work.kernels);
            }
        }
    }
    Ok(())
}

/// Of large enough layers: x is read once for 32 outputs.
#[test]
fn lora_of_one_row_reads_each_weight_once() -> Result<()> {
    let device = Device::new_metal(0)?;
    let (cols, outputs) = (2048, 1024);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for rank in [8, 64] {
            let x = tensor(&[1, cols], dtype, &device)?;
            let w = tensor(&[outputs, cols], dtype, &device)?;
            let (a, b) = (
                tensor(&[rank, cols], dtype, &device)?,
                tensor(&[outputs, rank], dtype, &device)?,
            );
            let needed = [&x, &w, &a, &b].map(|t| t.elem_count() * dtype.size_in_bytes());
            let needed = needed.iter().sum::<usize>() as f64;
            let ours = work(&device, || {
                candle_fused::ops::lora(&x, &w, None, &a, &b, 0.5)
            })?;
            let stock = work(&device, || {
                let adapter = candle_fused::ops::Adapter::new(&a, &b, 0.5);
                candle_fused::reference::lora::reference(&x, &w, None, adapter)
            })?;
            let ratio = |work: &Work| work.read as f64 / needed;
            println!(
                "{dtype:?} rank {rank}: ours reads {:.3} of what is needed in {} dispatches, stock {:.3} in {}",
                ratio(&ours),
                ours.kernels.len(),
                ratio(&stock),
                stock.kernels.len(),
            );
            assert!(
                ratio(&ours) <= 1.05,
                "{dtype:?} rank {rank}: {:.3}",
                ratio(&ours)
            );
        }
    }
    Ok(())
}

/// A tile of x is read for each 32 or 64 outputs, one of y for as many rows, the bias for each output, and nothing else.
#[test]
fn matmul_act_takes_one_dispatch_and_writes_each_output_once() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let size = dtype.size_in_bytes();
        for (count, rows, cols, outputs) in [
            (1, 1, 40, 33),
            (1, 40, 33, 70),
            (3, 9, 7, 33),
            (16, 65, 9, 70),
        ] {
            let x = tensor(&[count, rows, cols], dtype, &device)?;
            let y = tensor(&[count, cols, outputs], dtype, &device)?;
            let bias = tensor(&[outputs], dtype, &device)?;
            let work = work(&device, || matmul_act(&x, &y, Some(&bias), Act::GeluTanh))?;
            assert_eq!(work.kernels.len(), 1, "{:?}", work.kernels);
            let count = count * rows * outputs;
            assert_eq!(work.written, (count * size) as u64, "{:?}", work.kernels);
            let side = if rows == 65 { 64 } else { 32 };
            let x_read = x.elem_count() * outputs.div_ceil(side);
            let y_read = y.elem_count() * rows.div_ceil(side);
            assert_eq!(
                work.read,
                ((x_read + y_read + count) * size) as u64,
                "{:?}",
                work.kernels
            );
        }
    }
    Ok(())
}

#[test]
fn linear_with_a_bias_is_one_matmul_act() -> Result<()> {
    let device = Device::new_metal(0)?;
    for (dtype, name) in [(DType::F32, "f32"), (DType::F16, "f16")] {
        let x = tensor(&[40, 33], dtype, &device)?;
        let w = tensor(&[48, 33], dtype, &device)?;
        let bias = tensor(&[48], dtype, &device)?;
        let work = work(&device, || linear(&x, &w, Some(&bias)))?;
        assert_eq!(work.kernels, [format!("matmul_act_fwd_32_{name}")]);
        assert_eq!(work.written, (40 * 48 * dtype.size_in_bytes()) as u64);
    }
    Ok(())
}

/// Codes, scales and x; x is read once more for each threadgroup, of which there are few.
#[test]
fn bitlinear_of_one_row_reads_each_code_once() -> Result<()> {
    let device = Device::new_metal(0)?;
    let (cols, outputs) = (2048, 1024);
    let weight = tensor(&[outputs, cols], DType::F32, &device)?;
    for scheme in [
        Scheme::ternary(ScaleScope::Row),
        Scheme::sign(ScaleScope::Tensor),
    ] {
        let w = quantize(&weight, scheme)?;
        for dtype in DTYPES {
            let x = tensor(&[1, cols], dtype, &device)?;
            let work = work(&device, || bitlinear(&x, &w, None))?;
            assert!(work.kernels.len() <= 2, "{:?}", work.kernels);
            within_5_percent(&work, &x, &w);
            assert_eq!(work.count("bitlinear"), 1, "{:?}", work.kernels);
        }
    }
    Ok(())
}

/// One that rounds x, unless the product does, and one that multiplies.
#[test]
fn bitlinear_takes_two_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for (rows, outputs, cols, most) in [
        (1, 64, 96, 1),
        (8, 16, 40, 1),
        (1, 300, 40, 2),
        (70, 40, 33, 2),
    ] {
        let weight = tensor(&[outputs, cols], DType::F32, &device)?;
        let w = quantize(&weight, Scheme::ternary(ScaleScope::Row))?;
        let bias = tensor(&[outputs], DType::F32, &device)?;
        let x = tensor(&[rows, cols], DType::F32, &device)?;
        let work = work(&device, || bitlinear(&x, &w, Some(&bias)))?;
        assert!(work.kernels.len() <= most, "{:?}", work.kernels);
        assert_eq!(work.count("bitlinear"), 1, "{:?}", work.kernels);
    }
    Ok(())
}

#[test]
fn mixed_matmul_of_one_row_reads_each_code_once() -> Result<()> {
    let device = Device::new_metal(0)?;
    let (cols, outputs) = (2048, 1024);
    let weight = tensor(&[outputs, cols], DType::F32, &device)?;
    for scheme in [
        Scheme::mlx(4, 64),
        Scheme::new(Levels::ZeroPoint { bits: 4 }, ScaleScope::Row),
        Scheme::int8(ScaleScope::Group(512)),
    ] {
        let w = quantize(&weight, scheme)?;
        for dtype in DTYPES {
            let x = tensor(&[1, cols], dtype, &device)?;
            let work = work(&device, || mixed_matmul(&x, &w, None))?;
            assert_eq!(work.kernels.len(), 1, "{:?}", work.kernels);
            within_5_percent(&work, &x, &w);
        }
    }
    Ok(())
}

#[test]
fn mixed_matmul_and_its_gradient_take_one_dispatch() -> Result<()> {
    let device = Device::new_metal(0)?;
    let w = quantize(&tensor(&[40, 64], DType::F32, &device)?, Scheme::mlx(4, 32))?;
    for rows in [1, 8, 9, 70] {
        // Columns one behind the other, which no kernel needs a copy of.
        let x = tensor(&[64, rows], DType::F16, &device)?.t()?;
        let bias = tensor(&[40], DType::F16, &device)?;
        let there = work(&device, || mixed_matmul(&x, &w, Some(&bias)))?;
        assert_eq!(there.kernels.len(), 1, "{:?}", there.kernels);
        assert_eq!(there.written, 2 * 40 * rows as u64);
        let g = tensor(&[40, rows], DType::F16, &device)?.t()?;
        let x = Var::from_tensor(&x)?.into_inner();
        let sum = (mixed_matmul(&x, &w, None)? * g)?;
        let back = work(&device, || Ok(sum.backward()?.get(&x).expect("dx").clone()))?;
        assert_eq!(back.count("mixed_matmul"), 1, "{:?}", back.kernels);
        assert_eq!(back.count("mixed_matmul_bwd_x_tile_4_f16"), 1);
    }
    Ok(())
}

fn within_5_percent(work: &Work, x: &Tensor, w: &Quantized) {
    let needed = w.bytes() + x.elem_count() * x.dtype().size_in_bytes();
    let ratio = work.read as f64 / needed as f64;
    println!("{:?}: {ratio:.3} of what is needed", work.kernels);
    assert!(ratio <= 1.05, "{:?}: {ratio:.3}", work.kernels);
}

/// Groups, channels of each on both sides, the side of the kernel, and the kernels that `Auto` and the others run.
type Shape = ([usize; 3], usize, [&'static str; 5]);

const ALGOS: [ConvAlgo; 5] = [
    ConvAlgo::Auto,
    ConvAlgo::Direct,
    ConvAlgo::Tiled,
    ConvAlgo::ImplicitGemm,
    ConvAlgo::Winograd,
];

const SHAPES: [Shape; 4] = [
    ([1, 16, 8], 3, ["gemm", "direct", "tiled", "gemm", "gemm"]),
    (
        [1, 3, 40],
        1,
        ["gemm_tall", "direct", "tiled", "gemm_tall", "gemm_tall"],
    ),
    ([2, 3, 4], 3, ["tiled", "direct", "tiled", "gemm", "gemm"]),
    (
        [6, 1, 1],
        3,
        ["depthwise", "depthwise", "tiled", "gemm", "gemm"],
    ),
];

/// Nothing but the output is written, so that no unfolded image is.
#[test]
fn conv2d_is_one_dispatch_of_the_algorithm() -> Result<()> {
    let device = Device::new_metal(0)?;
    for (dtype, name) in [
        (DType::F32, "f32"),
        (DType::F16, "f16"),
        (DType::BF16, "bf16"),
    ] {
        for ([groups, c_in, c_out], side, kernels) in SHAPES {
            // Channels last, which no kernel needs a copy of.
            let x = tensor(&[2, 7, 9, groups * c_in], dtype, &device)?.permute((0, 3, 1, 2))?;
            let w = tensor(&[groups * c_out, c_in, side, side], dtype, &device)?;
            let bias = tensor(&[groups * c_out], dtype, &device)?;
            let window = Conv2dParams {
                padding: [side / 2; 2],
                groups,
                ..Conv2dParams::default()
            };
            let written = 2 * groups * c_out * 7 * 9 * dtype.size_in_bytes();
            for (algo, kernel) in ALGOS.into_iter().zip(kernels) {
                let call = || conv2d_with(&x, &w, Some(&bias), window, Act::GeluTanh, algo);
                let work = work(&device, call)?;
                assert_eq!(work.kernels, [format!("conv2d_fwd_{kernel}_{name}")]);
                assert_eq!(work.written, written as u64, "{algo:?}");
            }
        }
    }
    Ok(())
}

/// x is read once, and nothing but codes and scales (and offsets) is written.
#[test]
fn quantize_of_rows_and_groups_is_one_dispatch() -> Result<()> {
    let device = Device::new_metal(0)?;
    for (dtype, name) in [(DType::F32, "f32"), (DType::BF16, "bf16")] {
        for (rows, cols) in [(3, 5), (7, 64), (2, 255), (2, 2560)] {
            let x = tensor(&[rows, cols], dtype, &device)?;
            for (grid, kernel) in [
                (Levels::Ternary, "ternary"),
                (Levels::Sign { centred: true }, "sign"),
                (Levels::Int8, "int8"),
                (Levels::ZeroPoint { bits: 4 }, "zero_point"),
                (Levels::Affine { bits: 8 }, "affine"),
            ] {
                for per in [ScaleScope::Row, ScaleScope::Group(32)] {
                    if per != ScaleScope::Row && cols % 32 > 0 {
                        continue;
                    }
                    let scheme = Scheme::new(grid, per);
                    let call = || quantize(&x, scheme).map(|q| q.codes().clone());
                    let work = work(&device, call)?;
                    assert_eq!(work.kernels, [format!("quantize_fwd_{kernel}_{name}")]);
                    let units = scheme.scales_shape(x.shape())?.elem_count();
                    let units = units * if scheme.has_offsets() { 8 } else { 4 };
                    let codes = scheme.codes_shape(x.shape())?.elem_count();
                    assert_eq!(work.written, (codes + units) as u64, "{scheme:?}");
                    let read = x.elem_count() * dtype.size_in_bytes();
                    assert_eq!(work.read, read as u64, "{scheme:?}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn quantize_takes_three_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dims in [[3, 15], [300, 9], [1, 40_003]] {
        let x = tensor(&dims, DType::F32, &device)?;
        for per in [
            ScaleScope::Tensor,
            ScaleScope::Column,
            ScaleScope::Row,
            ScaleScope::Group(3),
        ] {
            if per == ScaleScope::Group(3) && dims[1] % 3 > 0 {
                continue;
            }
            for scheme in [
                Scheme::ternary(per),
                Scheme::ternary(per).with_packing(Packing::Base3),
                Scheme::uint8(per),
            ] {
                let q = quantize(&x, scheme)?;
                let codes = || quantize(&x, scheme).map(|q| q.codes().clone());
                let codes = work(&device, codes)?.kernels;
                assert!(codes.len() <= 3, "{scheme:?}: {codes:?}");
                let values = work(&device, || fake_quantize(&x, scheme))?.kernels;
                assert!(values.len() <= codes.len(), "{scheme:?}: {values:?}");
                let back = work(&device, || q.dequantize(DType::F16))?.kernels;
                assert_eq!(back.len(), 1, "{scheme:?}: {back:?}");
            }
        }
    }
    Ok(())
}

/// A forward is one dispatch, or two where the keys of few queries are cut into parts, and writes its results alone.
#[test]
fn attention_takes_two_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in DTYPES {
        for (heads, queries, keys, dim, parts) in [
            (4, 64, 96, 8, 1),
            (2, 9, 40, 72, 1),
            (4, 8, 100, 64, 1),
            (1, 1, 300, 136, 2),
        ] {
            let q = tensor(&[1, heads, queries, dim], dtype, &device)?;
            let k = tensor(&[1, 1, keys, dim], dtype, &device)?;
            let config = AttentionConfig {
                causal: true,
                ..Default::default()
            };
            let work = work(&device, || attention(&q, &k, &k, &config))?;
            let dispatches = if parts == 1 { 1 } else { 2 };
            assert_eq!(work.count("attention"), dispatches, "{:?}", work.kernels);
            assert_eq!(work.kernels.len(), dispatches, "{:?}", work.kernels);
            let rows = heads * queries;
            // A row, its maximum and the logarithm of its sum.
            let mut written = rows * (dim * dtype.size_in_bytes() + 8);
            if parts > 1 {
                written += parts * rows * (dim + 2) * 4;
            }
            assert_eq!(work.written, written as u64, "{:?}", work.kernels);
        }
    }
    Ok(())
}

/// One for the deltas, for k and v, for q, and for the mask and the sinks; none writes as much as the scores would take.
#[test]
fn attention_gradients_take_four_dispatches() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in DTYPES {
        let var = |dims: &[usize]| Var::from_tensor(&tensor(dims, dtype, &device)?);
        let (queries, keys, dim) = (60, 130, 8);
        let q = var(&[1, 4, queries, dim])?;
        let (k, v) = (var(&[1, 1, keys, dim])?, var(&[1, 1, keys, dim])?);
        let (mask, sinks) = (var(&[1, keys])?, var(&[4])?);
        for (trained, dispatches) in [(false, 3), (true, 4)] {
            let of = |t: &Var| match trained {
                true => t.as_tensor().clone(),
                false => t.as_detached_tensor(),
            };
            let config = AttentionConfig {
                mask: Some(of(&mask)),
                sinks: Some(of(&sinks)),
                ..Default::default()
            };
            let y = attention(&q, &k, &v, &config)?;
            let work = work(&device, || {
                let grads = y.backward()?;
                grads
                    .get(&q)
                    .cloned()
                    .ok_or_else(|| candle_core::Error::Msg("no gradient".into()))
            })?;
            assert_eq!(work.count("attention"), dispatches, "{:?}", work.kernels);
            let scores = 4 * queries * keys * dtype.size_in_bytes();
            assert!(work.written < scores as u64 / 2, "{}", work.written);
        }
    }
    Ok(())
}
