//! The same programs from objects and from sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use farside_rmc::library::ENTRIES;
use farside_rmc::program::load;
use farside_rmc::{Limits, Program, Verified, verify};

/// Every program of the library by name.
pub(crate) struct Programs(BTreeMap<String, Program>);

impl Programs {
    pub(crate) fn of_the_library() -> Self {
        let named = |entry: &farside_rmc::library::Entry| {
            (entry.name.to_owned(), entry.program().unwrap_or_else(|e| panic!("{e}")))
        };
        Self(ENTRIES.iter().map(named).collect())
    }

    /// From the sources, for a version of the instruction set; `None` where there is no clang that knows
    /// eBPF.
    pub(crate) fn compiled(version: &str) -> Option<Self> {
        let mut programs = BTreeMap::new();
        for entry in ENTRIES {
            let object = compiled(entry.file, version)?;
            let loaded = load(&object, &Limits::DEFAULT).unwrap_or_else(|e| panic!("{e}"));
            programs.extend(loaded.into_iter().map(|program| (program.name.clone(), program)));
        }
        assert_eq!(programs.len(), ENTRIES.len());
        Some(Self(programs))
    }

    pub(crate) fn verified(&self, name: &str) -> Verified {
        self.within(name, &Limits::DEFAULT)
    }

    /// Verified against other limits than the usual ones.
    pub(crate) fn within(&self, name: &str, limits: &Limits) -> Verified {
        let program = self.0.get(name).unwrap_or_else(|| panic!("no {name}")).clone();
        verify(program, limits).unwrap_or_else(|refusal| panic!("{refusal}"))
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn compiled(file: &str, version: &str) -> Option<Vec<u8>> {
    let clang = std::env::var("FARSIDE_CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = std::env::temp_dir().join(format!("farside-library-{}-{file}.o", std::process::id()));
    let mut command = Command::new(&clang);
    command.args(["-target", "bpf", "-O2", "-g", "-c", "-Wall", "-Werror", "-I"]);
    command
        .arg(folder().join("include"))
        .arg(format!("-mcpu={version}"))
        .arg(folder().join("library").join(file));
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
