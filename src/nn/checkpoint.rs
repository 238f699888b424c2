//! Parts of a model whose graph is not kept for the backward, but made again there.

use crate::check;
use crate::op::{
    apply_kernel, contiguous_copy, put_in_graph, signature, with_storages, Args, Backward, Grads,
    Op, OpResult,
};
use crate::ops::max_all;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, TensorId, Var};
use std::collections::HashSet;
use std::sync::OnceLock;

const NAME: &str = "checkpoint";

/// f(x), without the graph of f: the backward runs f once more and goes back through that. Of a deep model whose blocks are
/// checkpointed, one input for each block is kept and the intermediate results of one block at a time, for about a third
/// more time.
///
/// Gradients reach x and every variable that f uses: those are found by a look at f's graph, before it is dropped. f must be a
/// function of its argument, of variables, and of tensors that track no gradients. What could make a gradient wrong in
/// silence is an error of the backward:
///
/// - f uses a tensor of the graph outside, which it was not given: pass it to [`checkpoint_many`].
/// - f gives other values when it runs again, or reaches other variables. Dropout by chance does; give it a seed, as
///   [`ops::dropout`](crate::ops::dropout) takes one, which f uses whenever it runs. A variable that changes between forward and
///   backward does too. Both runs take the same kernels, so that not even rounding may differ: every
///   element has to be the same.
///
/// Side effects of f, such as the running statistics of a batch norm in training, happen in both runs.
///
/// The result may not be overwritten before the backward has read it, by [`ops::cross_entropy_inplace`](crate::ops::cross_entropy_inplace)
/// say: that is an error of the backward, too.
///
/// On CUDA, and on a CPU for which this crate has no kernels, f is called as it is, and its graph is kept.
///
/// ```
/// use candle_core::{DType, Device, Result, Tensor, Var};
/// use candle_fused::nn::{checkpoint, linear, Module, VarBuilder, VarMap};
/// use candle_fused::ops::dropout;
/// # fn main() -> Result<()> {
/// let vars = VarMap::new();
/// let layer = linear(8, 8, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
/// let x = Var::randn(0f32, 1., (4, 8), &Device::Cpu)?;
/// let seed = 42;
/// let y = checkpoint(move |x| dropout(&layer.forward(x)?.gelu()?, 0.1, seed), &x)?;
/// let grads = y.sum_all()?.backward()?;
/// assert!(grads.get(&x).is_some());
/// assert!(vars.all_vars().iter().all(|var| grads.get(var).is_some()));
/// # Ok(())
/// # }
/// ```
pub fn checkpoint<F>(f: F, x: &Tensor) -> Result<Tensor>
where
    F: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
{
    checkpoint_many(move |inputs| f(&inputs[0]), &[x])
}

/// As [`checkpoint`], of any number of inputs.
///
/// ```
/// use candle_core::{Device, Result, Var};
/// use candle_fused::nn::checkpoint_many;
/// # fn main() -> Result<()> {
/// let (x, y) = (Var::new(&[2f32], &Device::Cpu)?, Var::new(&[3f32], &Device::Cpu)?);
/// let z = checkpoint_many(|inputs| (&inputs[0] * &inputs[1])?.exp(), &[&x, &y])?;
/// let grads = z.backward()?;
/// let slope = grads.get(&x).unwrap().to_vec1::<f32>()?[0];
/// assert!((slope - 3. * 6f32.exp()).abs() < 1e-3 * slope);
/// # Ok(())
/// # }
/// ```
pub fn checkpoint_many<F>(f: F, inputs: &[&Tensor]) -> Result<Tensor>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    if inputs.iter().any(|x| keeps_graph(x)) {
        return f(&inputs.iter().map(|&x| x.clone()).collect::<Vec<_>>());
    }
    let leaves = inputs.iter().map(|x| leaf(x)).collect::<Result<Vec<_>>>()?;
    let y = f(&leaves)?;
    if keeps_graph(&y) {
        // f has gone to such a device by itself. The graph of y ends in the leaves.
        return match inputs.iter().any(|x| x.track_op()) {
            true => f(&inputs.iter().map(|&x| x.clone()).collect::<Vec<_>>()),
            false => Ok(y),
        };
    }
    let graph = Graph::of(&y, &leaves);
    let is_tracked = inputs.iter().any(|x| x.track_op()) || !graph.vars.is_empty();
    if !is_tracked || y.dtype().is_int() {
        return Ok(y.detach());
    }
    let output = (copy_of(&y.detach())?, y.shape().clone());
    drop(y);
    let args: Vec<&Tensor> = inputs.iter().copied().chain(&graph.vars).collect();
    let again = Again {
        f,
        inputs: inputs.len(),
        nodes: graph.nodes,
        vars: graph.vars.iter().map(Tensor::id).collect(),
    };
    put_in_graph(NAME, again, &args, output)
}

/// Whether f is called as it is, because nothing of ours runs where this tensor is.
fn keeps_graph(x: &Tensor) -> bool {
    x.device().is_cuda() || x.device().is_cpu() && !check::cpu_has_kernels()
}

/// An input as f gets it: a variable if it tracks gradients, so that the graph of f ends there. In both runs, because a tensor that
/// tracks none may be computed by another kernel.
fn leaf(x: &Tensor) -> Result<Tensor> {
    match x.track_op() && x.dtype().is_float() {
        true => Ok(Var::from_tensor(&x.detach())?.into_inner()),
        false => Ok(x.detach()),
    }
}

/// The part of a result's graph that gradients go through.
struct Graph {
    /// The variables that f found for itself: all but its inputs, and those of integers.
    vars: Vec<Tensor>,
    /// The ids of all other tensors but the inputs: f computed them.
    nodes: HashSet<TensorId>,
}

impl Graph {
    fn of(y: &Tensor, leaves: &[Tensor]) -> Self {
        let leaves: HashSet<TensorId> = leaves.iter().map(Tensor::id).collect();
        let nodes = y.sorted_nodes().into_iter();
        let (vars, nodes): (Vec<&Tensor>, Vec<&Tensor>) = nodes
            .filter(|node| !leaves.contains(&node.id()))
            .partition(|node| node.is_variable());
        Graph {
            vars: vars
                .into_iter()
                .filter(|var| var.dtype().is_float())
                .cloned()
                .collect(),
            nodes: nodes.into_iter().map(Tensor::id).collect(),
        }
    }
}

/// The elements of a tensor in a storage of their own.
fn copy_of(y: &Tensor) -> Result<Storage> {
    match y.device() {
        #[cfg(feature = "metal")]
        Device::Metal(_) => with_storages(NAME, &[y], |args: Args<MetalStorage>| {
            Ok(Storage::Metal(contiguous_copy(NAME, args[0])?))
        }),
        Device::Cpu => with_storages(NAME, &[y], |args: Args<CpuStorage>| {
            Ok(Storage::Cpu(contiguous_copy(NAME, args[0])?))
        }),
        device => {
            let location = device.location();
            let message = format_args!("got a result on {location:?}, expected the inputs' device");
            Err(check::error(NAME, message))
        }
    }
}

/// The backward: f once more.
struct Again<F> {
    f: F,
    /// How many of the arguments are f's inputs; the others are the variables that it has found for itself.
    inputs: usize,
    /// The ids of what f computed in the first run. One that comes up again in the second run was made outside of f.
    nodes: HashSet<TensorId>,
    vars: HashSet<TensorId>,
}

impl<F> Backward for Again<F>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    fn bwd(&self, args: &[Tensor], outputs: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let [Some(grad)] = grads else {
            return Ok(vec![None; args.len()]);
        };
        let (inputs, vars) = args.split_at(self.inputs);
        let leaves = inputs.iter().map(leaf).collect::<Result<Vec<_>>>()?;
        let y = (self.f)(&leaves)?;
        self.check_graph(&Graph::of(&y, &leaves))?;
        check_values(&y, &outputs[0])?;
        let grads = (y * grad.detach())?.sum_all()?.backward()?;
        let of_leaf = |(leaf, arg): (&Tensor, &Tensor)| match grads.get(leaf) {
            // Candle computes gradients of operands that track none, too.
            _ if !leaf.track_op() => Ok(None),
            None => leaf.zeros_like().map(Some),
            // Candle's gradients are results of the tensors that they were made from, and would keep the whole graph.
            Some(grad) => once_differentiable(&grad.detach(), arg).map(Some),
        };
        leaves.iter().chain(vars).zip(args).map(of_leaf).collect()
    }
}

impl<F> Again<F> {
    fn check_graph(&self, graph: &Graph) -> Result<()> {
        let message = "f uses a tensor that tracks gradients and was not given, expected it among the inputs: \
                       it would be gone through again with each checkpoint";
        check::ensure(self.nodes.is_disjoint(&graph.nodes), NAME, message)?;
        let vars: HashSet<TensorId> = graph.vars.iter().map(Tensor::id).collect();
        let message = format_args!(
            "f reached {} variables when it ran again, expected the same {} as before",
            vars.len(),
            self.vars.len()
        );
        check::ensure(vars == self.vars, NAME, message)
    }
}

/// A gradient as Candle gets it. With the environment variable `CANDLE_GRAD_DO_NOT_DETACH`, Candle keeps graphs of gradients; through
/// this one there is no way, and that is an error of a second backward.
fn once_differentiable(grad: &Tensor, arg: &Tensor) -> Result<Tensor> {
    static KEEPS_GRAPHS: OnceLock<bool> = OnceLock::new();
    let variable = || std::env::var("CANDLE_GRAD_DO_NOT_DETACH");
    match KEEPS_GRAPHS.get_or_init(|| variable().is_ok_and(|v| !v.is_empty() && v != "0")) {
        true => apply_kernel(NAME, OnceDifferentiable, &[grad, arg]),
        false => Ok(grad.clone()),
    }
}

/// (gradient, argument) → the gradient, as a result of the argument that has no gradient itself.
struct OnceDifferentiable;

impl Op for OnceDifferentiable {
    signature!("checkpoint"(grad, argument));
    const FLOATS: bool = false;

    fn cpu(&self, args: Args<CpuStorage>) -> OpResult<CpuStorage> {
        let shape = args[0].1.shape().clone();
        Ok((contiguous_copy(NAME, args[0])?, shape))
    }
    #[cfg(feature = "metal")]
    fn metal(&self, args: Args<MetalStorage>) -> OpResult<MetalStorage> {
        let shape = args[0].1.shape().clone();
        Ok((contiguous_copy(NAME, args[0])?, shape))
    }
}

/// The second run has given what the first has.
fn check_values(again: &Tensor, before: &Tensor) -> Result<()> {
    let (got, expected) = (again.shape(), before.shape());
    let message =
        format_args!("f gave shape {got:?} when it ran again, expected {expected:?} as before");
    check::ensure(
        got == expected && again.dtype() == before.dtype(),
        NAME,
        message,
    )?;
    let message =
        "f gave other values when it ran again, expected the same: give dropout a fixed seed";
    check::ensure(are_equal(again, before)?, NAME, message)
}

/// Whether each element is the same in both, or NaN in both.
fn are_equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    if a.elem_count() == 0 {
        return Ok(true);
    }
    let wide = check::accumulator_dtype(a.dtype());
    let (a, b) = (a.detach().to_dtype(wide)?, b.detach().to_dtype(wide)?);
    let most = max_all(&(&a - &b)?.abs()?)?.to_device(&Device::Cpu)?;
    if most.to_dtype(DType::F64)?.to_scalar::<f64>()? == 0.0 {
        return Ok(true);
    }
    // Differences of infinities are NaN, and of NaNs.
    let nans = (a.ne(&a)? * b.ne(&b)?)?;
    let equal = (a.eq(&b)? + nans)?.to_dtype(DType::F32)?;
    let different = equal.affine(-1.0, 1.0)?.sum_all()?;
    Ok(different.to_scalar::<f32>()? == 0.0)
}
