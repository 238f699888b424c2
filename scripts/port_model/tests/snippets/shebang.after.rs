#!/usr/bin/env cargo-eval
//! A script that isn't one of Cargo's own.
#![allow(dead_code)]

use candle_fused::FusedTensorOps as _;
use candle_core::{Result, Tensor};

fn stem(x: &Tensor) -> Result<Tensor> {
    x.max_pool2d_fused(2)
}
