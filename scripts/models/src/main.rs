//! Runs models of candle-transformers as they are, ported to candle_fused, and on composed ops: see [`USAGE`].

mod forward;
mod gradients;
mod memory;
mod report;
mod table;
mod weights;

/// The models of one variant. `cases` is the same code for each.
macro_rules! variant {
    ($variant:ident, $models:ident) => {
        mod $variant {
            use $models::models;
            include!("cases/mod.rs");
            include!("cases/encoders.rs");
            include!("cases/decoders.rs");
            include!("cases/images.rs");
            include!("cases/quantized.rs");
        }
    };
}
variant!(stock, models_stock);
variant!(ported, models_ported);
variant!(composed_ops, models_composed);

#[global_allocator]
static HEAP: memory::Counting = memory::Counting;

const USAGE: &str = "\
usage: models list
       models forward [--seconds N] [--once] [--alone] CASE..
       models gradients [--no-times] CASE..
       models minilm FOLDER
       models report RESULTS..
";

fn main() -> candle_core::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut args = args.iter().map(String::as_str);
    let (command, rest) = (args.next(), args.collect::<Vec<_>>());
    let ok = match command {
        Some("list") => {
            table::CASES
                .iter()
                .for_each(|case| println!("{}", case.id()));
            true
        }
        Some("forward") => forward::run(&rest)?,
        Some("gradients") => gradients::run(&rest)?,
        Some("minilm") => forward::minilm(&rest)?,
        Some("report") => report::run(&rest)?,
        _ => {
            eprint!("{USAGE}");
            false
        }
    };
    if !ok {
        std::process::exit(1);
    }
    Ok(())
}
