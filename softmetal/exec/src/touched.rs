//! Which bytes of a buffer a dispatch reads and writes.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

use crate::mapping::Mapping;
use crate::report::RangeSet;

const PAGE_SHIFT: usize = 12;
const PAGE: usize = 1 << PAGE_SHIFT;

/// A byte of 0 or 1 for each byte of memory.
#[derive(Clone, Copy)]
pub(crate) struct ByteMap(*mut u8);

impl ByteMap {
    pub fn new(data: *mut u8) -> Self {
        Self(data)
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Whether `size` bytes from `offset` are all 1.
    ///
    /// # Safety
    /// They lie within the map.
    #[inline(always)]
    pub unsafe fn all(self, offset: usize, size: usize) -> bool {
        // SAFETY: within the map, and aligned as the arm says.
        unsafe {
            let at = self.0.add(offset);
            match size {
                4 if (at as usize).is_multiple_of(4) => {
                    AtomicU32::from_ptr(at.cast()).load(Relaxed) == ONES as u32
                }
                8 if (at as usize).is_multiple_of(8) => {
                    AtomicU64::from_ptr(at.cast()).load(Relaxed) == ONES
                }
                _ => (0..size).all(|byte| AtomicU8::from_ptr(at.add(byte)).load(Relaxed) == 1),
            }
        }
    }

    /// # Safety
    /// `size` bytes from `offset` lie within the map.
    #[inline(always)]
    pub unsafe fn set(self, offset: usize, size: usize) {
        // SAFETY: within the map, and aligned as the arm says.
        unsafe {
            let at = self.0.add(offset);
            match size {
                4 if (at as usize).is_multiple_of(4) => {
                    AtomicU32::from_ptr(at.cast()).store(ONES as u32, Relaxed)
                }
                8 if (at as usize).is_multiple_of(8) => {
                    AtomicU64::from_ptr(at.cast()).store(ONES, Relaxed)
                }
                _ => (0..size).for_each(|byte| AtomicU8::from_ptr(at.add(byte)).store(1, Relaxed)),
            }
        }
    }

    /// The first byte of `size` from `offset` that is not 1.
    ///
    /// # Safety
    /// They lie within the map.
    pub unsafe fn first_missing(self, offset: usize, size: usize) -> Option<usize> {
        // SAFETY: within the map.
        (offset..offset + size).find(|&byte| unsafe { !self.all(byte, 1) })
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// The bytes of a buffer that the current dispatch has read and written.
pub(crate) struct AccessMap {
    len: usize,
    reads: Mapping,
    writes: Mapping,
    /// A byte per page of the maps above: 1 if there is something to find.
    pages: Mapping,
}

/// Where the hooks write: see [`AccessMap`].
#[derive(Clone, Copy)]
pub(crate) struct Recorder {
    reads: ByteMap,
    writes: ByteMap,
    pages: ByteMap,
}

impl AccessMap {
    pub fn new(len: usize) -> Self {
        Self {
            len,
            reads: Mapping::new(len),
            writes: Mapping::new(len),
            pages: Mapping::new(len.div_ceil(PAGE) + 1),
        }
    }

    pub fn recorder(&self) -> Recorder {
        Recorder {
            reads: ByteMap::new(self.reads.data()),
            writes: ByteMap::new(self.writes.data()),
            pages: ByteMap::new(self.pages.data()),
        }
    }

    /// What was read and what was written since the last call.
    pub fn take(&self) -> (RangeSet, RangeSet) {
        let (mut reads, mut writes) = (RangeSet::default(), RangeSet::default());
        for page in 0..self.len.div_ceil(PAGE) {
            // SAFETY: no dispatch is running, the maps are ours, and the pages lie within them.
            unsafe {
                let flag = self.pages.data().add(page);
                if *flag != 0 {
                    *flag = 0;
                    collect(self.reads.data(), page << PAGE_SHIFT, &mut reads);
                    collect(self.writes.data(), page << PAGE_SHIFT, &mut writes);
                }
            }
        }
        (reads, writes)
    }
}

/// Moves the ones of a page of the map to `ranges`.
///
/// # Safety
/// The page lies within the map and nobody else uses it.
unsafe fn collect(map: *mut u8, start: usize, ranges: &mut RangeSet) {
    // SAFETY: see above; pages are aligned for any type.
    let words = unsafe { std::slice::from_raw_parts_mut(map.add(start).cast::<u64>(), PAGE / 8) };
    for (index, word) in words.iter_mut().enumerate() {
        let offset = start + index * 8;
        match *word {
            0 => continue,
            ONES => ranges.push(offset..offset + 8),
            mixed => mixed
                .to_le_bytes()
                .iter()
                .enumerate()
                .for_each(|(byte, &set)| {
                    if set != 0 {
                        ranges.push(offset + byte..offset + byte + 1);
                    }
                }),
        }
        *word = 0;
    }
}

impl Recorder {
    /// # Safety
    /// The bytes lie within the buffer that this records.
    #[inline(always)]
    pub unsafe fn read(&self, offset: usize, size: usize) {
        // SAFETY: as promised.
        unsafe { self.record(self.reads, offset, size) }
    }

    /// # Safety
    /// The bytes lie within the buffer that this records.
    #[inline(always)]
    pub unsafe fn write(&self, offset: usize, size: usize) {
        // SAFETY: as promised.
        unsafe { self.record(self.writes, offset, size) }
    }

    /// Looks before it writes: lines that several workers touch stay shared.
    #[inline(always)]
    unsafe fn record(&self, map: ByteMap, offset: usize, size: usize) {
        // SAFETY: the caller's promise; the page map covers every byte and one page more.
        unsafe {
            if !map.all(offset, size) {
                map.set(offset, size);
                let (first, last) = (offset >> PAGE_SHIFT, (offset + size - 1) >> PAGE_SHIFT);
                for page in first..=last {
                    if !self.pages.all(page, 1) {
                        self.pages.set(page, 1);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_exactly_what_was_recorded() {
        let map = AccessMap::new(3 * PAGE + 5);
        let recorder = map.recorder();
        // SAFETY: all within the map.
        unsafe {
            recorder.read(0, 4);
            recorder.read(4, 8);
            recorder.read(PAGE - 2, 4);
            recorder.write(3 * PAGE + 4, 1);
            recorder.write(17, 3);
        }
        let (reads, writes) = map.take();
        assert_eq!(reads.ranges(), [0..12, PAGE - 2..PAGE + 2]);
        assert_eq!(writes.ranges(), [17..20, 3 * PAGE + 4..3 * PAGE + 5]);
        let (reads, writes) = map.take();
        assert!(reads.is_empty() && writes.is_empty());
    }
}
