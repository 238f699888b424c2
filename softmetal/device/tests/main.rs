//! The rules of the host side: every defect is found, and its corrected twin passes.

mod arguments;
mod asynchrony;
mod bench;
mod blits;
mod counters;
mod encoding;
mod hazards;
mod libraries;
mod limits;
mod mps;
mod queues;
mod smoke;
