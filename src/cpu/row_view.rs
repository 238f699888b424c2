//! The rows of a tensor of any layout, read where they lie.

use super::element::Element;
use super::gather;
use super::parallel::Shared;
use crate::layout::{collapsed, contiguous_range};
use candle_core::{Layout, Shape};
use std::borrow::Cow;
use std::marker::PhantomData;

/// The rows of a tensor, i.e. of its last dim: [`RowView::row`] says where each begins. The tensor is copied only if the
/// elements of a row are not neighbours, and then without repeating dims that are broadcast.
pub struct RowView<'a, T> {
    base: Shared<T>,
    _copied: Vec<T>,
    /// Sizes and strides of the dims that count rows: the last one of them, and the others.
    last: (usize, usize),
    outer: Vec<(usize, usize)>,
    lives: PhantomData<&'a [T]>,
}

impl<'a, T: Element> RowView<'a, T> {
    #[inline]
    pub fn new(data: &'a [T], layout: &Layout) -> Self {
        let cols = layout.dims().last().copied().unwrap_or(1);
        if let Some(range) = contiguous_range(layout) {
            // The offset of a tensor without elements may lie past the end.
            let data = if range.is_empty() { &[] } else { &data[range] };
            // SAFETY: the slice has its rows one behind the other, and lives as long as the view.
            return unsafe { Self::from_raw(data.as_ptr(), cols) };
        }
        Self::not_contiguous(data, layout, cols)
    }

    fn not_contiguous(data: &'a [T], layout: &Layout, cols: usize) -> Self {
        let rank = layout.dims().len();
        if cols == 1 || layout.stride()[rank - 1] == 1 {
            return Self::strided(data, Vec::new(), layout);
        }
        let mut compact = layout.dims().to_vec();
        for (d, s) in compact[..rank - 1].iter_mut().zip(layout.stride()) {
            if *s == 0 {
                *d = 1;
            }
        }
        let compact = Shape::from(compact);
        let (stride, start) = (layout.stride().to_vec(), layout.start_offset());
        let copied = gather::contiguous(data, &Layout::new(compact.clone(), stride, start));
        let copied = copied.into_owned();
        match Layout::contiguous(compact).broadcast_as(layout.shape()) {
            Ok(layout) => Self::strided(data, copied, &layout),
            Err(_) => unreachable!("a broadcast dim has size 1 in the copy"),
        }
    }

    /// Rows of `cols` elements, one behind the other.
    pub fn contiguous(data: Cow<'a, [T]>, cols: usize) -> Self {
        // SAFETY: the slice has its rows one behind the other, and lives as long as the view, or in it.
        let view = unsafe { Self::from_raw(data.as_ptr(), cols) };
        RowView {
            _copied: match data {
                Cow::Borrowed(_) => Vec::new(),
                Cow::Owned(data) => data,
            },
            ..view
        }
    }

    /// Rows of `cols` elements, one behind the other, in memory that may be written while the view lives.
    ///
    /// # Safety
    /// For each row i that is asked for, the `cols` elements from `base + i · cols` on can be read while the view lives.
    #[inline]
    pub unsafe fn from_raw(base: *const T, cols: usize) -> Self {
        RowView {
            base: Shared::new(base.cast_mut()),
            _copied: Vec::new(),
            last: (1, cols),
            outer: Vec::new(),
            lives: PhantomData,
        }
    }

    /// Rows in `copied`, or in `data` where `copied` is empty.
    fn strided(data: &'a [T], copied: Vec<T>, layout: &Layout) -> Self {
        let data = if copied.is_empty() { data } else { &copied };
        let (start, count) = (layout.start_offset(), layout.shape().elem_count());
        let dims = layout.dims().iter().zip(layout.stride());
        let largest_offset: usize = dims.map(|(&d, &s)| d.saturating_sub(1) * s).sum();
        assert!(
            count == 0 || start + largest_offset < data.len(),
            "{layout:?}"
        );
        let base = data[start.min(data.len())..].as_ptr();
        let rank = layout.dims().len();
        let rows = Layout::new(
            layout.dims()[..rank - 1].into(),
            layout.stride()[..rank - 1].to_vec(),
            0,
        );
        let mut outer = collapsed(&rows);
        RowView {
            base: Shared::new(base.cast_mut()),
            last: outer.pop().unwrap_or((1, 0)),
            _copied: copied,
            outer,
            lives: PhantomData,
        }
    }

    /// Where row `i` begins. If the tensor has a row `i`, all elements of the row can be read there.
    #[inline(always)]
    pub fn row(&self, i: usize) -> *const T {
        let (size, stride) = self.last;
        if self.outer.is_empty() {
            return self.base.get().wrapping_add(i * stride);
        }
        let (mut at, mut rest) = (i % size * stride, i / size);
        for &(size, stride) in self.outer.iter().rev() {
            at += rest % size * stride;
            rest /= size;
        }
        self.base.get().wrapping_add(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{CpuStorage, Device, Result, Storage, Tensor};

    #[test]
    fn rows_are_where_candle_reads_them() -> Result<()> {
        let x = Tensor::arange(0f32, 2. * 3. * 5. * 7., &Device::Cpu)?.reshape((2, 3, 5, 7))?;
        for x in [
            x.clone(),
            x.narrow(3, 2, 4)?,
            x.narrow(2, 1, 3)?,
            x.transpose(2, 3)?,
            x.transpose(0, 1)?,
            x.permute((2, 0, 1, 3))?,
            x.narrow(1, 1, 1)?.broadcast_as((2, 4, 5, 7))?,
            x.narrow(1, 1, 1)?.broadcast_as((6, 2, 4, 5, 7))?,
            x.narrow(3, 6, 1)?.broadcast_as((2, 3, 5, 9))?,
            x.transpose(2, 3)?
                .narrow(1, 2, 1)?
                .broadcast_as((2, 3, 7, 5))?,
            x.narrow(3, 6, 1)?,
            x.get(1)?.get(2)?.get(4)?.get(6)?.broadcast_as((2, 3))?,
            x.get(1)?.get(2)?.get(4)?.get(6)?,
            x.narrow(2, 0, 0)?.transpose(0, 3)?,
        ] {
            let (storage, layout) = x.storage_and_layout();
            let Storage::Cpu(CpuStorage::F32(data)) = &*storage else {
                unreachable!()
            };
            let view = RowView::new(data, layout);
            let cols = layout.dims().last().copied().unwrap_or(1);
            let want = x.flatten_all()?.to_vec1::<f32>()?;
            for (i, want) in want.chunks(cols.max(1)).enumerate() {
                // SAFETY: i counts a row of `cols` elements.
                let row = unsafe { std::slice::from_raw_parts(view.row(i), cols) };
                assert_eq!(row, want, "{layout:?}");
            }
        }
        Ok(())
    }
}
