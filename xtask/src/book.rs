//! `cargo xtask docs`: the documents as a book, and the interfaces beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The release that is installed where no `mdbook` is found.
const VERSION: &str = "0.5.4";
/// Where it is installed.
const TOOLS: &str = "target/tools";

/// Builds both; returns where they are.
pub(crate) fn build() -> Result<String, String> {
    let mdbook = mdbook()?;
    run(Command::new(&mdbook).arg("build"), "mdbook build")?;
    let words = ["doc", "--workspace", "--no-deps"];
    run(Command::new("cargo").args(words), "cargo doc --workspace --no-deps")?;
    Ok("the book: target/book/index.html\nthe interfaces: target/doc/farside/index.html".to_owned())
}

/// An `mdbook` of the system, or one that is installed for this folder.
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
