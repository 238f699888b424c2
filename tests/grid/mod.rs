//! Every case × dtype × size × layout × device, against the op's reference in f64.
//!
//! `CANDLE_FUSED_TEST_GRID=reduced` takes fewer sizes, for emulators; `CANDLE_FUSED_TEST_DIGESTS=FILE` lists the results.

mod check;
mod digest;
mod finite_differences;
mod forward;
mod gradients;
mod in_place;
mod layout;
mod specials;
mod tolerance;

use crate::cases::{self, Grid, OpCase, Size};
use crate::devices::devices;
use candle_core::{DType, Device, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A few rows of lengths below, at and above the vector widths, unrolled blocks and simdgroups, one
/// vocabulary, and many short rows. Both kinds of empty tensors.
const SIZES: Grid = &[
    &[3, 0],
    &[0, 3],
    &[3, 1],
    &[3, 31],
    &[3, 32],
    &[3, 33],
    &[3, 1025],
    &[130, 3],
    &[3, 513],
    &[3, 4097],
    &[3, 32000],
    &[4097, 3],
    &[1025, 33],
];
const REDUCED_SIZES: Grid = &[&[3, 0], &[3, 1], &[3, 33], &[3, 1025], &[130, 3]];

/// For every combination of layouts through Candle's own backward of views, which is slow.
const FEW_SIZES: Grid = &[&[3, 1], &[3, 31], &[3, 33], &[3, 1025], &[1025, 33]];

/// Long enough rows and enough of them for several threads.
const LARGE_SIZES: Grid = &[&[3, 32000], &[1025, 33], &[2, 70001], &[3, 131_073]];

/// How many elements are enough on devices other than the CPU, which may be emulated: for a launch, for the same launch
/// again, and for one with each layout.
const ENOUGH: usize = 100_000;
const ENOUGH_TWICE: usize = 40_000;
const ENOUGH_BY_LAYOUT: usize = 5_000;

/// What an element of a product of matrices counts for.
const PRODUCT: usize = 16;

/// On any device.
const ENOUGH_OF_A_VARIANT: usize = 100;

/// What a check is run on.
#[derive(Clone, Copy)]
enum Sizes {
    /// These, or a product's own ones. In both cases fewer of them where the environment asks for that.
    Grid(Grid),
    /// These, or a product's own ones.
    Whole(Grid),
    /// Just these, but for a case that has a grid of its own.
    Only(Grid),
}

impl Sizes {
    fn of(self, case: &OpCase) -> Vec<Size> {
        let reduced = std::env::var("CANDLE_FUSED_TEST_GRID").as_deref() == Ok("reduced");
        let sizes = match (self, case.product) {
            _ if case.grid.is_some() => case.grid.unwrap_or_default(),
            (Sizes::Only(sizes), _) | (Sizes::Whole(sizes), None) => sizes,
            (Sizes::Grid(_), None) if reduced => REDUCED_SIZES,
            (Sizes::Grid(sizes), None) => sizes,
            (Sizes::Grid(_) | Sizes::Whole(_), Some(own)) => own,
        };
        let few = |size: &Size| {
            let empty = case.grid.is_some() && size.count() == 0;
            let most = match (case.grid, case.product) {
                (Some(_), _) => 50_000,
                (None, Some(_)) => 400,
                (None, None) => usize::MAX,
            };
            (!reduced || size.count() < most) && (!empty || matches!(self, Sizes::Grid(_)))
        };
        sizes.iter().copied().map(Size).filter(few).collect()
    }
}

/// A point of the grid.
struct Point<'a> {
    case: &'a OpCase,
    size: Size,
    dtype: DType,
    device: &'a Device,
}

impl Point<'_> {
    fn is_left_out(&self, enough: usize) -> bool {
        let product = self.case.product.is_some();
        let count = self.size.count() * if product { PRODUCT } else { 1 };
        if self.case.variant && count > ENOUGH_OF_A_VARIANT {
            return true;
        }
        // Strides are the same in every dtype.
        let again = product && enough == ENOUGH_BY_LAYOUT && self.dtype != DType::F16;
        !self.device.is_cpu() && (count > enough || again)
    }
}

/// Checks one point: `Err` where a call fails, `Ok(Err)` where a result is wrong.
type Check = fn(&Point) -> Result<std::result::Result<(), String>>;

/// Runs the check on every point of the op and reports all that are wrong.
fn run(op: &str, sizes: Sizes, enough: usize, check: Check) {
    let cases: Vec<OpCase> = cases::all().into_iter().filter(|c| c.op == op).collect();
    assert!(!cases.is_empty(), "no case declared for {op}");
    let mut wrong = Vec::new();
    for case in &cases {
        for device in devices() {
            for dtype in DTYPES {
                for size in sizes.of(case) {
                    let point = Point {
                        case,
                        size,
                        dtype,
                        device,
                    };
                    if point.is_left_out(enough) {
                        continue;
                    }
                    wrong.extend(problem(&point, check));
                    // Candle on Metal waits for all it did since the last time.
                    device.synchronize().expect("no work outlives its check");
                }
            }
        }
    }
    let shown: Vec<_> = wrong.iter().take(40).map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        shown.join("\n")
    );
}

fn problem(point: &Point, check: Check) -> Option<String> {
    let text = match catch_unwind(AssertUnwindSafe(|| check(point))) {
        Ok(Ok(Ok(()))) => return None,
        Ok(Ok(Err(text))) => text,
        Ok(Err(error)) => first_line(format!("error: {error}")),
        Err(_) => "panicked".to_string(),
    };
    let Point {
        case,
        size,
        dtype,
        device,
    } = point;
    Some(format!(
        "{} {dtype:?} {size} {:?}: {text}",
        case.id(),
        device.location()
    ))
}

/// Without the backtrace that an error of Candle carries.
fn first_line(text: String) -> String {
    text.lines().next().unwrap_or_default().into()
}

macro_rules! grid {
    ($($op:ident)*) => {
        $(mod $op {
            use super::*;
            const OP: &str = stringify!($op);
            #[test]
            fn forward() {
                run(OP, Sizes::Grid(SIZES), ENOUGH, forward::agrees_with_reference);
            }
            #[test]
            fn layouts() {
                run(OP, Sizes::Grid(SIZES), ENOUGH_BY_LAYOUT, forward::ignores_layout);
            }
            #[test]
            fn repeats() {
                run(OP, Sizes::Grid(LARGE_SIZES), ENOUGH_TWICE, forward::repeats);
            }
            #[test]
            fn gradients_repeat() {
                run(OP, Sizes::Grid(LARGE_SIZES), ENOUGH_TWICE, gradients::repeat);
            }
            #[test]
            fn in_place() {
                run(OP, Sizes::Grid(SIZES), ENOUGH_BY_LAYOUT, in_place::changes_only_its_view);
            }
            #[test]
            fn gradients() {
                run(OP, Sizes::Grid(SIZES), ENOUGH, gradients::agree_with_reference);
            }
            #[test]
            fn gradients_by_layout() {
                run(OP, Sizes::Grid(FEW_SIZES), ENOUGH_BY_LAYOUT, gradients::ignore_layout);
            }
            #[test]
            fn gradients_of_some() {
                run(OP, Sizes::Only(&[&[3, 33], &[130, 10]]), ENOUGH, gradients::reach_one_alone);
            }
            #[test]
            fn finite_differences() {
                run(OP, finite_differences::SIZES, ENOUGH, finite_differences::agree);
            }
            #[test]
            fn specials() {
                run(OP, Sizes::Whole(&[&[12, 33], &[12, 1025]]), ENOUGH, specials::as_stock);
            }
        })*
    };
}

cases::with_ops!(grid);
