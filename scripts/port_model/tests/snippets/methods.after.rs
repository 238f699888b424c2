use candle_core::{Result, Tensor};

fn act(x: &Tensor, y: f64) -> Result<Tensor> {
    let y = y.tanh();
    let x = x.apply(&candle_fused::nn::ops::gelu_erf)?.apply(&candle_fused::nn::ops::tanh)?;
    let x = (x.apply(&candle_fused::nn::ops::silu)? * x.apply(&candle_fused::nn::Activation::Relu)?)?;
    let x = (x * y)?;
    x.apply(&candle_fused::nn::ops::gelu)
}

fn not_these(x: &Tensor) -> Result<Tensor> {
    // x.gelu()
    let text = "x.gelu()";
    x.apply(&text)?.elu(1.)?.relu_like()?.exp()?.sqr()
}

macro_rules! activate {
    ($x:expr) => {
        $x.gelu()?.max_pool2d(2)
    };
}
