//! The example from end to end, and its chart and table.

use crate::algorithms::Way;
use crate::contest::{self, Contest, Entry, Time};
use crate::measure::Budget;
use crate::shapes::{Shape, SHAPES};
use crate::svg::Chart;
use crate::table;
use candle_core::{Device, Result};
use candle_fused::ops::ConvAlgo;

const SMALL: Shape = Shape {
    model: "<small>",
    channels: 8,
    outputs: 8,
    kernel: 3,
    stride: 1,
    padding: 1,
    groups: 1,
    image: [9, 10],
    quick: true,
};

fn way(algo: ConvAlgo) -> Way {
    Way {
        algo,
        prepared: false,
    }
}

/// By two algorithms, of which one is slower than stock.
fn made_up(shape: Shape) -> Contest {
    let entry = |algo, also, us, error| Entry {
        way: way(algo),
        also,
        time: Time(us),
        error,
    };
    let auto = vec![way(ConvAlgo::Auto), way(ConvAlgo::Tiled)];
    Contest {
        shape,
        stock: Time(4000.0),
        entries: vec![
            entry(ConvAlgo::ImplicitGemm, auto, 500.0, 3e-7),
            entry(ConvAlgo::Winograd, Vec::new(), 5000.0, 2e-3),
        ],
    }
}

fn text(contest: &Contest) -> String {
    let mut out = Vec::new();
    table::contest(&mut out, contest).expect("memory takes all");
    String::from_utf8(out).expect("text")
}

#[test]
fn a_table_has_a_line_for_each_algorithm() {
    let text = text(&made_up(SMALL));
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0].join(" "), "<small> 8→8 3×3, 10×9");
    assert_eq!(lines[1].join(" "), "stock Candle 4.00 ms 0.0 1.0× -");
    let ours = "implicit GEMM 0.500 ms 0.2 8.0× 3.0e-7 auto, tiled";
    assert_eq!(lines[2].join(" "), ours);
    assert_eq!(lines[3].join(" "), "Winograd 5.00 ms 0.0 0.80× 2.0e-3");
    assert_eq!(lines.len(), 4);
}

#[test]
fn what_differs_is_named() {
    let mut contest = made_up(SMALL);
    let wrong: Vec<String> = contest.disagreements().collect();
    let want = "<small> 8→8 3×3, 10×9: Winograd differs from stock by 2.0e-3, 1e-4 accepted";
    assert_eq!(wrong, [want]);
    contest.entries[0].error = f64::INFINITY;
    assert_eq!(contest.disagreements().count(), 2);
}

#[test]
fn a_chart_is_well_formed_and_has_every_shape() {
    let contests: Vec<Contest> = SHAPES.into_iter().chain([SMALL]).map(made_up).collect();
    let chart = Chart {
        title: "a < b & \"c\"",
        contests: &contests,
    };
    let svg = chart.render();
    assert_well_formed(&svg);
    assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"));
    assert!(svg.contains("&lt;small&gt; 8→8"));
    for shape in SHAPES {
        assert!(svg.contains(&format!(">{shape}</text>")), "{shape}");
    }
    assert_eq!(svg.matches("◂ auto</text>").count(), contests.len());
    assert_eq!(svg.matches("8.0×, 0.500 ms").count(), contests.len());
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

/// Tags close in order, attributes are quoted, and no text holds what must be escaped.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert!(!text.contains('>'), "{text}");
        for entity in text.split('&').skip(1) {
            assert!(entity.contains(';'), "{text}");
        }
        let name = tag.split_whitespace().next().expect("a name");
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_small_shape_goes_all_the_way() -> Result<()> {
    let contest = contest::run(SMALL, &Device::Cpu, &Budget::QUICK)?;
    assert_eq!(contest.disagreements().count(), 0);
    assert_eq!(contest.entries.len(), 3);
    assert!(contest.stock.0 > 0.0 && contest.entries.iter().all(|e| e.time.0 > 0.0));
    assert_eq!(text(&contest).lines().count(), 5);
    let chart = Chart {
        title: "one",
        contests: &[contest],
    };
    assert_well_formed(&chart.render());
    Ok(())
}
