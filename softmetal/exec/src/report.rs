//! What a dispatch leaves behind: findings, counters and the memory it touched.

use std::ops::{AddAssign, Range};

use crate::finding::{Finding, Severity};

/// How much work a dispatch did. Byte counts are kept in checked mode and when tracing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub threads: u64,
    pub groups: u64,
    pub device_read: u64,
    pub device_written: u64,
    /// Bytes of device memory that were read at least once.
    pub device_read_unique: u64,
    pub device_written_unique: u64,
    pub threadgroup_read: u64,
    pub threadgroup_written: u64,
    /// Threadgroup barriers, counted once per group.
    pub barriers: u64,
    /// Simd and quad functions and simdgroup barriers, counted once per simdgroup.
    pub gathers: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.threads += other.threads;
        self.groups += other.groups;
        self.device_read += other.device_read;
        self.device_written += other.device_written;
        self.device_read_unique += other.device_read_unique;
        self.device_written_unique += other.device_written_unique;
        self.threadgroup_read += other.threadgroup_read;
        self.threadgroup_written += other.threadgroup_written;
        self.barriers += other.barriers;
        self.gathers += other.gathers;
    }
}

/// Disjoint byte ranges in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<usize>>,
}

impl RangeSet {
    /// Adds a range that starts at or behind the end of the last one.
    pub fn push(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            last => {
                debug_assert!(last.is_none_or(|last| last.end < range.start));
                self.ranges.push(range);
            }
        }
    }

    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    /// The first byte range that both sets have.
    pub fn overlap(&self, other: &RangeSet) -> Option<Range<usize>> {
        let (mut left, mut right) = (
            self.ranges.iter().peekable(),
            other.ranges.iter().peekable(),
        );
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let common = a.start.max(b.start)..a.end.min(b.end);
            if !common.is_empty() {
                return Some(common);
            }
            if a.end <= b.end {
                left.next();
            } else {
                right.next();
            }
        }
        None
    }
}

/// What a dispatch did to one buffer.
#[derive(Clone, Debug)]
pub struct Touched {
    /// [`crate::Buffer::id`]
    pub buffer: u64,
    pub reads: RangeSet,
    pub writes: RangeSet,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
    pub counters: Counters,
    pub touched: Vec<Touched>,
}

impl Report {
    /// The finding that stopped the kernel.
    pub fn error(&self) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.severity == Severity::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<usize>]) -> RangeSet {
        let mut set = RangeSet::default();
        ranges.iter().for_each(|range| set.push(range.clone()));
        set
    }

    #[test]
    fn touching_ranges_join() {
        let joined = set(&[0..4, 4..8, 8..8, 12..16]);
        assert_eq!(joined.ranges(), [0..8, 12..16]);
        assert_eq!(joined.bytes(), 12);
    }

    #[test]
    fn overlap_is_the_first_common_range() {
        assert_eq!(
            set(&[0..4, 8..16]).overlap(&set(&[4..8, 12..20])),
            Some(12..16)
        );
        assert_eq!(set(&[0..4, 8..16]).overlap(&set(&[4..8, 16..20])), None);
        assert_eq!(set(&[]).overlap(&set(&[0..1, 2..3])), None);
    }
}
