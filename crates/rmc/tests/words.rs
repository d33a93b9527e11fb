//! Words of lent regions: however a call is run, and wherever it stops in between, it loads what the checked
//! interpreter loads, and is refused where that is.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;
mod host;

use common::{BUDGET, program};
use farside_rmc::run::native::{Compiled, NativeRegion};
use farside_rmc::run::{Far, Lent, Machine, Near, Outcome, Reply};
use farside_rmc::{Limits, Verified, verify};
use host::TestHost;

/// A program that is charged at every jump backwards, so that slices end there.
fn charged(text: &str) -> Verified {
    let limits = Limits { unpaused_max: 0, ..Limits::DEFAULT };
    verify(program(text), &limits).unwrap_or_else(|refusal| panic!("{text}\n{refusal}"))
}

/// What the checked interpreter makes of it.
fn expected(verified: &Verified, context: &[u8], host: &TestHost) -> Outcome {
    let mut machine = Machine::new();
    machine.start(verified, context, BUDGET).unwrap();
    machine.run_checked(verified.program(), Lent::default(), &mut host.clone())
}

/// Runs to the end and answers every word that no region has: in machine code, or alternating with the interpreter, and
/// serialized each time.
fn suspended(
    code: &Compiled,
    context: &[u8],
    host: &TestHost,
    regions: &[NativeRegion<'_>],
    by_turns: bool,
) -> Outcome {
    let verified = code.verified();
    let mut machine = Machine::new();
    let mut outcome = code.call(&mut machine, context, BUDGET, Lent::default(), regions, &mut Far);
    for turn in 0.. {
        let Ok(Outcome::Suspended(request)) = outcome else {
            break;
        };
        let [region, offset, ..] = request.arguments;
        match host.clone().load_u64(region, offset) {
            Reply::Now(word) => {
                machine.answer(verified.program(), Lent::default(), word, &[]).unwrap();
            }
            _ => return Outcome::Stopped(machine.refuse().unwrap()),
        }
        outcome = Ok(if by_turns && turn % 2 == 0 {
            machine.run(verified, Lent::default(), &mut Far)
        } else {
            code.run(&mut machine, Lent::default(), regions, &mut Far)
        });
    }
    outcome.unwrap()
}

/// In slices, alternating between machine code and the interpreter; each can continue where the other stopped.
fn sliced(
    code: &Compiled,
    context: &[u8],
    host: &TestHost,
    regions: &[NativeRegion<'_>],
    slice: u64,
) -> Outcome {
    let verified = code.verified();
    let (mut machine, mut host) = (Machine::new(), host.clone());
    machine.start(verified, context, BUDGET).unwrap();
    for turn in 0.. {
        let lent = Lent::default();
        let outcome = if turn % 3 == 1 {
            machine.run_slice(verified, slice, lent, &mut host)
        } else {
            code.run_slice(&mut machine, slice, lent, regions, &mut host)
        };
        if outcome != Outcome::Paused {
            return outcome;
        }
    }
    unreachable!("it pauses for ever")
}

/// Runs a program in every way, with all regions lent, with none and with the first alone.
fn judge(text: &str, words: &[u64], memories: &[Vec<u8>]) -> Outcome {
    let verified = charged(text);
    let code = Compiled::new(verified.clone()).unwrap();
    let context: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let host = TestHost::new(memories.to_vec());
    let expected = expected(&verified, &context, &host);
    let all: Vec<NativeRegion<'_>> =
        memories.iter().map(|memory| NativeRegion::of(memory)).collect();
    for regions in [&all[..], &[], &all[..1]] {
        let lent = regions.len();
        let mut machine = Machine::new();
        let mut near = host.clone();
        let called = code.call(&mut machine, &context, BUDGET, Lent::default(), regions, &mut near);
        assert_eq!(called, Ok(expected), "{words:x?}, {lent} lent");
        for by_turns in [false, true] {
            let outcome = suspended(&code, &context, &host, regions, by_turns);
            assert_eq!(outcome, expected, "{words:x?}, {lent} lent, suspended, {by_turns}");
        }
        for slice in [0, 9, 40] {
            let outcome = sliced(&code, &context, &host, regions, slice);
            assert_eq!(outcome, expected, "{words:x?}, {lent} lent, slices of {slice}");
        }
    }
    expected
}

/// Words that are all different.
fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 8) as u8).collect()
}

/// Three fields of a record, the first of which is neither the lowest nor the highest.
const RECORD: &str = "
        r6 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 8)
        r1 = r6
        r2 = r7
        call load_u64
        r8 = r0
        r1 = r6
        r2 = r7
        r2 += -16
        call load_u64
        if r0 == 5 goto end
        r8 ^= r0
        *(u64 *)(r10 - 8) = r8
        r1 = r6
        r2 = r7
        r2 += 112
        call load_u64
        r8 *= 3
        r0 += r8
    end:
        exit
";

#[test]
fn records_are_refused_where_one_of_their_words_is() {
    for bytes in [7, 8, 24, 134, 135, 136, 137, 300] {
        let memories = [numbered(16), numbered(bytes)];
        let mut whole = 0;
        for offset in (0..bytes as u64 + 20).chain(u64::MAX - 20..=u64::MAX) {
            for region in 0..3 {
                let outcome = judge(RECORD, &[region, offset], &memories);
                whole += usize::from(matches!(outcome, Outcome::Returned(_)));
            }
        }
        assert_eq!(whole, bytes.saturating_sub(135), "of {bytes} B");
    }
}

/// A list of {value, next, next's region}, that ends with the offset 0.
const ROAMING: &str = "
        r6 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 8)
        r9 = 0
    again:
        r1 = r6
        r2 = r7
        call load_u64
        r9 *= 31
        r9 += r0
        r1 = r6
        r2 = r7
        r2 += 16
        call load_u64
        r8 = r0
        r1 = r6
        r2 = r7
        r2 += 8
        call load_u64
        r7 = r0
        r6 = r8
        if r7 != 0 goto again
        r0 = r9
        exit
";

/// Regions with a list through them, of nodes {value, offset of the next, its region}.
fn roaming(nodes: &[(u64, u64)], sizes: &[usize]) -> Vec<Vec<u8>> {
    let mut memories: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![0; *bytes]).collect();
    for (at, (region, offset)) in nodes.iter().enumerate() {
        let next = nodes.get(at + 1).copied().unwrap_or_default();
        let node = [at as u64 + 100, next.1, next.0].map(u64::to_le_bytes).concat();
        if let Some(memory) = memories.get_mut(*region as usize) {
            memory[*offset as usize..][..24].copy_from_slice(&node);
        }
    }
    memories
}

#[test]
fn a_list_may_change_its_region_at_every_node() {
    let sizes = [400, 64, 320];
    let value = |count: u64| (0..count).fold(0u64, |sum, at| sum.wrapping_mul(31) + at + 100);
    for nodes in [
        &[(0, 24), (0, 72), (0, 376), (0, 120)][..],
        &[(0, 24), (1, 8), (0, 72), (1, 40), (2, 8), (2, 296), (0, 376), (0, 120)],
        &[(2, 16), (2, 40), (0, 24), (0, 376), (2, 160)],
        &[(1, 40), (2, 296), (0, 376)],
    ] {
        let memories = roaming(nodes, &sizes);
        let outcome = judge(ROAMING, &[nodes[0].0, nodes[0].1], &memories);
        assert_eq!(outcome, Outcome::Returned(value(nodes.len() as u64)), "{nodes:?}");
    }
    // A region that does not exist.
    let memories = roaming(&[(0, 24), (2, 8), (7, 8)], &sizes);
    let outcome = judge(ROAMING, &[0, 24], &memories);
    assert!(matches!(outcome, Outcome::Stopped(_)), "{outcome:?}");
}

/// Two ways back into the loop, of which one changes the region, and a way out of line that does not.
const ALTERNATING: &str = "
        r6 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 8)
        r9 = 0
    again:
        r1 = r6
        r2 = r7
        call load_u64
        r9 *= 31
        r9 += r0
        if r0 s> 100 goto same
        r6 ^= 1
        r7 += 8
        if r7 != 200 goto again
        r0 = r9
        exit
    same:
        r1 = r6
        r2 = r7
        r2 += 16
        call load_u64
        r9 += r0
        r7 = r0
        if r7 != 0 goto again
        r0 = r9
        exit
";

#[test]
fn a_loop_may_change_its_region_at_some_turns() {
    let memories = |hops: &[(usize, usize, u64)]| {
        let mut memories = [vec![1; 224], vec![2; 224]];
        memories
            .iter_mut()
            .for_each(|memory| memory.chunks_mut(8).for_each(|word| word[1..].fill(0)));
        for (region, at, next) in hops {
            memories[*region][*at..][..8].copy_from_slice(&1_000u64.to_le_bytes());
            memories[*region][*at + 16..][..8].copy_from_slice(&next.to_le_bytes());
        }
        memories
    };
    let end = 0u64;
    for (start, hops) in [
        ([0u64, 8u64], &[][..]),
        ([1, 8], &[]),
        ([0, 8], &[(1, 16, 48), (1, 48, 80), (0, 88, 176)]),
        ([1, 8], &[(1, 8, 40), (0, 48, 160), (1, 168, end)]),
        ([0, 8], &[(1, 16, 4_000)]),
    ] {
        let outcome = judge(ALTERNATING, &start, &memories(hops));
        let lost = hops.iter().any(|(_, _, next)| *next > 224);
        assert_eq!(matches!(outcome, Outcome::Returned(_)), !lost, "{hops:?}: {outcome:?}");
    }
    // Regions that do not exist.
    let outcome = judge(ALTERNATING, &[2, 8], &memories(&[]));
    assert!(matches!(outcome, Outcome::Stopped(_)), "{outcome:?}");
}
