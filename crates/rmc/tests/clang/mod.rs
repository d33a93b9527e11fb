//! Objects of stock clang, wherever it is installed (or named by `FARSIDE_CLANG`).

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The object that clang makes of a file of this crate, with more of its options; `None` where there is no
/// clang that knows eBPF.
pub(crate) fn compiled(file: &str, options: &[&str]) -> Option<Vec<u8>> {
    static OBJECTS: AtomicUsize = AtomicUsize::new(0);
    let clang = std::env::var("FARSIDE_CLANG").unwrap_or_else(|_| "clang".to_owned());
    let (folder, number) =
        (Path::new(env!("CARGO_MANIFEST_DIR")), OBJECTS.fetch_add(1, Ordering::Relaxed));
    let out = format!("farside-rmc-{}-{number}.o", std::process::id());
    let out = std::env::temp_dir().join(out);
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-O2", "-g", "-c", "-Wall", "-Werror", "-I"]);
    command.arg(folder.join("include")).args(options).arg(folder.join(file));
    let Ok(done) = command.arg("-o").arg(&out).output() else {
        skipped(&format!("{clang} is not installed"));
        return None;
    };
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    if text.contains("unable to create target") || text.contains("unknown target") {
        skipped(&format!("{clang} does not know eBPF"));
        return None;
    }
    assert!(done.status.success(), "{text}");
    let bytes = std::fs::read(&out).expect("clang has written it");
    let _ = std::fs::remove_file(out);
    Some(bytes)
}

#[expect(clippy::print_stderr, reason = "what is skipped is said")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
