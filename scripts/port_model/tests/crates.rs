//! The command line on folders of crates.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A folder with these files, empty but for them.
fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&root);
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
        fs::write(path, text).expect("a written file");
    }
    root
}

/// Ports the folder, twice; returns what the first run had to say.
fn port(root: &Path, files: usize) -> String {
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_port_model"));
        command.args([
            "--quiet",
            "--write",
            "--dependency",
            "{ path = \"../fused\" }",
        ]);
        let output = command.arg(root).output().expect("a run");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{said}");
        said
    };
    let said = run();
    assert!(said.contains(&format!("{files} files changed")), "{said}");
    let again = run();
    assert!(again.contains("0 files changed"), "{again}");
    said
}

fn assert_files(root: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let got = fs::read_to_string(root.join(path)).expect("a file");
        assert_eq!(&got, text, "{path}");
    }
}

const BEFORE: &str = "use candle_nn::Linear;\n";
const AFTER: &str = "use candle_fused::nn::Linear;\n";

#[test]
fn each_crate_is_ported_with_its_own_manifest() {
    let root = folder(
        "workspace",
        &[
            ("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\n\n[workspace.dependencies]\ncandle-nn = \"0.11\"\n"),
            ("a/Cargo.toml", "[package]\nname = \"a\"\n\n[dependencies]\ncandle-nn.workspace = true\n"),
            ("a/src/lib.rs", BEFORE),
            ("a/fuzz/Cargo.toml", "[package]\nname = \"fuzz\"\n\n[dependencies]\nnn = { package = \"candle-nn\", version = \"0.11\" }\n\n[workspace]\n"),
            ("a/fuzz/src/main.rs", "use nn::Linear;\nfn candle_nn() {}\n"),
            ("b/Cargo.toml", "[package]\nname = \"b\"\n\n[dependencies]\ncandle-core = \"0.11\"\n"),
            ("b/src/lib.rs", "use candle_core::Tensor;\nfn f(x: Tensor) { x.relu()?; }\n"),
            ("c/Cargo.toml", "[package]\nname = \"c\"\n\n[dev-dependencies]\ncandle-nn.workspace = true\n"),
            ("c/src/lib.rs", "use candle_core::Tensor;\nfn f(x: Tensor) { x.relu()?; }\n#[cfg(test)]\nuse candle_nn::Linear;\n"),
            ("c/tests/all.rs", "use candle_core::Tensor;\nfn f(x: Tensor) { x.relu()?; }\n"),
        ],
    );
    let said = port(&root, 8);
    assert!(said.contains("b: left alone: depends on neither"), "{said}");
    assert_files(
        &root,
        &[
            ("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\n\n[workspace.dependencies]\ncandle-fused = { path = \"../fused\" }\n"),
            ("a/Cargo.toml", "[package]\nname = \"a\"\n\n[dependencies]\ncandle-fused.workspace = true\n"),
            ("a/src/lib.rs", AFTER),
            ("a/fuzz/Cargo.toml", "[package]\nname = \"fuzz\"\n\n[dependencies]\ncandle-fused = { path = \"../../../fused\" }\n\n[workspace]\n"),
            ("a/fuzz/src/main.rs", "use candle_fused::nn::Linear;\nfn candle_nn() {}\n"),
            ("c/Cargo.toml", "[package]\nname = \"c\"\n\n[dev-dependencies]\ncandle-fused.workspace = true\n"),
            ("c/src/lib.rs", "use candle_core::Tensor;\nfn f(x: Tensor) { x.relu()?; }\n#[cfg(test)]\nuse candle_fused::nn::Linear;\n"),
            ("c/tests/all.rs", "use candle_core::Tensor;\nfn f(x: Tensor) { x.apply(&candle_fused::nn::Activation::Relu)?; }\n"),
        ],
    );
}

#[test]
fn a_workspace_keeps_what_a_member_needs() {
    let root = folder(
        "shared",
        &[
            ("Cargo.toml", "[package]\nname = \"a\"\n\n[dependencies]\ncandle-nn = { workspace = true, features = [\"cudnn\"] }\n\n[workspace.dependencies]\ncandle-nn = \"0.11\"\n"),
            ("src/lib.rs", BEFORE),
        ],
    );
    port(&root, 2);
    assert_files(
        &root,
        &[
            ("Cargo.toml", "[package]\nname = \"a\"\n\n[dependencies]\ncandle-nn = { workspace = true, features = [\"cudnn\"] }\ncandle-fused = { workspace = true }\n\n[workspace.dependencies]\ncandle-nn = \"0.11\"\ncandle-fused = { path = \"../fused\" }\n"),
            ("src/lib.rs", AFTER),
        ],
    );
}

#[test]
fn a_template_is_left_alone() {
    let manifest = "[package]\nname = \"a\"\n\n[dependencies]\ncandle-nn = \"0.11\"\n";
    let root = folder(
        "template",
        &[
            ("a/Cargo.toml", manifest),
            ("a/src/lib.rs", BEFORE),
            ("a/template/Cargo.toml", "[package]\nname = {{ name }}\n"),
            ("a/template/src/lib.rs", BEFORE),
        ],
    );
    let said = port(&root, 2);
    assert!(said.contains("left alone:"), "{said}");
    assert_files(
        &root,
        &[
            ("a/Cargo.toml", "[package]\nname = \"a\"\n\n[dependencies]\ncandle-fused = { path = \"../../fused\" }\n"),
            ("a/src/lib.rs", AFTER),
            ("a/template/src/lib.rs", BEFORE),
        ],
    );
}

#[test]
fn a_feature_of_the_code_gets_a_remark() {
    let root = folder(
        "feature",
        &[
            ("Cargo.toml", "[package]\nname = \"a\"\n\n[dependencies]\ncandle-nn = { version = \"0.11\", optional = true }\n"),
            ("src/lib.rs", "#[cfg(feature = \"candle-nn\")]\nuse candle_nn::Linear;\n"),
        ],
    );
    let said = port(&root, 2);
    assert!(said.contains("lib.rs: feature = \"candle-nn\""), "{said}");
}

#[cfg(unix)]
#[test]
fn links_are_followed_once() {
    use std::os::unix::fs::symlink;
    let manifest = "[package]\nname = \"a\"\n\n[dependencies]\ncandle-nn = \"0.11\"\n";
    let root = folder("links", &[("Cargo.toml", manifest), ("src/lib.rs", BEFORE)]);
    let apart = folder("linked", &[("other.rs", BEFORE)]);
    let link = |to: &Path, from: &str| symlink(to, root.join(from)).expect("a link");
    link(&root, "src/again");
    link(&root.join("src/lib.rs"), "src/a.rs");
    link(&root.join("nowhere.rs"), "src/broken.rs");
    link(&apart, "src/linked");
    port(&root, 3);
    assert_files(
        &root,
        &[("src/lib.rs", AFTER), ("src/linked/other.rs", AFTER)],
    );
    assert!(root.join("src/a.rs").is_symlink());
}
