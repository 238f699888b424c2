//! The rules of the host side: every defect is found, and its corrected twin passes.

mod bench;
mod smoke;
