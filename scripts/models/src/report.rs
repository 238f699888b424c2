//! The tables of the results, in Markdown.

use crate::table::{find, CASES, TRAINED};
use candle_core::Result;
use std::collections::BTreeMap;

/// The columns of each result by its case: the last file that has one wins.
fn read(paths: &[&str]) -> Result<BTreeMap<String, Vec<String>>> {
    let mut rows = BTreeMap::new();
    for path in paths {
        for line in std::fs::read_to_string(path)?.lines() {
            let mut columns = line.split('\t').map(String::from);
            if let Some(id) = columns.next() {
                rows.insert(id, columns.collect());
            }
        }
    }
    Ok(rows)
}

fn number(columns: &[String], i: usize) -> Option<f64> {
    columns.get(i)?.parse().ok()
}

/// Prints the tables of the files `forward`, `gradients`, `minilm` and `torch` have been written to.
pub fn run(paths: &[&str]) -> Result<bool> {
    let rows = read(paths)?;
    let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    println!(
        "| model | size | dtype | agreement | stock ms | ported ms | ratio | PyTorch ms | runs |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let minilm = ["MiniLM 1x128", "MiniLM 32x128"];
    let all = CASES
        .iter()
        .map(|case| case.id())
        .chain(minilm.map(String::from));
    for id in all {
        let Some(columns) = rows.get(&id) else {
            continue;
        };
        let case = find(&id);
        let (stock, ported) = (number(columns, 1), number(columns, 2));
        let ratio = stock.zip(ported).map(|(stock, ported)| stock / ported);
        if let (Some(ratio), Some(case)) = (ratio, case) {
            let group = format!("{:?}, {}", case.group, case.dtype.as_str());
            ratios.entry(group).or_default().push(ratio);
        }
        let torch = rows
            .get(&format!("torch {id}"))
            .and_then(|columns| columns.first());
        let text = |i: usize| columns.get(i).map_or("", String::as_str);
        println!(
            "| {} | {} | {} | {} {} | {} | {} | {} | {} | {} |",
            case.map_or(id.as_str(), |case| case.name),
            case.map_or("all-MiniLM-L6-v2, real weights", |case| case.about),
            case.map_or("f32", |case| case.dtype.as_str()),
            text(0),
            text(4),
            text(1),
            text(2),
            ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")),
            torch.map_or("–", String::as_str),
            text(3),
        );
    }
    println!("\nGeometric means of the ratios:\n");
    for (group, ratios) in &ratios {
        let log: f64 = ratios.iter().map(|r| r.ln()).sum();
        let least = ratios.iter().fold(f64::INFINITY, |a, b| a.min(*b));
        let mean = (log / ratios.len() as f64).exp();
        println!(
            "- {group}: {mean:.2} of {} cases, the lowest {least:.2}",
            ratios.len()
        );
    }
    trained(&rows);
    Ok(true)
}

fn trained(rows: &BTreeMap<String, Vec<String>>) {
    println!("\n| trained | size | reachable | stock | composed | ported | stock ms | composed ms | ported ms | composed / ported | composed MB | ported MB | ported / composed |");
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, about) in TRAINED {
        let Some(columns) = rows.get(*name) else {
            continue;
        };
        let text = |i: usize| columns.get(i).map_or("", String::as_str);
        let ratio = |above: usize, below: usize| {
            let pair = number(columns, above).zip(number(columns, below));
            pair.map_or("–".into(), |(above, below)| {
                format!("{:.2}", above / below)
            })
        };
        println!(
            "| {} | {about} | {} | {} | {} | {} {} | {} | {} | {} | {} | {} | {} | {} |",
            name.trim_end_matches(" train"),
            text(0),
            text(1),
            text(2),
            text(3),
            text(10),
            text(4),
            text(5),
            text(6),
            ratio(5, 6),
            text(8),
            text(9),
            ratio(9, 8),
        );
    }
}
