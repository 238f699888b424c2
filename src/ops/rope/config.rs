//! What a rotation is told beside its tensors.

use crate::check;
use crate::op::{self, Arg, KernelStorage};
use candle_core::{Result, Tensor};

/// What kernels read beside the heads that they rotate.
pub(crate) struct TableArgs<'a, S> {
    pub cos_sin: [Arg<'a, S>; 2],
    /// The table rows of the positions, where these do not follow each other.
    pub ids: Option<Arg<'a, S>>,
}

/// How [`rope`](super::rope) rotates; also the op as a CustomOp of x, cos and sin, in place too.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::Rope;
/// // One head of two positions: the second is turned by 90°.
/// let x = Tensor::new(&[[[1f32, 2.], [3., 4.]]], &Device::Cpu)?;
/// let cos = Tensor::new(&[[1f32], [0.]], &Device::Cpu)?;
/// let sin = Tensor::new(&[[0f32], [1.]], &Device::Cpu)?;
/// let y = x.apply_op3(&cos, &sin, Rope::default())?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[1., 2.], [-4., 3.]]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rope {
    /// Which elements of a head are rotated together.
    pub pairs: RopePairs,
    /// Which dim of x counts positions.
    pub layout: RopeLayout,
    /// Which rows of the tables are used.
    pub positions: RopePositions,
    /// For images and video: which pairs take their angle from which of three positions.
    pub sections: Option<RopeSections>,
}

/// Which elements of a head's first R, the rotary dims, are rotated together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopePairs {
    /// Element j and element j + R/2 (Llama, Qwen, GPT-NeoX).
    #[default]
    Half,
    /// Element 2j and element 2j + 1 (GPT-J, GGUF files of Llama).
    Interleaved,
}

/// The order of x's dims. Either may be a transposed view: it is read by its strides. Without a batch, x has three dims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopeLayout {
    /// `[batch, heads, positions, dim]`
    #[default]
    HeadsFirst,
    /// `[batch, positions, heads, dim]`, which Candle calls thd.
    PositionsFirst,
}

/// Which rows of the tables belong to x's positions.
#[derive(Clone, Debug)]
pub enum RopePositions {
    /// The rows from this one on.
    From(usize),
    /// The rows with these numbers: `[positions]` or `[batch, positions]` of u32 or i64, on x's device. With
    /// [`RopeSections`] there are three for each position: `[3, positions]` or `[3, batch, positions]`.
    ///
    /// A number beyond the table is an error on the CPU. On Metal, where it could only be seen by waiting for the GPU, the
    /// rotated elements of that position become NaN.
    Ids(Tensor),
}

impl Default for RopePositions {
    fn default() -> Self {
        RopePositions::From(0)
    }
}

/// Multi-section rotation (mrope): every position has a temporal, a height and a width number, and each pair of elements
/// is rotated by the angle of one of them.
///
/// The three numbers come from [`RopePositions::Ids`]; with [`RopePositions::From`], tables of their own for each of the three
/// are expected, `[3, positions, R/2]` or `[3, batch, positions, R/2]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeSections {
    /// How many of the R/2 pairs belong to the temporal, the height and the width number; together all of them.
    pub lens: [usize; 3],
    /// Whether height has the pairs 1, 4, 7, …, width the pairs 2, 5, 8, …, each as many as `lens` says, and the
    /// temporal number the rest (Qwen3-VL). Otherwise the sections stand one behind the other (Qwen2-VL).
    pub interleaved: bool,
}

impl RopeSections {
    /// Which of the three numbers rotates pair `j`.
    pub(crate) fn axis(&self, j: usize) -> usize {
        let [temporal, height, width] = self.lens;
        match (self.interleaved, j % 3) {
            (true, 1) if j / 3 < height => 1,
            (true, 2) if j / 3 < width => 2,
            (true, _) => 0,
            (false, _) if j < temporal => 0,
            (false, _) if j < temporal + height => 1,
            (false, _) => 2,
        }
    }

    /// The runs of neighbouring pairs that one number rotates: `(number, first pair, how many)`.
    pub(crate) fn runs(&self, pairs: usize) -> Vec<(usize, usize, usize)> {
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        for j in 0..pairs {
            match runs.last_mut() {
                Some((axis, _, len)) if *axis == self.axis(j) => *len += 1,
                _ => runs.push((self.axis(j), j, 1)),
            }
        }
        runs
    }
}

impl Rope {
    /// The numbers of the rows, if they are given by a tensor.
    pub(crate) fn ids(&self) -> Option<&Tensor> {
        match &self.positions {
            RopePositions::From(_) => None,
            RopePositions::Ids(ids) => Some(ids),
        }
    }

    /// Calls `f` with cos, sin and the storage of the row numbers, if there are any.
    pub(crate) fn with_tables<S: KernelStorage, R>(
        &self,
        name: &'static str,
        cos_sin: [Arg<'_, S>; 2],
        f: impl FnOnce(TableArgs<'_, S>) -> Result<R>,
    ) -> Result<R> {
        match self.ids() {
            None => f(TableArgs { cos_sin, ids: None }),
            Some(ids) => op::with_storages(name, &[ids], |held| {
                let ids = held.first().copied();
                f(TableArgs { cos_sin, ids })
            }),
        }
    }

    /// The row numbers are on x's device.
    pub(crate) fn check_device(&self, name: &'static str, x: &Tensor) -> Result<()> {
        match self.ids() {
            None => Ok(()),
            Some(ids) => check::same_device(name, &["x", "positions"], &[x, ids]),
        }
    }
}
