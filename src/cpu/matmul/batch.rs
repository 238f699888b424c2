//! Many products of the same shape.

use super::Product;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::parallel::{self, Shared};

/// The results of `count` products of one shape, one behind the other.
pub fn batch<'a, T: Element>(
    count: usize,
    product: impl Fn(usize) -> Product<'a, T> + Send + Sync,
) -> Vec<T> {
    if count == 0 {
        return Vec::new();
    }
    let first = product(0);
    let len = first.x.rows * first.w.rows;
    // A multiplication and addition is an eighth of a cheap element.
    let cost = len * (first.x.cols / 8 + 1);
    // SAFETY: every product writes the `len` outputs from i · len on, and i < count.
    unsafe {
        alloc::build(count * len, |out: *mut T| {
            let out = Shared::new(out);
            let write = |i: usize| {
                let product = product(i);
                assert_eq!(product.x.rows * product.w.rows, len);
                product.write(out.get().add(i * len))
            };
            // Whole products for each thread where there are enough of them, or where one is too small to share.
            if count >= 2 * parallel::threads() || !parallel::is_shared(1, cost) {
                parallel::ranges(count, cost, 1, |range| range.for_each(write));
            } else {
                (0..count).for_each(write);
            }
        })
    }
}
