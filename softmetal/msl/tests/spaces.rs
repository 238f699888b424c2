//! Pointers and references into one address space are not those into another.

use softmetal_msl::{Library, Options};

fn compile(body: &str) -> Result<Library, String> {
    let head = "#include <metal_stdlib>\n#define AT(space, name) space const float* name\n#line 2";
    let source = format!("{head}\nusing namespace metal;\n{body}\n");
    Library::new(&source, &Options::default()).map_err(|error| error.to_string())
}

/// `bad` is refused in its first line with a message that has `why` in it; `good` passes.
#[track_caller]
fn twins(bad: &str, why: &str, good: &str) {
    let error = compile(bad)
        .err()
        .unwrap_or_else(|| panic!("accepted: {bad}"));
    assert!(
        error.starts_with("program_source:3:") && error.contains(why),
        "{bad}\n{error}"
    );
    accepted(good);
}

#[track_caller]
fn accepted(good: &str) {
    if let Err(error) = compile(good) {
        panic!("{good}\n{error}");
    }
}

const SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

/// A source from each pair of spaces: refused if they differ, and accepted if not.
#[track_caller]
fn every_pair(source: impl Fn(&str, &str) -> String) {
    let pairs = SPACES
        .iter()
        .flat_map(|from| SPACES.iter().map(move |to| (*from, *to)));
    let (same, different): (Vec<_>, Vec<_>) = pairs.partition(|(from, to)| from == to);
    let lines = |pairs: &[(&str, &str)]| -> String {
        let line = |(n, (from, to)): (usize, &(&str, &str))| {
            format!("namespace n{n} {{ {} }}\n", source(from, to))
        };
        pairs.iter().enumerate().map(line).collect()
    };
    accepted(&lines(&same));
    let error = compile(&lines(&different)).err().unwrap_or_default();
    assert!(!error.contains("__"), "{error}");
    for (n, (from, to)) in different.iter().enumerate() {
        let place = format!("program_source:{}:", n + 3);
        let said = error
            .lines()
            .any(|line| line.starts_with(&place) && line.contains(from) && line.contains(to));
        assert!(said, "accepted: {}\n{error}", source(from, to));
    }
}

#[test]
fn arguments() {
    every_pair(|from, to| {
        format!("float g({to} const float* q) {{ return q[0]; }} float f({from} const float* p) {{ return g(p); }}")
    });
    every_pair(|from, to| {
        format!("template <typename T> T g({to} const T* q) {{ return q[0]; }} float f({from} const float* p) {{ return g<float>(p); }}")
    });
}

#[test]
fn references() {
    every_pair(|from, to| {
        format!("struct S {{ float x; }}; float g({to} const S& s) {{ return s.x; }} float f({from} const S& s) {{ return g(s); }}")
    });
}

#[test]
fn initialisers_and_assignments() {
    every_pair(|from, to| {
        format!("float f({from} const float* p) {{ {to} const float* q = p; return q[0]; }}")
    });
    every_pair(|from, to| {
        format!("void f({from} const float* p, {to} const float* q) {{ q = p; }}")
    });
    every_pair(|from, to| {
        format!("struct S {{ {to} const float* q; }}; void f({from} const float* p) {{ S s; s.q = p; }}")
    });
}

#[test]
fn casts() {
    for cast in [
        "(TO const uint*)p",
        "reinterpret_cast<TO const uint*>(p)",
        "(TO const uint*)(p + 1)",
    ] {
        every_pair(|from, to| {
            let cast = cast.replace("TO", to);
            format!("uint f({from} const float* p) {{ return *{cast}; }}")
        });
    }
    every_pair(|from, to| {
        format!("void f({from} const float* p) {{ auto q = static_cast<{to} const float*>(p); }}")
    });
}

#[test]
fn results() {
    every_pair(|from, to| format!("{to} const float* f({from} const float* p) {{ return p; }}"));
}

#[test]
fn instances_of_templates() {
    every_pair(|from, to| {
        format!(
            "template <typename T> struct L {{ {to} const T* q; L({to} const T* q_) : q(q_) {{ }} }}; \
             template <typename T> float g({from} const T* p) {{ L<T> l(p); return l.q[0]; }} \
             float f({from} const float* p) {{ return g<float>(p); }}"
        )
    });
}

#[test]
fn names() {
    every_pair(|from, to| {
        format!("typedef {to} const float* Q; void f({from} const float* p) {{ Q q = p; }}")
    });
    every_pair(|from, to| {
        format!("using P = {from} const float*; void f(P p) {{ {to} const float* q = p; }}")
    });
    every_pair(|from, to| {
        format!("void f({from} const float* p, {to} const float* q) {{ auto r = q; r = p; }}")
    });
    every_pair(|from, to| {
        format!("void f({from} const float* p) {{ {to} const float* q[1] = {{p}}; }}")
    });
}

#[test]
fn macros() {
    every_pair(|from, to| format!("void f(AT({from}, p)) {{ AT({to}, q) = p; }}"));
}

#[test]
fn choices() {
    every_pair(|from, to| {
        format!("float f({from} const float* p, {to} const float* q, bool c) {{ return *(c ? p : q); }}")
    });
}

#[test]
fn variables_of_kernels() {
    let kernel = |body: &str| {
        format!("void g(thread float* p) {{ p[0] = 1; }} void h(threadgroup float* p) {{ p[0] = 1; }} \
                 kernel void k(device float* x, constant float& n) {{ threadgroup float a[4]; float b[4]; {body} }}")
    };
    twins(
        &kernel("g(a);"),
        "no matching function for call to 'g'",
        &kernel("h(a);"),
    );
    twins(&kernel("h(b);"), "thread", &kernel("g(b);"));
    twins(&kernel("h(&b[1]);"), "thread", &kernel("h(&a[1]);"));
    twins(
        &kernel("device float* p = a; p[0] = 1;"),
        "threadgroup",
        &kernel("device float* p = x; p[0] = a[0];"),
    );
    twins(
        &kernel("g(x + 1);"),
        "device",
        &kernel("float y = x[1]; g(&y);"),
    );
    twins(
        &kernel("thread const float& r = n;"),
        "constant",
        &kernel("constant const float& r = n;"),
    );
}

#[test]
fn methods() {
    let object = "struct S { float x; float get() const { return x; } float both() const thread { return x; } float both() const device { return x; } };";
    twins(
        &format!("{object} float f(device S& s) {{ return s.get(); }}"),
        "device",
        &format!("{object} float f(thread S& s) {{ return s.get(); }}"),
    );
    twins(
        &format!("{object} float f(threadgroup S& s) {{ return s.both(); }}"),
        "threadgroup",
        &format!("{object} float f(device S& s, thread S& t) {{ return s.both() + t.both(); }}"),
    );
}

#[test]
fn overloads() {
    twins(
        "float g(device float* p) { return p[0]; } float g(constant float* p) { return p[0]; } float f(threadgroup float* p) { return g(p); }",
        "threadgroup",
        "float g(device float* p) { return p[0]; } float g(constant float* p) { return p[0]; } float f(device float* p, constant float* q) { return g(p) + g(q); }",
    );
    accepted(
        "template <typename P> struct E; template <typename T> struct E<device T*> { typedef T type; }; template <typename T> struct E<threadgroup T*> { typedef T type; }; \
         template <typename P> typename E<P>::type g(P p) { return p[0]; } float f(device float* p, threadgroup float* q) { return g(p) + g(q); }",
    );
}

#[test]
fn constants() {
    twins(
        "void f(constant float* p) { p[0] = 1; }",
        "read-only",
        "void f(device float* p) { p[0] = 1; }",
    );
    twins(
        "struct S { float x; }; void f(constant S& s) { s.x = 1; }",
        "const",
        "struct S { float x; }; void f(thread S& s) { s.x = 1; }",
    );
    let table = "constant float table[3] = {1, 2, 3}; constant int n = 3;";
    twins(
        &format!("{table} void f() {{ device const float* p = table; }}"),
        "constant",
        &format!("{table} float f() {{ constant float* p = table; float x[n]; x[0] = p[0] + table[n - 1]; return x[0]; }}"),
    );
    twins(
        &format!("{table} float g(thread const float* p) {{ return p[0]; }} float f() {{ return g(table); }}"),
        "constant",
        &format!("{table} float g(constant const float* p) {{ return p[0]; }} float f() {{ return g(table); }}"),
    );
}

#[test]
fn results_by_reference() {
    for call in ["sincos(1.0f, r)", "modf(1.5f, r)"] {
        twins(
            &format!("float f(device float& r) {{ return {call}; }}"),
            "device",
            &format!("float f(thread float& r) {{ return {call}; }}"),
        );
    }
}

#[test]
fn right_sources() {
    if let Err(error) = Library::new(include_str!("spaces.metal"), &Options::default()) {
        panic!("{error}");
    }
}
