use super::activation::ACTS;
use super::linear::{bias, weight, SIZES};
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_fused::ops::matmul_act::{linear_act, matmul_act, reference};
use candle_fused::ops::Act;

const OP: &str = "matmul_act";
const X: Arg = Arg::matrix("x", Fill::Signal);

/// Without long sums, whose last digits a bent activation's derivative is too sensitive to.
const SHORT: [(usize, usize); 9] = [
    (3, 0),
    (0, 3),
    (1, 1),
    (1, 64),
    (2, 31),
    (7, 33),
    (9, 33),
    (512, 5),
    (33, 65),
];

/// `[cols, outputs]`
const fn y<const OUTPUTS: usize>() -> Arg {
    Arg::new("y", Fill::Signal, |_, cols| vec![cols, OUTPUTS])
}

pub fn cases() -> Vec<OpCase> {
    let plain = OpCase::new(
        OP,
        "matmul",
        &[X, y::<7>()],
        |t| matmul_act(&t[0], &t[1], None, Act::Identity),
        |t| reference(&t[0], &t[1], None, Act::Identity),
    );
    let linear = OpCase::new(
        OP,
        "linear_relu",
        &[X, weight::<33>(), bias::<33>()],
        |t| linear_act(&t[0], &t[1], Some(&t[2]), Act::Relu),
        |t| reference(&t[0], &t[1].t()?, Some(&t[2]), Act::Relu),
    );
    let mut cases = vec![
        plain.product(&SIZES),
        linear.product(&SIZES),
        with_bias("matmul_gelu", X, y::<33>(), bias::<33>(), Act::Gelu).product(&SHORT),
        square("square_gelu", Act::Gelu),
        square("square_relu", Act::Relu),
        stack::<5, 7>("stack_relu", Act::Relu).product(&STACKS),
        stack::<128, 128>("heads_gelu", Act::Gelu).product(&[(2, 17)]),
        stack::<1, 128>("vectors_gelu", Act::Gelu).product(&[(3, 17)]),
    ];
    for act in ACTS {
        let name = format!("act_{}", act.name());
        let case = with_bias(&name, X, y::<33>(), bias::<33>(), act);
        cases.push(case.product(&[(2, 3)]).variant());
    }
    cases
}

fn with_bias(name: &str, x: Arg, y: Arg, bias: Arg, act: Act) -> OpCase {
    OpCase::new(
        OP,
        name,
        &[x, y, bias],
        move |t| matmul_act(&t[0], &t[1], Some(&t[2]), act),
        move |t| reference(&t[0], &t[1], Some(&t[2]), act),
    )
}

/// y as wide as x, which is what models and benches have.
fn square(name: &str, act: Act) -> OpCase {
    let y = Arg::new("y", Fill::Signal, |_, cols| vec![cols, cols]);
    let bias = Arg::vector("bias", Fill::Addend);
    with_bias(name, X, y, bias, act).product(&[(1, 1), (1, 64), (10, 33), (67, 33)])
}

/// As many products as there are rows, each of `[M, cols]` and `[cols, N]`.
fn stack<const M: usize, const N: usize>(name: &str, act: Act) -> OpCase {
    let x = Arg::new("x", Fill::Signal, |rows, cols| vec![rows, M, cols]);
    let y = Arg::new("y", Fill::Signal, |rows, cols| vec![rows, cols, N]);
    with_bias(name, x, y, bias::<N>(), act)
}

const STACKS: [(usize, usize); 7] = [
    (3, 0),
    (0, 3),
    (1, 1),
    (2, 33),
    (3, 129),
    (40, 5),
    (300, 31),
];

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            OP,
            "other inner dims",
            &["[2, 4]", "[3, 5]", "[.., 4, n]"],
            |d| matmul_act(&zeros((2, 4), d)?, &zeros((3, 5), d)?, None, Act::Relu).map(drop),
        ),
        Reject::new(
            OP,
            "leading dims that don't broadcast",
            &["[2, 3, 4]", "[3, 4, 5]", "broadcast"],
            |d| {
                matmul_act(
                    &zeros((2, 3, 4), d)?,
                    &zeros((3, 4, 5), d)?,
                    None,
                    Act::Relu,
                )
                .map(drop)
            },
        ),
        Reject::new(OP, "a vector", &["[4]", "[.., m, k]"], |d| {
            matmul_act(&zeros(4, d)?, &zeros((4, 5), d)?, None, Act::Relu).map(drop)
        }),
        Reject::new(OP, "a scalar", &["[]", "[.., k, n]"], |d| {
            matmul_act(&zeros((2, 4), d)?, &zeros((), d)?, None, Act::Relu).map(drop)
        }),
        Reject::new(
            OP,
            "a bias of another length",
            &["bias", "[4]", "[5]"],
            |d| {
                let bias = zeros(4, d)?;
                matmul_act(
                    &zeros((2, 4), d)?,
                    &zeros((4, 5), d)?,
                    Some(&bias),
                    Act::Relu,
                )
                .map(drop)
            },
        ),
        Reject::new(
            "linear_act",
            "a weight of other columns",
            &["[5, 3]", "4"],
            |d| linear_act(&zeros((2, 4), d)?, &zeros((5, 3), d)?, None, Act::Relu).map(drop),
        ),
    ]
}
