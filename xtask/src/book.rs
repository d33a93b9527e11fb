//! `cargo xtask docs`: builds the documents as a book, and the API documentation.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The release of `mdbook` that is installed if none is found.
const VERSION: &str = "0.5.4";
/// The folder in which it is installed.
const TOOLS: &str = "target/tools";

/// Builds both, and returns their paths.
pub(crate) fn build() -> Result<String, String> {
    let mdbook = mdbook()?;
    run(Command::new(&mdbook).arg("build"), "mdbook build")?;
    let words = ["doc", "--workspace", "--no-deps"];
    run(Command::new("cargo").args(words), "cargo doc --workspace --no-deps")?;
    Ok("the book: target/book/index.html\nthe interfaces: target/doc/farside/index.html".to_owned())
}

/// Returns the `mdbook` of the system, or installs one in [`TOOLS`].
fn mdbook() -> Result<PathBuf, String> {
    let works = |path: &Path| {
        let asked = Command::new(path).arg("--version").output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    let (system, own) = (PathBuf::from("mdbook"), Path::new(TOOLS).join("bin/mdbook"));
    for known in [&system, &own] {
        if works(known) {
            return Ok(known.clone());
        }
    }
    println!("installing mdBook {VERSION} into {TOOLS}: some minutes");
    let words = ["install", "mdbook", "--locked", "--version", VERSION, "--root", TOOLS];
    run(Command::new("cargo").args(words), "cargo install mdbook")?;
    Ok(own)
}

fn run(command: &mut Command, shown: &str) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}
