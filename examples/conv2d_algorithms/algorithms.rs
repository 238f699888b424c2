//! Which algorithms a shape can be given to, and which of them are the same.

use candle_core::Tensor;
use candle_fused::ops::{Act, Conv2d, Conv2dParams, ConvAlgo};
use std::fmt;

/// A way to ask for a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub algo: ConvAlgo,
    /// Whether what is made of the weight is kept.
    pub prepared: bool,
}

const fn plain(algo: ConvAlgo) -> Way {
    Way {
        algo,
        prepared: false,
    }
}

const fn prepared(algo: ConvAlgo) -> Way {
    Way {
        algo,
        prepared: true,
    }
}

const WAYS: [Way; 8] = [
    plain(ConvAlgo::Auto),
    prepared(ConvAlgo::Auto),
    plain(ConvAlgo::Direct),
    plain(ConvAlgo::Tiled),
    plain(ConvAlgo::ImplicitGemm),
    plain(ConvAlgo::Winograd),
    prepared(ConvAlgo::Winograd),
    plain(ConvAlgo::Mps),
];

impl Way {
    /// What runs where this is asked for; None if it is refused.
    fn resolved(self, params: Conv2dParams, x: &Tensor, w: &Tensor) -> Option<Way> {
        let algo = self.op(params).algorithm(x, w).ok()?;
        Some(Way {
            algo,
            // The others take the weight as it is.
            prepared: self.prepared && x.device().is_cpu() && algo == ConvAlgo::Winograd,
        })
    }

    pub fn op(self, params: Conv2dParams) -> Conv2d {
        let op = Conv2d::new(params, Act::Identity, self.algo);
        match self.prepared {
            true => op.with_weight_cache(),
            false => op,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self.algo {
            ConvAlgo::Auto => "auto",
            ConvAlgo::Direct => "direct",
            ConvAlgo::Tiled => "tiled",
            ConvAlgo::ImplicitGemm => "implicit GEMM",
            ConvAlgo::Winograd => "Winograd",
            ConvAlgo::Mps => "MPS",
        })?;
        match self.prepared {
            true => f.write_str(" prepared"),
            false => Ok(()),
        }
    }
}

/// What runs, and which other ways lead to it.
pub struct Candidate {
    pub way: Way,
    pub also: Vec<Way>,
}

/// Everything that differs, in the order of [`WAYS`].
pub fn candidates(params: Conv2dParams, x: &Tensor, w: &Tensor) -> Vec<Candidate> {
    let runs = WAYS.map(|way| way.resolved(params, x, w));
    let also = |way: Way| {
        let asked = WAYS.into_iter().zip(runs);
        let others = asked.filter(|&(asked, runs)| asked != way && runs == Some(way));
        others.map(|(asked, _)| asked).collect()
    };
    let ways = WAYS.into_iter().filter(|way| runs.contains(&Some(*way)));
    ways.map(|way| Candidate {
        way,
        also: also(way),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    /// Of images of 56 by 56 pixels that keep their size but for the stride.
    fn names(kernel: usize, stride: usize, channels: usize) -> Vec<(String, Vec<String>)> {
        let params = Conv2dParams {
            stride: [stride; 2],
            padding: [kernel / 2; 2],
            ..Default::default()
        };
        let zeros = |dims: [usize; 4]| Tensor::zeros(&dims, DType::F32, &Device::Cpu).unwrap();
        let x = zeros([1, channels, 56, 56]);
        let w = zeros([channels, channels, kernel, kernel]);
        let named = |c: &Candidate| {
            let also = c.also.iter().map(Way::to_string).collect();
            (c.way.to_string(), also)
        };
        candidates(params, &x, &w).iter().map(named).collect()
    }

    #[test]
    fn the_same_is_measured_once() {
        let others = [
            "auto",
            "auto prepared",
            "direct",
            "tiled",
            "Winograd",
            "Winograd prepared",
        ];
        let want = ("implicit GEMM".into(), others.map(String::from).to_vec());
        assert_eq!(names(3, 2, 64), [want]);
    }

    #[test]
    fn winograd_counts_twice_where_it_serves() {
        let names = names(3, 1, 64);
        let ways: Vec<&str> = names.iter().map(|(way, _)| way.as_str()).collect();
        assert_eq!(ways, ["implicit GEMM", "Winograd", "Winograd prepared"]);
        let auto = names
            .iter()
            .filter(|(_, also)| also.contains(&"auto".into()));
        assert_eq!(auto.count(), 1);
    }

    #[test]
    fn few_outputs_go_directly() {
        let names = names(1, 1, 2);
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].0, "direct");
    }
}
