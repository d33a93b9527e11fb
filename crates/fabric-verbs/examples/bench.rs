//! Latency and bandwidth of the verbs fabric between two processes of this machine, for comparing with
//! perftest on the same device: `bench [ROUNDS]`. A second process, started by the first, serves.
//!
//! Latencies are from post to completion (`write`, `read`, `fetch_add`) or half of a round trip (`write
//! there and back` as ib_write_lat, `send there and back` as ib_send_lat), in microseconds.

#![allow(clippy::print_stdout, reason = "a program for people's terminals")]

use farside_base::{
    Access, AtomicScope, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Receive,
    ReceiveQueueId, RegionKind, RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags,
    WorkId,
};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use farside_fabric_verbs::{Options, VerbsFabric};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

const BYTES: u64 = 1 << 22;
/// The offset at which each side writes the number of the round for the other.
const HERE: u64 = 0;
/// The offset of the bytes that are sent and received.
const BULK: u64 = 1 << 20;

struct BenchEnd {
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    region: Region,
    link: LinkId,
    peer: RemoteRegionId,
    fabric: VerbsFabric,
}

fn end(listen: Option<&str>) -> Outcome<(VerbsFabric, Box<dyn Port>, ReceiveQueueId, Region)> {
    let mut options = Options::new(Security::open());
    if listen.is_some() {
        options.listen = Some("127.0.0.1:0".parse::<Endpoint>()?);
    }
    options.plain_posting = std::env::var_os("FARSIDE_VERBS_PLAIN").is_some();
    let fabric = VerbsFabric::open(options)?;
    let mut port = fabric.open(&PortSpec { listen: listen.map(str::to_owned) })?;
    let queue = port.create_receive_queue(64)?;
    let spec = RegionSpec { bytes: BYTES, access: Access::ALL, kind: RegionKind::Memory };
    let region = fabric.register(&spec)?;
    Ok((fabric, port, queue, region))
}

fn event(port: &mut dyn Port) -> LinkEvent {
    let mut events = Vec::new();
    loop {
        port.link_events(&mut events);
        if let Some(event) = events.pop() {
            return event;
        }
        std::thread::yield_now();
    }
}

fn token(bytes: &[u8]) -> Outcome<RegionToken> {
    let bytes: &[u8; RegionToken::ENCODED] = bytes.try_into()?;
    RegionToken::decode(bytes).ok_or_else(|| "no token".into())
}

impl BenchEnd {
    fn slice(&self, offset: u64, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region.id, offset, bytes }
    }

    fn at(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { region: self.peer, offset }
    }

    fn post(&mut self, operation: Operation<'_>, signalled: bool) {
        let flags = WorkFlags { signalled, ..WorkFlags::default() };
        let work = [Work { id: WorkId(1), link: self.link, flags, operation }];
        while self.port.post(&work).accepted == 0 {
            std::hint::spin_loop();
        }
    }

    fn completions(&mut self, count: usize) -> Outcome<()> {
        let mut out = [Completion::BLANK; 16];
        let mut left = count;
        while left > 0 {
            let most = left.min(16);
            let count = self.port.poll(&mut out[..most]);
            for done in &out[..count] {
                if done.status != CompletionStatus::Success {
                    let words = self.port.trouble(self.link);
                    return Err(format!("{done:?}: {}", words.unwrap_or_default()).into());
                }
                left -= 1;
            }
        }
        Ok(())
    }

    fn receive(&mut self) {
        let into = self.slice(64, 64);
        let posted = self.port.post_receives(&[Receive { id: WorkId(2), queue: self.queue, into }]);
        assert_eq!(posted.accepted, 1, "room for a receive");
    }

    fn write_round(&mut self, round: u64) {
        let bytes = round.to_le_bytes();
        let inline = self.fabric.capabilities().inline_bytes_max >= 8;
        let slices = [self.slice(128, 8)];
        let source = if inline {
            Source::Inline(&bytes)
        } else {
            // Within the region, which is larger.
            let _ = self.region.arena.store(128, round, Ordering::Release);
            Source::Gather(&slices)
        };
        let to = self.at(HERE);
        self.post(Operation::Write { source, to, immediate: None }, false);
    }

    fn await_round(&mut self, round: u64) {
        let mut none = [Completion::BLANK; 4];
        while self.region.arena.load(HERE, Ordering::Acquire) != Ok(round) {
            self.port.poll(&mut none);
        }
    }
}

fn serve(rounds: u64) -> Outcome<()> {
    let (fabric, mut port, queue, region) = end(Some("bench"))?;
    println!("{}", port.address().ok_or("no address")?);
    let LinkEvent::Requested { link, hello } = event(&mut *port) else {
        return Err("no request".into());
    };
    port.accept(link, &region.token.encode(), queue)?;
    let peer = port.import(link, &token(&hello)?)?;
    let mut end = BenchEnd { port, queue, region, link, peer, fabric };
    for _ in 0..16 {
        end.receive();
    }
    for round in 1..=rounds {
        end.await_round(round);
        end.write_round(round);
    }
    for _ in 0..rounds {
        end.completions(1)?;
        end.receive();
        let slices = [end.slice(256, 8)];
        let source = Source::Gather(&slices);
        end.post(Operation::Send { source, immediate: None }, false);
    }
    // Everything else is one-sided: this process sleeps until the other has ended.
    let (waiter, mut events) = (end.port.waiter(), Vec::new());
    while events.is_empty() {
        if !end.port.arm() {
            waiter.wait(None);
        }
        end.port.disarm();
        end.port.poll(&mut [Completion::BLANK; 4]);
        end.port.link_events(&mut events);
    }
    if let Some(words) = end.port.trouble(end.link).filter(|words| !words.contains("has ended")) {
        return Err(words.into());
    }
    Ok(())
}

fn show(name: &str, mut times: Vec<u64>, parts: f64) {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] as f64 / 1000.0 / parts;
    println!("{name:<24} p50 {:>9.2}  p99 {:>9.2}  min {:>9.2}", at(0.5), at(0.99), at(0.0));
}

fn timed(rounds: u64, mut round: impl FnMut(u64) -> Outcome<()>) -> Outcome<Vec<u64>> {
    let mut times = Vec::with_capacity(rounds as usize);
    for at in 1..=rounds {
        let start = Instant::now();
        round(at)?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

fn measure(end: &mut BenchEnd, rounds: u64) -> Outcome<()> {
    let times = timed(rounds, |round| {
        end.write_round(round);
        end.await_round(round);
        Ok(())
    })?;
    show("write there and back 8 B", times, 2.0);
    for _ in 0..16 {
        end.receive();
    }
    let times = timed(rounds, |_| {
        let slices = [end.slice(256, 8)];
        end.post(Operation::Send { source: Source::Gather(&slices), immediate: None }, false);
        end.completions(1)?;
        end.receive();
        Ok(())
    })?;
    show("send there and back 8 B", times, 2.0);
    let slices = [end.slice(512, 8)];
    let (to, into) = (end.at(1024), end.slice(512, 8));
    let source = Source::Gather(&slices);
    let mut list = vec![
        ("write 8 B", Operation::Write { source, to, immediate: None }),
        ("read 8 B", Operation::Read { into: &slices, from: to }),
    ];
    if end.fabric.capabilities().atomics > AtomicScope::None {
        list.push(("fetch_add", Operation::FetchAdd { at: to, add: 1, into }));
    }
    for (name, operation) in list {
        let times = timed(rounds, |_| {
            end.post(operation, true);
            end.completions(1)
        })?;
        show(name, times, 1.0);
    }
    for bytes in [4096_u32, 65_536, 1 << 20] {
        let count = (rounds / 4).max(16);
        let slices = [end.slice(BULK, bytes)];
        let (to, source) = (end.at(BULK), Source::Gather(&slices));
        let start = Instant::now();
        let mut in_flight = 0;
        for _ in 0..count {
            end.post(Operation::Write { source, to, immediate: None }, true);
            in_flight += 1;
            if in_flight == 16 {
                end.completions(8)?;
                in_flight -= 8;
            }
        }
        end.completions(in_flight)?;
        let rate = count as f64 * f64::from(bytes) / start.elapsed().as_secs_f64() / 1e6;
        println!("write {bytes:>8} B, 16 deep  {rate:>9.1} MB/s");
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let rounds = |at: usize| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(2000);
    if arguments.get(1).is_some_and(|word| word == "serve") {
        return serve(rounds(2));
    }
    let rounds: u64 = rounds(1);
    let mut server = Command::new(std::env::current_exe()?)
        .args(["serve", &rounds.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    if address.trim().is_empty() {
        return Err("the serving side did not start; it says above why".into());
    }
    let (fabric, mut port, queue, region) = end(None)?;
    let link = port.connect(address.trim(), &region.token.encode(), queue)?;
    let reply = match event(&mut *port) {
        LinkEvent::Connected { reply, .. } => reply,
        other => return Err(format!("{other:?}").into()),
    };
    let peer = port.import(link, &token(&reply)?)?;
    println!("{}", port.path(link));
    let mut end = BenchEnd { port, queue, region, link, peer, fabric };
    measure(&mut end, rounds)?;
    end.port.close(link);
    server.wait()?;
    Ok(())
}
