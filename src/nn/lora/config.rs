//! The configuration of an adapter.

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
    /// The width between A and B, at least 1. Above the smaller of the layer's input and output it adds no freedom, but
    /// PEFT makes such adapters too.
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
    /// The dropout as files have it: 0.1, not 0.10000000149.
    pub(super) fn decimal_dropout(&self) -> f64 {
        let exact = f64::from(self.dropout);
        self.dropout.to_string().parse().unwrap_or(exact)
    }

    /// The factor of the adapter's output: alpha / rank, or alpha / √rank with rsLoRA.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        match self.use_rslora {
            true => self.alpha / rank.sqrt(),
            false => self.alpha / rank,
        }
    }

    /// The error of a config that no layer can have.
    pub(super) fn problem(&self) -> Option<String> {
        let Self {
            rank,
            alpha,
            dropout,
            ..
        } = *self;
        if rank == 0 {
            return Some(format!("got rank {rank}, expected 1 or more"));
        }
        if !(0.0..1.0).contains(&dropout) {
            return Some(format!("got dropout {dropout}, expected 0 ≤ dropout < 1"));
        }
        if !alpha.is_finite() {
            return Some(format!("got alpha {alpha}, expected a finite number"));
        }
        None
    }
}
