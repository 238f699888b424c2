//! Each `snippets/*.before.rs` becomes its `*.after.rs`. `BLESS=1 cargo test` writes the latter anew.

use port_model::{edit, methods, port, tokens, Options};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn ported(code: &str) -> String {
    let defined = methods::defined(&tokens::tokens(code));
    edit::apply(code, &port(code, &Options::default(), &defined).edits)
}

#[test]
fn snippets_become_what_they_should() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snippets");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the snippets") {
        let path = entry.expect("an entry").path();
        let name = path.to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".before.rs") else {
            continue;
        };
        let got = ported(&fs::read_to_string(&path).expect("a snippet"));
        let after = format!("{stem}.after.rs");
        if env::var_os("BLESS").is_some() {
            fs::write(&after, &got).expect("a written snippet");
        }
        let want = fs::read_to_string(&after).expect("the ported snippet");
        assert_eq!(got, want, "{name}");
        assert_eq!(ported(&got), got, "{name} is not changed again");
        count += 1;
    }
    assert!(count >= 5);
}

#[test]
fn paths_alone_can_be_rewritten() {
    let options = Options {
        to: "composed::nn".into(),
        fuse: false,
        resizing: None,
        ..Options::default()
    };
    let code = "use candle_nn::Linear;\nfn f(x: &candle_core::Tensor) { x.relu(); }\n";
    let edits = port(code, &options, &Default::default()).edits;
    assert_eq!(
        edit::apply(code, &edits),
        code.replace("candle_nn", "composed::nn")
    );
}

#[test]
fn what_is_renamed_in_the_manifest_is_found_in_the_code() {
    let options = Options {
        from: "nn".into(),
        ..Options::default()
    };
    let edits = port(
        "use nn::Linear;\nuse x::nn::Y;\n",
        &options,
        &Default::default(),
    )
    .edits;
    let got = edit::apply("use nn::Linear;\nuse x::nn::Y;\n", &edits);
    assert_eq!(got, "use candle_fused::nn::Linear;\nuse x::nn::Y;\n");
}

#[test]
fn a_trait_alone_can_take_the_place_of_pooling() {
    let options = Options {
        fuse: false,
        resizing: Some("composed::Pooling".into()),
        ..Options::default()
    };
    let code = "use candle_core::Tensor;\nfn f(x: &Tensor) { x.relu()?.max_pool2d(2); }\n";
    let got = edit::apply(code, &port(code, &options, &Default::default()).edits);
    let want = "use composed::Pooling as _;\nuse candle_core::Tensor;\nfn f(x: &Tensor) { x.relu()?.max_pool2d_fused(2); }\n";
    assert_eq!(got, want);
}

#[test]
fn methods_in_another_form_get_a_remark() {
    let code = "use candle_core::Tensor;
fn f(x: &Tensor, y: f64, own: &Own) {
    Tensor::max_pool2d(x, 2);
    x.max_pool2d::<usize>(2).and_then(|x| Tensor::relu(&x));
    y.tanh() + f64::tanh(y);
    own.silu::<u8>();
}
macro_rules! m { ($x:expr) => { $x.upsample_nearest2d(1, 2) } }
";
    let ported = port(code, &Options::default(), &["silu"].into());
    let mut remarks = ported.remarks;
    remarks.sort();
    let want = [
        "line 3: `Tensor::max_pool2d` stays as it is",
        "line 4: `.max_pool2d::<..>(..)` stays as it is",
        "line 4: `Tensor::relu` stays as it is",
        "line 8: `.upsample_nearest2d(..)` in a macro stays as it is",
    ];
    assert_eq!(remarks, want);
    assert!(ported.edits.is_empty() && !ported.keeps_from);
}

/// Compiles a file as a library, with the crates that `stubs` has been compiled to.
fn compile(name: &str, path: &Path) {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let emit = format!(
        "--emit=metadata={}",
        out.join(format!("lib{name}.rmeta")).display()
    );
    let search = format!("-L{}", out.display());
    let mut rustc = Command::new(env::var("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--edition=2021", "--crate-type=lib", "--cap-lints=allow"]);
    rustc.args(["--crate-name", name, &emit, &search]);
    for stub in ["candle_core", "candle_nn", "candle_fused"] {
        let compiled = out.join(format!("lib{stub}.rmeta"));
        if stub != name && compiled.is_file() {
            rustc.arg(format!("--extern={stub}={}", compiled.display()));
        }
    }
    let output = rustc.arg(path).output().expect("rustc");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", path.display());
}

/// Against stubs of the crates, which have the signatures of the real ones: types and borrows, at the cost of no build of them.
#[test]
fn snippets_compile_before_and_after() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for stub in ["candle_core", "candle_nn", "candle_fused"] {
        compile(stub, &tests.join(format!("stubs/{stub}.rs")));
    }
    for name in [
        "attention",
        "comments",
        "linear",
        "pooling",
        "shebang",
        "softmax_paths",
    ] {
        for when in ["before", "after"] {
            let path = tests.join(format!("snippets/{name}.{when}.rs"));
            compile("snippet", &path);
        }
    }
}
