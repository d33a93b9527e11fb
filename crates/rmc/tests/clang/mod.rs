//! Objects of stock clang, wherever it is installed (or named by `FARSIDE_CLANG`).

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The object that clang makes of a file of this crate, with more of its options; `None` where there is no
/// clang that knows eBPF.
pub(crate) fn compiled(file: &str, options: &[&str]) -> Option<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let options = [&["-target", "bpf", "-O2", "-g", "-ffreestanding", "-Wall", "-Werror"], options];
    Some(tried(&source, &options.concat())?.unwrap_or_else(|text| panic!("{text}")))
}

/// The object that clang makes of a source by these options, or what it has to say against it; `None` as
/// above.
pub(crate) fn tried(source: &Path, options: &[&str]) -> Option<Result<Vec<u8>, String>> {
    let clang = std::env::var("FARSIDE_CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = temporary("o");
    let mut command = Command::new(&clang);
    command.args(options).args(["-c", "-I"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")).arg(source);
    let Ok(done) = command.arg("-o").arg(&out).output() else {
        skipped(&format!("{clang} is not installed"));
        return None;
    };
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    if text.contains("unable to create target") || text.contains("unknown target") {
        skipped(&format!("{clang} does not know eBPF"));
        return None;
    }
    let object = std::fs::read(&out);
    let _ = std::fs::remove_file(out);
    Some(if done.status.success() { Ok(object.expect("clang has written it")) } else { Err(text) })
}

/// A name for a file that no other test has.
pub(crate) fn temporary(extension: &str) -> std::path::PathBuf {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("farside-rmc-{}-{number}.{extension}", std::process::id());
    std::env::temp_dir().join(name)
}

#[expect(clippy::print_stderr, reason = "what is skipped is said")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}
