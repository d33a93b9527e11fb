//! What the bare machine does between two processes: the yardsticks under every channel.

use crate::figure::{Entry, Payload, Wait, check, measure, sign};
use crate::pair::{Other, Plan, Task};
use crate::shared::{MESSAGE_BYTES_MAX, Shared};
use rustix::thread::futex;
use std::hint::black_box;
use std::io::Result;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Tells the answering process to end. No count gets there.
const STOP: u64 = u64::MAX;
const THERE: usize = 0;
const BACK: usize = 1;

/// Values of the word that the futex yardstick sleeps on.
const TURN_MEASURING: u32 = 0;
const TURN_ANSWERING: u32 = 1;
const TURN_NOBODY: u32 = 2;

/// Measures all of them.
pub(crate) fn run(plan: Plan, sizes: &[usize]) -> Result<()> {
    for &bytes in sizes {
        copy(plan, bytes)?;
    }
    one_line(plan)?;
    line_pair(plan)?;
    for &bytes in sizes {
        slot(plan, bytes)?;
    }
    sleep(plan)
}

/// Answers as the role says; false when it is none of these.
pub(crate) fn answer(role: &str, bytes: usize) -> Result<bool> {
    let answer: fn(&Shared, usize) -> Result<()> = match role {
        "bare-line" => |shared, _| answer_one_line(shared),
        "bare-line-pair" => |shared, _| answer_line_pair(shared),
        "bare-slot" => answer_slot,
        "bare-futex" => |shared, _| answer_sleep(shared),
        _ => return Ok(false),
    };
    let shared = Shared::map(rustix::stdio::stdin())?;
    answer(&shared, bytes)?;
    Ok(true)
}

/// The barest of them alone: how far apart the two processors are just now.
pub(crate) fn probe(plan: Plan) -> Result<()> {
    one_line(plan)
}

/// A copy within one process, from and to the nearest cache that holds both.
fn copy(plan: Plan, bytes: usize) -> Result<()> {
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let pass = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            black_box(&mut to[..]).copy_from_slice(black_box(&from[..]));
        }
        Ok(())
    })?;
    Entry::new("bare-copy", bytes, Payload::Copied, Wait::Spin).latency(pass).print()
}

fn start(plan: Plan, role: &'static str, message_bytes: usize) -> Result<(Other, Shared)> {
    Other::sharing(plan, &Task { role, message_bytes, name: String::new() })
}

/// A word that both sides write in turn: odd numbers are the measuring side's.
fn one_line(plan: Plan) -> Result<()> {
    let (other, shared) = start(plan, "bare-line", 8)?;
    let word = shared.word(THERE);
    let mut number = 0;
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            word.store(number + 1, Release);
            number += 2;
            while word.load(Acquire) != number {}
        }
        Ok(())
    })?;
    word.store(STOP, Release);
    other.wait()?;
    Entry::new("bare-line", 8, Payload::Copied, Wait::Spin).round_trip(round).print()
}

fn answer_one_line(shared: &Shared) -> Result<()> {
    let word = shared.word(THERE);
    loop {
        let seen = word.load(Acquire);
        if seen == STOP {
            return Ok(());
        }
        if seen % 2 == 1 {
            word.store(seen + 1, Release);
        }
    }
}

/// A word for each direction, each on a line that one side alone writes.
fn line_pair(plan: Plan) -> Result<()> {
    let (other, shared) = start(plan, "bare-line-pair", 8)?;
    let (there, back) = (shared.word(THERE), shared.word(BACK));
    let mut number = 0;
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            number += 1;
            there.store(number, Release);
            while back.load(Acquire) != number {}
        }
        Ok(())
    })?;
    there.store(STOP, Release);
    other.wait()?;
    Entry::new("bare-line-pair", 8, Payload::Copied, Wait::Spin).round_trip(round).print()
}

fn answer_line_pair(shared: &Shared) -> Result<()> {
    let (there, back) = (shared.word(THERE), shared.word(BACK));
    let mut last = 0;
    loop {
        let seen = there.load(Acquire);
        if seen == STOP {
            return Ok(());
        }
        if seen != last {
            last = seen;
            back.store(seen, Release);
        }
    }
}

/// A flag and a payload behind it for each direction: the plainest form of a message that is copied
/// in and out.
fn slot(plan: Plan, bytes: usize) -> Result<()> {
    let (other, shared) = start(plan, "bare-slot", bytes)?;
    let mut message = vec![0; bytes];
    let mut number = 0;
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            number += 1;
            sign(&mut message, number);
            shared.write(THERE, &message);
            shared.flag(THERE).store(number, Release);
            while shared.flag(BACK).load(Acquire) != number {}
            shared.read(BACK, &mut message);
            check(&message, number)?;
        }
        Ok(())
    })?;
    shared.flag(THERE).store(STOP, Release);
    other.wait()?;
    Entry::new("bare-slot", bytes, Payload::Copied, Wait::Spin).round_trip(round).print()
}

fn answer_slot(shared: &Shared, bytes: usize) -> Result<()> {
    let mut message = vec![0; bytes.min(MESSAGE_BYTES_MAX)];
    let mut last = 0;
    loop {
        let seen = shared.flag(THERE).load(Acquire);
        if seen == STOP {
            return Ok(());
        }
        if seen != last {
            last = seen;
            shared.read(THERE, &mut message);
            shared.write(BACK, &message);
            shared.flag(BACK).store(seen, Release);
        }
    }
}

/// A word that each side sleeps on until the other one wakes it.
fn sleep(plan: Plan) -> Result<()> {
    let (other, shared) = start(plan, "bare-futex", 8)?;
    let turn = shared.sleep_word(THERE);
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            pass(&shared, TURN_ANSWERING)?;
            while turn.load(Acquire) != TURN_MEASURING {
                sleep_while(&shared, TURN_ANSWERING)?;
            }
        }
        Ok(())
    })?;
    pass(&shared, TURN_NOBODY)?;
    other.wait()?;
    Entry::new("bare-futex", 8, Payload::Copied, Wait::Block).round_trip(round).print()
}

fn answer_sleep(shared: &Shared) -> Result<()> {
    loop {
        match shared.sleep_word(THERE).load(Acquire) {
            TURN_MEASURING => sleep_while(shared, TURN_MEASURING)?,
            TURN_ANSWERING => pass(shared, TURN_MEASURING)?,
            _ => return Ok(()),
        }
    }
}

fn pass(shared: &Shared, to: u32) -> Result<()> {
    let turn = shared.sleep_word(THERE);
    turn.store(to, Release);
    futex::wake(turn, futex::Flags::empty(), 1)?;
    Ok(())
}

/// Sleeps unless the word has changed meanwhile. May return early.
fn sleep_while(shared: &Shared, value: u32) -> Result<()> {
    use rustix::io::Errno;
    match futex::wait(shared.sleep_word(THERE), futex::Flags::empty(), value, None) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
