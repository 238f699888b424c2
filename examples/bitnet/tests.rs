//! A smaller model, and fewer steps.

use crate::data::{self, Batch, Vocabulary};
use crate::difference::max_error;
use crate::model::Model;
use crate::projection::Form;
use crate::rng::Rng;
use crate::same_bits::same_bits;
use crate::shape::Shape;
use crate::train::{self, Plan};
use crate::{cli, generate::generate, wide, TOLERANCE};
use candle_core::{safetensors, Device, Tensor};
use candle_fused::nn::quantized::Tensors;

const STEPS: usize = 40;

struct Trained {
    shape: Shape,
    model: Model,
    tensors: Tensors,
    batch: Batch,
    losses: (f64, f64),
}

fn trained() -> Trained {
    let vocabulary = Vocabulary::of(&[data::TUNED]);
    let text = vocabulary.encode(data::TUNED).unwrap();
    let shape = Shape {
        vocabulary: vocabulary.len(),
        context: 24,
        dim: 48,
        hidden: 100,
        heads: 3,
        layers: 2,
    };
    let mut rng = Rng::new(1);
    let (model, vars) = Model::untrained(shape, &mut rng).unwrap();
    let batch = Batch::random(&text, 4, shape.context, &mut rng).unwrap();
    let plan = Plan {
        name: "test",
        text: &text,
        held_out: &batch,
        steps: STEPS,
        windows: 8,
        learning_rate: 4e-3,
    };
    let curve = train::train(&model, vars.all_vars(), &plan, &mut rng).unwrap();
    let tensors = model.frozen(&vars).unwrap();
    Trained {
        shape,
        model,
        tensors,
        batch,
        losses: (curve.train[0].into(), curve.last()),
    }
}

impl Trained {
    fn load(&self, form: Form) -> Model {
        Model::load(self.shape, form, &self.tensors).unwrap()
    }

    fn logits(&self, model: &Model) -> Tensor {
        model.forward(&self.batch.inputs, None).unwrap()
    }
}

#[test]
fn learns_and_packs() {
    let trained = trained();
    let (first, last) = trained.losses;
    assert!(last < first - 0.7, "loss {first} → {last}");

    let logits = trained.logits(&trained.model);
    let packed = trained.load(Form::Packed);
    let error = max_error(&[trained.logits(&packed)], &[logits]).unwrap();
    assert!(error < TOLERANCE, "{error}");
    // 2 bits, a scale for each projection, and rows that end with a byte of their own.
    let bytes: usize = packed.projections().map(|p| p.bytes()).sum();
    let weights: usize = packed.projections().map(|p| p.weights()).sum();
    assert_eq!(bytes, weights / 4 + 14 * 4);

    let path = std::env::temp_dir().join(format!("candle-fused-bitnet-{}", std::process::id()));
    safetensors::save(&trained.tensors, &path).unwrap();
    let tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    std::fs::remove_file(&path).unwrap();
    let again = Model::load(trained.shape, Form::Packed, &tensors).unwrap();
    let (a, b) = (trained.logits(&packed), trained.logits(&again));
    assert!(same_bits(&a, &b).unwrap());
}

#[test]
fn a_cache_changes_nothing() {
    let trained = trained();
    for (form, tolerance) in [(Form::Packed, TOLERANCE), (Form::Float, 1e-5)] {
        let model = trained.load(form);
        let ids = trained.batch.inputs.narrow(0, 0, 1).unwrap();
        let whole = model.forward(&ids, None).unwrap();
        let mut cache = model.cache();
        let parts = [(0, 5), (5, 1), (6, 18)].map(|(start, len)| {
            let part = ids.narrow(1, start, len).unwrap();
            model.forward(&part, Some(&mut cache)).unwrap()
        });
        let parts = Tensor::cat(&parts, 1).unwrap();
        let error = max_error(&[parts], &[whole]).unwrap();
        assert!(error < tolerance, "{error}");
        assert!(model.forward(&ids, Some(&mut cache)).is_err());

        let text = generate(&model, &[1, 2], 24, 3).unwrap();
        assert_eq!((text.len(), &text[..2]), (24, &[1, 2][..]));
        assert_eq!(text, generate(&model, &[1, 2], 24, 3).unwrap());
    }
}

#[test]
fn wide_layers_agree() {
    let times = wide::measure(&[(12, 160), (5, 66)], &mut Rng::new(1)).unwrap();
    assert_eq!(times.float_bytes, (12 * 160 + 5 * 66) * 4);
    assert_eq!(times.packed_bytes, 12 * 40 + 4 + 5 * 17 + 4);
}

#[test]
fn options_are_read() {
    let parse = |line: &str| {
        let args = ["bitnet"].into_iter().chain(line.split_whitespace());
        cli::parse(args.map(Into::into))
    };
    let options = parse("--steps 7 --seed 2 --out a --wide").unwrap().unwrap();
    assert_eq!((options.steps, options.seed), (7, 2));
    assert!(options.wide && options.out.as_os_str() == "a");
    assert!(parse("--help").unwrap().is_none());
    for line in ["--steps 0", "--steps x", "--seed -1", "--fast", "a"] {
        assert!(parse(line).is_err(), "{line}");
    }
}
