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
    /// As `widen`, inside a kernel: one instruction, where `widen` may be a call.
    fn widen_in<S: Simd>(self, s: S) -> f32;
    /// As `narrow`, inside a kernel.
    fn narrow_in<S: Simd>(s: S, x: f32) -> Self;

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
        // SAFETY: no vector has more than the MAX_LANES of `IDS`, and the caller has n elements at `p`.
        let (ids, x) = unsafe { (s.load_f32(IDS.as_ptr()), Self::load_few(s, p, n)) };
        s.select(s.lt(ids, s.splat(n as f32)), x, s.splat(pad))
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
        // SAFETY: the caller has the fewer of `left` and LANES elements at `p`.
        unsafe {
            if left < S::LANES {
                Self::load_few(s, p, left)
            } else {
                Self::load(s, p)
            }
        }
    }

    /// Stores `LANES` lanes, or the fewer that are `left`.
    ///
    /// # Safety
    /// `p` is valid for writes of `min(left, LANES)` elements.
    #[inline(always)]
    unsafe fn store_upto<S: Simd>(s: S, p: *mut Self, left: usize, x: S::F) {
        // SAFETY: the caller has room for the fewer of `left` and LANES elements at `p`.
        unsafe {
            if left < S::LANES {
                Self::store_partial(s, p, left, x)
            } else {
                Self::store(s, p, x)
            }
        }
    }

    /// A vector where `left` elements remain: all of it if `FULL`, else these and zeros.
    ///
    /// # Safety
    /// `p` is valid for reads of `LANES` elements if `FULL`, else of `left` < `LANES`.
    #[inline(always)]
    unsafe fn load_piece<S: Simd, const FULL: bool>(s: S, p: *const Self, left: usize) -> S::F {
        // SAFETY: the caller has LANES elements at `p` if FULL, else `left`.
        unsafe {
            if FULL {
                Self::load(s, p)
            } else {
                Self::load_partial(s, p, left, 0.0)
            }
        }
    }

    /// The counterpart of [`Element::load_piece`].
    ///
    /// # Safety
    /// `p` is valid for writes of `LANES` elements if `FULL`, else of `left` < `LANES`.
    #[inline(always)]
    unsafe fn store_piece<S: Simd, const FULL: bool>(s: S, p: *mut Self, left: usize, x: S::F) {
        // SAFETY: the caller has room for LANES elements at `p` if FULL, else for `left`.
        unsafe {
            if FULL {
                Self::store(s, p, x)
            } else {
                Self::store_partial(s, p, left, x)
            }
        }
    }
}

/// `type, CpuStorage's variant, zero; relu, widen, narrow; widen_in, narrow_in; the type that Simd's methods take; load, load_few, store,
/// store_few`
macro_rules! element {
    ($T:ty, $variant:ident, $zero:expr; $relu:expr, $widen:expr, $narrow:expr; $widen_in:expr, $narrow_in:expr; $bits:ty; $($access:ident),*) => {
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
            fn widen_in<S: Simd>(self, s: S) -> f32 {
                $widen_in(s, self)
            }
            #[inline(always)]
            fn narrow_in<S: Simd>(s: S, x: f32) -> Self {
                $narrow_in(s, x)
            }
            element!(@access $bits, $($access),*);
        }
    };
    (@access $bits:ty, $load:ident, $load_few:ident, $store:ident, $store_few:ident) => {
        element!(@method load = $load, (p: *const Self as $bits) -> S::F);
        element!(@method load_few = $load_few, (p: *const Self as $bits, n: usize) -> S::F);
        element!(@method store = $store, (p: *mut Self as $bits, x: S::F) -> ());
        element!(@method store_partial = $store_few, (p: *mut Self as $bits, n: usize, x: S::F) -> ());
    };
    (@method $name:ident = $simd:ident, ($p:ident: $pointer:ty as $bits:ty $(, $arg:ident: $ty:ty)*) -> $out:ty) => {
        #[inline(always)]
        unsafe fn $name<S: Simd>(s: S, $p: $pointer $(, $arg: $ty)*) -> $out {
            // SAFETY: an element is as large as its bits, and the caller has as many of them as the method of `Simd`, which
            // bears the same name, asks for.
            unsafe { s.$simd($p.cast::<$bits>() $(, $arg)*) }
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

element! {
    f32, F32, 0.0;
    |x: f32| if x > 0.0 { x } else { 0.0 }, |x| x, |x| x;
    |_, x| x, |_, x| x;
    f32; load_f32, load_few_f32, store_f32, store_few_f32
}
element! {
    f16, F16, f16::ZERO;
    |x: f16| f16::from_bits(relu_bits(x.to_bits(), f16::INFINITY.to_bits())), widen_f16, narrow_f16;
    |s: S, x: f16| s.widen_one_f16(x.to_bits()), |s: S, x| f16::from_bits(s.narrow_one_f16(x));
    u16; load_f16, load_few_f16, store_f16, store_few_f16
}
element! {
    bf16, BF16, bf16::ZERO;
    |x: bf16| bf16::from_bits(relu_bits(x.to_bits(), bf16::INFINITY.to_bits())), bf16::to_f32, bf16::from_f32;
    |_, x| bf16::to_f32(x), |_, x| bf16::from_f32(x);
    u16; load_bf16, load_few_bf16, store_bf16, store_few_bf16
}

/// Converts `n` elements to another dtype, rounded to nearest.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `n` elements. They don't overlap.
#[inline(always)]
pub unsafe fn convert<S: Simd, I: Element, O: Element>(s: S, from: *const I, to: *mut O, n: usize) {
    for i in (0..n).step_by(S::LANES) {
        // SAFETY: n − i elements are left from i on.
        unsafe { O::store_upto(s, to.add(i), n - i, I::load_upto(s, from.add(i), n - i)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{Isa, Kernel};

    struct Few<T>(std::marker::PhantomData<T>);

    impl<T: Element> Kernel for Few<T> {
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
