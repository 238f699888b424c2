//! The execution of a command buffer.

use crate::buffer::Buffer;
use crate::command::{Argument, Command, Dispatch, HostWork, Pass, PassKind};
use crate::command_buffer::Step;
use crate::counters::Record;
use crate::device::Device;
use crate::error::Error;
use crate::finding::{kind, Finding};
use crate::hazard::{Access, PassOrder};
use crate::order::{next_pass, Clock, Stamp};
use crate::ranges::Ranges;
use softmetal_exec::{Binding, Grid};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Longer than this no command buffer waits for an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// One command buffer while it runs.
pub(crate) struct Run<'a> {
    device: &'a Arc<Device>,
    queue: u64,
    number: u64,
    /// What is finished when the next pass starts, whatever its fences say.
    clock: Clock,
    /// Passes of this command buffer so far.
    own: Clock,
    errors: Vec<Finding>,
}

/// What a command did to a buffer.
struct Touch {
    buffer: Arc<Buffer>,
    reads: Ranges,
    writes: Ranges,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        device: &'a Arc<Device>,
        queue: u64,
        number: u64,
        clock: Clock,
        misuse: Vec<Finding>,
    ) -> Self {
        Self {
            device,
            queue,
            number,
            clock,
            own: Clock::default(),
            errors: misuse,
        }
    }

    /// Runs everything. After an error only fences and events go on, so that nobody waits for ever.
    pub(crate) fn steps(mut self, steps: Vec<Step>) -> Option<Error> {
        for step in steps {
            match step {
                Step::Pass(pass) => self.pass(pass),
                Step::Signal(event, value) => {
                    let mut clock = self.clock.clone();
                    clock.join(&self.own);
                    clock.finish_buffers(self.queue, self.number - 1);
                    event.signal(value, clock);
                }
                Step::Wait(event, value) => match event.wait(value, EVENT_TIMEOUT) {
                    Some(clock) => self.clock.join(&clock),
                    None => self.found(Finding::new(
                        kind::STATE,
                        format!(
                            "waited {} s for an event to reach {value}",
                            EVENT_TIMEOUT.as_secs()
                        ),
                    )),
                },
            }
        }
        (!self.errors.is_empty()).then(|| Error::command_buffer(&self.errors))
    }

    fn pass(&mut self, pass: Pass) {
        let start = Stamp {
            queue: self.queue,
            buffer: self.number,
            pass: next_pass(),
            position: 0,
        };
        let mut order = PassOrder::new(start, pass.kind == PassKind::Serial, self.clock.clone());
        for command in pass.commands {
            match command {
                Command::Update(fence) => order.update(&fence),
                _ if !self.errors.is_empty() => {}
                Command::Wait(fence) => order.wait(&fence),
                Command::Barrier => order.barrier(),
                Command::BarrierFor(buffers) => {
                    buffers
                        .iter()
                        .for_each(|buffer| order.barrier_for(buffer.id()));
                }
                Command::Dispatch(dispatch) => self.dispatch(&dispatch, &mut order),
                Command::Copy {
                    from,
                    from_offset,
                    to,
                    to_offset,
                    size,
                } => {
                    copy(&from, from_offset, &to, to_offset, size);
                    let touched = [
                        Touch::read(from, from_offset..from_offset + size),
                        Touch::write(to, to_offset..to_offset + size),
                    ];
                    self.hazards("copyFromBuffer", touched, &mut order);
                }
                Command::Fill {
                    buffer,
                    range,
                    value,
                } => {
                    fill(&buffer, range.clone(), value);
                    self.hazards("fillBuffer", [Touch::write(buffer, range)], &mut order);
                }
                Command::Host(work) => self.host_work(*work, &mut order),
            }
        }
        self.own.finish_before(order.next);
    }

    fn dispatch(&mut self, dispatch: &Dispatch, order: &mut PassOrder) {
        let kernel = dispatch.pipeline.function();
        let binding = |argument: &Argument| match argument {
            Argument::None => Binding::None,
            Argument::Bytes(bytes) => Binding::Bytes(bytes.to_vec()),
            Argument::Buffer { buffer, offset } => Binding::Buffer {
                buffer: buffer.memory().clone(),
                offset: *offset,
            },
        };
        let buffers = dispatch.arguments.iter().filter_map(Argument::buffer);
        let turns = Buffer::take_turns(buffers);
        let report = softmetal_exec::run(
            &softmetal_exec::Dispatch {
                function: kernel.clone(),
                buffers: dispatch.arguments.iter().map(binding).collect(),
                threadgroup_lengths: dispatch.threadgroup_lengths.clone(),
                grid: dispatch.grid,
                group: dispatch.group,
            },
            &self.device.settings.execution,
        );
        drop(turns);
        self.device
            .coverage()
            .ran(dispatch.pipeline.file(), &kernel.name);
        self.device
            .recorder()
            .add(self.record(dispatch, report.counters));
        for finding in report.findings {
            self.found(finding.into());
        }
        let touched: Vec<_> = report
            .touched
            .into_iter()
            .filter_map(|touched| {
                let mut buffers = dispatch.arguments.iter().filter_map(Argument::buffer);
                let buffer = buffers.find(|buffer| buffer.id() == touched.buffer);
                Some(Touch {
                    buffer: buffer?.clone(),
                    reads: touched.reads.ranges().iter().cloned().collect(),
                    writes: touched.writes.ranges().iter().cloned().collect(),
                })
            })
            .collect();
        self.overruns(dispatch, &touched);
        self.hazards(&kernel.name, touched, order);
    }

    /// Reports writes behind what a buffer is used for. Labels outlive their use, and kernels of unnamed sources are of
    /// somebody who doesn't set them: those are left out.
    fn overruns(&mut self, dispatch: &Dispatch, touched: &[Touch]) {
        if !dispatch.pipeline.file().ends_with(".metal") {
            return;
        }
        for (id, used) in &dispatch.used {
            let touched = touched.iter().find(|touched| touched.buffer.id() == *id);
            let beyond = |touched: &Touch| touched.writes.iter().map(|range| range.end).max();
            let Some(end) = touched.and_then(beyond).filter(|end| end > used) else {
                continue;
            };
            let detail = format!("a write up to byte {end} of a buffer of which {used} are in use");
            let kernel = &dispatch.pipeline.function().name;
            self.found(
                Finding::new(kind::BOUNDS, detail)
                    .in_kernel(kernel)
                    .at_offset(*used),
            );
        }
    }

    fn record(&self, dispatch: &Dispatch, counters: softmetal_exec::Counters) -> Record {
        let group = dispatch.group;
        let (grid, groups) = match dispatch.grid {
            Grid::Threads(grid) => (grid, [0, 1, 2].map(|side| grid[side].div_ceil(group[side]))),
            Grid::Groups(groups) => ([0, 1, 2].map(|side| groups[side] * group[side]), groups),
        };
        Record {
            kernel: dispatch.pipeline.function().name.clone(),
            queue: self.queue,
            command_buffer: self.number,
            groups,
            grid,
            threads_per_group: group,
            counters,
        }
    }

    fn host_work(&mut self, work: HostWork, order: &mut PassOrder) {
        if let Err(finding) = (work.work)() {
            self.found(*finding);
        }
        let reads = work.reads.into_iter();
        let reads = reads.map(|(buffer, reads)| Touch {
            buffer,
            reads,
            writes: Ranges::default(),
        });
        let writes = work.writes.into_iter();
        let writes = writes.map(|(buffer, writes)| Touch {
            buffer,
            reads: Ranges::default(),
            writes,
        });
        self.hazards(&work.name, reads.chain(writes), order);
    }

    /// Reports what touches the same bytes as an earlier command that may not be finished.
    fn hazards(
        &mut self,
        by: &str,
        touched: impl IntoIterator<Item = Touch>,
        order: &mut PassOrder,
    ) {
        let stamp = order.advance();
        if !self.device.settings.check {
            return;
        }
        for Touch {
            buffer,
            reads,
            writes,
        } in touched
        {
            let tracked = buffer.options().tracked;
            let access = Access {
                stamp,
                by: by.into(),
                reads,
                writes,
            };
            let conflict = buffer.history().add(access, |earlier| {
                *earlier == stamp || order.is_after(earlier, buffer.id(), tracked)
            });
            let Some(conflict) = conflict else { continue };
            let earlier = &conflict.earlier;
            let (kind, missing) = if earlier.stamp.pass == stamp.pass {
                (
                    kind::MISSING_BARRIER,
                    "they are in one concurrent encoder with no memory barrier between them",
                )
            } else if earlier.stamp.queue == stamp.queue {
                (kind::MISSING_FENCE, "they are in two encoders with no fence between them, and the buffer is untracked")
            } else {
                (
                    kind::MISSING_EVENT,
                    "they are on two queues with no event and no wait between them",
                )
            };
            let Range { start, end } = conflict.bytes;
            let detail = format!(
                "{} of {}: bytes {start}..{end} of {buffer}; {missing}",
                conflict.how, earlier.by
            );
            self.found(Finding::new(kind, detail).in_kernel(by).at_offset(start));
        }
    }

    fn found(&mut self, mut finding: Finding) {
        let place = finding.location.clone();
        let file = place.as_ref().map(|location| location.file.as_str());
        self.device.settings.notes.judge(&mut finding, file);
        self.device.report(&finding);
        if finding.is_error() {
            self.errors.push(finding);
        }
    }
}

impl Touch {
    fn read(buffer: Arc<Buffer>, range: Range<usize>) -> Self {
        Self {
            buffer,
            reads: range.into(),
            writes: Ranges::default(),
        }
    }

    fn write(buffer: Arc<Buffer>, range: Range<usize>) -> Self {
        Self {
            buffer,
            reads: Ranges::default(),
            writes: range.into(),
        }
    }
}

fn copy(from: &Buffer, from_offset: usize, to: &Buffer, to_offset: usize, size: usize) {
    let (source, target) = (from.memory(), to.memory());
    // SAFETY: both ranges were checked when the command was encoded, and buffers never shrink. They don't overlap.
    unsafe {
        let bytes = source.as_ptr().add(from_offset);
        bytes.copy_to_nonoverlapping(target.as_ptr().add(to_offset), size);
    }
    if source.is_initialised(from_offset..from_offset + size) {
        target.mark_initialised(to_offset..to_offset + size);
    } else {
        target.copy_initialised(to_offset, source, from_offset, size);
    }
}

fn fill(buffer: &Buffer, range: Range<usize>, value: u8) {
    let memory = buffer.memory();
    // SAFETY: the range was checked when the command was encoded, and buffers never shrink.
    unsafe {
        memory
            .as_ptr()
            .add(range.start)
            .write_bytes(value, range.len())
    };
    memory.mark_initialised(range);
}
