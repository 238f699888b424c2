//! Reading and writing any layout: contiguous data as it is, everything else through one tiled copy.

use super::alloc;
use super::element::Element;
use super::parallel::{self, Shared};
use crate::layout::{collapsed, contiguous_range};
use candle_core::Layout;
use std::borrow::Cow;

/// The layout's elements in logical order.
#[inline]
pub fn contiguous<'a, T: Element>(data: &'a [T], layout: &Layout) -> Cow<'a, [T]> {
    match contiguous_range(layout) {
        // A view of nothing may begin past the end.
        Some(range) if range.is_empty() => Cow::Borrowed(&[]),
        Some(range) => Cow::Borrowed(&data[range]),
        None => Cow::Owned(copy(data, layout)),
    }
}

/// One period of the layout: element i of its shape is `result[i % result.len()]`. Leading dims that are broadcast (those
/// of a bias, of a mask per head) are not repeated in memory.
pub fn periodic<'a, T: Element>(data: &'a [T], layout: &Layout) -> Cow<'a, [T]> {
    let (dims, strides) = (layout.dims(), layout.stride());
    let repeated = dims
        .iter()
        .zip(strides)
        .take_while(|&(&d, &s)| d == 1 || s == 0)
        .count();
    let inner = Layout::new(
        dims[repeated..].into(),
        strides[repeated..].to_vec(),
        layout.start_offset(),
    );
    if dims[..repeated].contains(&0) {
        return Cow::Owned(Vec::new());
    }
    contiguous(data, &inner)
}

/// A layout as a stack of planes of `rows × cols` elements. Dims are pairs of size and stride.
struct Planes {
    outer: Vec<(usize, usize)>,
    start: usize,
    rows: (usize, usize),
    cols: (usize, usize),
}

impl Planes {
    fn of(layout: &Layout) -> Self {
        let mut dims = collapsed(layout);
        let cols = dims.pop().unwrap_or((1, 1));
        let rows = dims.pop().unwrap_or((1, 0));
        Planes {
            outer: dims,
            start: layout.start_offset(),
            rows,
            cols,
        }
    }

    /// Where a plane begins.
    fn offset(&self, mut plane: usize) -> usize {
        let mut offset = self.start;
        for &(d, s) in self.outer.iter().rev() {
            offset += plane % d * s;
            plane /= d;
        }
        offset
    }

    /// Calls `tile(strided offset, contiguous offset, rows, cols)` over all planes in parallel, in
    /// blocks small enough that both sides of a transposition stay in the L1 cache.
    fn tiles(&self, tile: impl Fn(usize, usize, usize, usize) + Sync + Send) {
        /// 32 × 32 elements of f32 are 4 KB on each side.
        const SIDE: usize = 32;
        let ((rows, row_stride), (cols, col_stride)) = (self.rows, self.cols);
        let planes: usize = self.outer.iter().map(|&(d, _)| d).product();
        let side = if col_stride == 1 { cols.max(1) } else { SIDE };
        let bands = rows.div_ceil(SIDE);
        parallel::ranges(planes * bands, SIDE.min(rows) * cols, 1, |range| {
            for band in range {
                let (plane, r0) = (band / bands, band % bands * SIDE);
                let (src, dst) = (self.offset(plane), plane * rows * cols);
                let height = SIDE.min(rows - r0);
                for c0 in (0..cols).step_by(side) {
                    tile(
                        src + r0 * row_stride + c0 * col_stride,
                        dst + r0 * cols + c0,
                        height,
                        side.min(cols - c0),
                    );
                }
            }
        });
    }
}

fn copy<T: Element>(data: &[T], layout: &Layout) -> Vec<T> {
    let planes = Planes::of(layout);
    let ((_, rs), (cols, cs)) = (planes.rows, planes.cols);
    // SAFETY: the tiles cover each of the layout's elements, of which there are as many as outputs, exactly once. Slices
    // check the reads.
    unsafe {
        alloc::build(layout.shape().elem_count(), |out: *mut T| {
            let out = Shared::new(out);
            planes.tiles(|src, dst, height, width| {
                for r in 0..height {
                    let row = &data[src + r * rs..];
                    let to = out.get().add(dst + r * cols);
                    if cs == 1 {
                        std::ptr::copy_nonoverlapping(row[..width].as_ptr(), to, width);
                    } else {
                        for c in 0..width {
                            to.add(c).write(row[c * cs]);
                        }
                    }
                }
            });
        })
    }
}

/// Writes `values`, in logical order, to the layout's elements of `data`.
pub fn scatter<T: Element>(values: &[T], data: &mut [T], layout: &Layout) {
    let planes = Planes::of(layout);
    let ((_, rs), (cols, cs)) = (planes.rows, planes.cols);
    let len = data.len();
    let out = Shared::new(data.as_mut_ptr());
    planes.tiles(|dst, src, height, width| {
        for r in 0..height {
            for c in 0..width {
                let at = dst + r * rs + c * cs;
                assert!(at < len);
                // SAFETY: in bounds by the check; candle refuses in-place layouts that overlap
                // themselves, so tiles write disjoint elements.
                unsafe { out.get().add(at).write(values[src + r * cols + c]) };
            }
        }
    });
}

/// Lets `work` change the layout's elements as one contiguous slice.
pub fn update<T: Element>(data: &mut [T], layout: &Layout, work: impl FnOnce(&mut [T])) {
    match layout.contiguous_offsets() {
        Some((start, end)) if start == end => (),
        Some((start, end)) => work(&mut data[start..end]),
        None => {
            let mut values = copy(data, layout);
            work(&mut values);
            scatter(&values, data, layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Tensor};

    fn layouts() -> Vec<Tensor> {
        let x = Tensor::arange(0f32, 2. * 3. * 70. * 41., &Device::Cpu).unwrap();
        let x = x.reshape((2, 3, 70, 41)).unwrap();
        vec![
            x.clone(),
            x.transpose(2, 3).unwrap(),
            x.transpose(0, 2).unwrap(),
            x.permute((3, 1, 0, 2)).unwrap(),
            x.narrow(3, 5, 20).unwrap(),
            x.narrow(2, 1, 68).unwrap().transpose(1, 2).unwrap(),
            x.narrow(0, 1, 1)
                .unwrap()
                .broadcast_as((4, 3, 70, 41))
                .unwrap(),
            x.narrow(3, 0, 0).unwrap(),
            x.get(0)
                .unwrap()
                .get(0)
                .unwrap()
                .get(0)
                .unwrap()
                .get(0)
                .unwrap(),
        ]
    }

    fn data(x: &Tensor) -> Vec<f32> {
        let (storage, _) = x.storage_and_layout();
        match &*storage {
            candle_core::Storage::Cpu(candle_core::CpuStorage::F32(v)) => v.clone(),
            _ => unreachable!(),
        }
    }

    #[test]
    fn gathers_what_candle_reads() {
        for x in layouts() {
            let want = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(
                &*contiguous(&data(&x), x.layout()),
                &want[..],
                "{:?}",
                x.layout()
            );
            let all = data(&x);
            let period = periodic(&all, x.layout());
            for (i, w) in want.iter().enumerate() {
                assert_eq!(period[i % period.len()], *w);
            }
        }
    }

    #[test]
    fn scatter_inverts_gather() {
        for x in layouts()
            .into_iter()
            .filter(|x| !x.layout().stride().contains(&0))
        {
            let (mut all, before) = (data(&x), data(&x));
            update(&mut all, x.layout(), |v| {
                v.iter_mut().for_each(|v| *v += 1e6)
            });
            let changed = all.iter().zip(&before).filter(|(a, b)| a != b).count();
            assert_eq!(changed, x.elem_count());
            let got = contiguous(&all, x.layout()).into_owned();
            let want = (&x + 1e6)
                .unwrap()
                .flatten_all()
                .unwrap()
                .to_vec1::<f32>()
                .unwrap();
            assert_eq!(got, want);
        }
    }
}
