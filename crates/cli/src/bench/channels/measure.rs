//! One figure of a channel between this process and its workers.

use super::ends::{BATCH, Look, Reader, STALL, Watch, Writer, options, reaches_peers, window};
use super::entry::{Beside, Distribution, Entry, Latency, Payload, Stream, Wait, device};
use super::serve::{Role, Task, back};
use crate::arguments::{DeviceName, Pattern};
use crate::bench::baseline::Baseline;
use crate::bench::core::Allowed;
use crate::bench::window::{Figure, measure};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::worker::{Answer, Command};
use farside::channel::{Connection, DeviceWords, DuplexOptions, Kind, Options, Receiver, Sender};
use farside_fabric::Fabric;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long ends may take to find each other, and a call to be answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// Single round trips that are timed for the 99th percentile, at most, and for how long.
const SINGLES_MAX: usize = 20_000;
const SINGLES_TIME_PER_WINDOW: Duration = Duration::from_micros(400);

/// What one figure is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) message_bytes: u32,
    pub(crate) pattern: Pattern,
    /// Ends on the side of many.
    pub(crate) peers: u16,
    pub(crate) payload: Payload,
    pub(crate) wait: Wait,
    /// Which words are at the adapter.
    pub(crate) device: DeviceWords,
    /// What readers fetch beyond a bell.
    pub(crate) prefetch_bytes: u32,
    /// Every round trip is asked for.
    pub(crate) distribution: bool,
}

impl Case {
    /// One message of eight bytes after the other between two ends, without anything special.
    pub(crate) const fn plain(kind: Kind) -> Self {
        Self {
            kind,
            message_bytes: 8,
            pattern: Pattern::OneToOne,
            peers: 1,
            payload: Payload::Copied,
            wait: Wait::Spin,
            device: DeviceWords::Nothing,
            prefetch_bytes: 0,
            distribution: false,
        }
    }

    /// Whether it is measured as a stream too.
    const fn has_stream(&self) -> bool {
        matches!(self.payload, Payload::Copied | Payload::Seen | Payload::Logged)
    }

    /// What the end that asks looks at.
    const fn look(&self) -> Look {
        match self.payload {
            Payload::Copied => Look::All,
            Payload::Unwritten => Look::Again,
            Payload::Untouched => Look::Edges,
            Payload::Seen | Payload::Logged => Look::Seen,
        }
    }

    /// What the receiver of a stream looks at.
    const fn sink(&self) -> Look {
        match self.payload {
            Payload::Copied | Payload::Unwritten | Payload::Untouched => Look::All,
            Payload::Seen => Look::Seen,
            Payload::Logged => Look::Log,
        }
    }

    fn options(&self, peers: u16) -> Options {
        let usual = options(self.kind, self.message_bytes, peers);
        usual.prefetch_bytes(self.prefetch_bytes).device(self.device)
    }
}

/// This process, its workers and the yardsticks of the run.
pub(crate) struct Measurement {
    hosts: Hosts,
    cluster: Cluster,
    allowed: Allowed,
    windows: u32,
    baselines: BTreeMap<Baseline, Figure>,
    /// Numbers the names that channels are listened at.
    next: u32,
}

impl Measurement {
    /// Starts the workers. This thread is bound to the first processor.
    pub(crate) fn start(hosts: Hosts, workers: usize, windows: u32) -> Result<Self, Failure> {
        let allowed = Allowed::now();
        crate::bench::bind(allowed.processor(0));
        let cluster = Cluster::of_workers(&hosts, workers)?;
        Ok(Self { hosts, cluster, allowed, windows, baselines: BTreeMap::new(), next: 0 })
    }

    /// The yardsticks that were used.
    pub(crate) fn baselines(&self) -> impl Iterator<Item = (String, &Figure)> {
        self.baselines.iter().map(|(baseline, figure)| (baseline.name(), figure))
    }

    /// Measures everything of a case.
    pub(crate) fn run(&mut self, case: Case) -> Result<Entry, Failure> {
        let empty = Entry {
            payload: case.payload,
            wait: case.wait,
            device: device(case.device),
            prefetch_bytes: case.prefetch_bytes,
            ..Entry::new(case.kind, case.message_bytes, case.pattern, case.peers)
        };
        let mut entry = match (case.pattern, case.wait) {
            (Pattern::OneToOne, Wait::Block) => self.blocking(case, empty)?,
            (Pattern::OneToOne, Wait::Spin) if case.has_stream() => {
                let entry = self.latency(case, empty)?;
                self.fan_in(case, entry)?
            }
            (Pattern::OneToOne, Wait::Spin) => self.latency(case, empty)?,
            (Pattern::ManyToOne, _) => self.fan_in(case, empty)?,
            (Pattern::OneToMany, _) => self.fan_out(case, empty)?,
        };
        entry.cores = self.cores(case.peers);
        Ok(entry)
    }

    /// Half of a round trip, over the same channel both ways.
    fn latency(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let role = match case.payload {
            Payload::Copied => Role::Echo,
            Payload::Unwritten => Role::EchoUnwritten,
            Payload::Untouched => Role::EchoUntouched,
            Payload::Seen => Role::EchoSeen,
            Payload::Logged => Role::EchoLogged,
        };
        let (windows, bytes) = (self.windows, case.message_bytes);
        let beside = self.beside(Baseline::Line);
        self.with_workers(case, role, 1, |fabric, _, start| {
            let name = start()?;
            let options = case.options(1);
            let reaches = reaches_peers(&*fabric);
            let sender = Sender::connect(Arc::clone(&fabric), &name, &options)?;
            let receiver = Receiver::connect(fabric, &back(&name), &options)?;
            let mut writer = Writer::new(sender, bytes, 1, case.look())?;
            let mut reader = Reader::new(receiver, bytes, case.look(), reaches);
            let mut watch = Watch::default();
            while writer.sender.peers().min(reader.receiver.peers()) == 0 {
                writer.sender.progress()?;
                reader.receiver.progress()?;
                watch.look()?;
            }
            let path = reader.receiver.path().join(", ");
            let (latency, iterations, halves_ns) =
                latency(windows, || round_trip(&mut writer, &mut reader))?;
            let trips_ns = halves_ns.iter().map(|ns| 2.0 * ns).collect();
            let distribution = if case.distribution { Distribution::of(trips_ns) } else { None };
            let entry = Entry { path, distribution, ..entry };
            Ok(with_latency(entry, (latency, iterations), &beside))
        })
    }

    /// A request and its reply between ends that may sleep.
    fn blocking(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let (windows, bytes) = (self.windows, case.message_bytes);
        let beside = self.beside(Baseline::Futex);
        self.with_workers(case, Role::Answer, 1, |fabric, _, start| {
            let name = start()?;
            let both = DuplexOptions::same(case.options(1));
            let mut client = Connection::connect(&fabric, &name, &both)?;
            client.wait(PATIENCE)?;
            let path = client.receiver.path().join(", ");
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            let (request, mut reply) = (vec![1; length], vec![0; length]);
            let (latency, iterations, _) = latency(windows, || {
                let message = client.call(&request, PATIENCE)?;
                message.read(0, &mut reply)?;
                client.receiver.release(message);
                Ok(())
            })?;
            Ok(with_latency(Entry { path, ..entry }, (latency, iterations), &beside))
        })
    }

    /// A stream of one sender or many, counted where it arrives.
    fn fan_in(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let (windows, bytes) = (self.windows, case.message_bytes);
        let single = self.allowed.count() == 1;
        self.with_workers(case, Role::Source, case.peers, |fabric, name, start| {
            let options = case.options(case.peers);
            let reaches = reaches_peers(&*fabric);
            let receiver = Receiver::listen(fabric, name, &options)?;
            start()?;
            let mut reader = Reader::new(receiver, bytes, case.sink(), reaches);
            reader.receiver.wait_for_peers(usize::from(case.peers), STALL)?;
            let path = first_path(reader.receiver.path());
            let stream = stream(case, windows, |block| {
                let mut watch = Watch::default();
                let mut taken = 0;
                while taken < block {
                    let some = reader.take(BATCH)? as u64;
                    if some > 0 {
                        taken += some;
                        watch.moved();
                        continue;
                    }
                    watch.look()?;
                    if single {
                        std::thread::yield_now();
                    }
                }
                Ok(taken)
            })?;
            let path = if entry.path.is_empty() { path } else { entry.path.clone() };
            Ok(Entry { path, ..entry }.with_stream(stream))
        })
    }

    /// A stream to many receivers, of which each gets every message; all receivers together.
    fn fan_out(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let (windows, bytes) = (self.windows, case.message_bytes);
        let single = self.allowed.count() == 1;
        self.with_workers(case, Role::Sink, case.peers, |fabric, name, start| {
            let options = case.options(case.peers);
            let sender = Sender::listen(fabric, name, &options)?;
            start()?;
            let mut writer = Writer::new(sender, bytes, BATCH, Look::All)?;
            writer.sender.wait_for_peers(usize::from(case.peers), STALL)?;
            let path = first_path(writer.sender.path());
            let stream = stream(case, windows, |block| {
                let mut watch = Watch::default();
                let mut sent = 0;
                while sent < block {
                    let taken = writer.put_batch()?;
                    sent += taken as u64;
                    if taken > 0 {
                        watch.moved();
                    }
                    if taken < BATCH {
                        writer.idle()?;
                        watch.look()?;
                        if single {
                            std::thread::yield_now();
                        }
                    }
                }
                Ok(sent)
            })?;
            Ok(Entry { path, ..entry }.with_stream(stream.times(case.peers)))
        })
    }

    /// Does `run` with workers at the other ends. It is given a fabric, the channel's name there and what
    /// starts the workers, to be called once, before or after this end listens; that gives the address of
    /// a channel that is listened at by a worker.
    fn with_workers(
        &mut self,
        case: Case,
        role: Role,
        peers: u16,
        run: impl FnOnce(
            Arc<dyn Fabric>,
            &str,
            &mut dyn FnMut() -> Result<String, Failure>,
        ) -> Result<Entry, Failure>,
    ) -> Result<Entry, Failure> {
        let (fabric, at) = self.fabric()?;
        self.next += 1;
        let name = format!("bench-{}-{}", std::process::id(), self.next);
        let others = self.allowed.count().saturating_sub(1).max(1);
        let shares = self.allowed.count() == 1 || usize::from(peers) > others;
        let task = |index: usize| Task {
            role,
            name: if role.listens() { name.clone() } else { address(at, &name) },
            host: self.cluster.hosts_of(index).and_then(|(host, _)| self.hosts.spec(host, &[])),
            channel: case.kind.name().to_owned(),
            message_bytes: case.message_bytes,
            prefetch_bytes: case.prefetch_bytes,
            device_words: DeviceName::of(case.device),
            peers,
            // Which processors other hosts have is theirs to know.
            processor: self.allowed.processor(1 + index % others).filter(|_| self.is_of_machine()),
            shares,
        };
        let tasks: Vec<_> =
            (0..usize::from(peers)).map(|index| (index, Command::Channel(task(index)))).collect();
        let cluster = &mut self.cluster;
        let measured = run(fabric, &name, &mut || {
            let answers = cluster.ask_all(tasks.clone(), |_| {})?;
            let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
            let listens = answers.iter().find_map(|answer| match answer {
                Answer::Listens(at) => *at,
                _ => None,
            });
            Ok(address(listens, &name))
        });
        let ended = all(
            &mut self.cluster,
            (0..usize::from(peers)).map(|index| (index, Command::EndChannel)).collect(),
        );
        match (measured, ended) {
            (_, Err(Failure::Interrupted)) => Err(Failure::Interrupted),
            // What happened to the other end tells more than that it is gone.
            (Err(first), Err(other)) if super::ends::is_end(&first) => Err(other),
            (Err(Failure::Check { text }), Err(other)) => {
                Err(Failure::check(format!("{text}; the other end: {other}")))
            }
            (Err(first), _) => Err(first),
            (Ok(entry), ended) => ended.map(|()| entry),
        }
    }

    /// A fabric for one figure, and where it listens if that is of use to others than this machine.
    fn fabric(&self) -> Result<(Arc<dyn Fabric>, Option<SocketAddr>), Failure> {
        let between = match self.cluster.hosts_of(0) {
            Some((_, here)) => self.hosts.listen(here)?,
            None => None,
        };
        match between {
            Some((fabric, at)) => Ok((fabric, Some(at))),
            None => Ok((crate::fabrics::shm()?.into(), None)),
        }
    }

    /// Whether the workers run on this machine.
    fn is_of_machine(&self) -> bool {
        self.hosts.shares_files()
    }

    /// One way of a yardstick that goes both ways.
    fn beside(&mut self, baseline: Baseline) -> (String, f64) {
        let (windows, allowed) = (self.windows, &self.allowed);
        let figure =
            self.baselines.entry(baseline).or_insert_with(|| baseline.measure(windows, allowed));
        (format!("{}, half", baseline.name()), figure.best_ns / 2.0)
    }

    fn cores(&self, peers: u16) -> String {
        if !self.is_of_machine() {
            return "ends on several hosts".to_owned();
        }
        let others = self.allowed.count() - 1;
        match (others, peers) {
            (0, _) => "all ends share one processor".to_owned(),
            (_, 1) => "a processor for each end".to_owned(),
            (1, many) => format!("the {many} ends share a processor"),
            (others, many) if usize::from(many) > others => {
                format!("the {many} ends share {others} processors")
            }
            _ => "a processor for each end".to_owned(),
        }
    }
}

/// Asks workers and waits for all of them.
fn all(cluster: &mut Cluster, commands: Vec<(usize, Command)>) -> Result<(), Failure> {
    let answers = cluster.ask_all(commands, |_| {})?;
    answers.into_iter().try_for_each(|answer| answer.map(|_| ()))
}

/// The address of a name, at that fabric or on this machine.
fn address(at: Option<SocketAddr>, name: &str) -> String {
    at.map_or_else(|| name.to_owned(), |at| format!("{at}/{name}"))
}

fn first_path(paths: Vec<String>) -> String {
    paths.into_iter().next().unwrap_or_default()
}

#[inline]
fn round_trip(writer: &mut Writer, reader: &mut Reader) -> Result<(), Failure> {
    let mut watch = Watch::default();
    while !writer.put()? {
        writer.idle()?;
        watch.look()?;
    }
    while reader.take(1)? == 0 {
        writer.idle()?;
        watch.look()?;
    }
    Ok(())
}

/// Half of a round trip: in windows, then one by one for the percentile. Gives the latency, how many
/// there were in the windows, and the single ones by their time.
fn latency(
    windows: u32,
    mut round_trip: impl FnMut() -> Result<(), Failure>,
) -> Result<(Latency, u64, Vec<f64>), Failure> {
    let figure = measure(windows, |count| (0..count).try_for_each(|_| round_trip()))?.per(2.0);
    let end = Instant::now() + SINGLES_TIME_PER_WINDOW * windows;
    let mut singles = Vec::with_capacity(SINGLES_MAX);
    while singles.len() < SINGLES_MAX {
        let start = Instant::now();
        round_trip()?;
        let now = Instant::now();
        singles.push((now - start).as_nanos() as f64 / 2.0);
        if now > end && singles.len() >= 100 {
            break;
        }
    }
    singles.sort_by(f64::total_cmp);
    let p99 = singles[(singles.len() * 99 / 100).min(singles.len() - 1)];
    let latency = Latency { best: figure.best_ns, median: figure.median_ns, p99 };
    Ok((latency, figure.operations * u64::from(figure.windows), singles))
}

fn with_latency(entry: Entry, latency: (Latency, u64), beside: &(String, f64)) -> Entry {
    let (latency, iterations) = latency;
    let (name, best_ns) = beside.clone();
    let baseline = Some(Beside { name, best_ns, ratio: latency.best / best_ns });
    Entry { latency_ns: Some(latency), iterations, baseline, ..entry }
}

/// Measures a stream in windows of several times what is on its way at most. `run` moves at least so
/// many messages and tells how many.
fn stream(
    case: Case,
    windows: u32,
    mut run: impl FnMut(u64) -> Result<u64, Failure>,
) -> Result<Stream, Failure> {
    let block = u64::from(window(case.message_bytes).max(u32::from(case.peers))) * 8;
    let mut surplus = 0;
    let figure = measure(windows, |blocks| {
        // What was moved beyond the last block counts for this one.
        let wanted = (block * blocks).saturating_sub(surplus);
        surplus = run(wanted)? + surplus - block * blocks;
        Ok::<_, Failure>(())
    })?;
    let each = figure.per(block as f64);
    let messages = figure.operations * u64::from(figure.windows) * block;
    Ok(Stream { messages, ..Stream::of(&each) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_counts_every_message_once() {
        let case = Case { message_bytes: 64, ..Case::plain(Kind::RingInlined) };
        let (mut total, mut asked) = (0, 0);
        let measured = stream(case, 8, |wanted| {
            asked += wanted;
            let moved = wanted + 7;
            total += moved;
            Ok(moved)
        });
        assert!(measured.is_ok());
        assert!(total - asked >= 7 && asked % 8 != 0, "the surplus is asked for no more");
    }

    #[test]
    fn latency_is_half_of_a_round_trip() {
        let mut count = 0_u64;
        let (latency, iterations, singles) = latency(8, || {
            count += 1;
            let end = Instant::now() + Duration::from_micros(4);
            while Instant::now() < end {}
            Ok(())
        })
        .unwrap();
        assert!(latency.best >= 2_000.0 && latency.best <= latency.median, "{latency:?}");
        assert!(latency.p99 >= 2_000.0 && count > iterations && singles.len() >= 100);
    }
}
