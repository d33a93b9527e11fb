//! Times of this crate alone: what registration, calls, suspensions and the list search cost. `--json`
//! prints them as JSON. `bench/compare/rmc` measures other engines beside it.
#![expect(clippy::print_stdout, reason = "it is a program for a terminal")]

#[path = "programs/mod.rs"]
mod programs;

use std::hint::black_box;
use std::time::Instant;

use farside_rmc::assembler::assemble;
use farside_rmc::helpers::status;
use farside_rmc::isa::{decode_all, encode};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::{Compiled, NativeRegion};
use farside_rmc::run::{Far, Lent, Machine, Near, Outcome, Reply};
use farside_rmc::{Limits, Program, Verified, verify};
use programs::{LIST_BY_READS, LIST_BY_WORDS, PROGRAMS};

struct BytesHost(Vec<u8>);

impl Near for BytesHost {
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

/// The minimum time of one iteration over many short rounds, some of which no other load disturbs.
fn time_ns(turns: u32, mut turn: impl FnMut()) -> f64 {
    let turns = (turns / 20).max(10);
    let mut best = f64::MAX;
    for _ in 0..500 {
        let start = Instant::now();
        (0..turns).for_each(|_| turn());
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(turns));
    }
    best
}

/// A list of 64 nodes scattered over 64 KiB, and the context that finds node `n`.
fn list(n: u64) -> (Vec<u8>, Vec<u8>) {
    let place = |k: u64| 24 * (1 + k * 1_103 % 2_729);
    let mut memory = vec![0; 24 * 2_731];
    for k in 0..64 {
        let at = place(k) as usize;
        let next = if k < 63 { place(k + 1) } else { 0 };
        for (word, value) in [k + 1_000, k * 7, next].into_iter().enumerate() {
            memory[at + word * 8..at + word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    let context = [0, place(0), n - 1 + 1_000].map(u64::to_le_bytes).concat();
    (memory, context)
}

fn load(text: &str) -> Result<Verified, Box<dyn std::error::Error>> {
    Ok(verify(assemble(text)?, &Limits::DEFAULT)?)
}

/// The same search in Rust, with every access checked.
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

/// Names and nanoseconds.
#[derive(Default)]
struct Figures(Vec<(String, f64)>);

impl Figures {
    fn add(&mut self, name: String, ns: f64) {
        self.0.push((name, ns));
    }

    fn print(&self, json: bool) {
        if !json {
            self.0.iter().for_each(|(name, ns)| println!("{ns:>12.1} ns  {name}"));
            return;
        }
        let entry =
            |(name, ns): &(String, f64)| format!("{{\"name\": \"{name}\", \"ns\": {ns:.2}}}");
        let entries: Vec<String> = self.0.iter().map(entry).collect();
        println!("{{\"figures\": [{}]}}", entries.join(", "));
    }
}

/// Decoding, verifying and compiling, repeated each time.
fn registrations(figures: &mut Figures) -> Result<(), Box<dyn std::error::Error>> {
    for (name, text) in PROGRAMS {
        let program = assemble(text)?;
        let code = program.code.iter().filter_map(|code| encode(*code).ok());
        let slots: Vec<u64> =
            code.flat_map(|(first, second)| [Some(first), second]).flatten().collect();
        let ns = time_ns(200, || {
            let code = decode_all(black_box(&slots)).unwrap_or_default();
            let program = Program { code, ..program.clone() };
            let verified = verify(program, &Limits::DEFAULT).ok();
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            let verified = verified.and_then(|verified| Compiled::new(verified).ok());
            assert!(verified.is_some(), "{name}");
        });
        figures.add(format!("registration of {name}"), ns);
    }
    Ok(())
}

/// Searches as machine code, metered where they have to be, with every access to the region checked.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn compiled(figures: &mut Figures, n: u64) -> Result<(), Box<dyn std::error::Error>> {
    for (name, text) in [("words", LIST_BY_WORDS), ("reads", LIST_BY_READS)] {
        let (memory, context) = list(n);
        let code = Compiled::new(load(text)?)?;
        let mut machine = Machine::new();
        let regions = [NativeRegion::of(&memory)];
        let mut host = BytesHost(memory.clone());
        let ns = time_ns(20_000, || {
            let (context, budget) = (black_box(&context), Limits::DEFAULT.budget);
            let lent = Lent::default();
            let outcome = code.call(&mut machine, context, budget, lent, &regions, &mut host);
            assert_eq!(outcome, Ok(Outcome::Returned((n - 1) * 7)));
        });
        figures.add(format!("search of {n} nodes by {name}, compiled"), ns);
    }
    Ok(())
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn compiled(_: &mut Figures, _: u64) -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}

fn searches(figures: &mut Figures) -> Result<(), Box<dyn std::error::Error>> {
    let mut machine = Machine::new();
    for n in [1, 8, 64] {
        let (memory, context) = list(n);
        let head = 24;
        let ns = time_ns(20_000, || {
            let found = native(black_box(&memory), head, black_box(n - 1 + 1_000));
            assert_eq!(found, Some((n - 1) * 7));
        });
        figures.add(format!("search of {n} nodes in Rust"), ns);
        compiled(figures, n)?;
        let mut host = BytesHost(memory);
        for (name, text) in [("words", LIST_BY_WORDS), ("reads", LIST_BY_READS)] {
            let verified = load(text)?;
            let ns = time_ns(2_000, || {
                let _ = machine.start(&verified, black_box(&context), Limits::DEFAULT.budget);
                let outcome = machine.run(&verified, Lent::default(), &mut host);
                assert_eq!(outcome, Outcome::Returned((n - 1) * 7));
            });
            figures.add(format!("search of {n} nodes by {name}, interpreted"), ns);
        }
    }
    Ok(())
}

/// A search of 64 nodes of which every word is asked for.
fn suspensions(figures: &mut Figures) -> Result<(), Box<dyn std::error::Error>> {
    let (memory, context) = list(64);
    let (words, mut machine) = (load(LIST_BY_WORDS)?, Machine::new());
    let ns = time_ns(500, || {
        let _ = machine.start(&words, &context, Limits::DEFAULT.budget);
        while let Outcome::Suspended(request) = machine.run(&words, Lent::default(), &mut Far) {
            let from = request.arguments[1] as usize;
            let word = memory[from..from + 8].try_into().map_or(0, u64::from_le_bytes);
            let _ = machine.answer(words.program(), Lent::default(), word, &[]);
        }
    });
    figures.add("suspension and resumption".into(), ns / 128.0);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut figures = Figures::default();
    registrations(&mut figures)?;
    searches(&mut figures)?;
    suspensions(&mut figures)?;
    figures.print(std::env::args().any(|argument| argument == "--json"));
    Ok(())
}
