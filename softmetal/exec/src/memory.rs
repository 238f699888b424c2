//! Device buffers, and what is known of their bytes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use softmetal_abi::POISON;

use crate::mapping::Mapping;
use crate::touched::AccessMap;

/// What a buffer holds at first.
#[derive(Clone, Copy, Debug)]
pub enum Initial<'a> {
    /// Garbage that may not be read.
    Poison,
    Zero,
    /// These bytes; if they are fewer than the buffer has, the rest is poison.
    Bytes(&'a [u8]),
}

/// Which bytes have been written, one byte of shadow for each.
enum Shadow {
    All,
    None,
    Map(Mapping),
}

/// Device memory.
pub struct Buffer {
    id: u64,
    len: usize,
    memory: Mapping,
    shadow: Mutex<Shadow>,
    accesses: OnceLock<AccessMap>,
    label: Mutex<String>,
}

impl Buffer {
    pub fn new(len: usize, initial: Initial<'_>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let memory = Mapping::new(len);
        let shadow = match initial {
            Initial::Zero => Shadow::All,
            Initial::Bytes(bytes) if bytes.len() >= len => Shadow::All,
            Initial::Poison | Initial::Bytes(_) => Shadow::None,
        };
        let buffer = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            len,
            memory,
            shadow: Mutex::new(shadow),
            accesses: OnceLock::new(),
            label: Mutex::new(String::new()),
        };
        // SAFETY: the mapping has at least `len` bytes and nobody else knows it yet.
        unsafe {
            match initial {
                Initial::Zero => {}
                Initial::Poison => buffer.memory.data().write_bytes(POISON, len),
                Initial::Bytes(bytes) => {
                    let given = bytes.len().min(len);
                    let data = buffer.memory.data();
                    data.copy_from_nonoverlapping(bytes.as_ptr(), given);
                    data.add(given).write_bytes(POISON, len - given);
                    if given < len {
                        buffer.mark_initialised(0..given);
                    }
                }
            }
        }
        Arc::new(buffer)
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn address(&self) -> usize {
        self.memory.address()
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.data()
    }

    pub fn label(&self) -> String {
        lock(&self.label).clone()
    }

    pub fn set_label(&self, label: &str) {
        *lock(&self.label) = label.to_owned();
    }

    /// The bytes now. A dispatch that runs meanwhile may change them.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the mapping has `len` bytes.
        unsafe {
            self.as_ptr()
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), self.len)
        };
        bytes
    }

    /// The host wrote these bytes.
    pub fn mark_initialised(&self, range: Range<usize>) {
        self.mark(range, 1);
    }

    /// These bytes hold nothing that may be read any more.
    pub fn forget(&self, range: Range<usize>) {
        self.mark(range, 0);
    }

    pub fn is_initialised(&self, range: Range<usize>) -> bool {
        self.known(range).iter().all(|&byte| byte == 1)
    }

    /// A copy of `len` bytes from `source` arrived here: so does what is known of them.
    pub fn copy_initialised(&self, to: usize, source: &Buffer, from: usize, len: usize) {
        let known = source.known(from..from + len);
        let mut start = to;
        for run in known.chunk_by(|a, b| a == b) {
            self.mark(start..start + run.len(), run[0]);
            start += run.len();
        }
    }

    /// 1 for each byte of the range that was written.
    fn known(&self, range: Range<usize>) -> Vec<u8> {
        let range = self.clamp(range);
        match &*lock(&self.shadow) {
            Shadow::All => vec![1; range.len()],
            Shadow::None => vec![0; range.len()],
            // SAFETY: the map has a byte for each byte of the buffer.
            Shadow::Map(map) => range
                .map(|offset| unsafe { map.data().add(offset).read_volatile() })
                .collect(),
        }
    }

    fn clamp(&self, range: Range<usize>) -> Range<usize> {
        range.start.min(self.len)..range.end.min(self.len)
    }

    fn mark(&self, range: Range<usize>, value: u8) {
        let range = self.clamp(range);
        if range.is_empty() {
            return;
        }
        let mut shadow = lock(&self.shadow);
        if range.len() == self.len && !matches!(*shadow, Shadow::Map(_)) {
            *shadow = if value == 1 {
                Shadow::All
            } else {
                Shadow::None
            };
            return;
        }
        if matches!((&*shadow, value), (Shadow::All, 1) | (Shadow::None, 0)) {
            return;
        }
        let map = self.materialise(&mut shadow);
        // SAFETY: the map has a byte for each byte of the buffer.
        unsafe { map.add(range.start).write_bytes(value, range.len()) };
    }

    fn materialise(&self, shadow: &mut Shadow) -> *mut u8 {
        if let Shadow::Map(map) = shadow {
            return map.data();
        }
        let map = Mapping::new(self.len);
        let data = map.data();
        if matches!(shadow, Shadow::All) {
            // SAFETY: the map was made for `len` bytes.
            unsafe { data.write_bytes(1, self.len) };
        }
        *shadow = Shadow::Map(map);
        data
    }

    /// One byte per byte, 1 where it was written; null if all of them were. Valid as long as the buffer.
    pub(crate) fn initialised_map(&self) -> *mut u8 {
        let mut shadow = lock(&self.shadow);
        match &*shadow {
            Shadow::All => std::ptr::null_mut(),
            _ => self.materialise(&mut shadow),
        }
    }

    pub(crate) fn accesses(&self) -> &AccessMap {
        self.accesses.get_or_init(|| AccessMap::new(self.len))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_buffers_know_what_they_hold() {
        let poison = Buffer::new(10, Initial::Poison);
        assert!(!poison.is_initialised(3..4));
        assert_eq!(poison.to_vec(), [POISON; 10]);
        let zero = Buffer::new(10, Initial::Zero);
        assert!(zero.is_initialised(0..10));
        let bytes = Buffer::new(4, Initial::Bytes(&[1, 2, 3]));
        assert_eq!(bytes.to_vec(), [1, 2, 3, POISON]);
        assert!(bytes.is_initialised(0..3) && !bytes.is_initialised(3..4));
        assert!(Buffer::new(0, Initial::Poison).is_initialised(0..0));
    }

    #[test]
    fn marks_and_forgets_ranges() {
        let buffer = Buffer::new(100, Initial::Poison);
        buffer.mark_initialised(10..20);
        assert!(buffer.is_initialised(10..20) && !buffer.is_initialised(9..20));
        buffer.forget(15..500);
        assert!(buffer.is_initialised(10..15) && !buffer.is_initialised(10..16));
        buffer.mark_initialised(0..100);
        assert!(buffer.is_initialised(0..100));
    }

    #[test]
    fn a_copy_brings_its_shadow() {
        let from = Buffer::new(8, Initial::Bytes(&[1, 2]));
        let to = Buffer::new(8, Initial::Zero);
        to.copy_initialised(4, &from, 0, 4);
        assert!(to.is_initialised(0..6) && !to.is_initialised(6..7) && !to.is_initialised(7..8));
    }
}
