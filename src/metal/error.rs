//! What can go wrong between a kernel's source and its dispatch.

use std::fmt;

/// An error of the Metal layer.
///
/// Ops return [`candle_core::Error`]; [`MetalError::of`] finds this type inside it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MetalError {
    /// The library compiled, but holds no kernel of this name.
    #[error("kernel `{kernel}` is not in library `{library}`{}", hint(kernel))]
    KernelNotFound {
        kernel: String,
        library: &'static str,
    },
    /// The Metal compiler refused a source; `log` is all that it said.
    #[error("Metal library `{library}` does not compile: {log}")]
    CompilationFailed { library: &'static str, log: String },
    /// The device could not make a pipeline of a compiled kernel.
    #[error("no pipeline for kernel `{kernel}`: {reason}")]
    PipelineCreationFailed { kernel: String, reason: String },
    /// The work does not fit into one dispatch.
    #[error("kernel `{kernel}` cannot be dispatched: {reason}")]
    InvalidDispatch { kernel: String, reason: String },
    /// The GPU did not do what an op has given it.
    #[error("{op}: the command buffer failed: {reason}")]
    CommandBufferFailed { op: &'static str, reason: String },
    /// No Metal device, or a tensor that is not on one.
    #[error("Metal is not available: {0}")]
    NotAvailable(String),
}

impl MetalError {
    /// The `MetalError` inside a Candle error, below any context or backtrace.
    ///
    /// ```no_run
    /// # fn f(result: candle_core::Result<()>) {
    /// use candle_fused::metal::MetalError;
    /// if let Err(error) = result {
    ///     if let Some(MetalError::CompilationFailed { log, .. }) = MetalError::of(&error) {
    ///         eprintln!("{log}");
    ///     }
    /// }
    /// # }
    /// ```
    pub fn of(error: &candle_core::Error) -> Option<&Self> {
        match error {
            candle_core::Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref(),
            candle_core::Error::WithBacktrace { inner, .. }
            | candle_core::Error::Context { inner, .. }
            | candle_core::Error::WithPath { inner, .. } => Self::of(inner),
            _ => None,
        }
    }
}

/// Candle prints a wrapped error by `Debug`, and a compiler's log must keep its lines there.
impl fmt::Debug for MetalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `Error::wrap` would be the obvious choice, but erases the type to `dyn Display`; this variant can be downcast.
impl From<MetalError> for candle_core::Error {
    fn from(error: MetalError) -> Self {
        candle_core::Error::WrappedContext {
            wrapped: Box::new(error),
            context: "candle_fused::metal".to_string(),
        }
        .bt()
    }
}

fn hint(kernel: &str) -> &'static str {
    if kernel.ends_with("_bf16") {
        " (bf16 kernels need Metal Shading Language 3.1: macOS 14 or newer, and a language version of at least 3.1 in `metal::Options`)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_found(kernel: &str) -> MetalError {
        MetalError::KernelNotFound {
            kernel: kernel.to_string(),
            library: "softmax",
        }
    }

    #[test]
    fn survives_the_way_through_candle() {
        let error: candle_core::Error = not_found("softmax_fwd_f32").into();
        let error = error.context("while testing").bt();
        assert!(matches!(
            MetalError::of(&error),
            Some(MetalError::KernelNotFound {
                library: "softmax",
                ..
            })
        ));
        assert!(MetalError::of(&candle_core::Error::Msg(String::new())).is_none());
    }

    #[test]
    fn messages_say_what_to_do() {
        assert!(not_found("softmax_fwd_bf16")
            .to_string()
            .contains("macOS 14"));
        assert!(!not_found("softmax_fwd_f32").to_string().contains("macOS"));
        let log = "program_source:3:1: error: a\nprogram_source:4:1: error: b".to_string();
        let error: candle_core::Error = MetalError::CompilationFailed {
            library: "glu",
            log: log.clone(),
        }
        .into();
        assert!(error.to_string().contains(&log), "{error}");
    }
}
