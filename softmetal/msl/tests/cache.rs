//! What one process has compiled, the next one loads.

use softmetal_msl::{Constant, Library, Options};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "#include <metal_stdlib>
using namespace metal;
constant uint n [[function_constant(0)]];
kernel void k(device uint* x, uint i [[thread_position_in_grid]]) { x[i] = n; }
";

/// Set in child processes: what they compile.
const TASK: &str = "SOFTMETAL_CACHE_TEST";

/// Runs as a child of the test below.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let source = SOURCE.replace("x[i] = n", &format!("x[i] = n + {task}u"));
    let library = Library::new(&source, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let function = library.function("k", &[(0, Constant::U32(1))]);
    assert!(function.unwrap_or_else(|e| panic!("{e}")).is_some());
}

fn run_child(cache: &Path, clang: Option<&Path>, task: &str) -> bool {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["child", "--exact"]);
    command.env("SOFTMETAL_CACHE", cache).env(TASK, task);
    if let Some(clang) = clang {
        command.env("SOFTMETAL_CLANG", clang);
    }
    let output = command.output().expect("the child runs");
    output.status.success()
}

/// A compiler that only tells its version.
fn idle_clang(dir: &Path) -> PathBuf {
    let real = std::env::var("SOFTMETAL_CLANG").ok().or_else(|| {
        let names = ["clang-19", "clang-18", "clang-17", "clang-16", "clang"];
        let found = names
            .into_iter()
            .find(|name| Command::new(name).arg("--version").output().is_ok());
        found.map(str::to_owned)
    });
    let path = dir.join("idle-clang");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {} --version\nexit 1\n",
        real.expect("a clang")
    );
    std::fs::write(&path, script).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
        .expect("an executable script");
    path
}

#[test]
fn processes_share_what_they_compiled() {
    let dir = std::env::temp_dir().join(format!("softmetal-cache-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let cache = dir.join("cache");
    let idle = idle_clang(&dir);
    let both: Vec<bool> = std::thread::scope(|scope| {
        let run = || scope.spawn(|| run_child(&cache, None, "1"));
        let children = [run(), run()];
        children
            .map(|child| child.join().expect("no panic"))
            .to_vec()
    });
    assert_eq!(both, [true, true], "two processes at once");
    assert!(
        run_child(&cache, Some(&idle), "1"),
        "nothing is left to compile"
    );
    assert!(
        !run_child(&cache, Some(&idle), "2"),
        "another source is another key"
    );
    let leftover = std::fs::read_dir(&cache).expect("a cache").filter(|file| {
        let name = file.as_ref().expect("a readable cache").file_name();
        name.to_string_lossy().starts_with('.')
    });
    assert_eq!(leftover.count(), 0, "unfinished files");
    std::fs::remove_dir_all(&dir).expect("a directory of ours");
}
