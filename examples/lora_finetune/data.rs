//! The two texts as numbers, one for each character.

use crate::rng::Rng;
use candle_core::{Device, Result, Tensor};

pub const BASE: &str = include_str!("base.txt");
pub const TUNED: &str = include_str!("tuned.txt");

/// The characters of both texts.
pub struct Vocabulary(Vec<char>);

impl Vocabulary {
    pub fn of(texts: &[&str]) -> Self {
        let mut chars: Vec<char> = texts.iter().flat_map(|text| text.chars()).collect();
        chars.sort_unstable();
        chars.dedup();
        Vocabulary(chars)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let id = |c: char| match self.0.binary_search(&c) {
            Ok(id) => Ok(id as u32),
            Err(_) => candle_core::bail!("{c:?} is in neither text"),
        };
        text.chars().map(id).collect()
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        ids.iter()
            .filter_map(|&id| self.0.get(id as usize))
            .collect()
    }
}

/// Windows of a text: what the model reads, and what comes one character later.
pub struct Batch {
    /// `[windows, context]`
    pub inputs: Tensor,
    /// `[windows · context]`
    pub targets: Tensor,
}

impl Batch {
    fn new(ids: &[u32], starts: &[usize], context: usize) -> Result<Self> {
        let windows = |shift: usize| -> Vec<u32> {
            let window = |start: &usize| &ids[start + shift..start + shift + context];
            starts.iter().flat_map(window).copied().collect()
        };
        Ok(Batch {
            inputs: Tensor::from_vec(windows(0), (starts.len(), context), &Device::Cpu)?,
            targets: Tensor::from_vec(windows(1), starts.len() * context, &Device::Cpu)?,
        })
    }

    /// Windows that start anywhere.
    pub fn random(ids: &[u32], windows: usize, context: usize, rng: &mut Rng) -> Result<Self> {
        let starts: Vec<usize> = (0..windows)
            .map(|_| rng.below(ids.len() - context))
            .collect();
        Self::new(ids, &starts, context)
    }

    /// All windows, side by side.
    pub fn whole(ids: &[u32], context: usize) -> Result<Self> {
        let starts: Vec<usize> = (0..ids.len() - context).step_by(context).collect();
        Self::new(ids, &starts, context)
    }
}

/// A text to train on and its end to test with, parted between two stanzas.
pub fn split(text: &str) -> (&str, &str) {
    let near = text.len() * 17 / 20;
    let at = text[..near].rfind("\n\n").map_or(near, |at| at + 1);
    text.split_at(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        let vocabulary = Vocabulary::of(&[BASE, TUNED]);
        for text in [BASE, TUNED] {
            let ids = vocabulary.encode(text).unwrap();
            assert_eq!(vocabulary.decode(&ids), text);
        }
        assert!(vocabulary.encode("%").is_err());
    }

    #[test]
    fn targets_are_one_later() {
        let batch = Batch::whole(&[0, 1, 2, 3, 4, 5, 6, 7], 3).unwrap();
        let inputs = batch.inputs.to_vec2::<u32>().unwrap();
        assert_eq!(inputs, [[0, 1, 2], [3, 4, 5]]);
        let targets = batch.targets.to_vec1::<u32>().unwrap();
        assert_eq!(targets, [1, 2, 3, 4, 5, 6]);
    }
}
