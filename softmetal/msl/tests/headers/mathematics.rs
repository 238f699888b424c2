//! Floating-point functions against Rust's in double precision.

use crate::harness::build;

const POINTS: [f32; 12] = [
    -3.5, -1.0, -0.75, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 9.0,
];

type Reference1 = fn(f64) -> f64;
type Reference2 = fn(f64, f64) -> f64;

/// `round` takes halves away from zero, `rint` to even.
const UNARY: &[(&str, Reference1)] = &[
    ("acos", f64::acos),
    ("acosh", f64::acosh),
    ("asin", f64::asin),
    ("asinh", f64::asinh),
    ("atan", f64::atan),
    ("atanh", f64::atanh),
    ("ceil", f64::ceil),
    ("cos", f64::cos),
    ("cosh", f64::cosh),
    ("cospi", |x| (x * std::f64::consts::PI).cos()),
    ("exp", f64::exp),
    ("exp2", f64::exp2),
    ("exp10", |x| 10f64.powf(x)),
    ("fabs", f64::abs),
    ("abs", f64::abs),
    ("floor", f64::floor),
    ("fract", |x| x - x.floor()),
    ("log", f64::ln),
    ("log2", f64::log2),
    ("log10", f64::log10),
    ("rint", f64::round_ties_even),
    ("round", f64::round),
    ("rsqrt", |x| 1.0 / x.sqrt()),
    ("saturate", |x| x.clamp(0.0, 1.0)),
    ("sin", f64::sin),
    ("sinh", f64::sinh),
    ("sinpi", |x| (x * std::f64::consts::PI).sin()),
    ("sqrt", f64::sqrt),
    ("tan", f64::tan),
    ("tanh", f64::tanh),
    ("trunc", f64::trunc),
];

const BINARY: &[(&str, Reference2)] = &[
    ("atan2", f64::atan2),
    ("copysign", f64::copysign),
    ("divide", |x, y| x / y),
    ("fdim", |x, y| if x > y { x - y } else { 0.0 }),
    ("fmax", f64::max),
    ("fmin", f64::min),
    ("fmod", |x, y| x % y),
    ("max", f64::max),
    ("min", f64::min),
    ("pow", f64::powf),
    ("powr", |x, y| if x < 0.0 { f64::NAN } else { x.powf(y) }),
    ("step", |edge, x| if x < edge { 0.0 } else { 1.0 }),
];

fn close(got: f32, want: f64, tolerance: f64) -> bool {
    if want.is_nan() || got.is_nan() {
        return want.is_nan() && got.is_nan();
    }
    f64::from(got) == want || (f64::from(got) - want).abs() <= tolerance * want.abs().max(1.0)
}

/// Evaluates `expression` of `x`, `y` of type `ty` for all pairs of points.
fn evaluate(expressions: &[String], ty: &str) -> Vec<Vec<f32>> {
    let pairs: Vec<[f32; 2]> = POINTS
        .iter()
        .flat_map(|x| POINTS.iter().map(|y| [*x, *y]))
        .collect();
    let mut data: Vec<f32> = pairs.concat();
    data.resize(data.len() + pairs.len() * expressions.len(), 0.0);
    let lines: String = expressions
        .iter()
        .enumerate()
        .map(|(i, e)| format!("out[{i} * n + k] = float({e});\n"))
        .collect();
    let source = format!(
        "RUN {{ const int n = {}; float* in = (float*)data; float* out = in + 2 * n;\n\
         for (int k = 0; k < n; k++) {{ {ty} x = ({ty})in[2 * k], y = ({ty})in[2 * k + 1];\n{lines} }} }}",
        pairs.len()
    );
    build(&source, &[]).run_on(1, &mut data);
    data[2 * pairs.len()..]
        .chunks(pairs.len())
        .map(<[f32]>::to_vec)
        .collect()
}

fn compare(prefix: &str, ty: &str, tolerance: f64) {
    let skip =
        |name: &str| prefix == "fast::" && name == "tanh" || !prefix.is_empty() && name == "step";
    let unary: Vec<_> = UNARY.iter().filter(|(name, _)| !skip(name)).collect();
    let binary: Vec<_> = BINARY.iter().filter(|(name, _)| !skip(name)).collect();
    let expressions: Vec<String> = unary
        .iter()
        .map(|(name, _)| format!("{prefix}{name}(x)"))
        .chain(
            binary
                .iter()
                .map(|(name, _)| format!("{prefix}{name}(x, y)")),
        )
        .collect();
    let results = evaluate(&expressions, ty);
    let points = || {
        POINTS
            .iter()
            .flat_map(|x| POINTS.iter().map(move |y| (f64::from(*x), f64::from(*y))))
    };
    for (i, expression) in expressions.iter().enumerate() {
        for ((x, y), got) in points().zip(&results[i]) {
            let want = match unary.get(i) {
                Some((_, reference)) => reference(x),
                None => binary[i - unary.len()].1(x, y),
            };
            // What is near a pole depends on the last bit of the argument.
            let largest = if ty == "half" { 60000.0 } else { 1e30 };
            if want.abs() < largest || !want.is_finite() {
                assert!(
                    close(*got, want, tolerance),
                    "{expression} of {ty} at {x}, {y}: {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn of_float() {
    compare("", "float", 4e-7);
}

#[test]
fn of_half() {
    compare("", "half", 1e-3);
}

#[test]
fn of_bfloat_through_float() {
    let results = evaluate(
        &["exp(x)".into(), "max(x, y)".into(), "sqrt(x)".into()],
        "bfloat",
    );
    assert_eq!(results[0][11 * POINTS.len()], 9f32.exp());
    assert_eq!(results[1][1], -1.0);
    assert!(results[2][0].is_nan());
}

#[test]
fn precise_and_fast() {
    compare("precise::", "float", 4e-7);
    compare("fast::", "float", 4e-7);
}

#[test]
fn fast_tanh_overflows_as_apples() {
    let source = "RUN {
        volatile float large = 45.0f, small = 0.5f;
        CHECK(isnan(fast::tanh(large)) && isnan(tanh(large)) && fast::tanh(-large) == -1.0f);
        CHECK(precise::tanh(large) == 1.0f && tanh((half)45.0f) == (half)1.0f);
        CHECK(fabs(fast::tanh(small) - precise::tanh(small)) < 1e-6f);
        CHECK(all(isnan(tanh(float2(large, small))) == bool2(true, false)));
    }";
    build(source, &[]).check();
    let precise = "RUN { volatile float large = 45.0f; CHECK(tanh(large) == 1.0f && isnan(fast::tanh(large))); }";
    build(precise, &["-DSOFTMETAL_PRECISE_FUNCTIONS=1"]).check();
}

#[test]
fn of_vectors_and_three_arguments() {
    let source = "RUN {
        float4 v(1, 4, 9, 16);
        CHECK(all(sqrt(v) == float4(1, 2, 3, 4)) && all(fma(v, 2, 1.0f) == v * 2 + 1) && all(max(v, 5) == float4(5, 5, 9, 16)));
        CHECK(all(clamp(v, 2, 9) == float4(2, 4, 9, 9)) && all(clamp(half2(-1, 3), (half)0, (half)1) == half2(0, 1)));
        CHECK(all(mix(float2(0, 10), float2(10, 20), 0.5f) == float2(5, 15)) && mix(1.0f, 3.0f, 0.5f) == 2.0f);
        CHECK(smoothstep(0.0f, 1.0f, 0.5f) == 0.5f && all(smoothstep(0.0f, 2.0f, float2(-1, 3)) == float2(0, 1)));
        CHECK(sign(-3.0f) == -1 && sign(0.0f) == 0 && sign((half)2) == 1 && sign(__builtin_nanf(\"\")) == 0);
        CHECK(fmin3(3.0f, 1.0f, 2.0f) == 1 && fmax3(3.0f, 1.0f, 2.0f) == 3 && median3(3.0f, 1.0f, 2.0f) == 2);
        CHECK(all(pow(float2(2, 3), float2(3, 2)) == float2(8, 9)) && all(precise::max(float2(1, 5), 3.0f) == float2(3, 5)));
        float c, whole;
        int e;
        CHECK(fabs(sincos(1.0f, c) - sin(1.0f)) < 1e-6f && fabs(c - cos(1.0f)) < 1e-6f);
        CHECK(modf(-2.75f, whole) == -0.75f && whole == -2 && frexp(12.0f, e) == 0.75f && e == 4);
        CHECK(ldexp(0.75f, 4) == 12 && ilogb(12.0f) == 3 && all(ldexp(float2(1, 2), int2(1, 2)) == float2(2, 8)));
        half2 w2;
        int2 e2;
        CHECK(all(modf(half2(1.5f, -2.25f), w2) == half2(0.5f, -0.25f)) && all(w2 == half2(1, -2)) && all(ilogb(float2(8, 0.5f)) == int2(3, -1)));
        CHECK(all(frexp(half2(12, 1), e2) == half2(0.75f, 0.5f)) && all(e2 == int2(4, 1)) && all(ldexp(half2(3, 5), int2(1, -1)) == half2(6, 2.5f)));
        float2 c2;
        CHECK(all(fast::sincos(float2(0, 0), c2) == float2(0)) && all(c2 == float2(1)));
    }";
    build(source, &[]).check();
}

#[test]
fn classification() {
    let source = "RUN {
        volatile float nan = __builtin_nanf(\"\"), inf = __builtin_inff(), tiny = 1e-40f;
        CHECK(isnan(nan) && !isnan(inf) && isinf(-inf) && !isfinite(inf) && isfinite(tiny) && !isnormal(tiny) && isnormal(1.0f));
        CHECK(signbit(-0.0f) && !signbit(0.0f) && isunordered(nan, 1.0f) && isordered(1.0f, 2.0f));
        CHECK(!isnormal((half)1e-6f) && isnormal((half)1.0f) && isnan((half)nan) && all(isinf(half2(inf, -inf))));
        CHECK(max(nan, 1.0f) == 1 && max(1.0f, nan) == 1 && min(nan, 1.0f) == 1 && isnan(max(nan, nan)));
    }";
    build(source, &[]).check();
}
