mod codes;
mod rejects;

pub use rejects::rejects;

use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, Measured};
use super::{call, Arg, Call, Fill, Grid, Kind, OpCase, Run, Size};
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::ops::{
    attention, Attention, AttentionCodes, AttentionConfig, AttentionDropout, AttentionLayout,
    PackedSequences,
};
use candle_fused::quant::{KvCodes, Scheme};
use candle_fused::reference::attention::reference;
use codes::fixed_codes;

const OP: &str = "attention";

// A size is [batch, heads, queries, keys, dim].
const Q: Arg = Arg::new("q", Fill::Signal, |s| heads_first(s, 1, 2));
const K: Arg = Arg::new("k", Fill::Signal, |s| heads_first(s, 1, 3));
const V: Arg = Arg::new("v", Fill::Signal, |s| heads_first(s, 1, 3));
/// One head of keys for four of queries.
const K_OF_FOUR: Arg = Arg::new("k", Fill::Signal, |s| heads_first(s, 4, 3));
const V_OF_FOUR: Arg = Arg::new("v", Fill::Signal, |s| heads_first(s, 4, 3));
/// Values of another dim than the keys: 2·dim − 1.
const V_WIDE: Arg = Arg::new("v", Fill::Signal, |s| {
    let mut dims = heads_first(s, 1, 3);
    dims[3] = 2 * dims[3] - 1;
    dims
});
const SINKS: Arg = Arg::new("sinks", Fill::Signal, |s| vec![s.dims()[1]]);

fn heads_first(size: Size, group: usize, seq: usize) -> Vec<usize> {
    let s = size.dims();
    vec![s[0], s[1].div_ceil(group), s[seq], s[4]]
}

fn heads_last(size: Size, seq: usize) -> Vec<usize> {
    let s = size.dims();
    vec![s[0], s[seq], s[1], s[4]]
}

/// Below, at and above vectors and tiles; few queries of many keys, and the other way round; none. Sizes of less than 1000
/// elements are also checked by differences.
const SIZES: Grid = &[
    &[1, 2, 3, 5, 4],
    &[2, 1, 1, 1, 1],
    &[1, 2, 0, 3, 4],
    &[1, 1, 31, 33, 40],
    &[1, 2, 65, 63, 17],
    &[1, 1, 33, 129, 32],
    &[1, 1, 127, 65, 64],
    &[1, 1, 1, 300, 36],
    // Dims of several chunks.
    &[1, 1, 2, 13, 260],
    &[1, 1, 9, 33, 140],
    // A batch row for each special value.
    &[12, 1, 4, 9, 32],
];
const FEW: Grid = &[
    &[2, 2, 3, 5, 4],
    &[2, 2, 33, 65, 33],
    &[1, 2, 65, 31, 64],
    &[12, 1, 4, 9, 32],
];
const GROUPED: Grid = &[
    &[1, 4, 3, 5, 4],
    &[1, 8, 13, 65, 33],
    &[2, 4, 1, 140, 64],
    &[1, 4, 2, 70, 80],
    &[12, 4, 3, 9, 16],
];
const TRAIN: &[Kind] = &[Kind::Forward, Kind::Train];

const PREFILL: Measured = size("1x32x512x128", &[1, 32, 512, 512, 128])
    .run(TRAIN)
    .quick();
const LONG: Measured = size("1x4x4096x128", &[1, 4, 4096, 4096, 128]).of(&[DType::F32]);
const DECODE: Measured = size("decode 32/8x4096x128", &[1, 32, 1, 4096, 128]).quick();

pub fn cases() -> Vec<OpCase> {
    let of = |name: &str, args: &[Arg], config: fn(&[Tensor]) -> Result<AttentionConfig>| {
        OpCase::new(
            OP,
            name,
            args,
            move |t| attention(&t[0], &t[1], &t[2], &config(t)?),
            move |t| reference(&t[0], &t[1], &t[2], &config(t)?),
        )
        .grid(FEW)
        .sizes([])
    };
    let plain =
        |name: &str, config: fn(&[Tensor]) -> Result<AttentionConfig>| of(name, &[Q, K, V], config);
    let mask = |dims: fn(Size) -> Vec<usize>| Arg::new("mask", Fill::Mask, dims);
    let cases = vec![
        plain("attention", |_| Ok(AttentionConfig::default()))
            .grid(SIZES)
            .stock_fast(|run| Ok(Some(stock(run, None))))
            .sizes([PREFILL, LONG]),
        plain("causal", |_| Ok(causal()))
            .grid(SIZES)
            .hiding()
            .stock_fast(|run| Ok(Some(stock(run, Some(causal_mask(run)?)))))
            .sizes([PREFILL]),
        of("grouped", &[Q, K_OF_FOUR, V_OF_FOUR], |_| {
            Ok(AttentionConfig::default())
        })
        .grid(GROUPED)
        .stock_fast(|run| Ok(Some(stock(run, None))))
        .sizes([DECODE]),
        of("grouped_causal", &[Q, K_OF_FOUR, V_OF_FOUR], |_| {
            Ok(causal())
        })
        .grid(GROUPED)
        .hiding(),
        plain("window", |_| {
            Ok(AttentionConfig {
                window_left: Some(7),
                ..causal()
            })
        })
        .hiding(),
        plain("window_of_both_sides", |_| {
            Ok(AttentionConfig {
                window_left: Some(5),
                window_right: Some(2),
                ..Default::default()
            })
        })
        .hiding(),
        of("values_of_another_dim", &[Q, K, V_WIDE], |_| {
            Ok(scaled(0.3))
        }),
        // Of each query and key, for all heads and batch rows.
        of(
            "mask_of_queries_and_keys",
            &[Q, K, V, mask(|s| vec![s.dims()[2], s.dims()[3]])],
            masked,
        ),
        // One row of it hides everything.
        of(
            "mask_of_batch_rows",
            &[
                Q,
                K,
                V,
                mask(|s| vec![s.dims()[0], 1, s.dims()[2], s.dims()[3]]),
            ],
            masked,
        ),
        of(
            "mask_of_all",
            &[Q, K, V, mask(|s| s.dims()[..4].to_vec())],
            |t| {
                Ok(AttentionConfig {
                    causal: true,
                    ..masked(t)?
                })
            },
        )
        .hiding(),
        of(
            "mask_of_keys",
            &[
                Q,
                K,
                V,
                Arg::new("mask", Fill::Addend, |s| vec![s.dims()[1], 1, s.dims()[3]]),
            ],
            masked,
        ),
        of(
            "mask_of_queries",
            &[
                Q,
                K,
                V,
                Arg::new("mask", Fill::Addend, |s| vec![s.dims()[2], 1]),
            ],
            masked,
        ),
        of(
            "frozen_mask",
            &[Q, K, V, mask(|s| vec![s.dims()[2], s.dims()[3]]).constant()],
            masked,
        ),
        plain("boolean_mask", |t| {
            let (b, queries, keys) = (t[0].dim(0)?, t[0].dim(2)?, t[1].dim(2)?);
            // Every seventh query sees nothing.
            let allowed = (0..b * queries * keys)
                .map(|i| u8::from(i % 3 != 0 && i / keys % 7 != 1) * (1 + i as u8 % 5));
            let allowed = Tensor::from_iter(allowed, &Device::Cpu)?;
            Ok(AttentionConfig {
                mask: Some(
                    allowed
                        .reshape((b, 1, queries, keys))?
                        .to_device(t[0].device())?,
                ),
                ..Default::default()
            })
        })
        .hiding(),
        plain("key_lengths", |t| lengths(t, false)).hiding(),
        plain("key_lengths_causal", |t| lengths(t, true)).hiding(),
        plain("softcap", |_| {
            Ok(AttentionConfig {
                softcap: Some(5.0),
                ..scaled(0.5)
            })
        }),
        of("sinks", &[Q, K, V, SINKS], |t| {
            Ok(AttentionConfig {
                sinks: Some(t[3].clone()),
                ..causal()
            })
        })
        .hiding(),
        plain("dropout", |_| {
            Ok(AttentionConfig {
                dropout: Some(DROPOUT),
                ..Default::default()
            })
        })
        .random(),
        of(
            "everything",
            &[
                Q,
                K_OF_FOUR,
                V_OF_FOUR,
                mask(|s| vec![1, s.dims()[1], s.dims()[2], s.dims()[3]]),
                SINKS,
            ],
            |t| {
                Ok(AttentionConfig {
                    mask: Some(t[3].clone()),
                    sinks: Some(t[4].clone()),
                    softcap: Some(6.0),
                    dropout: Some(DROPOUT),
                    window_left: Some(40),
                    ..lengths(t, true)?
                })
            },
        )
        .grid(GROUPED)
        .hiding()
        .random(),
        sequences_first(),
        packed("packed", false),
        packed("packed_causal", true).hiding(),
    ];
    // The backward starts from the outputs, which have been rounded.
    let cases = cases
        .into_iter()
        .chain(codes::cases())
        .map(OpCase::reduction);
    cases.map(OpCase::stepwise_gradients).collect()
}

const DROPOUT: AttentionDropout = AttentionDropout {
    p: 0.25,
    seed: 0x1234_5678_9abc_def0,
};

fn causal() -> AttentionConfig {
    AttentionConfig {
        causal: true,
        ..Default::default()
    }
}

fn scaled(scale: f32) -> AttentionConfig {
    AttentionConfig {
        scale: Some(scale),
        ..Default::default()
    }
}

fn masked(t: &[Tensor]) -> Result<AttentionConfig> {
    Ok(AttentionConfig {
        mask: Some(t[3].clone()),
        ..Default::default()
    })
}

/// The batch rows have all keys, none, two thirds, and so on.
fn lengths(t: &[Tensor], causal: bool) -> Result<AttentionConfig> {
    let (b, keys) = (t[0].dim(0)? as u32, t[1].dim(2)? as u32);
    let lengths = (0..b).map(|i| [2 * keys, 0, 2 * keys / 3, 1][i as usize % 4]);
    let lengths = Tensor::from_iter(lengths, &Device::Cpu)?;
    Ok(AttentionConfig {
        causal,
        key_lengths: Some(lengths.to_device(t[0].device())?),
        ..Default::default()
    })
}

/// `[batch, sequence, heads, dim]`
fn sequences_first() -> OpCase {
    let config = || AttentionConfig {
        layout: AttentionLayout::Bshd,
        ..causal()
    };
    let args = [
        Arg::new("q", Fill::Signal, |s| heads_last(s, 2)),
        Arg::new("k", Fill::Signal, |s| heads_last(s, 3)),
        Arg::new("v", Fill::Signal, |s| heads_last(s, 3)),
    ];
    OpCase::new(
        OP,
        "sequences_first",
        &args,
        move |t| attention(&t[0], &t[1], &t[2], &config()),
        move |t| reference(&t[0], &t[1], &t[2], &config()),
    )
    .grid(FEW)
    .hiding()
    .stock_fast(|run| Ok((run.kind == Kind::Forward).then(stock_flash)))
    .sizes([size("1x512x32x128", &[1, 32, 512, 512, 128]).of(&[DType::F32])])
}

/// Candle's own flash attention, of f32.
fn stock_flash() -> Call {
    use candle_nn::attention::{cpu_flash::flash_attn, AttnMask};
    call(|t| {
        let scale = 1.0 / (t[0].dim(D::Minus1)? as f32).sqrt();
        let mask = AttnMask::causal_with_offset(t[1].dim(1)? - t[0].dim(1)?);
        let y = flash_attn::<f32>(&t[0], &t[1], &t[2], scale, mask, None, None)?;
        y.transpose(1, 2)
    })
}

/// Three sequences, the second of no queries: `[tokens, heads, dim]`.
fn packed(name: &str, causal: bool) -> OpCase {
    let args = [
        Arg::new("q", Fill::Signal, |s| tokens_of(s, 2, 1)),
        Arg::new("k", Fill::Signal, |s| tokens_of(s, 3, 4)),
        Arg::new("v", Fill::Signal, |s| tokens_of(s, 3, 4)),
    ];
    let config = move |t: &[Tensor]| -> Result<AttentionConfig> {
        let cuts = |n: usize, at: usize| [0, at as u32, at as u32, n as u32];
        let (queries, keys) = (t[0].dim(0)?, t[1].dim(0)?);
        let mut cu_keys = cuts(keys, 2 * keys / 3);
        cu_keys[1] = keys as u32 / 2;
        Ok(AttentionConfig {
            causal,
            packed: Some(PackedSequences::new(&cuts(queries, queries / 3), &cu_keys)?),
            ..Default::default()
        })
    };
    OpCase::new(
        OP,
        name,
        &args,
        move |t| attention(&t[0], &t[1], &t[2], &config(t)?),
        move |t| reference(&t[0], &t[1], &t[2], &config(t)?),
    )
    .grid(&[&[1, 4, 3, 5, 4], &[1, 8, 41, 50, 33], &[1, 4, 24, 30, 8]])
    .sizes([])
}

fn tokens_of(size: Size, seq: usize, group: usize) -> Vec<usize> {
    let s = size.dims();
    vec![s[0] * s[seq], s[1].div_ceil(group), s[4]]
}

/// `softmax(q·kᵀ·scale + mask)·v`, whose softmax is fused, or composed in order to train. Heads that share keys become rows.
fn stock(run: &Run, mask: Option<Tensor>) -> Call {
    let softmax: fn(&Tensor) -> Result<Tensor> = match run.kind {
        Kind::Train => |scores| candle_nn::ops::softmax(scores, D::Minus1),
        _ => candle_nn::ops::softmax_last_dim,
    };
    call(move |t| {
        let (b, heads, queries, dim) = t[0].dims4()?;
        let (_, kv_heads, _, _) = t[1].dims4()?;
        let q = match heads == kv_heads {
            true => t[0].clone(),
            false => t[0].reshape((b, kv_heads, heads / kv_heads * queries, dim))?,
        };
        let scores = (q.matmul(&t[1].t()?)? * (1.0 / (dim as f64).sqrt()))?;
        let scores = match &mask {
            Some(mask) => scores.broadcast_add(mask)?,
            None => scores,
        };
        let y = softmax(&scores)?.matmul(&t[2])?;
        y.reshape((b, heads, queries, dim))
    })
}

/// `[queries, keys]`; the last query sees every key.
fn causal_mask(run: &Run) -> Result<Tensor> {
    let (queries, keys) = (run.size.dims()[2], run.size.dims()[3]);
    let mask: Vec<f32> = (0..queries * keys)
        .map(|i| match i % keys + queries <= i / keys + keys {
            true => 0.0,
            false => f32::NEG_INFINITY,
        })
        .collect();
    Tensor::from_vec(mask, (queries, keys), run.device)?.to_dtype(run.dtype)
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &Device::Cpu);
    let config = AttentionConfig::default;
    let packed = PackedSequences::new(&[0, 1, 5], &[0, 4, 5])?;
    let codes =
        |bits: u32, keys: usize| fixed_codes(&ones(&[5, 3, keys, 3])?, 1, Scheme::mlx(bits, 3));
    Ok(forms! {
        Attention { config: config() } => CustomOp3;
        Attention { config: AttentionConfig { packed: Some(packed.clone()), ..config() } } => CustomOp3;
        Attention { config: AttentionConfig { mask: Some(ones(&[7, 3])?), ..config() } } => CustomOp3;
        Attention { config: AttentionConfig { sinks: Some(ones(&[3])?), layout: AttentionLayout::Bshd, ..causal() } } => CustomOp3;
        Attention { config: AttentionConfig { key_lengths: Some(Tensor::new(&[9u32; 5], &Device::Cpu)?), ..causal() } } => CustomOp3;
        Attention { config: AttentionConfig { window_left: Some(usize::MAX), window_right: Some(usize::MAX), ..config() } } => CustomOp3;
        Attention { config: scaled(f32::NAN) } => CustomOp3;
        AttentionCodes { keys: codes(4, 5)?, values: codes(4, 5)?, config: causal() } => CustomOp1;
        AttentionCodes { keys: codes(8, 5)?, values: codes(8, 5)?, config: scaled(0.5) } => CustomOp1;
        AttentionCodes { keys: codes(2, 5)?, values: codes(2, 5)?, config: config() } => CustomOp1;
        AttentionCodes { keys: KvCodes { head_dim: 64, ..codes(8, 5)? }, values: codes(8, 5)?, config: config() } => CustomOp1;
        AttentionCodes { keys: KvCodes { scales: ones(&[5, 3, 7, 1])?, ..codes(8, 5)? }, values: codes(8, 5)?, config: config() } => CustomOp1;
        AttentionCodes { keys: KvCodes { offsets: None, ..codes(8, 5)? }, values: codes(8, 5)?, config: config() } => CustomOp1;
    })
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    let config = AttentionConfig::default();
    let codes = KvCodes {
        codes: w.codes.codes().clone(),
        scales: w.codes.scales().clone(),
        offsets: None,
        scheme: *w.codes.scheme(),
        head_dim: 32,
    };
    refused! {
        attention(&w.x, &w.x, &w.x, &config);
        attention(&w.image, &w.image, &w.kernel, &config);
        attention(&w.integers, &w.integers, &w.integers, &config);
        attention_codes(&w.x, &codes, &codes, &config);
        attention_codes(&w.integers, &codes, &codes, &config);
    }
}
