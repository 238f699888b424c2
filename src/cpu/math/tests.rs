use super::*;
use crate::cpu::simd::{Isa, Kernel};

/// One function under test, generic over the instruction set.
#[derive(Clone, Copy)]
enum F {
    Exp,
    ExpNonpositive,
    Log,
    Tanh,
    Sigmoid,
    NormalCdf,
    NormalSlope,
    Log1pUnit,
}

struct Eval<'a>(F, &'a [f32], &'a mut [f32]);

impl Kernel for Eval<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (x, y) in self
            .1
            .chunks_exact(S::LANES)
            .zip(self.2.chunks_exact_mut(S::LANES))
        {
            // SAFETY: both chunks have LANES values.
            unsafe {
                let v = s.load_f32(x.as_ptr());
                let r = match self.0 {
                    F::Exp => exp(s, v),
                    F::ExpNonpositive => exp_nonpositive(s, v),
                    F::Log => log(s, v),
                    F::Tanh => tanh(s, v),
                    F::Sigmoid => sigmoid(s, v),
                    F::NormalCdf => normal_cdf(s, v),
                    F::NormalSlope => normal_cdf_times_x_slope(s, v),
                    F::Log1pUnit => log1p_unit(s, v),
                };
                s.store_f32(y.as_mut_ptr(), r);
            }
        }
    }
}

fn eval(isa: Isa, f: F, x: &[f32]) -> Vec<f32> {
    let mut padded = x.to_vec();
    padded.resize(x.len().next_multiple_of(16), 1.0);
    let mut y = vec![0f32; padded.len()];
    // SAFETY: callers pass an available instruction set.
    unsafe { isa.run(Eval(f, &padded, &mut y)) };
    y.truncate(x.len());
    y
}

/// erfc by its continued fraction (large z) or erf's series (small z), in f64.
fn erfc64(z: f64) -> f64 {
    if z < 0.0 {
        return 2.0 - erfc64(-z);
    }
    if z < 2.0 {
        let (mut term, mut sum, mut n) = (z, z, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -z * z / n;
            sum += term / (2.0 * n + 1.0);
        }
        return 1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum;
    }
    let mut f = 0.0;
    for k in (1..=120).rev() {
        f = k as f64 / 2.0 / (z + f);
    }
    (-z * z).exp() / (std::f64::consts::PI.sqrt() * (z + f))
}

/// |got − want| in units of the f32 spacing at `want`.
fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if nearest.is_infinite() || nearest.is_nan() {
        let same = got == nearest || (got.is_nan() && nearest.is_nan());
        return if same { 0.0 } else { f64::INFINITY };
    }
    let exponent = (nearest.abs().max(f32::MIN_POSITIVE).to_bits() >> 23) as i32 - 127 - 23;
    (got as f64 - want).abs() / (exponent as f64).exp2()
}

/// Every 251st bit pattern: all exponents and signs, denormals and NaNs included. Fewer in the reduced
/// grid, for emulators.
fn whole_range() -> Vec<f32> {
    let reduced = std::env::var("CANDLE_FUSED_TEST_GRID").is_ok_and(|grid| grid == "reduced");
    let step = if reduced { 16_381 } else { 251 };
    (0..=u32::MAX).step_by(step).map(f32::from_bits).collect()
}

fn check(name: &str, f: F, bound: f64, xs: &[f32], oracle: impl Fn(f64) -> f64) {
    for isa in Isa::available() {
        let unfused = isa == Isa::Portable && matches!(f, F::NormalCdf);
        let bound = if unfused { 96.0 } else { bound };
        let ys = eval(isa, f, xs);
        let mut worst = (0.0, 0.0f32);
        for (&x, &y) in xs.iter().zip(&ys) {
            let e = ulps(y, oracle(x as f64));
            if e > worst.0 || e.is_nan() {
                worst = (e, x);
            }
        }
        assert!(
            worst.0 <= bound,
            "{name} {isa:?}: {} ulp at {:e}",
            worst.0,
            worst.1
        );
        println!("{name} {isa:?}: max {:.2} ulp at {:e}", worst.0, worst.1);
    }
}

#[test]
fn exp_ulps() {
    check("exp", F::Exp, 2.0, &whole_range(), f64::exp);
}

#[test]
fn exp_nonpositive_ulps() {
    let not_positive: Vec<f32> = whole_range()
        .into_iter()
        .filter(|x| x.is_nan() || *x <= 0.0)
        .collect();
    let oracle = |x: f64| if x < -87.0 { 0.0 } else { x.exp() };
    check(
        "exp_nonpositive",
        F::ExpNonpositive,
        2.0,
        &not_positive,
        oracle,
    );
}

#[test]
fn log_ulps() {
    check("log", F::Log, 2.0, &whole_range(), f64::ln);
}

#[test]
fn tanh_ulps() {
    check("tanh", F::Tanh, 4.0, &whole_range(), f64::tanh);
}

#[test]
fn sigmoid_ulps() {
    check("sigmoid", F::Sigmoid, 4.0, &whole_range(), |x| {
        // There e⁻ˣ rounds to a power of two past the largest float.
        if x < -127.5 * std::f64::consts::LN_2 {
            return 0.0;
        }
        1.0 / (1.0 + (-x).exp())
    });
}

/// From where on Φ is a normal number.
fn normal_cdf_range() -> Vec<f32> {
    let mut xs = whole_range();
    xs.retain(|x| x.is_nan() || *x >= -12.5);
    xs
}

fn cdf64(x: f64) -> f64 {
    0.5 * erfc64(-x / std::f64::consts::SQRT_2)
}

#[test]
fn normal_cdf_ulps() {
    check("normal_cdf", F::NormalCdf, 8.0, &normal_cdf_range(), cdf64);
}

/// Near the zero of the slope, digits cancel: the bound is of its largest value, 1.13, and in the lower tail of the slope itself.
#[test]
fn normal_cdf_times_x_slope_error() {
    let xs: Vec<f32> = normal_cdf_range().into_iter().step_by(16).collect();
    let slope64 = |z: f64| {
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        // In the upper tail an infinite x times a density of 0 is 0.
        cdf64(z) + if density == 0.0 { 0.0 } else { z * density }
    };
    let oracle: Vec<f64> = xs.iter().map(|&x| slope64(x as f64)).collect();
    for isa in Isa::available() {
        let ys = eval(isa, F::NormalSlope, &xs);
        for ((&x, &y), &want) in xs.iter().zip(&ys).zip(&oracle) {
            let unit = 2f64.powi(-24) * if isa == Isa::Portable { 12.0 } else { 1.0 };
            let bound = if x < -1.5 {
                12.0 * unit * want.abs()
            } else {
                4.0 * unit
            };
            let right = (y.is_nan() && x.is_nan()) || (y as f64 - want).abs() <= bound;
            assert!(right, "{isa:?}: {y:e} for {want:e} at {x:e}");
        }
    }
}

#[test]
fn log1p_unit_ulps() {
    let unit: Vec<f32> = whole_range()
        .into_iter()
        .filter(|x| (0.0..=1.0).contains(x))
        .collect();
    check("log1p_unit", F::Log1pUnit, 2.0, &unit, f64::ln_1p);
}

#[test]
fn specials() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for isa in Isa::available() {
        let xs = [inf, -inf, nan, 0.0, -0.0, 1e-40, -1e-40];
        let exp = eval(isa, F::Exp, &xs);
        assert_eq!(
            (exp[0], exp[1], exp[3], exp[4], exp[5]),
            (inf, 0.0, 1.0, 1.0, 1.0)
        );
        let log = eval(isa, F::Log, &xs);
        assert_eq!((log[0], log[3], log[4]), (inf, -inf, -inf));
        assert!(log[1].is_nan() && log[6].is_nan());
        let tanh = eval(isa, F::Tanh, &xs);
        assert_eq!((tanh[0], tanh[1], tanh[5]), (1.0, -1.0, 1e-40));
        assert!(tanh[4].is_sign_negative() && tanh[4] == 0.0);
        let sigmoid = eval(isa, F::Sigmoid, &xs);
        assert_eq!((sigmoid[0], sigmoid[1], sigmoid[3]), (1.0, 0.0, 0.5));
        let cdf = eval(isa, F::NormalCdf, &xs);
        let slope = eval(isa, F::NormalSlope, &xs);
        for ys in [&cdf, &slope] {
            assert_eq!((ys[0], ys[1], ys[3]), (1.0, 0.0, 0.5));
        }
        for ys in [exp, log, tanh, sigmoid, cdf, slope] {
            assert!(ys[2].is_nan(), "{isa:?}");
        }
    }
}
