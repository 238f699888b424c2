//! `candle_nn::loss` and `embedding`.

use super::cases;
use super::layers::vb;
use candle_core::{Module, Result, Tensor};

fn classes(x: &Tensor) -> Result<Tensor> {
    Tensor::new(&[2u32, 0, 4], x.device())
}

fn ids(x: &Tensor) -> Result<Tensor> {
    Tensor::new(&[[2u32, 0], [3, 2]], x.device())
}

/// Numbers that are probabilities.
fn probabilities(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

cases! {
    "loss::nll" => [[3, 5]] |t| nn::loss::nll(&t[0], &classes(&t[0])?);
    "loss::cross_entropy" => [[3, 5]] |t| nn::loss::cross_entropy(&t[0], &classes(&t[0])?);
    "loss::mse" => [[3, 5], [3, 5]] |t| nn::loss::mse(&t[0], &t[1]);
    "loss::binary_cross_entropy_with_logit" => [[3, 5], [3, 5]]
        |t| nn::loss::binary_cross_entropy_with_logit(&t[0], &probabilities(&t[1])?);
    "loss::huber" => [[3, 5], [3, 5]] |t| nn::loss::huber(&t[0], &t[1], 0.4);
    "embedding::Embedding: Module", "embedding::Embedding::new" => [[5, 3]]
        |t| nn::Embedding::new(t[0].clone(), 3).forward(&ids(&t[0])?);
    "embedding::embedding" => [[5, 3]]
        |t| nn::embedding(5, 3, vb(&[("weight", &t[0])])?)?.forward(&ids(&t[0])?);
}
