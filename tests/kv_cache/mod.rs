//! Caches of keys and values: stock's results, without its silent overwrites.

mod fixed;
mod gradients;
mod stock;

use crate::devices::devices;
use crate::tensors::signal;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::kv_cache::{
    Cache, ConcatKvCache, FixedKvCache, FixedKvConfig, InterleavedKvCache, KvCache, RotatingCache,
    RotatingKvCache,
};

/// Tokens `[1, 2, n, 4]` that differ from all others.
fn tokens(n: usize, seed: u64, device: &Device) -> Result<Tensor> {
    signal(&[1, 2, n, 4], seed, device)
}

/// The same tokens with the strides of a projection that is split into heads.
fn by_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.contiguous()?.transpose(1, 2)
}

fn flat(x: &Tensor) -> Result<Vec<f32>> {
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

fn assert_same(got: &Tensor, want: &Tensor) -> Result<()> {
    assert_eq!(got.dims(), want.dims());
    assert_eq!(flat(got)?, flat(want)?);
    Ok(())
}

fn says<T>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(_) => panic!("accepted, not refused with {words:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}

/// A fork and its original go apart, whichever is written first; what was handed out before stays as it was.
#[test]
fn a_fork_shares_nothing_that_is_written() -> Result<()> {
    for device in devices() {
        let [a, b, c] = [3, 1, 1].map(|n| tokens(n, 10 + n as u64, device).unwrap());
        let c = c.affine(-1.0, 0.5)?;
        let mut one = KvCache::new(2, 8);
        let (before, _) = one.append(&a, &a)?;
        let want = flat(&before)?;
        let mut two = one.fork();
        let (k2, _) = two.append(&b, &b)?;
        let (k1, _) = one.append(&c, &c)?;
        assert_same(&k1, &Tensor::cat(&[&a, &c], 2)?)?;
        assert_same(&k2, &Tensor::cat(&[&a, &b], 2)?)?;
        assert_eq!(flat(&before)?, want);

        let mut one = RotatingKvCache::new(2, 3);
        one.append(&a, &a)?;
        let mut two = one.clone();
        let (k1, v1) = one.append(&b, &c)?;
        let (k2, _) = two.append(&c, &b)?;
        assert_same(&k1.narrow(2, 0, 1)?, &b)?;
        assert_same(&v1.narrow(2, 0, 1)?, &c)?;
        assert_same(&k2.narrow(2, 0, 1)?, &c)?;
        assert_same(&k2.narrow(2, 1, 2)?, &a.narrow(2, 1, 2)?)?;
    }
    Ok(())
}

#[test]
fn truncated_slots_are_written_again() -> Result<()> {
    for device in devices() {
        let (a, b) = (tokens(5, 1, device)?, tokens(2, 2, device)?);
        let mut cache = KvCache::new(2, 4);
        cache.append(&a, &a)?;
        assert_eq!(cache.k_cache().max_seq_len(), 8);
        cache.truncate(3)?;
        let (k, _) = cache.append(&b, &b)?;
        assert_same(&k, &Tensor::cat(&[&a.narrow(2, 0, 3)?, &b], 2)?)?;
        says(cache.truncate(6), &["KvCache::truncate", "6", "5"]);
        cache.reset();
        assert!(cache.k()?.is_none() && cache.current_seq_len() == 0);
    }
    Ok(())
}

/// What is refused changes nothing.
#[test]
fn a_refused_append_leaves_the_cache_as_it_was() -> Result<()> {
    for device in devices() {
        let (a, b) = (tokens(3, 1, device)?, tokens(1, 2, device)?);
        let wrong = signal(&[1, 3, 1, 4], 3, device)?;
        let half = b.to_dtype(DType::F16)?;
        let mut cache = KvCache::new(2, 3);
        cache.append(&a, &a)?;
        says(
            cache.append(&b, &wrong),
            &["KvCache::append", "[1, 3, 1, 4]"],
        );
        says(
            cache.append(&wrong, &b),
            &["KvCache::append", "[1, 3, 1, 4]"],
        );
        says(cache.append(&b, &half), &["KvCache::append", "F16", "F32"]);
        says(
            cache.append(&b, &a),
            &["KvCache::append", "1 tokens of k and 3 of v"],
        );
        let (k, v) = cache.append(&b, &b)?;
        assert_same(&k, &Tensor::cat(&[&a, &b], 2)?)?;
        assert_same(&v, &k)?;

        let mut cache = RotatingKvCache::new(2, 3);
        cache.append(&a, &a)?;
        says(
            cache.append(&b, &wrong),
            &["RotatingKvCache::append", "[1, 3, 1, 4]"],
        );
        assert_same(&cache.k()?.expect("keys"), &a)?;

        let mut cache = ConcatKvCache::new(2);
        cache.append(&a, &a)?;
        says(cache.append(&b, &half), &["ConcatKvCache::append", "F16"]);
        assert_eq!(cache.current_seq_len(), 3);
        says(Cache::new(2, 0).append(&a), &["Cache::append", "0"]);
        let words = ["Cache::append: got src of shape [1, 2, 3, 4]", "dim 7"];
        says(Cache::new(7, 1).append(&a), &words);
        says(
            RotatingCache::new(7, 1).append(&a),
            &["RotatingCache::append", words[0]],
        );
        let words = ["KvCache::append: got k of shape [1, 2, 3, 4]", "dim 7"];
        says(KvCache::new(7, 1).append(&a, &a), &words);
        says(ConcatKvCache::new(7).append(&a, &a), &["Concat", words[0]]);
        let flat = a.squeeze(0)?;
        let words = ["InterleavedKvCache::append: got k of shape [2, 3, 4]"];
        says(InterleavedKvCache::new(4).append(&flat, &flat), &words);
        let flat = flat.get(0)?;
        let config = FixedKvConfig::new(1, 2, 4, 8);
        let mut cache = FixedKvCache::new(config, DType::F32, device)?;
        let words = ["FixedKvCache::append: got k of shape [3, 4]", "dim 2"];
        says(cache.append(&flat, &flat), &words);
    }
    Ok(())
}

/// A tensor that the user has put in is what the next append goes on from, even one of another length.
#[test]
fn a_concat_cache_takes_what_is_put_in() -> Result<()> {
    for device in devices() {
        let (a, b) = (tokens(3, 1, device)?, tokens(2, 2, device)?);
        let mut cache = ConcatKvCache::new(2);
        cache.append(&a, &a)?;
        *cache.k_mut().expect("keys") = b.clone();
        let (k, v) = cache.append(&b, &b)?;
        assert_same(&k, &Tensor::cat(&[&b, &b], 2)?)?;
        assert_same(&v, &Tensor::cat(&[&a, &b], 2)?)?;
        assert_same(&b, &tokens(2, 2, device)?)?;
        let (k, _) = cache.into_inner().expect("keys and values");
        assert_eq!(k.dims(), [1, 2, 4, 4]);
    }
    Ok(())
}

/// Every dtype that a cache may hold, with tokens whose bytes are odd in number, and offsets that are.
#[test]
fn any_dtype_and_width_is_moved_as_it_is() -> Result<()> {
    for device in devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::U8, DType::U32] {
            for width in [1, 3, 4, 7, 16] {
                let n = 2 * 3 * width;
                let values: Vec<u32> = (0..n as u32).map(|i| i % 251).collect();
                let x = Tensor::from_vec(values, (1, 2, 3, width), &Device::Cpu)?;
                let x = x.to_dtype(dtype)?.to_device(device)?;
                let mut cache = Cache::new(2, 4);
                cache.append(&x)?;
                cache.append(&x.narrow(2, 1, 2)?)?;
                let got = cache.current_data()?.expect("tokens");
                assert_same(&got, &Tensor::cat(&[&x, &x.narrow(2, 1, 2)?], 2)?)?;
            }
        }
    }
    Ok(())
}
