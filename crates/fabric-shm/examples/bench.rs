//! The cost of the shared-memory fabric, compared with primitives of the machine in the same run. Best
//! and median of short windows, in ns an operation.
//!
//! `cargo run --release -p farside-fabric-shm --example bench [bare|one-sided|messages|sleepers]`
#![allow(clippy::print_stdout, reason = "a command that prints a table")]

use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Receive, ReceiveQueueId,
    RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Arena, Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use farside_fabric_shm::ShmFabric;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WINDOWS: usize = 100;

/// Pins this thread to one processor, so that two threads do not share one.
fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    // Best effort: it has no effect on a machine with one processor.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Prints best and median of windows of `count` operations each.
fn row(name: &str, count: u64, mut window: impl FnMut(u64)) {
    let mut times: Vec<f64> = (0..WINDOWS)
        .map(|_| {
            let start = Instant::now();
            window(count);
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name:52} {:8.1} {:8.1}", times[0], times[WINDOWS / 2]);
}

/// One end of a link, ready to work.
struct BenchEnd {
    port: Box<dyn Port>,
    region: Region,
    queue: ReceiveQueueId,
    link: LinkId,
    target: RemoteRegionId,
    fabric: ShmFabric,
}

impl BenchEnd {
    fn slice(&self, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region.id, offset: 4096, bytes }
    }

    fn place(&self) -> RemoteSlice {
        RemoteSlice { region: self.target, offset: 8192 }
    }

    fn work<'a>(&self, operation: Operation<'a>) -> Work<'a> {
        Work {
            id: WorkId(1),
            link: self.link,
            flags: WorkFlags { signalled: true, fence: false, awaited: false },
            operation,
        }
    }

    fn receive(&self, offset: u64) -> Receive {
        Receive {
            id: WorkId(offset),
            queue: self.queue,
            into: LocalSlice { region: self.region.id, offset, bytes: 4096 },
        }
    }

    fn event(&mut self) -> LinkEvent {
        let mut events = Vec::new();
        loop {
            self.port.link_events(&mut events);
            if let Some(event) = events.pop() {
                return event;
            }
            std::thread::yield_now();
        }
    }
}

fn half_open(name: Option<String>) -> BenchEnd {
    let fabric = ShmFabric::new().expect("a fabric");
    let spec = RegionSpec { bytes: 8 << 20, access: Access::ALL, kind: RegionKind::Memory };
    let region = fabric.register(&spec).expect("a region");
    let mut port = fabric.open(&PortSpec { listen: name }).expect("a port");
    let queue = port.create_receive_queue(256).expect("a queue");
    BenchEnd { port, region, queue, link: LinkId(0), target: RemoteRegionId(0), fabric }
}

fn name(what: &str) -> String {
    format!("bench-{}-{what}", std::process::id())
}

/// Returns two fabrics of this process, linked.
fn pair(what: &str) -> (BenchEnd, BenchEnd) {
    let name = name(what);
    let (mut near, mut far) = (half_open(None), half_open(Some(name.clone())));
    near.link = near.port.connect(&name, b"", near.queue).expect("a link");
    let LinkEvent::Requested { link, .. } = far.event() else { panic!("not asked") };
    far.link = link;
    far.port.accept(link, b"", far.queue).expect("accepted");
    let LinkEvent::Connected { .. } = near.event() else { panic!("not connected") };
    near.target = near.port.import(near.link, &far.region.token).expect("a region");
    far.target = far.port.import(far.link, &near.region.token).expect("a region");
    (near, far)
}

fn post_and_poll(end: &mut BenchEnd, work: &[Work<'_>], out: &mut [Completion]) {
    let posted = end.port.post(black_box(work));
    assert_eq!(posted.accepted, work.len());
    assert_eq!(end.port.poll(out), work.len());
    assert_eq!(out[0].status, CompletionStatus::Success);
}

fn bare(near: &Region, far: &Region) {
    println!("\nbare memory");
    let (from, to): (&Arena, &Arena) = (&near.arena, &far.arena);
    for bytes in [8, 16, 64, 256, 512, 1024, 4096] {
        copies(from, to, bytes);
    }
    row("fetch_add", 10_000, |count| {
        for _ in 0..count {
            black_box(to.fetch_add(8192, 1).expect("within the region"));
        }
    });
}

/// Measures the copies of an arena, and for comparison those of the C library between private memory.
fn copies(from: &Arena, to: &Arena, bytes: usize) {
    let source = AlignedLines::filled();
    let mut target = AlignedLines::filled();
    row(&format!("memcpy {bytes} B"), 10_000, |count| {
        for _ in 0..count {
            let out = &mut target.0[..black_box(bytes)];
            out.copy_from_slice(&black_box(&source).0[..black_box(bytes)]);
            black_box(out);
        }
    });
    row(&format!("copy from arena to arena {bytes} B"), 10_000, |count| {
        for _ in 0..count {
            let copied = to.copy_from(black_box(8192), from, black_box(4096), black_box(bytes));
            copied.expect("within the region");
        }
    });
    row(&format!("read from arena {bytes} B"), 10_000, |count| {
        for _ in 0..count {
            let out = &mut target.0[..black_box(bytes)];
            from.read(black_box(4096), out).expect("within the region");
            black_box(out);
        }
    });
    row(&format!("write to arena {bytes} B"), 10_000, |count| {
        for _ in 0..count {
            let out = &black_box(&source).0[..black_box(bytes)];
            to.write(black_box(8192), out).expect("within the region");
        }
    });
}

/// Bytes that start at a line, as regions do.
#[repr(align(4096))]
struct AlignedLines([u8; 4096]);

impl AlignedLines {
    fn filled() -> Box<Self> {
        Box::new(Self([7; 4096]))
    }
}

fn one_sided(end: &mut BenchEnd) {
    println!("\none-sided, posted, checked, completed and polled");
    let mut out = [Completion::BLANK; 64];
    for bytes in [8, 16, 64, 256, 1024, 4096] {
        let slices = [end.slice(bytes)];
        let source = Source::Gather(&slices);
        let to = end.place();
        let write = end.work(Operation::Write { source, to, immediate: None });
        let read = end.work(Operation::Read { into: &slices, from: to });
        for (name, work) in [("WRITE", write), ("READ", read)] {
            let list = [work; 64];
            row(&format!("{name} {bytes} B"), 10_000, |count| {
                for _ in 0..count {
                    post_and_poll(end, &list[..1], &mut out);
                }
            });
            row(&format!("{name} {bytes} B, 64 by one post"), 100 * 64, |count| {
                for _ in 0..count / 64 {
                    post_and_poll(end, &list, &mut out);
                }
            });
        }
    }
    atomics(end, &mut out);
}

fn atomics(end: &mut BenchEnd, out: &mut [Completion]) {
    let (at, into) = (end.place(), end.slice(8));
    let (expected, new, mask) = (0, 0, u64::MAX);
    let list = [
        ("FETCH_ADD", Operation::FetchAdd { at, add: 1, into }),
        ("COMPARE_SWAP", Operation::CompareSwap { at, expected, new, into }),
        ("SWAP", Operation::Swap { at, new, into }),
        ("masked FETCH_ADD", Operation::MaskedFetchAdd { at, add: 1, boundaries: 1 << 31, into }),
        (
            "masked COMPARE_SWAP",
            Operation::MaskedCompareSwap {
                at,
                expected,
                compare_mask: mask,
                new,
                swap_mask: mask,
                into,
            },
        ),
    ];
    for (name, operation) in list {
        let work = [end.work(operation)];
        row(name, 10_000, |count| {
            for _ in 0..count {
                post_and_poll(end, &work, out);
            }
        });
    }
    let list = [end.work(list[0].1); 64];
    row("FETCH_ADD, 64 by one post", 100 * 64, |count| {
        for _ in 0..count / 64 {
            post_and_poll(end, &list, out);
        }
    });
    row("poll that finds nothing", 10_000, |count| {
        for _ in 0..count {
            assert_eq!(end.port.poll(out), 0);
        }
    });
}

#[repr(align(64))]
struct BareLine(AtomicU64);

/// Half a round trip of bare lines: one line for both directions, or one for each.
fn bare_ping_pong(name: &str, lines: [&BareLine; 2]) {
    let count = 500;
    let total = count * WINDOWS as u64;
    for line in lines {
        line.0.store(0, Ordering::SeqCst);
    }
    let one = std::ptr::eq(lines[0], lines[1]);
    let forth = |round: u64| if one { 2 * round + 1 } else { round + 1 };
    let back = |round: u64| if one { 2 * round + 2 } else { round + 1 };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pin(1);
            for round in 0..total {
                while lines[0].0.load(Ordering::Acquire) != forth(round) {}
                lines[1].0.store(back(round), Ordering::Release);
            }
        });
        let mut round = 0;
        row(name, 2 * count, |legs| {
            for _ in 0..legs / 2 {
                lines[0].0.store(forth(round), Ordering::Release);
                while lines[1].0.load(Ordering::Acquire) != back(round) {}
                round += 1;
            }
        });
    });
}

/// Sends one message and waits for one.
fn send(end: &mut BenchEnd, bytes: u32) {
    let slices = [end.slice(bytes)];
    let mut work = end.work(Operation::Send { source: Source::Gather(&slices), immediate: None });
    work.flags.signalled = false;
    while end.port.post(&[work]).accepted == 0 {}
}

fn receive(end: &mut BenchEnd, out: &mut [Completion]) -> usize {
    loop {
        let count = end.port.poll(out);
        if count > 0 {
            for completion in &out[..count] {
                assert_eq!(completion.status, CompletionStatus::Success);
                let again = end.receive(completion.id.0);
                assert_eq!(end.port.post_receives(&[again]).accepted, 1);
            }
            return count;
        }
    }
}

fn messages(near: &mut BenchEnd, far: &mut BenchEnd) {
    println!("\nmessages between two threads, one way, both polling");
    let line = [BareLine(AtomicU64::new(0)), BareLine(AtomicU64::new(0))];
    bare_ping_pong("bare store and load, one line", [&line[0], &line[0]]);
    bare_ping_pong("bare store and load, a line a direction", [&line[0], &line[1]]);
    for at in 0..128 {
        let receives = [near.receive(65_536 + at * 4096), far.receive(65_536 + at * 4096)];
        assert_eq!(near.port.post_receives(&receives[..1]).accepted, 1);
        assert_eq!(far.port.post_receives(&receives[1..]).accepted, 1);
    }
    for bytes in [8, 56, 64, 1024, 4096] {
        ping_pong(near, far, bytes);
    }
    println!("\nmessages in a stream, an operation");
    for bytes in [8, 56, 64, 1024, 4096] {
        stream(near, far, bytes);
    }
}

fn ping_pong(near: &mut BenchEnd, far: &mut BenchEnd, bytes: u32) {
    let count = 500;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pin(1);
            let mut out = [Completion::BLANK; 1];
            for _ in 0..count * WINDOWS as u64 {
                receive(far, &mut out);
                send(far, bytes);
            }
        });
        let mut out = [Completion::BLANK; 1];
        row(&format!("SEND to poll {bytes} B"), 2 * count, |legs| {
            for _ in 0..legs / 2 {
                send(near, bytes);
                receive(near, &mut out);
            }
        });
    });
}

fn stream(near: &mut BenchEnd, far: &mut BenchEnd, bytes: u32) {
    let count = 2_000;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pin(1);
            let mut out = [Completion::BLANK; 32];
            let mut left = count as usize * WINDOWS;
            while left > 0 {
                left -= receive(far, &mut out);
            }
        });
        row(&format!("SEND {bytes} B"), count, |count| {
            for _ in 0..count {
                send(near, bytes);
            }
        });
    });
}

/// Round trip of two threads through a bare futex.
fn bare_futex() {
    use rustix::thread::futex::{Flags, wait, wake};
    let words = [AtomicU32::new(0), AtomicU32::new(0)];
    let pass = |word: &AtomicU32, value: u32| {
        word.store(value, Ordering::SeqCst);
        wake(word, Flags::empty(), 1).expect("a mapped word");
    };
    let take = |word: &AtomicU32, value: u32| {
        while word.load(Ordering::SeqCst) != value {
            // Woken, or the word had changed before.
            let _ = wait(word, Flags::empty(), value - 1, None);
        }
    };
    let count = 100;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pin(1);
            for round in 1..=count * WINDOWS as u32 {
                take(&words[0], round);
                pass(&words[1], round);
            }
        });
        let mut round = 0;
        row("bare futex", u64::from(count), |count| {
            for _ in 0..count {
                round += 1;
                pass(&words[0], round);
                take(&words[1], round);
            }
        });
    });
}

/// The cost of a check for messages for a port with many links.
fn many_links() {
    let (mut near, mut far) = pair("many");
    let more = far.port.create_receive_queue(1).expect("a queue");
    for _ in 1..64 {
        near.port.connect(&name("many"), b"", near.queue).expect("a link");
        let LinkEvent::Requested { link, .. } = far.event() else { panic!("not asked") };
        far.port.accept(link, b"", more).expect("accepted");
        let LinkEvent::Connected { .. } = near.event() else { panic!("not connected") };
    }
    let mut out = [Completion::BLANK; 8];
    row("poll of 64 links that finds nothing", 10_000, |count| {
        for _ in 0..count {
            assert_eq!(far.port.poll(&mut out), 0);
        }
    });
}

/// Round trip between two threads that sleep between messages.
fn sleepers(near: &mut BenchEnd, far: &mut BenchEnd) {
    println!("\nround trip between two sleepers");
    bare_futex();
    let count = 100;
    let sleep = |end: &mut BenchEnd, out: &mut [Completion]| {
        let waiter = end.port.waiter();
        loop {
            let found = end.port.poll(out);
            if found > 0 {
                let again = end.receive(out[0].id.0);
                assert_eq!(end.port.post_receives(&[again]).accepted, 1);
                return;
            }
            if !end.port.arm() {
                assert!(waiter.wait(Some(Duration::from_secs(60))));
            }
            end.port.disarm();
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pin(1);
            let mut out = [Completion::BLANK; 1];
            for _ in 0..count * WINDOWS as u64 {
                sleep(far, &mut out);
                send(far, 8);
            }
        });
        let mut out = [Completion::BLANK; 1];
        row("SEND 8 B and answer, asleep between", count, |count| {
            for _ in 0..count {
                send(near, 8);
                sleep(near, &mut out);
            }
        });
    });
}

fn main() {
    pin(0);
    let only = std::env::args().nth(1);
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    println!("{:52} {:>8} {:>8}", "ns an operation", "best", "median");
    let (mut near, mut far) = pair("one");
    println!("{}", near.port.path(near.link));
    println!("{:?}", near.fabric.describe(near.region.id));
    if wanted("bare") {
        bare(&near.region, &far.region);
    }
    if wanted("one-sided") {
        one_sided(&mut near);
        many_links();
    }
    if wanted("messages") {
        messages(&mut near, &mut far);
    }
    if wanted("sleepers") {
        sleepers(&mut near, &mut far);
    }
}
