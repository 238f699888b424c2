//! The signatures of candle-core that the snippets use.

use std::ops::{Add, Div, Mul};

#[derive(Debug)]
pub struct Error;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Clone, Debug)]
pub struct Tensor;

pub struct Shape;

pub struct Device;

#[derive(Clone, Copy)]
pub enum DType {
    F32,
}

pub enum D {
    Minus1,
    Minus2,
}

pub trait Dim {}
impl Dim for usize {}
impl Dim for D {}

pub trait Dims {}
impl Dims for &[usize] {}
impl Dims for &Shape {}
impl Dims for usize {}
impl Dims for (usize, usize) {}

pub trait ToUsize2 {}
impl ToUsize2 for usize {}
impl ToUsize2 for (usize, usize) {}

pub trait Module {
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

impl<T: Fn(&Tensor) -> Result<Tensor>> Module for T {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self(x)
    }
}

impl Shape {
    pub fn dims(&self) -> &[usize] {
        &[]
    }
}

macro_rules! methods {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        impl Tensor {
            $(pub fn $name(&self, $($arg: $ty),*) -> Result<Tensor> {
                $(let _ = $arg;)*
                Ok(Tensor)
            })*
        }
    };
}

methods! {
    avg_pool2d(size: impl ToUsize2);
    avg_pool2d_with_stride(size: impl ToUsize2, stride: impl ToUsize2);
    broadcast_add(other: &Tensor);
    broadcast_as(shape: impl Dims);
    broadcast_left(shape: impl Dims);
    contiguous();
    elu(alpha: f64);
    exp();
    flatten_from(dim: impl Dim);
    gelu();
    gelu_erf();
    interpolate2d(height: usize, width: usize);
    matmul(other: &Tensor);
    max_pool2d(size: impl ToUsize2);
    max_pool2d_with_stride(size: impl ToUsize2, stride: impl ToUsize2);
    pad_with_same(dim: impl Dim, left: usize, right: usize);
    relu();
    silu();
    sqr();
    t();
    tanh();
    to_dtype(dtype: DType);
    transpose(a: impl Dim, b: impl Dim);
    unsqueeze(dim: impl Dim);
    upsample_bilinear2d(height: usize, width: usize, align_corners: bool);
    upsample_nearest1d(size: usize);
    upsample_nearest2d(height: usize, width: usize);
    where_cond(yes: &Tensor, no: &Tensor);
}

impl Tensor {
    pub fn new(_: f32, _: &Device) -> Result<Tensor> {
        Ok(Tensor)
    }

    pub fn zeros(_: impl Dims, _: DType, _: &Device) -> Result<Tensor> {
        Ok(Tensor)
    }

    pub fn apply<M: Module>(&self, module: &M) -> Result<Tensor> {
        module.forward(self)
    }

    pub fn device(&self) -> &Device {
        &Device
    }

    pub fn dim(&self, _: impl Dim) -> Result<usize> {
        Ok(1)
    }

    pub fn dims(&self) -> &[usize] {
        &[]
    }

    pub fn dtype(&self) -> DType {
        DType::F32
    }

    pub fn shape(&self) -> &Shape {
        &Shape
    }
}

macro_rules! operator {
    ($trait:ident, $name:ident, $($right:ty),*) => {$(
        impl $trait<$right> for Tensor {
            type Output = Result<Tensor>;
            fn $name(self, _: $right) -> Result<Tensor> {
                Ok(self)
            }
        }
        impl $trait<$right> for &Tensor {
            type Output = Result<Tensor>;
            fn $name(self, _: $right) -> Result<Tensor> {
                Ok(self.clone())
            }
        }
    )*};
}
operator!(Add, add, f64, Tensor, &Tensor);
operator!(Div, div, f64, Tensor, &Tensor);
operator!(Mul, mul, f64, Tensor, &Tensor);
