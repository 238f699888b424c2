//! The encoder of copies.

use super::Recording;
use crate::buffer::Buffer;
use crate::command::{Command, PassKind};
use crate::command_buffer::CommandBuffer;
use crate::finding::{kind, Finding};
use crate::order::Fence;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `MTLBlitCommandEncoder`
pub struct BlitEncoder {
    recording: Mutex<Recording>,
}

impl BlitEncoder {
    pub(crate) fn new(buffer: &Arc<CommandBuffer>, number: u64) -> Self {
        Self {
            recording: Mutex::new(Recording::new(buffer, number, PassKind::Serial)),
        }
    }

    pub fn copy(
        &self,
        from: &Arc<Buffer>,
        from_offset: usize,
        to: &Arc<Buffer>,
        to_offset: usize,
        size: usize,
    ) {
        let mut recording = self.recording();
        if !recording.permits("copyFromBuffer") {
            return;
        }
        if size == 0 {
            recording.refuse(Finding::new(kind::EMPTY, "copyFromBuffer of 0 bytes").note());
            return;
        }
        let checks = [
            from.check_range("copyFromBuffer, source", from_offset, size),
            to.check_range("copyFromBuffer, destination", to_offset, size),
        ];
        for check in checks {
            if let Err(finding) = check {
                recording.refuse(*finding);
                return;
            }
        }
        let overlap = from_offset < to_offset + size && to_offset < from_offset + size;
        if Arc::ptr_eq(from, to) && overlap {
            let detail = format!("copyFromBuffer: source and destination overlap in {from}");
            recording.refuse(Finding::new(kind::BOUNDS, detail).at_offset(to_offset));
            return;
        }
        let (from, to) = (from.clone(), to.clone());
        recording.commands.push(Command::Copy {
            from,
            from_offset,
            to,
            to_offset,
            size,
        });
    }

    pub fn fill(&self, buffer: &Arc<Buffer>, range: Range<usize>, value: u8) {
        let mut recording = self.recording();
        if !recording.permits("fillBuffer") {
            return;
        }
        if range.is_empty() {
            recording.refuse(Finding::new(kind::EMPTY, "fillBuffer of 0 bytes").note());
            return;
        }
        if let Err(finding) = buffer.check_range("fillBuffer", range.start, range.len()) {
            recording.refuse(*finding);
            return;
        }
        recording.commands.push(Command::Fill {
            buffer: buffer.clone(),
            range,
            value,
        });
    }

    pub fn update_fence(&self, fence: &Arc<Fence>) {
        self.recording().update_fence(fence);
    }

    pub fn wait_for_fence(&self, fence: &Arc<Fence>) {
        self.recording().wait_for_fence(fence);
    }

    pub fn push_debug_group(&self) {
        self.recording().push_debug_group();
    }

    pub fn pop_debug_group(&self) {
        self.recording().pop_debug_group();
    }

    pub fn end_encoding(&self) {
        self.recording().end();
    }

    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
