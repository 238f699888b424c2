//! The execution headers: what they compute, what they tell the runtime, and what they refuse.

#[path = "headers/compiler.rs"]
mod compiler;
#[path = "headers/harness.rs"]
mod harness;
#[path = "headers/instrumentation.rs"]
mod instrumentation;
#[path = "headers/lanes.rs"]
mod lanes;
#[path = "headers/mathematics.rs"]
mod mathematics;
#[path = "headers/refusals.rs"]
mod refusals;
#[path = "headers/values.rs"]
mod values;
