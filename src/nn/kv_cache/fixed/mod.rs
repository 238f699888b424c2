//! A cache of fixed capacity, for serving.

mod attend;

use super::same_tokens;
use super::store::Store;
use crate::check::{self, ensure};
use crate::ops::kv_append::Place;
use crate::quant::{KvCodes, Levels, ScaleScope, Scheme};
use candle_core::{DType, Device, Result, Tensor};

/// What a [`FixedKvCache`] holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedKvConfig {
    /// Sequences.
    pub batch: usize,
    /// Heads of keys and values.
    pub heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Slots of each sequence.
    pub capacity: usize,
    /// How many tokens a token sees, itself included. Older ones give their slots up. `None`: all of them, and nothing is
    /// ever given up.
    pub window: Option<usize>,
    /// How keys and values are quantised, if they are.
    pub scheme: Option<Scheme>,
}

impl FixedKvConfig {
    pub fn new(batch: usize, heads: usize, head_dim: usize, capacity: usize) -> Self {
        FixedKvConfig {
            batch,
            heads,
            key_dim: head_dim,
            value_dim: head_dim,
            capacity,
            window: None,
            scheme: None,
        }
    }

    /// Values of another head dim than the keys'.
    pub fn with_value_dim(self, value_dim: usize) -> Self {
        FixedKvConfig { value_dim, ..self }
    }

    /// A sliding window. It needs `window + n − 1` slots for appends of n tokens.
    pub fn with_window(self, window: usize) -> Self {
        FixedKvConfig {
            window: Some(window),
            ..self
        }
    }

    /// Keys and values as bytes, with a scale for each group of numbers: 3.8 times smaller than f32 with groups of 64.
    pub fn with_int8(self, group: usize) -> Self {
        self.with_scheme(Scheme {
            eps: 1e-30,
            ..Scheme::new(Levels::Int8, ScaleScope::Group(group))
        })
    }

    /// Keys and values in 4 bits, with a scale and an offset for each group of numbers.
    pub fn with_int4(self, group: usize) -> Self {
        self.with_scheme(Scheme::mlx(4, group))
    }

    /// Keys and values by any scheme with scales for rows or groups.
    pub fn with_scheme(self, scheme: Scheme) -> Self {
        FixedKvConfig {
            scheme: Some(scheme),
            ..self
        }
    }
}

/// Keys and values in memory that is allocated once, `[batch, heads, capacity, head_dim]`, for the sequences of a batch, each
/// with a length of its own. A layer has one.
///
/// An append writes the new tokens and nothing else. One that there are no slots for is an error, and changes nothing: without a
/// window, one behind the capacity; with a window, one that would take the slots of tokens that the new ones still see.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig};
///
/// let config = FixedKvConfig::new(2, 4, 64, 8).with_int8(32);
/// let mut cache = FixedKvCache::new(config, DType::F32, &Device::Cpu)?;
/// let prompts = Tensor::randn(0f32, 1., (2, 4, 5, 64), &Device::Cpu)?;
/// cache.append_counts(&prompts, &prompts, &[5, 3])?;
/// let token = Tensor::randn(0f32, 1., (2, 4, 1, 64), &Device::Cpu)?;
/// cache.append(&token, &token)?;
/// assert_eq!(cache.lengths(), [6, 4]);
/// assert_eq!(cache.keys()?.dims(), [2, 4, 6, 64]);
/// assert_eq!(cache.mask(1)?.dims(), [2, 1, 1, 6]);
/// let chunk = Tensor::randn(0f32, 1., (2, 4, 3, 64), &Device::Cpu)?;
/// assert!(cache.append(&chunk, &chunk).is_err());
/// # candle_core::Result::Ok(())
/// ```
///
/// # Forks
///
/// A clone, or [`fork`](Self::fork), shares the memory until one of both is written to, which then copies all of it: beams that
/// go apart pay for a copy each. [`select`](Self::select) copies at once, sequence by sequence.
#[derive(Clone, Debug)]
pub struct FixedKvCache {
    config: FixedKvConfig,
    keys: Store,
    values: Store,
    sequences: Vec<Sequence>,
    dtype: DType,
    device: Device,
}

/// How many of the tokens of an append count, for each sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counts<'a> {
    All(usize),
    Each(&'a [usize]),
}

impl Counts<'_> {
    fn of(&self, sequence: usize) -> usize {
        match self {
            Counts::All(count) => *count,
            Counts::Each(counts) => counts[sequence],
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    /// Tokens so far, those included that have given their slots up.
    len: usize,
    /// The largest length there was: slots of earlier tokens have been used again.
    written: usize,
    /// The tokens of the last append.
    last: usize,
}

impl FixedKvCache {
    /// Allocates the memory. What is read and appended has this dtype.
    pub fn new(config: FixedKvConfig, dtype: DType, device: &Device) -> Result<Self> {
        let name = "FixedKvCache::new";
        let FixedKvConfig {
            batch,
            heads,
            capacity,
            ..
        } = config;
        if let Some(window) = config.window {
            ensure(
                window > 0 && window <= capacity,
                name,
                format_args!("got a window of {window}, expected 1 to the {capacity} slots"),
            )?;
        }
        ensure(
            matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
                || (dtype == DType::F64 && config.scheme.is_none()),
            name,
            format_args!("got dtype {dtype:?}, expected f32, f16 or bf16; f64 without a scheme"),
        )?;
        let store = |dim| {
            Store::new(
                name,
                [batch, heads, capacity, dim],
                config.scheme,
                dtype,
                device,
            )
        };
        Ok(FixedKvCache {
            keys: store(config.key_dim)?,
            values: store(config.value_dim)?,
            sequences: vec![Sequence::default(); batch],
            config,
            dtype,
            device: device.clone(),
        })
    }

    pub fn config(&self) -> &FixedKvConfig {
        &self.config
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// The tokens of each sequence so far, those included that a window has passed: the position of its next token.
    pub fn lengths(&self) -> Vec<usize> {
        self.sequences.iter().map(|sequence| sequence.len).collect()
    }

    /// The slots of each sequence that hold a token, as a u32 tensor `[batch]` on the cache's device.
    pub fn key_lengths(&self) -> Result<Tensor> {
        let lengths = self.sequences.iter();
        let lengths: Vec<u32> = lengths
            .map(|sequence| sequence.len.min(self.config.capacity) as u32)
            .collect();
        Tensor::from_vec(lengths, self.config.batch, &self.device)
    }

    /// Writes the tokens of k and v, `[batch, heads, tokens, head_dim]`, behind those of each sequence.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let name = "FixedKvCache::append";
        let count = check::tokens(name, "k", k, 2)?;
        self.append_for(name, k, v, Counts::All(count))
    }

    /// As [`append`](Self::append), but of sequence i only the first `counts[i]` tokens: for prompts of several lengths, padded at
    /// the end, and for sequences that pause.
    pub fn append_counts(&mut self, k: &Tensor, v: &Tensor, counts: &[usize]) -> Result<()> {
        self.append_for("FixedKvCache::append_counts", k, v, Counts::Each(counts))
    }

    pub(crate) fn append_for(
        &mut self,
        name: &'static str,
        k: &Tensor,
        v: &Tensor,
        counts: Counts<'_>,
    ) -> Result<()> {
        same_tokens(name, k, v, 2)?;
        let FixedKvConfig { batch, heads, .. } = self.config;
        let tokens = check::tokens(name, "k", k, 2)?;
        for (what, x, dim) in [
            ("k", k, self.config.key_dim),
            ("v", v, self.config.value_dim),
        ] {
            check::has_shape(name, what, x.layout(), &[batch, heads, tokens, dim])?;
            ensure(
                x.dtype() == self.dtype && x.device().same_device(&self.device),
                name,
                format_args!(
                    "got {what} of dtype {:?} on {:?}, expected {:?} on the cache's device",
                    x.dtype(),
                    x.device().location(),
                    self.dtype
                ),
            )?;
            let message = format_args!("got {what} that tracks gradients, which the cache would lose; expected a detached one");
            ensure(!x.track_op(), name, message)?;
        }
        if let Counts::Each(counts) = counts {
            ensure(
                counts.len() == batch && counts.iter().all(|&count| count <= tokens),
                name,
                format_args!("got counts {counts:?}, expected {batch} of up to {tokens} tokens"),
            )?;
        }
        for i in 0..batch {
            self.check_room(name, i, counts.of(i))?;
        }
        let place = |i: usize| Place {
            start: match counts.of(i) {
                0 => 0,
                _ => self.sequences[i].len % self.config.capacity,
            },
            count: counts.of(i),
        };
        // One place for all sequences where it is the same.
        if batch > 0 {
            let first = [place(0)];
            let each: Vec<Place>;
            let places = match (1..batch).all(|i| place(i) == first[0]) {
                true => &first[..],
                false => {
                    each = (0..batch).map(place).collect();
                    &each
                }
            };
            self.keys.write(name, k, places)?;
            self.values.write(name, v, places)?;
        }
        for (i, sequence) in self.sequences.iter_mut().enumerate() {
            let count = counts.of(i);
            sequence.len += count;
            sequence.written = sequence.written.max(sequence.len);
            sequence.last = count;
        }
        Ok(())
    }

    /// Forgets the last append. No slot of a token that the next one sees has been used again: see
    /// [`check_room`](Self::check_room).
    pub(crate) fn take_back(&mut self) {
        for sequence in &mut self.sequences {
            sequence.len -= sequence.last;
            sequence.last = 0;
        }
    }

    /// The first of `count` new tokens still sees all that it should once the last is written.
    fn check_room(&self, name: &str, i: usize, count: usize) -> Result<()> {
        let (len, capacity) = (self.sequences[i].len, self.config.capacity);
        let fits = match self.config.window {
            None => len + count <= capacity,
            // The first sees min(window, len + 1) tokens; count − 1 come behind it.
            Some(window) => count == 0 || window.min(len + 1) + count - 1 <= capacity,
        };
        if fits {
            return Ok(());
        }
        let beside = match self.config.window {
            None => String::new(),
            Some(window) => format!(" beside the {window} that the first of them sees"),
        };
        let message = format_args!(
            "got {count} tokens behind {len} of sequence {i}, expected what {capacity} slots hold{beside}"
        );
        Err(check::error(name, message))
    }

    /// The slots in use, as far as the longest sequence has them.
    fn slots(&self) -> usize {
        let longest = self.sequences.iter().map(|sequence| sequence.len).max();
        longest.unwrap_or(0).min(self.config.capacity)
    }

    /// The keys `[batch, heads, slots, key_dim]`: a view, or a dequantised copy of codes. `slots` is the longest sequence's; what
    /// shorter ones have behind their last token means nothing, see [`key_lengths`](Self::key_lengths) and [`mask`](Self::mask).
    pub fn keys(&self) -> Result<Tensor> {
        self.keys.read(self.slots())
    }

    /// The values `[batch, heads, slots, value_dim]`, as [`keys`](Self::keys).
    pub fn values(&self) -> Result<Tensor> {
        self.values.read(self.slots())
    }

    /// The codes of the keys in all slots, if the keys are quantised. Slots that hold no token yet are included;
    /// [`KvCodes::first`] takes the codes of the first slots.
    pub fn key_codes(&self) -> Option<KvCodes> {
        self.keys.codes()
    }

    /// The codes of the values, as [`key_codes`](Self::key_codes).
    pub fn value_codes(&self) -> Option<KvCodes> {
        self.values.codes()
    }

    /// Forgets all tokens, and keeps the memory.
    pub fn reset(&mut self) {
        self.sequences.fill(Sequence::default());
    }

    /// Forgets the tokens of one sequence.
    pub fn reset_sequence(&mut self, i: usize) -> Result<()> {
        self.sequence("FixedKvCache::reset_sequence", i)?;
        self.sequences[i] = Sequence::default();
        Ok(())
    }

    fn sequence(&self, name: &str, i: usize) -> Result<Sequence> {
        let batch = self.config.batch;
        let message = || {
            check::error(
                name,
                format_args!("got sequence {i}, expected one of {batch}"),
            )
        };
        self.sequences.get(i).copied().ok_or_else(message)
    }

    /// Forgets the tokens of a sequence behind the first `len`: those that a draft model guessed wrong, say. With a window, no more
    /// than there are slots beside it, for older tokens are gone.
    pub fn truncate(&mut self, i: usize, len: usize) -> Result<()> {
        let name = "FixedKvCache::truncate";
        let sequence = self.sequence(name, i)?;
        super::growing::check_truncate(name, len, sequence.len)?;
        let capacity = self.config.capacity;
        if let (Some(window), true) = (self.config.window, sequence.written > capacity) {
            let (cut, spare) = (sequence.written - len, capacity - window);
            ensure(
                cut <= spare,
                name,
                format_args!("got a length {cut} below the longest there was, expected up to {spare}: older tokens are gone"),
            )?;
        }
        self.sequences[i] = Sequence {
            len,
            last: 0,
            ..sequence
        };
        Ok(())
    }

    /// A cache with the same tokens, which shares the memory until one of both is written to.
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// A cache whose sequence i is a copy of sequence `sequences[i]` of this one: beams that go on, in another order or several
    /// times.
    pub fn select(&self, sequences: &[usize]) -> Result<Self> {
        let name = "FixedKvCache::select";
        let picked = sequences.iter().map(|&i| self.sequence(name, i));
        let picked = picked.collect::<Result<Vec<_>>>()?;
        let indices: Vec<u32> = sequences.iter().map(|&i| i as u32).collect();
        let indices = Tensor::from_vec(indices, sequences.len(), &self.device)?;
        Ok(FixedKvCache {
            config: FixedKvConfig {
                batch: sequences.len(),
                ..self.config
            },
            keys: self.keys.select(&indices)?,
            values: self.values.select(&indices)?,
            sequences: picked,
            dtype: self.dtype,
            device: self.device.clone(),
        })
    }
}
