//! Keys and values that are quantised: the arguments give their sizes alone, so that no dtype has codes of its own.

use super::super::{Arg, Fill, Grid, OpCase};
use super::{
    causal, heads_first, lengths, masked, reference, DROPOUT, K_OF_FOUR, OP, Q, SINKS, V_OF_FOUR,
};
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::ops::{attention_codes, AttentionConfig};
use candle_fused::quant::{KvCodes, Levels, ScaleScope, Scheme};
use candle_fused::reference::quantize::reference_quantize;

/// Few queries and many, dims of several vectors and chunks, and of less than one. Groups of 4 divide the dims. The dims of 128
/// and 132 with few keys are small enough for an emulated device.
const CODES: Grid = &[
    &[2, 4, 3, 5, 4],
    &[2, 4, 1, 600, 64],
    &[1, 8, 13, 65, 36],
    &[1, 4, 33, 65, 128],
    &[1, 4, 9, 17, 128],
    &[1, 4, 9, 19, 132],
    &[1, 4, 2, 13, 260],
    &[12, 4, 3, 9, 16],
];
/// Rows that end within a byte of two codes.
const ODD: Grid = &[&[2, 4, 3, 5, 5], &[1, 4, 1, 70, 33], &[1, 4, 20, 40, 17]];

/// Values of twice the keys' dim, by either way, and in chunks of their own.
const WIDE: Grid = &[&[2, 4, 3, 5, 4], &[1, 4, 10, 33, 36], &[1, 4, 9, 9, 68]];
const V_WIDE: Arg = Arg::new("v", Fill::Signal, |s| {
    let mut dims = heads_first(s, 4, 3);
    dims[3] *= 2;
    dims
});

pub fn cases() -> Vec<OpCase> {
    type Config = fn(&[Tensor]) -> Result<AttentionConfig>;
    let of_values = |v: Arg, name: &str, rest: &[Arg], schemes: [Scheme; 2], config: Config| {
        let kv = [K_OF_FOUR.constant(), v.constant()];
        let codes = move |t: &[Tensor]| -> Result<[KvCodes; 2]> {
            let mut codes = [
                fixed_codes(&t[1], 7, schemes[0])?,
                fixed_codes(&t[2], 8, schemes[1])?,
            ];
            // A dtype that is not q's is one that the codes must not have.
            for (codes, x) in codes.iter_mut().zip(&t[1..]) {
                if x.dtype() != t[0].dtype() {
                    codes.scales = codes.scales.to_dtype(x.dtype())?;
                }
            }
            Ok(codes)
        };
        let args = [&[Q][..], &kv, rest].concat();
        OpCase::new(
            OP,
            name,
            &args,
            move |t| {
                let [k, v] = codes(t)?;
                attention_codes(&t[0], &k, &v, &config(t)?)
            },
            move |t| {
                let [k, v] = codes(t)?;
                let numbers = |codes: KvCodes| {
                    let x = codes.quantized()?.dequantize(DType::F32)?;
                    x.to_dtype(t[0].dtype())
                };
                reference(&t[0], &numbers(k)?, &numbers(v)?, &config(t)?)
            },
        )
        .grid(CODES)
        .sizes([])
    };
    let of = |name: &str, rest: &[Arg], schemes: [Scheme; 2], config: Config| {
        of_values(V_OF_FOUR, name, rest, schemes, config)
    };
    let group = ScaleScope::Group;
    let (int8, uint8) = (Scheme::int8(group(4)), Scheme::uint8(ScaleScope::Row));
    let int4 = Scheme::mlx(4, 4);
    let zero4 = Scheme::new(Levels::ZeroPoint { bits: 4 }, ScaleScope::Row);
    let mask = Arg::new("mask", Fill::Mask, |s| {
        vec![s.dims()[0], 1, s.dims()[2], s.dims()[3]]
    });
    let none: Config = |_| Ok(AttentionConfig::default());
    vec![
        of(
            "codes_int8",
            &[],
            [int8, Scheme::int8(ScaleScope::Row)],
            none,
        ),
        of("codes_int4", &[], [int4, zero4], none),
        of_values(V_WIDE, "codes_int8_wide_values", &[], [int8, uint8], none).grid(WIDE),
        of_values(V_WIDE, "codes_int4_wide_values", &[], [int4, zero4], none).grid(WIDE),
        of("codes_uint8_odd", &[], [uint8, uint8], none).grid(ODD),
        of("codes_int4_odd", &[], [zero4, zero4], none).grid(ODD),
        // Not read directly, but dequantised.
        of("codes_of_two_sizes", &[], [int8, int4], none).grid(&[&[1, 4, 3, 5, 8]]),
        of("codes_int8_causal", &[], [int8, uint8], |_| Ok(causal())).hiding(),
        of("codes_int4_window", &[], [int4, int4], |_| {
            Ok(AttentionConfig {
                window_left: Some(7),
                ..causal()
            })
        })
        .hiding(),
        of("codes_int8_mask", &[mask], [uint8, int8], masked),
        of("codes_int4_lengths", &[], [zero4, int4], |t| {
            lengths(t, true)
        })
        .hiding(),
        of("codes_int8_everything", &[SINKS], [int8, int8], |t| {
            Ok(AttentionConfig {
                sinks: Some(t[3].clone()),
                softcap: Some(6.0),
                dropout: Some(DROPOUT),
                window_left: Some(40),
                ..lengths(t, true)?
            })
        })
        .hiding()
        .random(),
    ]
}

/// Codes of keys or values in the shape of x, the same on every call.
pub fn fixed_codes(x: &Tensor, seed: u64, scheme: Scheme) -> Result<KvCodes> {
    let numbers = Fill::Signal.tensor(x.dims(), seed, DType::F32, &Device::Cpu)?;
    let codes = reference_quantize(&numbers, scheme)?.to_device(x.device())?;
    Ok(KvCodes {
        codes: codes.codes().clone(),
        scales: codes.scales().clone(),
        offsets: codes.offsets().cloned(),
        scheme,
        head_dim: x.dim(D::Minus1)?,
    })
}
