//! The work of dispatches, and the notes that count as errors.

use crate::bench::{fails, Bench};
use softmetal::{Buffer, BufferOptions, CompileOptions, Library, Notes, Pipeline, Settings};

#[test]
fn every_dispatch_is_recorded() {
    let bench = Bench::new();
    let x = bench.floats(&[1.0; 40]);
    let y = bench.empty(40, BufferOptions::SHARED);
    bench.device.recorder().start();
    bench
        .run(|encoder| {
            bench.scale(encoder, &x, &y, 40, 2.0);
            bench.scale(encoder, &x, &y, 8, 2.0);
        })
        .expect("runs");
    let records = bench.device.recorder().stop();
    let [first, second] = &records[..] else {
        panic!("{records:?}")
    };
    assert_eq!(
        (first.kernel.as_str(), first.grid, first.groups),
        ("scale", [40, 1, 1], [2, 1, 1])
    );
    assert_eq!((first.counters.threads, second.counters.threads), (40, 8));
    assert_eq!(
        (
            first.counters.device_written_unique,
            second.counters.device_written
        ),
        (160, 32)
    );
    assert_eq!(bench.device.totals().dispatches, 2);
    assert_eq!(bench.device.totals().counters.device_written, 192);
    assert!(bench.device.recorder().stop().is_empty());
}

#[test]
fn the_trace_is_json_at_any_time() {
    let path = std::env::temp_dir().join(format!("softmetal-trace-{}.json", std::process::id()));
    let bench = Bench::with(Settings {
        trace: Some(path.clone()),
        ..Settings::checked()
    });
    let read = || std::fs::read_to_string(&path).expect("a trace");
    assert_eq!(read().split_whitespace().collect::<String>(), "[]");
    let x = bench.floats(&[1.0; 4]);
    let y = bench.empty(4, BufferOptions::SHARED);
    for count in 1..=2 {
        bench
            .run(|encoder| bench.scale(encoder, &x, &y, 4, 2.0))
            .expect("runs");
        let text = read();
        assert!(
            text.starts_with("[\n{") && text.ends_with("}\n]\n"),
            "{text}"
        );
        assert_eq!(text.matches("\"kernel\":\"scale\"").count(), count);
        assert_eq!(text.matches("},\n{").count(), count - 1);
        assert!(
            text.contains("\"grid\":[4, 1, 1]") && text.contains("\"device_written\":16"),
            "{text}"
        );
    }
    std::fs::remove_file(&path).expect("removed");
}

/// Two threads write the same value to the same place.
fn same_value(notes: Notes) -> Result<(), String> {
    let bench = Bench::with(Settings {
        notes,
        ..Settings::checked()
    });
    let source = "#line 1 \"mine.metal\"\n#include <metal_stdlib>\nusing namespace metal;\n\
                  kernel void same(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i / 2] = 1.0f; }\n";
    let library =
        Library::new(&bench.device, source, &CompileOptions::default()).expect("a library");
    let pipeline =
        Pipeline::new(&library.function("same").expect("a function")).expect("a pipeline");
    let y = Buffer::new(&bench.device, 16, BufferOptions::SHARED).expect("a buffer");
    let result = bench.run(|encoder| {
        encoder.set_pipeline(&pipeline);
        encoder.set_buffer(Some(&y), 0, 0);
        encoder.dispatch_threads([8, 1, 1], [8, 1, 1]);
    });
    assert!(
        bench.kinds().contains(&"same-value-race"),
        "{:?}",
        bench.kinds()
    );
    result
}

#[test]
fn notes_may_count_as_errors() {
    same_value(Notes::Tell).expect("only a note");
    fails(same_value(Notes::Fail), &["same-value-race", "mine.metal"]);
    fails(
        same_value(Notes::FailIn(vec!["other".into(), ".metal".into()])),
        &["same-value-race"],
    );
    same_value(Notes::FailIn(vec!["other".into()])).expect("not that file");
}
