//! A reader of GGUF files. Unlike Candle's own it reads the ternary types, and it accepts files with types it can't read.

use super::gguf_header::Source;
use super::gguf_ternary::{Ternary, BLOCK};
use crate::check;
use crate::quant::Quantized;
use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{ggml_file, GgmlDType, QTensor};
use candle_core::{DType, Device, Error, Result, Tensor};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

/// An open GGUF file: its metadata, and its tensors, which are read one by one on demand.
///
/// ```no_run
/// use candle_core::Device;
/// use candle_fused::nn::quantized::{Gguf, PackedBitLinear, QuantLinear};
///
/// let mut file = Gguf::open("bitnet-tq2_0.gguf")?;
/// let weight = file.quantized("blk.0.attn_q.weight", &Device::Cpu)?;
/// // With one scale for all blocks, as BitNet has it, products are of integers.
/// let layer = PackedBitLinear::from_groups(&weight, None, None)?;
/// // With any scales, of floats.
/// let layer = QuantLinear::new(weight, None)?;
/// let norm = file.tensor("blk.0.attn_norm.weight", &Device::Cpu)?;
/// # candle_core::Result::Ok(())
/// ```
pub struct Gguf<R> {
    source: Source<R>,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, GgufTensor>,
    /// Where the data begins.
    data: u64,
}

/// Where a tensor lies in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// In Candle's order: the length of a row last.
    pub dims: Vec<usize>,
    /// ggml's number of the type.
    pub type_id: u32,
    /// The position in bytes from the start of the file's data.
    pub offset: u64,
}

/// The types that can be read.
enum Kind {
    Ternary(Ternary),
    Ggml(GgmlDType),
}

impl GgufTensor {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::Ggml(match self.type_id {
            34 => return Some(Kind::Ternary(Ternary::Tq1)),
            35 => return Some(Kind::Ternary(Ternary::Tq2)),
            0 => GgmlDType::F32,
            1 => GgmlDType::F16,
            2 => GgmlDType::Q4_0,
            3 => GgmlDType::Q4_1,
            6 => GgmlDType::Q5_0,
            7 => GgmlDType::Q5_1,
            8 => GgmlDType::Q8_0,
            10 => GgmlDType::Q2K,
            11 => GgmlDType::Q3K,
            12 => GgmlDType::Q4K,
            13 => GgmlDType::Q5K,
            14 => GgmlDType::Q6K,
            30 => GgmlDType::BF16,
            _ => return None,
        }))
    }
}

impl Gguf<BufReader<File>> {
    /// Reads the header of a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        let file = File::open(path).map_err(|e| check::error(&name, e))?;
        Self::named(BufReader::new(file), name)
    }
}

impl<R: Read + Seek> Gguf<R> {
    /// Reads the header from a file that is open, or in memory.
    pub fn new(reader: R) -> Result<Self> {
        Self::named(reader, "gguf".to_string())
    }

    fn named(reader: R, name: String) -> Result<Self> {
        let mut source = Source::new(reader, name)?;
        let magic = source.array("the magic")?;
        if &magic != b"GGUF" {
            return Err(source.error(format_args!("got the magic {magic:?}, expected \"GGUF\"")));
        }
        let version = u32::from_le_bytes(source.array("the version")?);
        if !matches!(version, 2 | 3) {
            let message = format!("got version {version}, expected 2 or 3 (little-endian)");
            return Err(source.error(message));
        }
        let count = source.u64("the number of tensors")?;
        let pairs = source.u64("the number of metadata")?;
        let mut metadata = BTreeMap::new();
        for _ in 0..pairs {
            let key = source.string("a metadata key")?;
            let value = source.value(&key)?;
            metadata.insert(key, value);
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..count {
            let (name, tensor) = source.tensor()?;
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(source.error(format_args!("tensor {name:?} is there twice")));
            }
        }
        let align = match metadata.get("general.alignment") {
            None => 32,
            Some(&Value::U32(align)) if align.is_power_of_two() => u64::from(align),
            Some(other) => {
                let message =
                    format!("got general.alignment {other:?}, expected a power of 2 as u32");
                return Err(source.error(message));
            }
        };
        Ok(Gguf {
            data: source.pos.next_multiple_of(align),
            source,
            metadata,
            tensors,
        })
    }

    /// The key-value pairs of the header.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// All tensors by name, including those of types that can't be read.
    pub fn tensors(&self) -> &BTreeMap<String, GgufTensor> {
        &self.tensors
    }

    /// A tensor of type TQ1_0 or TQ2_0, with a scale for each 256 numbers.
    pub fn quantized(&mut self, name: &str, device: &Device) -> Result<Quantized> {
        let tensor = self.find(name)?;
        match tensor.kind() {
            Some(Kind::Ternary(kind)) => self.ternary(name, &tensor, kind, device),
            _ => Err(self.unsupported(name, &tensor, "34 (TQ1_0) and 35 (TQ2_0)")),
        }
    }

    /// A tensor of one of the types that Candle has.
    pub fn qtensor(&mut self, name: &str, device: &Device) -> Result<QTensor> {
        let tensor = self.find(name)?;
        match tensor.kind() {
            Some(Kind::Ggml(dtype)) => {
                let data = self.bytes(name, &tensor, dtype.block_size(), dtype.type_size())?;
                // Candle would make a slice of blocks from a null pointer.
                if data.is_empty() {
                    let message = format!("got no elements of {name}, expected 1 or more");
                    return Err(self.source.error(message));
                }
                let read = ggml_file::qtensor_from_ggml(dtype, &data, tensor.dims, device);
                read.map_err(|e| self.source.error(format_args!("{name}: {e}")))
            }
            _ => Err(self.unsupported(name, &tensor, "Candle's")),
        }
    }

    /// A tensor as floats: in its own dtype if it is one of floats, otherwise in f32.
    pub fn tensor(&mut self, name: &str, device: &Device) -> Result<Tensor> {
        let tensor = self.find(name)?;
        let dtype = match tensor.kind() {
            Some(Kind::Ggml(GgmlDType::F32)) => DType::F32,
            Some(Kind::Ggml(GgmlDType::F16)) => DType::F16,
            Some(Kind::Ggml(GgmlDType::BF16)) => DType::BF16,
            Some(Kind::Ggml(_)) => return self.qtensor(name, device)?.dequantize(device),
            Some(Kind::Ternary(_)) => return self.quantized(name, device)?.dequantize(DType::F32),
            None => return Err(self.unsupported(name, &tensor, "34, 35 and Candle's")),
        };
        let data = self.bytes(name, &tensor, 1, dtype.size_in_bytes())?;
        let read = Tensor::from_raw_buffer(&data, dtype, &tensor.dims, device);
        read.map_err(|e| self.source.error(format_args!("{name}: {e}")))
    }

    fn ternary(
        &mut self,
        name: &str,
        tensor: &GgufTensor,
        kind: Ternary,
        device: &Device,
    ) -> Result<Quantized> {
        let data = self.bytes(name, tensor, BLOCK, kind.bytes())?;
        let op = format!("{}: {name}", self.source.name);
        kind.read(&op, &data, &tensor.dims, device)
    }

    fn find(&self, name: &str) -> Result<GgufTensor> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => Err(self
                .source
                .error(format_args!("there is no tensor {name:?}"))),
        }
    }

    fn unsupported(&self, name: &str, tensor: &GgufTensor, expected: &str) -> Error {
        let id = tensor.type_id;
        self.source.error(format_args!(
            "got {name} of type {id}, expected the types {expected}"
        ))
    }

    /// A tensor's data: rows of whole blocks.
    fn bytes(
        &mut self,
        name: &str,
        tensor: &GgufTensor,
        block: usize,
        size: usize,
    ) -> Result<Vec<u8>> {
        let dims = &tensor.dims;
        let cols = dims.last().copied().unwrap_or(1);
        if cols % block != 0 {
            let message =
                format!("got {name} of shape {dims:?}, expected rows of whole blocks of {block}");
            return Err(self.source.error(message));
        }
        // Candle multiplies all dims for the strides, so the product without the zeros must not overflow either.
        let product = |least: usize| {
            let mut dims = dims.iter().map(|&dim| dim.max(least));
            dims.try_fold(1usize, usize::checked_mul)
        };
        let count = product(1).and_then(|_| product(0));
        let len = count.and_then(|count| (count / block).checked_mul(size));
        let start = self.data.checked_add(tensor.offset);
        let (Some(len), Some(start)) = (len, start) else {
            let message = format!(
                "{name} with shape {dims:?} at {} is beyond the file",
                tensor.offset
            );
            return Err(self.source.error(message));
        };
        self.source.seek(start)?;
        self.source.bytes(len as u64, name)
    }
}
