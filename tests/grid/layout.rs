//! Ways to lay a tensor out in memory. A base holds the storage, a view of it is the argument; both
//! are plain Candle ops, so that gradients flow through the view to the base.

use candle_core::{Device, Result, Tensor, D};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Contiguous,
    /// The last two dims stored swapped; a vector as every second element.
    Transposed,
    /// Contiguous, but inside padding at both ends.
    Offset,
    /// Every row inside padding.
    Padded,
    /// The first dim repeated by stride 0. Other values than the rest: the first slice's.
    Broadcast,
}

pub const LAYOUTS: [Layout; 5] = [
    Layout::Contiguous,
    Layout::Transposed,
    Layout::Offset,
    Layout::Padded,
    Layout::Broadcast,
];

/// Before and after the elements of an offset tensor.
const OFFSET: (usize, usize) = (3, 5);
/// Before and after each row. Rows whose length is a multiple of four begin at one at first, and then no more: a kernel
/// that may read four elements at a time has to look at strides too.
const PADDING: (usize, usize) = (4, 5);

impl Layout {
    /// The storage for these values, `pad` around them. Laid out on the CPU, so that on other devices the op is what runs.
    pub fn base(self, values: &Tensor, pad: f32) -> Result<Tensor> {
        let base = self.base_on_cpu(&values.to_device(&Device::Cpu)?, pad)?;
        base.to_device(values.device())
    }

    fn base_on_cpu(self, values: &Tensor, pad: f32) -> Result<Tensor> {
        match self {
            _ if values.rank() == 0 => values.force_contiguous(),
            Layout::Contiguous => values.force_contiguous(),
            Layout::Transposed if values.rank() == 1 => {
                Tensor::stack(&[values, &filled(values, values.dims(), pad)?], 1)
            }
            Layout::Transposed => values.transpose(D::Minus1, D::Minus2)?.force_contiguous(),
            Layout::Offset => padded(&values.flatten_all()?, pad, OFFSET),
            Layout::Padded => padded(values, pad, PADDING),
            Layout::Broadcast if values.dim(0)? == 0 => values.force_contiguous(),
            Layout::Broadcast => values.narrow(0, 0, 1)?.force_contiguous(),
        }
    }

    /// The view of a base that has this shape.
    pub fn view(self, base: &Tensor, shape: &[usize]) -> Result<Tensor> {
        match self {
            _ if shape.is_empty() => Ok(base.clone()),
            Layout::Contiguous => Ok(base.clone()),
            Layout::Transposed if shape.len() == 1 => base.narrow(1, 0, 1)?.squeeze(1),
            Layout::Transposed => base.transpose(D::Minus1, D::Minus2),
            Layout::Offset => {
                let count = shape.iter().product();
                base.narrow(0, OFFSET.0, count)?.reshape(shape)
            }
            Layout::Padded => base.narrow(D::Minus1, PADDING.0, *shape.last().unwrap()),
            Layout::Broadcast => base.broadcast_as(shape),
        }
    }
}

fn padded(values: &Tensor, pad: f32, (before, after): (usize, usize)) -> Result<Tensor> {
    let mut dims = values.dims().to_vec();
    let last = dims.len() - 1;
    let mut side = |count| {
        dims[last] = count;
        filled(values, &dims, pad)
    };
    Tensor::cat(&[&side(before)?, values, &side(after)?], last)
}

fn filled(like: &Tensor, dims: &[usize], pad: f32) -> Result<Tensor> {
    Tensor::full(pad, dims, like.device())?.to_dtype(like.dtype())
}
