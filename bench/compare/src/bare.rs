//! Baselines of all channels: what the bare machine does between two processes.

use crate::figure::{Entry, Payload, Wait, check, measure, sign};
use crate::pair::{AnsweringProcess, Plan, Task};
use crate::shared::{MESSAGE_BYTES_MAX, Shared};
use rustix::thread::futex;
use std::hint::black_box;
use std::io::Result;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Value that ends the answering process. No message number reaches it.
const STOP: u64 = u64::MAX;
/// Words and slots from the measuring to the answering process, and in the other direction.
const REQUEST: usize = 0;
const REPLY: usize = 1;

/// Values of the word that the futex baseline sleeps on: which process runs, or that both end.
const MEASURING: u32 = 0;
const ANSWERING: u32 = 1;
const ENDED: u32 = 2;

/// Measures all baselines.
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

/// Runs the answering process of a role; returns false if the role is not one of these.
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

/// Measures `bare-line` alone, which shows how close the two processors currently are.
pub(crate) fn probe(plan: Plan) -> Result<()> {
    one_line(plan)
}

/// Measures a copy within one process, in the nearest cache that has room for both buffers.
fn copy(plan: Plan, bytes: usize) -> Result<()> {
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let copy = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            black_box(&mut to[..]).copy_from_slice(black_box(&from[..]));
        }
        Ok(())
    })?;
    Entry::new("bare-copy", bytes, Payload::Copied, Wait::Spin).latency(copy).print()
}

fn start(
    plan: Plan,
    role: &'static str,
    message_bytes: usize,
) -> Result<(AnsweringProcess, Shared)> {
    AnsweringProcess::sharing(plan, &Task { role, message_bytes, name: String::new() })
}

/// Measures one word that both processes write alternately; the measuring process writes odd numbers.
fn one_line(plan: Plan) -> Result<()> {
    let (other, shared) = start(plan, "bare-line", 8)?;
    let word = shared.word(REQUEST);
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
    let word = shared.word(REQUEST);
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

/// Measures a word for each direction; only one process writes its cache line.
fn line_pair(plan: Plan) -> Result<()> {
    let (other, shared) = start(plan, "bare-line-pair", 8)?;
    let (request, reply) = (shared.word(REQUEST), shared.word(REPLY));
    let mut number = 0;
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            number += 1;
            request.store(number, Release);
            while reply.load(Acquire) != number {}
        }
        Ok(())
    })?;
    request.store(STOP, Release);
    other.wait()?;
    Entry::new("bare-line-pair", 8, Payload::Copied, Wait::Spin).round_trip(round).print()
}

fn answer_line_pair(shared: &Shared) -> Result<()> {
    let (request, reply) = (shared.word(REQUEST), shared.word(REPLY));
    let mut last = 0;
    loop {
        let seen = request.load(Acquire);
        if seen == STOP {
            return Ok(());
        }
        if seen != last {
            last = seen;
            reply.store(seen, Release);
        }
    }
}

/// Measures a flag followed by a payload for each direction: the simplest form of a message that is copied in
/// and out.
fn slot(plan: Plan, bytes: usize) -> Result<()> {
    let (other, shared) = start(plan, "bare-slot", bytes)?;
    let mut message = vec![0; bytes];
    let mut number = 0;
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            number += 1;
            sign(&mut message, number);
            shared.write(REQUEST, &message);
            shared.flag(REQUEST).store(number, Release);
            while shared.flag(REPLY).load(Acquire) != number {}
            shared.read(REPLY, &mut message);
            check(&message, number)?;
        }
        Ok(())
    })?;
    shared.flag(REQUEST).store(STOP, Release);
    other.wait()?;
    Entry::new("bare-slot", bytes, Payload::Copied, Wait::Spin).round_trip(round).print()
}

fn answer_slot(shared: &Shared, bytes: usize) -> Result<()> {
    let mut message = vec![0; bytes.min(MESSAGE_BYTES_MAX)];
    let mut last = 0;
    loop {
        let seen = shared.flag(REQUEST).load(Acquire);
        if seen == STOP {
            return Ok(());
        }
        if seen != last {
            last = seen;
            shared.read(REQUEST, &mut message);
            shared.write(REPLY, &message);
            shared.flag(REPLY).store(seen, Release);
        }
    }
}

/// Measures a word that each process sleeps on until the other wakes it.
fn sleep(plan: Plan) -> Result<()> {
    let (other, shared) = start(plan, "bare-futex", 8)?;
    let word = shared.sleep_word(REQUEST);
    let round = measure(plan.windows, 1, |count| {
        for _ in 0..count {
            set_and_wake(&shared, ANSWERING)?;
            while word.load(Acquire) != MEASURING {
                sleep_while(&shared, ANSWERING)?;
            }
        }
        Ok(())
    })?;
    set_and_wake(&shared, ENDED)?;
    other.wait()?;
    Entry::new("bare-futex", 8, Payload::Copied, Wait::Block).round_trip(round).print()
}

fn answer_sleep(shared: &Shared) -> Result<()> {
    loop {
        match shared.sleep_word(REQUEST).load(Acquire) {
            MEASURING => sleep_while(shared, MEASURING)?,
            ANSWERING => set_and_wake(shared, MEASURING)?,
            _ => return Ok(()),
        }
    }
}

fn set_and_wake(shared: &Shared, value: u32) -> Result<()> {
    let word = shared.sleep_word(REQUEST);
    word.store(value, Release);
    futex::wake(word, futex::Flags::empty(), 1)?;
    Ok(())
}

/// Sleeps if the word has this value. May return early.
fn sleep_while(shared: &Shared, value: u32) -> Result<()> {
    use rustix::io::Errno;
    match futex::wait(shared.sleep_word(REQUEST), futex::Flags::empty(), value, None) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
