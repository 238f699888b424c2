use super::{assert_near, cpu};
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::ops::*;

#[test]
fn small_rows() -> Result<()> {
    let want = [0.09003057, 0.24472847, 0.66524096];
    for x in [
        [1f32, 2., 3.],
        [1000., 1001., 1002.],
        [-1000., -999., -998.],
    ] {
        let x = cpu(&x)?;
        assert_near(&softmax_last_dim(&x)?, &want, 1e-7)?;
        assert_near(&softmax(&x, 0)?, &want, 1e-7)?;
        let logs = want.map(f64::ln);
        assert_near(&log_softmax(&x, 0)?, &logs, 1e-6)?;
    }
    Ok(())
}

#[test]
fn rows_of_known_shapes_sum_to_one() -> Result<()> {
    let shapes: [&[usize]; 6] = [
        &[4, 1024],
        &[2, 128, 512],
        &[1, 512],
        &[16, 256],
        &[1, 128, 768],
        &[4, 64, 1024],
    ];
    for shape in shapes {
        for value in [100f32, -100., 0.] {
            let x = Tensor::full(value, shape, &Device::Cpu)?;
            let y = softmax_last_dim(&x)?;
            let cols = shape[shape.len() - 1];
            let one = y.narrow(D::Minus1, 0, 1)?.flatten_all()?.get(0)?;
            assert_near(&one, &[1. / cols as f64], 1e-9)?;
            let sums = y.sum(D::Minus1)?.flatten_all()?;
            assert_near(&sums, &vec![1.; sums.elem_count()], 1e-5)?;
        }
    }
    Ok(())
}

#[test]
fn masks() -> Result<()> {
    let x = cpu(&[[1f32, 2., 3.], [1., 2., 3.]])?;
    let inf = f32::INFINITY;
    let mask = cpu(&[[0f32, 0., -inf], [-inf, -inf, -inf]])?;
    // e¹ : e² over the visible two; nothing visible gives zeros, not NaN.
    let y = masked_softmax(&x, 1.0, Mask::Additive(&mask))?;
    assert_near(&y, &[0.26894142, 0.73105858, 0., 0., 0., 0.], 1e-7)?;
    // The last query sees all three keys, the first all but the last.
    let y = masked_softmax(&x, 1.0, Mask::Causal)?;
    let last = [0.09003057, 0.24472847, 0.66524096];
    let want = [&[0.26894142, 0.73105858, 0.][..], &last].concat();
    assert_near(&y, &want, 1e-7)?;
    let y = masked_softmax(&x.zeros_like()?, 3.0, Mask::None)?;
    assert_near(&y, &[1. / 3.; 6], 1e-7)
}

/// More queries than keys: the first queries see nothing.
#[test]
fn causal_rows_before_the_first_key() -> Result<()> {
    let x = Tensor::zeros((4, 2), DType::F32, &Device::Cpu)?;
    let y = masked_softmax(&x, 1.0, Mask::Causal)?;
    assert_near(&y, &[0., 0., 0., 0., 1., 0., 0.5, 0.5], 0.)
}

/// What a query may not see doesn't count, not even a NaN; what it sees does.
#[test]
fn hidden_keys_do_not_count() -> Result<()> {
    for hidden in [f32::NAN, f32::INFINITY] {
        let x = cpu(&[[0f32, hidden], [0., hidden]])?;
        let y = masked_softmax(&x, 1.0, Mask::Causal)?.to_vec2::<f32>()?;
        assert_eq!(y[0], [1., 0.]);
        assert!(y[1][1].is_nan(), "{y:?}");
    }
    Ok(())
}
