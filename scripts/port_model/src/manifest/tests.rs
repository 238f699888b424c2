use super::*;

fn crate_name(text: &str) -> Option<String> {
    Manifest::new(text).expect("a manifest").crate_name(&[])
}

/// The manifest with `candle-fused`, which a second run does not change.
fn rewrite(text: &str, source: &str, keep: bool) -> String {
    let dependency = Dependency {
        source,
        keep,
        keep_shared: true,
        ..Dependency::default()
    };
    let port = |text: &str| {
        let manifest = Manifest::new(text).expect("a manifest");
        manifest.ported(&dependency).expect("a ported manifest")
    };
    let out = port(text);
    assert_eq!(port(&out), out, "a second run");
    out
}

#[test]
fn a_line_is_exchanged_and_features_are_forwarded() {
    let before = "[dependencies]\ncandle-nn = \"0.11\"\nserde = \"1\"\n\n[features]\nmetal = [\"candle-nn/metal\"]\n";
    let after = "[dependencies]\ncandle-fused = \"0.1\"\nserde = \"1\"\n\n[features]\nmetal = [\"candle-fused/metal\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
    let windows = |text: &str| text.replace('\n', "\r\n");
    let got = rewrite(&windows(before), "\"0.1\"", false);
    assert_eq!(got, windows(after));
}

#[test]
fn what_is_still_needed_stays() {
    let before =
        "[dependencies]\ncandle-nn.workspace = true\n[features]\ncudnn = [\"candle-nn/cudnn\"]\n";
    let after = "[dependencies]\ncandle-nn.workspace = true\ncandle-fused = \"0.1\"\n[features]\ncudnn = [\"candle-nn/cudnn\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
    let before =
        "[dependencies.candle-nn]\nversion = \"0.11\"\nfeatures = [\"cuda\", \"cudnn\"]\n\n[lib]\n";
    let after = "[dependencies.candle-nn]\nversion = \"0.11\"\nfeatures = [\"cuda\", \"cudnn\"]\n\n[dependencies.candle-fused]\nversion = \"0.1\"\nfeatures = [\"cuda\"]\n\n[lib]\n";
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
    let before = "[target.'cfg(unix)'.dependencies]\ncandle_nn = { package = \"candle-nn\", version = \"0.11\" } # nn\n\n[features]\nmkl = [\"candle_nn/mkl\"]\n";
    assert_eq!(crate_name(before).as_deref(), Some("candle_nn"));
    let after = "[target.'cfg(unix)'.dependencies]\ncandle-fused = \"0.1\" # nn\n\n[features]\nmkl = [\"candle-fused/mkl\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
}

#[test]
fn what_is_said_of_features_is_carried_over() {
    let before = "[dependencies]\n# Layers.\ncandle-nn = { version = \"0.11\", optional = true, default-features = false, features = [\"metal\"] }\n\n[features]\nnn = [\"dep:candle-nn\", \"candle-nn?/cuda\"]\n";
    let after = "[dependencies]\n# Layers.\ncandle-fused = { version = \"0.1\", optional = true, default-features = false, features = [\"metal\"] }\n\n[features]\nnn = [\"dep:candle-fused\", \"candle-fused?/cuda\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
    let both = "[dependencies]\n# Layers.\ncandle-nn = { version = \"0.11\", optional = true, default-features = false, features = [\"metal\"] }\ncandle-fused = { version = \"0.1\", optional = true, default-features = false, features = [\"metal\"] }\n\n[features]\nnn = [\"dep:candle-nn\", \"dep:candle-fused\", \"candle-fused?/cuda\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", true), both);
    let before = "[dependencies]\ncandle-nn = { version = \"0.11\", features = [\"mkl\"] }\n";
    let after =
        "[dependencies]\ncandle-fused = { path = \"x\", features = [\"metal\", \"mkl\"] }\n";
    let source = "{ path = \"x\", features = [\"metal\"] }";
    assert_eq!(rewrite(before, source, false), after);
}

#[test]
fn a_feature_that_an_optional_dependency_implies_is_renamed() {
    let before = "[dependencies]\ncandle-nn = { version = \"0.11\", optional = true }\n\n[features]\nfull = [\"serde\", \"candle-nn\"]\n";
    let after = "[dependencies]\ncandle-fused = { version = \"0.1\", optional = true }\n\n[features]\nfull = [\"serde\", \"candle-fused\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
    let implied = |text: &str| {
        let manifest = Manifest::new(text).expect("a manifest");
        manifest.implied_feature(&[])
    };
    assert_eq!(implied(before).as_deref(), Some("candle-nn"));
    let before = "[dependencies]\ncandle-nn = { version = \"0.11\", optional = true }\n\n[features]\nfull = [\"candle-nn\"]\ncandle-nn = [\"dep:candle-nn\"]\n";
    let after = "[dependencies]\ncandle-fused = { version = \"0.1\", optional = true }\n\n[features]\nfull = [\"candle-nn\"]\ncandle-nn = [\"dep:candle-fused\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
    assert_eq!(implied(before), None);
}

#[test]
fn what_is_there_already_is_not_added_again() {
    let before = "[dependencies]\ncandle-fused = { path = \"y\" }\ncandle-nn = { version = \"0.11\", optional = true }\n\n[features]\nnn = [\"dep:candle-nn\", \"candle-nn?/cuda\"]\n";
    let after = "[dependencies]\ncandle-fused = { path = \"y\" }\n\n[features]\nnn = [\"candle-fused/cuda\"]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
    let before = "[dependencies]\ncandle-nn = \"0.11\"\ncandle_fused = \"0.1\"\n\n[dev-dependencies]\ncandle-nn = \"0.11\"\n";
    let after = "[dependencies]\ncandle-nn = \"0.11\"\ncandle_fused = \"0.1\"\n\n[dev-dependencies]\ncandle-nn = \"0.11\"\ncandle-fused = \"0.1\"\n";
    assert_eq!(rewrite(before, "\"0.1\"", true), after);
    let unchanged = "[dependencies]\ncandle-fused='0.1'\n";
    assert_eq!(rewrite(unchanged, "\"0.1\"", false), unchanged);
}

#[test]
fn values_of_several_lines_are_exchanged_whole() {
    let before = "[dependencies]\ncandle-nn = { version = \"0.11\", features = [\n    \"metal\", # for Macs\n    \"accelerate\",\n] }\nserde = \"1\"\n\n[features]\ncuda = [\n    \"serde\",\n    # GPUs\n    \"candle-nn/cuda\",\n]\n";
    let after = "[dependencies]\ncandle-fused = { version = \"0.1\", features = [\"metal\", \"accelerate\"] }\nserde = \"1\"\n\n[features]\ncuda = [\n    \"serde\",\n    # GPUs\n    \"candle-fused/cuda\",\n]\n";
    assert_eq!(rewrite(before, "\"0.1\"", false), after);
}

#[test]
fn a_workspace_and_its_members_agree() {
    let root = "[workspace]\nmembers = [\"a\"]\n\n[workspace.dependencies]\nnn = { package = \"candle-nn\", version = \"0.11\", features = [\"mkl\"] }\n";
    let root = Manifest::new(root).expect("a manifest");
    let shared = root.shared();
    assert_eq!(shared, ["nn"]);
    assert!(root.is_workspace() && root.crate_name(&shared).is_none());
    let dependency = Dependency {
        source: "{ path = \"../fused\" }",
        depth: 1,
        shared: &shared,
        ..Dependency::default()
    };
    let after = "[workspace]\nmembers = [\"a\"]\n\n[workspace.dependencies]\ncandle-fused = { path = \"../fused\", features = [\"mkl\"] }\n";
    let dependency_of_root = Dependency {
        depth: 0,
        ..dependency
    };
    assert_eq!(root.ported(&dependency_of_root).as_deref(), Ok(after));
    let port = |text: &str| {
        let manifest = Manifest::new(text).expect("a manifest");
        let inherits = manifest.inherits(&shared);
        (manifest.ported(&dependency), inherits)
    };
    let member = "[dependencies]\nnn = { workspace = true, optional = true }\n";
    let after = "[dependencies]\ncandle-fused = { workspace = true, optional = true }\n";
    assert_eq!(port(member), (Ok(after.to_string()), true));
    let member = "[dev-dependencies]\nnn.workspace = true\n";
    let after = "[dev-dependencies]\ncandle-fused.workspace = true\n";
    assert_eq!(port(member), (Ok(after.to_string()), true));
    let apart = "[dependencies]\ncandle-nn = \"0.11\"\n";
    let after = "[dependencies]\ncandle-fused = { path = \"../../fused\" }\n";
    assert_eq!(port(apart), (Ok(after.to_string()), false));
}

#[test]
fn dependencies_of_tests_are_told_apart() {
    let is_for_tests = |text: &str| {
        let manifest = Manifest::new(text).expect("a manifest");
        manifest.is_for_tests(&[])
    };
    assert!(is_for_tests("[dev-dependencies]\ncandle-nn = \"0.11\"\n"));
    assert!(!is_for_tests("[dependencies]\ncandle-nn = \"0.11\"\n"));
    assert!(!is_for_tests("[dependencies]\ncandle-fused = \"0.1\"\n"));
}
