//! Running programs in tests.
#![allow(dead_code, reason = "each test takes what it needs")]

use farside_rmc::assembler::assemble;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::Compiled;
use farside_rmc::run::{Far, Lent, Machine, Near, Outcome};
use farside_rmc::{Budget, Limits, Program, Verified, verify};

pub(crate) const BUDGET: Budget = Limits::DEFAULT.budget;

/// Assembles, or says which line is wrong.
pub(crate) fn program(text: &str) -> Program {
    assemble(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// Verifies, or says why not.
pub(crate) fn verified(text: &str) -> Verified {
    verify(program(text), &Limits::DEFAULT).unwrap_or_else(|refusal| panic!("{text}\n{refusal}"))
}

/// Variables as they are at the start.
pub(crate) struct Variables {
    pub(crate) own: Vec<u8>,
    pub(crate) shared: Vec<u8>,
}

impl Variables {
    pub(crate) fn of(program: &Program) -> Self {
        let variables = &program.variables;
        Self { own: variables.own.clone(), shared: variables.shared.clone() }
    }

    pub(crate) fn lend(&mut self) -> Lent<'_> {
        Lent { own: &mut self.own, shared: &mut self.shared }
    }
}

/// Runs an unverified program in the checked interpreter.
pub(crate) fn run(text: &str, context: &[u8]) -> Outcome {
    let program = program(text);
    let mut variables = Variables::of(&program);
    let mut machine = Machine::new();
    machine.start_unverified(&program, context, BUDGET);
    machine.run_checked(&program, variables.lend(), &mut Far)
}

/// Runs a verified program in both interpreters and as machine code, which must agree.
pub(crate) fn run_both(text: &str, context: &[u8]) -> Outcome {
    run_both_near(&verified(text), context, || Far).0
}

/// The same with an executor; also the output and variables of the run.
pub(crate) fn run_both_near<N: Near>(
    verified: &Verified,
    context: &[u8],
    near: impl Fn() -> N,
) -> (Outcome, Vec<u8>, Variables) {
    let mut fast = (Machine::new(), Variables::of(verified.program()));
    let mut checked = (Machine::new(), Variables::of(verified.program()));
    fast.0.start(verified, context, BUDGET).unwrap();
    checked.0.start(verified, context, BUDGET).unwrap();
    let outcome = fast.0.run(verified, fast.1.lend(), &mut near());
    let expected = checked.0.run_checked(verified.program(), checked.1.lend(), &mut near());
    assert_eq!(outcome, expected);
    assert_eq!(fast.0.output(), checked.0.output());
    assert_eq!(fast.1.own, checked.1.own);
    assert_eq!(fast.1.shared, checked.1.shared);
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let compiled = Compiled::new(verified.clone()).unwrap();
        let (mut machine, mut variables) = (Machine::new(), Variables::of(verified.program()));
        let lent = variables.lend();
        let outcome = compiled.call(&mut machine, context, BUDGET, lent, &[], &mut near());
        assert_eq!(outcome, Ok(expected), "compiled");
        assert_eq!(machine.output(), checked.0.output());
        assert_eq!(variables.own, checked.1.own);
        assert_eq!(variables.shared, checked.1.shared);
    }
    (outcome, fast.0.output().to_vec(), fast.1)
}
