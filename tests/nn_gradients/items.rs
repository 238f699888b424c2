//! The public items of `candle_nn`, read from its sources: functions, methods, the methods of traits, and what implements a
//! trait.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The traits whose methods take no tensor, or that stock implements for private types alone.
const TRAITS_WITHOUT_TENSORS: &[&str] = &[
    "Clone",
    "CustomOp1",
    "CustomOp2",
    "CustomOp3",
    "Debug",
    "Default",
    "From",
];

/// `ops::softmax`, `conv::Conv2d::absorb_bn`, `rnn::RNN::seq`, `linear::Linear: Module`.
pub fn items() -> BTreeSet<String> {
    let src = source_folder();
    let mut items = BTreeSet::new();
    collect(&src, "", &mut items);
    items
}

/// Where cargo has put the sources of the version that these tests are built with.
fn source_folder() -> PathBuf {
    let asked = asked_of_cargo().or_else(found_in_registry);
    asked.expect("the sources of candle_nn, by `cargo metadata` or in cargo's registry")
}

fn asked_of_cargo() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let manifests = text.split("\"manifest_path\":\"").skip(1);
    let mut paths = manifests.filter_map(|rest| rest.split('"').next());
    let manifest = paths.find(|path| path.contains("/candle-nn"))?;
    let src = Path::new(manifest).with_file_name("src");
    src.join("lib.rs").exists().then_some(src)
}

fn found_in_registry() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?.flatten();
    let mut folders = registries.map(|registry| registry.path().join("candle-nn-0.11.1/src"));
    folders.find(|src| src.join("lib.rs").exists())
}

fn collect(src: &Path, module: &str, items: &mut BTreeSet<String>) {
    let path = module.replace("::", "/");
    let files = match module {
        "" => ["lib.rs".to_string(), String::new()],
        _ => [format!("{path}.rs"), format!("{path}/mod.rs")],
    };
    let file = files
        .iter()
        .map(|file| src.join(file))
        .find(|file| file.is_file());
    let file = file.unwrap_or_else(|| panic!("no file of the module {module:?}"));
    let text = fs::read_to_string(file).expect("a source file");
    for found in read(&text) {
        match found {
            Found::Module(name) if module.is_empty() => collect(src, &name, items),
            Found::Module(name) => collect(src, &format!("{module}::{name}"), items),
            Found::Item(name) => drop(items.insert(format!("{module}::{name}"))),
        }
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    Module(String),
    Item(String),
}

/// What a file declares. Items behind a feature or in tests are left out: no build here has them.
fn read(text: &str) -> Vec<Found> {
    let mut found = Vec::new();
    let mut depth = 0i32;
    let (mut block, mut in_trait) = (String::new(), false);
    // The depth of what is left out, and whether an attribute has just said that something is.
    let (mut left_out, mut conditional) = (None, false);
    for line in text.lines() {
        let code = without_strings(line);
        let code = code.split("//").next().unwrap_or("").trim();
        if left_out.is_none() {
            if code.starts_with("#[cfg(") {
                conditional |= !code.starts_with("#[cfg(not(");
            } else if conditional && !code.is_empty() && !code.starts_with('#') {
                if code.contains('{') {
                    left_out = Some(depth);
                }
                conditional = !(code.contains('{') || code.ends_with(';'));
            } else if !code.is_empty() {
                declared(code, depth, &mut block, &mut in_trait, &mut found);
            }
        }
        let count = |brace: char| code.matches(brace).count() as i32;
        depth += count('{') - count('}');
        if count('}') > 0 && left_out.is_some_and(|outside| depth <= outside) {
            left_out = None;
        }
        if depth == 0 && count('}') > 0 {
            block.clear();
            in_trait = false;
        }
    }
    found
}

fn declared(
    code: &str,
    depth: i32,
    block: &mut String,
    in_trait: &mut bool,
    found: &mut Vec<Found>,
) {
    if depth == 0 {
        if let Some(name) = code
            .strip_prefix("pub mod ")
            .and_then(|rest| rest.strip_suffix(';'))
        {
            found.push(Found::Module(name.into()));
        }
        if let Some(rest) = code.strip_prefix("pub trait ") {
            (*block, *in_trait) = (identifier(rest), true);
        }
        if let Some(rest) = code.strip_prefix("impl") {
            let rest = without_generics(rest);
            let (of, ty) = match rest.split_once(" for ") {
                Some((of, ty)) => (Some(of), ty),
                None => (None, rest.as_str()),
            };
            *block = last_name(ty);
            if let Some(of) = of.map(last_name) {
                if !TRAITS_WITHOUT_TENSORS.contains(&of.as_str()) {
                    found.push(Found::Item(format!("{block}: {of}")));
                }
            }
        }
    }
    let public = code
        .strip_prefix("pub unsafe fn ")
        .or_else(|| code.strip_prefix("pub fn "));
    let of_trait = match *in_trait && depth == 1 {
        true => code.strip_prefix("fn "),
        false => None,
    };
    if let Some(name) = public.or(of_trait).map(identifier) {
        found.push(Found::Item(match depth {
            0 => name,
            _ => format!("{block}::{name}"),
        }));
    }
}

fn identifier(text: &str) -> String {
    let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
    text.chars().take_while(is_part).collect()
}

/// `Module` of `super::Module`, `Func` of `Func<'_> {`.
fn last_name(path: &str) -> String {
    let path = path.trim().split([' ', '{']).next().unwrap_or("");
    identifier(path.rsplit("::").next().unwrap_or(path))
}

fn without_generics(code: &str) -> String {
    let mut depth = 0;
    let code = code.replace("->", "");
    let outside = code.chars().filter(|&c| {
        depth += i32::from(c == '<');
        let outside = depth == 0;
        depth -= i32::from(c == '>');
        outside
    });
    outside.collect::<String>()
}

fn without_strings(line: &str) -> String {
    line.split('"').step_by(2).collect()
}

#[test]
fn declarations_are_read() {
    let text = "
        pub mod inner;
        #[cfg(feature = \"cuda\")]
        pub fn hidden(
            a: u32,
        ) -> u32 {
            1
        }
        #[cfg(not(feature = \"cuda\"))]
        pub fn shown(_: u32) {}
        pub trait Step: Sized {
            fn step(&self) { if true { } }
        }
        impl<'a, T: Fn(u32) -> u32> super::Step for Func<'a, T> {
            fn step(&self) {}
        }
        impl Default for Func<'_> {
            fn default() {}
        }
        impl Func<'_> {
            pub fn new() {}
            fn private() {}
        }
        #[cfg(test)]
        mod tests {
            pub fn test() {}
        }
        pub fn last<D: Dim>(x: D) {}
    ";
    let text: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix("        ").unwrap_or(line))
        .collect();
    let item = |name: &str| Found::Item(name.into());
    let want = [
        Found::Module("inner".into()),
        item("shown"),
        item("Step::step"),
        item("Func: Step"),
        item("Func::new"),
        item("last"),
    ];
    assert_eq!(read(&text.join("\n")), want);
}
