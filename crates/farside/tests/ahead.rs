//! Lines requested ahead of their use: how many, when, and that it changes no value.
//!
//! Both nodes are driven by the test's thread, over the in-process fabric, so that requests in flight and round
//! trips can be counted.

use farside::fabrics::{Fabric, MemFabric};
use farside::{Config, ErrorCode, GlobalAddress, Joining, LineSize, Node, Session, Stats};
use farside_testkit::{Random, unique_name};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const LINE: usize = LineSize::DEFAULT.bytes();
/// Lines of the range that tests access.
const LINES: usize = 64;
/// Lines that a session requests ahead, with the default limits.
const WINDOW: usize = 32;
/// A cache of one set.
const SMALL_CACHE: usize = 8;

/// A home, and another node that uses its memory by messages.
struct Pair {
    home: Option<Node>,
    other: Node,
    memory: GlobalAddress,
}

impl Pair {
    /// A pair whose second node can cache this many lines.
    fn new(name: &str, cached: usize) -> Self {
        Self::with(name, cached, |config| config.direct_reads(false))
    }

    fn with(name: &str, cached: usize, change: impl FnOnce(Config) -> Config) -> Self {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let config = Config::new(unique_name(name)).memory_bytes(1 << 20);
        let config = config.write_back_ns(None);
        let config = change(config.cache_bytes(4096));
        let home = Node::create_driven(&config, Arc::clone(&fabric)).unwrap();
        let config = config.cache_bytes((cached * LINE) as u64);
        let mut joining = Joining::start(&config, fabric).unwrap();
        let other = loop {
            home.progress();
            if let Some(node) = joining.poll().unwrap() {
                break node;
            }
        };
        let mut pair =
            Self { home: Some(home), other, memory: GlobalAddress::from_bits(0).unwrap() };
        pair.settle();
        let mut session = pair.home().session().unwrap();
        pair.memory =
            pair.finish(session.alloc_on_async((LINES * LINE) as u64, pair.home().id())).unwrap();
        pair
    }

    fn home(&self) -> &Node {
        self.home.as_ref().unwrap()
    }

    fn line(&self, number: usize) -> GlobalAddress {
        self.memory.checked_add((number * LINE) as u64).unwrap()
    }

    /// Delivers every message in flight.
    fn settle(&self) {
        while self.home.as_ref().is_some_and(Node::progress) | self.other.progress() {}
    }

    /// Completes a call, and returns the number of round trips that it took.
    fn round_trips<T>(&self, call: impl Future<Output = T>) -> (T, usize) {
        let mut call = pin!(call);
        let mut trips = 0;
        loop {
            if let Poll::Ready(end) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return (end, trips);
            }
            trips += 1;
            self.settle();
        }
    }

    fn finish<T>(&self, call: impl Future<Output = T>) -> T {
        self.round_trips(call).0
    }

    fn sent(&self) -> u64 {
        self.other.stats().messages_sent
    }

    fn stats(&self) -> Stats {
        self.other.stats()
    }
}

/// Polls a call once: it waits.
fn begin<T>(call: impl Future<Output = T>) {
    let poll = pin!(call).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending());
}

async fn read_each(session: &mut Session, first: GlobalAddress, out: &mut [u8]) {
    let at = |part: usize| first.checked_add((part * LINE) as u64).unwrap();
    let parts = out.chunks_mut(LINE).enumerate().map(|(part, out)| (at(part), out));
    session.read_vectored_async(&mut parts.collect::<Vec<_>>()).await.unwrap();
}

async fn write_each(session: &mut Session, first: GlobalAddress, bytes: &[u8]) {
    let at = |part: usize| first.checked_add((part * LINE) as u64).unwrap();
    let parts = bytes.chunks(LINE).enumerate().map(|(part, bytes)| (at(part), bytes));
    session.write_vectored_async(&parts.collect::<Vec<_>>()).await.unwrap();
    session.fence_async().await.unwrap();
}

fn pattern(first: u8) -> Vec<u8> {
    (0..LINES * LINE).map(|at| first.wrapping_add((at / LINE) as u8)).collect()
}

#[test]
fn cold_ranges_take_a_round_trip_a_window() {
    let pair = Pair::new("windows", 16 * LINES);
    let mut home = pair.home().session().unwrap();
    let mut bytes = vec![0; LINES * LINE];
    let few = LINES.div_ceil(WINDOW);
    for round in 0..4 {
        let written = pattern(round);
        pair.finish(write_each(&mut home, pair.memory, &written)); // the other node loses its copies
        let mut session = pair.other.session().unwrap();
        let before = pair.stats();
        let ((), trips) = match round {
            0 => pair.round_trips(read_each(&mut session, pair.memory, &mut bytes)),
            1 => pair.round_trips(async {
                session.read_async(pair.memory, &mut bytes).await.unwrap();
            }),
            2 => pair.round_trips(write_each(&mut session, pair.memory, &written)),
            _ => pair.round_trips(async {
                session.write_async(pair.memory, &written).await.unwrap();
                session.fence_async().await.unwrap();
            }),
        };
        if round < 2 {
            assert_eq!(bytes, written);
        }
        let after = pair.stats();
        assert!((1..=few).contains(&trips), "round {round}: {trips} round trips");
        // One request a line, and messages that return credits.
        let sent = (after.messages_sent - before.messages_sent) as usize;
        assert!((LINES..LINES + 4).contains(&sent), "round {round}: {sent} messages");
        assert!(after.prefetches > before.prefetches, "{after:?}");
    }
}

#[test]
fn requests_in_flight_are_bounded() {
    let pair = Pair::new("bounded", 4 * LINES);
    let mut session = pair.other.session().unwrap();
    let before = pair.sent();
    session.prefetch_read(pair.memory, LINES * LINE);
    assert_eq!(pair.sent() - before, WINDOW as u64);
    session.prefetch_read(pair.line(WINDOW), WINDOW * LINE);
    session.prefetch_write(pair.memory, LINES * LINE);
    assert_eq!(pair.sent() - before, WINDOW as u64, "all slots are in use");
    assert_eq!(pair.stats().prefetches, WINDOW as u64);

    pair.settle();
    let landed = pair.sent();
    session.prefetch_read(pair.memory, WINDOW * LINE);
    assert_eq!(pair.sent(), landed, "these lines are here");
    let mut bytes = vec![0; WINDOW * LINE];
    session.read(pair.memory, &mut bytes).unwrap(); // and are hits, without the home
    assert_eq!((pair.stats().misses, pair.stats().hits), (0, WINDOW as u64));

    // One access has no more in flight than those, and the lines that it waits for itself.
    begin(session.read_async(pair.line(WINDOW), &mut bytes));
    assert_eq!(pair.sent() - landed, WINDOW as u64);
}

#[test]
fn window_is_a_quarter_of_a_small_cache() {
    let pair = Pair::new("quarter", 64);
    let mut session = pair.other.session().unwrap();
    let before = pair.sent();
    session.prefetch_read(pair.memory, LINES * LINE);
    assert_eq!(pair.sent() - before, 64 / 4);
}

#[test]
fn line_recalled_before_its_use_is_read_as_of_its_read() {
    let pair = Pair::new("recalled", 4 * LINES);
    let (mut home, mut session) = (pair.home().session().unwrap(), pair.other.session().unwrap());
    for is_written in [false, true] {
        for has_landed in [false, true] {
            match is_written {
                false => session.prefetch_read(pair.memory, LINE),
                true => session.prefetch_write(pair.memory, LINE),
            }
            if has_landed {
                pair.settle();
            }
            let value = u64::from(is_written) * 2 + u64::from(has_landed) + 1;
            pair.finish(async {
                home.write_async(pair.memory, &value.to_le_bytes()).await.unwrap();
                home.fence_async().await.unwrap();
            });
            assert_eq!(pair.finish(session.read_u64_async(pair.memory)), Ok(value));
        }
    }
}

#[test]
fn dead_home_is_reported_by_the_access() {
    let mut pair = Pair::new("dead", 4 * LINES);
    let mut session = pair.other.session().unwrap();
    session.prefetch_write(pair.memory, LINES * LINE);
    session.prefetch_read(pair.memory, LINES * LINE);
    pair.home = None;
    session.prefetch_write(pair.line(WINDOW), WINDOW * LINE);
    let read = pair.finish(session.read_u64_async(pair.memory));
    assert_eq!(read.unwrap_err().code, ErrorCode::NodeLost);
    session.prefetch_read(pair.memory, LINES * LINE);
    assert_eq!(pair.finish(session.fence_async()), Ok(()), "a prefetch leaves no error behind");
    let local = pair.finish(session.alloc_on_async(8, pair.other.id())).unwrap();
    session.write_u64(local, 7).unwrap();
    assert_eq!(session.read_u64(local), Ok(7));
}

#[test]
fn memory_out_of_reach_is_reported_by_the_access() {
    let pair = Pair::new("reach", 4 * LINES);
    let mut session = pair.other.session().unwrap();
    let end = pair.line(LINES - 1);
    session.prefetch_read(end, usize::MAX);
    session.prefetch_write(end, 100 * LINE);
    session.prefetch_read(end, 0);
    pair.settle();
    assert_eq!(pair.finish(session.read_u64_async(end)), Ok(0));
    let past = pair.finish(session.read_async(end, &mut [0; 2 * LINE]));
    assert_eq!(past.unwrap_err().code, ErrorCode::OutOfBounds);
}

#[test]
fn directly_readable_lines_are_not_requested() {
    let pair = Pair::with("direct", 4 * LINES, |config| config);
    let mut session = pair.other.session().unwrap();
    let before = pair.sent();
    session.prefetch_read(pair.memory, LINES * LINE);
    assert_eq!((pair.sent(), pair.stats().prefetches), (before, 0));
    session.prefetch_write(pair.memory, LINE);
    assert_eq!(pair.stats().prefetches, 1);
}

#[test]
fn pinned_snapshots_request_their_lines_together() {
    let pair = Pair::new("pinned", 4 * LINES);
    let (mut session, bytes) = (pair.other.session().unwrap(), pattern(3));
    let ((), trips) = pair.round_trips(async {
        session.write_atomic_async(pair.memory, &bytes[..16 * LINE]).await.unwrap();
    });
    assert!((1..=2).contains(&trips), "{trips} round trips");
    let mut out = vec![0; 16 * LINE];
    pair.finish(pair.home().session().unwrap().read_atomic_async(pair.memory, &mut out)).unwrap();
    assert_eq!(out, bytes[..16 * LINE]);
}

/// Two sessions of one node with a cache smaller than what they request ahead: each makes progress.
#[test]
fn sessions_that_exceed_the_cache_make_progress() {
    let pair = Pair::new("exceeded", SMALL_CACHE);
    let mut sessions = [(); 3].map(|()| pair.other.session().unwrap());
    let written = pattern(9);
    let mut out = vec![0; LINES * LINE];
    let [writer, reader, pinning] = &mut sessions;
    for _ in 0..8 {
        let mut write = pin!(write_each(writer, pair.memory, &written));
        let mut read = pin!(read_each(reader, pair.memory, &mut out));
        let mut snapshot = [0; 3 * LINE];
        let mut pins = pin!(pinning.read_atomic_async(pair.line(20), &mut snapshot));
        let mut context = Context::from_waker(Waker::noop());
        let (mut wrote, mut has_read, mut pinned) = (false, false, false);
        for _ in 0..10_000 {
            wrote = wrote || write.as_mut().poll(&mut context).is_ready();
            has_read = has_read || read.as_mut().poll(&mut context).is_ready();
            pinned = pinned || pins.as_mut().poll(&mut context).is_ready();
            pair.settle();
            if wrote && has_read && pinned {
                break;
            }
        }
        assert!(wrote && has_read && pinned, "{}", pair.other.describe());
    }
    pair.finish(read_each(reader, pair.memory, &mut out));
    assert_eq!(out, written);
}

/// A writer stores each round's number in all lines, first to last; a reader that goes from the last to the first
/// must never see a number fall.
#[test]
fn vectored_reads_keep_program_order() {
    let mut random = Random::new(7);
    let pair = Pair::new("ordered", 4 * LINES);
    let (mut writer, mut reader) = (pair.home().session().unwrap(), pair.other.session().unwrap());
    for _ in 0..20 {
        let mut values = [[0; 8]; LINES];
        let mut write = pin!(async {
            for round in 1..=3_u64 {
                for number in 0..LINES {
                    writer.fetch_add_async(pair.line(number), round).await.unwrap();
                }
            }
        });
        let mut parts: Vec<(GlobalAddress, &mut [u8])> = values
            .iter_mut()
            .enumerate()
            .rev()
            .map(|(number, value)| (pair.line(number), &mut value[..]))
            .collect();
        let mut read = pin!(async {
            reader.read_vectored_async(&mut parts).await.unwrap();
            parts
        });
        let mut context = Context::from_waker(Waker::noop());
        let (mut wrote, mut last_first) = (false, None);
        while !(wrote && last_first.is_some()) {
            match random.index(4) {
                0 if !wrote => wrote = write.as_mut().poll(&mut context).is_ready(),
                1 if last_first.is_none() => {
                    if let Poll::Ready(parts) = read.as_mut().poll(&mut context) {
                        let value = |(_, bytes): (_, &mut [u8])| {
                            u64::from_le_bytes(bytes.try_into().unwrap())
                        };
                        last_first = Some(parts.into_iter().map(value).collect::<Vec<_>>());
                    }
                }
                2 => drop(pair.home().progress()),
                _ => drop(pair.other.progress()),
            }
        }
        let values = last_first.unwrap();
        assert!(values.is_sorted(), "{values:?}");
    }
}

/// Random accesses of two nodes, one at a time, agree with a plain array, whatever is requested ahead.
#[test]
fn random_accesses_agree_with_an_array() {
    for (seed, cached) in [(1, SMALL_CACHE), (2, SMALL_CACHE), (3, 4 * LINES), (4, 4 * LINES)] {
        let mut random = Random::new(seed);
        let pair = Pair::new("random", cached);
        let mut sessions =
            [pair.home(), &pair.other, &pair.other].map(|node| node.session().unwrap());
        let mut model = vec![0_u8; LINES * LINE];
        for step in 0..1_000 {
            let session = &mut sessions[random.index(3)];
            let mut range = || {
                let at = random.index(model.len());
                at..(at + 1 + random.index(40 * LINE)).min(model.len())
            };
            let (one, two) = (range(), range());
            let address = |at: usize| pair.memory.checked_add(at as u64).unwrap();
            let mut bytes = [vec![step as u8; one.len()], vec![!step as u8; two.len()]];
            match random.index(6) {
                0 => session.prefetch_read(address(one.start), one.len()),
                1 => session.prefetch_write(address(one.start), one.len()),
                2 => {
                    pair.finish(session.read_async(address(one.start), &mut bytes[0])).unwrap();
                    assert_eq!(bytes[0], model[one]);
                }
                3 => {
                    let [first, second] = &mut bytes;
                    let parts =
                        &mut [(address(one.start), &mut first[..]), (address(two.start), second)];
                    pair.finish(session.read_vectored_async(parts)).unwrap();
                    assert_eq!(bytes, [&model[one], &model[two]]);
                }
                4 => {
                    model[one.clone()].copy_from_slice(&bytes[0]);
                    pair.finish(session.write_async(address(one.start), &bytes[0])).unwrap();
                    pair.finish(session.fence_async()).unwrap();
                }
                _ => {
                    let parts =
                        [(address(one.start), &bytes[0][..]), (address(two.start), &bytes[1])];
                    model[one.clone()].copy_from_slice(&bytes[0]);
                    model[two.clone()].copy_from_slice(&bytes[1]);
                    pair.finish(session.write_vectored_async(&parts)).unwrap();
                    pair.finish(session.fence_async()).unwrap();
                }
            }
            if random.chance(300) {
                pair.settle();
            }
        }
    }
}
