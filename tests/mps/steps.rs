//! The kernels on ranges of buffers, with every parameter.

use super::metal;
use super::place::{close, run, turned, values, Place};
use candle_core::{DType, Device, Result};
use candle_fused::metal::mps::{
    MPSCNNNeuronType, Multiplication, Neuron, NeuronFunction, VectorMultiplication,
};

#[test]
fn products_of_every_kind() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            for (m, n, k) in [(1, 1, 1), (3, 5, 4), (7, 2, 9)] {
                for (padding, offset, matrices) in [(0, 0, 1), (3, 5, 1), (0, 1, 3), (2, 0, 2)] {
                    for flags in 0..4 {
                        let turns = (flags & 1 == 1, flags & 2 == 2);
                        let place = |(rows, columns)| Place {
                            offset,
                            rows,
                            columns,
                            padding,
                            matrices,
                        };
                        let places = [
                            place(turned(turns.0, m, k)),
                            place(turned(turns.1, k, n)),
                            place((m, n)),
                        ];
                        for (alpha, beta) in [
                            (1.0, 0.0),
                            (-0.5, 0.0),
                            (1.0, 1.0),
                            (2.0, -0.25),
                            (0.0, 0.5),
                        ] {
                            product(device, dtype, places, turns, alpha, beta)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn product(
    device: &Device,
    dtype: DType,
    places: [Place; 3],
    (transpose_left, transpose_right): (bool, bool),
    alpha: f64,
    beta: f64,
) -> Result<()> {
    let [a, b, c] = places;
    let (left, right) = (a.tensor(1, dtype, device)?, b.tensor(2, dtype, device)?);
    let result = c.tensor(3, dtype, device)?;
    let (x, y, mut want) = (values(&left)?, values(&right)?, values(&result)?);
    let inner = turned(transpose_left, a.rows, a.columns).1;
    for i in 0..c.matrices {
        for row in 0..c.rows {
            for column in 0..c.columns {
                let term = |k: usize| {
                    let (ar, ac) = turned(transpose_left, row, k);
                    let (br, bc) = turned(transpose_right, k, column);
                    x[a.at(i, ar, ac)] * y[b.at(i, br, bc)]
                };
                let sum: f64 = (0..inner).map(term).sum();
                let z = &mut want[c.at(i, row, column)];
                *z = alpha * sum + beta * *z;
            }
        }
    }
    run(
        [&left, &right, &result],
        |session, [left, right, result]| {
            session.encode(&Multiplication {
                left: a.matrix(left, dtype),
                transpose_left,
                right: b.matrix(right, dtype),
                transpose_right,
                result: c.matrix(result, dtype),
                alpha,
                beta,
            })
        },
    )?;
    let what = format!(
        "{:?} {}×{} by {}×{}, transposed {transpose_left} and {transpose_right}, α {alpha}, β {beta}",
        dtype, a.rows, a.columns, b.rows, b.columns
    );
    // Whatever lies between and around the matrices is untouched.
    close(&values(&result)?, &want, dtype, &what);
    Ok(())
}

#[test]
fn vectors() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            for (rows, columns) in [(1, 1), (1, 6), (5, 1), (4, 7)] {
                for transpose in [false, true] {
                    for (alpha, beta) in [(1.0, 0.0), (0.5, -1.0)] {
                        let (stored_rows, stored_columns) = turned(transpose, rows, columns);
                        let a = Place {
                            offset: 3,
                            rows: stored_rows,
                            columns: stored_columns,
                            padding: 2,
                            matrices: 1,
                        };
                        let line = |columns| Place {
                            offset: 1,
                            rows: 1,
                            columns,
                            padding: 0,
                            matrices: 1,
                        };
                        let (x, y) = (line(columns), line(rows));
                        let tensors = [
                            a.tensor(1, dtype, device)?,
                            x.tensor(2, dtype, device)?,
                            y.tensor(3, dtype, device)?,
                        ];
                        let [av, xv, mut want] = [
                            values(&tensors[0])?,
                            values(&tensors[1])?,
                            values(&tensors[2])?,
                        ];
                        for i in 0..rows {
                            let term = |j: usize| {
                                let (r, c) = turned(transpose, i, j);
                                av[a.at(0, r, c)] * xv[x.at(0, 0, j)]
                            };
                            let sum: f64 = (0..columns).map(term).sum();
                            want[y.at(0, 0, i)] = alpha * sum + beta * want[y.at(0, 0, i)];
                        }
                        run(tensors.each_ref(), |session, [matrix, vector, result]| {
                            session.encode(&VectorMultiplication {
                                matrix: a.matrix(matrix, dtype),
                                transpose,
                                vector: x.matrix(vector, dtype),
                                result: y.matrix(result, dtype),
                                alpha,
                                beta,
                            })
                        })?;
                        close(
                            &values(&tensors[2])?,
                            &want,
                            dtype,
                            &format!("{rows}×{columns} {transpose}"),
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

#[test]
fn neurons_with_a_bias() -> Result<()> {
    type F = fn(f64) -> f64;
    let cases: [(MPSCNNNeuronType, [f32; 3], F); 8] = [
        (MPSCNNNeuronType::None, [0.0; 3], |x| x),
        (MPSCNNNeuronType::ReLU, [0.25, 0.0, 0.0], |x| {
            if x >= 0.0 {
                x
            } else {
                0.25 * x
            }
        }),
        (MPSCNNNeuronType::Linear, [2.0, -1.0, 0.0], |x| {
            2.0 * x - 1.0
        }),
        (MPSCNNNeuronType::Sigmoid, [0.0; 3], |x| {
            1.0 / (1.0 + (-x).exp())
        }),
        (MPSCNNNeuronType::TanH, [2.0, 0.5, 0.0], |x| {
            2.0 * (0.5 * x).tanh()
        }),
        (MPSCNNNeuronType::Absolute, [0.0; 3], f64::abs),
        (MPSCNNNeuronType::SoftPlus, [1.0, 1.0, 0.0], |x| {
            x.exp().ln_1p()
        }),
        (MPSCNNNeuronType::ReLUN, [0.0, 1.5, 0.0], |x| {
            x.clamp(0.0, 1.5)
        }),
    ];
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            for (kind, [a, b, c], f) in cases {
                for (alpha, biased) in [(1.0, false), (0.5, true)] {
                    let place = Place {
                        offset: 2,
                        rows: 3,
                        columns: 5,
                        padding: 1,
                        matrices: 2,
                    };
                    let line = Place {
                        offset: 4,
                        rows: 1,
                        columns: 5,
                        padding: 0,
                        matrices: 1,
                    };
                    let tensors = [
                        place.tensor(1, dtype, device)?,
                        line.tensor(2, dtype, device)?,
                        place.tensor(3, dtype, device)?,
                    ];
                    let [x, bias, mut want] = [
                        values(&tensors[0])?,
                        values(&tensors[1])?,
                        values(&tensors[2])?,
                    ];
                    for i in 0..place.matrices {
                        for (row, column) in (0..3).flat_map(|i| (0..5).map(move |j| (i, j))) {
                            let bias = if biased {
                                bias[line.at(0, 0, column)]
                            } else {
                                0.0
                            };
                            let at = place.at(i, row, column);
                            want[at] = f(alpha * x[at] + bias);
                        }
                    }
                    run(tensors.each_ref(), |session, [input, bias, result]| {
                        session.encode(&Neuron {
                            input: place.matrix(input, dtype),
                            bias: biased.then(|| line.matrix(bias, dtype)),
                            result: place.matrix(result, dtype),
                            function: NeuronFunction { kind, a, b, c },
                            alpha,
                        })
                    })?;
                    close(&values(&tensors[2])?, &want, dtype, &format!("{kind:?}"));
                }
            }
        }
    }
    Ok(())
}
