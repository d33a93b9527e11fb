//! The cost of the TCP fabric between two processes over loopback: latencies as median and 99th
//! percentile, rates and bandwidths as best and median of several windows.
//!
//! `cargo run --release -p farside-fabric-tcp --example bench [handshake|everything]`; prefixed with
//! `PEER_PROCESSOR=1 taskset -c 0`, each process is bound to a processor.
#![allow(clippy::print_stdout, reason = "a command that prints a table")]

use farside_base::{
    Access, Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice, Operation, Receive,
    ReceiveQueueId, RegionKind, RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags,
    WorkId,
};
use farside_bootstrap::{ClusterKey, Identity, Protect, Security};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const REGION_BYTES: u64 = 8 << 20;
/// Receives of a queue, and the longest message.
const RECEIVES: u64 = 256;
const MESSAGE_MAX: u32 = 1 << 20;
/// A key for measurements; it protects nothing.
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// One end of a link.
struct BenchEnd {
    port: Box<dyn Port>,
    region: Region,
    messages: Region,
    queue: ReceiveQueueId,
    link: LinkId,
    target: RemoteRegionId,
    _fabric: TcpFabric,
}

fn security(how: &str) -> Security {
    let keyed = |protect| {
        let key = ClusterKey::from_hex(KEY).expect("a key");
        let identity = Identity::cluster_key(&key).expect("a key pair");
        Security::new(identity, protect).expect("a key goes with both")
    };
    match how {
        "handshake" => keyed(Protect::Handshake),
        "everything" => keyed(Protect::Everything),
        _ => Security::open(),
    }
}

impl BenchEnd {
    fn new(how: &str, listens: bool) -> Self {
        let listen = listens.then(|| "127.0.0.1:0".parse().expect("an address"));
        let options = TcpOptions { listen, security: security(how), ..TcpOptions::default() };
        let fabric = TcpFabric::new(options).expect("a fabric");
        let access = Access::ALL;
        let region = |bytes| {
            let spec = RegionSpec { bytes, access, kind: RegionKind::Memory };
            fabric.register(&spec).expect("a region")
        };
        let (region, messages) = (region(REGION_BYTES), region(16 * u64::from(MESSAGE_MAX)));
        let listen = listens.then(|| "bench".to_owned());
        let mut port = fabric.open(&PortSpec { listen }).expect("a port");
        let queue = port.create_receive_queue(RECEIVES as usize).expect("a queue");
        let (link, target) = (LinkId(0), RemoteRegionId(0));
        let mut end = Self { port, region, messages, queue, link, target, _fabric: fabric };
        (0..RECEIVES).for_each(|number| end.receive(number));
        end
    }

    fn receive(&mut self, number: u64) {
        let offset = number % 16 * u64::from(MESSAGE_MAX);
        let into = LocalSlice { region: self.messages.id, offset, bytes: MESSAGE_MAX };
        let receive = Receive { id: WorkId(number), queue: self.queue, into };
        assert_eq!(self.port.post_receives(&[receive]).accepted, 1);
    }

    fn event(&mut self) -> LinkEvent {
        let mut events = Vec::new();
        let mut out = [Completion::BLANK; 1];
        loop {
            self.port.link_events(&mut events);
            if let Some(event) = events.pop() {
                return event;
            }
            assert_eq!(self.port.poll(&mut out), 0);
            std::thread::yield_now();
        }
    }

    fn slice(&self, bytes: u32) -> [LocalSlice; 1] {
        [LocalSlice { region: self.region.id, offset: 4096, bytes }]
    }

    fn place(&self) -> RemoteSlice {
        RemoteSlice { region: self.target, offset: 8192 }
    }

    fn post(&mut self, operation: Operation<'_>, signalled: bool) {
        let flags = WorkFlags { signalled, fence: false, awaited: false };
        let work = Work { id: WorkId(9), link: self.link, flags, operation };
        while self.port.post(&[work]).accepted == 0 {
            let mut out = [Completion::BLANK; 1];
            assert_eq!(self.port.poll(&mut out), 0);
        }
    }

    fn send(&mut self, bytes: u32) {
        let slices = self.slice(bytes);
        let source = Source::Gather(&slices);
        self.post(Operation::Send { source, immediate: None }, false);
    }

    /// Returns the next completion, by polling.
    fn completion(&mut self) -> Completion {
        let mut out = [Completion::BLANK; 1];
        while self.port.poll(&mut out) == 0 {
            std::hint::spin_loop();
        }
        assert_eq!(out[0].status, CompletionStatus::Success);
        out[0]
    }
}

/// The other process: `echo` answers messages with as many bytes, `sink` takes them, `busy` polls,
/// `idle` sleeps.
fn serve(how: &str, mode: &str) {
    let mut end = BenchEnd::new(how, true);
    println!("{}", end.port.address().expect("a listener"));
    let LinkEvent::Requested { link, .. } = end.event() else { panic!("not asked") };
    end.link = link;
    let token = end.region.token.encode();
    end.port.accept(link, &token, end.queue).expect("to accept");
    let waiter = end.port.waiter();
    let mut out = [Completion::BLANK; 64];
    let mut events = Vec::new();
    let mut polls = 0_u32;
    loop {
        if mode == "idle" {
            if !end.port.arm() {
                waiter.wait(None);
            }
            end.port.disarm();
        }
        let count = end.port.poll(&mut out);
        for done in &out[..count] {
            end.receive(done.id.0);
            if mode == "echo" && done.kind == CompletionKind::Receive {
                end.send(done.bytes);
            }
        }
        polls = polls.wrapping_add(1);
        if mode == "idle" || polls.is_multiple_of(1024) {
            end.port.link_events(&mut events);
            if !events.is_empty() {
                return;
            }
        }
    }
}

/// Another process in this mode, and a link to it.
fn with(how: &str, mode: &str) -> (Child, BenchEnd) {
    let this = std::env::current_exe().expect("the path of this executable");
    let mut command = match std::env::var("PEER_PROCESSOR") {
        Ok(processor) => {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(processor).arg(this);
            command
        }
        Err(_) => Command::new(this),
    };
    let child = command.args(["serve", how, mode]).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("a child process");
    let mut address = String::new();
    let output = child.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut address).expect("an address");
    let mut end = BenchEnd::new(how, false);
    end.link = end.port.connect(address.trim(), b"", end.queue).expect("an address");
    let LinkEvent::Connected { reply, .. } = end.event() else { panic!("not connected") };
    let token = reply.as_slice().try_into().ok().and_then(RegionToken::decode);
    end.target = end.port.import(end.link, &token.expect("a token")).expect("a region");
    (child, end)
}

fn print_latencies(name: &str, mut times: Vec<Duration>, shares: u32) {
    times.sort();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_nanos() as f64 / 1e3;
    let shares = f64::from(shares);
    let sum: Duration = times.iter().sum();
    let mean = sum.as_nanos() as f64 / 1e3 / times.len() as f64;
    let (mean, median, late) = (mean / shares, at(0.5) / shares, at(0.99) / shares);
    println!("{name:40} {mean:9.2} {median:9.2} {late:9.2}");
}

fn latency(name: &str, end: &mut BenchEnd, count: usize, mut one: impl FnMut(&mut BenchEnd)) {
    (0..count / 10).for_each(|_| one(end));
    let times = (0..count).map(|_| {
        let start = Instant::now();
        one(end);
        start.elapsed()
    });
    let times = times.collect();
    print_latencies(name, times, 1);
}

fn ping_pong(how: &str) {
    let (mut child, mut end) = with(how, "echo");
    for (bytes, count) in
        [(8, 20_000), (64, 20_000), (1024, 20_000), (65_536, 4000), (1 << 20, 400)]
    {
        let one = |end: &mut BenchEnd| {
            end.send(bytes);
            let done = end.completion();
            end.receive(done.id.0);
        };
        (0..count / 10).for_each(|_| one(&mut end));
        let times = (0..count).map(|_| {
            let start = Instant::now();
            one(&mut end);
            start.elapsed()
        });
        let times = times.collect();
        print_latencies(&format!("SEND {bytes} B, half a round trip, us"), times, 2);
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn one_sided(how: &str, mode: &str) {
    let (mut child, mut end) = with(how, mode);
    let to = end.place();
    for bytes in [8, 4096, 65_536] {
        let slices = end.slice(bytes);
        latency(&format!("WRITE {bytes} B, target {mode}, us"), &mut end, 10_000, |end| {
            end.post(
                Operation::Write { source: Source::Gather(&slices), to, immediate: None },
                true,
            );
            end.completion();
        });
        latency(&format!("READ {bytes} B, target {mode}, us"), &mut end, 10_000, |end| {
            end.post(Operation::Read { into: &slices, from: to }, true);
            end.completion();
        });
    }
    let into = end.slice(8)[0];
    latency(&format!("FETCH_ADD, target {mode}, us"), &mut end, 10_000, |end| {
        end.post(Operation::FetchAdd { at: to, add: 1, into }, true);
        end.completion();
    });
    let _ = child.kill();
    let _ = child.wait();
}

/// Keeps `depth` requests in flight and prints best and median of windows.
fn stream(
    name: &str,
    end: &mut BenchEnd,
    (depth, count): (usize, usize),
    unit: f64,
    mut post: impl FnMut(&mut BenchEnd),
) {
    let mut rates = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        let (mut posted, mut done) = (0, 0);
        let mut out = [Completion::BLANK; 64];
        while done < count {
            while posted < count && posted - done < depth {
                post(end);
                posted += 1;
            }
            let got = end.port.poll(&mut out);
            assert!(out[..got].iter().all(|one| one.status == CompletionStatus::Success));
            done += got;
        }
        rates.push(count as f64 * unit / start.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    println!("{name:40} {:9.2} {:9.2}", rates[8], rates[4]);
}

fn streams(how: &str) {
    let (mut child, mut end) = with(how, "sink");
    let slices = end.slice(8);
    let send = Operation::Send { source: Source::Gather(&slices), immediate: None };
    stream("SEND 8 B, 64 in flight, M/s", &mut end, (64, 50_000), 1e-6, |end| end.post(send, true));
    let to = end.place();
    let flags = WorkFlags { signalled: true, fence: false, awaited: false };
    let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
    let link = end.link;
    for bytes in [8, 1024] {
        let slices = end.slice(bytes);
        let write = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
        let name = format!("WRITE {bytes} B, 128 in flight, M/s");
        stream(&name, &mut end, (128, 50_000), 1e-6, |end| end.post(write, true));
    }
    stream("WRITE 8 B, lists of 32, M/s", &mut end, (4, 2000), 32e-6, |end| {
        let mut list = [Work {
            id: WorkId(1),
            link,
            flags: WorkFlags { signalled: false, ..flags },
            operation,
        }; 32];
        list[31].flags = flags;
        let mut done = 0;
        while done < 32 {
            done += end.port.post(&list[done..]).accepted;
        }
    });
    for (bytes, name, in_flight, count) in
        [(65_536, "64 KiB", 128, 4000), (1 << 20, "1 MiB", 16, 400)]
    {
        let slices = end.slice(bytes);
        let source = Source::Gather(&slices);
        let write = Operation::Write { source, to, immediate: None };
        let read = Operation::Read { into: &slices, from: to };
        let send = Operation::Send { source, immediate: None };
        for (what, operation) in [("WRITE", write), ("READ", read), ("SEND", send)] {
            let (name, unit) = (format!("{what} {name}, GB/s"), f64::from(bytes) * 1e-9);
            stream(&name, &mut end, (in_flight, count), unit, |end| end.post(operation, true));
        }
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let how = match arguments[..] {
        ["serve", how, mode] => return serve(how, mode),
        [how, ..] => how,
        [] => "open",
    };
    let wanted = |what| arguments.get(1).is_none_or(|only| *only == what);
    println!("{:40} {:>9} {:>9} {:>9}", "latency", "mean", "median", "p99");
    if wanted("messages") {
        ping_pong(how);
    }
    if wanted("one-sided") {
        for mode in ["idle", "busy"] {
            one_sided(how, mode);
        }
    }
    if wanted("streams") {
        println!("{:40} {:>9} {:>9}", "streams", "best", "median");
        streams(how);
    }
}
