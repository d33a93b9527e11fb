//! Measurement of one figure of a channel, between this process and its workers.

use super::entry::{Distribution, Entry, Latency, LatencyBaseline, Payload, Stream, Wait, device};
use crate::baseline::Baseline;
use crate::settings::Pattern;
use crate::window::{Figure, measure};
use farside::channel::{Connection, DeviceWords, DuplexOptions, Kind, Options, Receiver, Sender};
use farside_command::failure::Failure;
use farside_command::processors::{Allowed, bind};
use farside_fabric::Fabric;
use farside_launcher::cluster::Cluster;
use farside_launcher::ends::channel::{
    BATCH, Inspection, Reader, STALL, StallWatch, Writer, is_peer_lost, options, reaches_peers,
    window,
};
use farside_launcher::ends::task::DeviceWordsName;
use farside_launcher::ends::task::{Role, Task, reply_name};
use farside_launcher::hosts::Hosts;
use farside_launcher::worker::{Answer, Command};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long connecting may take, and the answer to a call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most single round trips that are timed for the 99th percentile.
const SINGLES_MAX: usize = 20_000;
/// How long single round trips are timed, for each window of the run.
const SINGLES_TIME_PER_WINDOW: Duration = Duration::from_micros(400);

/// The parameters of one figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) message_bytes: u32,
    pub(crate) pattern: Pattern,
    /// Ends on the N side of the pattern.
    pub(crate) peers: u16,
    pub(crate) payload: Payload,
    pub(crate) wait: Wait,
    /// Which words are in memory of the adapter.
    pub(crate) device: DeviceWords,
    /// Bytes that readers prefetch beyond a bell.
    pub(crate) prefetch_bytes: u32,
    /// Whether a histogram of round trips is requested.
    pub(crate) distribution: bool,
}

impl Case {
    /// Returns the plain case of a kind: 8-byte messages between two ends, copied, polling.
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

    /// Returns whether the case is measured as a stream too.
    const fn has_stream(&self) -> bool {
        matches!(self.payload, Payload::Copied | Payload::Seen | Payload::Logged)
    }

    /// Returns what the requesting end inspects of replies.
    const fn inspection(&self) -> Inspection {
        match self.payload {
            Payload::Copied => Inspection::Copied,
            Payload::Unwritten => Inspection::Unwritten,
            Payload::Untouched => Inspection::Untouched,
            Payload::Seen | Payload::Logged => Inspection::Seen,
        }
    }

    /// Returns what the receiver of a stream inspects.
    const fn stream_inspection(&self) -> Inspection {
        match self.payload {
            Payload::Copied | Payload::Unwritten | Payload::Untouched => Inspection::Copied,
            Payload::Seen => Inspection::Seen,
            Payload::Logged => Inspection::Logged,
        }
    }

    fn options(&self, peers: u16) -> Options {
        let usual = options(self.kind, self.message_bytes, peers);
        usual.prefetch_bytes(self.prefetch_bytes).device(self.device)
    }
}

/// The workers and baselines of a run.
pub(crate) struct Measurement {
    hosts: Hosts,
    cluster: Cluster,
    allowed: Allowed,
    windows: u32,
    baselines: BTreeMap<Baseline, Figure>,
    /// Number of the last channel name.
    next: u32,
}

impl Measurement {
    /// Starts the workers and binds this thread to the first processor.
    pub(crate) fn start(hosts: Hosts, workers: usize, windows: u32) -> Result<Self, Failure> {
        let allowed = Allowed::now();
        bind(allowed.processor(0));
        let cluster = Cluster::of_workers(&hosts, workers)?;
        Ok(Self { hosts, cluster, allowed, windows, baselines: BTreeMap::new(), next: 0 })
    }

    /// Returns the baselines that were measured.
    pub(crate) fn baselines(&self) -> impl Iterator<Item = (String, &Figure)> {
        self.baselines.iter().map(|(baseline, figure)| (baseline.name(), figure))
    }

    /// Measures latency and stream of a case, as far as it has them.
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

    /// Measures half of a round trip over two channels of the same kind, one for each direction.
    fn latency(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let role = match case.payload {
            Payload::Copied => Role::Echo,
            Payload::Unwritten => Role::EchoUnwritten,
            Payload::Untouched => Role::EchoUntouched,
            Payload::Seen => Role::EchoSeen,
            Payload::Logged => Role::EchoLogged,
        };
        let (windows, bytes) = (self.windows, case.message_bytes);
        let baseline = self.one_way_baseline(Baseline::Line);
        self.with_workers(case, role, 1, |fabric, _, start| {
            let name = start()?;
            let options = case.options(1);
            let reaches = reaches_peers(&*fabric);
            let sender = Sender::connect(Arc::clone(&fabric), &name, &options)?;
            let receiver = Receiver::connect(fabric, &reply_name(&name), &options)?;
            let mut writer = Writer::new(sender, bytes, 1, case.inspection())?;
            let mut reader = Reader::new(receiver, bytes, case.inspection(), reaches);
            let mut watch = StallWatch::default();
            while writer.sender.peers().min(reader.receiver.peers()) == 0 {
                writer.sender.progress()?;
                reader.receiver.progress()?;
                watch.empty_poll()?;
            }
            let path = reader.receiver.path().join(", ");
            let (latency, iterations, halves_ns) =
                latency(windows, || round_trip(&mut writer, &mut reader))?;
            let trips_ns = halves_ns.iter().map(|ns| 2.0 * ns).collect();
            let distribution = if case.distribution { Distribution::of(trips_ns) } else { None };
            let entry = Entry { path, distribution, ..entry };
            Ok(with_latency(entry, (latency, iterations), &baseline))
        })
    }

    /// Measures a request and its reply between ends that may sleep.
    fn blocking(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let (windows, bytes) = (self.windows, case.message_bytes);
        let baseline = self.one_way_baseline(Baseline::Futex);
        self.with_workers(case, Role::Answer, 1, |fabric, _, start| {
            let name = start()?;
            let both = DuplexOptions::same(case.options(1));
            let mut client = Connection::connect(&fabric, &name, &both)?;
            client.wait(TIMEOUT)?;
            let path = client.receiver.path().join(", ");
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            let (request, mut reply) = (vec![1; length], vec![0; length]);
            let (latency, iterations, _) = latency(windows, || {
                let message = client.call(&request, TIMEOUT)?;
                message.read(0, &mut reply)?;
                client.receiver.release(message);
                Ok(())
            })?;
            Ok(with_latency(Entry { path, ..entry }, (latency, iterations), &baseline))
        })
    }

    /// Measures a stream of one or more senders, counted at the receiver.
    fn fan_in(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let (windows, bytes) = (self.windows, case.message_bytes);
        let single = self.allowed.count() == 1;
        self.with_workers(case, Role::Source, case.peers, |fabric, name, start| {
            let options = case.options(case.peers);
            let reaches = reaches_peers(&*fabric);
            let receiver = Receiver::listen(fabric, name, &options)?;
            start()?;
            let mut reader = Reader::new(receiver, bytes, case.stream_inspection(), reaches);
            reader.receiver.wait_for_peers(usize::from(case.peers), STALL)?;
            let path = first_path(reader.receiver.path());
            let stream = stream(case, windows, |block| {
                let mut watch = StallWatch::default();
                let mut taken = 0;
                while taken < block {
                    let count = reader.take(BATCH)? as u64;
                    if count > 0 {
                        taken += count;
                        watch.reset();
                        continue;
                    }
                    watch.empty_poll()?;
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

    /// Measures a multicast stream; the rate is the total of all receivers.
    fn fan_out(&mut self, case: Case, entry: Entry) -> Result<Entry, Failure> {
        let (windows, bytes) = (self.windows, case.message_bytes);
        let single = self.allowed.count() == 1;
        self.with_workers(case, Role::Sink, case.peers, |fabric, name, start| {
            let options = case.options(case.peers);
            let sender = Sender::listen(fabric, name, &options)?;
            start()?;
            let mut writer = Writer::new(sender, bytes, BATCH, Inspection::Copied)?;
            writer.sender.wait_for_peers(usize::from(case.peers), STALL)?;
            let path = first_path(writer.sender.path());
            let stream = stream(case, windows, |block| {
                let mut watch = StallWatch::default();
                let mut sent = 0;
                while sent < block {
                    let taken = writer.put_batch()?;
                    sent += taken as u64;
                    if taken > 0 {
                        watch.reset();
                    }
                    if taken < BATCH {
                        writer.idle()?;
                        watch.empty_poll()?;
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

    /// Calls `run` with workers at the other ends, and ends them afterwards.
    ///
    /// The arguments of `run` are a fabric, the channel's name and a function that starts the workers. `run`
    /// calls that function once, before or after its own end listens; it returns the address of the channel
    /// if a worker listens.
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
            device_words: DeviceWordsName::of(case.device),
            peers,
            // The processors of other hosts are not known here.
            processor: self.allowed.processor(1 + index % others).filter(|_| self.is_local()),
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
            // The failure at the other end says more than `PeerLost` at this one.
            (Err(first), Err(other)) if is_peer_lost(&first) => Err(other),
            (Err(Failure::Check { text }), Err(other)) => {
                Err(Failure::check(format!("{text}; the other end: {other}")))
            }
            (Err(first), _) => Err(first),
            (Ok(entry), ended) => ended.map(|()| entry),
        }
    }

    /// Opens a fabric for one figure; with it the address at which it listens, if workers are on other hosts.
    fn fabric(&self) -> Result<(Arc<dyn Fabric>, Option<SocketAddr>), Failure> {
        let between = match self.cluster.hosts_of(0) {
            Some((_, local)) => self.hosts.listen(local)?,
            None => None,
        };
        match between {
            Some((fabric, at)) => Ok((fabric, Some(at))),
            None => Ok((farside_command::fabrics::shm()?, None)),
        }
    }

    /// Returns whether the workers run on this machine.
    fn is_local(&self) -> bool {
        self.hosts.shares_files()
    }

    /// Measures a baseline that is a round trip, once a run; returns its name and half of its best.
    fn one_way_baseline(&mut self, baseline: Baseline) -> (String, f64) {
        let (windows, allowed) = (self.windows, &self.allowed);
        let figure =
            self.baselines.entry(baseline).or_insert_with(|| baseline.measure(windows, allowed));
        (format!("{}, half", baseline.name()), figure.best_ns / 2.0)
    }

    fn cores(&self, peers: u16) -> String {
        if !self.is_local() {
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

/// Sends commands to workers and waits for all answers.
fn all(cluster: &mut Cluster, commands: Vec<(usize, Command)>) -> Result<(), Failure> {
    let answers = cluster.ask_all(commands, |_| {})?;
    answers.into_iter().try_for_each(|answer| answer.map(|_| ()))
}

/// Returns the address of a name at a fabric between hosts, or the name itself on this machine.
fn address(at: Option<SocketAddr>, name: &str) -> String {
    at.map_or_else(|| name.to_owned(), |at| format!("{at}/{name}"))
}

fn first_path(paths: Vec<String>) -> String {
    paths.into_iter().next().unwrap_or_default()
}

#[inline]
fn round_trip(writer: &mut Writer, reader: &mut Reader) -> Result<(), Failure> {
    let mut watch = StallWatch::default();
    while !writer.put()? {
        writer.idle()?;
        watch.empty_poll()?;
    }
    while reader.take(1)? == 0 {
        writer.idle()?;
        watch.empty_poll()?;
    }
    Ok(())
}

/// Measures half of a round trip, first in windows, then one by one for the percentile. Returns the latency, the
/// number of round trips in windows, and the sorted single latencies in ns.
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

fn with_latency(entry: Entry, latency: (Latency, u64), baseline: &(String, f64)) -> Entry {
    let (latency, iterations) = latency;
    let (name, best_ns) = baseline.clone();
    let baseline = Some(LatencyBaseline { name, best_ns, ratio: latency.best / best_ns });
    Entry { latency_ns: Some(latency), iterations, baseline, ..entry }
}

/// Measures a stream in windows of several times the messages that can be in flight. `run(count)` transfers at
/// least `count` messages and returns their number.
fn stream(
    case: Case,
    windows: u32,
    mut run: impl FnMut(u64) -> Result<u64, Failure>,
) -> Result<Stream, Failure> {
    let block = u64::from(window(case.message_bytes).max(u32::from(case.peers))) * 8;
    let mut surplus = 0;
    let figure = measure(windows, |blocks| {
        // Messages beyond the last block count for this one.
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
    fn stream_counts_every_message_once() {
        let case = Case { message_bytes: 64, ..Case::plain(Kind::RingInlined) };
        let (mut total, mut asked) = (0, 0);
        let measured = stream(case, 8, |wanted| {
            asked += wanted;
            let moved = wanted + 7;
            total += moved;
            Ok(moved)
        });
        assert!(measured.is_ok());
        assert!(total - asked >= 7 && asked % 8 != 0, "the surplus is not requested again");
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
