//! `farside rmc check`: verifies programs and reports their worst-case cost.

use super::source;
use crate::settings::RmcCheck;
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes, count};
use farside_rmc::assembler::disassemble;
use farside_rmc::helpers::StateKind;
use farside_rmc::isa::{Instruction, Wide};
use farside_rmc::program::{Scope, StateDeclaration};
use farside_rmc::verify::{Cost, Refusal};
use farside_rmc::{Limits, Program, Verified, verify};
use serde::Serialize;
use std::path::Path;

/// Verification result of a program.
#[derive(Debug, Serialize)]
pub(super) struct Checked {
    pub(super) program: String,
    pub(super) accepted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<Refused>,
    /// Present if the program is accepted.
    #[serde(flatten)]
    pub(super) facts: Option<Facts>,
    slots: usize,
    constants_bytes: usize,
    own_variables_bytes: usize,
    shared_variables_bytes: usize,
    /// All states of its file, which its programs share.
    states: Vec<StateInfo>,
    /// States that this program does not use.
    unused_states: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listing: Vec<String>,
}

/// Why a program is refused.
#[derive(Debug, Serialize)]
pub(super) struct Refused {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<usize>,
    instruction: String,
    /// The violation, with found and expected values.
    pub(super) problem: String,
}

/// Properties of an accepted program.
#[derive(Debug, Serialize)]
pub(super) struct Facts {
    pub(super) metered: bool,
    pub(super) worst: Worst,
    pub(super) parameters_bytes: u32,
    frames: usize,
    unreached: usize,
    /// Present if this target has a compiler.
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_code_bytes: Option<usize>,
}

/// Worst-case cost of a call.
#[derive(Debug, Serialize)]
pub(super) struct Worst {
    instructions: u64,
    helper_calls: u64,
    bytes: u64,
    words: u64,
}

impl From<Cost> for Worst {
    fn from(cost: Cost) -> Self {
        let Cost { instructions, helper_calls, bytes, words, .. } = cost;
        Self { instructions, helper_calls, bytes, words }
    }
}

impl Worst {
    pub(super) fn text(&self) -> String {
        let Self { instructions, helper_calls, bytes: moved, words } = *self;
        let parts = [
            counted(instructions, "instruction"),
            counted(helper_calls, "helper call"),
            bytes(moved),
            counted(words, "word"),
        ];
        parts.join(", ")
    }
}

/// Formats a count with its noun.
pub(super) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(number))
}

#[derive(Debug, Serialize)]
struct StateInfo {
    name: String,
    kind: &'static str,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    /// Maximum memory.
    bytes: u64,
    shared: bool,
}

impl From<&StateDeclaration> for StateInfo {
    fn from(declared: &StateDeclaration) -> Self {
        let kind = match declared.kind {
            StateKind::Array => "array",
            StateKind::Counters => "counters",
            StateKind::Map => "map",
            StateKind::Locks => "locks",
        };
        let StateDeclaration { key_bytes, value_bytes, entries, .. } = *declared;
        let (bytes, shared) = (declared.bytes(), declared.scope == Scope::Shared);
        Self { name: declared.name.clone(), kind, key_bytes, value_bytes, entries, bytes, shared }
    }
}

impl StateInfo {
    fn text(&self) -> String {
        let Self { name, kind, key_bytes, value_bytes, entries, bytes, shared } = self;
        let entry = match (*key_bytes, *value_bytes) {
            (0, 0) => String::new(),
            (0, value) => format!(" of {value} B"),
            (key, value) => format!(" of {key} B to {value} B"),
        };
        let scope = if *shared { "shared" } else { "of each queue pair" };
        format!("{name}: {kind} with {entries} entries{entry}, {bytes} B in all, {scope}")
    }
}

/// Verifies a program; returns the report, and the verified program if it is accepted.
pub(super) fn checked(program: Program, listed: bool) -> (Checked, Option<Verified>) {
    let listing = if listed { listing(&program) } else { Vec::new() };
    let unused = program.states.iter().enumerate().filter(|(at, _)| !names_state(&program, *at));
    let unused_states = unused.map(|(_, state)| state.name.clone()).collect();
    let mut checked = Checked {
        program: program.name.clone(),
        accepted: false,
        refusal: None,
        facts: None,
        slots: program.code.len(),
        constants_bytes: program.constants.len(),
        own_variables_bytes: program.variables.own.len(),
        shared_variables_bytes: program.variables.shared.len(),
        states: program.states.iter().map(StateInfo::from).collect(),
        unused_states,
        listing,
    };
    match verify(program, &Limits::DEFAULT) {
        Ok(verified) => {
            checked.accepted = true;
            checked.facts = Some(facts(&verified));
            (checked, Some(verified))
        }
        Err(refusal) => {
            checked.refusal = Some(refused(&refusal));
            (checked, None)
        }
    }
}

/// Whether the program loads the handle of a state.
fn names_state(program: &Program, state: usize) -> bool {
    program.code.iter().any(|instruction| match instruction {
        Instruction::LoadWide { value: Wide::StateHandle(at), .. } => {
            usize::try_from(*at) == Ok(state)
        }
        _ => false,
    })
}

fn refused(refusal: &Refusal) -> Refused {
    let line = refusal.line.as_ref();
    Refused {
        file: line.map(|line| line.file.to_string()),
        line: line.map(|line| line.line),
        slot: refusal.slot,
        instruction: refusal.instruction.clone(),
        problem: refusal.problem.to_string(),
    }
}

fn facts(verified: &Verified) -> Facts {
    Facts {
        metered: verified.metered(),
        worst: verified.worst().into(),
        parameters_bytes: verified.context_bytes(),
        frames: verified.frames(),
        unreached: verified.unreached(),
        machine_code_bytes: machine_code_bytes(verified),
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn machine_code_bytes(verified: &Verified) -> Option<usize> {
    let compiled = farside_rmc::run::native::Compiled::new(verified.clone()).ok()?;
    Some(compiled.code_bytes())
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn machine_code_bytes(_: &Verified) -> Option<usize> {
    None
}

/// Returns the instructions, each group after its source line.
fn listing(program: &Program) -> Vec<String> {
    let mut lines = Vec::new();
    let mut from = None;
    for (slot, instruction) in program.code.iter().enumerate() {
        if let Some(function) = program.functions.iter().find(|function| function.start == slot) {
            lines.push(format!("{}:", function.name));
        }
        let line = program.line_at(slot).map(|line| (line.file.clone(), line.line));
        if let Some((file, number)) = line.as_ref().filter(|_| line != from) {
            lines.push(format!("; {file}:{number}"));
        }
        from = line;
        if *instruction != Instruction::SecondHalf {
            lines.push(format!("{slot:>6}  {}", disassemble(*instruction)));
        }
    }
    lines
}

impl Checked {
    /// Returns the printed lines.
    pub(super) fn lines(&self, file: &Path) -> Vec<String> {
        let Self { program, .. } = self;
        let verdict = if self.accepted { "accepted" } else { "refused" };
        let mut lines = vec![format!("{}: {program}: {verdict}", file.display())];
        if let Some(refusal) = &self.refusal {
            lines.push(format!("  {}", refusal.location()));
            lines.push(format!("  {}", refusal.problem));
        }
        let code = format!("  code        {} slots of 8 B", self.slots);
        match &self.facts {
            Some(facts) => {
                lines.push(format!("  worst case  {}", facts.worst.text()));
                let ends = if facts.metered {
                    "metered: a call is stopped at this bound"
                } else {
                    "proven"
                };
                lines.push(format!("              {ends}"));
                lines.push(format!("  parameters  {} B", facts.parameters_bytes));
                let machine_code = facts.machine_code_bytes;
                let machine_code = machine_code
                    .map(|code| format!(", as machine code {} mapped", bytes(code as u64)));
                lines.push(format!("{code}{}", machine_code.unwrap_or_default()));
            }
            None => lines.push(code),
        }
        let data = [
            ("constants", self.constants_bytes),
            ("variables of each queue pair", self.own_variables_bytes),
            ("shared variables", self.shared_variables_bytes),
        ];
        let data = data.iter().filter(|(_, bytes)| *bytes > 0);
        lines.extend(data.map(|(what, bytes)| format!("  data        {bytes} B of {what}")));
        lines.extend(self.states.iter().map(|state| {
            let unused = self.unused_states.contains(&state.name);
            let unused = if unused { ", which it does not use" } else { "" };
            format!("  state       {}{unused}", state.text())
        }));
        lines.extend(self.listing.iter().map(|line| format!("    {line}")));
        lines
    }
}

impl Refused {
    /// Returns source line, slot and instruction, as far as known.
    fn location(&self) -> String {
        let line = self.file.iter().zip(self.line).map(|(file, line)| format!("{file}:{line}"));
        let slot = self.slot.map(|slot| format!("slot {slot} `{}`", self.instruction));
        let parts: Vec<_> = line.chain(slot).collect();
        if parts.is_empty() { "the whole program".to_owned() } else { parts.join(", ") }
    }
}

/// Result of one file.
#[derive(Serialize)]
struct CheckReport {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
    programs: Vec<Checked>,
}

pub(crate) fn run(arguments: &RmcCheck, output: Output) -> Result<(), Failure> {
    let mut reports = Vec::new();
    for path in &arguments.files {
        let file = path.display().to_string();
        let report = match source::programs(path) {
            Ok(programs) => {
                let check = |program| checked(program, arguments.disassemble).0;
                CheckReport {
                    file,
                    error: None,
                    programs: programs.into_iter().map(check).collect(),
                }
            }
            Err(failure) => CheckReport { file, error: Some(failure), programs: Vec::new() },
        };
        for program in &report.programs {
            program.lines(path).iter().for_each(|line| output.line(line));
        }
        reports.push(report);
    }
    let end = complaint(&reports).map_or(Ok(()), Err);
    output.ended(serde_json::json!({ "files": reports }), end)
}

/// Returns all problems as one error; if a single file cannot be loaded, its own error.
fn complaint(reports: &[CheckReport]) -> Option<Failure> {
    if let [CheckReport { error: Some(failure), .. }] = reports {
        return Some(failure.clone());
    }
    let errors = reports.iter().filter_map(|report| report.error.as_ref());
    let refused = reports.iter().flat_map(|report| {
        let refused = report.programs.iter().filter(|program| !program.accepted);
        refused.map(|program| format!("{}: {} is refused", report.file, program.program))
    });
    let complaints: Vec<_> = errors.map(ToString::to_string).chain(refused).collect();
    (!complaints.is_empty()).then(|| Failure::check(complaints.join("; ")))
}
