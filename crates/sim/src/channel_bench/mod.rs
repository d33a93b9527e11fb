//! Latency and throughput of the data channels in virtual time, as in 001 §6: the real facade over the simulated fabric
//! with a hardware profile.
//!
//! | pattern | ends | measurement |
//! | --- | --- | --- |
//! | [`Pattern::PingPong`] of channels between two ends | both ends have the same channel in both directions, and the second answers each message with one of its size | from the call of `send` until the answer has been received and released |
//! | [`Pattern::PingPong`] of shared rings and read rings | the receiver "only acknowledges it by sharing the tail of the ring" (001 §6.1) | until the sender knows that tail |
//! | [`Pattern::Stream`] | one sender, one receiver | messages released per time |
//! | [`Pattern::ManyToOne`] | clients on one node, as in 001 §6 on one machine; one receiver | messages released at the receiver per time |
//! | [`Pattern::OneToMany`] | one sender; readers on one node | messages released at all readers together per time |
//!
//! Each end is one polling thread on a separate core, an actor of an [`ActorNetwork`]: its calls of ports are charged
//! as the fabric counts them, other work by the table in `charges.rs`. Between two round trips of a ping-pong the
//! first end pauses for a time drawn from the seed, so that polls by READ happen at any phase of a message.
//!
//! A message that fits into its request is sent inline; a message of a channel that copies it anyway is sent as bytes
//! too. Longer ones are sent from registered memory, without a copy. Receivers read the first line of a message and
//! copy nothing, unless [`BenchRequest::copies_out`].
//!
//! Not modelled: sleeping threads, and what [`stage`](crate::stage) and [`HardwareProfile`] exclude.

mod actors;
mod charges;
mod document;
mod findings;
mod scene;

use crate::fabric::{
    CONNECTX5_ROCE, EPYC_7742, HardwareProfile, INFINIBAND, ProcessorCosts, ProgramCounts,
};
use crate::stage::{ActorNetwork, Stopped};
use actors::{Score, Scores};
use farside::channel::{DeviceWords, Family, Kind};
use farside::{Error, ErrorCode};
use farside_base::Capabilities;
use std::cell::RefCell;
use std::rc::Rc;

pub use document::document;
pub use findings::{FINDINGS, Figure, Finding};

/// Two machines and the network between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelCluster {
    /// Its name for tables.
    pub name: &'static str,
    /// Capabilities that the fabric declares.
    pub capabilities: Capabilities,
    /// Costs of adapters and wires.
    pub hardware: HardwareProfile,
    /// Costs of a core.
    pub costs: ProcessorCosts,
}

/// The cluster of 001 §6.
pub const CONNECTX5: ChannelCluster = ChannelCluster {
    name: "connectx5",
    capabilities: INFINIBAND,
    hardware: CONNECTX5_ROCE,
    costs: EPYC_7742,
};

/// The numbers of senders and receivers of a study, and its measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// One message at a time, and an answer.
    PingPong,
    /// As many outstanding messages as permitted.
    Stream,
    /// A stream with this number of senders.
    ManyToOne(u16),
    /// A stream with this number of receivers.
    OneToMany(u16),
}

impl Pattern {
    /// Returns the numbers of senders and receivers.
    const fn ends(self) -> (u16, u16) {
        match self {
            Self::PingPong | Self::Stream => (1, 1),
            Self::ManyToOne(senders) => (senders, 1),
            Self::OneToMany(receivers) => (1, receivers),
        }
    }
}

/// Parameters of a measurement. Start from [`BenchRequest::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BenchRequest {
    /// The channel.
    pub kind: Kind,
    /// Bytes of each message; always four for the bufferless channel.
    pub message_bytes: u32,
    /// The pattern of senders and receivers.
    pub pattern: Pattern,
    /// Number of measured messages, after a warm-up of an eighth as many: round trips of a ping-pong, otherwise
    /// messages released by all receivers together.
    pub messages: u32,
    /// Maximum number of outstanding messages of a sender, or of messages in a read ring; `None`: 64, for shared
    /// rings 16 as in 001 §6.3.
    pub outstanding: Option<u32>,
    /// The words that are in memory at the adapter.
    pub device: DeviceWords,
    /// Number of bytes that a reader of `read-ring-inlined` fetches beyond a bell.
    pub prefetch_bytes: u32,
    /// Whether the receiver copies each message into a log, as in 001 figure 4; in a ping-pong, the answering end.
    pub copies_out: bool,
    /// Seed of the pauses of a ping-pong.
    pub seed: u64,
}

impl BenchRequest {
    /// Creates parameters with a thousand messages, bells in main memory, no prefetching, no copies.
    pub const fn new(kind: Kind, message_bytes: u32, pattern: Pattern) -> Self {
        Self {
            kind,
            message_bytes,
            pattern,
            messages: 1_000,
            outstanding: None,
            device: DeviceWords::Nothing,
            prefetch_bytes: 0,
            copies_out: false,
            seed: 1,
        }
    }

    const fn bytes(&self) -> u32 {
        match self.kind {
            Kind::SendBufferless => 4,
            _ => self.message_bytes,
        }
    }

    fn outstanding(&self) -> u32 {
        let fit = if self.kind.family() == Family::SharedRing { 16 } else { 64 };
        self.outstanding.unwrap_or(fit)
    }
}

/// Statistics of measured times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// The minimum.
    pub best_ns: u64,
    /// The median.
    pub median_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
}

/// Results of a measurement. Equal for equal requests on equal clusters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BenchEntry {
    /// The parameters.
    pub request: BenchRequest,
    /// Bytes of each message.
    pub message_bytes: u32,
    /// Round trip time of a ping-pong; half of it is called latency.
    pub round_trip: Option<Times>,
    /// One-way time of a ping-pong: from the call of `send` until the receiver's poll that finds the message. All
    /// ends have the same clock.
    pub one_way: Option<Times>,
    /// Rate of messages that receivers released; round trips of a ping-pong, without pauses.
    pub messages_per_second: f64,
    /// The same rate in bytes of messages.
    pub bytes_per_second: f64,
    /// Number of requests that senders posted, per message of the channel that a receiver released.
    pub sender_requests: f64,
    /// Number of requests that receivers posted, per such message.
    pub receiver_requests: f64,
    /// Number of receives that receivers posted, per such message.
    pub receives: f64,
}

impl BenchEntry {
    /// Returns half of the median round trip.
    pub fn latency_ns(&self) -> Option<f64> {
        self.round_trip.map(|trip| trip.median_ns as f64 / 2.0)
    }
}

/// Performs a measurement.
///
/// # Errors
/// The error of the channel: `FabricLacks`, `BadConfiguration` and so on; `TimedOut` if messages stop arriving.
pub fn measure(request: &BenchRequest, cluster: &ChannelCluster) -> Result<BenchEntry, Error> {
    measure_each(request, cluster).map(|(entry, _)| entry)
}

/// Performs a measurement, and also returns every round trip of a ping-pong in ns, in order.
///
/// # Errors
/// As [`measure`].
pub fn measure_each(
    request: &BenchRequest,
    cluster: &ChannelCluster,
) -> Result<(BenchEntry, Vec<u64>), Error> {
    let scores: Scores = Rc::new(RefCell::new(Score::new(request)));
    let scene = scene::ChannelScene::new(request, cluster)?;
    let net = scene.net.clone();
    let mut stage = ActorNetwork::new(&net, cluster.costs);
    scene.play(request, cluster, &scores, &mut stage)?;
    let mut began = false;
    let end_ns = net.now_ns() + END_NS;
    let stopped = stage.run_until(end_ns, |_| {
        let score = scores.borrow();
        if !began && score.has_begun() {
            began = true;
            scene::take_counts(&net);
        }
        score.is_over()
    });
    let counts = scene::take_counts(&net);
    drop(stage);
    let score = Rc::try_unwrap(scores).map(RefCell::into_inner).unwrap_or_else(|all| all.take());
    if let Some(error) = score.error {
        return Err(error);
    }
    if stopped != Stopped::Condition {
        let text = format!("{}: {stopped:?} after {} messages", request.kind, score.received);
        return Err(Error::with(ErrorCode::TimedOut, text));
    }
    Ok((entry(request, &score, &counts), score.trips_ns))
}

/// Maximum virtual time of a study.
const END_NS: u64 = 10_000_000_000;

fn entry(request: &BenchRequest, score: &Score, counts: &[ProgramCounts; 2]) -> BenchEntry {
    let message_bytes = request.bytes();
    let (round_trip, one_way) = (times(&score.trips_ns), times(&score.one_way_ns));
    let (messages, elapsed_ns) = match round_trip {
        Some(_) => (score.trips_ns.len() as u64, score.trips_ns.iter().sum()),
        None => (score.measured(), score.elapsed_ns()),
    };
    let messages_per_second = messages as f64 * 1e9 / (elapsed_ns as f64).max(1.0);
    let each = |count: u64| count as f64 / (score.measured() as f64).max(1.0);
    let [senders, receivers] = counts;
    BenchEntry {
        request: *request,
        message_bytes,
        round_trip,
        one_way,
        messages_per_second,
        bytes_per_second: messages_per_second * f64::from(message_bytes),
        sender_requests: each(senders.requests),
        receiver_requests: each(receivers.requests),
        receives: each(receivers.receives),
    }
}

fn times(all_ns: &[u64]) -> Option<Times> {
    let mut sorted_ns = all_ns.to_vec();
    sorted_ns.sort_unstable();
    let at = |per_cent: usize| sorted_ns.get(sorted_ns.len() * per_cent / 100).copied();
    Some(Times { best_ns: at(0)?, median_ns: at(50)?, p99_ns: at(99)? })
}
