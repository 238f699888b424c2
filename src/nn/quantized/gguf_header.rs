//! The parts of a GGUF header: numbers, strings, metadata values and tensor descriptions.

use super::GgufTensor;
use crate::check;
use candle_core::quantized::gguf_file::Value;
use candle_core::{Error, Result};
use std::io::{Read, Seek, SeekFrom};

/// A reader whose errors say which part is missing when the file ends too early.
pub struct Source<R> {
    reader: R,
    pub name: String,
    pub pos: u64,
    len: u64,
}

/// How deep arrays may be nested. Known files have arrays, but none within another.
const DEPTH: usize = 4;

impl<R: Read + Seek> Source<R> {
    pub fn new(mut reader: R, name: String) -> Result<Self> {
        let ends = reader
            .seek(SeekFrom::End(0))
            .and_then(|len| reader.rewind().map(|()| len));
        let len = ends.map_err(|e| check::error(&name, e))?;
        Ok(Source {
            reader,
            name,
            pos: 0,
            len,
        })
    }

    pub fn error(&self, message: impl std::fmt::Display) -> Error {
        check::error(&self.name, message)
    }

    pub fn seek(&mut self, pos: u64) -> Result<()> {
        let moved = self.reader.seek(SeekFrom::Start(pos));
        moved.map_err(|e| self.error(e))?;
        self.pos = pos;
        Ok(())
    }

    /// The next `len` bytes. The length is checked against the file before anything is allocated.
    pub fn bytes(&mut self, len: u64, what: &str) -> Result<Vec<u8>> {
        let (pos, end) = (self.pos, self.len);
        if len > end.saturating_sub(pos) {
            let message =
                format!("truncated: {what} has {len} bytes from {pos} on, the file ends at {end}");
            return Err(self.error(message));
        }
        let mut bytes = vec![0; len as usize];
        let read = self.reader.read_exact(&mut bytes);
        read.map_err(|e| self.error(format_args!("{what}: {e}")))?;
        self.pos += len;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub fn string(&mut self, what: &str) -> Result<String> {
        let len = self.u64(what)?;
        let bytes = self.bytes(len, what)?;
        // Real files have tokens that are not UTF-8.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn value(&mut self, key: &str) -> Result<Value> {
        let kind = self.u32(key)?;
        self.value_of(kind, key, DEPTH)
    }

    fn value_of(&mut self, kind: u32, key: &str, depth: usize) -> Result<Value> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array(key)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            4 => Value::U32(self.u32(key)?),
            5 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            7 => Value::Bool(self.array::<1>(key)? != [0]),
            8 => Value::String(self.string(key)?),
            9 if depth > 0 => {
                let (kind, len) = (self.u32(key)?, self.u64(key)?);
                let mut values = vec![];
                for _ in 0..len {
                    values.push(self.value_of(kind, key, depth - 1)?);
                }
                Value::Array(values)
            }
            10 => Value::U64(self.u64(key)?),
            11 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            9 => return Err(self.error(format_args!("metadata {key:?} has arrays of arrays"))),
            kind => {
                let message = format!("got metadata {key:?} of type {kind}, expected 0 to 12");
                return Err(self.error(message));
            }
        })
    }

    /// The name and the position of a tensor. Its type is checked when it is read.
    pub fn tensor(&mut self) -> Result<(String, GgufTensor)> {
        let name = self.string("a tensor's name")?;
        let rank = self.u32(&name)?;
        if rank > 8 {
            return Err(self.error(format_args!("got {name} of {rank} dims, expected up to 8")));
        }
        let mut dims = vec![];
        for _ in 0..rank {
            let dim = self.u64(&name)?;
            let Ok(dim) = usize::try_from(dim) else {
                return Err(self.error(format_args!("{name} has a dim of {dim}")));
            };
            dims.push(dim);
        }
        // ggml stores the length of a row first.
        dims.reverse();
        let tensor = GgufTensor {
            dims,
            type_id: self.u32(&name)?,
            offset: self.u64(&name)?,
        };
        Ok((name, tensor))
    }
}
