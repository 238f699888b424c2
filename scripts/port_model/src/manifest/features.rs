//! The features of a crate that have to do with `candle-nn`.

use super::sections::{flag, sections};
use super::{FEATURES, FUSED};
use toml_edit::{Array, DocumentMut, Item, Value};

pub(super) struct Features {
    /// The keys of `candle-nn`.
    keys: Vec<String>,
    /// Those of them that are features too, because they are optional and no feature is called so.
    pub(super) implied: Vec<String>,
    /// Whether a feature of `candle-nn` is asked for that `candle-fused` does not have.
    pub(super) ask_for_more: bool,
}

/// `key/feature` or `key?/feature` as the key, what stands behind it, and the feature.
fn forwarded(text: &str) -> Option<(&str, &str, &str)> {
    let (key, feature) = text.split_once('/')?;
    Some(match key.strip_suffix('?') {
        Some(key) => (key, "?", feature),
        None => (key, "", feature),
    })
}

fn arrays(document: &DocumentMut) -> Vec<(&str, &Array)> {
    let features = document.get("features").and_then(Item::as_table_like);
    let features = features.into_iter().flat_map(|f| f.iter());
    let arrays = features.filter_map(|(name, item)| Some((name, item.as_array()?)));
    arrays.collect()
}

impl Features {
    pub(super) fn new(document: &DocumentMut, keys: Vec<String>) -> Self {
        let arrays = arrays(document);
        let texts = || arrays.iter().flat_map(|(_, array)| array.iter());
        let texts = || texts().filter_map(Value::as_str);
        let is_key = |key: &str| keys.iter().any(|k| k == key);
        let ask_for_more = texts()
            .filter_map(forwarded)
            .any(|(key, _, feature)| is_key(key) && !FEATURES.contains(&feature));
        let is_optional = |key: &str| {
            let own = sections(document).into_iter();
            let mut own = own.filter(|section| !section.is_shared());
            own.any(|section| {
                let item = section.table(document).and_then(|table| table.get(key));
                item.is_some_and(|item| flag(item, "optional"))
            })
        };
        let is_implied = |key: &&String| {
            let explicit = arrays.iter().any(|(name, _)| name == key)
                || texts().any(|text| text.strip_prefix("dep:") == Some(key));
            is_optional(key) && !explicit
        };
        let implied = keys.iter().filter(is_implied).cloned().collect();
        Features {
            implied,
            ask_for_more,
            keys,
        }
    }

    /// What takes the place of a feature, where `candle-fused` is optional or is not.
    fn exchanged(&self, text: &str, optional: bool) -> Option<Exchanged> {
        let is_key = |key: &str| self.keys.iter().any(|k| k == key);
        if let Some((key, ask, feature)) = forwarded(text) {
            let ask = if optional { ask } else { "" };
            let shared = is_key(key) && FEATURES.contains(&feature);
            return shared.then(|| Exchanged {
                text: Some(format!("{FUSED}{ask}/{feature}")),
                beside: false,
            });
        }
        let enabled = text.strip_prefix("dep:").filter(|key| is_key(key));
        let new = match enabled {
            Some(_) => format!("dep:{FUSED}"),
            None if self.implied.iter().any(|key| key == text) => FUSED.to_string(),
            None => return None,
        };
        Some(Exchanged {
            text: optional.then_some(new),
            beside: true,
        })
    }

    /// Features that forward to `candle-nn` forward to `candle-fused`, which forwards to both. Says whether anything changed.
    pub(super) fn rewrite(&self, document: &mut DocumentMut, keep: bool, optional: bool) -> bool {
        let features = document.get_mut("features");
        let features = features.and_then(Item::as_table_like_mut);
        let mut changed = false;
        for (_, item) in features.into_iter().flat_map(|f| f.iter_mut()) {
            let Some(array) = item.as_array_mut() else {
                continue;
            };
            // From the last edit to the first: an edit moves the text behind it.
            for i in (0..array.len()).rev() {
                let text = array.get(i).and_then(Value::as_str);
                if let Some(new) = text.and_then(|text| self.exchanged(text, optional)) {
                    changed |= new.put(array, i, keep);
                }
            }
        }
        changed
    }
}

struct Exchanged {
    text: Option<String>,
    /// Whether it stands beside the old one if `candle-nn` stays.
    beside: bool,
}

impl Exchanged {
    fn put(self, array: &mut Array, at: usize, keep: bool) -> bool {
        let known = |text: &String| array.iter().any(|v| v.as_str() == Some(text));
        let text = self.text.filter(|text| !known(text));
        let beside = self.beside && keep;
        match text {
            Some(text) if beside => array.insert(at + 1, text),
            Some(text) => drop(array.replace(at, text)),
            None if beside => return false,
            None => {
                let old = array.remove(at);
                if let Some(next) = array.get_mut(at) {
                    *next.decor_mut() = old.decor().clone();
                }
            }
        }
        true
    }
}
