//! `SOFTMETAL_TRACE`: the work of every dispatch as a JSON array.

use crate::counters::Record;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// A file that holds a complete JSON array after every record, so that it is of use however the process ends.
pub(crate) struct Trace {
    file: File,
    empty: bool,
}

const END: &[u8] = b"\n]\n";

impl Trace {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut file = File::create(path)?;
        file.write_all(b"[")?;
        file.write_all(END)?;
        Ok(Self { file, empty: true })
    }

    pub(crate) fn write(&mut self, record: &Record) -> io::Result<()> {
        self.file.seek(SeekFrom::End(-(END.len() as i64)))?;
        let mut text = if self.empty { "\n" } else { ",\n" }.to_string();
        text += &json(record);
        self.empty = false;
        self.file.write_all(text.as_bytes())?;
        self.file.write_all(END)
    }
}

fn json(record: &Record) -> String {
    let Record {
        queue,
        command_buffer,
        groups,
        grid,
        threads_per_group,
        counters,
        ..
    } = record;
    let counters = [
        ("threads", counters.threads),
        ("threadgroups", counters.groups),
        ("device_read", counters.device_read),
        ("device_written", counters.device_written),
        ("device_read_unique", counters.device_read_unique),
        ("device_written_unique", counters.device_written_unique),
        ("threadgroup_read", counters.threadgroup_read),
        ("threadgroup_written", counters.threadgroup_written),
        ("barriers", counters.barriers),
        ("gathers", counters.gathers),
    ]
    .map(|(name, value)| format!("\"{name}\":{value}"))
    .join(",");
    let kernel = escape(&record.kernel);
    format!(
        "{{\"kernel\":\"{kernel}\",\"queue\":{queue},\"command_buffer\":{command_buffer},\"groups\":{groups:?},\
         \"grid\":{grid:?},\"threads_per_group\":{threads_per_group:?},{counters}}}"
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped += &format!("\\u{:04x}", c as u32),
            c => escaped.push(c),
        }
    }
    escaped
}
