//! What [`AdamW`](super::AdamW) keeps of each variable.

/// In what form [`AdamW`](super::AdamW) keeps the two moments of a variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moments {
    /// In f32: 8 bytes for each element. In f64 for variables in f64.
    #[default]
    F32,
    /// As 8-bit codes with a scale for each 256 elements: 2.03 bytes for each element. They save memory, not time: a step takes
    /// some nine times as long as with f32 moments, where that is not bound by memory. Variables of fewer than 4096 elements, to
    /// which the memory of moments does not matter, and variables in f64 keep them as with [`Moments::F32`].
    ///
    /// Of the largest value of its 256, a first moment between 0.1 and 1 is off by up to 0.71 %, one between 0.01 and 0.1 by up to
    /// 0.15 %, and one below 2.7e-7 becomes 0. Second moments have half these errors, and are never rounded to 0, so
    /// that no update is divided by 0. The codes are those of "8-bit Optimizers via Block-wise Quantization" (Dettmers et al.,
    /// 2022). A NaN or an infinity in a gradient makes all 256 NaN.
    EightBit,
}

/// How a variable in f16 or bf16 takes an update, which is computed in f32. For other variables it says nothing.
///
/// bf16 has 8 significant bits: an update that is smaller than a 512th of its variable rounds to none. With usual learning
/// rates that is most of them, and training stands still without an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// The optimiser keeps the variable in f32, 4 more bytes for each element, and updates that: the variable is this master
    /// copy, rounded. No update is lost. A variable that other code sets between two steps is taken as it was set.
    #[default]
    Master,
    /// The variable is rounded up or down by chance, with the probability that makes the average right; nothing more is kept.
    /// The numbers of a run depend on the seed, the step, the variable's place among the variables and the element's place alone.
    Stochastic {
        /// Steps and variables draw their numbers from it.
        seed: u64,
    },
    /// The variable is rounded to nearest, as stock Candle and PyTorch do: small updates are lost.
    Nearest,
}

/// What [`AdamW`](super::AdamW) does beyond `candle_nn`'s: how it keeps moments, and how it updates variables in 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdamWOptions {
    /// The form of the moments.
    pub moments: Moments,
    /// For variables in f16 and bf16.
    pub rounding: Rounding,
}
