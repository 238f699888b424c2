//! No cache loses a gradient in silence.

use super::says;
use crate::devices::devices;
use crate::tensors::{signal, var};
use candle_core::{DType, Result};
use candle_fused::nn::kv_cache::*;

#[test]
fn an_empty_cache_hands_gradients_on() -> Result<()> {
    for device in devices() {
        let x = var(&[1, 2, 3, 4], 1, device)?;
        let plain = signal(&[1, 2, 1, 4], 2, device)?;
        let mut cache = KvCache::new(2, 8);
        let (k, v) = cache.append(&x, &x)?;
        let grads = (k.sqr()? + v)?.sum_all()?.backward()?;
        let got = grads.get(&x).expect("a gradient").flatten_all()?;
        let want = ((&x * 2.0)? + 1.0)?.flatten_all()?;
        assert_eq!(got.to_vec1::<f32>()?, want.to_vec1::<f32>()?);
        assert!(cache.k()?.expect("keys").track_op());
        // What is behind would lose it.
        says(
            cache.append(&plain, &plain),
            &["KvCache::append", "gradients"],
        );
        cache.reset();
        cache.append(&plain, &plain)?;
        says(cache.append(&x, &x), &["KvCache::append", "gradients"]);

        let mut cache = RotatingKvCache::new(2, 2);
        let (k, _) = cache.append(&x, &x)?;
        assert!(k.track_op() && cache.k()?.expect("keys").track_op());
        says(
            cache.append(&plain, &plain),
            &["RotatingKvCache::append", "gradients"],
        );

        let mut cache = ConcatKvCache::new(2);
        let (k, _) = cache.append(&x, &x)?;
        assert!(k.track_op());
        says(
            cache.append(&plain, &plain),
            &["ConcatKvCache::append", "gradients"],
        );

        let mut cache = InterleavedKvCache::new(4);
        assert!(cache.append(&x, &x)?.track_op());
        says(
            cache.append(&plain, &plain),
            &["InterleavedKvCache::append", "gradients"],
        );

        let mut builder = ScatteredCacheBuilder::new(1, 8, DType::F32, device)?;
        let step = builder.indices_and_mask(3, &[true])?;
        let mut cache = builder.make_cache(2, 4)?;
        says(
            cache.append(&x, &x, &step),
            &["ScatteredKvCache::append", "gradients"],
        );

        let config = FixedKvConfig::new(1, 2, 4, 8);
        let mut cache = FixedKvCache::new(config, DType::F32, device)?;
        says(cache.append(&x, &x), &["FixedKvCache::append", "gradients"]);
    }
    Ok(())
}
