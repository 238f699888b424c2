//! Which adapter each row takes.

use super::{NAME, NO_ADAPTER};
use crate::check;
use candle_core::{DType, Layout, Result, Tensor};

/// The adapters of a batch's rows, checked, and the rows of each adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    adapter_of_row: Vec<u32>,
    scales: Vec<f32>,
    /// The rows that have an adapter, by adapter.
    order: Vec<u32>,
    /// Adapter n has `order[starts[n]..starts[n + 1]]`.
    starts: Vec<u32>,
}

impl Routes {
    /// The routes of `rows` rows to `adapters` adapters.
    pub fn new(
        adapter_of_row: &Tensor,
        scales: &Tensor,
        rows: usize,
        adapters: usize,
    ) -> Result<Self> {
        if adapter_of_row.dtype() != DType::U32 || adapter_of_row.elem_count() != rows {
            let (dtype, shape) = (adapter_of_row.dtype(), adapter_of_row.shape());
            let message = format!(
                "adapter_of_row is {dtype:?} of shape {shape:?}, u32 with one element for each of x's {rows} rows accepted"
            );
            return Err(check::error(NAME, message));
        }
        if scales.dtype() != DType::F32 || scales.dims() != [adapters] {
            let (dtype, shape) = (scales.dtype(), scales.shape());
            let message = format!(
                "scales is {dtype:?} of shape {shape:?}, f32 of shape [{adapters}] accepted"
            );
            return Err(check::error(NAME, message));
        }
        let adapter_of_row = adapter_of_row.flatten_all()?.to_vec1::<u32>()?;
        let unknown = |&(_, &n): &(usize, &u32)| n != NO_ADAPTER && n as usize >= adapters;
        if let Some((row, n)) = adapter_of_row.iter().enumerate().find(unknown) {
            let message = format!(
                "row {row} has adapter {n}, 0 to {adapters} (exclusive) or NO_ADAPTER accepted"
            );
            return Err(check::error(NAME, message));
        }
        Ok(Self::sorted(adapter_of_row, scales.to_vec1()?))
    }

    /// Whether these are the routes of x's rows, to a stack of so many adapters.
    pub(super) fn check(&self, x: &Layout, adapters: Option<&usize>) -> Result<()> {
        let rows: usize = x.dims().iter().rev().skip(1).product();
        let (known, n) = (self.adapter_of_row.len(), self.adapters());
        if rows != known || adapters.is_some_and(|&given| given != n) {
            let given = adapters.unwrap_or(&n);
            let message = format!(
                "{rows} rows and {given} adapters given, routes of {known} rows to {n} adapters"
            );
            return Err(check::error(NAME, message));
        }
        Ok(())
    }

    fn sorted(adapter_of_row: Vec<u32>, scales: Vec<f32>) -> Self {
        let mut order: Vec<u32> = (0..adapter_of_row.len() as u32)
            .filter(|&row| adapter_of_row[row as usize] != NO_ADAPTER)
            .collect();
        order.sort_by_key(|&row| adapter_of_row[row as usize]);
        let of = |i: usize| adapter_of_row[order[i] as usize] as usize;
        let mut starts = vec![0; scales.len() + 1];
        for i in 0..order.len() {
            starts[of(i) + 1] += 1;
        }
        for n in 0..scales.len() {
            starts[n + 1] += starts[n];
        }
        Routes {
            adapter_of_row,
            scales,
            order,
            starts,
        }
    }

    pub fn adapters(&self) -> usize {
        self.scales.len()
    }

    pub fn adapter_of_row(&self) -> &[u32] {
        &self.adapter_of_row
    }

    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The rows of all adapters, one adapter behind the other.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Where each adapter's rows begin in [`Routes::order`], and the end.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// The rows of one adapter.
    pub fn rows(&self, adapter: usize) -> &[u32] {
        &self.order[self.starts[adapter] as usize..self.starts[adapter + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_adapter() {
        let routes = Routes::sorted(vec![2, NO_ADAPTER, 0, 2, 0], vec![1.0; 4]);
        let rows: Vec<_> = (0..4).map(|n| routes.rows(n)).collect();
        assert_eq!(rows, [&[2, 4][..], &[], &[0, 3], &[]]);
        assert_eq!(routes.starts(), [0, 2, 2, 4, 4]);
    }
}
