//! `candle_nn::rnn`.

use super::cases;
use super::layers::vb;
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// Input `[2, 3, 4]`, weights of `gates` gates of 2 and their biases.
fn weights(t: &[Tensor]) -> Result<VarBuilder<'static>> {
    vb(&[
        ("weight_ih_l0", &t[1]),
        ("weight_hh_l0", &t[2]),
        ("bias_ih_l0", &t[3]),
        ("bias_hh_l0", &t[4]),
    ])
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

fn gates(x: &Tensor, weight: &Tensor, bias: &Tensor, count: usize) -> Result<Vec<Tensor>> {
    x.matmul(&weight.t()?)?.broadcast_add(bias)?.chunk(count, 1)
}

/// The states h of all steps, from zeros.
fn lstm(t: &[Tensor]) -> Result<Tensor> {
    let (mut h, mut outputs) = (
        t[0].narrow(1, 0, 1)?
            .squeeze(1)?
            .narrow(1, 0, 2)?
            .zeros_like()?,
        vec![],
    );
    let mut c = h.clone();
    for step in 0..3 {
        let x = t[0].narrow(1, step, 1)?.squeeze(1)?.contiguous()?;
        let (a, b) = (gates(&x, &t[1], &t[3], 4)?, gates(&h, &t[2], &t[4], 4)?);
        let sum = |i: usize| &a[i] + &b[i];
        let (input, forget, out) = (sigmoid(&sum(0)?)?, sigmoid(&sum(1)?)?, sigmoid(&sum(3)?)?);
        c = ((forget * &c)? + (input * sum(2)?.tanh()?)?)?;
        h = (out * c.tanh()?)?;
        outputs.push(h.clone());
    }
    Tensor::stack(&outputs, 1)
}

fn gru(t: &[Tensor]) -> Result<Tensor> {
    let (mut h, mut outputs) = (
        t[0].narrow(1, 0, 1)?
            .squeeze(1)?
            .narrow(1, 0, 2)?
            .zeros_like()?,
        vec![],
    );
    for step in 0..3 {
        let x = t[0].narrow(1, step, 1)?.squeeze(1)?.contiguous()?;
        let (a, b) = (gates(&x, &t[1], &t[3], 3)?, gates(&h, &t[2], &t[4], 3)?);
        let (reset, update) = (sigmoid(&(&a[0] + &b[0])?)?, sigmoid(&(&a[1] + &b[1])?)?);
        let new = (&a[2] + (reset * &b[2])?)?.tanh()?;
        h = ((&update * &h)? - ((&update - 1.0)? * new)?)?;
        outputs.push(h.clone());
    }
    Tensor::stack(&outputs, 1)
}

cases! {
    "rnn::LSTM: RNN", "rnn::LSTM::new", "rnn::RNN::seq", "rnn::RNN::step", "rnn::RNN::states_to_tensor",
    "rnn::RNN::zero_state" => [[2, 3, 4], [8, 4], [8, 2], [8], [8]] |t| {
        use nn::RNN;
        let lstm = nn::LSTM::new(4, 2, Default::default(), weights(t)?)?;
        lstm.states_to_tensor(&lstm.seq(&t[0])?)
    }, |t| lstm(t);
    "rnn::lstm", "rnn::RNN::seq_init", "rnn::LSTMState::h", "rnn::LSTMState::c", "rnn::LSTMState::new"
        => [[2, 3, 4], [8, 4], [8, 2], [8], [8], [2, 2]] |t| {
        use nn::RNN;
        let lstm = nn::lstm(4, 2, Default::default(), weights(t)?)?;
        let start = nn::rnn::LSTMState::new(t[5].clone(), t[5].sqr()?);
        let states = lstm.seq_init(&t[0], &start)?;
        let last = &states[states.len() - 1];
        last.h() + last.c()
    }, |t| {
        let (mut h, mut c) = (t[5].clone(), t[5].sqr()?);
        for step in 0..3 {
            let x = t[0].narrow(1, step, 1)?.squeeze(1)?.contiguous()?;
            let (a, b) = (gates(&x, &t[1], &t[3], 4)?, gates(&h, &t[2], &t[4], 4)?);
            let sum = |i: usize| &a[i] + &b[i];
            let (input, forget, out) = (sigmoid(&sum(0)?)?, sigmoid(&sum(1)?)?, sigmoid(&sum(3)?)?);
            c = ((forget * &c)? + (input * sum(2)?.tanh()?)?)?;
            h = (out * c.tanh()?)?;
        }
        h + c
    };
    "rnn::GRU: RNN", "rnn::GRU::new" => [[2, 3, 4], [6, 4], [6, 2], [6], [6]] |t| {
        use nn::RNN;
        let gru = nn::GRU::new(4, 2, Default::default(), weights(t)?)?;
        gru.states_to_tensor(&gru.seq(&t[0])?)
    }, |t| gru(t);
    "rnn::gru", "rnn::GRUState::h" => [[2, 3, 4], [6, 4], [6, 2], [6], [6]] |t| {
        use nn::RNN;
        let gru = nn::gru(4, 2, Default::default(), weights(t)?)?;
        let states = gru.seq(&t[0])?;
        Ok(states[2].h().clone())
    }, |t| gru(t)?.narrow(1, 2, 1)?.squeeze(1);
}
