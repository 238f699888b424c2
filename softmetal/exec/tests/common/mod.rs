//! Compiles MSL and runs it on buffers of numbers.
#![allow(dead_code)]

use std::sync::Arc;

use softmetal_exec::{run, Binding, Buffer, Config, Dispatch, Grid, Initial, Report, Schedule};
use softmetal_msl::{Library, Options};

/// Plain old numbers that buffers hold.
pub trait Number: Copy + Default {}
impl Number for f32 {}
impl Number for u32 {}
impl Number for i32 {}
impl Number for u16 {}
impl Number for u8 {}

pub fn bytes_of<T: Number>(values: &[T]) -> Vec<u8> {
    // SAFETY: numbers have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }.to_vec()
}

pub fn buffer<T: Number>(values: &[T]) -> Arc<Buffer> {
    Buffer::new(size_of_val(values), Initial::Bytes(&bytes_of(values)))
}

pub fn fresh<T: Number>(count: usize) -> Arc<Buffer> {
    Buffer::new(count * size_of::<T>(), Initial::Poison)
}

pub fn values<T: Number>(buffer: &Buffer) -> Vec<T> {
    let bytes = buffer.to_vec();
    let mut values = vec![T::default(); bytes.len() / size_of::<T>()];
    // SAFETY: any bytes are a number, and there is room for them.
    unsafe {
        values
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), values.len() * size_of::<T>())
    };
    values
}

pub fn at(buffer: &Arc<Buffer>, offset: usize) -> Binding {
    Binding::Buffer {
        buffer: buffer.clone(),
        offset,
    }
}

pub fn bind(buffer: &Arc<Buffer>) -> Binding {
    at(buffer, 0)
}

pub fn bytes<T: Number>(values: &[T]) -> Binding {
    Binding::Bytes(bytes_of(values))
}

/// A dispatch of kernel `name` of `source`, with nothing bound yet.
pub fn dispatch(source: &str, name: &str) -> Dispatch {
    let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{source}");
    let library = Library::new(&source, &Options::default()).unwrap_or_else(|why| panic!("{why}"));
    let function = library
        .function(name, &[])
        .unwrap_or_else(|why| panic!("{why}"))
        .unwrap_or_else(|| panic!("no kernel {name}"));
    Dispatch {
        function,
        buffers: Vec::new(),
        threadgroup_lengths: Vec::new(),
        grid: Grid::Groups([1, 1, 1]),
        group: [32, 1, 1],
    }
}

pub const SCHEDULES: [Schedule; 4] = [
    Schedule::Ascending,
    Schedule::Descending,
    Schedule::Random(1),
    Schedule::Random(99),
];

pub fn checked(schedule: Schedule) -> Config {
    Config {
        check: true,
        schedule,
        ..Config::default()
    }
}

/// Runs without a finding of any kind.
pub fn run_clean(dispatch: &Dispatch, config: &Config) -> Report {
    let report = run(dispatch, config);
    for finding in &report.findings {
        eprintln!("{finding}");
    }
    assert!(
        report.findings.is_empty(),
        "{} findings",
        report.findings.len()
    );
    report
}
