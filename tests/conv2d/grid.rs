//! Strides × paddings × dilations × kernels × channels × sizes × batches × algorithms × dtypes.
//!
//! The CPU computes the whole product. Other devices, which may be emulated, get a sample in which every two values of
//! two axes meet; with `CANDLE_FUSED_TEST_GRID=reduced` every device gets one in which each value occurs.

use super::{window, Conv, Expected, ACTS, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::ConvAlgo;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

const STRIDES: [usize; 3] = [1, 2, 3];
const PADDINGS: [usize; 3] = [0, 1, 2];
const DILATIONS: [usize; 2] = [1, 2];
const KERNELS: [usize; 7] = [1, 2, 3, 5, 7, 9, 11];
/// Groups, and the channels of each on both sides; the last ones are depthwise.
const CHANNELS: [[usize; 3]; 4] = [[1, 5, 7], [2, 2, 5], [5, 1, 1], [5, 1, 2]];
const SIZES: [[usize; 2]; 2] = [[13, 11], [23, 9]];
const BATCHES: [usize; 2] = [1, 3];

/// Neighbours, so that the loops in f64 run once for all.
const ALGOS: [ConvAlgo; 6] = [
    ConvAlgo::Auto,
    ConvAlgo::Direct,
    ConvAlgo::Tiled,
    ConvAlgo::ImplicitGemm,
    ConvAlgo::Winograd,
    ConvAlgo::Mps,
];

/// The lengths of all axes, those above and then dtypes and algorithms.
const AXES: [usize; 9] = [3, 3, 2, 7, 4, 2, 2, DTYPES.len(), ALGOS.len()];

/// A place on each axis.
type Point = [usize; AXES.len()];

fn all_points() -> Vec<Point> {
    AXES.iter()
        .enumerate()
        .fold(vec![[0; AXES.len()]], |points, (axis, &length)| {
            let each = |point: Point| {
                (0..length).map(move |i| {
                    let mut point = point;
                    point[axis] = i;
                    point
                })
            };
            points.into_iter().flat_map(each).collect()
        })
}

/// Whether the algorithm has such a convolution on the device.
fn is_served(point: &Point, device: &Device) -> bool {
    let mps = ALGOS[point[8]] == ConvAlgo::Mps;
    let dtype = DTYPES[point[7]];
    !mps || device.is_metal() && dtype != DType::BF16 && CHANNELS[point[4]][0] == 1
}

/// Points in a fixed random order, as long as one brings a new combination of `strength` axes.
fn sample(strength: usize, device: &Device) -> Vec<Point> {
    let mut points = all_points();
    points.retain(|point| is_served(point, device));
    points.sort_by_cached_key(|point| {
        let mut hasher = DefaultHasher::new();
        point.hash(&mut hasher);
        hasher.finish()
    });
    let mut seen = HashSet::new();
    points.retain(|point| {
        let mut new = false;
        for a in 0..AXES.len() {
            for b in 0..a.max(1) {
                let pair = match strength {
                    1 => [(a, point[a]), (a, point[a])],
                    _ => [(a, point[a]), (b, point[b])],
                };
                new |= seen.insert(pair);
            }
        }
        new
    });
    points.sort();
    points
}

fn points(device: &Device) -> Vec<Point> {
    let reduced = std::env::var("CANDLE_FUSED_TEST_GRID").as_deref() == Ok("reduced");
    match device {
        _ if reduced => sample(1, device),
        Device::Cpu => all_points(),
        _ => sample(2, device),
    }
}

/// The shapes of a point. An image is made large enough for its kernel to move.
fn conv(point: &Point) -> Conv {
    let [stride, padding, dilation, kernel, channels, size, batch, ..] = *point;
    let (stride, padding) = (STRIDES[stride], PADDINGS[padding]);
    let (dilation, kernel) = (DILATIONS[dilation], KERNELS[kernel]);
    let [groups, c_in, c_out] = CHANNELS[channels];
    let least = (kernel - 1) * dilation + 3 - padding;
    let [height, width] = SIZES[size].map(|side| side.max(least));
    Conv::new(
        [BATCHES[batch], groups * c_in, height, width],
        [groups * c_out, c_in, kernel, kernel],
        window(stride, padding, dilation, groups),
    )
}

fn run(dtype: DType) -> Result<()> {
    let mut wrong = Vec::new();
    for device in devices() {
        // Points that differ in the algorithm alone are neighbours.
        let mut last: Option<(Vec<usize>, [Tensor; 3], Expected)> = None;
        for (i, point) in points(device).iter().enumerate() {
            let (shape, algo) = (&point[..8], ALGOS[point[8]]);
            if DTYPES[point[7]] != dtype || !is_served(point, device) {
                continue;
            }
            let conv = conv(point);
            if last.as_ref().is_none_or(|(key, ..)| key != shape) {
                let inputs = conv.inputs(dtype)?;
                let expected = conv.expected(&inputs)?;
                last = Some((shape.to_vec(), inputs, expected));
            }
            let Some((_, inputs, expected)) = &last else {
                continue;
            };
            let act = ACTS[i % ACTS.len()];
            let problem = match conv.run(inputs, act, algo, device) {
                Ok(y) => expected.by(&conv, algo).after(act)?.problem(&y)?,
                Err(error) => error.to_string().lines().next().map(str::to_string),
            };
            let at = device.location();
            wrong.extend(problem.map(|p| format!("{at:?} {algo:?} {act:?} {conv:?}: {p}")));
        }
    }
    let shown: Vec<&str> = wrong.iter().take(20).map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        shown.join("\n")
    );
    Ok(())
}

#[test]
fn f32() -> Result<()> {
    run(DType::F32)
}

#[test]
fn f16() -> Result<()> {
    run(DType::F16)
}

#[test]
fn bf16() -> Result<()> {
    run(DType::BF16)
}

/// On each device, every value that any convolution there has; and every two, of those that some convolution has both.
#[test]
fn samples_hold_every_value_of_every_axis() {
    for device in devices() {
        let pairs = |points: &[Point]| -> HashSet<[(usize, usize); 2]> {
            let axes = |point: &Point| -> Vec<_> { point.iter().copied().enumerate().collect() };
            let of = |point: &Point| {
                let axes = axes(point);
                let pair = |i: usize| [axes[i / AXES.len()], axes[i % AXES.len()]];
                (0..AXES.len() * AXES.len()).map(pair).collect::<Vec<_>>()
            };
            points.iter().flat_map(of).collect()
        };
        let mut all = all_points();
        all.retain(|point| is_served(point, device));
        let all = pairs(&all);
        let (few, more) = (sample(1, device), sample(2, device));
        println!("{} and {} points", few.len(), more.len());
        assert!(few.len() < 20 && more.len() < 130);
        assert_eq!(pairs(&more), all);
        let values = |pairs: HashSet<[(usize, usize); 2]>| -> HashSet<_> {
            pairs.into_iter().filter(|[a, b]| a == b).collect()
        };
        assert_eq!(values(pairs(&few)), values(all));
    }
}
