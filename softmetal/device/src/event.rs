//! Events, which order command buffers of different queues.

use crate::order::Clock;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// `MTLEvent` and `MTLSharedEvent`
#[derive(Debug, Default)]
pub struct Event {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    value: u64,
    /// What was finished when a value was signalled.
    clocks: BTreeMap<u64, Clock>,
}

impl Event {
    pub fn value(&self) -> u64 {
        self.state().value
    }

    /// The host sets the value.
    pub fn set_value(&self, value: u64) {
        self.state().value = value;
        self.changed.notify_all();
    }

    /// The host waits until the value is reached, and tells whether it was.
    pub fn wait_for(&self, value: u64, timeout: Duration) -> bool {
        self.wait(value, timeout).is_some()
    }

    pub(crate) fn signal(&self, value: u64, clock: Clock) {
        let mut state = self.state();
        state.value = state.value.max(value);
        state.clocks.entry(value).or_default().join(&clock);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the value is reached, and tells what is finished then; none if that takes too long.
    pub(crate) fn wait(&self, value: u64, timeout: Duration) -> Option<Clock> {
        let (state, result) = self
            .changed
            .wait_timeout_while(self.state(), timeout, |state| state.value < value)
            .unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            return None;
        }
        // The first signal that lets the wait pass is the only one that is sure to have happened.
        Some(
            state
                .clocks
                .range(value..)
                .next()
                .map(|(_, clock)| clock.clone())
                .unwrap_or_default(),
        )
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
