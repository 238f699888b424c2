//! The arrows between the rooms of `src` point one way: `nn → ops → {cpu, metal} → candle`. Read off the paths in the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What the code of a room may not name, by the beginning of the file's path.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("ops/", &["nn", "ext"]),
    ("op/", &["ops", "nn", "ext", "cpu", "metal"]),
    ("check", &["ops", "nn", "ext", "cpu", "metal"]),
    ("layout", &["ops", "nn", "ext", "cpu", "metal"]),
    ("philox", &["ops", "nn", "ext", "cpu", "metal"]),
    ("act", &["ops", "nn", "ext", "cpu", "metal"]),
    ("quant/", &["ops", "nn", "ext", "cpu", "metal"]),
    ("cpu/", &["ops", "nn", "ext", "metal"]),
    ("metal/", &["ops", "nn", "ext", "cpu"]),
];

fn root() -> PathBuf {
    // The tests of the software Metal device build this file from another package.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match root.join("src/lib.rs").exists() {
        true => root.to_path_buf(),
        false => root.join("../.."),
    }
}

/// Every file of `src`: its path from there, and its code without comments.
fn files() -> Vec<(String, String)> {
    fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(dir).expect("a folder of src");
        for entry in entries.map(|entry| entry.expect("an entry").path()) {
            match entry.is_dir() {
                true => collect(&entry, out),
                false => out.push(entry),
            }
        }
    }
    let src = root().join("src");
    let mut paths = Vec::new();
    collect(&src, &mut paths);
    let code = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a source file");
        let lines = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or(""));
        lines.collect::<Vec<_>>().join("\n")
    };
    let name = |path: &PathBuf| {
        path.strip_prefix(&src)
            .expect("in src")
            .display()
            .to_string()
    };
    paths.iter().map(|path| (name(path), code(path))).collect()
}

/// The names behind each `crate::…` of the code: `crate::{a, b::c}` names a and b.
fn named(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(first_names(group)),
            None => names.extend(identifier(rest)),
        }
    }
    names
}

fn identifier(text: &str) -> Option<String> {
    let name: String = text
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (!name.is_empty()).then_some(name)
}

/// The first name of each path in a group, up to its closing brace.
fn first_names(group: &str) -> BTreeSet<String> {
    let (mut names, mut depth, mut start) = (BTreeSet::new(), 0, 0);
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.extend(identifier(group[start..i].trim_start()));
                start = i + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

#[test]
fn paths_are_read() {
    let code = "use crate::{a::{x, y}, b}; crate::c::d(); use crate::e::f;";
    assert_eq!(
        named(code, "crate::"),
        ["a", "b", "c", "e"].map(String::from).into()
    );
    assert_eq!(
        named("use super::{self, glu, act::X};", "super::"),
        ["self", "glu", "act"].map(String::from).into()
    );
}

#[test]
fn no_arrow_points_back() {
    let mut wrong = Vec::new();
    for (path, code) in files() {
        let names = named(&code, "crate::");
        for (room, forbidden) in FORBIDDEN {
            if path.starts_with(room) {
                let found = forbidden.iter().filter(|name| names.contains(**name));
                wrong.extend(found.map(|name| format!("{path} names crate::{name}")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "arrows that point back:\n{}",
        wrong.join("\n")
    );
}

/// The op and the name of each export: `op: name, name = references;` in the text of `ops/mod.rs`.
pub fn exports(text: &str) -> Vec<(String, String)> {
    let (_, list) = text.split_once("\nexports! {").expect("a list of exports");
    let mut exports = Vec::new();
    for entry in list.split(';') {
        let Some((op, names)) = entry.split_once(':') else {
            continue;
        };
        let names = names.split('=').next().unwrap_or_default();
        let names = names.split(',').map(|name| name.trim().to_string());
        exports.extend(names.map(|name| (op.trim().to_string(), name)));
    }
    exports
}

fn exports_by_name(text: &str) -> BTreeMap<String, String> {
    let by_name = exports(text).into_iter().map(|(op, name)| (name, op));
    by_name.collect()
}

/// For each op, the ops that its code names: by `crate::ops::…`, and by `super::…` from the op's own `mod.rs`. Names that
/// `ops/mod.rs` re-exports stand for the op that they come from.
fn ops_named_by_ops() -> BTreeMap<String, BTreeSet<String>> {
    let files = files();
    let (_, exports) = files
        .iter()
        .find(|(path, _)| path == "ops/mod.rs")
        .expect("ops/mod.rs");
    let home = exports_by_name(exports);
    assert_eq!(home["swiglu"], "glu");
    let ops: BTreeSet<String> = files
        .iter()
        .filter_map(|(path, _)| {
            path.strip_prefix("ops/")?
                .split_once('/')
                .map(|(op, _)| op.to_string())
        })
        .collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, code) in &files {
        let Some((op, file)) = path
            .strip_prefix("ops/")
            .and_then(|path| path.split_once('/'))
        else {
            continue;
        };
        let mut names = named(code, "crate::ops::");
        let depth = file.matches('/').count() + usize::from(!file.ends_with("mod.rs"));
        names.extend(named(code, &"super::".repeat(depth + 1)));
        let resolve = |name: String| match ops.contains(&name) {
            true => Some(name),
            false => home.get(&name).cloned(),
        };
        let others = names
            .into_iter()
            .filter_map(resolve)
            .filter(|other| other != op);
        graph.entry(op.to_string()).or_default().extend(others);
    }
    graph
}

#[test]
fn ops_do_not_depend_on_each_other_in_circles() {
    let mut graph = ops_named_by_ops();
    assert!(
        graph["glu"].contains("activation"),
        "the arrows are not found: {graph:?}"
    );
    // Takes away ops that name no other, until none is left, or only a circle.
    loop {
        let free: Vec<String> = graph
            .iter()
            .filter(|(_, named)| named.is_empty())
            .map(|(op, _)| op.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        for op in &free {
            graph.remove(op);
            graph.values_mut().for_each(|named| {
                named.remove(op);
            });
        }
    }
    // An op that stands outside of a folder of its own cannot be part of a circle of ops.
    graph.retain(|_, named| !named.is_empty());
    assert!(graph.is_empty(), "circles among {graph:?}");
}
