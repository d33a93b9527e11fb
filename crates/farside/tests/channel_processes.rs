//! Channels between real processes over shared memory, one of which is killed in the middle of a stream. What
//! arrives is a prefix of what was sent, each message whole. Then the loss is reported, and the surviving end
//! serves the next peer, without data of the killed one.
//!
//! The test executable starts itself again as the other ends: a process with `FARSIDE_TEST_CHILD` set opens its end
//! of the channel of that name and performs `FARSIDE_TEST_ROLE`. `FARSIDE_SEED` sets the seed, `FARSIDE_KIND`
//! selects one channel; a failure prints the command that repeats the same options, though not the moment at which
//! a signal arrived.
//! again, though not the moment at which a signal arrived.
#![allow(clippy::print_stderr, reason = "the command that repeats a failure")]

use farside::channel::{
    Acknowledge, Kind, Message, Options, Receiver, Sender, Sent, Signal, Ticket,
};
use farside::{Error, ErrorCode};
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use farside_testkit::{Process, Random, role};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Messages of a complete stream.
const WHOLE: u32 = 120;
/// Random options and moments per channel.
const ROUNDS: u64 = 4;
/// Messages that a survivor sends or receives in total, more than before the kill.
const LONG: u32 = 400;

fn shm() -> Arc<dyn Fabric> {
    Arc::new(ShmFabric::new().unwrap())
}

fn seed() -> u64 {
    std::env::var("FARSIDE_SEED").map_or(0x5eed, |text| text.parse().unwrap())
}

/// Returns the options derived from the seed, the same at both ends.
fn options(kind: Kind, seed: u64, peers: u16) -> Options {
    let mut random = Random::new(seed ^ ((kind as u64) << 48));
    let has = shm().capabilities();
    loop {
        let options = Options::new(kind, 0)
            .peers(peers)
            .slots(*random.pick(&[4, 8, 64]))
            .ring_bytes(*random.pick(&[4096, 1 << 14, 1 << 17]))
            .mirrored(*random.pick(&[false, true]))
            .prefetch_bytes(*random.pick(&[0, 0, 700]))
            .acknowledge(*random.pick(&[
                None,
                Some(Acknowledge::Word),
                Some(Acknowledge::Message),
                Some(Acknowledge::ReadTail),
            ]))
            .signal(*random.pick(&[None, Some(Signal::Word), Some(Signal::Message)]))
            .message_bytes_max(*random.pick(&[16, 200, 1500, 20_000]));
        let shape = options.shape(&has);
        if shape.check(kind).is_ok() && kind.requirements(&shape).check(&has).is_ok() {
            return options;
        }
    }
}

/// Returns a message whose length and content are derived from its sender and number.
fn message(generation: u8, number: u32, options: &Options) -> Vec<u8> {
    let name = (u32::from(generation) << 24) | number;
    let mut out = name.to_le_bytes().to_vec();
    if options.kind != Kind::SendBufferless {
        let more = (name.wrapping_mul(2_654_435_761) >> 8) % (options.message_bytes_max - 3);
        out.extend((0..more).map(|at| (name.wrapping_mul(31).wrapping_add(at) % 251) as u8));
    }
    out
}

/// Returns sender and number of a message, after checking every byte.
fn read(message_in: &Message, options: &Options) -> (u8, u32) {
    let bytes = message_in.to_vec();
    let name = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let (generation, number) = ((name >> 24) as u8, name & 0x00ff_ffff);
    let expected = message(generation, number, options);
    assert_eq!(bytes, expected, "message {number} of sender {generation} is not whole");
    (generation, number)
}

/// The task of an end in a separate process, with a number of messages; zero: until killed.
struct Role {
    sends: bool,
    listens: bool,
    generation: u8,
    count: u32,
}

impl Role {
    const fn sends(generation: u8, count: u32) -> Self {
        Self { sends: true, listens: false, generation, count }
    }

    const fn receives(generation: u8, count: u32) -> Self {
        Self { sends: false, listens: false, generation, count }
    }
}

/// A channel of one test.
struct ChannelCase {
    name: String,
    options: Options,
    seed: u64,
    random: Random,
    end: Instant,
}

impl ChannelCase {
    fn start(&self, role: &Role) -> Process {
        let Role { sends, listens, generation, count } = role;
        let Options { kind, peers, .. } = self.options;
        let (name, seed) = (&self.name, self.seed);
        let role = format!("{name} {kind} {seed} {peers} {sends} {listens} {generation} {count}");
        Process::child(&role)
    }

    /// Draws the number of messages after which an end is killed.
    fn moment(&mut self) -> u32 {
        let most = *self.random.pick(&[1, 2, 10, 60, 300]);
        (self.random.word() % most) as u32
    }

    /// Yields to other processes; fails after the timeout of the case.
    fn wait(&self, what: &str) {
        assert!(Instant::now() < self.end, "{what}");
        std::thread::yield_now();
    }
}

/// Kills an end that still runs.
fn kill(end: &mut Process) {
    assert!(end.runs(), "the other end has ended");
    end.signal(farside_testkit::Signal::KILL);
}

/// Waits for the process to complete its task and exit.
fn ends(mut end: Process, case: &ChannelCase) {
    while end.runs() {
        case.wait("the other end never ends");
    }
    assert!(end.succeeds(), "the other end failed");
}

fn is_lost<T>(result: &Result<T, Error>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) if error.code == ErrorCode::PeerLost => true,
        Err(error) => panic!("{error}"),
    }
}

/// Not a test: the main function of the other processes.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [name, kind, seed, peers, sends, listens, generation, count] = &role[..] else {
        panic!("{role:?}");
    };
    let options = options(kind.parse().unwrap(), seed.parse().unwrap(), peers.parse().unwrap());
    let (generation, listens) = (generation.parse().unwrap(), listens == "true");
    let count = Some(count.parse().unwrap()).filter(|count| *count > 0).unwrap_or(u32::MAX);
    if sends == "true" {
        let open = if listens { Sender::listen } else { Sender::connect };
        child_sends(open(shm(), name, &options).unwrap(), generation, count, &options);
    } else {
        let open = if listens { Receiver::listen } else { Receiver::connect };
        child_receives(open(shm(), name, &options).unwrap(), generation, count, &options);
    }
}

fn child_sends(mut sender: Sender, generation: u8, count: u32, options: &Options) {
    for number in 0..count {
        let message = message(generation, number & 0x00ff_ffff, options);
        loop {
            match sender.send(&message) {
                Ok(Sent::Taken(_)) => break,
                Ok(Sent::Full) => std::thread::yield_now(),
                // The parent process is gone.
                Err(_) if count == u32::MAX => return,
                Err(error) => panic!("sender {generation}, message {number}: {error}"),
            }
        }
    }
    // Its messages may still have to be fetched, and requests of peers answered.
    while sender.progress().is_ok() {
        std::thread::yield_now();
    }
}

fn child_receives(mut receiver: Receiver, generation: u8, count: u32, options: &Options) {
    let mut number = 0;
    while number < count {
        match receiver.poll() {
            Ok(Some(message)) => {
                let expected = (generation, number & 0x00ff_ffff);
                // Messages are checked only if it is not to be killed.
                if count < u32::MAX {
                    assert_eq!(read(&message, options), expected, "of {}", options.kind);
                }
                receiver.release(message);
                number += 1;
            }
            Ok(None) => std::thread::yield_now(),
            Err(_) if count == u32::MAX => return,
            Err(error) => panic!("receiver {generation}, message {number}: {error}"),
        }
    }
    receiver.acknowledge();
}

/// Prints the command that repeats a failure.
struct ReproductionLine<'a>(&'a str, Options, u64);

impl Drop for ReproductionLine<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(test, options, seed) = self;
            eprintln!("{options:?}");
            let kind = options.kind;
            eprintln!(
                "FARSIDE_SEED={seed} FARSIDE_KIND={kind} \
                 cargo test -p farside --test channel_processes {test}"
            );
        }
    }
}

/// Runs a test for every channel, between this many ends and one.
fn of_every_kind(test_name: &str, peers: u16, test: impl Fn(&mut ChannelCase)) {
    let only = std::env::var("FARSIDE_KIND").ok();
    let kinds = Kind::ALL.into_iter();
    let kinds = kinds.filter(|kind| only.as_ref().is_none_or(|only| only == kind.name()));
    let first = seed();
    for (kind, seed) in kinds.flat_map(|kind| (0..ROUNDS).map(move |round| (kind, first + round))) {
        let name = format!("{}-{}-{kind}-{seed}", &test_name[..12], std::process::id());
        let options = options(kind, seed, peers);
        let _line = ReproductionLine(test_name, options, seed);
        let random = Random::new(seed ^ ((kind as u64) << 32) ^ u64::from(peers));
        test(&mut ChannelCase { name, options, seed, random, end: Instant::now() + PATIENCE });
    }
}

/// Receives the next message, if one has arrived; numbers count up from `next`.
fn take(
    receiver: &mut Receiver,
    case: &ChannelCase,
    next: &mut [u32],
) -> Result<Option<u8>, Error> {
    let Some(message) = receiver.poll()? else {
        return Ok(None);
    };
    let (generation, number) = read(&message, &case.options);
    let next = &mut next[usize::from(generation)];
    assert_eq!(number, *next, "of sender {generation}");
    *next += 1;
    receiver.release(message);
    Ok(Some(generation))
}

/// Polls a sender; returns the number of its receivers. Losses are reported by the calls that need one.
fn receivers_of(sender: &mut Sender) -> usize {
    let _ = sender.progress();
    sender.peers()
}

/// The same for a receiver.
fn senders_of(receiver: &mut Receiver) -> usize {
    let _ = receiver.progress();
    receiver.peers()
}

/// Receives until all senders are lost.
fn take_rest(receiver: &mut Receiver, case: &ChannelCase, next: &mut [u32]) {
    loop {
        let taken = take(receiver, case, next);
        if is_lost(&taken) {
            return;
        }
        receiver.acknowledge();
        if taken.unwrap().is_none() {
            case.wait("the loss is never reported");
        }
    }
}

#[test]
fn killed_sender_leaves_a_prefix_and_frees_its_slot() {
    of_every_kind("killed_sender_leaves_a_prefix_and_frees_its_slot", 1, |case| {
        let mut receiver = Receiver::listen(shm(), &case.name, &case.options).unwrap();
        let mut next = [0; 4];
        for generation in [1, 2] {
            let mut killed = case.start(&Role::sends(generation, 0));
            let moment = case.moment();
            while senders_of(&mut receiver) == 0 {
                case.wait("it never connects");
            }
            while next[usize::from(generation)] < moment {
                if take(&mut receiver, case, &mut next).unwrap().is_none() {
                    case.wait("it sends nothing");
                }
            }
            kill(&mut killed);
            let before = next;
            take_rest(&mut receiver, case, &mut next);
            assert_eq!(before[usize::from(generation) - 1], next[usize::from(generation) - 1]);
        }
        // The loss is reported again while no sender is connected.
        take_rest(&mut receiver, case, &mut next);
        let before = next;
        let mut whole = case.start(&Role::sends(3, WHOLE));
        while senders_of(&mut receiver) == 0 {
            case.wait("the next one never connects");
        }
        while next[3] < WHOLE {
            if take(&mut receiver, case, &mut next).unwrap().is_none() {
                case.wait(&format!("it stops at {next:?}"));
            }
        }
        kill(&mut whole);
        take_rest(&mut receiver, case, &mut next);
        assert_eq!(next, [0, before[1], before[2], WHOLE]);
    });
}

/// Sends the next message of this end, if there is space.
fn give(
    sender: &mut Sender,
    case: &ChannelCase,
    generation: u8,
    number: &mut u32,
) -> Result<Option<Ticket>, Error> {
    match sender.send(&message(generation, *number, &case.options))? {
        Sent::Taken(ticket) => {
            *number += 1;
            Ok(Some(ticket))
        }
        Sent::Full => Ok(None),
    }
}

#[test]
fn killed_receiver_is_detected_and_replaced() {
    of_every_kind("killed_receiver_is_detected_and_replaced", 1, |case| {
        let mut sender = Sender::listen(shm(), &case.name, &case.options).unwrap();
        for generation in [1, 2] {
            let mut killed = case.start(&Role::receives(generation, 0));
            let moment = case.moment();
            while receivers_of(&mut sender) == 0 {
                case.wait("it never connects");
            }
            let mut sent = 0;
            while sent < moment {
                if give(&mut sender, case, generation, &mut sent).unwrap().is_none() {
                    case.wait("it receives nothing");
                }
            }
            kill(&mut killed);
            let mut tickets = Vec::new();
            loop {
                let given = give(&mut sender, case, generation, &mut sent);
                if is_lost(&given) {
                    break;
                }
                tickets.extend(given.unwrap());
                case.wait("the loss is never reported");
            }
            let done = tickets.iter().all(|ticket| sender.is_done(*ticket));
            assert!(done, "the sources of all messages are free");
        }
        assert!(is_lost(&sender.send(&message(2, 0, &case.options))));
        let whole = case.start(&Role::receives(3, WHOLE));
        while receivers_of(&mut sender) == 0 {
            case.wait("the next one never connects");
        }
        let mut sent = 0;
        while sent < WHOLE {
            if give(&mut sender, case, 3, &mut sent).unwrap().is_none() {
                case.wait("it receives nothing");
            }
        }
        while !is_lost(&sender.progress()) {
            case.wait("it never ends");
        }
        ends(whole, case);
    });
}

#[test]
fn other_senders_continue_when_one_is_killed() {
    of_every_kind("other_senders_continue_when_one_is_killed", 2, |case| {
        let mut receiver = Receiver::listen(shm(), &case.name, &case.options).unwrap();
        let mut next = [0; 4];
        let mut killed = case.start(&Role::sends(1, 0));
        let mut survivor = case.start(&Role::sends(2, LONG));
        while senders_of(&mut receiver) < 2 {
            case.wait("they never connect");
        }
        let moment = case.moment();
        // The survivor must not finish before the kill.
        while next[1] < moment && next[2] < LONG / 2 {
            if take(&mut receiver, case, &mut next).unwrap().is_none() {
                case.wait("nothing comes");
            }
        }
        kill(&mut killed);
        while senders_of(&mut receiver) == 2 {
            take(&mut receiver, case, &mut next).unwrap();
            case.wait("the loss is never noticed");
        }
        // Its slot is free for the next sender, while the survivor continues.
        let mut whole = case.start(&Role::sends(3, WHOLE));
        while next[2] < LONG || next[3] < WHOLE {
            if take(&mut receiver, case, &mut next).unwrap().is_none() {
                case.wait(&format!("they stop at {next:?}"));
            }
        }
        kill(&mut survivor);
        kill(&mut whole);
        take_rest(&mut receiver, case, &mut next);
        assert_eq!(next[2..], [LONG, WHOLE]);
    });
}

#[test]
fn other_receivers_continue_when_one_is_killed() {
    of_every_kind("other_receivers_continue_when_one_is_killed", 2, |case| {
        let mut sender = Sender::listen(shm(), &case.name, &case.options).unwrap();
        let mut killed = case.start(&Role::receives(1, 0));
        let survivor = case.start(&Role::receives(1, LONG));
        while receivers_of(&mut sender) < 2 {
            case.wait("they never connect");
        }
        let moment = case.moment();
        let (mut sent, mut dead) = (0, false);
        while sent < LONG {
            if sent == moment && !dead {
                kill(&mut killed);
                dead = true;
            }
            if give(&mut sender, case, 1, &mut sent).unwrap().is_none() {
                case.wait("they receive nothing");
            }
        }
        while !is_lost(&sender.progress()) {
            case.wait("the survivor never has all");
        }
        ends(survivor, case);
    });
}

#[test]
fn connecting_end_learns_of_a_killed_listener() {
    of_every_kind("connecting_end_learns_of_a_killed_listener", 1, |case| {
        for sends in [false, true] {
            case.name = format!("{}-{sends}", case.name);
            let mut killed = case.start(&Role { sends, listens: true, generation: 1, count: 0 });
            let moment = case.moment();
            let mut next = [0; 2];
            // The other end listens at some point.
            if sends {
                let mut receiver = connect(case, Receiver::connect);
                while next[1] < moment {
                    if take(&mut receiver, case, &mut next).unwrap().is_none() {
                        case.wait("it sends nothing");
                    }
                }
                kill(&mut killed);
                take_rest(&mut receiver, case, &mut next);
                take_rest(&mut receiver, case, &mut next);
            } else {
                let mut sender = connect(case, Sender::connect);
                let mut sent = 0;
                while sent < moment {
                    if give(&mut sender, case, 1, &mut sent).unwrap().is_none() {
                        case.wait("it receives nothing");
                    }
                }
                kill(&mut killed);
                while !is_lost(&give(&mut sender, case, 1, &mut sent)) {
                    case.wait("the loss is never reported");
                }
                assert!(is_lost(&sender.progress()), "and reported again");
            }
        }
    });
}

fn connect<E>(
    case: &ChannelCase,
    open: impl Fn(Arc<dyn Fabric>, &str, &Options) -> Result<E, Error>,
) -> E {
    loop {
        match open(shm(), &case.name, &case.options) {
            Ok(end) => return end,
            Err(error) => assert_eq!(error.code, ErrorCode::NoListener, "{error}"),
        }
        case.wait("no end ever listens");
    }
}
