//! The device.

use crate::counters::{Recorder, Totals};
use crate::coverage::Coverage;
use crate::finding::{Finding, Log};
use crate::order::{Clock, Progress};
use crate::settings::Settings;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// A GPU made of CPU threads.
pub struct Device {
    pub settings: Settings,
    id: u64,
    log: Log,
    recorder: Recorder,
    coverage: Coverage,
    /// Errors that no command buffer has delivered yet.
    raised: Mutex<Vec<Finding>>,
    allocated: AtomicUsize,
    queues: Mutex<Vec<Weak<Progress>>>,
}

impl Device {
    /// The device of this process, with the settings of its environment.
    pub fn system() -> &'static Arc<Device> {
        static SYSTEM: LazyLock<Arc<Device>> = LazyLock::new(|| Device::new(Settings::from_env()));
        &SYSTEM
    }

    pub fn new(settings: Settings) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let recorder = Recorder::new(settings.trace.as_deref());
        let coverage = Coverage::new(settings.coverage.as_deref());
        Arc::new(Self {
            settings,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            log: Log::default(),
            recorder,
            coverage,
            raised: Mutex::default(),
            allocated: AtomicUsize::new(0),
            queues: Mutex::default(),
        })
    }

    pub fn name(&self) -> &'static str {
        "softmetal"
    }

    pub fn registry_id(&self) -> u64 {
        self.id
    }

    /// Bytes of all buffers alive.
    pub fn allocated(&self) -> usize {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Half of the machine's memory, if it can be known.
    pub fn recommended_working_set(&self) -> u64 {
        const UNKNOWN: u64 = 4 << 30;
        let kib = std::fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| {
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix("MemTotal:"))?;
                line.trim()
                    .trim_end_matches("kB")
                    .trim()
                    .parse::<u64>()
                    .ok()
            });
        kib.map_or(UNKNOWN, |kib| kib * 1024 / 2)
    }

    /// All findings so far, the oldest first.
    pub fn findings(&self) -> Vec<Finding> {
        self.log.all()
    }

    /// The same, and forgets them.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.log.take()
    }

    /// The work of all dispatches so far.
    pub fn totals(&self) -> Totals {
        self.recorder.totals()
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Reports what the host did wrong outside of any command buffer: the next one to be committed fails.
    pub(crate) fn raise(&self, mut finding: Finding) {
        self.settings.notes.judge(&mut finding, None);
        self.report(&finding);
        if finding.is_error() {
            self.raised().push(finding);
        }
    }

    pub(crate) fn take_raised(&self) -> Vec<Finding> {
        std::mem::take(&mut self.raised())
    }

    fn raised(&self) -> MutexGuard<'_, Vec<Finding>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps and tells a finding. Notes matter in checked mode only.
    pub(crate) fn report(&self, finding: &Finding) {
        if finding.is_error() || self.settings.check {
            self.log.add(finding);
        }
    }

    pub(crate) fn allocate(&self, bytes: usize) {
        self.allocated.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.allocated.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_queue(&self, progress: &Arc<Progress>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(progress));
    }

    /// What the host has seen to be finished on this device.
    pub(crate) fn observed(&self) -> Clock {
        let queues: Vec<_> = {
            let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.iter().filter_map(Weak::upgrade).collect()
        };
        Clock::observed(queues.iter().map(|queue| &**queue))
    }
}
