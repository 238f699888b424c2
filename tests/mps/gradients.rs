//! Backward passes, against Candle's own on the CPU.

use super::{error, exact, metal, signal};
use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use candle_fused::ops::mps::{activation, matmul, softmax};
use candle_fused::ops::Act;
use candle_fused::reference::activation::reference;

fn var(x: &Tensor) -> Result<Tensor> {
    Ok(Var::from_tensor(x)?.into_inner())
}

/// The gradients of `Σ y·g`.
fn gradients(y: &Tensor, g: &Tensor) -> Result<GradStore> {
    (y * g)?.sum_all()?.backward()
}

#[test]
fn of_products() -> Result<()> {
    let cases: [(&[usize], &[usize], bool, bool); 6] = [
        (&[3, 5], &[5, 4], false, false),
        (&[5, 3], &[4, 5], true, true),
        (&[2, 3, 5], &[2, 5, 4], false, false),
        (&[2, 5, 3], &[2, 4, 5], true, true),
        (&[1, 5], &[5, 4], false, false),
        (&[3, 5], &[5, 1], false, false),
    ];
    for device in metal() {
        for (xs, ys, x_turned, y_turned) in cases {
            let turn = |t: &Tensor, turned| if turned { t.t() } else { Ok(t.clone()) };
            let of = |dims, seed| signal(dims, seed, DType::F32, device);
            let (x, y) = (var(&of(xs, 1)?)?, var(&of(ys, 2)?)?);
            let (x64, y64) = (var(&exact(&x)?)?, var(&exact(&y)?)?);
            let got = matmul(&turn(&x, x_turned)?, &turn(&y, y_turned)?)?;
            let want = turn(&x64, x_turned)?
                .contiguous()?
                .matmul(&turn(&y64, y_turned)?.contiguous()?)?;
            let g = signal(got.dims(), 3, DType::F32, device)?;
            let (got, want) = (gradients(&got, &g)?, gradients(&want, &exact(&g)?)?);
            for (a, b) in [(&x, &x64), (&y, &y64)] {
                let (a, b) = (
                    got.get(a).expect("a gradient"),
                    want.get(b).expect("a gradient"),
                );
                assert!(error(a, b)? < 1e-5, "{xs:?} by {ys:?}");
            }
            // What doesn't train gets no gradient.
            let grads = matmul(&turn(&x, x_turned)?, &turn(&y.detach(), y_turned)?)?.backward()?;
            assert!(grads.get(&x).is_some() && grads.get(&y).is_none());
        }
    }
    Ok(())
}

/// One weight for a batch.
#[test]
fn of_a_shared_operand() -> Result<()> {
    for device in metal() {
        let x = var(&signal(&[2, 3, 5], 1, DType::F32, device)?)?;
        let w = var(&signal(&[4, 5], 2, DType::F32, device)?)?;
        let (x64, w64) = (var(&exact(&x)?)?, var(&exact(&w)?)?);
        let shared = |w: &Tensor| w.t()?.broadcast_as((2, 5, 4));
        let g = signal(&[2, 3, 4], 3, DType::F32, device)?;
        let got = gradients(&matmul(&x, &shared(&w)?)?, &g)?;
        let want = gradients(&x64.matmul(&shared(&w64)?.contiguous()?)?, &exact(&g)?)?;
        for (a, b) in [(&x, &x64), (&w, &w64)] {
            let (a, b) = (
                got.get(a).expect("a gradient"),
                want.get(b).expect("a gradient"),
            );
            assert!(error(a, b)? < 1e-5);
        }
    }
    Ok(())
}

#[test]
fn of_softmax_and_activations() -> Result<()> {
    type Pair = (fn(&Tensor) -> Result<Tensor>, fn(&Tensor) -> Result<Tensor>);
    let mut cases: Vec<Pair> = vec![(softmax, |x| candle_nn::ops::softmax(x, 1))];
    macro_rules! acts {
        ($($act:expr),*) => {$(cases.push((|x| activation(x, $act), |x| reference(x, $act)));)*};
    }
    acts!(
        Act::Identity,
        Act::Relu,
        Act::LeakyRelu(0.125),
        Act::GeluErf,
        Act::Sigmoid,
        Act::Tanh,
        Act::Softplus
    );
    for device in metal() {
        let g = signal(&[4, 6], 2, DType::F32, device)?;
        for (i, (ours, reference)) in cases.iter().enumerate() {
            let x = var(&signal(&[6, 4], 1, DType::F32, device)?)?;
            let x64 = var(&exact(&x)?)?;
            let got = gradients(&ours(&x.t()?)?, &g)?;
            let want = gradients(&reference(&x64.t()?.contiguous()?)?, &exact(&g)?)?;
            let (got, want) = (
                got.get(&x).expect("a gradient"),
                want.get(&x64).expect("a gradient"),
            );
            assert!(error(got, want)? < 1e-5, "{i}");
        }
    }
    Ok(())
}
