//! A queue: its command buffers run one after the other, on a thread of its own.

use crate::command_buffer::CommandBuffer;
use crate::device::Device;
use crate::finding::{kind, Finding};
use crate::limits;
use crate::order::Progress;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// `MTLCommandQueue`
pub struct Queue {
    device: Arc<Device>,
    line: Arc<Line>,
    progress: Arc<Progress>,
}

/// The command buffers that wait for their turn.
#[derive(Default)]
pub(crate) struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    places: VecDeque<Place>,
    /// Command buffers that got a place so far.
    numbered: u64,
    /// Command buffers that exist and have not completed.
    live: usize,
    /// Whether there is a thread, and whether it is at work.
    started: bool,
    busy: bool,
    closed: bool,
}

/// A place in the line.
enum Place {
    /// Kept for a command buffer that is not committed yet.
    Reserved {
        number: u64,
        buffer: Weak<CommandBuffer>,
    },
    Committed(Arc<CommandBuffer>),
}

impl Queue {
    pub fn new(device: &Arc<Device>) -> Arc<Self> {
        let progress = Arc::new(Progress::new());
        device.add_queue(&progress);
        Arc::new(Self {
            device: device.clone(),
            line: Arc::default(),
            progress,
        })
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// A new command buffer. Waits while too many are unfinished; none if they can never finish, because all of
    /// them are still to be committed.
    pub fn command_buffer(self: &Arc<Self>) -> Option<Arc<CommandBuffer>> {
        let mut state = self.line.state();
        while state.live >= limits::COMMAND_BUFFERS {
            if !state.busy
                && !state
                    .places
                    .iter()
                    .any(|place| matches!(place, Place::Committed(_)))
            {
                let detail = format!(
                    "{} command buffers of one queue are open: Metal would wait for ever for one of them to complete",
                    state.live
                );
                self.device.raise(Finding::new(kind::LIMIT, detail));
                return None;
            }
            state = self.line.wait(state);
        }
        state.live += 1;
        drop(state);
        Some(CommandBuffer::new(self))
    }

    /// Keeps a place in the line for a command buffer.
    pub(crate) fn enqueue(&self, buffer: &Arc<CommandBuffer>) -> u64 {
        let mut state = self.line.state();
        state.numbered += 1;
        let number = state.numbered;
        state.places.push_back(Place::Reserved {
            number,
            buffer: Arc::downgrade(buffer),
        });
        number
    }

    /// Lets an enqueued command buffer run when its turn comes.
    pub(crate) fn commit(&self, number: u64, buffer: Arc<CommandBuffer>) {
        let mut state = self.line.state();
        let reserved = state.places.iter_mut().find(
            |place| matches!(place, Place::Reserved { number: other, .. } if *other == number),
        );
        if let Some(place) = reserved {
            *place = Place::Committed(buffer);
        }
        if !state.started {
            state.started = true;
            let line = self.line.clone();
            let thread = std::thread::Builder::new()
                .name(format!("softmetal queue {}", self.progress.queue));
            thread
                .spawn(move || line.work())
                .expect("softmetal: no thread for a command queue");
        }
        drop(state);
        self.line.changed.notify_all();
    }

    /// A command buffer went away without having been committed.
    pub(crate) fn abandon(&self) {
        self.line.state().live -= 1;
        self.line.changed.notify_all();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.line.state().closed = true;
        self.line.changed.notify_all();
    }
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(buffer) = self.next() {
            buffer.run();
            drop(buffer);
            let mut state = self.state();
            state.busy = false;
            state.live -= 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The command buffer whose turn it is, once there is one; none when the queue is gone.
    fn next(&self) -> Option<Arc<CommandBuffer>> {
        let mut state = self.state();
        loop {
            while state.places.front().is_some_and(Place::is_abandoned) {
                state.places.pop_front();
            }
            match state.places.front() {
                Some(Place::Committed(_)) => {
                    state.busy = true;
                    let Some(Place::Committed(buffer)) = state.places.pop_front() else {
                        unreachable!("the front was just looked at")
                    };
                    return Some(buffer);
                }
                None if state.closed => return None,
                _ => state = self.wait(state),
            }
        }
    }
}

impl Place {
    fn is_abandoned(&self) -> bool {
        matches!(self, Place::Reserved { buffer, .. } if buffer.strong_count() == 0)
    }
}
