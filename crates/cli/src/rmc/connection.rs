//! Connections to executors, with the programs that are registered over them.

use super::source;
use crate::settings::{CallerSettings, ProgramCall};
use farside::call::{Caller, CallerOptions, Program};
use farside_base::Access;
use farside_command::choice::{self, Chosen};
use farside_command::failure::{Failure, printable};
use farside_command::output::{bytes, time};
use farside_fabric::Fabric;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A registration, as confirmed by the executor.
#[derive(Debug, Serialize)]
pub(super) struct Registered {
    pub(super) address: String,
    fabric: &'static str,
    security: String,
    /// How the executor is reached, and why.
    pub(super) path: String,
    regions: Vec<Region>,
    programs: Vec<ProgramInfo>,
    /// Time to send, verify and compile the object, and to receive the answer.
    pub(super) registered_ns: u64,
}

#[derive(Debug, Serialize)]
struct Region {
    region: u8,
    bytes: u64,
    /// Permitted accesses.
    access: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct ProgramInfo {
    /// The number that invokes it, derived from its contents; in hexadecimal, since JSON numbers have only 53 bits.
    number: String,
    name: String,
    parameters_bytes: u32,
    keeps_state: bool,
}

/// A connection with its programs.
pub(super) struct Connection {
    pub(super) caller: Caller,
    pub(super) programs: Vec<Program>,
    pub(super) registered: Registered,
}

/// Connects to an executor.
pub(super) fn connect(
    fabric: &Arc<dyn Fabric>,
    address: &str,
    arguments: &CallerSettings,
    slots: u16,
) -> Result<Caller, Failure> {
    let tenant = arguments.tenant.clone();
    let options = CallerOptions::default().tenant(tenant).slots(slots);
    Caller::connect(fabric, address, &options).map_err(|error| failed_at(address, error))
}

impl Connection {
    /// Connects, and registers all programs of a file.
    pub(super) fn open(
        to: &str,
        object: &Path,
        arguments: &CallerSettings,
    ) -> Result<Self, Failure> {
        let contents = source::contents(object)?;
        let chosen = choice::caller(&arguments.choice, to, choice::EXECUTOR)?;
        let slots = CallerOptions::default().slots;
        let caller = connect(&chosen.fabric, &chosen.address, arguments, slots)?;
        Self::register(caller, &chosen, object, &contents)
    }

    /// Registers all programs of a file at a connected executor.
    pub(super) fn register(
        mut caller: Caller,
        Chosen { fabric, address, security }: &Chosen,
        object: &Path,
        contents: &[u8],
    ) -> Result<Self, Failure> {
        let began = Instant::now();
        let programs = caller.register(contents).map_err(|error| {
            let what = format!("{}: ", object.display());
            Failure::of_call(farside::Error { detail: what + &error.detail, ..error })
        })?;
        let registered = Registered {
            address: address.clone(),
            fabric: fabric.name(),
            security: security.clone(),
            path: caller.path().unwrap_or_default(),
            regions: caller.regions().map(Region::new).collect(),
            programs: programs.iter().map(ProgramInfo::new).collect(),
            registered_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        Ok(Self { caller, programs, registered })
    }

    /// Returns the requested program.
    pub(super) fn program(&mut self, of: &ProgramCall) -> Result<Program, Failure> {
        let programs = std::mem::take(&mut self.programs);
        source::select(&of.object, programs, of.program.as_deref(), |program| &program.name)
    }
}

/// Like [`Failure::of_call`], with the executor's address in the detail.
pub(super) fn failed_at(address: &str, error: farside::Error) -> Failure {
    let detail = match error.detail.as_str() {
        "" => address.to_owned(),
        text if text.contains(address) => text.to_owned(),
        text => format!("{address}: {text}"),
    };
    Failure::of_call(farside::Error { detail, ..error })
}

impl Region {
    fn new((region, bytes, access): (u8, u64, Access)) -> Self {
        let rights = [(Access::READ, "read"), (Access::WRITE, "write"), (Access::ATOMIC, "atomic")];
        let access = rights.iter().filter(|(right, _)| access.allows(*right));
        Self { region, bytes, access: access.map(|(_, name)| *name).collect() }
    }

    fn text(&self) -> String {
        let rights = self.access.join(", ");
        format!("region      {}: {}, {rights}", self.region, bytes(self.bytes))
    }
}

impl ProgramInfo {
    fn new(program: &Program) -> Self {
        Self {
            number: format!("{:#018x}", program.number),
            name: printable(&program.name),
            parameters_bytes: program.parameter_bytes,
            keeps_state: program.keeps_state,
        }
    }

    fn text(&self) -> String {
        let state = if self.keeps_state { ", keeps state" } else { "" };
        let Self { number, name, parameters_bytes, .. } = self;
        format!("program     {number} {name}: {parameters_bytes} B of parameters{state}")
    }
}

impl Registered {
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("executor    {} over {} ({})", self.address, self.fabric, self.security),
            format!("path        {}", self.path),
        ];
        lines.extend(self.regions.iter().map(Region::text));
        lines.extend(self.programs.iter().map(ProgramInfo::text));
        lines.push(format!("registered  in {}", time(self.registered_ns as f64)));
        lines
    }
}
