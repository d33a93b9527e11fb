//! Farside's machines, and the same search in Rust.

use std::hint::black_box;

use farside_rmc::assembler::assemble;
use farside_rmc::helpers::status;
use farside_rmc::isa::{Instruction, decode_all, encode};
use farside_rmc::run::native::{Compiled, Region};
use farside_rmc::run::{Far, Lent, Machine, Near, Outcome, Reply};
use farside_rmc::{Limits, Program, Verified, verify};

use crate::list::{HEAD, NODES, context, key, region, value};
use crate::programs::{LIST_BY_READS, LIST_BY_WORDS, PROGRAMS};
use crate::rounds::Case;

/// An executor at the memory, with one region.
struct Host(Vec<u8>);

impl Near for Host {
    #[inline]
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        let from = offset as usize;
        match from.checked_add(8).and_then(|to| self.0.get(from..to)) {
            Some(bytes) if region == 0 => {
                Reply::Now(u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
            }
            _ => Reply::Refused,
        }
    }

    #[inline]
    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        let from = offset as usize;
        match from.checked_add(out.len()).and_then(|to| self.0.get(from..to)) {
            Some(bytes) if region == 0 => {
                out.copy_from_slice(bytes);
                Reply::Now(0)
            }
            _ => Reply::Now(status::NOT_PERMITTED as u64),
        }
    }
}

/// Assembles a program into the slots of an object file.
pub(crate) fn slots(text: &str) -> Vec<u64> {
    let program = assemble(text).expect("the program is valid");
    let slots = program.code.iter().filter(|code| **code != Instruction::SecondHalf);
    let slots = slots.filter_map(|instruction| encode(*instruction).ok());
    slots.flat_map(|(first, second)| [Some(first), second]).flatten().collect()
}

fn verified(text: &str) -> Verified {
    let program = assemble(text).expect("the program is valid");
    verify(program, &Limits::DEFAULT).expect("the program passes")
}

#[inline(never)]
fn native(memory: &[u8], mut at: u64, key: u64) -> Option<u64> {
    let word = |at: u64| {
        let bytes = memory.get(at as usize..(at as usize).checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    while at != 0 {
        if word(at)? == key {
            return word(at + 8);
        }
        at = word(at + 16)?;
    }
    None
}

/// Adds the searches by native Rust and by Farside's machines. They compare outcomes with `matches!`: printing them on
/// failure would need a copy, which costs more than the shortest search, and which peers do not have.
pub(crate) fn searches(cases: &mut Vec<Case>) {
    let budget = Limits::DEFAULT.budget;
    for n in NODES {
        let memory = region();
        cases.push(Case::search("native", n, move |iterations| {
            for _ in 0..iterations {
                let found = native(black_box(&memory), HEAD, black_box(key(n)));
                assert_eq!(found, Some(value(n)));
            }
        }));
        for (name, text) in [("compiled, words", LIST_BY_WORDS), ("compiled, reads", LIST_BY_READS)]
        {
            let code = Compiled::new(verified(text)).expect("memory for code is available");
            let (memory, context) = (region(), context(n));
            let mut host = Host(memory.clone());
            let mut machine = Machine::new();
            cases.push(Case::search(name, n, move |iterations| {
                let regions = [Region::of(&memory)];
                for _ in 0..iterations {
                    let context = black_box(&context[..]);
                    let lent = Lent::default();
                    let outcome =
                        code.call(&mut machine, context, budget, lent, &regions, &mut host);
                    let found = matches!(outcome, Ok(Outcome::Returned(at)) if at == value(n));
                    assert!(found);
                }
            }));
        }
        for (name, text) in
            [("interpreted, words", LIST_BY_WORDS), ("interpreted, reads", LIST_BY_READS)]
        {
            let verified = verified(text);
            let (mut host, context) = (Host(region()), context(n));
            let mut machine = Machine::new();
            cases.push(Case::search(name, n, move |iterations| {
                for _ in 0..iterations {
                    let _ = machine.start(&verified, black_box(&context), budget);
                    let outcome = machine.run(&verified, Lent::default(), &mut host);
                    let found = matches!(outcome, Outcome::Returned(at) if at == value(n));
                    assert!(found);
                }
            }));
        }
        for (name, text) in [("checked, words", LIST_BY_WORDS), ("checked, reads", LIST_BY_READS)] {
            let verified = verified(text);
            let (mut host, context) = (Host(region()), context(n));
            let mut machine = Machine::new();
            cases.push(Case::search(name, n, move |iterations| {
                for _ in 0..iterations {
                    let _ = machine.start(&verified, black_box(&context), budget);
                    let program = verified.program();
                    let outcome = machine.run_checked(program, Lent::default(), &mut host);
                    assert_eq!(outcome, Outcome::Returned(value(n)));
                }
            }));
        }
    }
    suspensions(cases);
}

/// Adds suspensions with their resumptions: 127 of a search of 64 nodes and one for its value.
fn suspensions(cases: &mut Vec<Case>) {
    let (memory, context) = (region(), context(64));
    for name in ["compiled", "interpreted"] {
        let (memory, context) = (memory.clone(), context.clone());
        let verified = verified(LIST_BY_WORDS);
        let code = (name == "compiled").then(|| Compiled::new(verified.clone()));
        let code = code.and_then(Result::ok);
        let mut machine = Machine::new();
        cases.push(Case::suspension(name, 128, move |iterations| {
            for _ in 0..iterations {
                let _ = machine.start(&verified, black_box(&context), Limits::DEFAULT.budget);
                loop {
                    let outcome = match &code {
                        Some(code) => code.run(&mut machine, Lent::default(), &[], &mut Far),
                        None => machine.run(&verified, Lent::default(), &mut Far),
                    };
                    let Outcome::Suspended(request) = outcome else {
                        assert_eq!(outcome, Outcome::Returned(value(64)));
                        break;
                    };
                    let from = request.arguments[1] as usize;
                    let word = memory[from..from + 8].try_into().map_or(0, u64::from_le_bytes);
                    let _ = machine.answer(verified.program(), Lent::default(), word, &[]);
                }
            }
        }));
    }
}

/// Adds registrations: decoding, verifying and compiling.
pub(crate) fn registrations(cases: &mut Vec<Case>) {
    for (name, text) in PROGRAMS {
        let program = assemble(text).expect("the program is valid");
        let slots = slots(text);
        cases.push(Case::registration("farside", name, move |iterations| {
            for _ in 0..iterations {
                let code = decode_all(black_box(&slots)).expect("the program is well-formed");
                let program = Program { code, ..program.clone() };
                let verified = verify(program, &Limits::DEFAULT).expect("the program passes");
                let _ = black_box(Compiled::new(verified));
            }
        }));
    }
}
