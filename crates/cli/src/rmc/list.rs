//! `farside rmc list`: lists the programs of the library or of a file.

use super::check::{Checked, Facts, checked};
use super::source;
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_rmc::library::{ENTRIES, LibraryEntry};
use serde::Serialize;
use std::path::Path;

/// A program in the list.
#[derive(Serialize)]
struct Listed {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sentence: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    #[serde(flatten)]
    checked: Checked,
}

pub(crate) fn run(of: Option<&Path>, output: Output) -> Result<(), Failure> {
    let listed = match of {
        None => ENTRIES.iter().map(library_program).collect::<Result<Vec<_>, _>>()?,
        Some(path) => {
            let programs = source::programs(path)?.into_iter();
            programs.map(|program| listed(checked(program, false).0, None)).collect()
        }
    };
    output.value(&serde_json::json!({ "programs": listed }));
    for one in &listed {
        one.lines().iter().for_each(|line| output.line(line));
    }
    Ok(())
}

fn library_program(entry: &'static LibraryEntry) -> Result<Listed, Failure> {
    let failed = |e| Failure::check(format!("{}: {e}", entry.name));
    let program = entry.program().map_err(failed)?;
    Ok(listed(checked(program, false).0, Some(entry)))
}

fn listed(checked: Checked, entry: Option<&'static LibraryEntry>) -> Listed {
    Listed {
        name: checked.program.clone(),
        sentence: entry.map(|entry| entry.sentence),
        parameters: entry.map(|entry| entry.parameters),
        source: entry.map(|entry| entry.file),
        checked,
    }
}

impl Listed {
    fn lines(&self) -> Vec<String> {
        let parameters = self.parameters.map(|names| format!(" ({names})")).unwrap_or_default();
        let mut lines = vec![format!("{}{parameters}", self.name)];
        lines.extend(self.sentence.map(|sentence| format!("  {sentence}")));
        lines.extend(self.checked.facts.as_ref().map(|facts| {
            let Facts { parameters_bytes, metered, worst, .. } = facts;
            let most = if *metered { "metered, at most" } else { "at most" };
            format!("  takes {parameters_bytes} B; {most} {}", worst.text())
        }));
        lines
            .extend(self.checked.refusal.as_ref().map(|why| format!("  refused: {}", why.problem)));
        lines.extend(self.source.map(|file| format!("  crates/rmc/library/{file}")));
        lines
    }
}
