//! A device with a few kernels, and what tests do with it.

use softmetal::{
    Buffer, BufferOptions, CommandBuffer, CompileOptions, ComputeEncoder, Device, Library,
    Pipeline, Queue, Settings, Status,
};
use std::sync::{Arc, OnceLock};

pub const SOURCE: &str = r#"
#include <metal_stdlib>
using namespace metal;

struct Params { uint count; float factor; uint more[2]; };

kernel void scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  constant Params& params [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < params.count) y[i] = x[i] * params.factor;
}

kernel void wide(device const float4* x [[buffer(0)]], device float4* y [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
    y[i] = x[i];
}

kernel void shared(device float* y [[buffer(0)]], threadgroup float* scratch [[threadgroup(0)]],
                   uint i [[thread_index_in_threadgroup]]) {
    scratch[i] = float(i);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = scratch[31 - i];
}

kernel void large(device float* y [[buffer(0)]], threadgroup float* more [[threadgroup(0)]],
                  uint i [[thread_index_in_threadgroup]]) {
    threadgroup float scratch[4096];
    scratch[i] = float(i);
    more[i] = 1.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = scratch[i] + more[i];
}

[[max_total_threads_per_threadgroup(64)]] kernel void narrow(device float* y [[buffer(0)]],
                                                             uint i [[thread_position_in_grid]]) {
    y[i] = 1.0f;
}

kernel void constants(constant half* x [[buffer(0)]], device half* y [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
    y[i] = x[i];
}

constant bool twice [[function_constant(0)]];
constant float bias [[function_constant(1)]];

kernel void specialised(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = (twice ? 2.0f : 1.0f) * float(i) + bias;
}
"#;

/// A device of its own for each test, so that findings don't mix.
pub struct Bench {
    pub device: Arc<Device>,
    pub queue: Arc<Queue>,
    library: OnceLock<Arc<Library>>,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(Settings::checked())
    }

    pub fn with(settings: Settings) -> Self {
        let device = Device::new(settings);
        let queue = Queue::new(&device);
        Self {
            device,
            queue,
            library: OnceLock::new(),
        }
    }

    pub fn library(&self) -> &Arc<Library> {
        self.library.get_or_init(|| {
            Library::new(&self.device, SOURCE, &CompileOptions::default()).expect("a library")
        })
    }

    pub fn pipeline(&self, name: &str) -> Arc<Pipeline> {
        Pipeline::new(&self.library().function(name).expect("a function")).expect("a pipeline")
    }

    pub fn floats(&self, values: &[f32]) -> Arc<Buffer> {
        self.floats_with(values, BufferOptions::SHARED)
    }

    pub fn floats_with(&self, values: &[f32], options: BufferOptions) -> Arc<Buffer> {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Buffer::with_bytes(&self.device, &bytes, options).expect("a buffer")
    }

    pub fn empty(&self, floats: usize, options: BufferOptions) -> Arc<Buffer> {
        Buffer::new(&self.device, 4 * floats, options).expect("a buffer")
    }

    pub fn command_buffer(&self) -> Arc<CommandBuffer> {
        self.queue.command_buffer().expect("a command buffer")
    }

    /// Encodes `y = x · factor` for `count` elements.
    pub fn scale(
        &self,
        encoder: &ComputeEncoder,
        x: &Arc<Buffer>,
        y: &Arc<Buffer>,
        count: u32,
        factor: f32,
    ) {
        encoder.set_pipeline(&self.pipeline("scale"));
        encoder.set_buffer(Some(x), 0, 0);
        encoder.set_buffer(Some(y), 0, 1);
        encoder.set_bytes(&params(count, factor), 2);
        encoder.dispatch_threads([count as usize, 1, 1], [32, 1, 1]);
    }

    /// Commits and waits; the error's text, or nothing.
    pub fn finish(&self, buffer: &Arc<CommandBuffer>) -> Result<(), String> {
        buffer.commit();
        buffer.wait_until_completed();
        match buffer.status() {
            Status::Completed => Ok(()),
            _ => Err(buffer.error().expect("an error").to_string()),
        }
    }

    /// Runs what `encode` encodes in one serial encoder.
    pub fn run(&self, encode: impl FnOnce(&ComputeEncoder)) -> Result<(), String> {
        let buffer = self.command_buffer();
        let encoder = buffer.compute_encoder(false);
        encode(&encoder);
        encoder.end_encoding();
        self.finish(&buffer)
    }

    /// The kinds of all findings.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.device
            .findings()
            .iter()
            .map(|finding| finding.kind)
            .collect()
    }
}

pub fn params(count: u32, factor: f32) -> Vec<u8> {
    let mut bytes = count.to_le_bytes().to_vec();
    bytes.extend(factor.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// The values of a buffer that nobody uses any more.
pub fn values(buffer: &Buffer) -> Vec<f32> {
    let count = buffer.length() / 4;
    // SAFETY: the buffer has that many floats, and its command buffers have completed.
    unsafe { std::slice::from_raw_parts(buffer.contents().cast::<f32>(), count) }.to_vec()
}

/// Asserts that something failed with a message that has all the words.
#[track_caller]
pub fn fails(result: Result<(), String>, words: &[&str]) {
    let text = result.expect_err("should have failed");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}
