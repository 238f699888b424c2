//! Metal Performance Shaders: right numbers, and every documented condition.

use crate::bench::{fails, values, Bench};
use softmetal::mps::{
    Batch, DataType, FullyConnected, Matrix, MatrixDescriptor, Multiplication, Neuron, NeuronKind,
    Origin, SoftMax, SoftMaxGradient, Vector, VectorDescriptor, VectorMultiplication,
};
use softmetal::{kind, BufferOptions, CommandBuffer};
use std::sync::Arc;

fn shape(rows: usize, columns: usize) -> MatrixDescriptor {
    let row_bytes = 4 * columns;
    MatrixDescriptor {
        rows,
        columns,
        matrices: 1,
        row_bytes,
        matrix_bytes: rows * row_bytes,
        data_type: DataType::F32,
    }
}

fn matrix(bench: &Bench, rows: usize, columns: usize, of: &[f32]) -> Matrix {
    Matrix {
        buffer: bench.floats(of),
        offset: 0,
        descriptor: shape(rows, columns),
    }
}

fn empty(bench: &Bench, rows: usize, columns: usize) -> Matrix {
    let buffer = bench.empty(rows * columns, BufferOptions::SHARED);
    Matrix {
        buffer,
        offset: 0,
        descriptor: shape(rows, columns),
    }
}

fn vector(bench: &Bench, of: &[f32]) -> Vector {
    let descriptor = VectorDescriptor {
        length: of.len(),
        vectors: 1,
        vector_bytes: 4 * of.len(),
        data_type: DataType::F32,
    };
    Vector {
        buffer: bench.floats(of),
        offset: 0,
        descriptor,
    }
}

fn run(bench: &Bench, encode: impl FnOnce(&Arc<CommandBuffer>)) -> Result<(), String> {
    let buffer = bench.command_buffer();
    encode(&buffer);
    bench.finish(&buffer)
}

fn close(left: &[f32], right: &[f32]) {
    assert_eq!(left.len(), right.len());
    for (l, r) in left.iter().zip(right) {
        assert!((l - r).abs() < 1e-5, "{left:?} {right:?}");
    }
}

#[test]
fn multiplies_in_every_orientation() {
    let bench = Bench::new();
    let a = matrix(&bench, 2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let at = matrix(&bench, 3, 2, &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let b = matrix(&bench, 3, 2, &[1.0, 0.0, 0.0, 1.0, 2.0, 2.0]);
    let bt = matrix(&bench, 2, 3, &[1.0, 0.0, 2.0, 0.0, 1.0, 2.0]);
    for (left, transpose_left) in [(&a, false), (&at, true)] {
        for (right, transpose_right) in [(&b, false), (&bt, true)] {
            let c = empty(&bench, 2, 2);
            let kernel = Multiplication {
                transpose_left,
                transpose_right,
                ..Multiplication::new(2, 2, 3)
            };
            run(&bench, |buffer| kernel.encode(buffer, left, right, &c)).expect("runs");
            close(&values(&c.buffer), &[7.0, 8.0, 16.0, 17.0]);
        }
    }
}

#[test]
fn scales_and_accumulates() {
    let bench = Bench::new();
    let a = matrix(&bench, 1, 2, &[1.0, 2.0]);
    let b = matrix(&bench, 2, 1, &[3.0, 4.0]);
    let c = matrix(&bench, 1, 1, &[10.0]);
    let kernel = Multiplication {
        alpha: 2.0,
        beta: 0.5,
        ..Multiplication::new(1, 1, 2)
    };
    run(&bench, |buffer| kernel.encode(buffer, &a, &b, &c)).expect("runs");
    close(&values(&c.buffer), &[27.0]);
    let unwritten = empty(&bench, 1, 1);
    fails(
        run(&bench, |buffer| kernel.encode(buffer, &a, &b, &unwritten)),
        &["uninitialised-read"],
    );
}

#[test]
fn batches_and_origins() {
    let bench = Bench::new();
    let two = |m: Matrix, rows, columns| Matrix {
        descriptor: MatrixDescriptor {
            matrices: 2,
            ..shape(rows, columns)
        },
        ..m
    };
    let a = two(matrix(&bench, 1, 2, &[1.0, 2.0, 3.0, 4.0]), 1, 2);
    let b = two(matrix(&bench, 2, 1, &[1.0, 1.0, 2.0, 2.0]), 2, 1);
    let c = Matrix {
        descriptor: MatrixDescriptor {
            matrices: 2,
            ..shape(1, 2)
        },
        ..empty(&bench, 2, 2)
    };
    let kernel = Multiplication {
        result_origin: Origin {
            row: 0,
            column: 1,
            z: 0,
        },
        ..Multiplication::new(1, 1, 2)
    };
    run(&bench, |buffer| kernel.encode(buffer, &a, &b, &c)).expect("runs");
    close(&values(&c.buffer), &[0.0, 3.0, 0.0, 14.0]);
    let beyond = Multiplication {
        batch: Batch { start: 1, size: 2 },
        ..kernel.clone()
    };
    fails(
        run(&bench, |buffer| beyond.encode(buffer, &a, &b, &c)),
        &[kind::MPS, "matrices 1..3 of a batch of 2"],
    );
    let deep = Multiplication {
        left_origin: Origin {
            z: 1,
            ..Origin::default()
        },
        ..kernel
    };
    fails(
        run(&bench, |buffer| deep.encode(buffer, &a, &b, &c)),
        &[kind::MPS, "z of its origin"],
    );
}

#[test]
fn half_precision_is_rounded() {
    let bench = Bench::new();
    let halves = |of: &[f32]| {
        let bits: Vec<u8> = of
            .iter()
            .flat_map(|x| half::f16::from_f32(*x).to_le_bytes())
            .collect();
        softmetal::Buffer::with_bytes(&bench.device, &bits, BufferOptions::SHARED)
            .expect("a buffer")
    };
    let descriptor = MatrixDescriptor {
        row_bytes: 2,
        matrix_bytes: 2,
        data_type: DataType::F16,
        ..shape(1, 1)
    };
    let a = Matrix {
        buffer: halves(&[3.0]),
        offset: 0,
        descriptor,
    };
    let b = Matrix {
        buffer: halves(&[1.0 / 3.0]),
        offset: 0,
        descriptor,
    };
    let c = empty(&bench, 1, 1);
    run(&bench, |buffer| {
        Multiplication::new(1, 1, 1).encode(buffer, &a, &b, &c)
    })
    .expect("f16 to f32");
    close(&values(&c.buffer), &[0.999_755_9]);
}

#[test]
fn descriptors_are_checked() {
    let bench = Bench::new();
    let b = matrix(&bench, 3, 2, &[1.0; 6]);
    let good = matrix(&bench, 2, 3, &[1.0; 6]);
    let kernel = Multiplication::new(2, 2, 3);
    let with = |descriptor, offset| {
        let a = Matrix {
            descriptor,
            offset,
            ..good.clone()
        };
        let c = empty(&bench, 2, 2);
        run(&bench, |buffer| kernel.encode(buffer, &a, &b, &c))
    };
    with(good.descriptor, 0).expect("as it should be");
    let d = good.descriptor;
    fails(
        with(MatrixDescriptor { row_bytes: 10, ..d }, 0),
        &[kind::MPS, "10 bytes per row are not a multiple of 4"],
    );
    fails(
        with(MatrixDescriptor { row_bytes: 8, ..d }, 0),
        &[kind::MPS, "too few for 3 columns"],
    );
    fails(
        with(MatrixDescriptor { rows: 3, ..d }, 0),
        &[kind::MPS, "are not in buffer"],
    );
    fails(with(d, 4), &[kind::MPS, "from byte 4 on"]);
    fails(with(d, 2), &[kind::MPS, "offset 2 is not a multiple"]);
    fails(
        with(
            MatrixDescriptor {
                matrices: 2,
                matrix_bytes: 13,
                ..d
            },
            0,
        ),
        &[kind::MPS, "13 bytes per matrix"],
    );
    fails(
        with(MatrixDescriptor { rows: 0, ..d }, 0),
        &[kind::MPS, "empty"],
    );
    fails(
        with(MatrixDescriptor { rows: 1, ..d }, 0),
        &[kind::MPS, "2×3 elements from (0, 0) on are not in 1×3"],
    );
    fails(
        with(
            MatrixDescriptor {
                data_type: DataType::BF16,
                row_bytes: 6,
                ..d
            },
            0,
        ),
        &[kind::MPS, "BF16"],
    );
}

#[test]
fn the_result_is_apart_from_the_inputs() {
    let bench = Bench::new();
    let a = matrix(&bench, 2, 2, &[1.0; 4]);
    let b = matrix(&bench, 2, 2, &[1.0; 4]);
    let kernel = Multiplication::new(2, 2, 2);
    fails(
        run(&bench, |buffer| kernel.encode(buffer, &a, &b, &a)),
        &[kind::MPS, "overlaps the left matrix"],
    );
}

#[test]
fn no_encoder_may_be_open() {
    let bench = Bench::new();
    let a = matrix(&bench, 1, 1, &[1.0]);
    let c = empty(&bench, 1, 1);
    let result = run(&bench, |buffer| {
        let encoder = buffer.blit_encoder();
        Multiplication::new(1, 1, 1).encode(buffer, &a, &a, &c);
        encoder.end_encoding();
    });
    fails(
        result,
        &[
            kind::STATE,
            "a Metal Performance Shader while a blit encoder is open",
        ],
    );
}

#[test]
fn untracked_matrices_are_not_ordered() {
    let bench = Bench::new();
    let run_with = |options: BufferOptions| {
        let a = matrix(&bench, 1, 1, &[2.0]);
        let c = Matrix {
            buffer: bench.empty(1, options),
            ..empty(&bench, 1, 1)
        };
        let d = empty(&bench, 1, 1);
        let kernel = Multiplication::new(1, 1, 1);
        run(&bench, |buffer| {
            kernel.encode(buffer, &a, &a, &c);
            kernel.encode(buffer, &c, &a, &d);
        })
    };
    run_with(BufferOptions::PRIVATE).expect("tracked");
    fails(
        run_with(BufferOptions::PRIVATE.untracked()),
        &[kind::MISSING_FENCE, "MPSMatrixMultiplication"],
    );
}

#[test]
fn multiplies_vectors() {
    let bench = Bench::new();
    let a = matrix(&bench, 2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = vector(&bench, &[1.0, 1.0]);
    let kernel = VectorMultiplication {
        beta: 1.0,
        ..VectorMultiplication::new(2, 3)
    };
    run(&bench, |buffer| {
        kernel.encode(buffer, &a, &vector(&bench, &[1.0, 0.0, 2.0]), &y)
    })
    .expect("runs");
    close(&values(&y.buffer), &[8.0, 17.0]);
    let kernel = VectorMultiplication {
        transpose: true,
        ..VectorMultiplication::new(3, 2)
    };
    let y = vector(&bench, &[0.0; 3]);
    run(&bench, |buffer| {
        kernel.encode(buffer, &a, &vector(&bench, &[1.0, 1.0]), &y)
    })
    .expect("runs");
    close(&values(&y.buffer), &[5.0, 7.0, 9.0]);
    let short = vector(&bench, &[1.0]);
    fails(
        run(&bench, |buffer| kernel.encode(buffer, &a, &short, &y)),
        &[kind::MPS, "the input vector"],
    );
}

#[test]
fn softmax_and_its_gradient() {
    let bench = Bench::new();
    let x = matrix(&bench, 2, 2, &[0.0, 2f32.ln(), 1000.0, 1000.0]);
    let (y, log) = (empty(&bench, 2, 2), empty(&bench, 2, 2));
    run(&bench, |buffer| {
        SoftMax::new(false).encode(buffer, &x, &y);
        SoftMax::new(true).encode(buffer, &x, &log);
    })
    .expect("runs");
    let (third, half) = (1f32 / 3.0, 0.5f32);
    close(&values(&y.buffer), &[third, 2.0 * third, half, half]);
    close(
        &values(&log.buffer),
        &[third.ln(), (2.0 * third).ln(), half.ln(), half.ln()],
    );

    let g = matrix(&bench, 2, 2, &[1.0, 0.0, 1.0, 0.0]);
    let (dx, dlog) = (empty(&bench, 2, 2), empty(&bench, 2, 2));
    run(&bench, |buffer| {
        SoftMaxGradient::new(false).encode(buffer, &g, &y, &dx);
        SoftMaxGradient::new(true).encode(buffer, &g, &log, &dlog);
    })
    .expect("runs");
    let d = 2.0 * third * third;
    close(&values(&dx.buffer), &[d, -d, 0.25, -0.25]);
    close(
        &values(&dlog.buffer),
        &[2.0 * third, -2.0 * third, 0.5, -0.5],
    );

    let ints = Matrix {
        descriptor: MatrixDescriptor {
            data_type: DataType::I32,
            ..x.descriptor
        },
        ..x.clone()
    };
    fails(
        run(&bench, |buffer| {
            SoftMax::new(false).encode(buffer, &ints, &y)
        }),
        &[kind::MPS, "expected F32 or F16"],
    );
    let small = empty(&bench, 1, 2);
    fails(
        run(&bench, |buffer| {
            SoftMax::new(false).encode(buffer, &x, &small)
        }),
        &[kind::MPS, "the result matrix"],
    );
    let part = SoftMax {
        rows: 1,
        ..SoftMax::new(false)
    };
    run(&bench, |buffer| part.encode(buffer, &x, &small)).expect("one row fits");
}

#[test]
fn neurons() {
    let bench = Bench::new();
    let x = matrix(&bench, 1, 3, &[-1.0, 0.5, 2.0]);
    let apply = |neuron: Neuron, bias: Option<&Vector>| {
        let y = empty(&bench, 1, 3);
        run(&bench, |buffer| neuron.encode(buffer, &x, bias, &y)).map(|()| values(&y.buffer))
    };
    let of = |kind, parameters| Neuron {
        kind,
        parameters,
        ..Neuron::default()
    };
    let cases = [
        (NeuronKind::None, [0.0; 3], [-1.0, 0.5, 2.0]),
        (NeuronKind::ReLU, [0.1, 0.0, 0.0], [-0.1, 0.5, 2.0]),
        (NeuronKind::Linear, [2.0, 1.0, 0.0], [-1.0, 2.0, 5.0]),
        (
            NeuronKind::Sigmoid,
            [0.0; 3],
            [0.268_941_4, 0.622_459_3, 0.880_797],
        ),
        (NeuronKind::HardSigmoid, [0.2, 0.5, 0.0], [0.3, 0.6, 0.9]),
        (
            NeuronKind::TanH,
            [1.0, 1.0, 0.0],
            [-0.761_594_2, 0.462_117_2, 0.964_027_6],
        ),
        (NeuronKind::Absolute, [0.0; 3], [1.0, 0.5, 2.0]),
        (
            NeuronKind::SoftPlus,
            [1.0, 1.0, 0.0],
            [0.313_261_7, 0.974_077, 2.126_928],
        ),
        (
            NeuronKind::SoftSign,
            [0.0; 3],
            [-0.5, 0.333_333_3, 0.666_666_7],
        ),
        (NeuronKind::ELU, [1.0, 0.0, 0.0], [-0.632_120_6, 0.5, 2.0]),
        (NeuronKind::ReLUN, [0.0, 1.0, 0.0], [0.0, 0.5, 1.0]),
        (NeuronKind::Power, [1.0, 2.0, 2.0], [1.0, 6.25, 16.0]),
        (
            NeuronKind::Exponential,
            [1.0, 0.0, 2.0],
            [0.5, std::f32::consts::SQRT_2, 4.0],
        ),
        (
            NeuronKind::Logarithm,
            [1.0, 2.0, -1.0],
            [0.0, 0.916_290_7, 1.386_294_4],
        ),
        (
            NeuronKind::GeLU,
            [0.0; 3],
            [-0.158_655_3, 0.345_731_2, 1.954_499_7],
        ),
    ];
    for (kind, parameters, expected) in cases {
        close(&apply(of(kind, parameters), None).expect("runs"), &expected);
    }
    let biased = Neuron {
        alpha: 2.0,
        ..Neuron::default()
    };
    let bias = vector(&bench, &[1.0, 2.0, 3.0]);
    close(
        &apply(biased.clone(), Some(&bias)).expect("runs"),
        &[-1.0, 3.0, 7.0],
    );
    let short = vector(&bench, &[1.0, 2.0]);
    fails(
        apply(biased, Some(&short)).map(|_| ()),
        &[kind::MPS, "the bias vector"],
    );

    let prelu = |slopes: &[f32]| Neuron {
        kind: NeuronKind::PReLU,
        slopes: slopes.to_vec(),
        ..Neuron::default()
    };
    close(
        &apply(prelu(&[0.5, 1.0, 1.0]), None).expect("runs"),
        &[-0.5, 0.5, 2.0],
    );
    fails(
        apply(prelu(&[0.5]), None).map(|_| ()),
        &[kind::MPS, "1 parameters for 3 columns"],
    );
}

#[test]
fn fully_connected() {
    let bench = Bench::new();
    let x = matrix(&bench, 1, 2, &[1.0, -2.0]);
    let w = matrix(&bench, 2, 3, &[1.0, 2.0, 3.0, 0.0, 1.0, 2.0]);
    let bias = vector(&bench, &[0.5, 0.0, 0.0]);
    let y = empty(&bench, 1, 3);
    let neuron = Neuron {
        kind: NeuronKind::ReLU,
        ..Neuron::default()
    };
    let layer = FullyConnected {
        neuron,
        ..FullyConnected::default()
    };
    run(&bench, |buffer| {
        layer.encode(buffer, &x, &w, Some(&bias), &y)
    })
    .expect("runs");
    close(&values(&y.buffer), &[1.5, 0.0, 0.0]);
    // The usual weight of outputs × inputs does not fit.
    let usual = matrix(&bench, 3, 2, &[1.0; 6]);
    let narrow = FullyConnected {
        outputs: Some(2),
        ..layer
    };
    let y = empty(&bench, 1, 2);
    let wide = matrix(&bench, 1, 3, &[1.0; 3]);
    run(&bench, |buffer| {
        narrow.encode(buffer, &wide, &usual, None, &y)
    })
    .expect("3 inputs");
    let wider = matrix(&bench, 1, 4, &[1.0; 4]);
    fails(
        run(&bench, |buffer| {
            narrow.encode(buffer, &wider, &usual, None, &y)
        }),
        &[kind::MPS, "the weight matrix"],
    );
}
