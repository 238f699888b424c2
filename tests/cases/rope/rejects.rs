//! What rotations refuse.

use super::super::{zeros, Reject};
use super::NAME;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{rope, rope_qk, Rope, RopePositions, RopeSections};

fn call(d: &Device, x: &[usize], table: &[usize], of: Rope) -> Result<()> {
    rope(&zeros(x, d)?, &zeros(table, d)?, &zeros(table, d)?, &of).map(drop)
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            NAME,
            "another rank",
            &["x of shape [2, 8]", "positions, dim]"],
            |d| call(d, &[2, 8], &[2, 4], Rope::default()),
        ),
        Reject::new(NAME, "short tables", &["4 positions", "5 from 0 on"], |d| {
            call(d, &[1, 2, 5, 8], &[4, 4], Rope::default())
        }),
        Reject::new(
            NAME,
            "an offset past the table",
            &["6 positions", "5 from 2 on"],
            |d| {
                let positions = RopePositions::From(2);
                call(
                    d,
                    &[1, 2, 5, 8],
                    &[6, 4],
                    Rope {
                        positions,
                        ..Rope::default()
                    },
                )
            },
        ),
        Reject::new(
            NAME,
            "wide tables",
            &["[5, 5]", "at most 4 pairs", "dim of 8"],
            |d| call(d, &[1, 2, 5, 8], &[5, 5], Rope::default()),
        ),
        Reject::new(
            NAME,
            "tables of another batch",
            &["[3, 5, 4]", "batch of 2"],
            |d| call(d, &[2, 2, 5, 8], &[3, 5, 4], Rope::default()),
        ),
        Reject::new(
            NAME,
            "different tables",
            &["cos of shape [5, 4]", "sin of [5, 3]"],
            |d| {
                let (cos, sin) = (zeros((5, 4), d)?, zeros((5, 3), d)?);
                rope(&zeros((2, 5, 8), d)?, &cos, &sin, &Rope::default()).map(drop)
            },
        ),
        Reject::new(
            NAME,
            "positions of another length",
            &["[4]", "[5] or [1, 5]"],
            |d| {
                let positions = RopePositions::Ids(Tensor::zeros(4, DType::U32, d)?);
                call(
                    d,
                    &[1, 2, 5, 8],
                    &[5, 4],
                    Rope {
                        positions,
                        ..Rope::default()
                    },
                )
            },
        ),
        Reject::new(NAME, "positions of floats", &["F32", "u32 or i64"], |d| {
            let positions = RopePositions::Ids(zeros(5, d)?);
            call(
                d,
                &[1, 2, 5, 8],
                &[5, 4],
                Rope {
                    positions,
                    ..Rope::default()
                },
            )
        }),
        Reject::new(
            NAME,
            "sections of fewer pairs",
            &["[1, 1, 1]", "4 in all"],
            |d| {
                let sections = Some(RopeSections {
                    lens: [1; 3],
                    interleaved: false,
                });
                call(
                    d,
                    &[1, 2, 5, 8],
                    &[3, 5, 4],
                    Rope {
                        sections,
                        ..Rope::default()
                    },
                )
            },
        ),
        Reject::new(
            "rope_qk",
            "keys of other positions",
            &["[1, 2, 4, 8]", "[1, 3, 5, 8]"],
            |d| {
                let (q, k, table) = (
                    zeros((1, 3, 5, 8), d)?,
                    zeros((1, 2, 4, 8), d)?,
                    zeros((5, 4), d)?,
                );
                rope_qk(&q, &k, &table, &table, &Rope::default()).map(drop)
            },
        ),
    ]
}
