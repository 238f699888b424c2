//! A row's inputs, and the two things that are timed on them.

use crate::cases::{Call, Fill, Run};
use crate::plan::{Kind, Row};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use std::hint::black_box;

/// How often an op may work in place on its own result before [`Workload::reset`]. More would lead
/// to denormals and infinities; and a reset before each call would leave x in another core's cache.
pub const MOST_IN_PLACE: usize = 16;

pub struct Workload<'a> {
    pub row: &'a Row<'a>,
    stock: Stock<'a>,
    /// Variables, where the row trains and the op has a gradient to them.
    pub inputs: Vec<Tensor>,
    /// What the in-place op gets: its own x, which every call overwrites.
    own: Vec<Tensor>,
}

impl<'a> Workload<'a> {
    pub fn new(row: &'a Row<'a>, device: &Device) -> Result<Self> {
        let inputs = inputs(row, row.dtype, device)?;
        let own = match row.kind {
            Kind::InPlace => own(&inputs)?,
            _ => Vec::new(),
        };
        Ok(Workload {
            row,
            stock: stock(row, device)?,
            inputs,
            own,
        })
    }

    /// Stock Candle's way to the row's result, which is dropped within.
    pub fn stock(&self) -> Result<()> {
        match self.row.kind {
            Kind::Train => train(&self.stock, &self.inputs),
            _ => run(&self.stock, &self.inputs),
        }
    }

    /// Our way to it.
    pub fn fused(&self) -> Result<()> {
        let case = self.row.case;
        match self.row.kind {
            Kind::Train => train(&case.fused, &self.inputs),
            Kind::Forward => run(&case.fused, &self.inputs),
            Kind::InPlace => {
                case.in_place.as_ref().expect("planned only where it is")(&self.own)?;
                black_box(&self.own);
                Ok(())
            }
        }
    }

    /// Gives the in-place op its input back, in the memory it already has.
    pub fn reset(&self) -> Result<()> {
        match self.own.first() {
            Some(x) => x.slice_set(&self.inputs[0], 0, 0),
            None => Ok(()),
        }
    }

    /// Whether stock draws its own random numbers, so that its results can't be ours.
    pub fn is_random(&self) -> bool {
        self.row.case.random
    }

    /// The bytes that a pass has to move: inputs and outputs, and the gradients when training.
    pub fn bytes(&self) -> Result<usize> {
        let gradients = match self.row.kind {
            Kind::Train => bytes(self.inputs.iter().filter(|x| x.is_variable())),
            _ => 0,
        };
        let outputs = match self.own.first() {
            Some(x) => bytes([x]),
            None => bytes(&(self.row.case.fused)(&self.inputs)?),
        };
        Ok(bytes(&self.inputs) + outputs + gradients)
    }

    /// The outputs, or the gradients when training, of our op.
    pub fn fused_results(&self) -> Result<Vec<Tensor>> {
        let case = self.row.case;
        match self.row.kind {
            Kind::InPlace => {
                let own = own(&self.inputs)?;
                case.in_place.as_ref().expect("planned only where it is")(&own)?;
                Ok(vec![own[0].clone()])
            }
            _ => results(self.row.kind, &case.fused, &self.inputs),
        }
    }

    /// The same of stock's.
    pub fn stock_results(&self) -> Result<Vec<Tensor>> {
        results(self.row.kind, &self.stock, &self.inputs)
    }

    /// The same of stock's composed ops, on the CPU and in a wider dtype.
    pub fn wide_results(&self, dtype: DType) -> Result<Vec<Tensor>> {
        let widen = |x: &Tensor| {
            let wide = x.to_device(&Device::Cpu)?.to_dtype(dtype)?.detach();
            match x.is_variable() {
                true => Ok(Var::from_tensor(&wide)?.into_inner()),
                false => Ok(wide),
            }
        };
        let inputs: Vec<Tensor> = self.inputs.iter().map(widen).collect::<Result<_>>()?;
        results(self.row.kind, &self.row.case.reference, &inputs)
    }
}

/// Stock Candle's side of a row.
enum Stock<'a> {
    Declared(&'a Call),
    Made(Call),
}

impl std::ops::Deref for Stock<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        match self {
            Stock::Declared(call) => call,
            Stock::Made(call) => call,
        }
    }
}

fn stock<'a>(row: &Row<'a>, device: &Device) -> Result<Stock<'a>> {
    let case = row.case;
    if let Some(make) = &case.stock_fast {
        let run = Run {
            size: row.size.size,
            kind: row.kind,
            dtype: row.dtype,
            device,
        };
        if let Some(call) = make(&run)? {
            return Ok(Stock::Made(call));
        }
    }
    Ok(Stock::Declared(match &case.stock {
        Some(stock) if row.kind != Kind::Train || case.stock_trains => stock,
        _ => &case.reference,
    }))
}

fn inputs(row: &Row, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    let inputs = row.case.inputs(row.size.size, dtype, device)?;
    let mut args = row.case.args.iter();
    let variable = |x: Tensor| {
        let trains = args.next().is_some_and(|arg| arg.grad);
        match row.kind == Kind::Train && trains {
            true => Ok(Var::from_tensor(&x)?.into_inner()),
            false => Ok(x),
        }
    };
    inputs.into_iter().map(variable).collect()
}

/// The inputs with a first one that may be overwritten.
fn own(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut own = inputs.to_vec();
    own[0] = own[0].copy()?;
    Ok(own)
}

fn run(call: &Call, inputs: &[Tensor]) -> Result<()> {
    black_box(call(black_box(inputs))?);
    Ok(())
}

/// Forward and backward. The gradient that comes in is all ones, which costs the same on both sides.
fn train(call: &Call, inputs: &[Tensor]) -> Result<()> {
    let outputs = call(black_box(inputs))?;
    black_box(total(outputs)?.backward()?);
    Ok(())
}

fn total(outputs: Vec<Tensor>) -> Result<Tensor> {
    let mut outputs = outputs.into_iter();
    let first = outputs.next().expect("an op has an output");
    outputs.try_fold(first, |sum, y| sum + y)
}

fn results(kind: Kind, call: &Call, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let outputs = call(inputs)?;
    if kind != Kind::Train {
        return Ok(outputs);
    }
    // Gradients of ones hide mistakes (softmax gives 0 for them), so these come from a signal.
    let weighted: Vec<Tensor> = outputs
        .iter()
        .enumerate()
        .map(|(i, y)| y * signal(y, i as u64)?)
        .collect::<Result<_>>()?;
    let grads = total(weighted)?.backward()?;
    let variables = inputs.iter().filter(|x| x.is_variable());
    Ok(variables.map(|x| gradient(&grads, x)).collect())
}

fn signal(y: &Tensor, index: u64) -> Result<Tensor> {
    // The coarsest dtype's values, which every dtype holds.
    Fill::Signal
        .tensor(y.dims(), 100 + index, DType::BF16, &Device::Cpu)?
        .to_dtype(y.dtype())?
        .to_device(y.device())
}

fn gradient(grads: &GradStore, x: &Tensor) -> Tensor {
    grads.get(x).expect("a gradient to every variable").clone()
}

fn bytes<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> usize {
    tensors
        .into_iter()
        .map(|t| t.elem_count() * t.dtype().size_in_bytes())
        .sum()
}
