//! The same programs from objects and from sources.

use std::collections::BTreeMap;

use crate::clang;
use farside_rmc::library::ENTRIES;
use farside_rmc::program::load;
use farside_rmc::{Limits, Program, Verified, verify};

/// Every program of the library by name.
pub(crate) struct Programs(BTreeMap<String, Program>);

impl Programs {
    pub(crate) fn of_the_library() -> Self {
        let named = |entry: &farside_rmc::library::LibraryEntry| {
            (entry.name.to_owned(), entry.program().unwrap_or_else(|e| panic!("{e}")))
        };
        Self(ENTRIES.iter().map(named).collect())
    }

    /// From the sources, for a version of the instruction set; `None` where there is no clang that knows
    /// eBPF.
    pub(crate) fn compiled(version: &str) -> Option<Self> {
        let mut programs = BTreeMap::new();
        for entry in ENTRIES {
            let version = format!("-mcpu={version}");
            let object = clang::compiled(&format!("library/{}", entry.file), &[&version])?;
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
