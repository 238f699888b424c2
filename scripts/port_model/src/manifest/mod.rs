//! Cargo.toml: `candle-fused` takes the place of `candle-nn`, or stands beside it where something still needs that.

mod features;
mod sections;

use features::Features;
use sections::{asked, flag, is_fused, is_inherited, sections};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Key, Table, Value};

/// Cargo features that both crates have.
const FEATURES: &[&str] = &["metal", "accelerate", "mkl", "cuda"];

const FUSED: &str = "candle-fused";

/// How `candle-fused` is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dependency<'a> {
    /// A TOML value, such as `"0.1"` or `{ path = ".." }`.
    pub source: &'a str,
    /// How many folders the manifest is below the one that a path in `source` begins at.
    pub depth: usize,
    /// Whether `candle-nn` stays because the code still names it.
    pub keep: bool,
    /// Whether it stays among the dependencies of the workspace.
    pub keep_shared: bool,
    /// The keys of `candle-nn` in the workspace, if that is ported too.
    pub shared: &'a [String],
}

/// A manifest that has been read.
pub struct Manifest {
    text: String,
    document: DocumentMut,
}

impl Manifest {
    pub fn new(text: &str) -> Result<Self, String> {
        Ok(Manifest {
            text: text.to_string(),
            document: text.parse().map_err(|e| format!("{e}"))?,
        })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn is_workspace(&self) -> bool {
        self.document.contains_key("workspace")
    }

    /// The keys of `candle-nn` among the dependencies of the workspace.
    pub fn shared(&self) -> Vec<String> {
        let mut shared = sections(&self.document).into_iter();
        let shared = shared.find(|section| section.is_shared());
        shared.map_or(vec![], |section| section.keys(&self.document, &[]))
    }

    /// The keys of `candle-nn` among the crate's own dependencies.
    fn keys(&self, shared: &[String]) -> Vec<String> {
        let own = sections(&self.document).into_iter();
        let own = own.filter(|section| !section.is_shared());
        own.flat_map(|section| section.keys(&self.document, shared))
            .collect()
    }

    /// The name by which the code knows `candle-nn`, if the crate depends on it.
    pub fn crate_name(&self, shared: &[String]) -> Option<String> {
        let keys = self.keys(shared);
        keys.first().map(|key| key.replace('-', "_"))
    }

    /// Whether the crate depends on `candle-fused` already.
    pub fn has_fused(&self) -> bool {
        let own = sections(&self.document).into_iter();
        let mut own = own.filter(|section| !section.is_shared());
        own.any(|section| section.fused(&self.document).is_some())
    }

    /// Whether the library has neither of them, but its tests or its build script.
    pub fn is_for_tests(&self, shared: &[String]) -> bool {
        let own = sections(&self.document).into_iter();
        let mut normal = own.filter(|section| !section.is_shared() && section.is_normal());
        !normal.any(|section| {
            let fused = section.fused(&self.document).is_some();
            fused || !section.keys(&self.document, shared).is_empty()
        })
    }

    /// Whether the crate takes `candle-nn` from its workspace.
    pub fn inherits(&self, shared: &[String]) -> bool {
        let own = sections(&self.document).into_iter();
        let mut own = own.filter(|section| !section.is_shared());
        own.any(|section| {
            let table = section.table(&self.document);
            let keys = section.keys(&self.document, shared);
            let mut items = keys.iter().filter_map(|key| table?.get(key));
            items.any(is_inherited)
        })
    }

    /// The name of the feature that is there because `candle-nn` is optional.
    pub fn implied_feature(&self, shared: &[String]) -> Option<String> {
        let features = Features::new(&self.document, self.keys(shared));
        features.implied.into_iter().next()
    }

    /// The manifest with `candle-fused`. Without `keep` the dependency on `candle-nn` goes away, unless a feature of it is asked
    /// for that `candle-fused` does not have.
    pub fn ported(&self, dependency: &Dependency) -> Result<String, String> {
        let parsed = dependency.source.parse::<Value>();
        let source = parsed.map_err(|e| format!("--dependency {}: {e}", dependency.source))?;
        let features = Features::new(&self.document, self.keys(dependency.shared));
        let keep = dependency.keep || features.ask_for_more;
        let mut document = self.document.clone();
        let source = lowered(&source, dependency.depth);
        let (mut changed, mut optional) = (false, false);
        for section in sections(&self.document) {
            let keys = section.keys(&self.document, dependency.shared);
            let keep = match section.is_shared() {
                true => dependency.keep_shared,
                false => keep,
            };
            if let Some(table) = section.table_mut(&mut document) {
                changed |= exchange(table, &keys, &source, keep, dependency.shared);
            }
            let fused = section.fused(&document);
            optional |= !section.is_shared() && fused.is_some_and(|item| flag(item, "optional"));
        }
        changed |= features.rewrite(&mut document, keep, optional);
        Ok(match changed {
            false => self.text.clone(),
            true if self.text.contains("\r\n") => {
                let text = document.to_string().replace("\r\n", "\n");
                text.replace('\n', "\r\n")
            }
            true => document.to_string(),
        })
    }
}

/// The value with the path in it as it is seen from `depth` folders further down.
fn lowered(source: &Value, depth: usize) -> Value {
    let mut source = source.clone();
    let table = source.as_inline_table_mut();
    if let Some(path) = table.and_then(|table| table.get_mut("path")) {
        let old = path.as_str().unwrap_or_default();
        if !old.starts_with('/') && !old.contains(':') && depth > 0 {
            *path = format!("{}{old}", "../".repeat(depth)).into();
        }
    }
    source
}

/// Puts `candle-fused` in the place of these keys, or behind them. Says whether anything changed.
fn exchange(
    table: &mut Table,
    keys: &[String],
    source: &Value,
    keep: bool,
    shared: &[String],
) -> bool {
    let mut has_fused = table.iter().any(|(key, _)| is_fused(key));
    let mut changed = false;
    let names: Vec<String> = table.iter().map(|(key, _)| key.to_string()).collect();
    let entries: Vec<(Key, Item)> = names.iter().filter_map(|k| table.remove_entry(k)).collect();
    for (key, item) in entries {
        if !keys.iter().any(|k| k == key.get()) {
            table.insert_formatted(&key, item);
            continue;
        }
        let keep = keep || asked(&item).iter().any(|f| !FEATURES.contains(&f.as_str()));
        let mut new = match is_inherited(&item) && shared.iter().any(|k| k == key.get()) {
            true => inherited(&item),
            false => exchanged(&item, source),
        };
        let mut new_key = Key::new(FUSED);
        if keep {
            if let Some(table) = new.as_table_mut() {
                table.decor_mut().set_prefix("\n");
            }
        } else {
            new_key = new_key
                .with_leaf_decor(key.leaf_decor().clone())
                .with_dotted_decor(key.dotted_decor().clone());
        }
        if keep {
            table.insert_formatted(&key, item);
        }
        changed |= !keep || !has_fused;
        if !has_fused {
            table.insert_formatted(&new_key, new);
        }
        has_fused = true;
    }
    changed
}

/// The entry of `candle-nn`, which is the workspace's, for `candle-fused`.
fn inherited(item: &Item) -> Item {
    let mut item = item.clone();
    let features = item.get_mut("features").and_then(Item::as_array_mut);
    if let Some(features) = features {
        features.retain(|f| f.as_str().is_some_and(|f| FEATURES.contains(&f)));
        if let (true, Some(entry)) = (features.is_empty(), item.as_table_like_mut()) {
            entry.remove("features");
            entry.fmt();
        }
    }
    item
}

/// `source` with what the entry of `candle-nn` says of features, in the same form as that.
fn exchanged(item: &Item, source: &Value) -> Item {
    let mut fields = match source {
        Value::InlineTable(fields) => fields.clone(),
        version => InlineTable::from_iter([("version", version.clone())]),
    };
    let mut plain = true;
    for name in ["optional", "default-features"] {
        if let Some(value) = item.get(name).and_then(Item::as_bool) {
            fields.insert(name, value.into());
            plain = false;
        }
    }
    let features = asked(item).into_iter();
    let features: Vec<String> = features
        .filter(|f| FEATURES.contains(&f.as_str()))
        .collect();
    if !features.is_empty() {
        let all = fields.entry("features");
        if let Some(all) = all.or_insert(Array::new().into()).as_array_mut() {
            for feature in features {
                if all.iter().all(|f| f.as_str() != Some(&feature)) {
                    all.push(feature);
                    plain = false;
                }
            }
        }
    }
    if let Some(old) = item.as_table().filter(|table| !table.is_dotted()) {
        let mut table = fields.into_table();
        *table.decor_mut() = old.decor().clone();
        table.set_position(old.position());
        return Item::Table(table);
    }
    let mut value = match plain {
        true => source.clone(),
        false => {
            fields.fmt();
            Value::InlineTable(fields)
        }
    };
    value.decor_mut().set_prefix(" ");
    let suffix = item.as_value().and_then(|old| old.decor().suffix());
    value
        .decor_mut()
        .set_suffix(suffix.cloned().unwrap_or_default());
    Item::Value(value)
}

#[cfg(test)]
mod tests;
