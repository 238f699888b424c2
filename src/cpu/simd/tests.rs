use super::*;
use crate::cpu::element::Element;
use half::{bf16, f16};

/// Checks conversions, comparisons and reductions of one instruction set, lane by lane.
struct Lanes<'a>(&'a [f32]);

impl Kernel for Lanes<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.0.chunks_exact(S::LANES) {
            // SAFETY: `x` has LANES values, the outputs at least as many.
            unsafe {
                let v = s.load_f32(x.as_ptr());
                check_16_bits::<S, f16>(s, x);
                check_16_bits::<S, bf16>(s, x);
                let bytes: [u8; MAX_LANES] = std::array::from_fn(|i| (x[0].to_bits() >> i) as u8);
                let wide = s.load_u8(bytes.as_ptr());
                let floats = s.to_array(s.to_float(wide));
                let mut low = [0u8; MAX_LANES];
                s.store_u8(low.as_mut_ptr(), s.isub(wide, s.isplat(0x1234_5600)));
                let signed = s.to_array(s.to_float(s.load_i8(bytes.as_ptr())));
                let halves = s.to_array(s.to_float(s.load_u4(bytes.as_ptr())));
                for i in 0..S::LANES {
                    assert_eq!(floats[i], f32::from(bytes[i]));
                    assert_eq!(low[i], bytes[i]);
                    assert_eq!(signed[i], f32::from(bytes[i] as i8));
                    assert_eq!(halves[i], f32::from(bytes[i / 2] >> (i % 2 * 4) & 15));
                }
                let half = s.splat(0.5);
                let (max, min) = (s.to_array(s.max(half, v)), s.to_array(s.min(half, v)));
                let (neg, abs) = (s.to_array(s.neg(v)), s.to_array(s.abs(v)));
                let sign = s.to_array(s.copysign(half, v));
                let root = s.to_array(s.sqrt(v));
                let swapped = s.to_array(s.swap_pairs(v));
                for (i, &x) in x.iter().enumerate() {
                    assert!(same(max[i], if 0.5 > x { 0.5 } else { x }), "max {x}");
                    assert!(same(min[i], if 0.5 < x { 0.5 } else { x }), "min {x}");
                    assert!(same(neg[i], -x) && same(abs[i], x.abs()), "sign of {x}");
                    assert!(same(root[i], x.sqrt()), "the root of {x}");
                    assert!(same(sign[i], 0.5f32.copysign(x)), "copysign {x}");
                    assert!(same(swapped[i ^ 1], x), "{x} swapped");
                }
                let rows: [_; MAX_LANES] = std::array::from_fn(|i| s.mul(v, s.splat(i as f32)));
                let columns = s.transpose(rows);
                for (i, column) in columns.into_iter().enumerate().take(S::LANES) {
                    let column = s.to_array(column);
                    for j in 0..S::LANES {
                        assert!(same(column[j], s.to_array(rows[j])[i]), "({i}, {j})");
                    }
                }
                let sums = s.to_array(s.sum_rows(rows));
                for (i, sum) in sums.into_iter().enumerate().take(S::LANES) {
                    let row = s.to_array(rows[i]);
                    let total: f64 = row[..S::LANES].iter().map(|&x| x as f64).sum();
                    let size = row[..S::LANES].iter().fold(0f32, |size, x| size + x.abs());
                    match total.is_finite() && size < 1e30 {
                        true => assert!((sum as f64 - total).abs() <= 1e-6 * size as f64, "{i}"),
                        false => assert!(!sum.is_finite() || size >= 1e30, "{i}"),
                    }
                }
                let total: f64 = x.iter().map(|&x| x as f64).sum();
                if x.iter().all(|x| x.abs() < 1e3) {
                    assert!((s.reduce_add(v) as f64 - total).abs() < 1e-2);
                }
                let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                if !x.iter().any(|x| x.is_nan()) {
                    assert_eq!(s.reduce_max(v), largest);
                }
            }
        }
    }
}

/// Rounds a vector to a 16-bit type and widens it again.
#[inline(always)]
fn check_16_bits<S: Simd, T: Element>(s: S, x: &[f32]) {
    assert_eq!(x.len(), S::LANES);
    let mut narrow = [T::ZERO; MAX_LANES];
    // SAFETY: `x` has LANES values, `narrow` MAX_LANES.
    let wide = unsafe {
        T::store(s, narrow.as_mut_ptr(), s.load_f32(x.as_ptr()));
        s.to_array(T::load(s, narrow.as_ptr()))
    };
    for (i, &x) in x.iter().enumerate() {
        assert!(same(T::narrow(x).widen(), narrow[i].widen()), "{x} rounded");
        assert!(same(narrow[i].widen(), wide[i]), "{x} widened");
        let one = T::narrow_in(s, x);
        assert!(same(one.widen(), narrow[i].widen()), "{x} rounded alone");
        assert!(same(one.widen_in(s), wide[i]), "{x} widened alone");
    }
}

fn same(a: f32, b: f32) -> bool {
    (a.is_nan() && b.is_nan()) || a.to_bits() == b.to_bits()
}

#[test]
fn every_instruction_set_agrees_with_scalar_code() {
    // Every 13-bit step through all bit patterns, then the f16/bf16 ties and specials.
    let mut x: Vec<f32> = (0..=u32::MAX >> 13)
        .map(|i| f32::from_bits(i << 13))
        .collect();
    x.extend((0..=u16::MAX).map(|b| f16::from_bits(b).to_f32() * (1.0 + f32::EPSILON)));
    x.extend((0..=u16::MAX).map(|b| f32::from_bits((b as u32) << 16 | 0x8000)));
    x.extend((0..2 * MAX_LANES).map(|i| i as f32 - 7.25));
    for isa in Isa::available() {
        // SAFETY: available on this machine.
        unsafe { isa.run(Lanes(&x)) }
    }
}
