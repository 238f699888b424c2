use candle_core::{Result, Tensor};

fn act(x: &Tensor, y: f64) -> Result<Tensor> {
    let y = y.tanh();
    let x = x.gelu_erf()?.tanh()?;
    let x = (x.silu()? * x.relu()?)?;
    let x = (x * y)?;
    x.gelu()
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
