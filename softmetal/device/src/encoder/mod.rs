//! Encoders: they check what they are told and write it into a command buffer.

mod blit;
mod compute;

pub use blit::BlitEncoder;
pub use compute::ComputeEncoder;

use crate::command::{Command, Pass, PassKind};
use crate::command_buffer::CommandBuffer;
use crate::finding::{kind, Finding};
use crate::order::Fence;
use std::sync::Arc;

/// What all encoders have.
struct Recording {
    buffer: Arc<CommandBuffer>,
    number: u64,
    kind: PassKind,
    commands: Vec<Command>,
    updated: Vec<*const Fence>,
    debug_groups: usize,
    ended: bool,
}

// SAFETY: the addresses of fences are only compared.
unsafe impl Send for Recording {}

impl Recording {
    fn new(buffer: &Arc<CommandBuffer>, number: u64, kind: PassKind) -> Self {
        Self {
            buffer: buffer.clone(),
            number,
            kind,
            commands: Vec::new(),
            updated: Vec::new(),
            debug_groups: 0,
            ended: false,
        }
    }

    /// Whether `call` may be made now; if not, that is reported.
    fn permits(&self, call: &str) -> bool {
        let problem = if self.ended {
            format!("{call} on an encoder that has ended")
        } else if self.buffer.is_committed() {
            format!("{call} on an encoder whose command buffer is committed")
        } else {
            return true;
        };
        self.refuse(Finding::new(kind::STATE, problem));
        false
    }

    fn refuse(&self, finding: Finding) {
        self.buffer.misuse(finding);
    }

    fn update_fence(&mut self, fence: &Arc<Fence>) {
        if self.permits("updateFence") {
            self.updated.push(Arc::as_ptr(fence));
            self.commands.push(Command::Update(fence.clone()));
        }
    }

    fn wait_for_fence(&mut self, fence: &Arc<Fence>) {
        if !self.permits("waitForFence") {
            return;
        }
        if self.updated.contains(&Arc::as_ptr(fence)) {
            let detail = "waitForFence for a fence that the same encoder has updated: updates may be put off to the \
                          end of an encoder";
            self.refuse(Finding::new(kind::STATE, detail));
            return;
        }
        self.commands.push(Command::Wait(fence.clone()));
    }

    fn push_debug_group(&mut self) {
        if self.permits("pushDebugGroup") {
            self.debug_groups += 1;
        }
    }

    fn pop_debug_group(&mut self) {
        if !self.permits("popDebugGroup") {
            return;
        }
        match self.debug_groups.checked_sub(1) {
            Some(left) => self.debug_groups = left,
            None => self.refuse(Finding::new(
                kind::STATE,
                "popDebugGroup without pushDebugGroup",
            )),
        }
    }

    fn end(&mut self) {
        if !self.permits("endEncoding") {
            return;
        }
        self.ended = true;
        let commands = std::mem::take(&mut self.commands);
        self.buffer.close(
            self.number,
            Pass {
                kind: self.kind,
                commands,
            },
        );
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.ended && !self.buffer.is_committed() {
            let detail = "an encoder was released without endEncoding";
            self.refuse(Finding::new(kind::STATE, detail));
        }
    }
}
