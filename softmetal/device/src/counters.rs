//! The work that dispatches did.

use crate::trace::Trace;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use softmetal_exec::Counters;

/// The work of one dispatch.
#[derive(Clone, Debug)]
pub struct Record {
    pub kernel: String,
    /// The queue's number and its command buffer's.
    pub queue: u64,
    pub command_buffer: u64,
    /// Threadgroups of the grid.
    pub groups: [usize; 3],
    /// Threads of the grid.
    pub grid: [usize; 3],
    pub threads_per_group: [usize; 3],
    pub counters: Counters,
}

/// The work of all dispatches together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub dispatches: u64,
    /// `device_read_unique` and `device_written_unique` are sums of what is unique in each dispatch.
    pub counters: Counters,
}

/// Collects the work of dispatches.
pub struct Recorder {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    totals: Totals,
    /// The single records, if somebody wants them.
    records: Option<Vec<Record>>,
    trace: Option<Trace>,
}

impl Recorder {
    pub(crate) fn new(trace: Option<&Path>) -> Self {
        let trace = trace.and_then(|path| match Trace::create(path) {
            Ok(trace) => Some(trace),
            Err(error) => {
                eprintln!("softmetal: no trace in {}: {error}", path.display());
                None
            }
        });
        Self {
            state: Mutex::new(State {
                trace,
                ..State::default()
            }),
        }
    }

    /// Keeps the records of dispatches from now on.
    pub fn start(&self) {
        self.state().records = Some(Vec::new());
    }

    /// The records since [`Recorder::start`], after which no more are kept.
    pub fn stop(&self) -> Vec<Record> {
        self.state().records.take().unwrap_or_default()
    }

    pub fn totals(&self) -> Totals {
        self.state().totals.clone()
    }

    pub(crate) fn add(&self, record: Record) {
        let mut state = self.state();
        state.totals.dispatches += 1;
        state.totals.counters += record.counters;
        if let Some(trace) = &mut state.trace {
            if let Err(error) = trace.write(&record) {
                eprintln!("softmetal: the trace ends here: {error}");
                state.trace = None;
            }
        }
        if let Some(records) = &mut state.records {
            records.push(record);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
