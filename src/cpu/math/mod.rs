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

/// As `poly`, with a last coefficient of 1.
#[inline(always)]
fn poly_monic<S: Simd, const N: usize>(s: S, x: S::F, c: [f32; N]) -> S::F {
    debug_assert!(c[N - 1] == 1.0);
    let mut acc = s.add(x, s.splat(c[N - 2]));
    for i in (0..N - 2).rev() {
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

/// The largest |x| that the normal distribution is computed for: there exp(−x²/2) is flushed to 0, by an exponent field of 0.
const NORMAL_END: f32 = 13.27;

/// e^(−q/2) for |q| ≤ ln 2, relative error below 1e-7.
const EXP_HALF_NEG: [f32; 6] = [
    1.0,
    -0.499_999_85,
    0.124_997_87,
    -0.020_834_547,
    0.002_618_629,
    -0.000_259_071_56,
];

/// |x| up to `NORMAL_END`, and exp(−x²/2) there, or 0 where that is below the smallest normal number.
#[inline(always)]
fn exp_half_square<S: Simd>(s: S, x: S::F) -> (S::F, S::F) {
    // |x| second, so that a NaN passes through.
    let a = s.min(s.splat(NORMAL_END), s.abs(x));
    // As in `exp_nonpositive`: the low bits of `shifted` are the exponent field of 2ⁿ.
    let magic = s.splat(12_582_912.0 + 127.0);
    let shifted = s.fnma(s.mul(a, a), s.splat(0.5 * std::f32::consts::LOG2_E), magic);
    let n = s.sub(shifted, magic);
    // q = x² + 2n·ln 2. The square is a product inside the FMA, which does not round it: rounded, it would cost up to 40 ulp.
    let q = s.fma(a, a, s.mul(n, s.splat(2.0 * LN2_HI)));
    let q = s.fma(n, s.splat(2.0 * LN2_LO), q);
    let scale = s.float(s.shl::<23>(s.bits(shifted)));
    (a, s.mul(poly(s, q, EXP_HALF_NEG), scale))
}

/// Numerator and divisor, whose leading coefficient is 1, of Φ(−a)·exp(a²/2) for 0 ≤ a ≤ 13.3, relative error below 1.4e-7.
const TAIL: [f32; 5] = [
    13.985_601,
    9.483_8,
    2.996_993_8,
    0.398_622_72,
    6.814_071_6e-6,
];
const TAIL_DIVISOR: [f32; 5] = [27.971_203, 41.285_26, 24.950_659, 7.496_441_4, 1.0];

/// Φ(x), the normal distribution function, accurate in the lower tail too.
#[inline(always)]
pub fn normal_cdf<S: Simd>(s: S, x: S::F) -> S::F {
    let (a, e) = exp_half_square(s, x);
    let tail = s.div(s.mul(poly(s, a, TAIL), e), poly_monic(s, a, TAIL_DIVISOR));
    s.select(s.lt(x, s.splat(0.0)), tail, s.sub(s.splat(1.0), tail))
}

/// (x·Φ(x))′ = Φ(x) + x·φ(x), φ being the normal density.
#[inline(always)]
pub fn normal_cdf_times_x_slope<S: Simd>(s: S, x: S::F) -> S::F {
    const FRAC_1_SQRT_2PI: f32 = 0.398_942_3;
    let (a, e) = exp_half_square(s, x);
    let tail = s.div(poly(s, a, TAIL), poly_monic(s, a, TAIL_DIVISOR));
    // Of −a: Φ(−a) − a·φ(a). The slope at a is 1 minus that. At an infinite x, e is 0 and a is finite.
    let lower = s.mul(e, s.fnma(a, s.splat(FRAC_1_SQRT_2PI), tail));
    s.select(s.lt(x, s.splat(0.0)), lower, s.sub(s.splat(1.0), lower))
}

#[cfg(test)]
mod tests;
