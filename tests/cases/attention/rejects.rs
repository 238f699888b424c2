//! Calls that attention refuses.

use super::super::{zeros, Reject};
use super::{fixed_codes, OP};
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{
    attention, attention_codes, AttentionConfig, AttentionDropout, PackedSequences,
};
use candle_fused::quant::{KvCodes, ScaleScope, Scheme};

type Change = fn(&Device, &mut AttentionConfig) -> Result<()>;

/// Calls attention of 4 heads, 3 queries and 5 keys with a config that something is wrong with.
fn wrong(d: &Device, change: Change) -> Result<()> {
    let (q, k) = (zeros((2, 4, 3, 8), d)?, zeros((2, 2, 5, 8), d)?);
    let mut config = AttentionConfig::default();
    change(d, &mut config)?;
    attention(&q, &k, &k, &config).map(drop)
}

const CODES_OP: &str = "attention_codes";

type ChangeCodes = fn(&mut KvCodes, &mut KvCodes, &mut AttentionConfig) -> Result<()>;

/// Calls attention_codes of 4 heads, 3 queries and 5 keys with something that is wrong.
fn wrong_codes(d: &Device, change: ChangeCodes) -> Result<()> {
    let codes = || fixed_codes(&zeros((2, 2, 5, 8), d)?, 1, Scheme::mlx(4, 4));
    let (mut k, mut v, mut config) = (codes()?, codes()?, AttentionConfig::default());
    change(&mut k, &mut v, &mut config)?;
    attention_codes(&zeros((2, 4, 3, 8), d)?, &k, &v, &config).map(drop)
}

/// Codes of another number of keys.
fn of_other_keys(v: &mut KvCodes, keys: usize) -> Result<()> {
    let x = zeros((2, 2, keys, 8), v.codes.device())?;
    *v = fixed_codes(&x, 1, v.scheme)?;
    Ok(())
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "q of rank 3",
            &["q", "[4, 3, 8]", "[batch, heads, sequence, dim]"],
            |d| {
                let (q, k) = (zeros((4, 3, 8), d)?, zeros((2, 2, 5, 8), d)?);
                attention(&q, &k, &k, &AttentionConfig::default()).map(drop)
            },
        ),
        Reject::new(
            OP,
            "keys of another dim",
            &["k", "[2, 2, 5, 7]", "8"],
            |d| {
                let (q, k) = (zeros((2, 4, 3, 8), d)?, zeros((2, 2, 5, 7), d)?);
                attention(&q, &k, &k, &AttentionConfig::default()).map(drop)
            },
        ),
        Reject::new(
            OP,
            "values of other keys",
            &["v", "[2, 2, 6, 8]", "5"],
            |d| {
                let (q, k) = (zeros((2, 4, 3, 8), d)?, zeros((2, 2, 5, 8), d)?);
                attention(
                    &q,
                    &k,
                    &zeros((2, 2, 6, 8), d)?,
                    &AttentionConfig::default(),
                )
                .map(drop)
            },
        ),
        Reject::new(OP, "heads that can't be shared", &["4 heads", "3"], |d| {
            let (q, k) = (zeros((2, 4, 3, 8), d)?, zeros((2, 3, 5, 8), d)?);
            attention(&q, &k, &k, &AttentionConfig::default()).map(drop)
        }),
        Reject::new(OP, "a dim of 513", &["513", "512"], |d| {
            let q = zeros((1, 1, 2, 513), d)?;
            attention(&q, &q, &q, &AttentionConfig::default()).map(drop)
        }),
        Reject::new(
            OP,
            "a mask of other keys",
            &["mask", "[3, 4]", "[2, 4, 3, 5]"],
            |d| {
                wrong(d, |d, c| {
                    c.mask = Some(zeros((3, 4), d)?);
                    Ok(())
                })
            },
        ),
        Reject::new(OP, "a mask of u32", &["mask", "U32", "u8"], |d| {
            wrong(d, |d, c| {
                c.mask = Some(Tensor::zeros((3, 5), DType::U32, d)?);
                Ok(())
            })
        }),
        Reject::new(OP, "sinks of other heads", &["sinks", "[2]", "[4]"], |d| {
            wrong(d, |d, c| {
                c.sinks = Some(zeros(2, d)?);
                Ok(())
            })
        }),
        Reject::new(
            OP,
            "lengths of floats",
            &["key_lengths", "F32", "u32"],
            |d| {
                wrong(d, |d, c| {
                    c.key_lengths = Some(zeros(2, d)?);
                    Ok(())
                })
            },
        ),
        Reject::new(
            OP,
            "lengths of another batch",
            &["key_lengths", "[3]", "[2]"],
            |d| {
                wrong(d, |d, c| {
                    c.key_lengths = Some(Tensor::zeros(3, DType::U32, d)?);
                    Ok(())
                })
            },
        ),
        Reject::new(OP, "a softcap of 0", &["softcap", "0", "positive"], |d| {
            wrong(d, |_, c| {
                c.softcap = Some(0.0);
                Ok(())
            })
        }),
        Reject::new(OP, "a dropout of 1", &["p = 1", "p < 1"], |d| {
            wrong(d, |_, c| {
                c.dropout = Some(AttentionDropout { p: 1.0, seed: 0 });
                Ok(())
            })
        }),
        Reject::new(
            CODES_OP,
            "codes of other keys",
            &["v", "[2, 2, 6, 8]", "5"],
            |d| wrong_codes(d, |_, v, _| of_other_keys(v, 6)),
        ),
        Reject::new(
            CODES_OP,
            "scales of other groups",
            &["scales of keys", "[2, 2, 5, 1]", "[2, 2, 5, 2]"],
            |d| {
                wrong_codes(d, |k, _, _| {
                    k.scales = k.scales.narrow(3, 0, 1)?;
                    Ok(())
                })
            },
        ),
        Reject::new(
            CODES_OP,
            "codes of floats",
            &["codes of values", "F32", "U8"],
            |d| {
                wrong_codes(d, |_, v, _| {
                    v.codes = v.codes.to_dtype(DType::F32)?;
                    Ok(())
                })
            },
        ),
        Reject::new(CODES_OP, "no offsets", &["keys", "offsets: false"], |d| {
            wrong_codes(d, |k, _, _| {
                k.offsets = None;
                Ok(())
            })
        }),
        Reject::new(CODES_OP, "a scale for all", &["keys", "Tensor"], |d| {
            wrong_codes(d, |k, _, _| {
                k.scheme.scope = ScaleScope::Tensor;
                Ok(())
            })
        }),
        Reject::new(CODES_OP, "packed sequences", &["packed sequences"], |d| {
            wrong_codes(d, |_, _, config| {
                config.packed = Some(PackedSequences::new(&[0, 3], &[0, 5])?);
                Ok(())
            })
        }),
        Reject::new(
            OP,
            "packed sequences that end early",
            &["4 queries", "5"],
            |d| {
                let q = zeros((5, 4, 8), d)?;
                let packed = Some(PackedSequences::new(&[0, 4], &[0, 5])?);
                let config = AttentionConfig {
                    packed,
                    ..Default::default()
                };
                attention(&q, &q, &q, &config).map(drop)
            },
        ),
    ]
}
