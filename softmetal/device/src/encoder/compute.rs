//! The encoder of dispatches.

use super::Recording;
use crate::buffer::Buffer;
use crate::command::{Argument, Command, Dispatch, PassKind};
use crate::command_buffer::CommandBuffer;
use crate::finding::{kind, Finding};
use crate::library::Pipeline;
use crate::limits;
use crate::order::Fence;
use crate::validate;
use softmetal_exec::Grid;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `MTLComputeCommandEncoder`
pub struct ComputeEncoder {
    state: Mutex<State>,
}

struct State {
    recording: Recording,
    pipeline: Option<Arc<Pipeline>>,
    arguments: Vec<Argument>,
    threadgroup_lengths: Vec<usize>,
}

impl ComputeEncoder {
    pub(crate) fn new(buffer: &Arc<CommandBuffer>, number: u64, kind: PassKind) -> Self {
        Self {
            state: Mutex::new(State {
                recording: Recording::new(buffer, number, kind),
                pipeline: None,
                arguments: vec![Argument::None; limits::ARGUMENTS],
                threadgroup_lengths: vec![0; limits::ARGUMENTS],
            }),
        }
    }

    pub fn set_pipeline(&self, pipeline: &Arc<Pipeline>) {
        let mut state = self.state();
        if state.recording.permits("setComputePipelineState") {
            state.pipeline = Some(pipeline.clone());
        }
    }

    pub fn set_bytes(&self, bytes: &[u8], index: usize) {
        let mut state = self.state();
        if !state.permits("setBytes", index) {
            return;
        }
        if bytes.len() >= limits::BYTES {
            let detail = format!(
                "setBytes of {} bytes at index {index}: they must be fewer than {}",
                bytes.len(),
                limits::BYTES
            );
            state.recording.refuse(Finding::new(kind::LIMIT, detail));
        }
        if bytes.is_empty() {
            let detail = format!("setBytes of 0 bytes at index {index}");
            state
                .recording
                .refuse(Finding::new(kind::EMPTY, detail).note());
        }
        state.arguments[index] = Argument::Bytes(bytes.into());
    }

    pub fn set_buffer(&self, buffer: Option<&Arc<Buffer>>, offset: usize, index: usize) {
        let mut state = self.state();
        if !state.permits("setBuffer", index) {
            return;
        }
        let Some(buffer) = buffer else {
            state.arguments[index] = Argument::None;
            return;
        };
        state.bind("setBuffer", buffer.clone(), offset, index);
    }

    /// Moves the start of a buffer that is bound already.
    pub fn set_buffer_offset(&self, offset: usize, index: usize) {
        let mut state = self.state();
        if !state.permits("setBufferOffset", index) {
            return;
        }
        match &state.arguments[index] {
            Argument::Buffer { buffer, .. } => {
                let buffer = buffer.clone();
                state.bind("setBufferOffset", buffer, offset, index);
            }
            _ => {
                let detail = format!("setBufferOffset at index {index}, where no buffer is bound");
                state.recording.refuse(Finding::new(kind::UNBOUND, detail));
            }
        }
    }

    pub fn set_threadgroup_memory_length(&self, length: usize, index: usize) {
        let mut state = self.state();
        if !state.permits("setThreadgroupMemoryLength", index) {
            return;
        }
        if !length.is_multiple_of(limits::THREADGROUP_MEMORY_ALIGNMENT) {
            let detail = format!(
                "setThreadgroupMemoryLength of {length} bytes at index {index}: not a multiple of {}",
                limits::THREADGROUP_MEMORY_ALIGNMENT
            );
            state.recording.refuse(Finding::new(kind::LIMIT, detail));
        }
        state.threadgroup_lengths[index] = length;
    }

    pub fn dispatch_threads(&self, threads: [usize; 3], group: [usize; 3]) {
        self.dispatch("dispatchThreads", Grid::Threads(threads), group);
    }

    pub fn dispatch_threadgroups(&self, groups: [usize; 3], group: [usize; 3]) {
        self.dispatch("dispatchThreadgroups", Grid::Groups(groups), group);
    }

    fn dispatch(&self, call: &str, grid: Grid, group: [usize; 3]) {
        let mut state = self.state();
        if !state.recording.permits(call) {
            return;
        }
        let Some(pipeline) = state.pipeline.clone() else {
            let detail = format!("{call} without a pipeline");
            state.recording.refuse(Finding::new(kind::STATE, detail));
            return;
        };
        let lengths = state.threadgroup_lengths.iter().copied().enumerate();
        let buffers = state.arguments.iter().filter_map(Argument::buffer);
        let dispatch = Dispatch {
            used: buffers
                .filter_map(|buffer| Some((buffer.id(), buffer.used()?)))
                .collect(),
            arguments: state.arguments.clone(),
            threadgroup_lengths: lengths
                .filter(|(_, length)| *length > 0)
                .map(|(index, length)| (index as u32, length))
                .collect(),
            pipeline,
            grid,
            group,
        };
        let mut findings = validate::dispatch(&dispatch);
        let notes = &state.recording.buffer.device().settings.notes;
        for finding in &mut findings {
            notes.judge(finding, Some(dispatch.pipeline.file()));
        }
        let fails = findings.iter().any(Finding::is_error);
        for finding in findings {
            state.recording.refuse(finding);
        }
        if !fails {
            state
                .recording
                .commands
                .push(Command::Dispatch(Box::new(dispatch)));
        }
    }

    /// `memoryBarrierWithScope` for buffers.
    pub fn barrier(&self) {
        let mut state = self.state();
        if state.recording.permits("memoryBarrierWithScope") {
            state.recording.commands.push(Command::Barrier);
        }
    }

    /// `memoryBarrierWithResources`
    pub fn barrier_for(&self, buffers: &[Arc<Buffer>]) {
        let mut state = self.state();
        if state.recording.permits("memoryBarrierWithResources") {
            state
                .recording
                .commands
                .push(Command::BarrierFor(buffers.to_vec()));
        }
    }

    pub fn update_fence(&self, fence: &Arc<Fence>) {
        self.state().recording.update_fence(fence);
    }

    pub fn wait_for_fence(&self, fence: &Arc<Fence>) {
        self.state().recording.wait_for_fence(fence);
    }

    pub fn push_debug_group(&self) {
        self.state().recording.push_debug_group();
    }

    pub fn pop_debug_group(&self) {
        self.state().recording.pop_debug_group();
    }

    pub fn end_encoding(&self) {
        self.state().recording.end();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn permits(&self, call: &str, index: usize) -> bool {
        if !self.recording.permits(call) {
            return false;
        }
        let there = index < limits::ARGUMENTS;
        if !there {
            let detail = format!(
                "{call} at index {index}: the last one is {}",
                limits::ARGUMENTS - 1
            );
            self.recording.refuse(Finding::new(kind::LIMIT, detail));
        }
        there
    }

    fn bind(&mut self, call: &str, buffer: Arc<Buffer>, offset: usize, index: usize) {
        if offset > buffer.length() {
            let detail = format!("{call} at index {index}: offset {offset} is beyond {buffer}");
            self.recording
                .refuse(Finding::new(kind::BOUNDS, detail).at_offset(offset));
            return;
        }
        self.arguments[index] = Argument::Buffer { buffer, offset };
    }
}
