//! OS threads that stay, and run the groups of one dispatch after the other.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::dispatch::{Dispatch, Geometry};
use crate::finding::{Finding, Kind};
use crate::hooks::{PLAIN, WATCHED};
use crate::job::{Job, Scratch};
use crate::report::{Report, Touched};
use crate::worker::Worker;

struct Pool {
    /// The worker of whoever dispatches.
    own: Box<Worker>,
    scratch: Scratch,
    helpers: usize,
    board: Arc<Board>,
}

/// Where helpers find their work.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
    posted: Condvar,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    /// The job of this round, and how many helpers may still join it.
    job: Option<Posted>,
    places: usize,
    working: usize,
}

#[derive(Clone, Copy)]
struct Posted(*const Job);

// SAFETY: whoever posts a job keeps it until no helper works on it.
unsafe impl Send for Posted {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a dispatch to its end. One at a time: a dispatch has all workers.
pub fn run(dispatch: &Dispatch, config: &Config) -> Report {
    static POOL: Mutex<Option<Pool>> = Mutex::new(None);
    let mut pool = lock(&POOL);
    pool.get_or_insert_with(Pool::new).run(dispatch, config)
}

impl Pool {
    fn new() -> Self {
        Self {
            own: Worker::new(),
            scratch: Scratch::new(),
            helpers: 0,
            board: Arc::default(),
        }
    }

    fn run(&mut self, dispatch: &Dispatch, config: &Config) -> Report {
        let geometry = match admit(dispatch) {
            Ok(geometry) => geometry,
            Err(detail) => return refusal(dispatch, detail),
        };
        let job = match Job::new(dispatch, geometry, config, &mut self.scratch) {
            Ok(job) => job,
            Err(finding) => {
                return Report {
                    findings: vec![*finding],
                    ..Report::default()
                }
            }
        };
        let watched = config.check || config.trace;
        // SAFETY: the function is loaded, and the table lives forever.
        unsafe { (dispatch.function.bind)(if watched { &WATCHED } else { &PLAIN }) };
        if job.shared {
            let helpers = (config.threads - 1).min(geometry.group_count() - 1);
            self.share(&job, helpers);
        } else {
            self.own.work(&job);
        }
        let mut report = Report {
            counters: *lock(&job.counters),
            ..Report::default()
        };
        if watched {
            collect_touched(&job, &mut report);
        }
        let function = job.function.clone();
        report.findings = job.release(&mut self.scratch).finish(&function);
        report
    }

    /// Runs the job here and on so many helpers.
    fn share(&mut self, job: &Job, helpers: usize) {
        while self.helpers < helpers {
            let board = self.board.clone();
            std::thread::spawn(move || help(&board));
            self.helpers += 1;
        }
        {
            let mut state = lock(&self.board.state);
            state.job = Some(Posted(job));
            state.places = helpers;
        }
        self.board.posted.notify_all();
        // Dropped last, even if a kernel panics: helpers look at the job.
        let _helpers = Helpers(&self.board);
        self.own.work(job);
    }
}

/// The helpers at work on a job; to drop it is to wait for them.
struct Helpers<'a>(&'a Board);

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.job = None;
        while state.working > 0 {
            let finished = self.0.finished.wait(state);
            state = finished.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A helper at work; to drop it is to be done, or to have panicked.
struct Working<'a>(&'a Board);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).working -= 1;
        self.0.finished.notify_all();
    }
}

/// The life of a helper.
fn help(board: &Board) {
    let worker = Worker::new();
    let mut state = lock(&board.state);
    loop {
        match state.job {
            Some(Posted(job)) if state.places > 0 => {
                state.places -= 1;
                state.working += 1;
                drop(state);
                let working = Working(board);
                // SAFETY: the poster waits until nobody works on it.
                worker.work(unsafe { &*job });
                drop(working);
                state = lock(&board.state);
            }
            _ => {
                state = board
                    .posted
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}

fn admit(dispatch: &Dispatch) -> Result<Geometry, String> {
    let geometry = Geometry::new(dispatch.grid, dispatch.group)?;
    let threads = dispatch.group.iter().product::<usize>();
    match dispatch.function.max_threads {
        Some(limit) if threads > limit as usize => Err(format!(
            "{threads} threads per threadgroup, the kernel is compiled for {limit}"
        )),
        _ => Ok(geometry),
    }
}

fn refusal(dispatch: &Dispatch, detail: String) -> Report {
    let finding = Finding {
        severity: Kind::Limit.severity(),
        kind: Kind::Limit,
        kernel: dispatch.function.name.clone(),
        argument: None,
        offset: None,
        thread: [0; 3],
        group: [0; 3],
        location: None,
        detail,
        count: 1,
    };
    Report {
        findings: vec![finding],
        ..Report::default()
    }
}

fn collect_touched(job: &Job, report: &mut Report) {
    for buffer in &job.buffers {
        let (reads, writes) = buffer.accesses().take();
        report.counters.device_read_unique += reads.bytes();
        report.counters.device_written_unique += writes.bytes();
        if !reads.is_empty() || !writes.is_empty() {
            report.touched.push(Touched {
                buffer: buffer.id(),
                reads,
                writes,
            });
        }
    }
}
