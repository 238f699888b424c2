//! `candle_nn::kv_cache` and `moe`.

use super::{cases, some_call, Case};
use candle_core::{DType, Result, Tensor};

/// Both tensors, one behind the other.
fn both(k: &Tensor, v: &Tensor) -> Result<Tensor> {
    Tensor::cat(&[k.flatten_all()?, v.flatten_all()?], 0)
}

fn keys(cache: Option<Tensor>) -> Result<Tensor> {
    cache.ok_or_else(|| candle_core::Error::Msg("an empty cache".into()))
}

cases! {
    "kv_cache::Cache::append", "kv_cache::Cache::current_data", "kv_cache::Cache::all_data" => [[1, 2, 3, 4]] |t| {
        let mut cache = nn::kv_cache::Cache::new(2, 3);
        cache.append(&t[0])?;
        both(&keys(cache.current_data()?)?, &keys(cache.all_data().clone())?)
    }, |t| both(&t[0], &t[0]);
    "kv_cache::KvCache::append", "kv_cache::KvCache::k", "kv_cache::KvCache::v" => [[1, 2, 3, 4], [1, 2, 3, 4]] |t| {
        let mut cache = nn::kv_cache::KvCache::new(2, 8);
        let (k, v) = cache.append(&t[0], &t[1])?;
        Tensor::cat(&[both(&k, &v)?, both(&keys(cache.k()?)?, &keys(cache.v()?)?)?], 0)
    }, |t| Tensor::cat(&[both(&t[0], &t[1])?, both(&t[0], &t[1])?], 0);
    "kv_cache::RotatingCache::append", "kv_cache::RotatingCache::current_data",
    "kv_cache::RotatingCache::all_data" => [[1, 2, 3, 4]] |t| {
        let mut cache = nn::kv_cache::RotatingCache::new(2, 3);
        let k = cache.append(&t[0])?;
        let kept = both(&keys(cache.current_data()?)?, &keys(cache.all_data().clone())?)?;
        Tensor::cat(&[k.flatten_all()?, kept], 0)
    }, |t| Tensor::cat(&[t[0].flatten_all()?, both(&t[0], &t[0])?], 0);
    "kv_cache::RotatingKvCache::append", "kv_cache::RotatingKvCache::k", "kv_cache::RotatingKvCache::v"
        => [[1, 2, 3, 4], [1, 2, 3, 4]] |t| {
        let mut cache = nn::kv_cache::RotatingKvCache::new(2, 5);
        let (k, v) = cache.append(&t[0], &t[1])?;
        Tensor::cat(&[both(&k, &v)?, both(&keys(cache.k()?)?, &keys(cache.v()?)?)?], 0)
    }, |t| Tensor::cat(&[both(&t[0], &t[1])?, both(&t[0], &t[1])?], 0);
    "kv_cache::ConcatKvCache::append", "kv_cache::ConcatKvCache::k", "kv_cache::ConcatKvCache::v",
    "kv_cache::ConcatKvCache::k_mut", "kv_cache::ConcatKvCache::v_mut", "kv_cache::ConcatKvCache::into_inner"
        => [[1, 2, 3, 4], [1, 2, 3, 4]] |t| {
        let mut cache = nn::kv_cache::ConcatKvCache::new(2);
        let (k, v) = cache.append(&t[0], &t[1])?;
        let kept = both(&keys(cache.k().cloned())?, &keys(cache.v().cloned())?)?;
        // Others in the place of what is cached.
        let put = |slot: Option<&mut Tensor>, by: f64| -> Result<()> {
            if let Some(x) = slot {
                *x = (&*x * by)?;
            }
            Ok(())
        };
        put(cache.k_mut(), 2.0)?;
        put(cache.v_mut(), 3.0)?;
        let (k2, v2) = cache.into_inner().unzip();
        Tensor::cat(&[both(&k, &v)?, kept, both(&keys(k2)?, &keys(v2)?)?], 0)
    }, |t| {
        let once = both(&t[0], &t[1])?;
        Tensor::cat(&[once.clone(), once, both(&(&t[0] * 2.0)?, &(&t[1] * 3.0)?)?], 0)
    };
    "kv_cache::InterleavedKvCache::append", "kv_cache::InterleavedKvCache::kv" => [[1, 2, 3, 4], [1, 2, 3, 4]] |t| {
        let mut cache = nn::kv_cache::InterleavedKvCache::new(4);
        let all = cache.append(&t[0], &t[1])?;
        both(&all, &keys(cache.kv().cloned())?)
    }, |t| {
        let rows = |x: &Tensor| x.squeeze(0)?.transpose(0, 1);
        let all = Tensor::cat(&[rows(&t[0])?, rows(&t[1])?], 2)?;
        both(&all, &all)
    };
}

mod refused {
    use super::*;
    use candle_core::quantized::{GgmlDType, QTensor};

    cases! {
        "kv_cache::ScatteredKvCache::append", "kv_cache::ScatteredKvCache::k", "kv_cache::ScatteredKvCache::v"
            => [[1, 2, 3, 4], [1, 2, 3, 4]] |t| {
            let mut builder = nn::kv_cache::ScatteredCacheBuilder::new(1, 5, DType::F32, t[0].device())?;
            let step = builder.indices_and_mask(3, &[true])?;
            let mut cache = builder.make_cache(2, 4)?;
            let (k, v) = cache.append(&t[0], &t[1], &step)?;
            Tensor::cat(&[both(&k, &v)?, both(cache.k(), cache.v())?], 0)
        };
        // Behind other tokens.
        "kv_cache::KvCache::append" => [[1, 2, 3, 4], [1, 2, 3, 4]] |t| {
            let mut cache = nn::kv_cache::KvCache::new(2, 8);
            cache.append(&t[0].detach(), &t[1].detach())?;
            let (k, v) = cache.append(&t[0], &t[1])?;
            both(&k, &v)
        };
        "kv_cache::ConcatKvCache::append" => [[1, 2, 3, 4], [1, 2, 3, 4]] |t| {
            let mut cache = nn::kv_cache::ConcatKvCache::new(2);
            cache.append(&t[0], &t[1])?;
            let (k, v) = cache.append(&t[0], &t[1])?;
            both(&k, &v)
        };
        // Stock's kernels are for CUDA alone; on other devices it is always an error.
        "moe::moe_gemm" => [[2, 4], [3, 5, 4]] |t| {
            let ids = Tensor::new(&[0u32, 1], t[0].device())?;
            nn::moe::moe_gemm(&t[0], &t[1], &None, &ids, &ids, 1, false)
        };
        "moe::moe_gemm_gguf" => [[2, 32]] |t| {
            let ids = Tensor::new(&[0u32, 1], t[0].device())?;
            let weights = Tensor::zeros((3, 32), DType::F32, &candle_core::Device::Cpu)?;
            let weights = QTensor::quantize(&weights, GgmlDType::Q8_0)?;
            nn::moe::moe_gemm_gguf(&t[0], &weights, &None, &ids, &ids, 1, false, DType::F32)
        };
    }
}

/// Calls that are an error with arguments that track gradients.
pub fn refusals() -> Vec<Case> {
    let mut cases = refused::cases();
    cases.iter_mut().for_each(|case| case.refuses = true);
    cases
}
