//! Cargo.toml: `candle-fused` takes the place of `candle-nn`, or stands beside it where something still needs that.

/// Cargo features that both crates have.
const FEATURES: &[&str] = &["metal", "accelerate", "mkl", "cuda"];

/// The name by which the code knows `candle-nn`, if it is a dependency.
pub fn crate_name(manifest: &str) -> Option<String> {
    for (i, line) in manifest.lines().enumerate() {
        let Some(key) = dependency_key(manifest, i, line) else {
            continue;
        };
        let own = key == "candle-nn" && !line.contains("package");
        if own || entry(manifest, i).contains("package = \"candle-nn\"") {
            return Some(key.replace('-', "_"));
        }
    }
    None
}

/// The manifest with `candle-fused = source`. Without `keep` the dependency on `candle-nn` goes away, unless a feature names it.
pub fn rewrite(manifest: &str, source: &str, keep: bool) -> String {
    let Some(name) = crate_name(manifest) else {
        return manifest.to_string();
    };
    let name = name.replace('_', "-");
    let features = with_features(manifest, &name);
    let named = |line: &str| {
        let key = |suffix: &str| format!("\"{name}{suffix}");
        !line.trim_start().starts_with('[')
            && (line.contains(&key("/")) || line.contains(&key("?/")))
    };
    let keep = keep || features.lines().any(named);
    let mut out = vec![];
    let mut skipping = false;
    for (i, line) in features.lines().enumerate() {
        if skipping && line.trim_start().starts_with('[') {
            skipping = false;
        }
        if skipping {
            continue;
        }
        if dependency_key(&features, i, line).as_deref() != Some(name.as_str()) {
            out.push(line.to_string());
            continue;
        }
        if line.trim_start().starts_with('[') {
            // A table of its own.
            if keep {
                let table = entry(&features, i);
                out.extend(table.lines().map(String::from));
                out.push(String::new());
            }
            let header = line.replace(&format!("{name}]"), "candle-fused]");
            out.push(header);
            out.extend(as_table(source));
            out.push(String::new());
            skipping = true;
        } else {
            if keep {
                out.push(line.to_string());
            }
            out.push(format!("candle-fused = {source}"));
        }
    }
    let mut text = out.join("\n");
    if manifest.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// `"0.1"` or `{ path = "x" }` as the lines of a table.
fn as_table(source: &str) -> Vec<String> {
    match source.strip_prefix('{').and_then(|s| s.strip_suffix('}')) {
        Some(fields) => fields.split(',').map(|f| f.trim().to_string()).collect(),
        None => vec![format!("version = {source}")],
    }
}

/// Features that forward to `candle-nn` forward to `candle-fused`, which forwards to both.
fn with_features(manifest: &str, name: &str) -> String {
    let mut text = manifest.to_string();
    for feature in FEATURES {
        for ask in ["", "?"] {
            let from = format!("\"{name}{ask}/{feature}\"");
            text = text.replace(&from, &format!("\"candle-fused{ask}/{feature}\""));
        }
    }
    text
}

/// The section that line i stands in.
fn section(manifest: &str, i: usize) -> &str {
    let above = manifest.lines().take(i);
    let headers = above.filter(|l| l.trim_start().starts_with('['));
    headers.last().map_or("", |l| l.trim())
}

fn is_dependencies(header: &str) -> bool {
    let inner = header.trim_matches(['[', ']']);
    inner.split('.').next_back().is_some_and(|last| {
        ["dependencies", "dev-dependencies", "build-dependencies"].contains(&last)
    })
}

/// The dependency that line i declares: `x = …`, `x.workspace = true` or `[dependencies.x]`.
fn dependency_key(manifest: &str, i: usize, line: &str) -> Option<String> {
    let line = line.trim();
    if line.starts_with('[') {
        let (parent, key) = line.trim_matches(['[', ']']).rsplit_once('.')?;
        return is_dependencies(parent).then(|| key.to_string());
    }
    let key = line.split(['=', '.']).next()?.trim().trim_matches('"');
    let here = line.contains('=') && is_dependencies(section(manifest, i));
    here.then(|| key.to_string())
}

/// What belongs to the dependency of line i.
fn entry(manifest: &str, i: usize) -> String {
    let mut lines = manifest.lines().skip(i);
    let first = lines.next().unwrap_or("");
    if !first.trim_start().starts_with('[') {
        return first.to_string();
    }
    let rest = lines.take_while(|l| !l.trim_start().starts_with('['));
    let mut all = vec![first];
    all.extend(rest.filter(|l| !l.trim().is_empty()));
    all.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_exchanged_and_features_are_forwarded() {
        let before = "[dependencies]\ncandle-nn = \"0.11\"\nserde = \"1\"\n\n[features]\nmetal = [\"candle-nn/metal\"]\n";
        let after = "[dependencies]\ncandle-fused = \"0.1\"\nserde = \"1\"\n\n[features]\nmetal = [\"candle-fused/metal\"]\n";
        assert_eq!(rewrite(before, "\"0.1\"", false), after);
        assert_eq!(rewrite(after, "\"0.1\"", false), after);
    }

    #[test]
    fn what_is_still_needed_stays() {
        let before = "[dependencies]\ncandle-nn.workspace = true\n[features]\ncudnn = [\"candle-nn/cudnn\"]\n";
        let after = "[dependencies]\ncandle-nn.workspace = true\ncandle-fused = \"0.1\"\n[features]\ncudnn = [\"candle-nn/cudnn\"]\n";
        assert_eq!(rewrite(before, "\"0.1\"", false), after);
    }

    #[test]
    fn tables_and_renamed_dependencies_are_found() {
        let before = "[dependencies.nn]\nversion = \"0.11\"\npackage = \"candle-nn\"\n\n[dependencies.serde]\nversion = \"1\"\n";
        assert_eq!(crate_name(before).as_deref(), Some("nn"));
        let after =
            "[dependencies.candle-fused]\npath = \"x\"\n\n[dependencies.serde]\nversion = \"1\"\n";
        assert_eq!(rewrite(before, "{ path = \"x\" }", false), after);
        assert_eq!(crate_name("[dependencies]\nserde = \"1\"\n"), None);
        assert_eq!(crate_name("[features]\ncandle-nn = []\n"), None);
    }
}
