//! Vector elementary functions. Error bounds are against f64 over every finite f32 and hold on
//! every instruction set; `tests` measures them.
//!
//! | function | max error |
//! |---|---|
//! | [`exp`] | 2 ulp |
//! | [`exp_nonpositive`] | 2 ulp from −87 to 0 |
//! | [`log`] | 2 ulp |
//! | [`tanh`] | 4 ulp |
//! | [`sigmoid`] | 4 ulp, 0 below −87 |
//! | [`erf`] | 4 ulp |
//! | [`normal_cdf`] | 8 ulp where the result is normal; 96 without FMA |
//!
//! Polynomials are least-maximum fits on the reduced ranges given beside them.

use super::simd::Simd;

/// c₀ + c₁x + … by Horner's rule.
#[inline(always)]
fn poly<S: Simd, const N: usize>(s: S, x: S::F, c: [f32; N]) -> S::F {
    let mut acc = s.splat(c[N - 1]);
    for i in (0..N - 1).rev() {
        acc = s.fma(acc, x, s.splat(c[i]));
    }
    acc
}

/// ln 2 in two parts: the first has trailing zeros, so that n·LN2_HI is exact for |n| < 2⁹.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; n both as an integer and as a float.
#[inline(always)]
fn reduce_ln2<S: Simd>(s: S, x: S::F) -> (S::I, S::F) {
    // Adding 1.5·2²³ rounds to an integer that then sits in the low mantissa bits.
    let magic = s.splat(12_582_912.0);
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.isub(s.bits(shifted), s.bits(magic));
    let nf = s.sub(shifted, magic);
    let r = s.fnma(nf, s.splat(LN2_HI), x);
    (n, s.fnma(nf, s.splat(LN2_LO), r))
}

/// eʳ − 1 − r over r² for |r| ≤ ln 2 / 2, relative error of eʳ − 1 below 3e-10.
const EXPM1: [f32; 6] = [
    0.5,
    0.166_666_67,
    0.041_666_355,
    0.008_333_273,
    0.001_394_110_4,
    0.000_199_142_4,
];

/// 2ⁿ for −126 ≤ n ≤ 127.
#[inline(always)]
fn exp2i<S: Simd>(s: S, n: S::I) -> S::F {
    s.float(s.shl::<23>(s.iadd(n, s.isplat(127))))
}

#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // Outside, the result is 0 or inf anyway; x second, so that a NaN passes through.
    let x = s.min(s.splat(89.0), s.max(s.splat(-104.0), x));
    let (n, r) = reduce_ln2(s, x);
    let p = s.fma(s.mul(r, r), poly(s, r, EXPM1), r);
    let p = s.add(p, s.splat(1.0));
    // Two factors: 2ⁿ itself may be denormal or past the largest float.
    let half = s.sar::<1>(n);
    s.mul(s.mul(p, exp2i(s, half)), exp2i(s, s.isub(n, half)))
}

/// eˣ for x ≤ 0, and 0 instead of the denormal results below e⁻⁸⁷: what a softmax needs, in two thirds
/// of the steps.
#[inline(always)]
pub fn exp_nonpositive<S: Simd>(s: S, x: S::F) -> S::F {
    // As in `reduce_ln2`, with 127 more: the low bits are the exponent field of 2ⁿ.
    let magic = s.splat(12_582_912.0 + 127.0);
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(shifted, magic);
    let r = s.fnma(n, s.splat(LN2_LO), s.fnma(n, s.splat(LN2_HI), x));
    let p = s.fma(s.mul(r, r), poly(s, r, EXPM1), r);
    let scale = s.float(s.shl::<23>(s.bits(shifted)));
    let y = s.mul(s.add(p, s.splat(1.0)), scale);
    s.select(s.lt(x, s.splat(-87.0)), s.splat(0.0), y)
}

#[inline(always)]
pub fn log<S: Simd>(s: S, x: S::F) -> S::F {
    let tiny = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let scaled = s.select(tiny, s.mul(x, s.splat(8_388_608.0)), x);
    // x = 2ᵉ·m with m in [√½, √2): subtracting √½'s pattern makes the exponent field e.
    let offset = s.isplat(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32);
    let e = s.sar::<23>(s.isub(s.bits(scaled), offset));
    let m = s.float(s.isub(s.bits(scaled), s.shl::<23>(e)));
    let e = s.sub(s.to_float(e), s.select(tiny, s.splat(23.0), s.splat(0.0)));
    let f = s.sub(m, s.splat(1.0));
    let y = log1p_reduced(s, f, e);
    let y = s.select(s.lt(x, s.splat(f32::INFINITY)), y, x); // +inf and NaN
    let y = s.select(s.lt(x, s.splat(0.0)), s.splat(f32::NAN), y);
    s.select(s.eq(x, s.splat(0.0)), s.splat(f32::NEG_INFINITY), y)
}

/// (ln(1+f) − f + f²/2) / f³ for √½ ≤ 1+f ≤ √2, relative error of ln below 1e-9.
const LOG1P: [f32; 9] = [
    0.333_333_13,
    -0.250_000_1,
    0.200_021_19,
    -0.166_679_96,
    0.142_195_52,
    -0.124_055_9,
    0.118_881_665,
    -0.116_756_484,
    0.067_466_274,
];

/// e·ln 2 + ln(1+f) for 1+f in [√½, √2].
#[inline(always)]
fn log1p_reduced<S: Simd>(s: S, f: S::F, e: S::F) -> S::F {
    let f2 = s.mul(f, f);
    let tail = s.mul(s.mul(f2, f), poly(s, f, LOG1P));
    let tail = s.fma(e, s.splat(LN2_LO), tail);
    let tail = s.fnma(s.splat(0.5), f2, tail);
    s.fma(e, s.splat(LN2_HI), s.add(f, tail))
}

/// ln(1 + t) for 0 ≤ t ≤ 1, accurate for tiny t.
#[inline(always)]
pub fn log1p_unit<S: Simd>(s: S, t: S::F) -> S::F {
    // Above √2 − 1 halve the argument: 1 + t = 2·(1 + (t − 1)/2).
    let big = s.lt(s.splat(std::f32::consts::SQRT_2 - 1.0), t);
    let halved = s.mul(s.sub(t, s.splat(1.0)), s.splat(0.5));
    let e = s.select(big, s.splat(1.0), s.splat(0.0));
    log1p_reduced(s, s.select(big, halved, t), e)
}

#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // tanh|x| = t / (t + 2) with t = e^(2|x|) − 1, which stays accurate near 0; 1 beyond 10.
    let a = s.min(s.splat(10.0), s.abs(x));
    let (n, r) = reduce_ln2(s, s.add(a, a));
    let q = s.fma(s.mul(r, r), poly(s, r, EXPM1), r);
    let scale = exp2i(s, n);
    let t = s.fma(scale, q, s.sub(scale, s.splat(1.0)));
    s.copysign(s.div(t, s.add(t, s.splat(2.0))), x)
}

/// e⁻ˣ + 1, the divisor of the logistic function: inf for x below −88.4, 1 for large x.
#[inline(always)]
pub fn one_plus_exp_neg<S: Simd>(s: S, x: S::F) -> S::F {
    // 2ⁿ becomes inf at n = 128, and e⁻ˣ vanishes beside 1 long before n = −126. x second, so that a NaN
    // passes through.
    let x = s.min(s.splat(87.0), s.max(s.splat(-89.0), x));
    // As in `exp_nonpositive`: the low bits are the exponent field of 2ⁿ.
    let magic = s.splat(12_582_912.0 + 127.0);
    let shifted = s.fnma(x, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(magic, shifted);
    // r = −x − (−n)·ln 2
    let r = s.fma(n, s.splat(LN2_LO), s.fma(n, s.splat(LN2_HI), s.neg(x)));
    let scale = s.float(s.shl::<23>(s.bits(shifted)));
    let p = s.fma(s.mul(r, r), poly(s, r, EXPM1), r);
    s.fma(s.add(p, s.splat(1.0)), scale, s.splat(1.0))
}

#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(s.splat(1.0), one_plus_exp_neg(s, x))
}

/// σ′(x) = σ(x)(1 − σ(x)), without the cancellation.
#[inline(always)]
pub fn sigmoid_slope<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp_nonpositive(s, s.neg(s.abs(x)));
    let r = s.div(s.splat(1.0), s.add(s.splat(1.0), e));
    s.mul(s.mul(e, r), r)
}

/// erf(x)/x as a polynomial in x² for |x| ≤ 1, relative error below 2e-9.
#[allow(dead_code, reason = "as for erf")]
const ERF: [f32; 7] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    -0.376_126_26,
    0.112_836,
    -0.026_854_444,
    0.005_189_535,
    -0.000_802_084_2,
    7.889_121e-5,
];

#[allow(
    dead_code,
    reason = "part of the tested set; gelu_erf needs the tail that normal_cdf keeps"
)]
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::F) -> S::F {
    let a = s.abs(x);
    let small = s.mul(x, poly(s, s.mul(x, x), ERF));
    let large = s.sub(s.splat(1.0), s.mul(exp_square(s, -1.0, x), erfcx(s, a)));
    s.select(s.lt(a, s.splat(1.0)), small, s.copysign(large, x))
}

/// (1 + 2z)·exp(z²)·erfc(z) as a polynomial in (z − 2)/(z + 2) for 0 ≤ z ≤ 10.2, error below 2e-9.
const ERFCX: [f32; 12] = [
    1.276_978_4,
    -0.092_763_82,
    -0.166_030_51,
    0.164_051_06,
    -0.054_217_916,
    -0.008_030_941,
    0.008_709_525,
    0.001_253_007_7,
    -0.001_421_647_1,
    -0.000_401_376_34,
    0.000_169_996_7,
    7.990_734_6e-5,
];

/// erfc(z)·exp(z²) for z ≥ 0.
#[inline(always)]
fn erfcx<S: Simd>(s: S, z: S::F) -> S::F {
    let z = s.min(s.splat(10.2), z);
    let (one, two) = (s.splat(1.0), s.splat(2.0));
    let (p2, d) = (s.add(z, two), s.fma(z, two, one));
    // One division serves both quotients.
    let inv = s.div(one, s.mul(p2, d));
    let t = s.mul(s.mul(s.sub(z, two), d), inv);
    s.mul(s.mul(poly(s, t, ERFCX), p2), inv)
}

/// exp(c·x²) with the rounding error of x² put back: e^(c·(hi+lo)) ≈ e^(c·hi)·(1 + c·lo).
#[inline(always)]
fn exp_square<S: Simd>(s: S, c: f32, x: S::F) -> S::F {
    let hi = s.mul(x, x);
    // Past exp's range the result is 0, and inf − inf must not make a NaN of it.
    let hi = s.min(s.splat(1e4), hi);
    let lo = s.select(s.lt(hi, s.splat(1e4)), s.fma(x, x, s.neg(hi)), s.splat(0.0));
    let e = exp(s, s.mul(s.splat(c), hi));
    s.fma(s.mul(e, s.splat(c)), lo, e)
}

/// Φ(x), the normal distribution function, accurate in the lower tail too.
#[inline(always)]
pub fn normal_cdf<S: Simd>(s: S, x: S::F) -> S::F {
    let z = s.mul(s.abs(x), s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let tail = s.mul(s.mul(s.splat(0.5), exp_square(s, -0.5, x)), erfcx(s, z));
    s.select(s.lt(x, s.splat(0.0)), tail, s.sub(s.splat(1.0), tail))
}

/// φ(x), the normal density.
#[inline(always)]
pub fn normal_pdf<S: Simd>(s: S, x: S::F) -> S::F {
    const FRAC_1_SQRT_2PI: f32 = 0.398_942_3;
    let e = exp(s, s.mul(s.splat(-0.5), s.mul(x, x)));
    s.mul(s.splat(FRAC_1_SQRT_2PI), e)
}

#[cfg(test)]
mod tests;
