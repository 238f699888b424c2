//! Command buffers.

use crate::command::{Pass, PassKind};
use crate::device::Device;
use crate::encoder::{BlitEncoder, ComputeEncoder};
use crate::error::Error;
use crate::event::Event;
use crate::finding::{kind, Finding};
use crate::order::Clock;
use crate::queue::Queue;
use crate::run::Run;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    NotEnqueued,
    Enqueued,
    Committed,
    Scheduled,
    Completed,
    Error,
}

/// Called with a command buffer when it is scheduled or has completed.
pub type Handler = Box<dyn FnOnce(&Arc<CommandBuffer>) + Send>;

/// One part of a command buffer.
pub(crate) enum Step {
    Pass(Pass),
    Signal(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
}

/// `MTLCommandBuffer`
pub struct CommandBuffer {
    queue: Arc<Queue>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    status: Status,
    label: Option<String>,
    /// The place in the queue, once there is one.
    number: Option<u64>,
    steps: Vec<Step>,
    /// The encoder that is open: its name and number.
    open: Option<(&'static str, u64)>,
    encoders: u64,
    scheduled: Vec<Handler>,
    completed: Vec<Handler>,
    misuse: Vec<Finding>,
    /// What the host had seen to be finished when this was committed.
    observed: Clock,
    error: Option<Error>,
    /// All handlers have returned.
    over: bool,
}

impl CommandBuffer {
    pub(crate) fn new(queue: &Arc<Queue>) -> Arc<Self> {
        Arc::new(Self {
            queue: queue.clone(),
            state: Mutex::new(State {
                status: Status::NotEnqueued,
                label: None,
                number: None,
                steps: Vec::new(),
                open: None,
                encoders: 0,
                scheduled: Vec::new(),
                completed: Vec::new(),
                misuse: Vec::new(),
                observed: Clock::default(),
                error: None,
                over: false,
            }),
            changed: Condvar::new(),
        })
    }

    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub fn device(&self) -> &Arc<Device> {
        self.queue.device()
    }

    pub fn set_label(&self, label: Option<&str>) {
        self.state().label = label.map(str::to_string);
    }

    pub fn label(&self) -> Option<String> {
        self.state().label.clone()
    }

    /// The status. Whoever sees a command buffer completed may use what it wrote.
    pub fn status(&self) -> Status {
        let (status, number) = {
            let state = self.state();
            (state.status, state.number)
        };
        if status >= Status::Completed {
            self.observe(number);
        }
        status
    }

    pub fn error(&self) -> Option<Error> {
        self.state().error.clone()
    }

    pub fn compute_encoder(self: &Arc<Self>, concurrent: bool) -> Arc<ComputeEncoder> {
        let kind = if concurrent {
            PassKind::Concurrent
        } else {
            PassKind::Serial
        };
        let number = self.open("a compute encoder");
        Arc::new(ComputeEncoder::new(self, number, kind))
    }

    pub fn blit_encoder(self: &Arc<Self>) -> Arc<BlitEncoder> {
        let number = self.open("a blit encoder");
        Arc::new(BlitEncoder::new(self, number))
    }

    pub fn signal_event(&self, event: &Arc<Event>, value: u64) {
        self.open("an event");
        self.close_with(Step::Signal(event.clone(), value));
    }

    pub fn wait_for_event(&self, event: &Arc<Event>, value: u64) {
        self.open("an event");
        self.close_with(Step::Wait(event.clone(), value));
    }

    /// Adds a pass that needs no encoder of its own.
    pub(crate) fn encode(&self, what: &'static str, pass: Pass) {
        self.open(what);
        self.close_with(Step::Pass(pass));
    }

    /// The number of a new encoder, which must be the only one.
    fn open(&self, what: &'static str) -> u64 {
        let mut state = self.state();
        let problem = if state.status >= Status::Committed {
            Some(format!("{what} on a command buffer that is committed"))
        } else {
            state
                .open
                .map(|(open, _)| format!("{what} while {open} is open: end its encoding first"))
        };
        state.encoders += 1;
        let number = state.encoders;
        state.open = Some((what, number));
        drop(state);
        if let Some(problem) = problem {
            self.misuse(Finding::new(kind::STATE, problem));
        }
        number
    }

    fn close_with(&self, step: Step) {
        let mut state = self.state();
        state.open = None;
        if state.status < Status::Committed {
            state.steps.push(step);
        }
    }

    /// An encoder has ended.
    pub(crate) fn close(&self, encoder: u64, pass: Pass) {
        let mut state = self.state();
        if state.open.is_some_and(|(_, number)| number == encoder) {
            state.open = None;
        }
        if state.status < Status::Committed {
            state.steps.push(Step::Pass(pass));
        }
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.state().status >= Status::Committed
    }

    /// Reports a finding. An error makes this command buffer fail if it is not committed yet.
    pub(crate) fn misuse(&self, mut finding: Finding) {
        self.device().settings.notes.judge(&mut finding, None);
        self.device().report(&finding);
        let mut state = self.state();
        if finding.is_error() && state.status < Status::Committed {
            state.misuse.push(finding);
        }
    }

    pub fn add_scheduled_handler(&self, handler: Handler) {
        self.add_handler("addScheduledHandler", |state| &mut state.scheduled, handler);
    }

    pub fn add_completed_handler(&self, handler: Handler) {
        self.add_handler("addCompletedHandler", |state| &mut state.completed, handler);
    }

    fn add_handler(&self, call: &str, list: fn(&mut State) -> &mut Vec<Handler>, handler: Handler) {
        let mut state = self.state();
        if state.status >= Status::Committed {
            drop(state);
            let detail = format!("{call} on a command buffer that is committed");
            self.misuse(Finding::new(kind::STATE, detail));
            return;
        }
        list(&mut state).push(handler);
    }

    /// Keeps a place in the queue.
    pub fn enqueue(self: &Arc<Self>) {
        let mut state = self.state();
        if state.status == Status::NotEnqueued {
            state.number = Some(self.queue.enqueue(self));
            state.status = Status::Enqueued;
        }
    }

    /// Lets the command buffer run.
    pub fn commit(self: &Arc<Self>) {
        self.enqueue();
        let mut state = self.state();
        if state.status >= Status::Committed {
            drop(state);
            self.misuse(Finding::new(
                kind::STATE,
                "commit of a command buffer that is committed",
            ));
            return;
        }
        if let Some((open, _)) = state.open {
            drop(state);
            self.misuse(Finding::new(
                kind::STATE,
                format!("commit while {open} is open"),
            ));
            state = self.state();
        }
        state.status = Status::Committed;
        state.misuse.extend(self.device().take_raised());
        state.observed = self.device().observed();
        let number = state.number.unwrap_or_default();
        for step in &state.steps {
            let Step::Pass(pass) = step else { continue };
            for (buffer, writes) in pass.commands.iter().flat_map(|command| command.buffers()) {
                buffer.committed(self.queue.progress(), number, writes);
            }
        }
        drop(state);
        self.queue.commit(number, self.clone());
    }

    pub fn wait_until_scheduled(&self) {
        let state = self.state();
        if self.refuse_to_wait(&state) {
            return;
        }
        drop(
            self.changed
                .wait_while(state, |state| state.status < Status::Scheduled),
        );
    }

    /// Waits until all commands have run and all handlers have returned.
    pub fn wait_until_completed(&self) {
        let state = self.state();
        if self.refuse_to_wait(&state) {
            drop(state);
            let detail = "waiting for a command buffer that is not committed would never end";
            self.misuse(Finding::new(kind::STATE, detail));
            return;
        }
        let state = self
            .changed
            .wait_while(state, |state| !state.over)
            .unwrap_or_else(PoisonError::into_inner);
        let number = state.number;
        drop(state);
        self.observe(number);
    }

    fn refuse_to_wait(&self, state: &State) -> bool {
        state.status < Status::Committed
    }

    fn observe(&self, number: Option<u64>) {
        if let Some(number) = number {
            self.queue.progress().observe(number);
        }
    }

    /// Runs the commands, on the thread of the queue.
    pub(crate) fn run(self: &Arc<Self>) {
        let (steps, misuse, observed, number, scheduled) = {
            let mut state = self.state();
            state.status = Status::Scheduled;
            (
                std::mem::take(&mut state.steps),
                std::mem::take(&mut state.misuse),
                std::mem::take(&mut state.observed),
                state.number.unwrap_or_default(),
                std::mem::take(&mut state.scheduled),
            )
        };
        self.changed.notify_all();
        self.call(scheduled);

        let run = Run::new(
            self.device(),
            self.queue.progress().queue,
            number,
            observed,
            misuse,
        );
        let outcome = catch_unwind(AssertUnwindSafe(|| run.steps(steps)));
        let error = outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Some(Error::internal(format!("softmetal failed: {text}")))
        });

        let completed = {
            let mut state = self.state();
            state.status = if error.is_some() {
                Status::Error
            } else {
                Status::Completed
            };
            state.error = error;
            std::mem::take(&mut state.completed)
        };
        if !completed.is_empty() {
            self.observe(Some(number));
        }
        self.call(completed);
        self.state().over = true;
        self.changed.notify_all();
    }

    fn call(self: &Arc<Self>, handlers: Vec<Handler>) {
        for handler in handlers {
            if catch_unwind(AssertUnwindSafe(|| handler(self))).is_err() {
                eprintln!("softmetal: a handler of a command buffer panicked");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CommandBuffer {
    fn drop(&mut self) {
        if self.state().status < Status::Committed {
            self.queue.abandon();
        }
    }
}
