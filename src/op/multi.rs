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
//! the nodes from right to left: each `Output` leaves its gradient in a [`Mailbox`], `Node` computes the gradients of all
//! inputs in one call of [`MultiOp::bwd`] and leaves them in another, and each `Inputs` passes its own on.
//!
//! A letter in a mailbox belongs to one backward pass. A pass runs on one thread, so that a letter is for the thread that
//! left it: two threads may go through one graph at once. And a pass may fail before its letters are read; they must not be
//! taken for those of the next. So whoever leaves a letter gives Candle a token's gradient that holds the letter's [`Seal`].
//! Candle adds that gradient up in the pass's `GradStore` by a tracked sum, which keeps it alive up to the node that reads
//! the letter, but no longer than the pass: a letter whose seal is gone counts for nothing.

use super::apply::addressable;
use super::storage::{with_named_storages, MOST_ARGS};
use super::{signature, specs, Args, Grads, KernelStorage, Op, OpResult, OpResults, Spec};
use crate::check;
use candle_core::op::BackpropOp;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Device, Result, Shape, Storage, Tensor};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, ThreadId};

/// An op of up to nine inputs and any number of outputs. Its methods mean what the methods of [`Op`](super::Op) mean. One thing
/// differs: inputs may differ in dtype, so that [`MultiOp::check`] has to begin with `check::same_floats` where they must not.
/// The test `Sample` below is a small example with four inputs, two outputs and a saved tensor.
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

/// What gives the gradients of an op of many inputs: a [`MultiOp`], or whatever has made its outputs by other means.
pub(crate) trait Backward: Send + Sync + 'static {
    /// As [`MultiOp::bwd`].
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads;
}

impl<O: MultiOp> Backward for O {
    fn bwd(&self, inputs: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        MultiOp::bwd(self, inputs, outputs, grads)
    }
}

/// An output that was computed by other means, as the result of the inputs (any number of them) in Candle's graph.
pub(crate) fn put_in_graph(
    name: &'static str,
    backward: impl Backward,
    inputs: &[&Tensor],
    output: (Storage, Shape),
) -> Result<Tensor> {
    let outputs = in_graph(name, backward, inputs, vec![output], 1)?;
    let first = outputs.into_iter().next();
    first.ok_or_else(|| check::error(name, "got no output, expected one"))
}

/// Applies an op on behalf of the function `name`. The result has an entry for each output that is not saved.
pub(crate) fn apply_multi<O: MultiOp>(
    name: &'static str,
    op: O,
    args: &[&Tensor],
) -> Result<Vec<Tensor>> {
    run(name, op, args, |outputs| Ok(outputs.collect()))
}

/// As [`apply_multi`], for an op that returns two tensors.
pub(crate) fn apply_multi_pair<O: MultiOp>(
    name: &'static str,
    op: O,
    args: &[&Tensor],
) -> Result<(Tensor, Tensor)> {
    run(name, op, args, |outputs| {
        match (outputs.next(), outputs.next(), outputs.next()) {
            (Some(a), Some(b), None) => Ok((a, b)),
            _ => Err(check::error(name, "got other outputs, expected two")),
        }
    })
}

/// Applies an op and collects the outputs that are not saved by `collect`. A `Vec` of them would be another allocation, of
/// which an op on tiny tensors takes as long as a few.
fn run<O: MultiOp, R>(
    name: &'static str,
    op: O,
    args: &[&Tensor],
    collect: impl FnOnce(&mut dyn Iterator<Item = Tensor>) -> Result<R>,
) -> Result<R> {
    check::same_device(name, O::ARGS, args)?;
    if !check::has_kernel(args[0]) {
        addressable(name, O::ARGS, args)?;
        op.check(name, &specs(args))?;
        return collect(&mut op.reference(args)?.into_iter());
    }
    match args[0].device() {
        #[cfg(feature = "metal")]
        Device::Metal(_) => {
            let outputs = with_checked_storages(name, &op, args, |args| op.metal(args))?;
            results(name, op, args, outputs, Storage::Metal, collect)
        }
        Device::Cpu => {
            let outputs = with_checked_storages(name, &op, args, |args| op.cpu(args))?;
            results(name, op, args, outputs, Storage::Cpu, collect)
        }
        device => {
            let location = device.location();
            let message = format_args!("got a tensor on {location:?}, expected CPU or Metal");
            Err(check::error(name, message))
        }
    }
}

/// Calls `f` with the arguments' storages, once the op has accepted them.
fn with_checked_storages<O: MultiOp, S: KernelStorage>(
    name: &'static str,
    op: &O,
    args: &[&Tensor],
    f: impl FnOnce(Args<S>) -> OpResults<S>,
) -> OpResults<S> {
    with_named_storages(name, O::ARGS, args, |args| {
        let mut specs = [Spec::from(&args[0]); MOST_ARGS];
        for (spec, arg) in specs.iter_mut().zip(args) {
            *spec = arg.into();
        }
        op.check(name, &specs[..args.len()])?;
        f(args)
    })
}

/// The outputs that are not saved, as tensors; in a graph where an argument tracks gradients.
fn results<O: MultiOp, S, R>(
    name: &'static str,
    op: O,
    args: &[&Tensor],
    outputs: Vec<(S, Shape)>,
    wrap: impl Fn(S) -> Storage,
    collect: impl FnOnce(&mut dyn Iterator<Item = Tensor>) -> Result<R>,
) -> Result<R> {
    let returned = outputs.len() - O::SAVED;
    let outputs = outputs.into_iter().map(|(s, shape)| (wrap(s), shape));
    match args.iter().any(|t| t.track_op()) {
        true => collect(&mut in_graph(name, op, args, outputs.collect(), returned)?.into_iter()),
        false => collect(&mut outputs.take(returned).map(untracked)),
    }
}

fn untracked((storage, shape): (Storage, Shape)) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

fn in_graph<O: Backward>(
    name: &'static str,
    op: O,
    args: &[&Tensor],
    mut outputs: Vec<(Storage, Shape)>,
    returned: usize,
) -> Result<Vec<Tensor>> {
    let output_grads = Arc::new(Mailbox::default());
    let input_grads = Arc::new(Mailbox::default());
    let kept = Arc::new(OnceLock::new());
    let saved = outputs.split_off(returned);
    let mut links = Vec::new();
    for (i, group) in args.chunks(3).enumerate() {
        let op = Inputs {
            first: 3 * i,
            grads: input_grads.clone(),
        };
        links.push(super::apply_kernel(name, op, group)?);
    }
    // A node has up to three links; more are joined by threes.
    while links.len() > 3 {
        let join = |group: &[Tensor]| {
            let grads = input_grads.clone();
            super::apply_kernel(name, Relay { grads }, &group.iter().collect::<Vec<_>>())
        };
        links = links.chunks(3).map(join).collect::<Result<_>>()?;
    }
    let node = Node {
        name,
        op,
        inputs: args.iter().map(|&t| t.clone()).collect(),
        outputs: kept.clone(),
        returned,
        output_grads: output_grads.clone(),
        input_grads,
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
                grads: output_grads.clone(),
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

/// The gradients that wait for the next node of the graph.
#[derive(Default)]
struct Mailbox(Mutex<Vec<Letter>>);

struct Letter {
    thread: ThreadId,
    /// Which output or input it is the gradient of.
    number: usize,
    grad: Tensor,
    seal: Weak<Seal>,
}

/// Lives as long as the backward pass that has left the letters.
struct Seal;

impl Mailbox {
    /// Leaves the gradients of outputs or inputs, by their numbers, for as long as the seal lives. Letters whose pass is over
    /// are thrown away, those of threads that have ended too.
    fn leave(&self, grads: impl IntoIterator<Item = (usize, Tensor)>) -> Arc<Seal> {
        let (seal, thread) = (Arc::new(Seal), thread::current().id());
        let mut letters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        letters.retain(|letter| letter.seal.strong_count() > 0);
        letters.extend(grads.into_iter().map(|(number, grad)| Letter {
            thread,
            number,
            grad,
            seal: Arc::downgrade(&seal),
        }));
        seal
    }

    /// The gradient with this number, if the backward pass of this thread has left one.
    fn take(&self, number: usize) -> Option<Tensor> {
        let thread = thread::current().id();
        let mut letters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        letters.retain(|letter| letter.seal.strong_count() > 0);
        let mine = |letter: &Letter| letter.thread == thread && letter.number == number;
        let at = letters.iter().position(mine)?;
        Some(letters.swap_remove(at).grad)
    }

    /// Throws away what earlier backward passes of this thread have left. A letter of theirs may still lie here, and its seal
    /// live: where no gradient reached an input's node, nobody has taken it, and the gradients of that pass may be kept.
    fn forget(&self) {
        let thread = thread::current().id();
        let mut letters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        letters.retain(|letter| letter.thread != thread);
    }

    /// The seal of the letters that the backward pass of this thread has left.
    fn seal(&self) -> Option<Arc<Seal>> {
        let thread = thread::current().id();
        let letters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mine = letters.iter().filter(|letter| letter.thread == thread);
        mine.find_map(|letter| letter.seal.upgrade())
    }
}

/// `(value, token)` → the value as a gradient of the token. It tracks the token, and so Candle's sum of it and others keeps
/// it, and the seal.
struct Sealed(#[allow(dead_code, reason = "it is only held")] Arc<Seal>);

impl Sealed {
    fn gradient(seal: &Arc<Seal>, value: &Tensor, token: &Tensor) -> Result<Tensor> {
        super::apply_kernel("token", Sealed(seal.clone()), &[value, token])
    }
}

impl Op for Sealed {
    signature!("token"());
    const FLOATS: bool = false;

    fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage> {
        Ok((args[0].0.clone(), 1.into()))
    }
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        Ok((args[0].0.clone(), 1.into()))
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

/// Up to three of the inputs → a token. Backward, it fetches their gradients.
struct Inputs {
    first: usize,
    grads: Arc<Mailbox>,
}

impl Op for Inputs {
    token_op! {
        fn bwd(&self, inputs: &[&Tensor], _: &Tensor, _: &Tensor) -> Grads {
            let mut grads = Vec::with_capacity(inputs.len());
            for (i, input) in inputs.iter().enumerate() {
                grads.push(match self.grads.take(self.first + i) {
                    // Candle expects a gradient for whatever tracks one, also from an output that does not depend on it.
                    None if input.track_op() => Some(input.zeros_like()?),
                    grad => grad,
                });
            }
            Ok(grads)
        }
    }
}

/// Up to three tokens → a token. Backward, it keeps the seal of the letters for the inputs behind it.
struct Relay {
    grads: Arc<Mailbox>,
}

impl Op for Relay {
    token_op! {
        fn bwd(&self, links: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
            let seal = self.grads.seal();
            let pass_on = |link: &&Tensor| match &seal {
                Some(seal) => Sealed::gradient(seal, grad, link).map(Some),
                // All letters have been read: the inputs behind this node get no gradient.
                None => Ok(Some(link.zeros_like()?)),
            };
            links.iter().map(pass_on).collect()
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
    output_grads: Arc<Mailbox>,
    input_grads: Arc<Mailbox>,
}

impl<O: Backward> Op for Node<O> {
    token_op! {
        fn bwd(&self, links: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
            let grads: Vec<_> = (0..self.returned).map(|i| self.output_grads.take(i)).collect();
            let outputs = self.outputs.get().map_or(&[][..], Vec::as_slice);
            let inputs = self.op.bwd(&self.inputs, outputs, &grads)?;
            if inputs.len() != self.inputs.len() {
                let (got, expected) = (inputs.len(), self.inputs.len());
                return Err(check::error(self.name, format!("got {got} gradients, expected {expected}")));
            }
            let inputs = inputs.into_iter().enumerate();
            // One pass comes here once.
            self.input_grads.forget();
            let seal = self.input_grads.leave(inputs.filter_map(|(i, grad)| Some((i, grad?))));
            links.iter().map(|link| Sealed::gradient(&seal, grad, link).map(Some)).collect()
        }
    }
}

/// The node's token → one of the outputs. Backward, it leaves the output's gradient for the node.
struct Output {
    name: &'static str,
    i: usize,
    output: Mutex<Option<(Storage, Shape)>>,
    grads: Arc<Mailbox>,
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
        let seal = self.grads.leave([(self.i, grad.clone())]);
        Ok(vec![Some(Sealed::gradient(
            &seal,
            &tokens[0].zeros_like()?,
            tokens[0],
        )?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{CustomOp1, DType, Layout, Var};

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

    /// x → x, with a backward that fails.
    struct Fails;

    impl CustomOp1 for Fails {
        fn name(&self) -> &'static str {
            "fails"
        }
        fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
            Ok((x.clone(), l.shape().clone()))
        }
    }

    /// A backward pass that fails leaves nothing to the next one, on whatever thread, and nothing for ever.
    #[test]
    fn a_failed_pass_leaves_no_gradients() -> Result<()> {
        let vars = vars()?;
        let args: Vec<&Tensor> = vars.iter().map(Var::as_tensor).collect();
        let outputs = apply_multi("sample", Sample, &args)?;
        let expected = Sample.reference(&args)?;
        let fail = || -> Result<()> {
            for [used, other] in [[0, 1], [1, 0]] {
                // Candle may take the terms of a sum in either order: in one of them `used` leaves its gradient first.
                let used = outputs[used].sum_all()?;
                let fails = outputs[other].apply_op1(Fails)?.sum_all()?;
                assert!((&used + &fails)?.backward().is_err());
                assert!((&fails + &used)?.backward().is_err());
            }
            Ok(())
        };
        for i in [0, 1] {
            fail()?;
            thread::scope(|scope| scope.spawn(fail).join()).expect("no panic")?;
            let got = outputs[i].sum_all()?.backward()?;
            let want = expected[i].sum_all()?.backward()?;
            for var in &vars {
                let values = |g: Option<&Tensor>| g.map(|g| g.to_vec1::<f32>()).transpose();
                let zeros = Some(vec![0.0; 3]);
                assert_eq!(values(got.get(var))?, values(want.get(var))?.or(zeros));
            }
        }
        Ok(())
    }

    #[test]
    fn letters_do_not_outlive_their_pass() -> Result<()> {
        let (mailbox, grad) = (
            Mailbox::default(),
            Tensor::zeros(1, DType::F32, &Device::Cpu)?,
        );
        let leave = |number| mailbox.leave([(number, grad.clone())]);
        let seal = leave(0);
        drop(leave(1));
        assert!(mailbox.take(1).is_none());
        thread::scope(|scope| scope.spawn(|| drop(leave(2))).join()).expect("no panic");
        assert!(mailbox.take(2).is_none());
        assert!(mailbox.take(0).is_some() && mailbox.take(0).is_none());
        drop(seal);
        assert_eq!(mailbox.0.lock().map(|letters| letters.len()).ok(), Some(0));
        Ok(())
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
