//! Every public CustomOp, applied by hand to whatever a user may pass: the answer is a result or an `Err`, never a panic, a
//! hang or an access out of bounds. `./test.sh` runs this with AddressSanitizer, which sees the last.

mod cases;

use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, Var};
use candle_fused::ops::*;
use candle_fused::quant::{ScaleScope, Scheme};
use cases::form::Form;
use std::fmt::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;

const SHAPES: &[&[usize]] = &[
    &[],
    &[0],
    &[1],
    &[5],
    &[32],
    &[1 << 20],
    &[5, 1],
    &[5, 32],
    &[4, 5],
    &[3, 32],
    &[0, 32],
    &[1, 32],
    &[0, 512],
    &[512, 0],
    &[2, 4, 5],
    &[2, 3, 4, 5],
    &[5, 3, 3, 3],
    &[1, 2, 1, 2, 1, 2, 1, 2],
];

/// Enough to go wrong in three places at a time.
const FEW_SHAPES: &[&[usize]] = &[
    &[],
    &[0],
    &[1],
    &[5],
    &[1 << 20],
    &[4, 5],
    &[5, 4],
    &[0, 5],
    &[2, 4, 5],
    &[5, 3, 3, 3],
];

const DTYPES: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::U8,
    DType::U32,
    DType::I64,
];

fn ones(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::ones(shape, dtype, &Device::Cpu)
}

/// 2⁶² elements in the memory of one.
fn huge() -> Result<Tensor> {
    ones(&[1, 1], DType::F32)?.broadcast_as((1usize << 31, 1usize << 31))
}

/// The shape in other memory: behind others, with gaps, turned round, repeated.
fn views(shape: &[usize]) -> Result<Vec<Tensor>> {
    let mut views = vec![ones(shape, DType::F32)?];
    if let (Some(&last), false) = (shape.last(), shape.contains(&(1 << 20))) {
        let mut padded = shape.to_vec();
        *padded.last_mut().unwrap() += 3;
        views.push(ones(&padded, DType::F32)?.narrow(shape.len() - 1, 2, last)?);
        views.push(ones(&[1], DType::F32)?.broadcast_as(shape)?);
        let mut turned = shape.to_vec();
        turned.reverse();
        let axes: Vec<usize> = (0..shape.len()).rev().collect();
        views.push(ones(&turned, DType::F32)?.permute(axes)?);
    }
    Ok(views)
}

/// Every list of `count` of the items.
fn product<T: Clone>(items: &[T], count: usize) -> Vec<Vec<T>> {
    (0..count).fold(vec![vec![]], |lists, _| {
        let extended = |list: &Vec<T>| {
            let with = |item: &T| [list.as_slice(), std::slice::from_ref(item)].concat();
            items.iter().map(with).collect::<Vec<_>>()
        };
        lists.iter().flat_map(extended).collect()
    })
}

struct Report(String);

impl Report {
    /// Runs a form, whose result must be an `Err` where the arguments can't suit any op.
    fn run(&mut self, form: &Form, args: &[Tensor], hopeless: bool) {
        let result = catch_unwind(AssertUnwindSafe(|| (form.run)(args)));
        let problem = match result {
            Err(_) => "panics",
            Ok(Ok(())) if hopeless => "accepts",
            Ok(_) => return,
        };
        let args: Vec<_> = args.iter().map(|t| (t.layout(), t.dtype())).collect();
        let _ = writeln!(
            self.0,
            "{} as {} {problem} {args:?}",
            form.name, form.trait_name
        );
    }
}

#[test]
fn arguments_that_do_not_suit_are_errors() -> Result<()> {
    let mut report = Report(String::new());
    for form in cases::custom_ops()? {
        let shapes = if form.args < 3 { SHAPES } else { FEW_SHAPES };
        for shapes in product(shapes, form.args) {
            let args: Vec<_> = shapes
                .iter()
                .map(|shape| ones(shape, DType::F32))
                .collect::<Result<_>>()?;
            report.run(&form, &args, false);
        }
        for dtypes in product(&DTYPES, form.args) {
            let narrow = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
            let hopeless = !narrow(dtypes[0]) || dtypes.iter().any(|dtype| *dtype != dtypes[0]);
            for shape in [&[4, 5][..], &[5]] {
                let args: Vec<_> = dtypes
                    .iter()
                    .map(|dtype| ones(shape, *dtype))
                    .collect::<Result<_>>()?;
                report.run(&form, &args, hopeless);
            }
        }
        for shape in SHAPES {
            for view in views(shape)? {
                let others = ones(
                    shape.last().map_or(&[][..], std::slice::from_ref),
                    DType::F32,
                )?;
                let mut args = vec![others; form.args];
                args[0] = view.clone();
                report.run(&form, &args, false);
                let args = vec![view; form.args];
                // In place that is also a tensor beside itself.
                report.run(&form, &args, false);
            }
        }
        // A sum of all elements, which can be computed, would take a lifetime.
        if !form.name.starts_with("Reduce") {
            for place in 0..form.args {
                let mut args = vec![ones(&[4, 5], DType::F32)?; form.args];
                args[place] = huge()?;
                report.run(&form, &args, true);
                report.run(&form, &vec![huge()?; form.args], true);
            }
        }
    }
    assert!(report.0.is_empty(), "\n{}", report.0);
    the_pool_works()
}

/// A panic in a worker would have broken every parallel op of the process, stock's too.
fn the_pool_works() -> Result<()> {
    let x = ones(&[1000, 1000], DType::F32)?;
    assert_eq!(x.matmul(&x)?.max_all()?.to_scalar::<f32>()?, 1000.0);
    for y in [candle_nn::ops::softmax_last_dim(&x)?, softmax_last_dim(&x)?] {
        assert!((y.max_all()?.to_scalar::<f32>()? - 1e-3).abs() < 1e-6);
    }
    Ok(())
}

/// Lengths that once were trusted.
#[test]
fn other_lengths_and_ranks_are_errors() -> Result<()> {
    let of = |shape: &[usize]| ones(shape, DType::F32);
    let (long, one) = (of(&[1 << 20])?, of(&[1])?);
    let act = Act::Silu;
    let add = DropoutAdd { p: 0.5, seed: 1 };
    let over_last = Reduce {
        reduction: Reduction::Max,
        over: Over::LastDim,
    };
    let causal = MaskedSoftmax {
        scale: 1.0,
        causal: true,
    };
    let softmax = Softmax { dim: 7, log: false };
    let results = [
        long.apply_op2_no_bwd(&one, &Glu(act)).map(drop),
        long.inplace_op2(&one, &Glu(act)),
        long.apply_op2_no_bwd(&one, &add).map(drop),
        of(&[5, 1])?.apply_op1_no_bwd(&GluPacked(act)).map(drop),
        of(&[3, 5])?.apply_op1_no_bwd(&softmax).map(drop),
        of(&[])?.apply_op1_no_bwd(&over_last).map(drop),
        of(&[])?.apply_op1_no_bwd(&causal).map(drop),
        of(&[7])?.apply_op1_no_bwd(&causal).map(drop),
        of(&[7])?.inplace_op1(&causal),
    ];
    for (i, result) in results.into_iter().enumerate() {
        assert!(result.is_err(), "call {i} is accepted");
    }
    Ok(())
}

fn assert_close(got: &Tensor, want: &Tensor) -> Result<()> {
    assert_eq!(got.dims(), want.dims());
    let (got, want) = (got.flatten_all()?, want.flatten_all()?);
    let pairs = got.to_vec1::<f32>()?.into_iter().zip(want.to_vec1()?);
    for (got, want) in pairs {
        let want: f32 = want;
        assert!(
            (got - want).abs() <= 1e-5 * want.abs().max(1.0),
            "{got} for {want}"
        );
    }
    Ok(())
}

/// Applied by hand an op trains, with kernels and (`CANDLE_FUSED_CPU_KERNELS=off`) without.
#[test]
fn applied_by_hand_ops_train() -> Result<()> {
    let x = Var::new(&[[1f32, -2., 3.], [0.5, 4., -1.]], &Device::Cpu)?;
    let weight = Var::new(&[2f32, 0.5, -1.], &Device::Cpu)?;
    let by_hand = x.apply_op2(&weight, RmsNorm { eps: 1e-5 })?;
    let reference = candle_fused::reference::row_norm::reference_rms(&x, Some(&weight), 1e-5)?;
    assert_close(&by_hand, &reference)?;
    let got = by_hand.sqr()?.sum_all()?.backward()?;
    let want = reference.sqr()?.sum_all()?.backward()?;
    for var in [&x, &weight] {
        assert_close(got.get(var).unwrap(), want.get(var).unwrap())?;
    }
    // One that is not trained gets nothing.
    let frozen = weight.detach();
    let grads = x
        .apply_op2(&frozen, RmsNorm { eps: 1e-5 })?
        .sum_all()?
        .backward()?;
    assert!(grads.get(&x).is_some() && grads.get(&frozen).is_none());
    Ok(())
}

/// The gradients of an op that holds tensors beside its arguments, by as many arguments as it takes.
#[test]
fn batch_norm_applied_by_hand_trains() -> Result<()> {
    let x = Var::new(
        &[[[1f32, -2.], [0.5, 4.]], [[3., 1.], [-1., 2.]]],
        &Device::Cpu,
    )?;
    let (weight, bias) = (
        Var::new(&[2f32, 0.5], &Device::Cpu)?,
        Var::new(&[0.25f32, -1.], &Device::Cpu)?,
    );
    let mean = Tensor::new(&[0.5f32, 1.], &Device::Cpu)?;
    let var = Tensor::new(&[2f32, 3.], &Device::Cpu)?;
    let norm = || BatchNorm {
        mean: mean.clone(),
        var: var.clone(),
        eps: 1e-5,
    };
    let vars = [&x, &weight, &bias];
    for args in 1..=3 {
        let (weight, bias) = (
            (args > 1).then_some(weight.as_tensor()),
            (args > 2).then_some(bias.as_tensor()),
        );
        let by_hand = match (weight, bias) {
            (None, _) => x.apply_op1(norm())?,
            (Some(weight), None) => x.apply_op2(weight, norm())?,
            (Some(weight), Some(bias)) => x.apply_op3(weight, bias, norm())?,
        };
        let reference =
            candle_fused::reference::batch_norm::reference(&x, &mean, &var, [weight, bias], 1e-5)?;
        assert_close(&by_hand, &reference)?;
        let got = by_hand.sqr()?.sum_all()?.backward()?;
        let want = reference.sqr()?.sum_all()?.backward()?;
        for var in &vars[..args] {
            assert_close(got.get(var).unwrap(), want.get(var).unwrap())?;
        }
    }
    Ok(())
}

/// Layouts that no tensor of Candle's has: by `cpu_fwd` anything can be passed.
#[test]
fn absurd_layouts_are_errors() -> Result<()> {
    let storage = CpuStorage::F32(vec![1.0; 4]);
    let layout = |dims: &[usize], strides: &[usize], offset| {
        Layout::new(Shape::from(dims), strides.to_vec(), offset)
    };
    let refused = [
        // Not a stride for each dim.
        layout(&[4, 100_000], &[1], 0),
        layout(&[4], &[1, 1], 0),
        layout(&[0], &[], 2),
        layout(&[], &[1], 0),
        // Outside of the storage.
        layout(&[5], &[1], 0),
        layout(&[4], &[1], 1),
        layout(&[2, 2], &[3, 1], 1),
        layout(&[2, 2], &[usize::MAX, 2], 0),
    ];
    // Without elements there is nothing to be outside of anything.
    let empty = [
        layout(&[0, 8], &[8, usize::MAX], usize::MAX),
        layout(&[0, 8], &[0, 5], 3),
        layout(&[8, 0], &[usize::MAX, usize::MAX], 9),
    ];
    macro_rules! each {
        ($($op:expr),*) => {$({
            for layout in &refused {
                let result = CustomOp1::cpu_fwd(&$op, &storage, layout);
                assert!(result.is_err(), "{} takes {layout:?}", stringify!($op));
            }
            for layout in &empty {
                if let Ok((_, shape)) = CustomOp1::cpu_fwd(&$op, &storage, layout) {
                    assert_eq!(shape.elem_count(), 0, "{} of {layout:?}", stringify!($op));
                }
            }
        })*};
    }
    let (eps, int8) = (1e-5, Scheme::int8(ScaleScope::Row));
    each!(
        Activation(Act::Silu),
        Dropout {
            relu: false,
            p: 0.5,
            seed: 1
        },
        FakeQuantize {
            scheme: int8,
            clipped: false
        },
        GluPacked(Act::Silu),
        LayerNorm { eps },
        RmsNorm { eps },
        Softmax { dim: 0, log: false },
        Softmax { dim: 1, log: true }
    );
    Ok(())
}

/// A held tensor that tracks gradients would get none, without a word.
#[test]
fn held_tensors_that_train_are_refused() -> Result<()> {
    let weight = Var::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    let lora = Lora {
        weight: weight.as_tensor().clone(),
        bias: None,
        scale: 1.0,
        dropout: None,
    };
    let x = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
    assert!(x
        .apply_op3(&x.copy()?, &weight.narrow(1, 0, 1)?, lora)
        .is_err());
    let w = quantize(
        &Tensor::ones((5, 32), DType::F32, &Device::Cpu)?,
        Scheme::ternary(ScaleScope::Row),
    )?;
    let scales = Var::from_tensor(w.scales())?.into_inner();
    let w = Quantized::new(
        w.codes().clone(),
        scales,
        None,
        w.shape().clone(),
        *w.scheme(),
    )?;
    let x = Tensor::ones((2, 32), DType::F32, &Device::Cpu)?;
    assert!(x.apply_op1(BitLinear { weight: w.clone() }).is_err());
    assert!(x
        .apply_op1(MixedMatmul {
            weight: w,
            activations: Activations::Exact
        })
        .is_err());
    Ok(())
}

/// In place, an op applied by hand changes its view and nothing else.
#[test]
fn applied_by_hand_ops_work_in_place() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = Tensor::arange(-12f32, 12., &Device::Cpu)?
            .reshape((4, 6))?
            .to_dtype(dtype)?;
        let before = x.copy()?;
        let view = x.narrow(1, 2, 3)?.t()?;
        view.inplace_op1(&Activation(Act::Relu))?;
        let parts = [
            before.narrow(1, 0, 2)?,
            before.narrow(1, 2, 3)?.relu()?,
            before.narrow(1, 5, 1)?,
        ];
        let want = Tensor::cat(&parts, 1)?;
        assert_close(&x.to_dtype(DType::F32)?, &want.to_dtype(DType::F32)?)?;
    }
    Ok(())
}

/// Whoever adds a CustomOp adds it to its op's `custom_ops` in tests/cases.
#[test]
fn every_custom_op_is_tried() -> Result<()> {
    let tried: Vec<_> = cases::custom_ops()?.iter().map(|form| form.name).collect();
    let mut missing = Vec::new();
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops"))? {
        let text = std::fs::read_to_string(file)?;
        for line in text.split("custom_op!(").skip(1) {
            let name: String = line.chars().take_while(|c| c.is_alphanumeric()).collect();
            // On Metal only.
            if !name.starts_with("Mps") && !tried.iter().any(|tried| tried.starts_with(&name)) {
                missing.push(name);
            }
        }
    }
    assert!(missing.is_empty(), "not tried: {missing:?}");
    Ok(())
}

fn sources(dir: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(sources(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}
