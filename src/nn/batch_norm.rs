//! [`mod@candle_nn::batch_norm`] on fused kernels, with gradients to input, weight and bias. In training the statistics of a batch
//! are measured and applied by one op.

use crate::{check, ops};
use candle_core::{Result, Tensor, Var};
use candle_nn::{Init, ModuleT, VarBuilder};

pub use candle_nn::batch_norm::BatchNormConfig;

/// What errors begin with.
const NAME: &str = "BatchNorm";

/// Batch norm of `[batch, channels, ..]`: by the running statistics in evaluation, by those of the batch in training, which then
/// go into the running ones. Clones share these.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// Variables.
    running_mean: Tensor,
    running_var: Tensor,
    weight_and_bias: Option<(Tensor, Tensor)>,
    remove_mean: bool,
    eps: f64,
    momentum: f64,
}

impl BatchNorm {
    /// With a weight and a bias, and a momentum of 0.1.
    pub fn new(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
    ) -> Result<Self> {
        let momentum = BatchNormConfig::default().momentum;
        Self::new_with_momentum(
            num_features,
            running_mean,
            running_var,
            weight,
            bias,
            eps,
            momentum,
        )
    }

    /// Without weight and bias, and with a momentum of 0.1.
    pub fn new_no_bias(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        eps: f64,
    ) -> Result<Self> {
        let momentum = BatchNormConfig::default().momentum;
        Self::new_no_bias_with_momentum(num_features, running_mean, running_var, eps, momentum)
    }

    /// With a weight and a bias. A momentum of m keeps 1 − m of the running statistics at each step.
    pub fn new_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        let norm = Self::of(
            [running_mean, running_var],
            Some((weight, bias)),
            BatchNormConfig {
                eps,
                momentum,
                ..Default::default()
            },
        )?;
        norm.check_validity(num_features)?;
        Ok(norm)
    }

    /// Without weight and bias.
    pub fn new_no_bias_with_momentum(
        num_features: usize,
        running_mean: Tensor,
        running_var: Tensor,
        eps: f64,
        momentum: f64,
    ) -> Result<Self> {
        let config = BatchNormConfig {
            eps,
            momentum,
            ..Default::default()
        };
        let norm = Self::of([running_mean, running_var], None, config)?;
        norm.check_validity(num_features)?;
        Ok(norm)
    }

    fn of(
        [running_mean, running_var]: [Tensor; 2],
        weight_and_bias: Option<(Tensor, Tensor)>,
        config: BatchNormConfig,
    ) -> Result<Self> {
        Ok(Self {
            running_mean: Var::from_tensor(&running_mean)?.into_inner(),
            running_var: Var::from_tensor(&running_var)?.into_inner(),
            weight_and_bias,
            remove_mean: config.remove_mean,
            eps: config.eps,
            momentum: config.momentum,
        })
    }

    fn check_validity(&self, num_features: usize) -> Result<()> {
        check_eps(self.eps)?;
        let message = format_args!("got momentum = {}, expected 0 to 1", self.momentum);
        check::ensure((0.0..=1.0).contains(&self.momentum), NAME, message)?;
        let vectors = self
            .weight_and_bias
            .iter()
            .flat_map(|(weight, bias)| [("weight", weight), ("bias", bias)]);
        let statistics = [
            ("running_mean", &self.running_mean),
            ("running_var", &self.running_var),
        ];
        for (name, vector) in statistics.into_iter().chain(vectors) {
            check::has_shape(NAME, name, vector.layout(), &[num_features])?;
        }
        Ok(())
    }

    pub fn running_mean(&self) -> &Tensor {
        &self.running_mean
    }

    pub fn running_var(&self) -> &Tensor {
        &self.running_var
    }

    pub fn eps(&self) -> f64 {
        self.eps
    }

    pub fn weight_and_bias(&self) -> Option<(&Tensor, &Tensor)> {
        self.weight_and_bias.as_ref().map(|v| (&v.0, &v.1))
    }

    pub fn momentum(&self) -> f64 {
        self.momentum
    }

    /// By the statistics of this batch, which go into the running ones: their variance as an estimate of the population's,
    /// Σ(x − mean)² / (n − 1).
    pub fn forward_train(&self, x: &Tensor) -> Result<Tensor> {
        self.check_input(x)?;
        let (weight, bias) = self.vectors();
        let (y, mean, var) = match self.eps as f32 {
            _ if !self.remove_mean => self.forward_train_about_zero(x)?,
            eps if eps > 0.0 => ops::batch_norm_train(x, weight, bias, eps)?,
            // The stock layer accepts an eps of 0; the op does not.
            eps => ops::batch_norm::reference_train(x, [weight, bias], eps)?,
        };
        if self.remove_mean {
            self.update(&self.running_mean, &mean, self.momentum)?;
        }
        let n = (x.elem_count() / self.running_mean.elem_count().max(1)) as f64;
        self.update(&self.running_var, &var, self.momentum * n / (n - 1.0))?;
        Ok(y)
    }

    /// The norm, and the mean square in the place of the variance.
    fn forward_train_about_zero(&self, x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let wide = x.to_dtype(check::accumulator_dtype(x.dtype()))?;
        let dims: Vec<usize> = (0..x.rank()).filter(|&dim| dim != 1).collect();
        let square = ops::mean_keepdim(&wide.sqr()?, dims)?;
        let mut y = wide.broadcast_div(&(&square + self.eps)?.sqrt()?)?;
        if let Some((weight, bias)) = &self.weight_and_bias {
            let by_channel = |t: &Tensor| t.to_dtype(wide.dtype())?.reshape(square.shape());
            y = y
                .broadcast_mul(&by_channel(weight)?)?
                .broadcast_add(&by_channel(bias)?)?;
        }
        let square = square.flatten_all()?;
        Ok((y.to_dtype(x.dtype())?, square.clone(), square))
    }

    /// `running · (1 − momentum) + statistic · share`, outside any graph.
    fn update(&self, running: &Tensor, statistic: &Tensor, share: f64) -> Result<()> {
        let statistic = statistic.detach().to_dtype(running.dtype())?;
        let kept = (running.detach() * (1.0 - self.momentum))?;
        Var::from_tensor(running)?.set(&(kept + (statistic * share)?)?)
    }

    fn forward_eval(&self, x: &Tensor) -> Result<Tensor> {
        self.check_input(x)?;
        let (weight, bias) = self.vectors();
        let (mean, var) = (
            self.statistic(&self.running_mean, x)?,
            self.statistic(&self.running_var, x)?,
        );
        match self.eps as f32 {
            eps if eps > 0.0 => ops::batch_norm(x, &mean, &var, weight, bias, eps),
            eps => ops::batch_norm::reference(x, &mean, &var, [weight, bias], eps),
        }
    }

    /// A running statistic, without gradient, in a dtype that goes with x.
    fn statistic(&self, running: &Tensor, x: &Tensor) -> Result<Tensor> {
        running
            .detach()
            .to_dtype(check::accumulator_dtype(x.dtype()))
    }

    fn vectors(&self) -> (Option<&Tensor>, Option<&Tensor>) {
        self.weight_and_bias().unzip()
    }

    fn check_input(&self, x: &Tensor) -> Result<()> {
        check::is_float(NAME, x)?;
        let (dims, features) = (x.dims(), self.running_mean.elem_count());
        let message = format_args!("got x of shape {dims:?}, expected [batch, {features}, ..]");
        check::ensure(dims.get(1) == Some(&features), NAME, message)
    }
}

fn check_eps(eps: f64) -> Result<()> {
    let message = format_args!("got eps = {eps}, expected 0 or more");
    check::ensure(eps >= 0.0, NAME, message)
}

impl ModuleT for BatchNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match train {
            true => self.forward_train(x),
            false => self.forward_eval(x),
        }
    }
}

/// The running statistics stay those of the stock layer: what either of them learns, both know.
impl From<candle_nn::BatchNorm> for BatchNorm {
    fn from(stock: candle_nn::BatchNorm) -> Self {
        // The stock layer lets nobody read this field, but prints it.
        let remove_mean = !format!("{stock:?}").contains("remove_mean: false");
        let clones = |(weight, bias): (&Tensor, &Tensor)| (weight.clone(), bias.clone());
        Self {
            running_mean: stock.running_mean().clone(),
            running_var: stock.running_var().clone(),
            weight_and_bias: stock.weight_and_bias().map(clones),
            remove_mean,
            eps: stock.eps(),
            momentum: stock.momentum(),
        }
    }
}

/// A batch norm with the variables `running_mean`, `running_var` and, if it is affine, `weight` and `bias` of `vb`.
pub fn batch_norm<C: Into<BatchNormConfig>>(
    num_features: usize,
    config: C,
    vb: VarBuilder,
) -> Result<BatchNorm> {
    let config = config.into();
    check_eps(config.eps)?;
    let variable = |name, value| vb.get_with_hints(num_features, name, Init::Const(value));
    let running = [variable("running_mean", 0.)?, variable("running_var", 1.)?];
    let weight_and_bias = match config.affine {
        true => Some((variable("weight", 1.)?, variable("bias", 0.)?)),
        false => None,
    };
    BatchNorm::of(running, weight_and_bias, config)
}
