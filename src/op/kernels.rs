//! Macros for what is alike in all ops: their names, and their kernels for both devices.

/// Stamps an op's methods for the CPU and for Metal from one expression, in which `device` is the module `cpu` or `metal`
/// that is in scope:
///
/// ```text
/// kernels!(self, args => device::forward(*self, args[0]));                        Op::{cpu, metal}
/// kernels!(in place: self, x, rest => device::forward_inplace(*self, x, rest[0])); InplaceOp::{cpu_inplace, metal_inplace}
/// kernels!(many: self, args => device::add(self.0, args));                        MultiOp::{cpu, metal}
/// ```
macro_rules! kernels {
    ($this:ident, $args:ident => $call:expr) => {
        $crate::op::kernels!(@stamp $this ($args: Args) $call,
            cpu -> $crate::op::OpResult<candle_core::CpuStorage>,
            metal -> $crate::op::OpResult<candle_core::MetalStorage>);
    };
    (many: $this:ident, $args:ident => $call:expr) => {
        $crate::op::kernels!(@stamp $this ($args: Args) $call,
            cpu -> $crate::op::OpResults<candle_core::CpuStorage>,
            metal -> $crate::op::OpResults<candle_core::MetalStorage>);
    };
    (in place: $this:ident, $x:ident, $rest:tt => $call:expr) => {
        $crate::op::kernels!(@stamp $this ($x: ArgMut, $rest: Args) $call,
            cpu_inplace -> candle_core::Result<()>,
            metal_inplace -> candle_core::Result<()>);
    };
    (@stamp $this:ident ($($arg:tt: $kind:ident),+) $call:expr, $cpu:ident -> $cpu_result:ty, $metal:ident -> $metal_result:ty) => {
        fn $cpu(&$this, $($arg: $crate::op::$kind<candle_core::CpuStorage>),+) -> $cpu_result {
            use self::cpu as device;
            $call
        }
        #[cfg(feature = "metal")]
        fn $metal(&$this, $($arg: $crate::op::$kind<candle_core::MetalStorage>),+) -> $metal_result {
            use self::metal as device;
            $call
        }
    };
}
pub(crate) use kernels;

/// The name of an [`Op`](crate::op::Op) and of its arguments: `signature!("glu_bwd"(gate, up, grad_out));`.
macro_rules! signature {
    ($name:tt($($arg:ident),*)) => {
        const NAME: &'static str = $name;
        const ARGS: &'static [&'static str] = &[$(stringify!($arg)),*];
    };
}
pub(crate) use signature;
