//! The parameters of a round.

use super::content::Contents;
use crate::fabric::{
    ADAPTIVE_ROUTING, EFA, INFINIBAND, ONE_RMA, SHARED_MEMORY, SimNet, SimOptions, UNORDERED,
};
use farside::channel::{Acknowledge, DeviceWords, Family, Kind, Options, Signal, can_sleep};
use farside_base::Capabilities;
use farside_base::Random;
use std::fmt;

/// A set of capabilities of the simulated fabric, by name.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name for tables.
    pub name: &'static str,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Whether a WRITE is performed as a request to READ.
    pub write_by_read: bool,
}

impl Profile {
    const fn new(name: &'static str, capabilities: Capabilities) -> Self {
        Self { name, capabilities, write_by_read: false }
    }

    /// Creates a network of this profile, with delays and faults drawn from `seed`.
    pub fn net(&self, seed: u64) -> SimNet {
        let drawn = SimOptions::draw(seed, self.capabilities);
        SimNet::new(seed, SimOptions { write_by_read: self.write_by_read, ..drawn })
    }
}

/// The fabrics of 001 Table 1 that are simulated, and two more.
pub const PROFILES: [Profile; 6] = [
    Profile::new("infiniband", INFINIBAND),
    Profile::new("shared-memory", SHARED_MEMORY),
    Profile::new("adaptive-routing", ADAPTIVE_ROUTING),
    Profile::new("unordered", UNORDERED),
    Profile::new("efa", EFA),
    Profile { write_by_read: true, ..Profile::new("one-rma", ONE_RMA) },
];

/// Returns what a fabric lacks for a channel with these options, if anything.
pub fn unmet(options: &Options, has: &Capabilities) -> Option<&'static str> {
    let needs = options.kind.requirements(&options.shape(has));
    needs.check(has).err().map(|missing| missing.0)
}

/// Whether messages arrive in the order in which they were sent. Messages announced by completions arrive in the
/// order of completions, which is that of sending if the fabric keeps the order of messages; messages of a shared
/// ring arrive in the order of their FETCH_ADDs, which no fabric declares.
pub fn promises_order(options: &Options, has: &Capabilities) -> bool {
    options.kind.family() != Family::SharedRing
        && (has.message_order || !can_sleep(options.kind, &options.shape(has)))
}

/// The numbers of senders and receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topology {
    /// A sender and a receiver.
    Pair,
    /// Three senders and a listening receiver.
    FanIn,
    /// A listening sender, and three receivers of every message.
    FanOut,
}

impl Topology {
    /// Returns the numbers of senders and receivers.
    pub const fn ends(self) -> (usize, usize) {
        match self {
            Self::Pair => (1, 1),
            Self::FanIn => (3, 1),
            Self::FanOut => (1, 3),
        }
    }
}

/// The death of an end in a round on the simulated fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// Whether a sender dies, not a receiver.
    pub sender: bool,
    /// Index of the sender or receiver.
    pub end: usize,
    /// Number of polls of all ends after which it dies.
    pub poll: u64,
}

/// All parameters of a round; `Display` prints them on one line.
#[derive(Clone, Debug)]
pub struct Round {
    /// Seed of all other parameters.
    pub seed: u64,
    /// Number of messages sent by all senders together.
    pub messages: u64,
    /// The channel.
    pub options: Options,
    /// Numbers of senders and receivers.
    pub topology: Topology,
    /// For a pair: whether the sender listens.
    pub sender_listens: bool,
    /// Maximum number of messages that a receiver holds.
    pub held_max: usize,
    /// Maximum number of messages of a batch.
    pub batch_max: usize,
    /// Maximum number of slices of a message; zero if all are copied.
    pub slices_max: usize,
    /// Whether the receiver chooses destinations, if the channel permits.
    pub into: bool,
    /// Polls per thousand that begin a pause.
    pub pause_per_mille: u32,
    /// Maximum number of events of the simulated network between two polls.
    pub steps_max: u64,
    /// Whether each end has a thread, on a real fabric.
    pub threads: bool,
    /// The death of an end, on the simulated fabric.
    pub death: Option<Death>,
    pub(super) contents: Contents,
    /// The effective acknowledgement, whether chosen or the default.
    pub(super) acknowledge: Acknowledge,
}

impl Round {
    /// Draws the round of a seed for a fabric with these capabilities.
    pub fn draw(kind: Kind, seed: u64, messages: u64, has: &Capabilities) -> Self {
        let mut random = Random::new(seed ^ ((kind as u64) << 48) ^ 0x736f_616b);
        let topology = *random.pick(&[
            Topology::Pair,
            Topology::Pair,
            Topology::Pair,
            Topology::FanIn,
            Topology::FanOut,
        ]);
        let (senders, receivers) = topology.ends();
        let peers = senders.max(receivers) as u16;
        let options = draw_options(kind, peers, &mut random, has);
        let integer = kind == Kind::SendBufferless;
        let contents = Contents {
            seed: random.word(),
            bytes_max: if integer { 4 } else { options.message_bytes_max as usize },
            numbered: !promises_order(&options, has),
            integer,
        };
        Self {
            seed,
            messages,
            options,
            topology,
            sender_listens: random.chance(500),
            held_max: random.below(9) as usize,
            batch_max: *random.pick(&[1, 2, 16]),
            slices_max: random.below(u64::from(has.slices_max.saturating_sub(3).min(3)) + 1)
                as usize,
            // `ReadSlotIndirect` only lends its own memory.
            into: kind.receiver_names_destination()
                && kind != Kind::ReadSlotIndirect
                && topology != Topology::FanIn
                && random.chance(300),
            pause_per_mille: *random.pick(&[0, 1, 30]),
            steps_max: *random.pick(&[1, 4, 20]),
            threads: random.chance(150) && options.slots != Some(1),
            death: None,
            contents,
            acknowledge: options.shape(has).acknowledge,
        }
    }

    /// Returns the round with a death, which is drawn too.
    #[must_use]
    pub fn with_death(self) -> Self {
        let mut random = Random::new(self.seed ^ 0x6465_6174_6800);
        let (senders, receivers) = self.topology.ends();
        let sender = random.chance(500);
        let end = random.index(if sender { senders } else { receivers });
        let poll = random.below(4 * self.messages + 1);
        Self { death: Some(Death { sender, end, poll }), into: false, ..self }
    }
}

/// Draws options with which the channel can be opened: notification and acknowledgement that the fabric permits,
/// rings from two messages to many.
fn draw_options(kind: Kind, peers: u16, random: &mut Random, has: &Capabilities) -> Options {
    let longest = has.transfer_bytes_max.min(u64::from(has.send_bytes_max)).min(4_000) as u32;
    let longest = if has.send { longest } else { has.transfer_bytes_max.min(4_000) as u32 };
    let lengths = [8, 13, 56, 64, 100, 500, 1_000, longest];
    let message_bytes_max = *random.pick(&lengths);
    let record = u64::from(message_bytes_max).next_multiple_of(8) + 24;
    let ring = (2 * record).next_power_of_two().max(if has.mirrored_regions { 4_096 } else { 64 });
    let plain = Options::new(kind, message_bytes_max)
        .peers(peers)
        .slots(*random.pick(&[1, 2, 3, 8, 64]))
        .ring_bytes(ring << random.below(4))
        .mirrored(has.mirrored_regions && random.chance(500))
        .prefetch_bytes(*random.pick(&[0, 0, message_bytes_max, 3 * message_bytes_max]))
        .device(match has.device_bytes_max > 0 && random.chance(200) {
            true => *random.pick(&[DeviceWords::Head, DeviceWords::Tail, DeviceWords::All]),
            false => DeviceWords::Nothing,
        });
    let mut ways = Vec::new();
    for acknowledge in
        [None, Some(Acknowledge::Word), Some(Acknowledge::Message), Some(Acknowledge::ReadTail)]
    {
        for signal in [None, Some(Signal::Word), Some(Signal::Message)] {
            let options = plain.acknowledge(acknowledge).signal(signal);
            if options.shape(has).check(kind).is_ok() && unmet(&options, has).is_none() {
                ways.push(options);
            }
        }
    }
    if ways.is_empty() { plain } else { *random.pick(&ways) }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.options;
        write!(
            f,
            "{} seed={} messages={} {:?} bytes_max={} slots={:?} ring={:?} mirrored={:?} prefetch={} \
             acknowledge={:?} signal={:?} device={:?} ",
            options.kind,
            self.seed,
            self.messages,
            self.topology,
            options.message_bytes_max,
            options.slots,
            options.ring_bytes,
            options.mirrored,
            options.prefetch_bytes,
            options.acknowledge,
            options.signal,
            options.device,
        )?;
        write!(
            f,
            "sender_listens={} held={} batch={} slices={} into={} pauses={} steps={} threads={} \
             numbered={} death={:?}",
            self.sender_listens,
            self.held_max,
            self.batch_max,
            self.slices_max,
            self.into,
            self.pause_per_mille,
            self.steps_max,
            self.threads,
            self.contents.numbered,
            self.death,
        )
    }
}
