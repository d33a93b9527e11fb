//! Calls that suspend, move, stop and are answered, in the interpreter and as machine code.

mod common;
mod host;

use common::{BUDGET, Variables, program, run_both_near, verified};
use farside_rmc::helpers::{Call, status};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::{Compiled, NativeRegion};
use farside_rmc::run::{
    AnswerError, Buffers, Far, Fault, FaultKind, Lent, Machine, Near, Outcome, Reply, Request,
    Resource, StartError, Stop,
};
use farside_rmc::{Budget, Limits, verify};
use host::TestHost;

/// Reads 16 bytes of region 3 at 40 to the stack and returns the sum of both words and of the status.
const READ: &str = "
    *(u64 *)(r10 - 8) = 100
    r1 = 3
    r2 = 40
    r3 = r10
    r3 += -16
    r4 = 16
    call read
    r1 = *(u64 *)(r10 - 16)
    r0 += r1
    r1 = *(u64 *)(r10 - 8)
    r0 += r1
    exit
";

fn suspended(outcome: Outcome) -> Request {
    match outcome {
        Outcome::Suspended(request) => request,
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn a_request_says_what_is_wanted_and_takes_its_answer() {
    let verified = verified(READ);
    let mut machine = Machine::new();
    machine.start(&verified, &[], BUDGET).unwrap();
    let request = suspended(machine.run(&verified, Lent::default(), &mut Far));
    assert_eq!((request.call, &request.arguments[..2]), (Call::Read, &[3, 40][..]));
    let output = request.output.unwrap();
    assert_eq!(output.length, 16);
    // Asked again, it says the same.
    assert_eq!(machine.run(&verified, Lent::default(), &mut Far), Outcome::Suspended(request));
    let program = verified.program();
    let answer = |machine: &mut Machine, result: i64, bytes: &[u8]| {
        machine.answer(program, Lent::default(), result as u64, bytes)
    };
    assert_eq!(answer(&mut machine, 1, &[]), Err(AnswerError::OutOfRange));
    assert_eq!(answer(&mut machine, 0, &[0; 17]), Err(AnswerError::TooLong));
    let bytes = [5u64.to_le_bytes(), 6u64.to_le_bytes()].concat();
    answer(&mut machine, 0, &bytes).unwrap();
    assert_eq!(answer(&mut machine, 0, &bytes), Err(AnswerError::NothingAsked));
    assert_eq!(machine.run(&verified, Lent::default(), &mut Far), Outcome::Returned(11));
    let again = machine.run(&verified, Lent::default(), &mut Far);
    assert_eq!(again, Outcome::Stopped(Stop::NotRunning));
}

#[test]
fn what_an_answer_leaves_is_cleared() {
    let verified = verified(READ);
    for (result, bytes, expected) in
        [(0, &[7u8][..], 7), (0, &[], 0), (status::NOT_PERMITTED, &[9; 16], u64::MAX)]
    {
        let mut machine = Machine::new();
        machine.start(&verified, &[], BUDGET).unwrap();
        suspended(machine.run(&verified, Lent::default(), &mut Far));
        machine.answer(verified.program(), Lent::default(), result as u64, bytes).unwrap();
        let outcome = machine.run(&verified, Lent::default(), &mut Far);
        assert_eq!(outcome, Outcome::Returned(expected));
    }
}

#[test]
fn what_a_read_that_fails_leaves_is_cleared() {
    // Of a region that there is not.
    let (outcome, _, _) = run_both_near(&verified(READ), &[], || TestHost::new(vec![vec![9; 64]]));
    assert_eq!(outcome, Outcome::Returned(status::NOT_PERMITTED as u64));
    // By a piece that is shorter than the buffer: refused without asking the executor.
    let text = "
        *(u64 *)(r10 - 16) = 0
        *(u64 *)(r10 - 8) = 4
        *(u64 *)(r10 - 24) = 100
        r1 = 0
        r2 = r10
        r2 += -16
        r3 = 1
        r4 = r10
        r4 += -24
        r5 = 8
        call read_vector
        r1 = *(u64 *)(r10 - 24)
        r0 += r1
        exit
    ";
    let (outcome, _, _) = run_both_near(&verified(text), &[], || TestHost::new(vec![vec![9; 64]]));
    assert_eq!(outcome, Outcome::Returned(status::OUT_OF_RANGE as u64));
}

#[test]
fn a_suspended_call_goes_on_elsewhere() {
    let text = "
        .own 8
            r6 = *(u64 *)(r1 + 0)
            call ask
            r6 += r0
            r1 = own 0
            *(u64 *)(r1 + 0) = r6
            r2 = 8
            call emit
            r0 = r6
            exit
        .function ask
            *(u64 *)(r10 - 8) = 30
            r1 = 0
            r2 = 0
            call load_u64
            r1 = *(u64 *)(r10 - 8)
            r0 += r1
            exit
    ";
    let verified = verified(text);
    let mut variables = Variables::of(verified.program());
    let mut machine = Machine::new();
    machine.start(&verified, &5u64.to_le_bytes(), BUDGET).unwrap();
    suspended(machine.run(&verified, variables.lend(), &mut Far));
    let bytes = machine.to_bytes();
    let moved = std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            let mut machine = Machine::from_bytes(&verified, &bytes).unwrap();
            let mut variables = Variables::of(verified.program());
            machine.answer(verified.program(), variables.lend(), 7, &[]).unwrap();
            let outcome = machine.run(&verified, variables.lend(), &mut Far);
            (outcome, machine.output().to_vec())
        });
        elsewhere.join().unwrap()
    });
    assert_eq!(moved, (Outcome::Returned(42), 42u64.to_le_bytes().to_vec()));
    // Every cut and every changed byte is refused or runs without harm.
    for at in 0..bytes.len() {
        assert!(Machine::from_bytes(&verified, &bytes[..at]).is_err(), "cut at {at}");
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        if let Ok(mut machine) = Machine::from_bytes(&verified, &damaged) {
            let _ = machine.answer(verified.program(), variables.lend(), 7, &[]);
            let _ = machine.run(&verified, variables.lend(), &mut Far);
        }
    }
}

#[test]
fn a_restored_call_that_leaves_its_memory_ends_at_that_load() {
    let text = "
            r6 = r1
            r1 = 0
            r2 = 0
            call load_u64
            r7 = *(u64 *)(r6 + 0)
            r8 = *(u64 *)(r6 + 8)
            r9 = *(u64 *)(r6 + 16)
            r0 = r7
            r0 += r8
            r0 += r9
            exit
    ";
    let verified = verified(text);
    let mut machine = Machine::new();
    machine.start(&verified, &[1; 24], BUDGET).unwrap();
    suspended(machine.run(&verified, Lent::default(), &mut Far));
    let bytes = machine.to_bytes();
    for (moved, fault) in [(0u64, None), (8, Some(6)), (16, Some(5)), (24, Some(4))] {
        let mut bytes = bytes.clone();
        // R6 is the seventh number.
        let r6 = u64::from_le_bytes(bytes[48..56].try_into().unwrap()) + moved;
        bytes[48..56].copy_from_slice(&r6.to_le_bytes());
        let mut machine = Machine::from_bytes(&verified, &bytes).unwrap();
        machine.answer(verified.program(), Lent::default(), 0, &[]).unwrap();
        let outcome = machine.run(&verified, Lent::default(), &mut Far);
        let Some(slot) = fault else {
            assert!(matches!(outcome, Outcome::Returned(_)), "{outcome:?}");
            continue;
        };
        let address = r6 + (slot as u64 - 4) * 8;
        let kind = FaultKind::OutOfBounds { address, length: 8 };
        assert_eq!(outcome, Outcome::Stopped(Stop::Fault(Fault { slot, kind })));
    }
}

#[test]
fn a_word_that_may_not_be_accessed_ends_the_call() {
    let verified = verified("r1 = 0\nr2 = 8\ncall load_u64\nexit");
    let mut machine = Machine::new();
    let stop = Stop::Refused { slot: 2, call: Call::LoadU64 };
    machine.start(&verified, &[], BUDGET).unwrap();
    let outcome = machine.run(&verified, Lent::default(), &mut TestHost::new(vec![vec![0; 15]]));
    assert_eq!(outcome, Outcome::Stopped(stop));
    machine.start(&verified, &[], BUDGET).unwrap();
    suspended(machine.run(&verified, Lent::default(), &mut Far));
    assert_eq!(machine.refuse(), Ok(stop));
    assert_eq!(machine.refuse(), Err(AnswerError::NothingAsked));
    machine.start(&verified, &[], BUDGET).unwrap();
    assert_eq!(machine.cancel(), Stop::Cancelled);
    let outcome = machine.run(&verified, Lent::default(), &mut Far);
    assert_eq!(outcome, Outcome::Stopped(Stop::NotRunning));
}

struct LyingHost;

impl Near for LyingHost {
    fn perform(&mut self, _: &Request, _: Buffers<'_>) -> Reply {
        Reply::Now(5)
    }
}

#[test]
fn an_executor_that_answers_out_of_range_is_stopped() {
    let text =
        "r1 = 0\nr2 = 0\nr3 = r10\nr3 += -8\n*(u64 *)(r10 - 8) = 0\nr4 = 8\ncall write\nexit";
    let (outcome, _, _) = run_both_near(&verified(text), &[], || LyingHost);
    assert_eq!(outcome, Outcome::Stopped(Stop::BadReply { slot: 6, call: Call::Write }));
}

#[test]
fn budgets_stop_where_they_end() {
    // 3 instructions an iteration, and each iteration costs 3 by its distance.
    let endless = "r6 = 0\nagain:\nr6 += 1\nr0 = r6\nif r6 != 0 goto again\nexit";
    let budget = Budget { instructions: 100, helper_calls: 3, bytes: 40 };
    let limits = Limits { budget, ..Limits::DEFAULT };
    let metered = verify(program(endless), &limits).unwrap();
    let mut machine = Machine::new();
    machine.start(&metered, &[], budget).unwrap();
    let outcome = machine.run_checked(metered.program(), Lent::default(), &mut Far);
    let (slot, resource) = (3, Resource::Instructions);
    assert_eq!(outcome, Outcome::Stopped(Stop::Budget { slot, resource }));
    assert_eq!(machine.executed(), 1 + 3 * 32);
    for (call, resource) in [
        ("r1 = r10\nr1 += -8\nr2 = 8\ncall emit", Resource::HelperCalls),
        ("r1 = r10\nr1 += -64\nr2 = 16\ncall emit", Resource::Bytes),
    ] {
        let text = format!(
            "*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 64) = 0\n*(u64 *)(r10 - 56) = 0\nr6 = 0\nagain:\n\
             {call}\nr6 += 1\nif r6 != 0 goto again\nexit"
        );
        let metered = verify(program(&text), &limits).unwrap();
        machine.start(&metered, &[], budget).unwrap();
        let outcome = machine.run(&metered, Lent::default(), &mut Far);
        assert_eq!(outcome, Outcome::Stopped(Stop::Budget { slot: 7, resource }));
    }
}

#[test]
fn starts_are_refused_by_context_and_budget() {
    let verified = verified("r0 = *(u64 *)(r1 + 8)\nexit");
    let mut machine = Machine::new();
    let short = machine.start(&verified, &[0; 15], BUDGET);
    assert_eq!(short, Err(StartError::ContextTooShort { needed: 16 }));
    let long = machine.start(&verified, &[0; 5_000], BUDGET);
    assert_eq!(long, Err(StartError::ContextTooLong { most: 4_096 }));
    let budget = Budget { instructions: 1, ..BUDGET };
    let over = machine.start(&verified, &[0; 16], budget);
    assert_eq!(over, Err(StartError::OverBudget { worst: verified.worst() }));
}

#[test]
fn vectors_emit_and_pure_helpers() {
    let text = "
            *(u64 *)(r10 - 32) = 8
            *(u64 *)(r10 - 24) = 4
            *(u64 *)(r10 - 16) = 0
            *(u64 *)(r10 - 8) = 2
            r1 = 0
            r2 = r10
            r2 += -32
            r3 = 2
            r4 = r10
            r4 += -40
            *(u64 *)(r10 - 40) = 0
            r5 = 6
            call read_vector
            if r0 != 0 goto end
            r1 = r10
            r1 += -40
            r2 = 6
            call emit
            r1 = r10
            r1 += -40
            r2 = 6
            r3 = 0
            call crc32c
        end:
            exit
    ";
    let memory: Vec<u8> = (10..30).collect();
    let run = |text: &str| {
        let verified = verified(text);
        let (outcome, output, _) =
            run_both_near(&verified, &[], || TestHost::new(vec![memory.clone()]));
        (outcome, output)
    };
    let pieces = [18, 19, 20, 21, 10, 11];
    let crc = u64::from(farside_rmc::helpers::crc32c(&pieces, 0));
    assert_eq!(run(text), (Outcome::Returned(crc), pieces.to_vec()));
    // Pieces that do not make up the buffer are refused without asking the executor.
    let wrong = text.replace("r5 = 6", "r5 = 7");
    assert_eq!(run(&wrong).0, Outcome::Returned(status::OUT_OF_RANGE as u64));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod native {
    use super::*;
    use farside_rmc::run::native::{Compiled, NativeRegion};

    const SUM: &str = "
            r6 = 0
            r7 = 0
        again:
            r1 = 1
            r2 = r6
            call load_u64
            r7 += r0
            r6 += 8
            if r6 != 64 goto again
            r0 = r7
            exit
    ";

    #[test]
    fn words_of_lent_regions_are_loaded_and_checked() {
        let memory: Vec<u8> = (0..64).collect();
        let expected: u64 = memory
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .fold(0, u64::wrapping_add);
        let compiled = Compiled::new(verified(SUM)).unwrap();
        let mut machine = Machine::new();
        let mut run = |regions: &[NativeRegion<'_>]| {
            machine.start(compiled.verified(), &[], BUDGET).unwrap();
            compiled.run(&mut machine, Lent::default(), regions, &mut Far)
        };
        let empty = NativeRegion::of(&[]);
        assert_eq!(run(&[empty, NativeRegion::of(&memory)]), Outcome::Returned(expected));
        // What is outside is asked of the executor, who is far.
        for (regions, offset) in [
            (&[][..], 0),
            (&[NativeRegion::of(&memory)], 0),
            (&[empty, NativeRegion::of(&memory[..63])], 56),
            (&[empty, NativeRegion::of(&memory[..7])], 0),
            (&[empty, empty], 0),
        ] {
            assert_eq!(suspended(run(regions)).arguments[..2], [1, offset]);
        }
    }

    #[test]
    fn a_program_that_calls_itself_returns_to_itself() {
        // The second frame's exit is the same instruction as the last one.
        let text = "
                if r2 == 8 goto inner
                r6 = 5
                r2 = 8
                call -4
                r0 += r6
                exit
            inner:
                r0 = 37
                exit
        ";
        let compiled = Compiled::new(verified(text)).unwrap();
        let mut machine = Machine::new();
        machine.start(compiled.verified(), &[], BUDGET).unwrap();
        let outcome = compiled.run(&mut machine, Lent::default(), &[], &mut Far);
        assert_eq!(outcome, Outcome::Returned(42));
    }

    /// The parameters' length says how deep it goes: the frame that exits says whether the program has.
    #[test]
    fn a_program_that_calls_itself_returns_from_every_depth() {
        let text = "
                if r2 == 0 goto deepest
                if r2 s> 7 goto deepest
                r6 = r2
                r2 += -1
                call -5
                r0 *= 10
                r0 += r6
                exit
            deepest:
                r0 = 0
                exit
        ";
        let verified = verified(text);
        for depth in 0..8 {
            let expected = (1..=depth).fold(0, |sum, digit| sum * 10 + digit);
            let (outcome, ..) = run_both_near(&verified, &[0; 8][..depth as usize], || Far);
            assert_eq!(outcome, Outcome::Returned(expected));
        }
    }

    #[test]
    fn machines_of_other_programs_are_interpreted() {
        let compiled = Compiled::new(verified(SUM)).unwrap();
        let other = verified("r0 = 5\nexit");
        let mut machine = Machine::new();
        machine.start(&other, &[], BUDGET).unwrap();
        // It is a mistake, and the interpreter makes it harmless.
        let outcome = compiled.run(&mut machine, Lent::default(), &[], &mut Far);
        assert!(matches!(outcome, Outcome::Suspended(_)), "{outcome:?}");
        let restored = machine.to_bytes();
        let mut machine = Machine::from_bytes(compiled.verified(), &restored).unwrap();
        machine.answer(compiled.verified().program(), Lent::default(), 1, &[]).unwrap();
        let outcome = compiled.run(&mut machine, Lent::default(), &[], &mut Far);
        assert!(matches!(outcome, Outcome::Suspended(_)), "{outcome:?}");
    }

    #[test]
    fn variables_that_are_too_short_are_never_touched() {
        let text = ".own 8\nr1 = own 0\n*(u64 *)(r1 + 0) = 7\nr0 = 0\nexit";
        let compiled = Compiled::new(verified(text)).unwrap();
        let mut machine = Machine::new();
        machine.start(compiled.verified(), &[], BUDGET).unwrap();
        let mut short = [1; 7];
        let lent = Lent { own: &mut short, shared: &mut [] };
        let outcome = compiled.run(&mut machine, lent, &[], &mut Far);
        assert!(host::is_fault(&outcome), "{outcome:?}");
        assert_eq!(short, [1; 7]);
    }
}

/// Words of lent regions: the last region is kept, also by code that is entered in the middle.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn machine_code_loads_words_of_lent_regions_alone() {
    let verified = verified(
        "
        r6 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 8)
        r8 = *(u64 *)(r1 + 16)
        r1 = r6
        r2 = r7
        call load_u64
        r9 = r0
        r1 = r6
        r2 = r7
        r2 += -8
        call load_u64
        r9 *= 100
        r9 += r0
        r1 = r8
        r2 = 0
        call load_u32
        r9 *= 100
        r9 += r0
        r0 = r9
        exit
        ",
    );
    let word = |value: u64, bytes: usize| -> Vec<u8> {
        value.to_le_bytes().into_iter().cycle().take(bytes).collect()
    };
    let memories = [word(3, 16), word(5, 23), word(7, 8)];
    let regions: Vec<NativeRegion<'_>> =
        memories.iter().map(|memory| NativeRegion::of(memory)).collect();
    let code = Compiled::new(verified).unwrap();
    let mut machine = Machine::new();
    for (first, offset, second, expected) in [
        (0u64, 8u64, 1u64, Some(30_305)),
        (1, 8, 0, Some(50_503)),
        (1, 15, 2, Some((5 << 8) * 10_100 + 7)),
        (2, 0, 2, None),
        (0, 9, 0, None),
        (3, 8, 0, None),
        (0, 8, u64::MAX, None),
    ] {
        let context = [first, offset, second].map(u64::to_le_bytes).concat();
        let lent = Lent::default();
        let mut outcome =
            code.call(&mut machine, &context, BUDGET, lent, &regions, &mut Far).unwrap();
        if let Some(expected) = expected {
            assert_eq!(outcome, Outcome::Returned(expected), "{first} {offset} {second}");
            continue;
        }
        // What is outside is asked for, and nothing else.
        let mut asked = 0;
        while let Outcome::Suspended(request) = outcome {
            let [region, offset, ..] = request.arguments;
            let memory = memories.get(region as usize).map_or(0, |memory| memory.len() as u64);
            let bytes = if request.call == Call::LoadU32 { 4 } else { 8 };
            assert!(offset.checked_add(bytes).is_none_or(|end| end > memory), "{request:?}");
            machine.answer(code.verified().program(), Lent::default(), 1, &[]).unwrap();
            outcome = code.run(&mut machine, Lent::default(), &regions, &mut Far);
            asked += 1;
        }
        assert!(asked > 0 && matches!(outcome, Outcome::Returned(_)), "{outcome:?}");
    }
    let short = code.call(&mut machine, &[0; 8], BUDGET, Lent::default(), &regions, &mut Far);
    assert_eq!(short, Err(StartError::ContextTooShort { needed: 24 }));
}

#[test]
fn an_answer_may_be_brought_in_parts() {
    let text = "
        r1 = 0
        r2 = 0
        r3 = r10
        r3 += -16
        r4 = 16
        call read
        r1 = *(u64 *)(r10 - 16)
        r2 = *(u64 *)(r10 - 8)
        r1 ^= r2
        r0 += r1
        exit
    ";
    let verified = verified(text);
    let program = verified.program();
    let asked = || {
        let mut machine = Machine::new();
        machine.start(&verified, &[], BUDGET).unwrap();
        let outcome = machine.run_checked(program, Lent::default(), &mut Far);
        assert!(matches!(outcome, Outcome::Suspended(_)));
        machine
    };
    let run = |machine: &mut Machine| machine.run_checked(program, Lent::default(), &mut Far);
    let mut machine = asked();
    for (from, bytes) in [(12, &[0, 0, 0, 0][..]), (0, &[5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0])] {
        machine.bring(program, Lent::default(), from, bytes).unwrap();
    }
    let too_long = machine.bring(program, Lent::default(), 10, &[0; 7]);
    assert_eq!(too_long, Err(AnswerError::TooLong));
    assert_eq!(machine.bring(program, Lent::default(), usize::MAX, &[0]), too_long);
    assert!(matches!(run(&mut machine), Outcome::Suspended(_)), "it waits for the answer");
    assert_eq!(
        machine.answer_brought(program, Lent::default(), 1),
        Err(AnswerError::OutOfRange),
        "a status is no positive number"
    );
    machine.answer_brought(program, Lent::default(), 0).unwrap();
    assert_eq!(run(&mut machine), Outcome::Returned(5 ^ 3));
    // Bytes that were brought are discarded if the answer is an error.
    let mut machine = asked();
    machine.bring(program, Lent::default(), 0, &[9; 16]).unwrap();
    machine.answer_brought(program, Lent::default(), -1_i64 as u64).unwrap();
    assert_eq!(run(&mut machine), Outcome::Returned(-1_i64 as u64));
    let nothing = machine.answer_brought(program, Lent::default(), 0);
    assert_eq!(nothing, Err(AnswerError::NothingAsked));
}

#[test]
fn an_address_before_its_memory_is_one_of_it_behind_the_stack_too() {
    let text = "r2 = r1\nr2 += -8\n*(u64 *)(r10 - 8) = r2\nr3 = *(u64 *)(r10 - 8)\n\
                r0 = *(u64 *)(r3 + 8)\nexit";
    let verified = verified(text);
    let mut machine = Machine::new();
    machine.start(&verified, &7_u64.to_le_bytes(), BUDGET).unwrap();
    let outcome = machine.run_checked(verified.program(), Lent::default(), &mut Far);
    assert_eq!(outcome, Outcome::Returned(7));
}
