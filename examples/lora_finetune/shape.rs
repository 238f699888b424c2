//! How large a transformer is.

#[derive(Clone, Copy)]
pub struct Shape {
    pub vocabulary: usize,
    /// Characters that it sees at most.
    pub context: usize,
    pub dim: usize,
    /// Of the MLPs.
    pub hidden: usize,
    pub heads: usize,
    pub layers: usize,
}
