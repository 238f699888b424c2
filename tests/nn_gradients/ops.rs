//! `candle_nn::ops`, `activation`, `func` and `sequential`.

use super::cases;
use candle_core::{Module, ModuleT, Result, Tensor, D};

/// Over the last dim, of differentiable ops.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let e = x
        .broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?
        .exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)
}

fn rms_norm(t: &[Tensor]) -> Result<Tensor> {
    let square = t[0].sqr()?.mean_keepdim(D::Minus1)?;
    let normed = t[0].broadcast_div(&(square + 1e-5)?.sqrt()?)?;
    normed.broadcast_mul(&t[1])
}

fn layer_norm(t: &[Tensor]) -> Result<Tensor> {
    let x = t[0].broadcast_sub(&t[0].mean_keepdim(D::Minus1)?)?;
    let square = x.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = x.broadcast_div(&(square + 1e-5)?.sqrt()?)?;
    normed.broadcast_mul(&t[1])?.broadcast_add(&t[2])
}

cases! {
    "ops::softmax" => [[3, 5]] |t| nn::ops::softmax(&t[0], 0);
    "ops::log_softmax" => [[3, 5]] |t| nn::ops::log_softmax(&t[0], 1);
    "ops::softmax_last_dim" => [[3, 5]] |t| nn::ops::softmax_last_dim(&t[0]), |t| softmax(&t[0]);
    "ops::silu" => [[3, 5]] |t| nn::ops::silu(&t[0]);
    "ops::swiglu" => [[3, 6]] |t| nn::ops::swiglu(&t[0]);
    "ops::sigmoid" => [[3, 5]] |t| nn::ops::sigmoid(&t[0]), |t| (t[0].neg()?.exp()? + 1.0)?.recip();
    "ops::hard_sigmoid" => [[3, 5]] |t| nn::ops::hard_sigmoid(&t[0]);
    "ops::mish" => [[3, 5]] |t| nn::ops::mish(&t[0]);
    "ops::leaky_relu" => [[3, 5]] |t| nn::ops::leaky_relu(&t[0], 0.1);
    "ops::selu" => [[3, 5]] |t| nn::ops::selu(&t[0], 1.6, 1.05);
    // Nothing is dropped, so that both give the same; `tests/dropout.rs` has the rest.
    "ops::dropout" => [[3, 5]] |t| nn::ops::dropout(&t[0], 0.0);
    "ops::Dropout::forward" => [[3, 5]] |t| nn::ops::Dropout::new(0.0).forward(&t[0], true);
    "ops::Dropout: ModuleT" => [[3, 5]] |t| nn::Dropout::new(0.0).forward_t(&t[0], true);
    "ops::rms_norm" => [[3, 5], [5]] |t| nn::ops::rms_norm(&t[0], &t[1], 1e-5), |t| rms_norm(t);
    "ops::rms_norm_slow" => [[3, 5], [5]] |t| nn::ops::rms_norm_slow(&t[0], &t[1], 1e-5), |t| rms_norm(t);
    "ops::layer_norm" => [[3, 5], [5], [5]]
        |t| nn::ops::layer_norm(&t[0], &t[1], &t[2], 1e-5), |t| layer_norm(t);
    "ops::layer_norm_slow" => [[3, 5], [5], [5]]
        |t| nn::ops::layer_norm_slow(&t[0], &t[1], &t[2], 1e-5), |t| layer_norm(t);
    "ops::pixel_shuffle" => [[1, 8, 2, 3]] |t| nn::ops::pixel_shuffle(&t[0], 2);
    "ops::pixel_unshuffle" => [[1, 2, 4, 6]] |t| nn::ops::pixel_unshuffle(&t[0], 2);
    "ops::replication_pad2d" => [[1, 2, 3, 4]] |t| nn::ops::replication_pad2d(&t[0], 1);
    "ops::Identity: Module" => [[3, 5]] |t| nn::ops::Identity::new().forward(&t[0]);

    "activation::Activation: Module" => [[3, 6]] |t| {
        use nn::Activation::*;
        let all = [
            Gelu, NewGelu, Relu, Relu2, Relu6, Silu, Sigmoid, HardSigmoid, Swish, Mish, HardSwish, Elu(0.7),
            LeakyRelu(0.1), GeluPytorchTanh,
        ];
        let outputs = all.iter().map(|act| act.forward(&t[0])).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&[Tensor::stack(&outputs, 0)?.flatten_all()?, Swiglu.forward(&t[0])?.flatten_all()?], 0)
    };
    "activation::PReLU: Module", "activation::PReLU::new" => [[2, 3, 4], [3]]
        |t| nn::PReLU::new(t[1].clone(), false).forward(&t[0]);
    "activation::prelu" => [[2, 3, 4], [1]]
        |t| nn::prelu(None, super::layers::vb(&[("weight", &t[1])])?)?.forward(&t[0]);

    "func::func", "func::Func: Module" => [[3, 5]] |t| nn::func(|x| x.sqr()).forward(&t[0]);
    "func::Func::new" => [[3, 5]] |t| nn::Func::new(|x: &Tensor| x.sqr()).forward(&t[0]);
    "func::func_t", "func::FuncT: ModuleT" => [[3, 5]] |t| nn::func_t(|x, _| x.sqr()).forward_t(&t[0], true);
    "func::FuncT::new" => [[3, 5]] |t| nn::FuncT::new(|x: &Tensor, _: bool| x.sqr()).forward_t(&t[0], true);
    "sequential::seq", "sequential::Sequential: Module", "sequential::Sequential::add",
    "sequential::Sequential::add_fn" => [[3, 5], [4, 5]] |t| {
        nn::seq().add(nn::Linear::new(t[1].clone(), None)).add_fn(|x| x.sqr()).forward(&t[0])
    };
    "sequential::Sequential::forward_all" => [[3, 5], [5, 5]] |t| {
        let layers = nn::seq().add(nn::Linear::new(t[1].clone(), None)).add_fn(|x| x.sqr());
        Tensor::stack(&layers.forward_all(&t[0])?, 0)
    };
}
