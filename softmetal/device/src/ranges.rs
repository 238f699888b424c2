//! Sets of bytes.

use std::ops::Range;

/// Sorted, disjoint, non-empty ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<usize>> {
        self.0.iter()
    }

    /// The first bytes that are in both.
    pub(crate) fn overlap(&self, other: &Self) -> Option<Range<usize>> {
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            if start < end {
                return Some(start..end);
            }
            if a.end <= b.end {
                i += 1;
            } else {
                j += 1;
            }
        }
        None
    }

    /// Takes away the bytes of `other`.
    pub(crate) fn subtract(&mut self, other: &Self) {
        if self.overlap(other).is_none() {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len());
        let mut cuts = other.0.iter().peekable();
        for range in &self.0 {
            let mut start = range.start;
            while cuts.next_if(|cut| cut.end <= range.start).is_some() {}
            let mut rest = cuts.clone();
            while let Some(cut) = rest.next_if(|cut| cut.start < range.end) {
                if start < cut.start {
                    left.push(start..cut.start);
                }
                start = start.max(cut.end);
            }
            if start < range.end {
                left.push(start..range.end);
            }
        }
        self.0 = left;
    }
}

impl FromIterator<Range<usize>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Self {
        let mut ranges: Vec<_> = ranges
            .into_iter()
            .filter(|range| !range.is_empty())
            .collect();
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self(merged)
    }
}

impl From<Range<usize>> for Ranges {
    fn from(range: Range<usize>) -> Self {
        Self::from_iter([range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(of: &[Range<usize>]) -> Ranges {
        of.iter().cloned().collect()
    }

    #[test]
    fn merges_what_touches() {
        assert_eq!(ranges(&[4..6, 0..2, 2..4, 8..8, 9..10]).0, [0..6, 9..10]);
    }

    #[test]
    fn finds_the_first_overlap() {
        let a = ranges(&[0..4, 10..20]);
        assert_eq!(a.overlap(&Ranges::from(4..10)), None);
        assert_eq!(a.overlap(&ranges(&[5..8, 18..30])), Some(18..20));
    }

    #[test]
    fn subtracts_across_borders() {
        let mut a = ranges(&[0..10, 20..30, 40..50]);
        a.subtract(&ranges(&[2..4, 6..24, 45..60]));
        assert_eq!(a.0, [0..2, 4..6, 24..30, 40..45]);
        a.subtract(&Ranges::from(0..100));
        assert!(a.is_empty());
    }
}
