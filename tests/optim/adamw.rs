//! AdamW in f32 and f64: stock's numbers, for any shape and layout of gradients.

use super::{adamw, close, message, params, signal, store};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{AdamW, Moments, Optimizer, ParamsAdamW, Rounding};

/// Sizes at and around vectors, blocks and what is worth sharing out; nothing, one element, and many dims.
const SHAPES: [&[usize]; 9] = [
    &[0],
    &[1],
    &[],
    &[5, 0, 2],
    &[31],
    &[256],
    &[257, 3],
    &[2, 3, 1, 43],
    &[150, 1001],
];

fn compare_with_stock(dtype: DType, device: &Device, bound: f64) -> Result<()> {
    let config = |lr| ParamsAdamW {
        lr,
        weight_decay: 0.1,
        eps: 1e-6,
        beta1: 0.8,
        beta2: 0.95,
    };
    let start = |seed: usize| signal(SHAPES[seed], seed as u64, dtype, device);
    let ours = (0..SHAPES.len()).map(|i| Var::from_tensor(&start(i)?));
    let ours = ours.collect::<Result<Vec<_>>>()?;
    let stock = (0..SHAPES.len()).map(|i| Var::from_tensor(&start(i)?));
    let stock = stock.collect::<Result<Vec<_>>>()?;
    let mut adam = AdamW::new(ours.clone(), config(0.03))?;
    let mut stock_adam = candle_nn::AdamW::new(stock.clone(), config(0.03))?;
    for step in 0..4 {
        let grads = SHAPES
            .iter()
            .enumerate()
            .map(|(i, shape)| signal(shape, (100 * step + i) as u64, dtype, device));
        let grads = grads.collect::<Result<Vec<_>>>()?;
        // The fourth variable gets a gradient now and then.
        let given = |i: usize| i != 4 || step % 2 == 0;
        let pairs = |vars: &'_ [Var]| {
            let pairs = vars.iter().zip(&grads).enumerate();
            store(pairs.filter(|(i, _)| given(*i)).map(|(_, pair)| pair))
        };
        // The learning rate changes on the way.
        adam.set_learning_rate(0.03 / (step + 1) as f64);
        stock_adam.set_learning_rate(0.03 / (step + 1) as f64);
        adam.step(&pairs(&ours))?;
        // Stock refuses variables without elements.
        let mut stock_pairs = pairs(&stock);
        for var in stock.iter().filter(|var| var.elem_count() == 0) {
            stock_pairs.remove(var);
        }
        stock_adam.step(&stock_pairs)?;
        for (ours, stock) in ours.iter().zip(&stock) {
            close(ours, stock, bound)?;
        }
    }
    Ok(())
}

#[test]
fn gives_stocks_numbers() -> Result<()> {
    for device in devices() {
        compare_with_stock(DType::F32, device, 2e-6)?;
    }
    compare_with_stock(DType::F64, &Device::Cpu, 1e-12)
}

/// Transposed, broadcast, with an offset, and in another dtype.
#[test]
fn takes_gradients_of_any_layout() -> Result<()> {
    for device in devices() {
        for dtype in super::DTYPES {
            let wide = signal(&[9, 20], 3, dtype, device)?;
            let column = signal(&[7, 1], 4, dtype, device)?;
            for grad in [
                wide.narrow(1, 4, 7)?.t()?,
                wide.narrow(0, 1, 7)?.narrow(1, 3, 9)?,
                column.broadcast_as((7, 9))?,
                signal(&[7, 9], 5, DType::F32, device)?,
                signal(&[7, 9], 6, DType::F16, device)?,
            ] {
                let vars = [0, 1].map(|_| Var::from_tensor(&signal(&[7, 9], 1, dtype, device)?));
                let [a, b] = vars;
                let (a, b) = (a?, b?);
                adamw(std::slice::from_ref(&a), Moments::F32, Rounding::Master)?
                    .step(&store([(&a, &grad)]))?;
                let dense = grad.to_dtype(DType::F32)?.force_contiguous()?;
                adamw(std::slice::from_ref(&b), Moments::F32, Rounding::Master)?
                    .step(&store([(&b, &dense)]))?;
                close(&a, &b, 0.0)?;
            }
        }
    }
    Ok(())
}

#[test]
fn nans_and_infinities_go_where_stocks_go() -> Result<()> {
    for device in devices() {
        let grad = [f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1e30];
        let grad = Tensor::new(&grad, device)?;
        let start = Tensor::new(&[1f32, f32::NAN, 2.0, 3.0, f32::INFINITY, 4.0], device)?;
        let (a, b) = (Var::from_tensor(&start)?, Var::from_tensor(&start)?);
        let mut ours = AdamW::new(vec![a.clone()], params())?;
        let mut stock = candle_nn::AdamW::new(vec![b.clone()], params())?;
        for _ in 0..2 {
            ours.step(&store([(&a, &grad)]))?;
            stock.step(&store([(&b, &grad)]))?;
            close(&a, &b, 1e-6)?;
        }
    }
    Ok(())
}

/// Variables that threads take as wholes get what they get one by one.
#[test]
fn many_small_variables_are_each_as_alone() -> Result<()> {
    let make = || -> Result<Vec<Var>> {
        let vars = (0..60).map(|i| {
            let x = signal(&[37 * i + 1], i as u64, DType::F32, &Device::Cpu)?;
            Var::from_tensor(&x)
        });
        vars.collect()
    };
    let (together, alone) = (make()?, make()?);
    let mut adam = AdamW::new(together.clone(), params())?;
    let grads = together.iter().map(|var| var.sqr());
    let grads = grads.collect::<Result<Vec<_>>>()?;
    adam.step(&store(together.iter().zip(&grads)))?;
    for (i, var) in alone.iter().enumerate() {
        AdamW::new(vec![var.clone()], params())?.step(&store([(var, &grads[i])]))?;
        close(&together[i], var, 0.0)?;
    }
    Ok(())
}

#[test]
fn a_shorter_model_of_the_trait_works() -> Result<()> {
    let w = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
    let whole = Var::new(&[1u32, 2], &Device::Cpu)?;
    let mut adam = AdamW::from_slice(&[&w, &whole], params())?;
    let loss = |w: &Var| w.sqr()?.sum_all()?.to_scalar::<f32>();
    let before = loss(&w)?;
    for _ in 0..100 {
        adam.backward_step(&w.sqr()?.sum_all()?)?;
    }
    assert!(loss(&w)? < before / 2.0);
    assert_eq!(adam.learning_rate(), 0.01);
    let lr = ParamsAdamW {
        lr: 0.5,
        ..params()
    };
    adam.set_params(lr);
    assert_eq!((adam.learning_rate(), adam.params().lr), (0.5, 0.5));
    AdamW::empty(params())?.step(&w.sqr()?.sum_all()?.backward()?)
}

#[test]
fn what_cannot_be_right_is_refused() -> Result<()> {
    let w = Var::ones((2, 3), DType::F32, &Device::Cpu)?;
    let twice = message(AdamW::new(vec![w.clone(), w.clone()], params()));
    assert!(
        twice.contains("AdamW: got variables 0 and 1 in the same memory"),
        "{twice}"
    );

    let other = Var::ones(4, DType::F32, &Device::Cpu)?;
    let mut adam = AdamW::new(vec![other.clone(), w.clone()], params())?;
    let good = Tensor::ones(4, DType::F32, &Device::Cpu)?;
    let bad = Tensor::ones((3, 2), DType::F32, &Device::Cpu)?;
    let refused = message(adam.step(&store([(&other, &good), (&w, &bad)])));
    assert!(
        refused.contains("[3, 2]") && refused.contains("[2, 3]"),
        "{refused}"
    );
    // Nothing has moved, not even the variable with a good gradient.
    assert_eq!(
        (other.to_vec1::<f32>()?, adam.step_count()),
        (vec![1.0; 4], 0)
    );

    let codes = Tensor::ones((2, 3), DType::U32, &Device::Cpu)?;
    assert!(message(adam.step(&store([(&w, &codes)]))).starts_with("AdamW: got dtype U32"));
    let f8 = Var::from_tensor(&good.to_dtype(DType::F8E4M3)?)?;
    assert!(message(AdamW::new(vec![f8], params())).contains("expected f32, f16 or bf16"));
    Ok(())
}

/// Gradients in the memory of variables, which the step overwrites: of the variable itself, and of one before it.
#[test]
fn gradients_may_lie_in_variables() -> Result<()> {
    for device in devices() {
        let (a, b) = (
            Var::from_tensor(&signal(&[300], 1, DType::F32, device)?)?,
            Var::from_tensor(&signal(&[300], 2, DType::F32, device)?)?,
        );
        let vars = [a.clone(), b.clone()];
        let copies = [a.as_tensor(), b.as_tensor()]
            .map(|t| t.force_contiguous().and_then(|t| Var::from_tensor(&t)));
        let [a2, b2] = copies;
        let (a2, b2) = (a2?, b2?);
        let apart = [a2.clone(), b2.clone()];
        let mut adam = AdamW::new(vars.to_vec(), params())?;
        let mut slow = AdamW::new(apart.to_vec(), params())?;
        for _ in 0..3 {
            let (of_a, of_b) = (
                a2.as_detached_tensor().force_contiguous()?,
                a2.as_detached_tensor().force_contiguous()?,
            );
            slow.step(&store([(&a2, &of_a), (&b2, &of_b)]))?;
            adam.step(&store([(&a, a.as_tensor()), (&b, a.as_tensor())]))?;
        }
        for (var, apart) in vars.iter().zip(&apart) {
            close(var, apart, 0.0)?;
        }
    }
    Ok(())
}
