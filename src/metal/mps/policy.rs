//! When Metal Performance Shaders are worth a session, and how a product is cut for them.
//!
//! Everything here is arithmetic on sizes, so that it can be tested on any machine.

use candle_core::DType;

/// Multiply-adds from which on a session pays.
///
/// A session waits for the GPU twice, for 1 to 2 ms each time. A product of 2048³ takes about 2 ms at the 8 TFLOPS of an
/// M2 Max (Metal.jl#829), one of 4096³ about 16 ms, where the waits are a matter of a fifth.
const PAYS_FROM: u128 = 4096 * 4096 * 4096;
/// Fewer rows or columns are bound by memory, where no GEMM is better than another.
const PAYS_SIDE: usize = 128;
/// `(m + 2k)·n` elements of a product take less bytes than this, or some GPUs give garbage (Metal.jl#381).
const PRODUCT_BYTES: u128 = 1 << 31;

/// `matrices` products of `m`×`k` and `k`×`n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    pub matrices: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// The kernel for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `MPSMatrixMultiplication`, this number of columns of the result at a time.
    Matrix { columns: usize },
    /// `MPSMatrixVectorMultiplication`
    Vector,
}

impl Product {
    /// Whether Metal Performance Shaders are likely to be faster than Candle's own product, the waits included.
    pub fn pays(self, dtype: DType) -> bool {
        let Product { matrices, m, n, k } = self;
        let work = [matrices, m, n, k].map(|size| size as u128);
        let work = work.into_iter().fold(1, u128::saturating_mul);
        serves(dtype)
            && work >= PAYS_FROM
            && m.min(n).min(k) >= PAYS_SIDE
            && self.columns_at_once(dtype).is_some()
    }

    /// Whether one kernel may compute it all.
    pub(crate) fn fits(self, dtype: DType) -> bool {
        self.columns_at_once(dtype) == Some(self.n)
    }

    /// How to compute it; nothing if not even a single column can be computed at a time.
    pub(crate) fn way(self, dtype: DType, has_dense_vector: bool) -> Option<Way> {
        if self.matrices == 1 && (self.m == 1 || self.n == 1) && has_dense_vector {
            return Some(Way::Vector);
        }
        let columns = self.columns_at_once(dtype)?;
        Some(Way::Matrix { columns })
    }

    fn columns_at_once(self, dtype: DType) -> Option<usize> {
        let column = (self.m as u128 + 2 * self.k as u128) * dtype.size_in_bytes() as u128;
        let most = (PRODUCT_BYTES - 1) / column.max(1);
        let columns = most.min(self.n as u128) as usize;
        (columns > 0).then_some(columns)
    }
}

/// The dtypes of the matrix kernels. There is no bf16 among them.
pub(crate) fn serves(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(matrices: usize, m: usize, n: usize, k: usize) -> Product {
        Product { matrices, m, n, k }
    }

    #[test]
    fn only_large_products_pay() {
        for dtype in [DType::F32, DType::F16] {
            assert!(product(1, 4096, 4096, 4096).pays(dtype));
            assert!(product(64, 1024, 1024, 1024).pays(dtype));
            assert!(!product(1, 4096, 4096, 4095).pays(dtype));
            assert!(!product(1, 2048, 2048, 2048).pays(dtype));
            assert!(!product(1, 1, 1 << 18, 1 << 18).pays(dtype));
            assert!(!product(1, 1 << 20, 1 << 20, 16).pays(dtype));
            assert!(!product(0, 4096, 4096, 4096).pays(dtype));
            assert!(!product(usize::MAX, usize::MAX, usize::MAX, usize::MAX).pays(dtype));
        }
        for dtype in [DType::BF16, DType::F64, DType::U32, DType::U8] {
            assert!(!product(1, 8192, 8192, 8192).pays(dtype));
        }
    }

    #[test]
    fn vectors_have_a_kernel_of_their_own() {
        let way = |p: Product, dense| p.way(DType::F32, dense);
        assert_eq!(way(product(1, 1, 7, 5), true), Some(Way::Vector));
        assert_eq!(way(product(1, 7, 1, 5), true), Some(Way::Vector));
        let matrix = |columns| Some(Way::Matrix { columns });
        assert_eq!(way(product(1, 1, 7, 5), false), matrix(7));
        assert_eq!(way(product(2, 1, 7, 5), true), matrix(7));
        assert_eq!(way(product(1, 2, 7, 5), true), matrix(7));
    }

    /// The square from which on an M1 gives garbage is split, and no part is as large.
    #[test]
    fn no_part_is_too_large() {
        let side = |n: usize| product(1, n, n, n);
        assert!(side(13_376).fits(DType::F32));
        assert!(!side(13_378).fits(DType::F32));
        assert!(side(13_378).fits(DType::F16));
        for (p, dtype) in [
            (side(13_378), DType::F32),
            (side(50_000), DType::F32),
            (side(50_000), DType::F16),
            (product(3, 1 << 28, 4, 7), DType::F32),
        ] {
            let Some(Way::Matrix { columns }) = p.way(dtype, true) else {
                panic!("{p:?} can be split")
            };
            assert!(columns > 0 && columns < p.n);
            assert!(Product { n: columns, ..p }.fits(dtype), "{p:?}");
            let bytes = (p.m + 2 * p.k) * columns * dtype.size_in_bytes();
            assert!(bytes < 1 << 31, "{p:?}");
        }
        assert_eq!(product(1, 1 << 29, 2, 1).way(DType::F32, true), None);
        assert!(!product(1, 1 << 29, 1 << 10, 1 << 10).pays(DType::F32));
    }
}
