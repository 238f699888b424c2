//! `NSRange`

/// `length` things from `location` on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NSRange {
    pub location: usize,
    pub length: usize,
}

impl NSRange {
    pub const fn new(location: usize, length: usize) -> Self {
        Self { location, length }
    }

    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub const fn end(&self) -> usize {
        self.location + self.length
    }
}

impl From<std::ops::Range<usize>> for NSRange {
    fn from(range: std::ops::Range<usize>) -> Self {
        Self::new(range.start, range.end.saturating_sub(range.start))
    }
}
