//! The dependencies in a manifest.

use super::FUSED;
use toml_edit::{Array, DocumentMut, Item, Table};

/// A table of dependencies, by the keys that lead to it.
pub(super) struct Section(Vec<String>);

pub(super) fn sections(document: &DocumentMut) -> Vec<Section> {
    let own = ["dependencies", "dev-dependencies", "build-dependencies"];
    let mut out: Vec<Section> = own.map(|kind| Section(vec![kind.into()])).into();
    let targets = document.get("target").and_then(Item::as_table);
    for (target, _) in targets.into_iter().flat_map(Table::iter) {
        let of = |kind: &str| Section(vec!["target".into(), target.into(), kind.into()]);
        out.extend(own.map(of));
    }
    out.push(Section(vec!["workspace".into(), "dependencies".into()]));
    out
}

impl Section {
    /// Whether it is the workspace's, for its members to choose from.
    pub(super) fn is_shared(&self) -> bool {
        self.0[0] == "workspace"
    }

    pub(super) fn is_normal(&self) -> bool {
        self.0.last().is_some_and(|kind| kind == "dependencies")
    }

    pub(super) fn table<'a>(&self, document: &'a DocumentMut) -> Option<&'a Table> {
        let mut keys = self.0.iter();
        let item = keys.try_fold(document.as_item(), |item, key| item.get(key));
        item?.as_table()
    }

    pub(super) fn table_mut<'a>(&self, document: &'a mut DocumentMut) -> Option<&'a mut Table> {
        // Asking for a key to change makes it.
        self.table(document)?;
        let mut keys = self.0.iter();
        let item = keys.try_fold(document.as_item_mut(), |item, key| item.get_mut(key));
        item?.as_table_mut()
    }

    pub(super) fn keys(&self, document: &DocumentMut, shared: &[String]) -> Vec<String> {
        let table = self.table(document).into_iter().flat_map(Table::iter);
        let found = table.filter(|(key, item)| is_nn(key, item, shared));
        found.map(|(key, _)| key.to_string()).collect()
    }

    pub(super) fn fused<'a>(&self, document: &'a DocumentMut) -> Option<&'a Item> {
        let table = self.table(document)?;
        let found = table.iter().find(|(key, _)| is_fused(key));
        found.map(|(_, item)| item)
    }
}

/// Whether a dependency is `candle-nn`. The workspace may have another key for it.
fn is_nn(key: &str, item: &Item, shared: &[String]) -> bool {
    match item.get("package").and_then(Item::as_str) {
        Some(package) => package == "candle-nn",
        None => key == "candle-nn" || (is_inherited(item) && shared.iter().any(|k| k == key)),
    }
}

pub(super) fn is_fused(key: &str) -> bool {
    key.replace('_', "-") == FUSED
}

pub(super) fn flag(item: &Item, name: &str) -> bool {
    item.get(name).and_then(Item::as_bool) == Some(true)
}

pub(super) fn is_inherited(item: &Item) -> bool {
    flag(item, "workspace")
}

/// The features that a dependency asks for.
pub(super) fn asked(item: &Item) -> Vec<String> {
    let features = item.get("features").and_then(Item::as_array);
    let features = features.into_iter().flat_map(Array::iter);
    features
        .filter_map(|f| f.as_str())
        .map(String::from)
        .collect()
}
