//! Matrices in the buffers of tensors.

use super::{exact, signal, tolerance};
use candle_core::{DType, Device, Result, Storage, Tensor};
use candle_fused::metal::mps::{session, Matrix, MpsSession};
use candle_metal_kernels::metal::Buffer;

/// Where matrices lie in a tensor of one dim. In elements.
#[derive(Clone, Copy)]
pub struct Place {
    pub offset: usize,
    pub rows: usize,
    pub columns: usize,
    pub padding: usize,
    pub matrices: usize,
}

impl Place {
    fn row_stride(self) -> usize {
        self.columns + self.padding
    }

    /// Padded by a row as well.
    fn matrix_stride(self) -> usize {
        (self.rows + usize::from(self.padding > 0)) * self.row_stride()
    }

    pub fn len(self) -> usize {
        self.offset + self.matrices * self.matrix_stride()
    }

    pub fn at(self, matrix: usize, row: usize, column: usize) -> usize {
        self.offset + matrix * self.matrix_stride() + row * self.row_stride() + column
    }

    pub fn matrix(self, buffer: &Buffer, dtype: DType) -> Matrix<'_> {
        Matrix::new(buffer, dtype, self.rows, self.columns)
            .at(self.offset)
            .with_row_stride(self.row_stride())
            .times(self.matrices, self.matrix_stride())
    }

    pub fn tensor(self, seed: u64, dtype: DType, device: &Device) -> Result<Tensor> {
        signal(&[self.len()], seed, dtype, device)
    }
}

/// Runs one session with the buffers of tensors.
pub fn run<const N: usize>(
    tensors: [&Tensor; N],
    encode: impl for<'a> FnOnce(&mut MpsSession<'a>, [&'a Buffer; N]) -> Result<()>,
) -> Result<()> {
    let device = tensors[0].device().as_metal_device()?;
    let storages = tensors.map(|x| x.storage_and_layout().0);
    let buffers = std::array::from_fn(|i| match &*storages[i] {
        Storage::Metal(storage) => storage.buffer(),
        _ => panic!("a tensor that is not on Metal"),
    });
    session(device, "a_visit", |session| encode(session, buffers))
}

pub fn values(x: &Tensor) -> Result<Vec<f64>> {
    exact(x)?.to_vec1()
}

pub fn close(got: &[f64], want: &[f64], dtype: DType, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(1f64, |most, x| most.max(x.abs()));
    for (got, want) in got.iter().zip(want) {
        let error = (got - want).abs() / size;
        assert!(error <= tolerance(dtype), "{what}: {got} for {want}");
    }
}

pub fn turned(transposed: bool, rows: usize, columns: usize) -> (usize, usize) {
    match transposed {
        true => (columns, rows),
        false => (rows, columns),
    }
}
