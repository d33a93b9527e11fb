//! Registered programs: verified, identified by content, and compiled lazily if the processor has a compiler.

use farside_protocol::call::{PROGRAMS_MAX, Refused, Sizes, object_of};
use farside_rmc::isa::Instruction;
use farside_rmc::program::{Scope, read};
use farside_rmc::run::{Lent, Machine, Near, Outcome, StartError};
use farside_rmc::{Limits, Program, Verification, Verified, helpers};
use std::sync::Arc;

use crate::call::executor::native::Native;
use crate::call::executor::state::States;
use crate::call::memory::direct_loads::DirectLoads;

/// A program, ready to run.
#[derive(Debug)]
pub(crate) struct LoadedProgram {
    verified: Arc<Verified>,
    native: Native,
}

/// Returns the number of an object, derived from its contents; another one for each attempt, in case of collisions.
pub(crate) fn number(object: &[u8], attempt: u64) -> u64 {
    object_of(helpers::xxhash64(object, attempt))
}

/// Returns the sizes charged for an object: the state that its programs share, the object itself, and its programs
/// as kept.
pub(crate) fn sizes(object: &[u8], programs: &[Arc<LoadedProgram>]) -> Sizes {
    let bytes =
        |scope| programs.first().map_or(0, |one| States::bytes(one.verified().program(), scope));
    Sizes {
        programs: u32::try_from(programs.len()).unwrap_or(u32::MAX),
        own_bytes: bytes(Scope::QueuePair),
        shared_bytes: bytes(Scope::Shared)
            .saturating_add(object.len() as u64)
            .saturating_add(programs.iter().map(|one| one.verified().bytes() as u64).sum()),
    }
}

/// Why an object was refused: the reason and a text for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoadError {
    pub(crate) why: Refused,
    pub(crate) text: String,
}

/// An object being read and verified in steps, so that a program with a long proof does not delay others.
#[derive(Debug)]
pub(crate) struct ObjectLoading {
    object: Arc<[u8]>,
    limits: Limits,
    /// Whether calls may access the global memory.
    global: bool,
    stage: LoadingStage,
    /// Programs not verified yet.
    programs: std::vec::IntoIter<Program>,
    loaded: Vec<Arc<LoadedProgram>>,
}

/// The next step.
#[derive(Debug)]
enum LoadingStage {
    Read,
    Take,
    Verify(Box<Verification>),
}

impl ObjectLoading {
    pub(crate) fn new(object: &Arc<[u8]>, limits: &Limits, global: bool) -> Self {
        Self {
            object: Arc::clone(object),
            limits: *limits,
            global,
            stage: LoadingStage::Read,
            programs: Vec::new().into_iter(),
            loaded: Vec::new(),
        }
    }

    pub(crate) const fn object(&self) -> &Arc<[u8]> {
        &self.object
    }

    /// Performs all steps at once.
    pub(crate) fn whole(mut self) -> Result<Vec<Arc<LoadedProgram>>, LoadError> {
        loop {
            if let Some(end) = self.step(u32::MAX) {
                return end;
            }
        }
    }

    /// Performs a step; a verification proceeds by at most this many instructions. Returns the programs once done.
    ///
    /// *Cost*: the object is read in one step.
    pub(crate) fn step(
        &mut self,
        instructions: u32,
    ) -> Option<Result<Vec<Arc<LoadedProgram>>, LoadError>> {
        self.stage = match std::mem::replace(&mut self.stage, LoadingStage::Take) {
            LoadingStage::Read => match read_all(&self.object, &self.limits) {
                Ok(programs) => {
                    self.programs = programs.into_iter();
                    LoadingStage::Take
                }
                Err(why) => return Some(Err(why)),
            },
            LoadingStage::Take => {
                let Some(program) = self.programs.next() else {
                    return Some(Ok(std::mem::take(&mut self.loaded)));
                };
                if let (false, Some(name)) = (self.global, global_helper(&program)) {
                    return Some(Err(lacks_node(&program, name)));
                }
                LoadingStage::Verify(Box::new(Verification::new(program, &self.limits)))
            }
            LoadingStage::Verify(mut verification) => match verification.step(instructions) {
                None => LoadingStage::Verify(verification),
                Some(Ok(verified)) => {
                    self.loaded.push(Arc::new(LoadedProgram::new(verified)));
                    LoadingStage::Take
                }
                Some(Err(refusal)) => {
                    let text = refusal.to_string();
                    return Some(Err(LoadError { why: Refused::Unsafe, text }));
                }
            },
        };
        None
    }
}

fn read_all(object: &[u8], limits: &Limits) -> Result<Vec<Program>, LoadError> {
    let refused = |text| LoadError { why: Refused::Object, text };
    let programs = read(object, limits).map_err(|error| refused(error.to_string()))?;
    if programs.len() > PROGRAMS_MAX {
        let text = format!("it has {} programs, and the limit is {PROGRAMS_MAX}", programs.len());
        return Err(refused(text));
    }
    Ok(programs)
}

fn lacks_node(program: &Program, helper: &str) -> LoadError {
    let text = format!(
        "program `{}` calls {helper}, and this executor is not part of a node of the global memory: add it with \
         `share`, or farside rmc serve --cluster",
        program.name
    );
    LoadError { why: Refused::Lacks, text }
}

impl LoadedProgram {
    fn new(verified: Verified) -> Self {
        Self { verified: Arc::new(verified), native: Native::default() }
    }

    pub(crate) fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Returns the name of a helper on host memory that it calls, if any.
    pub(crate) fn memory_helper(&self) -> Option<&'static str> {
        let of_regions = |helper: &helpers::Helper| {
            helper.arguments.iter().any(|argument| matches!(argument, helpers::Argument::Region))
        };
        helper_that(self.verified().program(), of_regions)
    }

    /// Whether it sends notifications.
    pub(crate) fn notifies(&self) -> bool {
        let notify = |helper: &helpers::Helper| helper.call == helpers::Call::Notify;
        helper_that(self.verified().program(), notify).is_some()
    }

    pub(crate) fn name(&self) -> &str {
        &self.verified().program().name
    }

    /// Whether it keeps state between calls, so that it has to run where the state is.
    pub(crate) fn has_state(&self) -> bool {
        let program = self.verified().program();
        let scopes = [Scope::QueuePair, Scope::Shared];
        !program.states.is_empty() || scopes.iter().any(|scope| States::bytes(program, *scope) > 0)
    }

    /// Starts a call.
    pub(crate) fn start(&self, machine: &mut Machine, parameters: &[u8]) -> Result<(), StartError> {
        let verified = self.verified();
        machine.start(verified, parameters, verified.limits().budget)
    }

    /// Continues a call for at most this many instructions. `words` are those that `near` would load.
    pub(crate) fn run(
        &self,
        machine: &mut Machine,
        instructions: u64,
        lent: Lent<'_>,
        words: &DirectLoads,
        near: &mut impl Near,
    ) -> Outcome {
        self.native.run(&self.verified, machine, instructions, lent, words, near)
    }

    /// Returns the location of an instruction, for people.
    pub(crate) fn place(&self, slot: usize) -> String {
        let program = self.verified().program();
        match program.line_at(slot) {
            Some(line) => format!("program `{}`, {line}", program.name),
            None => format!("program `{}`", program.name),
        }
    }
}

/// Returns the name of a helper of the global memory that a program calls, if any.
fn global_helper(program: &Program) -> Option<&'static str> {
    helper_that(program, |helper| helper.name.starts_with("global_"))
}

/// Returns the name of the first helper of a program that satisfies a predicate.
fn helper_that(program: &Program, is: impl Fn(&helpers::Helper) -> bool) -> Option<&'static str> {
    program.code.iter().find_map(|instruction| match instruction {
        Instruction::CallHelper { number } => {
            let helper = helpers::Helper::with_number(*number)?;
            is(helper).then_some(helper.name)
        }
        _ => None,
    })
}
