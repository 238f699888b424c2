//! The element types of our kernels: f32, f16 and bf16, all computed in f32 lanes.

use super::simd::{narrow_f16, widen_f16, Simd, MAX_LANES};
use candle_core::{CpuStorage, WithDType};
use half::{bf16, f16};

pub trait Element: WithDType + Send + Sync {
    fn wrap(data: Vec<Self>) -> CpuStorage;
    const ZERO: Self;
    /// max(x, 0) and 0 for NaN, on the bits: nothing has to be widened for it.
    fn relu(self) -> Self;
    fn widen(self) -> f32;
    fn narrow(x: f32) -> Self;

    /// # Safety
    /// `p` is valid for reads of `S::LANES` elements.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F;
    /// # Safety
    /// `p` is valid for writes of `S::LANES` elements.
    unsafe fn store<S: Simd>(s: S, p: *mut Self, x: S::F);

    /// Loads the first `n` < `LANES` elements; the other lanes are 0.
    ///
    /// # Safety
    /// `p` is valid for reads of `n` elements.
    unsafe fn load_few<S: Simd>(s: S, p: *const Self, n: usize) -> S::F;

    /// Loads the first `n` < `LANES` elements; the other lanes are `pad`.
    ///
    /// # Safety
    /// `p` is valid for reads of `n` elements.
    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, p: *const Self, n: usize, pad: f32) -> S::F {
        const IDS: [f32; MAX_LANES] = [
            0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.,
        ];
        let real = s.lt(s.load_f32(IDS.as_ptr()), s.splat(n as f32));
        s.select(real, Self::load_few(s, p, n), s.splat(pad))
    }

    /// Stores the first `n` < `LANES` lanes.
    ///
    /// # Safety
    /// `p` is valid for writes of `n` elements.
    unsafe fn store_partial<S: Simd>(s: S, p: *mut Self, n: usize, x: S::F);

    /// Loads `LANES` elements, or the fewer that are `left`; the other lanes are then 0.
    ///
    /// # Safety
    /// `p` is valid for reads of `min(left, LANES)` elements.
    #[inline(always)]
    unsafe fn load_upto<S: Simd>(s: S, p: *const Self, left: usize) -> S::F {
        if left < S::LANES {
            return Self::load_few(s, p, left);
        }
        Self::load(s, p)
    }

    /// Stores `LANES` lanes, or the fewer that are `left`.
    ///
    /// # Safety
    /// `p` is valid for writes of `min(left, LANES)` elements.
    #[inline(always)]
    unsafe fn store_upto<S: Simd>(s: S, p: *mut Self, left: usize, x: S::F) {
        if left < S::LANES {
            return Self::store_partial(s, p, left, x);
        }
        Self::store(s, p, x)
    }

    /// A vector where `left` elements remain: all of it if `FULL`, else these and zeros.
    ///
    /// # Safety
    /// `p` is valid for reads of `LANES` elements if `FULL`, else of `left` < `LANES`.
    #[inline(always)]
    unsafe fn load_piece<S: Simd, const FULL: bool>(s: S, p: *const Self, left: usize) -> S::F {
        if FULL {
            Self::load(s, p)
        } else {
            Self::load_partial(s, p, left, 0.0)
        }
    }

    /// The counterpart of [`Element::load_piece`].
    ///
    /// # Safety
    /// `p` is valid for writes of `LANES` elements if `FULL`, else of `left` < `LANES`.
    #[inline(always)]
    unsafe fn store_piece<S: Simd, const FULL: bool>(s: S, p: *mut Self, left: usize, x: S::F) {
        if FULL {
            Self::store(s, p, x)
        } else {
            Self::store_partial(s, p, left, x)
        }
    }
}

macro_rules! element {
    ($T:ty, $variant:ident, $zero:expr, $bits:ty, $load:ident, $load_few:ident, $store:ident, $store_few:ident, $relu:expr, $widen:expr, $narrow:expr) => {
        impl Element for $T {
            const ZERO: Self = $zero;
            fn wrap(data: Vec<Self>) -> CpuStorage {
                CpuStorage::$variant(data)
            }
            #[inline(always)]
            fn relu(self) -> Self {
                $relu(self)
            }
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(x: f32) -> Self {
                $narrow(x)
            }
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
                s.$load(p.cast::<$bits>())
            }
            #[inline(always)]
            unsafe fn load_few<S: Simd>(s: S, p: *const Self, n: usize) -> S::F {
                s.$load_few(p.cast::<$bits>(), n)
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(s: S, p: *mut Self, x: S::F) {
                s.$store(p.cast::<$bits>(), x)
            }
            #[inline(always)]
            unsafe fn store_partial<S: Simd>(s: S, p: *mut Self, n: usize, x: S::F) {
                s.$store_few(p.cast::<$bits>(), n, x)
            }
        }
    };
}

/// Positive patterns up to infinity stay; negative ones and NaNs, which lie above, become 0.
#[inline(always)]
fn relu_bits(bits: u16, infinity: u16) -> u16 {
    if bits <= infinity {
        bits
    } else {
        0
    }
}

element!(
    f32,
    F32,
    0.0,
    f32,
    load_f32,
    load_few_f32,
    store_f32,
    store_few_f32,
    |x: f32| if x > 0.0 { x } else { 0.0 },
    |x| x,
    |x| x
);
element!(
    f16,
    F16,
    f16::ZERO,
    u16,
    load_f16,
    load_few_f16,
    store_f16,
    store_few_f16,
    |x: f16| f16::from_bits(relu_bits(x.to_bits(), f16::INFINITY.to_bits())),
    widen_f16,
    narrow_f16
);
element!(
    bf16,
    BF16,
    bf16::ZERO,
    u16,
    load_bf16,
    load_few_bf16,
    store_bf16,
    store_few_bf16,
    |x: bf16| bf16::from_bits(relu_bits(x.to_bits(), bf16::INFINITY.to_bits())),
    bf16::to_f32,
    bf16::from_f32
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{Isa, Kernel};

    struct Few<T>(std::marker::PhantomData<T>);

    impl<T: Element> Kernel for Few<T> {
        type Output = ();
        fn run<S: Simd>(self, s: S) {
            let data: Vec<T> = (1..=2 * MAX_LANES).map(|i| T::narrow(i as f32)).collect();
            for n in 0..S::LANES {
                // SAFETY: data has two vectors, of which fewer than one is touched.
                unsafe {
                    let lanes = s.to_array(T::load_partial(s, data.as_ptr().add(3), n, -7.0));
                    for (i, lane) in lanes[..S::LANES].iter().enumerate() {
                        assert_eq!(*lane, if i < n { (i + 4) as f32 } else { -7.0 });
                    }
                    let lanes = s.to_array(T::load_upto(s, data.as_ptr().add(3), n));
                    assert!(lanes[n..].iter().all(|&lane| lane == 0.0));
                    let mut out = data.clone();
                    T::store_partial(s, out.as_mut_ptr().add(5), n, s.splat(99.0));
                    let changed = out.iter().map(|x| x.widen() == 99.0);
                    assert!(changed
                        .enumerate()
                        .all(|(i, c)| c == (5..5 + n).contains(&i)));
                }
            }
        }
    }

    #[test]
    fn a_part_of_a_vector_is_all_that_is_touched() {
        for isa in Isa::available() {
            // SAFETY: the instruction set is available.
            unsafe {
                isa.run(Few::<f32>(Default::default()));
                isa.run(Few::<f16>(Default::default()));
                isa.run(Few::<bf16>(Default::default()));
            }
        }
    }
}
