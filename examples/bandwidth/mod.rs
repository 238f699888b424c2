//! How fast all threads together read or copy memory, for examples that compare with it.

use candle_core::utils::get_num_threads;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

/// The sum of all words, in eight independent sums of vectors.
fn read(words: &[u64]) -> u64 {
    let mut sums = [0u64; 64];
    let (blocks, rest) = words.as_chunks::<64>();
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*word);
        }
    }
    let rest = rest.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    sums.iter().fold(rest, |sum, n| sum.wrapping_add(*n))
}

/// Milliseconds of a pass over as many bytes, shared by all threads, the median of as many rounds: of a sum, or of a copy.
pub fn time_of_pass(bytes: usize, copies: bool, rounds: usize) -> f64 {
    let threads = get_num_threads();
    let words = Arc::new(vec![1u64; bytes / 8]);
    let barrier = Arc::new(Barrier::new(threads));
    let share = words.len().div_ceil(threads);
    let work = |i: usize| {
        let (words, barrier) = (words.clone(), barrier.clone());
        move || {
            let part = &words[i * share..words.len().min((i + 1) * share)];
            let mut copy = if copies { part.to_vec() } else { Vec::new() };
            let mut times = Vec::new();
            for _ in 0..rounds {
                barrier.wait();
                let start = Instant::now();
                match copies {
                    true => black_box(&mut copy).copy_from_slice(black_box(part)),
                    false => drop(black_box(read(black_box(part)))),
                }
                barrier.wait();
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            times.sort_by(f64::total_cmp);
            times[rounds / 2]
        }
    };
    let others: Vec<_> = (1..threads).map(|i| thread::spawn(work(i))).collect();
    let time = work(0)();
    for other in others {
        let _ = other.join();
    }
    time
}
