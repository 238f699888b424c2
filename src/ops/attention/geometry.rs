//! The shapes of a call: what goes together, and which keys a query sees.

use super::config::{AttentionConfig, AttentionDropout, AttentionLayout, PackedSequences};
use crate::check;
use crate::op::Spec;
use candle_core::{DType, Layout, Result, Tensor};

/// The longest rows of q, k and v.
pub const MAX_DIM: usize = 512;

/// An [`AttentionConfig`] without its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub scale: Option<f32>,
    pub causal: bool,
    pub window_left: Option<usize>,
    pub window_right: Option<usize>,
    pub softcap: Option<f32>,
    pub dropout: Option<AttentionDropout>,
    pub layout: AttentionLayout,
}

impl Rules {
    pub fn of(config: &AttentionConfig) -> Self {
        Rules {
            scale: config.scale,
            causal: config.causal,
            window_left: config.window_left,
            window_right: config.window_right,
            softcap: config.softcap,
            dropout: config.dropout,
            layout: config.layout,
        }
    }

    pub fn scale(&self, dim: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (dim as f32).sqrt())
    }

    /// How far beyond its own position a query sees.
    pub fn right(&self) -> Option<usize> {
        match self.causal {
            true => Some(0),
            false => self.window_right,
        }
    }

    fn check(&self, name: &str) -> Result<()> {
        if let Some(scale) = self.scale {
            let message = format_args!("got scale = {scale}, expected a finite number");
            check::ensure(scale.is_finite(), name, message)?;
        }
        if let Some(cap) = self.softcap {
            let message = format_args!("got softcap = {cap}, expected a positive number");
            // Below that, 1 / cap would be infinite.
            let holds = cap >= f32::MIN_POSITIVE && cap.is_finite();
            check::ensure(holds, name, message)?;
        }
        if let Some(AttentionDropout { p, .. }) = self.dropout {
            let message = format_args!("got dropout with p = {p}, expected 0 ≤ p < 1");
            check::ensure((0.0..1.0).contains(&p), name, message)?;
        }
        Ok(())
    }
}

/// The arguments of a call by their roles: tensors, their specs or their storages.
#[derive(Clone, Copy, Debug)]
pub struct Roles<T> {
    pub q: T,
    pub k: T,
    pub v: T,
    pub mask: Option<T>,
    pub sinks: Option<T>,
    pub key_lengths: Option<T>,
}

/// Which dims are which.
#[derive(Clone, Copy, Debug)]
pub struct Axes {
    /// Packed sequences have no batch dim.
    pub batch: Option<usize>,
    pub head: usize,
    pub seq: usize,
}

/// The sizes of a call. Packed sequences are one batch row.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Of a batch row; all queries of packed sequences.
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    pub value_dim: usize,
    pub axes: Axes,
}

impl Geometry {
    /// The sizes of arguments that go together; an error for all others. Kernels rely on what this accepts.
    pub fn new(
        name: &'static str,
        rules: &Rules,
        packed: Option<&PackedSequences>,
        args: &Roles<Spec<'_>>,
    ) -> Result<Self> {
        rules.check(name)?;
        let (axes, expected) = match (packed, rules.layout) {
            (Some(_), _) => (
                Axes {
                    batch: None,
                    head: 1,
                    seq: 0,
                },
                "[tokens, heads, dim] for packed sequences",
            ),
            (None, AttentionLayout::Bhsd) => (
                Axes {
                    batch: Some(0),
                    head: 1,
                    seq: 2,
                },
                "[batch, heads, sequence, dim]",
            ),
            (None, AttentionLayout::Bshd) => (
                Axes {
                    batch: Some(0),
                    head: 2,
                    seq: 1,
                },
                "[batch, sequence, heads, dim]",
            ),
        };
        let rank = if packed.is_some() { 3 } else { 4 };
        for (called, arg) in [("q", args.q), ("k", args.k), ("v", args.v)] {
            let message = format_args!(
                "got {called} of shape {:?}, expected {expected}",
                arg.dims()
            );
            check::ensure(arg.rank() == rank, name, message)?;
        }
        let geometry = Geometry::of(axes, args.q.dims(), args.k.dims(), args.v.dims());
        geometry.check_shapes(name, args)?;
        geometry.check_rest(name, packed, args)?;
        Ok(geometry)
    }

    fn of(axes: Axes, q: &[usize], k: &[usize], v: &[usize]) -> Self {
        Geometry {
            batch: axes.batch.map_or(1, |i| q[i]),
            heads: q[axes.head],
            kv_heads: k[axes.head],
            queries: q[axes.seq],
            keys: k[axes.seq],
            dim: q[q.len() - 1],
            value_dim: v[v.len() - 1],
            axes,
        }
    }

    fn check_shapes(&self, name: &str, args: &Roles<Spec<'_>>) -> Result<()> {
        let Geometry {
            heads, kv_heads, ..
        } = *self;
        let message = format_args!(
            "got {heads} heads of queries and {kv_heads} of keys, expected a multiple of those of keys"
        );
        let grouped = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
        check::ensure(grouped, name, message)?;
        check::has_shape(
            name,
            "k",
            args.k.layout,
            &self.dims(kv_heads, self.keys, self.dim),
        )?;
        let values = self.dims(kv_heads, self.keys, self.value_dim);
        check::has_shape(name, "v", args.v.layout, &values)?;
        for (called, dim) in [("q and k", self.dim), ("v", self.value_dim)] {
            let message =
                format_args!("got {called} with a last dim of {dim}, expected 1 to {MAX_DIM}");
            check::ensure((1..=MAX_DIM).contains(&dim), name, message)?;
        }
        check::fits_in_memory(name, "the result", &self.output())?;
        // The gradients of k and v are summed up in whole blocks of keys and columns.
        let sums = [self.keys.saturating_add(MAX_DIM), 2 * MAX_DIM];
        check::fits_in_memory(name, "the sums for k", &sums)?;
        // What numbers the elements of dropout.
        let scores = [self.batch, heads, self.queries, self.keys.saturating_add(3)];
        check::fits_in_memory(name, "the scores", &scores)
    }

    fn check_rest(
        &self,
        name: &'static str,
        packed: Option<&PackedSequences>,
        args: &Roles<Spec<'_>>,
    ) -> Result<()> {
        if let Some(mask) = args.mask {
            let (got, q) = (mask.dtype, args.q.dtype);
            let message = format_args!("got mask of dtype {got:?}, expected {q:?} as for q, or u8");
            check::ensure(got == q || got == DType::U8, name, message)?;
            self.check_mask(name, mask)?;
        }
        if let Some(sinks) = args.sinks {
            check::same_dtype(name, args.q.dtype, "sinks", sinks.dtype)?;
            check::has_shape(name, "sinks", sinks.layout, &[self.heads])?;
        }
        if let Some(lengths) = args.key_lengths {
            let got = lengths.dtype;
            let message = format_args!("got key_lengths of dtype {got:?}, expected u32 or i64");
            check::ensure(matches!(got, DType::U32 | DType::I64), name, message)?;
            check::has_shape(name, "key_lengths", lengths.layout, &[self.batch])?;
        }
        let Some(packed) = packed else {
            return Ok(());
        };
        let alone = args.mask.is_none() && args.key_lengths.is_none();
        let message =
            "got packed sequences and a mask or key_lengths, expected packed sequences alone";
        check::ensure(alone, name, message)?;
        let ends = |lengths: &[u32]| lengths.last().map_or(0, |&n| n as usize);
        let (queries, keys) = (ends(packed.queries()), ends(packed.keys()));
        let message = format_args!(
            "got packed sequences of {queries} queries and {keys} keys, expected {} and {} as q and k have them",
            self.queries, self.keys
        );
        check::ensure((queries, keys) == (self.queries, self.keys), name, message)
    }

    fn check_mask(&self, name: &str, mask: Spec<'_>) -> Result<()> {
        let (dims, to) = (mask.dims(), self.scores());
        let fits = |(&d, &to): (&usize, &usize)| d == to || d == 1;
        let message = format_args!(
            "got mask of shape {dims:?}, expected one that broadcasts to [batch, heads, queries, keys] = {to:?}"
        );
        let all = dims.len() <= 4 && dims.iter().rev().zip(to.iter().rev()).all(fits);
        check::ensure(all, name, message)
    }

    /// `[batch, heads, queries, keys]`, which is never allocated.
    pub fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// The dims of a tensor of this call.
    pub fn dims(&self, heads: usize, seq: usize, dim: usize) -> Vec<usize> {
        let mut dims = vec![0; 3 + usize::from(self.axes.batch.is_some())];
        if let Some(batch) = self.axes.batch {
            dims[batch] = self.batch;
        }
        (dims[self.axes.head], dims[self.axes.seq]) = (heads, seq);
        dims.pop();
        dims.push(dim);
        dims
    }

    /// The dims of the result.
    pub fn output(&self) -> Vec<usize> {
        self.dims(self.heads, self.queries, self.value_dim)
    }

    /// The dims of the log-sum-exps. Each query's is kept as two numbers: the maximum of its scores, and the logarithm of
    /// the sum of the exponentials below it. As one number it would lose the second where a mask is large (−1e9, say).
    pub fn log_sums(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, 2]
    }

    /// How many queries there are, in all heads.
    pub fn rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    /// How many heads of queries share one of keys.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The distance of two queries' rows in the numbering of attention weights for dropout: a multiple of four.
    pub fn dropout_row(&self) -> usize {
        self.keys.next_multiple_of(4)
    }
}

/// The strides of q, k, v or a result, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Strides {
    pub start: usize,
    pub batch: usize,
    pub head: usize,
    pub seq: usize,
}

impl Strides {
    pub fn new(axes: Axes, layout: &Layout) -> Self {
        let strides = layout.stride();
        Strides {
            start: layout.start_offset(),
            batch: axes.batch.map_or(0, |i| strides[i]),
            head: strides[axes.head],
            seq: strides[axes.seq],
        }
    }
}

/// Queries and keys that belong together: a batch row, or one of packed sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub batch: usize,
    /// Its first query and key in the batch row.
    pub query: usize,
    pub key: usize,
    pub queries: usize,
    /// Those that exist.
    pub keys: usize,
    /// The position of its first query, counted from its first key; negative if there are more queries than keys.
    pub position: isize,
}

impl Segment {
    /// The keys `start..end` that the rules let query `i` of the segment see.
    pub fn visible(&self, rules: &Rules, i: usize) -> (usize, usize) {
        let position = self.position + i as isize;
        let keys = self.keys as isize;
        let start = match rules.window_left {
            Some(left) => position.saturating_sub_unsigned(left).clamp(0, keys),
            None => 0,
        };
        let end = match rules.right() {
            Some(right) => (position + 1)
                .saturating_add_unsigned(right)
                .clamp(start, keys),
            None => keys,
        };
        (start as usize, end as usize)
    }
}

/// The segments of a call, one for each batch row or packed sequence. `lengths` are the batch rows' numbers of keys.
pub fn segments(
    geometry: &Geometry,
    packed: Option<&PackedSequences>,
    lengths: Option<&[usize]>,
) -> Vec<Segment> {
    if let Some(packed) = packed {
        let (q, k) = (packed.queries().windows(2), packed.keys().windows(2));
        let segment = |(q, k): (&[u32], &[u32])| {
            let (queries, keys) = ((q[1] - q[0]) as usize, (k[1] - k[0]) as usize);
            Segment {
                batch: 0,
                query: q[0] as usize,
                key: k[0] as usize,
                queries,
                keys,
                position: keys as isize - queries as isize,
            }
        };
        return q.zip(k).map(segment).collect();
    }
    let row = |batch: usize| {
        let keys = lengths.map(|lengths| lengths[batch].min(geometry.keys));
        let position = match keys {
            Some(keys) => keys.saturating_sub(geometry.queries) as isize,
            None => geometry.keys as isize - geometry.queries as isize,
        };
        Segment {
            batch,
            query: 0,
            key: 0,
            queries: geometry.queries,
            keys: keys.unwrap_or(geometry.keys),
            position,
        }
    };
    (0..geometry.batch).map(row).collect()
}

/// The tensors of a config and the three arguments, by their roles.
pub fn roles<'a>([q, k, v]: [&'a Tensor; 3], config: &'a AttentionConfig) -> Roles<&'a Tensor> {
    Roles {
        q,
        k,
        v,
        mask: config.mask.as_ref(),
        sinks: config.sinks.as_ref(),
        key_lengths: config.key_lengths.as_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_query_stands_at_the_last_key() {
        let rules = Rules::of(&AttentionConfig {
            causal: true,
            window_left: Some(1),
            ..Default::default()
        });
        let segment = |queries: usize, keys: usize| Segment {
            batch: 0,
            query: 0,
            key: 0,
            queries,
            keys,
            position: keys as isize - queries as isize,
        };
        let visible = |s: Segment| {
            (0..s.queries)
                .map(|i| s.visible(&rules, i))
                .collect::<Vec<_>>()
        };
        assert_eq!(visible(segment(2, 4)), [(1, 3), (2, 4)]);
        assert_eq!(visible(segment(3, 1)), [(0, 0), (0, 0), (0, 1)]);
        assert_eq!(visible(segment(2, 0)), [(0, 0), (0, 0)]);
    }
}
