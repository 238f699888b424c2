//! The order in which groups, simdgroups and lanes get their turn.

use crate::config::Schedule;

/// A small generator: good enough to mix an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn shuffle(&mut self, order: &mut [u32]) {
        for last in (1..order.len()).rev() {
            order.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Which group comes at a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupOrder {
    count: u64,
    schedule: Schedule,
}

impl GroupOrder {
    pub fn new(schedule: Schedule, count: usize) -> Self {
        Self {
            count: count as u64,
            schedule,
        }
    }

    /// A permutation of the groups.
    pub fn group(&self, turn: usize) -> usize {
        match self.schedule {
            Schedule::Ascending => turn,
            Schedule::Descending => self.count as usize - 1 - turn,
            Schedule::Random(seed) => self.permuted(turn as u64, seed) as usize,
        }
    }

    /// Rounds of a bijection on the next power of two, until the result is in range.
    fn permuted(&self, turn: u64, seed: u64) -> u64 {
        let bits = self.count.next_power_of_two().trailing_zeros();
        let mask = (1u64 << bits) - 1;
        let mut value = turn;
        loop {
            for round in 0..4 {
                let key = mix(seed.wrapping_add(round));
                value = value.wrapping_mul(key | 1).wrapping_add(key >> 32) & mask;
                value ^= value >> (bits / 2).max(1);
            }
            if value < self.count {
                return value;
            }
        }
    }
}

/// Fills `order` with the turns of `count` lanes or simdgroups.
pub(crate) fn turns(schedule: Schedule, random: &mut Random, count: usize, order: &mut Vec<u32>) {
    order.clear();
    match schedule {
        Schedule::Ascending => order.extend(0..count as u32),
        Schedule::Descending => order.extend((0..count as u32).rev()),
        Schedule::Random(_) => {
            order.extend(0..count as u32);
            random.shuffle(order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_one_turn() {
        for count in [1, 2, 3, 7, 64, 1000] {
            for schedule in [
                Schedule::Ascending,
                Schedule::Descending,
                Schedule::Random(5),
            ] {
                let order = GroupOrder::new(schedule, count);
                let mut groups: Vec<_> = (0..count).map(|turn| order.group(turn)).collect();
                if count == 1000 && schedule == Schedule::Random(5) {
                    assert_ne!(groups[..5], [0, 1, 2, 3, 4]);
                }
                groups.sort_unstable();
                assert_eq!(groups, (0..count).collect::<Vec<_>>(), "{schedule}");
            }
        }
    }

    #[test]
    fn lanes_are_mixed_differently_at_each_turn() {
        let (mut random, mut first, mut second) = (Random::new(1), Vec::new(), Vec::new());
        turns(Schedule::Random(1), &mut random, 32, &mut first);
        turns(Schedule::Random(1), &mut random, 32, &mut second);
        assert_ne!(first, second);
        first.sort_unstable();
        assert_eq!(first, (0..32).collect::<Vec<_>>());
        turns(Schedule::Descending, &mut random, 3, &mut first);
        assert_eq!(first, [2, 1, 0]);
    }
}
