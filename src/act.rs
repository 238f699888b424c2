//! The activation functions that ops can fuse, as a value: which one, and with which parameter.
//!
//! Their arithmetic is in [`crate::cpu::act`] for the CPU, in `kernels/parts/common.metal` for Metal, and as stock Candle
//! ops in [`ops::activation`](crate::ops::activation).

/// An activation function, as an op of its own or fused into another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// x
    Identity,
    /// max(x, 0); its derivative at 0 is 0
    Relu,
    /// max(x, 0)²
    Relu2,
    /// x, times the slope where x is negative; kernels round the slope to f32
    LeakyRelu(f64),
    /// x·Φ(x) by the tanh approximation: ½x(1 + tanh(√(2/π)(x + 0.044715x³)))
    GeluTanh,
    /// x·Φ(x) with the exact normal distribution function Φ
    GeluErf,
    /// x·σ(x)
    Silu,
    /// σ(x) = 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// tanh(x)
    Tanh,
    /// ln(1 + eˣ)
    Softplus,
}

impl Act {
    /// The name in snake_case, as it stands in the names of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Act::Identity => "identity",
            Act::Relu => "relu",
            Act::Relu2 => "relu2",
            Act::LeakyRelu(_) => "leaky_relu",
            Act::GeluTanh => "gelu_tanh",
            Act::GeluErf => "gelu_erf",
            Act::Silu => "silu",
            Act::Sigmoid => "sigmoid",
            Act::Tanh => "tanh",
            Act::Softplus => "softplus",
        }
    }

    /// The number that kernels take beside x: the slope of `LeakyRelu`, unused by the others.
    #[cfg(feature = "metal")]
    pub(crate) fn param(self) -> f32 {
        match self {
            Act::LeakyRelu(slope) => slope as f32,
            _ => 0.0,
        }
    }

    /// The number of this activation in `act_fwd` of common.metal.
    #[cfg(any(feature = "metal", test))]
    pub(crate) fn code(self) -> u32 {
        match self {
            Act::Identity => 0,
            Act::Relu => 1,
            Act::Relu2 => 2,
            Act::LeakyRelu(_) => 3,
            Act::GeluTanh => 4,
            Act::GeluErf => 5,
            Act::Silu => 6,
            Act::Sigmoid => 7,
            Act::Tanh => 8,
            Act::Softplus => 9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Act;

    #[test]
    fn codes_match_the_kernels() {
        let common = include_str!("../kernels/parts/common.metal");
        let acts = [
            Act::Relu,
            Act::Relu2,
            Act::LeakyRelu(0.5),
            Act::GeluTanh,
            Act::GeluErf,
            Act::Silu,
            Act::Sigmoid,
            Act::Tanh,
            Act::Softplus,
        ];
        for act in acts {
            let kind = format!("{act:?}").replace("(0.5)", "");
            let case = format!("case {}u: return {kind}::fwd(x, param);", act.code());
            assert!(common.contains(&case), "no {case}");
        }
        assert_eq!(Act::Identity.code(), 0);
        assert!(common.contains("default: return Identity::fwd(x, param);"));
    }
}
