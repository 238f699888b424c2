//! Ops with more than three inputs or more than one output.
//!
//! Candle's CustomOps take up to three tensors and return one. An op beyond that implements [`MultiOp`] and is applied by
//! [`apply_multi`], which runs its kernel once and ties the results into Candle's graph by tokens, tensors of one
//! element that carry no data:
//!
//! ```text
//! x ───────┐
//! residual ┼─► Inputs ─► token ─┐             ┌─► Output 0 ─► sum
//! weight ──┘                    ├─► Node ─► token
//! bias ──────► Inputs ─► token ─┘             └─► Output 1 ─► normed
//! ```
//!
//! Forward, each `Output` hands out the memory that the kernel has written: nothing is copied. Backward, Candle visits
//! the nodes from right to left: each `Output` leaves its gradient in the op's shared [`Mailbox`], `Node` computes the
//! gradients of all inputs in one call of [`MultiOp::bwd`] and leaves them there, and each `Inputs` passes its own on.
//! A backward pass runs on one thread, so the mailbox is kept per thread: two threads may go through one graph at once.

use super::{signature, specs, with_storages, Args, Grads, Op, OpResult, OpResults, Spec};
use crate::check;
use candle_core::op::BackpropOp;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Device, Result, Shape, Storage, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

/// An op of any number of inputs (up to nine) and outputs. As [`Op`](super::Op) where nothing else is said.
pub(crate) trait MultiOp: Send + Sync + 'static {
    const ARGS: &'static [&'static str];
    /// How many of the outputs, the last ones, are not returned but kept for the backward (a log-sum-exp, say).
    const SAVED: usize = 0;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()>;
    fn cpu(&self, args: Args<CpuStorage>) -> OpResults<CpuStorage>;
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResults<MetalStorage>;

    /// The gradients of the inputs. `outputs` holds all outputs, the saved ones last; `grads` has an entry for each that
    /// is not saved, `None` where it did not contribute to the loss.
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads;

    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>>;
}

/// Applies an op on behalf of the function `name`. The result has an entry for each output that is not saved.
pub(crate) fn apply_multi<O: MultiOp>(
    name: &'static str,
    op: O,
    args: &[&Tensor],
) -> Result<Vec<Tensor>> {
    check::same_device(name, O::ARGS, args)?;
    op.check(name, &specs(args))?;
    if !check::has_kernel(args[0]) {
        return op.reference(args);
    }
    let outputs: Vec<(Storage, Shape)> = match args[0].device() {
        #[cfg(feature = "metal")]
        Device::Metal(_) => wrapped(
            with_storages(name, args, |args| op.metal(args))?,
            Storage::Metal,
        ),
        Device::Cpu => wrapped(
            with_storages(name, args, |args| op.cpu(args))?,
            Storage::Cpu,
        ),
        device => {
            let location = device.location();
            return Err(check::error(
                name,
                format!("got a tensor on {location:?}, expected CPU or Metal"),
            ));
        }
    };
    let returned = outputs.len() - O::SAVED;
    if !args.iter().any(|t| t.track_op()) {
        return Ok(outputs.into_iter().take(returned).map(untracked).collect());
    }
    in_graph(name, op, args, outputs, returned)
}

fn wrapped<S>(outputs: Vec<(S, Shape)>, wrap: fn(S) -> Storage) -> Vec<(Storage, Shape)> {
    let outputs = outputs.into_iter();
    outputs.map(|(s, shape)| (wrap(s), shape)).collect()
}

fn untracked((storage, shape): (Storage, Shape)) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

fn in_graph<O: MultiOp>(
    name: &'static str,
    op: O,
    args: &[&Tensor],
    mut outputs: Vec<(Storage, Shape)>,
    returned: usize,
) -> Result<Vec<Tensor>> {
    let mailbox = Arc::new(Mailbox::default());
    let kept = Arc::new(OnceLock::new());
    let saved = outputs.split_off(returned);
    let mut links = Vec::new();
    for (i, group) in args.chunks(3).enumerate() {
        let op = Inputs {
            first: 3 * i,
            mailbox: mailbox.clone(),
        };
        links.push(super::apply_kernel(name, op, group)?);
    }
    let node = Node {
        name,
        op,
        inputs: args.iter().map(|&t| t.clone()).collect(),
        outputs: kept.clone(),
        returned,
        mailbox: mailbox.clone(),
    };
    let token = super::apply_kernel(name, node, &links.iter().collect::<Vec<_>>())?;
    let hand_out = |(i, output)| {
        let output = Mutex::new(Some(output));
        super::apply_kernel(
            name,
            Output {
                name,
                i,
                output,
                mailbox: mailbox.clone(),
            },
            &[&token],
        )
    };
    let outputs: Vec<Tensor> = outputs
        .into_iter()
        .enumerate()
        .map(hand_out)
        .collect::<Result<_>>()?;
    // Detached, so that the node does not keep itself alive through its own outputs.
    let detached = outputs.iter().map(Tensor::detach);
    let _ = kept.set(detached.chain(saved.into_iter().map(untracked)).collect());
    Ok(outputs)
}

/// The gradients that wait for the next node of the graph, by the thread whose backward pass it is.
#[derive(Default)]
struct Mailbox(Mutex<HashMap<ThreadId, Letters>>);

#[derive(Default)]
struct Letters {
    /// Gradients of the outputs, by the output's number.
    outputs: HashMap<usize, Tensor>,
    /// Gradients of the inputs.
    inputs: Vec<Option<Tensor>>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, HashMap<ThreadId, Letters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Letters) -> R) -> R {
        f(self.lock().entry(thread::current().id()).or_default())
    }
}

/// What a token's op needs: nothing is checked or computed, one element is returned.
macro_rules! token_op {
    ($bwd:item) => {
        signature!("token"());
        const FLOATS: bool = false;

        fn cpu(&self, _: Args<CpuStorage>) -> OpResult<CpuStorage> {
            Ok((CpuStorage::F32(vec![0.0]), 1.into()))
        }
        #[cfg(feature = "metal")]
        fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
            use candle_core::{backend::BackendStorage, DType};
            let device = args[0].0.device();
            let buffer = device.new_buffer(1, DType::F32, "token")?;
            Ok((
                MetalStorage::new(buffer, device.clone(), 1, DType::F32),
                1.into(),
            ))
        }
        $bwd
    };
}

/// Up to three of the inputs → a token. Backward, it fetches their gradients from the mailbox.
struct Inputs {
    first: usize,
    mailbox: Arc<Mailbox>,
}

impl Op for Inputs {
    token_op! {
        fn bwd(&self, inputs: &[&Tensor], _: &Tensor, _: &Tensor) -> Grads {
            let mut grads = Vec::with_capacity(inputs.len());
            for (i, input) in inputs.iter().enumerate() {
                let grad = self.mailbox.with(|letters| letters.inputs.get_mut(self.first + i).and_then(Option::take));
                grads.push(match grad {
                    // Candle expects a gradient for whatever tracks one, also from an output that does not depend on it.
                    None if input.track_op() => Some(input.zeros_like()?),
                    grad => grad,
                });
            }
            Ok(grads)
        }
    }
}

/// The tokens of all inputs → a token. Backward, it computes all gradients.
struct Node<O> {
    name: &'static str,
    op: O,
    inputs: Vec<Tensor>,
    /// All outputs, once they have been made.
    outputs: Arc<OnceLock<Vec<Tensor>>>,
    returned: usize,
    mailbox: Arc<Mailbox>,
}

impl<O: MultiOp> Op for Node<O> {
    token_op! {
        fn bwd(&self, links: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
            let mut letters = self.mailbox.with(|letters| std::mem::take(&mut letters.outputs));
            let grads: Vec<_> = (0..self.returned).map(|i| letters.remove(&i)).collect();
            let outputs = self.outputs.get().map_or(&[][..], Vec::as_slice);
            let inputs = self.op.bwd(&self.inputs, outputs, &grads)?;
            if inputs.len() != self.inputs.len() {
                let (got, expected) = (inputs.len(), self.inputs.len());
                return Err(check::error(self.name, format!("got {got} gradients, expected {expected}")));
            }
            self.mailbox.with(|letters| letters.inputs = inputs);
            Ok(vec![Some(grad.clone()); links.len()])
        }
    }
}

/// The node's token → one of the outputs. Backward, it leaves the output's gradient in the mailbox.
struct Output {
    name: &'static str,
    i: usize,
    output: Mutex<Option<(Storage, Shape)>>,
    mailbox: Arc<Mailbox>,
}

impl Output {
    fn take(&self) -> Option<(Storage, Shape)> {
        self.output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
    fn taken(&self) -> candle_core::Error {
        check::error(
            self.name,
            "an output was asked for twice, or on another device",
        )
    }
}

impl Op for Output {
    signature!("output"());
    const FLOATS: bool = false;

    fn cpu(&self, _: Args<CpuStorage>) -> OpResult<CpuStorage> {
        match self.take() {
            Some((Storage::Cpu(storage), shape)) => Ok((storage, shape)),
            _ => Err(self.taken()),
        }
    }
    #[cfg(feature = "metal")]
    fn metal(&self, _: Args<MetalStorage>) -> OpResult<MetalStorage> {
        match self.take() {
            Some((Storage::Metal(storage), shape)) => Ok((storage, shape)),
            _ => Err(self.taken()),
        }
    }
    fn bwd(&self, tokens: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        self.mailbox.with(|letters| {
            // A gradient that is there already was left by a backward pass that failed before it reached the node.
            if letters.outputs.contains_key(&self.i) {
                letters.outputs.clear();
            }
            letters.outputs.insert(self.i, grad.clone());
        });
        Ok(vec![Some(tokens[0].zeros_like()?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Var;

    /// `(a, b, c, d)` → `(a·b + c, c·d)`, and a·b saved.
    struct Sample;

    impl MultiOp for Sample {
        const ARGS: &'static [&'static str] = &["a", "b", "c", "d"];
        const SAVED: usize = 1;

        fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
            check::same_floats(name, Self::ARGS, args)
        }
        fn cpu(&self, args: Args<CpuStorage>) -> OpResults<CpuStorage> {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| args[i].0.as_slice::<f32>());
            let (a, b, c, d) = (a?, b?, c?, d?);
            let shape = args[0].1.shape();
            let make = |f: &dyn Fn(usize) -> f32| {
                let values: Vec<f32> = (0..a.len()).map(f).collect();
                (CpuStorage::F32(values), shape.clone())
            };
            Ok(vec![
                make(&|i| a[i] * b[i] + c[i]),
                make(&|i| c[i] * d[i]),
                make(&|i| a[i] * b[i]),
            ])
        }
        #[cfg(feature = "metal")]
        fn metal(&self, _: Args<MetalStorage>) -> OpResults<MetalStorage> {
            candle_core::bail!("a test on the CPU alone")
        }
        fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
            assert_eq!((outputs.len(), grads.len()), (3, 2));
            let product = (&inputs[0] * &inputs[1])?;
            assert_eq!(outputs[2].to_vec1::<f32>()?, product.to_vec1::<f32>()?);
            let (mut all, mut dc) = (vec![None; 4], None);
            if let Some(g) = &grads[0] {
                all[0] = Some((g * &inputs[1])?);
                all[1] = Some((g * &inputs[0])?);
                dc = Some(g.clone());
            }
            if let Some(g) = &grads[1] {
                let more = (g * &inputs[3])?;
                dc = Some(match dc {
                    Some(dc) => (dc + more)?,
                    None => more,
                });
                all[3] = Some((g * &inputs[2])?);
            }
            all[2] = dc;
            Ok(all)
        }
        fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![
                ((args[0] * args[1])? + args[2])?,
                (args[2] * args[3])?,
            ])
        }
    }

    fn vars() -> Result<Vec<Var>> {
        let of = |i: usize| Var::new(&[1.5 + i as f32, -2.0, 0.5 * i as f32], &Device::Cpu);
        (0..4).map(of).collect()
    }

    /// The gradients of a loss of both outputs, by the op and by its reference.
    fn compare(loss: fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
        let vars = vars()?;
        // Not the variables themselves: nodes of a graph must get gradients too.
        let nodes = vars
            .iter()
            .map(|v| v.affine(2.0, 1.0))
            .collect::<Result<Vec<_>>>()?;
        let args: Vec<&Tensor> = nodes.iter().collect();
        let outputs = apply_multi("sample", Sample, &args)?;
        let expected = Sample.reference(&args)?;
        for (got, expected) in outputs.iter().zip(&expected) {
            assert_eq!(got.to_vec1::<f32>()?, expected.to_vec1::<f32>()?);
        }
        let want = loss(&expected)?.backward()?;
        // A second pass through the same graph gives the same.
        for _ in 0..2 {
            let got = loss(&outputs)?.backward()?;
            for var in &vars {
                let values = |g: Option<&Tensor>| match g {
                    Some(g) => g.to_vec1::<f32>(),
                    None => Ok(vec![0.0; 3]),
                };
                assert_eq!(values(got.get(var))?, values(want.get(var))?);
            }
        }
        Ok(())
    }

    #[test]
    fn gradients_reach_all_inputs() -> Result<()> {
        compare(|y| (&y[0] + y[1].affine(3.0, 0.0)?)?.sum_all())?;
        compare(|y| y[0].sqr()?.sum_all())?;
        compare(|y| y[1].sqr()?.sum_all())
    }

    #[test]
    fn without_gradients_there_is_no_graph() -> Result<()> {
        let vars = vars()?;
        let args: Vec<Tensor> = vars.iter().map(|v| v.detach()).collect();
        let outputs = apply_multi("sample", Sample, &args.iter().collect::<Vec<_>>())?;
        assert_eq!(outputs.len(), 2);
        assert!(outputs.iter().all(|y| !y.track_op()));
        Ok(())
    }

    /// Two threads go through one graph at once: neither gets the other's gradients.
    #[test]
    fn threads_do_not_share_gradients() -> Result<()> {
        let vars = vars()?;
        let args: Vec<&Tensor> = vars.iter().map(Var::as_tensor).collect();
        let outputs = apply_multi("sample", Sample, &args)?;
        thread::scope(|scope| {
            for factor in [1.0, 10.0] {
                let (outputs, vars) = (&outputs, &vars);
                scope.spawn(move || {
                    for _ in 0..100 {
                        let loss = outputs[1].affine(factor, 0.0).and_then(|y| y.sum_all());
                        let grads = loss.and_then(|loss| loss.backward()).expect("a backward");
                        let got = grads.get(&vars[3]).map(|g| g.to_vec1::<f32>());
                        let c = vars[2].to_vec1::<f32>().expect("values");
                        let want: Vec<f32> = c.iter().map(|c| c * factor as f32).collect();
                        assert_eq!(got.expect("a gradient").expect("values"), want);
                    }
                });
            }
        });
        Ok(())
    }
}
