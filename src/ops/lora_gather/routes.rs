//! Which adapter each row of a batch takes.

use super::{NAME, NO_ADAPTER};
use crate::check;
use candle_core::{DType, Result, Tensor};

/// The adapter of each row of a batch, and the rows of each adapter. All indices are below the number of adapters.
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
    /// Reads `adapter_of_row`, an index for each row, and `scales`, a number for each adapter.
    pub fn new(adapter_of_row: &Tensor, scales: &Tensor) -> Result<Self> {
        let dtype = adapter_of_row.dtype();
        if dtype != DType::U32 {
            let message = format!("got adapter_of_row of {dtype:?}, expected u32");
            return Err(check::error(NAME, message));
        }
        let (dtype, shape) = (scales.dtype(), scales.shape());
        let &[adapters] = shape.dims() else {
            let message = format!("got scales of shape {shape:?}, expected [n]");
            return Err(check::error(NAME, message));
        };
        if dtype != DType::F32 {
            let message = format!("got scales of {dtype:?}, expected f32");
            return Err(check::error(NAME, message));
        }
        // Rows and adapters are counted in u32, the last number of which means no adapter.
        let rows = adapter_of_row.elem_count();
        if rows.max(adapters) >= NO_ADAPTER as usize {
            let message =
                format!("got {rows} rows and {adapters} adapters, expected less than 2^32 - 1");
            return Err(check::error(NAME, message));
        }
        let adapter_of_row = adapter_of_row.flatten_all()?.to_vec1::<u32>()?;
        let unknown = |&(_, &n): &(usize, &u32)| n != NO_ADAPTER && n as usize >= adapters;
        if let Some((row, n)) = adapter_of_row.iter().enumerate().find(unknown) {
            let message = format!(
                "got adapter {n} for row {row}, expected one below {adapters}, or NO_ADAPTER"
            );
            return Err(check::error(NAME, message));
        }
        Ok(Self::sorted(adapter_of_row, scales.to_vec1()?))
    }

    /// Accepts an x of as many rows as there are indices, and as many adapters as there are scales.
    pub fn check(&self, name: &'static str, x: &[usize], adapters: Option<usize>) -> Result<()> {
        let rows: usize = x.iter().rev().skip(1).product();
        let (known, n) = (self.adapter_of_row.len(), self.adapters());
        if rows != known {
            let message = format!(
                "got {known} elements of adapter_of_row, expected one for each of x's {rows} rows"
            );
            return Err(check::error(name, message));
        }
        match adapters {
            Some(adapters) if adapters != n => Err(check::error(
                name,
                format_args!("got scales of shape [{n}], expected [{adapters}] as a has adapters"),
            )),
            _ => Ok(()),
        }
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
    #[cfg(feature = "metal")]
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Where each adapter's rows begin in `order`, and the end.
    #[cfg(any(feature = "metal", test))]
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
