//! Times of this crate alone: `bench` prints what loading, calls, suspensions and the list search cost.
#![expect(clippy::print_stdout, reason = "it is a program for a terminal")]

use std::hint::black_box;
use std::time::Instant;

use farside_rmc::assembler::assemble;
use farside_rmc::helpers::status;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::{Compiled, Region};
use farside_rmc::run::{Far, Lent, Machine, Near, Outcome, Reply};
use farside_rmc::{Limits, Verified, verify};

/// The search by words: a node is {key, value, next}.
const WORDS: &str = "
        r6 = *(u64 *)(r1 + 8)
        r7 = *(u64 *)(r1 + 16)
        r8 = *(u64 *)(r1 + 0)
    again:
        r1 = r8
        r2 = r6
        call load_u64
        if r0 == r7 goto found
        r1 = r8
        r2 = r6
        r2 += 16
        call load_u64
        r6 = r0
        if r6 != 0 goto again
        r0 = -1
        exit
    found:
        r1 = r8
        r2 = r6
        r2 += 8
        call load_u64
        exit
";

/// The search by one read a node.
const READS: &str = "
        r6 = *(u64 *)(r1 + 8)
        r7 = *(u64 *)(r1 + 16)
        r8 = *(u64 *)(r1 + 0)
        r9 = 0
    again:
        r1 = r8
        r2 = r6
        r3 = r10
        r3 += -24
        r4 = 24
        call read
        if r0 != 0 goto lost
        r1 = *(u64 *)(r10 - 24)
        if r1 == r7 goto found
        r6 = *(u64 *)(r10 - 8)
        r9 += 1
        if r9 > 64 goto lost
        if r6 != 0 goto again
    lost:
        r0 = -1
        exit
    found:
        r0 = *(u64 *)(r10 - 16)
        exit
";

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

/// The least time of one turn, of several rounds.
fn time_ns(turns: u32, mut turn: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..7 {
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

/// The search by words as machine code, metered, with every access to the region checked.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn compiled(n: u64) -> Result<(), Box<dyn std::error::Error>> {
    let (memory, context) = list(n);
    let verified = load(WORDS)?;
    let ns = time_ns(500, || {
        let _ = black_box(Compiled::new(black_box(verified.clone())));
    });
    println!("compile: {:.1} us", ns / 1e3);
    let code = Compiled::new(verified)?;
    let mut machine = Machine::new();
    let regions = [Region::of(&memory)];
    let ns = time_ns(20_000, || {
        let _ = machine.start(code.verified(), black_box(&context), Limits::DEFAULT.budget);
        let outcome = code.run(&mut machine, Lent::default(), &regions, &mut Far);
        assert_eq!(outcome, Outcome::Returned((n - 1) * 7));
    });
    println!("search of {n} nodes by words, compiled: {ns:.1} ns");
    Ok(())
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn compiled(_: u64) -> Result<(), Box<dyn std::error::Error>> {
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget = Limits::DEFAULT.budget;
    let (words, reads) = (load(WORDS)?, load(READS)?);
    for (name, text) in [("by words", WORDS), ("by reads", READS)] {
        let program = assemble(text)?;
        let ns = time_ns(200, || {
            let _ = black_box(verify(black_box(program.clone()), &Limits::DEFAULT));
        });
        println!("verify the search {name}: {:.1} us", ns / 1e3);
    }
    let mut machine = Machine::new();
    for n in [1, 8, 64] {
        let (memory, context) = list(n);
        let head = 24;
        let ns = time_ns(20_000, || {
            let found = native(black_box(&memory), head, n - 1 + 1_000);
            assert_eq!(found, Some((n - 1) * 7));
        });
        println!("search of {n} nodes in Rust: {ns:.1} ns");
        let mut host = Host(memory);
        for (name, verified) in [("by words", &words), ("by reads", &reads)] {
            let ns = time_ns(2_000, || {
                let _ = machine.start(verified, black_box(&context), budget);
                let outcome = machine.run(verified, Lent::default(), &mut host);
                assert_eq!(outcome, Outcome::Returned((n - 1) * 7));
            });
            println!("search of {n} nodes {name}: {ns:.1} ns");
        }
        compiled(n)?;
    }
    let (memory, context) = list(64);
    let ns = time_ns(500, || {
        let _ = machine.start(&words, &context, budget);
        while let Outcome::Suspended(request) = machine.run(&words, Lent::default(), &mut Far) {
            let from = request.arguments[1] as usize;
            let word = memory[from..from + 8].try_into().map_or(0, u64::from_le_bytes);
            let _ = machine.answer(words.program(), Lent::default(), word, &[]);
        }
    });
    println!("suspension and resumption: {:.1} ns each", ns / 128.0);
    Ok(())
}
