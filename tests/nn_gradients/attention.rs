//! `candle_nn::attention`, `cpu_flash_attention`, `ops::sdpa` and `rotary_emb`.

use super::cases;
use super::ops::softmax;
use crate::tensors::{error, signal};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::nn::attention::cpu_flash::standard;
use candle_fused::nn::attention::{flash_attn, flash_attn_varlen_cpu, AttnMask};
use candle_fused::ops::{attention, AttentionConfig, AttentionLayout};

/// `[heads, queries, keys]` of what each head adds to its scores.
type Bias<'a> = Option<&'a Tensor>;

/// softmax(cap(scale·q·kᵀ) + bias)·v of `[.., heads, tokens, dim]`, with as many heads of all.
fn composed(q: &Tensor, k: &Tensor, v: &Tensor, cap: Option<f64>, bias: Bias) -> Result<Tensor> {
    let repeated = |x: &Tensor| {
        let (b, h, s, d) = x.dims4()?;
        let times = q.dim(1)? / h;
        x.unsqueeze(2)?
            .broadcast_as((b, h, times, s, d))?
            .reshape((b, h * times, s, d))
    };
    let (k, v) = (repeated(k)?, repeated(v)?);
    let mut scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * 0.5)?;
    if let Some(cap) = cap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(bias) = bias {
        scores = scores.broadcast_add(bias)?;
    }
    softmax(&scores)?.matmul(&v.contiguous()?)
}

/// As [`composed`], in f64: where one weight is nearly 1, the composition in f32 has few digits of the gradients.
fn composed_in_f64(q: &Tensor, k: &Tensor, v: &Tensor, bias: Bias) -> Result<Tensor> {
    let wide = |x: &Tensor| x.to_dtype(DType::F64);
    let bias = bias.map(wide).transpose()?;
    composed(&wide(q)?, &wide(k)?, &wide(v)?, None, bias.as_ref())?.to_dtype(q.dtype())
}

/// 0 where key j is seen by query i, −∞ elsewhere.
fn hide(
    queries: usize,
    keys: usize,
    device: &Device,
    sees: impl Fn(i64, i64) -> bool,
) -> Result<Tensor> {
    let sees = &sees;
    let value = |i: usize, j: usize| match sees(i as i64, j as i64) {
        true => 0f32,
        false => f32::NEG_INFINITY,
    };
    let values = (0..queries).flat_map(|i| (0..keys).map(move |j| value(i, j)));
    Tensor::from_vec(values.collect::<Vec<_>>(), (queries, keys), device)
}

fn by_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)
}

/// Stock's arguments `[batch, tokens, heads, dim]`.
fn flash(t: &[Tensor], cap: Option<f64>, bias: Bias) -> Result<Tensor> {
    composed(
        &by_heads(&t[0])?,
        &by_heads(&t[1])?,
        &by_heads(&t[2])?,
        cap,
        bias,
    )
}

fn lengths(x: &Tensor, lengths: [u32; 2]) -> Result<Tensor> {
    Tensor::new(&lengths, x.device())
}

/// Sequences of 2 queries and 3 keys, and of 3 and 3, each by itself.
fn packed(t: &[Tensor], slopes: Option<&Tensor>, sees: fn(i64, i64) -> bool) -> Result<Tensor> {
    let mut outputs = vec![];
    for (q, k) in [((0, 2), (0, 3)), ((2, 3), (3, 3))] {
        let part =
            |x: &Tensor, at: (usize, usize)| x.narrow(0, at.0, at.1)?.transpose(0, 1)?.unsqueeze(0);
        let offset = k.1 as i64 - q.1 as i64;
        let device = t[0].device();
        let mut bias = hide(q.1, k.1, device, |i, j| sees(i + offset, j))?;
        if let Some(slopes) = slopes {
            let distance =
                |i: usize| (0..k.1).map(move |j| -((i as i64 + offset - j as i64).abs() as f32));
            let distances: Vec<f32> = (0..q.1).flat_map(distance).collect();
            let distances = Tensor::from_vec(distances, (q.1, k.1), device)?;
            let slopes = slopes.reshape(((), 1, 1))?;
            bias = slopes.broadcast_mul(&distances)?.broadcast_add(&bias)?;
        }
        let y = composed(
            &part(&t[0], q)?,
            &part(&t[1], k)?,
            &part(&t[2], k)?,
            None,
            Some(&bias),
        )?;
        outputs.push(y.squeeze(0)?.transpose(0, 1)?);
    }
    Tensor::cat(&outputs, 0)
}

fn angles(x: &Tensor, rows: usize, cols: usize) -> Result<(Tensor, Tensor)> {
    let angle = |i: usize| (i as f32 * 0.4).sin();
    let angles: Vec<f32> = (0..rows * cols).map(angle).collect();
    let angles = Tensor::from_vec(angles, (rows, cols), x.device())?;
    Ok((angles.cos()?, angles.sin()?))
}

/// Halves of the last dim of `[batch, heads, tokens, dim]`.
fn rope(x: &Tensor) -> Result<Tensor> {
    let (cos, sin) = angles(x, x.dim(2)?, x.dim(3)? / 2)?;
    let halves = x.chunk(2, D::Minus1)?;
    let a = (halves[0].broadcast_mul(&cos)? - halves[1].broadcast_mul(&sin)?)?;
    let b = (halves[0].broadcast_mul(&sin)? + halves[1].broadcast_mul(&cos)?)?;
    Tensor::cat(&[a, b], D::Minus1)
}

/// Neighbours of the last dim.
fn rope_i(x: &Tensor) -> Result<Tensor> {
    let (b, h, n, d) = x.dims4()?;
    let (cos, sin) = angles(x, n, d / 2)?;
    let pairs = x.reshape((b, h, n, d / 2, 2))?;
    let part = |i: usize| pairs.narrow(4, i, 1)?.squeeze(4);
    let (x0, x1) = (part(0)?, part(1)?);
    let a = (x0.broadcast_mul(&cos)? - x1.broadcast_mul(&sin)?)?;
    let b2 = (x0.broadcast_mul(&sin)? + x1.broadcast_mul(&cos)?)?;
    Tensor::stack(&[a, b2], 4)?.reshape((b, h, n, d))
}

cases! {
    "ops::sdpa" => [[1, 2, 3, 32], [1, 1, 4, 32], [1, 1, 4, 32], [1, 1, 3, 4]]
        // Where a weight is nearly 1, its gradient is a small difference of large numbers. So not larger still.
        |t| nn::ops::sdpa(&(&t[0] * 0.5)?, &t[1], &t[2], Some(&t[3]), false, 0.5, 1.0),
        |t| composed_in_f64(&(&t[0] * 0.5)?, &t[1], &t[2], Some(&t[3]));
    "ops::sdpa" => [[1, 2, 3, 4], [1, 1, 4, 4], [1, 1, 4, 4]]
        |t| nn::ops::sdpa(&t[0], &t[1], &t[2], None, true, 0.5, 2.0),
        |t| composed(&t[0], &t[1], &t[2], Some(2.0), Some(&hide(3, 4, t[0].device(), |i, j| j <= i + 1)?));

    "attention::cpu_flash::flash_attn" => [[1, 3, 2, 4], [1, 5, 1, 4], [1, 5, 1, 4]]
        |t| nn::attention::flash_attn::<f32>(&t[0], &t[1], &t[2], 0.5, nn::attention::AttnMask::None, None, None),
        |t| flash(t, None, None);
    "attention::cpu_flash::flash_attn" => [[2, 3, 2, 4], [2, 3, 1, 4], [2, 3, 1, 4]]
        |t| nn::attention::flash_attn::<f32>(
            &t[0], &t[1], &t[2], 0.5, nn::attention::AttnMask::causal(), Some(2.0), None,
        ),
        |t| {
            let device = t[0].device();
            let slopes = Tensor::new(&[0.5f32, 0.25], device)?.reshape((2, 1, 1))?;
            let distances = Tensor::new(&[[0f32, 0., 0.], [-1., 0., 0.], [-2., -1., 0.]], device)?;
            let bias = slopes.broadcast_mul(&distances)?.broadcast_add(&hide(3, 3, device, |i, j| j <= i)?)?;
            flash(t, None, Some(&bias))
        };
    "attention::cpu_flash::flash_attn" => [[1, 3, 2, 4], [1, 5, 2, 4], [1, 5, 2, 4], [3, 5]]
        |t| nn::attention::flash_attn::<f32>(
            &t[0], &t[1], &t[2], 0.5, nn::attention::AttnMask::Mask(t[3].clone()), Some(2.0), Some(3.0),
        ),
        |t| {
            let slopes = Tensor::new(&[0.5f32, 0.25], t[0].device())?.reshape((2, 1, 1))?;
            flash(t, Some(3.0), Some(&slopes.broadcast_mul(&t[3])?))
        };
    "attention::cpu_flash::causal::run_causal_attn_cpu" => [[1, 3, 2, 4], [1, 5, 1, 4], [1, 5, 1, 4]]
        |t| nn::attention::cpu_flash::causal::run_causal_attn_cpu::<f32>(&t[0], &t[1], &t[2], 0.5, 1, None, Some(2.0)),
        |t| flash(t, Some(2.0), Some(&hide(3, 5, t[0].device(), |i, j| j <= i + 1)?));
    "attention::cpu_flash::standard::run_flash_attn_cpu" => [[1, 3, 2, 4], [1, 5, 1, 4], [1, 5, 1, 4], [3, 5]]
        |t| nn::attention::cpu_flash::standard::run_flash_attn_cpu::<f32>(
            &t[0], &t[1], &t[2], Some(&t[3]), 0.5, None, None,
        ),
        |t| flash(t, None, Some(&t[3]));
    "cpu_flash_attention::run_flash_attn_cpu" => [[1, 3, 2, 4], [1, 5, 1, 4], [1, 5, 1, 4]]
        |t| nn::cpu_flash_attention::run_flash_attn_cpu::<f32>(&t[0], &t[1], &t[2], None, 0.5, None, None),
        |t| flash(t, None, None);
    "attention::cpu_flash::varlen::flash_attn_varlen_cpu" => [[5, 2, 4], [6, 1, 4], [6, 1, 4]]
        |t| nn::attention::flash_attn_varlen_cpu(
            &t[0], &t[1], &t[2], None, &lengths(&t[0], [2, 3])?, &lengths(&t[0], [3, 3])?, 3, 3, 0.5, true,
            Some(1), None,
        ),
        |t| packed(t, None, |i, j| j <= i && j >= i - 1);
    "attention::varlen::flash_attn_varlen_unfused" => [[5, 2, 4], [6, 1, 4], [6, 1, 4]]
        |t| nn::varlen_attention::flash_attn_varlen_unfused(
            &t[0], &t[1], &t[2], None, &lengths(&t[0], [2, 3])?, &lengths(&t[0], [3, 3])?, 3, 3, 0.5, false,
            None, None,
        ),
        |t| packed(t, None, |_, _| true);
    "attention::varlen::flash_attn_varlen_unfused" => [[5, 2, 4], [6, 2, 4], [6, 2, 4], [2]]
        |t| nn::attention::flash_attn_varlen_unfused(
            &t[0], &t[1], &t[2], Some(&t[3]), &lengths(&t[0], [2, 3])?, &lengths(&t[0], [3, 3])?, 3, 3, 0.5, true,
            None, None,
        ),
        |t| packed(t, Some(&t[3]), |i, j| j <= i);

    "rotary_emb::rope" => [[1, 2, 3, 6]] |t| {
        let (cos, sin) = angles(&t[0], 3, 3)?;
        nn::rotary_emb::rope(&t[0], &cos, &sin)
    }, |t| rope(&t[0]);
    "rotary_emb::rope_slow" => [[1, 2, 3, 6]] |t| {
        let (cos, sin) = angles(&t[0], 3, 3)?;
        nn::rotary_emb::rope_slow(&t[0], &cos, &sin)
    }, |t| rope(&t[0]);
    "rotary_emb::rope_i" => [[1, 2, 3, 6]] |t| {
        let (cos, sin) = angles(&t[0], 3, 3)?;
        nn::rotary_emb::rope_i(&t[0], &cos, &sin)
    }, |t| rope_i(&t[0]);
    "rotary_emb::rope_i_slow" => [[1, 2, 3, 6]] |t| {
        let (cos, sin) = angles(&t[0], 3, 3)?;
        nn::rotary_emb::rope_i_slow(&t[0], &cos, &sin)
    }, |t| rope_i(&t[0]);
    "rotary_emb::rope_thd" => [[1, 3, 2, 6]] |t| {
        let (cos, sin) = angles(&t[0], 3, 3)?;
        nn::rotary_emb::rope_thd(&t[0], &cos, &sin)
    }, |t| rope(&by_heads(&t[0])?)?.transpose(1, 2);
}

fn says(result: Result<Tensor>, words: &[&str]) {
    let text = match result {
        Ok(_) => panic!("accepted, not refused with {words:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
}

/// A mask of whole numbers could mean what is seen or what is hidden: it is not added to scores in silence.
#[test]
fn masks_of_other_dtypes_are_refused() -> Result<()> {
    let x = Tensor::zeros((1, 3, 2, 4), DType::F32, &Device::Cpu)?;
    for dtype in [DType::U8, DType::U32, DType::F16] {
        let mask = Tensor::ones((3, 3), dtype, &Device::Cpu)?;
        let word = format!("got a mask of dtype {dtype:?}, expected F32");
        let y = flash_attn::<f32>(&x, &x, &x, 0.5, AttnMask::Mask(mask.clone()), None, None);
        says(y, &["flash_attn: ", &word]);
        let y = standard::run_flash_attn_cpu::<f32>(&x, &x, &x, Some(&mask), 0.5, Some(2.0), None);
        says(y, &["run_flash_attn_cpu: ", &word]);
        let x = x.transpose(1, 2)?;
        let y = candle_fused::nn::ops::sdpa(&x, &x, &x, Some(&mask), false, 0.5, 1.0);
        says(y, &["sdpa: ", &word]);
    }
    Ok(())
}

/// An offset beyond the keys shows all of them, however large it is.
#[test]
fn offsets_beyond_the_keys() -> Result<()> {
    let device = &Device::Cpu;
    let arg = |dims: &[usize], seed| Ok(super::var(dims, seed, device)?.as_tensor().detach());
    let t: [Result<Tensor>; 3] = [
        arg(&[1, 3, 2, 4], 0),
        arg(&[1, 5, 1, 4], 1),
        arg(&[1, 5, 1, 4], 2),
    ];
    let t: Vec<Tensor> = t.into_iter().collect::<Result<_>>()?;
    let distances: Vec<f32> = (0..3)
        .flat_map(|i| (0..5).map(move |j| (j - i - 7) as f32))
        .collect();
    let distances = Tensor::from_vec(distances, (3, 5), device)?;
    let slopes = Tensor::new(&[0.5f32, 0.25], device)?.reshape((2, 1, 1))?;
    let bias = slopes.broadcast_mul(&distances)?;
    for kv_offset in [5, 7, usize::MAX / 2, usize::MAX] {
        let run = |max_bias| {
            let mask = AttnMask::Causal { kv_offset };
            flash_attn::<f32>(&t[0], &t[1], &t[2], 0.5, mask, max_bias, None)
        };
        assert!(error(&run(None)?, &flash(&t, None, None)?)? < 1e-5);
        assert!(error(&run(Some(2.0))?, &flash(&t, None, Some(&bias))?)? < 1e-5);
    }
    Ok(())
}

/// Attention with the whole `[heads, queries, keys]` of ALiBi's bias as a mask, of `[tokens, heads, dim]`; −∞ where `sees(position,
/// key)` is false. The first query is at position `first`.
fn by_mask(
    t: &[Tensor],
    slopes: &Tensor,
    first: i64,
    sees: impl Fn(i64, i64) -> bool,
) -> Result<Tensor> {
    let (queries, keys, device) = (t[0].dim(0)?, t[1].dim(0)?, t[0].device());
    let distance = |i: usize, j: usize| (first + i as i64 - j as i64).abs() as f32;
    let distances = (0..queries).flat_map(|i| (0..keys).map(move |j| -distance(i, j)));
    let distances = Tensor::from_vec(distances.collect::<Vec<_>>(), (queries, keys), device)?;
    let hidden = hide(queries, keys, device, |i, j| sees(first + i, j))?;
    let bias = slopes.reshape(((), 1, 1))?.broadcast_mul(&distances)?;
    let config = AttentionConfig {
        scale: Some(0.5),
        mask: Some(bias.broadcast_add(&hidden)?),
        layout: AttentionLayout::Bshd,
        ..Default::default()
    };
    let [q, k, v] = [0, 1, 2].map(|i| t[i].unsqueeze(0));
    attention(&q?, &k?, &v?, &config)?.squeeze(0)
}

/// The results and the gradients of two functions of the same variables.
fn assert_same_gradients(
    what: &str,
    vars: &[Var],
    got: impl Fn(&[Tensor]) -> Result<Tensor>,
    want: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let args: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let (got, want) = (got(&args)?, want(&args)?);
    assert!(error(&got, &want)? < 1e-5, "{what}");
    let weights = signal(got.dims(), 9, got.device())?;
    let grads = |y: Tensor| (y * &weights)?.sum_all()?.backward();
    let (got, want) = (grads(got)?, grads(want)?);
    for (i, var) in vars.iter().enumerate() {
        let grad = |grads: &GradStore| grads.get(var).expect("a gradient").clone();
        let off = error(&grad(&got), &grad(&want))?;
        assert!(off < 1e-4, "{what}: argument {i} is off by {off}");
    }
    Ok(())
}

/// More queries than one block of ALiBi's table has, at all kinds of positions.
#[test]
fn alibi_in_blocks_of_queries() -> Result<()> {
    let device = &Device::Cpu;
    let vars = |queries: usize, keys: usize| -> Result<Vec<Var>> {
        let dims = [[queries, 2, 4], [keys, 1, 4], [keys, 1, 4]];
        let var = |(i, dims): (usize, &[usize; 3])| super::var(dims, i, device);
        dims.iter().enumerate().map(var).collect()
    };
    let slopes = Tensor::new(&[0.5f32, 0.25], device)?;
    let batched = |t: &[Tensor], mask: AttnMask| -> Result<Tensor> {
        let [q, k, v] = [0, 1, 2].map(|i| t[i].unsqueeze(0));
        let y = flash_attn::<f32>(&q?, &k?, &v?, 0.5, mask, Some(2.0), None)?;
        y.squeeze(0)?.transpose(0, 1)
    };
    let t = vars(150, 170)?;
    for kv_offset in [0, 20, 33, 100] {
        let mask = || AttnMask::Causal { kv_offset };
        assert_same_gradients(
            &format!("an offset of {kv_offset}"),
            &t,
            |t| batched(t, mask()),
            |t| by_mask(t, &slopes, kv_offset as i64, |p, j| j <= p),
        )?;
    }
    assert_same_gradients(
        "not causal",
        &t,
        |t| batched(t, AttnMask::None),
        |t| by_mask(t, &slopes, 20, |_, _| true),
    )?;
    // With windows, and with queries that see nothing.
    for (queries, keys, left, right) in [
        (150, 170, Some(40), Some(7)),
        (150, 170, Some(90), None),
        (180, 100, Some(30), Some(5)),
        (64, 64, Some(3), Some(0)),
    ] {
        let mut t = vars(queries, keys)?;
        t.push(Var::from_tensor(&slopes)?);
        let first = keys as i64 - queries as i64;
        let lengths = |n: usize| Tensor::new(&[n as u32], device);
        assert_same_gradients(
            &format!("{queries} queries, {keys} keys, {left:?} and {right:?}"),
            &t,
            |t| {
                let (of_q, of_k) = (lengths(queries)?, lengths(keys)?);
                flash_attn_varlen_cpu(
                    &t[0],
                    &t[1],
                    &t[2],
                    Some(&t[3]),
                    &of_q,
                    &of_k,
                    queries,
                    keys,
                    0.5,
                    false,
                    left,
                    right,
                )
            },
            |t| {
                let (left, right) = (left.unwrap_or(0) as i64, right.unwrap_or(0) as i64);
                by_mask(t, &t[3], first, |p, j| j >= p - left && j <= p + right)
            },
        )?;
    }
    Ok(())
}

#[test]
fn wrong_ranks_are_named() -> Result<()> {
    let x = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu);
    let (three, four) = (x(&[3, 2, 4])?, x(&[1, 3, 2, 4])?);
    let run = |q: &Tensor, k: &Tensor, v: &Tensor| {
        flash_attn::<f32>(q, k, v, 0.5, AttnMask::None, None, None)
    };
    let words = [
        "flash_attn: got q of shape [3, 2, 4]",
        "[batch, queries, heads, dim]",
    ];
    says(run(&three, &four, &four), &words);
    says(
        run(&four, &three, &four),
        &["flash_attn: got k of shape [3, 2, 4]"],
    );
    says(
        run(&four, &four, &three),
        &["flash_attn: got v of shape [3, 2, 4]"],
    );
    let short = four.narrow(1, 0, 2)?;
    says(
        run(&four, &four, &short),
        &["flash_attn: got 3 keys and 2 values"],
    );
    let lengths = Tensor::new(&[3u32], &Device::Cpu)?;
    let run = |q: &Tensor, k: &Tensor, v: &Tensor| {
        let n = &lengths;
        candle_fused::nn::attention::flash_attn_varlen_cpu(
            q, k, v, None, n, n, 3, 3, 0.5, true, None, None,
        )
    };
    let words = [
        "flash_attn_varlen_cpu: got q of shape [1, 3, 2, 4]",
        "[queries, heads, dim]",
    ];
    says(run(&four, &three, &three), &words);
    says(
        run(&three, &four, &three),
        &["flash_attn_varlen_cpu: got k of shape"],
    );
    says(
        run(&three, &three, &four),
        &["flash_attn_varlen_cpu: got v of shape"],
    );
    Ok(())
}
