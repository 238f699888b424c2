//! How busy the machine was with other things, where Linux tells.

use std::fs;

/// CPU time so far, in clock ticks.
pub struct Load {
    all: u64,
    busy: u64,
    own: u64,
}

impl Load {
    pub fn now() -> Option<Load> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Load::parse(&stat, &own)
    }

    fn parse(stat: &str, own: &str) -> Option<Load> {
        // user nice system idle iowait irq softirq steal, then guest times that are part of user.
        let cpu = ticks(stat.lines().next()?.strip_prefix("cpu")?);
        let all = cpu.iter().take(8).sum();
        let idle = cpu.get(3)? + cpu.get(4)?;
        // The command's name, in parentheses, may hold anything; utime and stime are 11 and 12 after.
        let own = ticks(own.rsplit_once(") ")?.1);
        Some(Load {
            all,
            busy: all - idle,
            own: own.get(11)? + own.get(12)?,
        })
    }

    /// The part of the CPUs that other programs used since `start`.
    pub fn others_since(&self, start: &Load) -> f64 {
        let own = self.own - start.own;
        let others = (self.busy - start.busy).saturating_sub(own);
        others as f64 / (self.all - start.all).max(1) as f64
    }
}

/// The words as numbers, 0 for what is none.
fn ticks(text: &str) -> Vec<u64> {
    let words = text.split_whitespace();
    words.map(|word| word.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::Load;

    #[test]
    fn others_are_what_is_busy_but_not_ours() {
        let load = |user, idle, own| {
            let stat = format!("cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2");
            let own = format!("7 (a ) b) R 1 1 1 0 -1 0 0 0 0 0 {own} 0 0 0");
            Load::parse(&stat, &own).unwrap()
        };
        let (start, end) = (load(1000, 500, 10), load(1080, 520, 60));
        assert_eq!(end.others_since(&start), 0.3);
    }
}
