//! What the ops refuse: always an error, never a panic, and one that says why.

use crate::cases::{self, Reject};
use candle_core::Device;
use std::panic::{catch_unwind, AssertUnwindSafe};

#[test]
fn refused_inputs_are_errors_that_say_why() {
    let wrong: Vec<String> = cases::rejects().iter().filter_map(problem).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn problem(reject: &Reject) -> Option<String> {
    let Reject {
        op,
        what,
        call,
        says,
    } = reject;
    let outcome = catch_unwind(AssertUnwindSafe(|| call(&Device::Cpu)));
    let text = match outcome {
        Err(_) => return Some(format!("{op}: panics on {what}")),
        Ok(Ok(())) => return Some(format!("{op}: accepts {what}")),
        Ok(Err(error)) => error.to_string(),
    };
    let missing = [op].into_iter().chain(*says).find(|s| !text.contains(**s));
    missing.map(|s| format!("{op}: the error on {what} lacks {s:?}: {text}"))
}
