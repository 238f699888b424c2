//! What an adapter is made with.

/// The shape and strength of an adapter. The defaults are PEFT's: rank 8, alpha 8 (so a scale of 1), nothing else.
///
/// ```
/// use candle_fused::nn::lora::LoraConfig;
/// let config = LoraConfig { rank: 16, alpha: 32.0, ..Default::default() };
/// assert_eq!(config.scale(), 2.0);
/// let stabilised = LoraConfig { use_rslora: true, ..config };
/// assert_eq!(stabilised.scale(), 8.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// The width between A and B: at least 1, at most the smaller of the layer's input and output.
    pub rank: usize,
    /// The numerator of [`scale`](Self::scale).
    pub alpha: f64,
    /// The share of the adapter's input that is dropped in training, in `[0, 1)`. An embedding's adapter has none, as
    /// in PEFT: its input is an index.
    pub dropout: f32,
    /// Divide alpha by √rank instead of the rank ([rsLoRA](https://arxiv.org/abs/2312.03732)).
    pub use_rslora: bool,
    /// Learn each output's magnitude apart from its direction ([DoRA](https://arxiv.org/abs/2402.09353)).
    pub use_dora: bool,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 8.0,
            dropout: 0.0,
            use_rslora: false,
            use_dora: false,
        }
    }
}

impl LoraConfig {
    /// For files: 0.1 and not 0.10000000149.
    pub(super) fn decimal_dropout(&self) -> f64 {
        let exact = f64::from(self.dropout);
        self.dropout.to_string().parse().unwrap_or(exact)
    }

    /// What the adapter's output is multiplied by: alpha / rank, or alpha / √rank with rsLoRA.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        match self.use_rslora {
            true => self.alpha / rank.sqrt(),
            false => self.alpha / rank,
        }
    }

    /// What is wrong with it, for a layer whose rank is at most `most`.
    pub(super) fn problem(&self, most: usize) -> Option<String> {
        let Self {
            rank,
            alpha,
            dropout,
            ..
        } = *self;
        if rank == 0 || rank > most {
            return Some(format!("rank {rank} given, 1..={most} accepted"));
        }
        if !(0.0..1.0).contains(&dropout) {
            return Some(format!("dropout {dropout} given, 0 ≤ dropout < 1 accepted"));
        }
        if !alpha.is_finite() {
            return Some(format!("alpha {alpha} given, a finite number accepted"));
        }
        None
    }
}
