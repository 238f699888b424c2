//! Integer arguments: the classes that losses are computed for, the tokens that are looked up.

use crate::check;
use crate::op::{Arg, Spec};
use candle_core::{CpuStorage, DType, Device, Layout, Result, Storage, Tensor};

/// In the place of a class: this row does not count.
pub const IGNORED: u32 = u32::MAX;

/// The dtypes that stock Candle indexes with.
pub fn check_dtype(op: &str, name: &str, arg: Spec<'_>) -> Result<()> {
    let dtype = arg.dtype;
    let message = format_args!("got {name} of dtype {dtype:?}, expected u8, u32 or i64");
    let known = matches!(dtype, DType::U8 | DType::U32 | DType::I64);
    check::ensure(known, op, message)
}

/// Classes are counted in u32, whose last number means [`IGNORED`].
pub fn check_count(op: &str, what: &str, count: usize) -> Result<()> {
    let message = format_args!("got {count} {what}, expected 1 to 2^32 - 2");
    check::ensure(count > 0 && count < IGNORED as usize, op, message)
}

/// The targets in logical order, each below `classes`, or [`IGNORED`] for those that equal `ignore_index`.
/// Errors begin with `op`, the function that was called, and call the argument `name`.
pub fn read(
    op: &str,
    name: &str,
    (storage, layout): Arg<CpuStorage>,
    classes: usize,
    ignore_index: Option<i64>,
) -> Result<Vec<u32>> {
    let one = |(row, value): (usize, i64)| {
        if Some(value) == ignore_index {
            return Ok(IGNORED);
        }
        match u32::try_from(value) {
            Ok(class) if (class as usize) < classes => Ok(class),
            _ => Err(check::error(
                op,
                format_args!(
                    "got {value} at position {row} of {name}, expected an index below {classes}"
                ),
            )),
        }
    };
    match storage {
        CpuStorage::U8(v) => each(v, layout)
            .map(i64::from)
            .enumerate()
            .map(one)
            .collect(),
        CpuStorage::U32(v) => each(v, layout)
            .map(i64::from)
            .enumerate()
            .map(one)
            .collect(),
        CpuStorage::I64(v) => each(v, layout).enumerate().map(one).collect(),
        _ => Err(check::error(
            op,
            format_args!("got {name} of another dtype, expected u8, u32 or i64"),
        )),
    }
}

/// [`read`], from a tensor of any device.
pub fn read_tensor(
    op: &str,
    name: &str,
    tensor: &Tensor,
    classes: usize,
    ignore_index: Option<i64>,
) -> Result<Vec<u32>> {
    let tensor = tensor.to_device(&Device::Cpu)?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => read(op, name, (storage, layout), classes, ignore_index),
        _ => Err(check::error(op, format_args!("{name} is not on the CPU"))),
    }
}

/// The layout's elements in logical order.
fn each<'a, T: Copy>(data: &'a [T], layout: &'a Layout) -> impl Iterator<Item = T> + 'a {
    let count = layout.shape().elem_count();
    let dims = layout.dims().iter().zip(layout.stride()).rev();
    let place = move |i: usize| {
        let at = |(at, rest): (usize, usize), (dim, stride): (&usize, &usize)| {
            (at + rest % dim * stride, rest / dim)
        };
        dims.clone().fold((layout.start_offset(), i), at).0
    };
    (0..count).map(move |i| data[place(i)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_in_logical_order() -> Result<()> {
        let storage = CpuStorage::I64(vec![9, 0, -100, 2, 3, 1, 9]);
        let layout = Layout::new((3, 2).into(), vec![1, 3], 1);
        let got = read("test", "target", (&storage, &layout), 10, Some(-100))?;
        assert_eq!(got, [0, 3, IGNORED, 1, 2, 9]);
        assert!(read("test", "target", (&storage, &layout), 9, Some(-100)).is_err());
        assert!(read("test", "target", (&storage, &layout), 10, None).is_err());
        Ok(())
    }
}
