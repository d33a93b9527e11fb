//! Programs that were registered: verified, compiled where the processor has a compiler, known by their
//! contents.

use farside_protocol::call::{Refused, Sizes};
use farside_rmc::isa::Instruction;
use farside_rmc::program::{Scope, read};
use farside_rmc::run::{Lent, Machine, Near, Outcome, StartError};
use farside_rmc::{Limits, Program, Verified, helpers, verify};
use std::sync::Arc;

use super::state::States;
use super::words::Words;

/// How a program is run.
#[derive(Debug)]
enum Code {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Native(farside_rmc::run::native::Compiled),
    Interpreted(Verified),
}

/// A program, ready to run.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The object that it came in; programs of the same object and name are the same.
    pub(super) object: Arc<[u8]>,
    code: Code,
}

/// Why an object was not taken: the reason and words for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NotLoaded {
    pub(super) why: Refused,
    pub(super) text: String,
}

impl Loaded {
    /// All programs of an object. `global` where calls may reach the global memory.
    pub(super) fn all(
        object: &Arc<[u8]>,
        limits: &Limits,
        global: bool,
    ) -> Result<Vec<Self>, NotLoaded> {
        let refused = |why, text: String| NotLoaded { why, text };
        let programs =
            read(object, limits).map_err(|error| refused(Refused::Object, error.to_string()))?;
        programs
            .into_iter()
            .map(|program| {
                if let (false, Some(name)) = (global, global_helper(&program)) {
                    let text = format!(
                        "program `{}` calls {name}, and this executor is no node of a global memory: make \
                         it one with `share`, or farside rmc serve --cluster",
                        program.name
                    );
                    return Err(refused(Refused::Lacks, text));
                }
                let verified = verify(program, limits)
                    .map_err(|refusal| refused(Refused::Unsafe, refusal.to_string()))?;
                Ok(Self { object: Arc::clone(object), code: Code::of(verified) })
            })
            .collect()
    }

    pub(super) fn verified(&self) -> &Verified {
        match &self.code {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Code::Native(compiled) => compiled.verified(),
            Code::Interpreted(verified) => verified,
        }
    }

    /// A helper that it calls on memory of the host, by name.
    pub(super) fn memory_helper(&self) -> Option<&'static str> {
        let of_regions = |helper: &helpers::Helper| {
            helper.arguments.iter().any(|argument| matches!(argument, helpers::Argument::Region))
        };
        helper_that(self.verified().program(), of_regions)
    }

    pub(super) fn name(&self) -> &str {
        &self.verified().program().name
    }

    /// What it takes: its state, and itself.
    pub(super) fn sizes(&self) -> Sizes {
        let program = self.verified().program();
        let shared_bytes = States::bytes(program, Scope::Shared);
        Sizes {
            own_bytes: States::bytes(program, Scope::QueuePair),
            shared_bytes: shared_bytes.saturating_add(self.object.len() as u64),
        }
    }

    /// Whether it keeps anything between calls, so that it has to run where that is.
    pub(super) fn has_state(&self) -> bool {
        let program = self.verified().program();
        let scopes = [Scope::QueuePair, Scope::Shared];
        !program.states.is_empty() || scopes.iter().any(|scope| States::bytes(program, *scope) > 0)
    }

    /// The number that its contents give it; another one for each try, should it be another's.
    pub(super) fn number(&self, attempt: u64) -> u64 {
        let object = helpers::xxhash64(&self.object, attempt);
        helpers::xxhash64(self.name().as_bytes(), object)
    }

    /// Whether it is the same program.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.name() == other.name() && self.object == other.object
    }

    /// Starts a call.
    pub(super) fn start(&self, machine: &mut Machine, parameters: &[u8]) -> Result<(), StartError> {
        let verified = self.verified();
        machine.start(verified, parameters, verified.limits().budget)
    }

    /// Goes on with a call, for so many instructions. `words` are those that `near` would load.
    pub(super) fn run(
        &self,
        machine: &mut Machine,
        instructions: u64,
        lent: Lent<'_>,
        words: &Words,
        near: &mut impl Near,
    ) -> Outcome {
        match &self.code {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Code::Native(compiled) => {
                compiled.run_slice(machine, instructions, lent, words.regions(), near)
            }
            Code::Interpreted(verified) => machine.run_slice(verified, instructions, lent, near),
        }
    }

    /// Where an instruction stands, for people.
    pub(super) fn place(&self, slot: usize) -> String {
        let program = self.verified().program();
        match program.line_at(slot) {
            Some(line) => format!("program `{}`, {line}", program.name),
            None => format!("program `{}`", program.name),
        }
    }
}

impl Code {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn of(verified: Verified) -> Self {
        match farside_rmc::run::native::Compiled::or_back(verified) {
            Ok(compiled) => Self::Native(compiled),
            // Too large, or no memory for code: slower, and otherwise the same.
            Err((_, verified)) => Self::Interpreted(*verified),
        }
    }

    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    fn of(verified: Verified) -> Self {
        Self::Interpreted(verified)
    }
}

/// A helper of the global memory that a program calls.
fn global_helper(program: &Program) -> Option<&'static str> {
    helper_that(program, |helper| helper.name.starts_with("global_"))
}

/// The name of the first of its helpers of which something is so.
fn helper_that(program: &Program, is: impl Fn(&helpers::Helper) -> bool) -> Option<&'static str> {
    program.code.iter().find_map(|instruction| match instruction {
        Instruction::CallHelper { number } => {
            let helper = helpers::Helper::with_number(*number)?;
            is(helper).then_some(helper.name)
        }
        _ => None,
    })
}
