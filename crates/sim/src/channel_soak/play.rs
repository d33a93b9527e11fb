//! Runs a round: connects the ends and polls them until every message has arrived.

use super::ends::{ChannelEnd, Sink, SoakSource, SoakStop};
use super::round::{Death, Round, Topology};
use crate::fabric::SimNet;
use farside::channel::{Receiver, Sender};
use farside::{Error, ErrorCode};
use farside_base::Capabilities;
use farside_base::Random;
use farside_fabric::Fabric;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Polls without progress after which a round fails: on one thread, and on a thread that yields its processor each
/// time.
const IDLE_POLLS_MAX: u64 = 4_000_000;
const IDLE_YIELDS_MAX: u64 = 100_000_000;
/// Polls without progress after which the simulated network is advanced faster than the programs: an end that polls by
/// READ causes events all the time, and a straggling message takes as long as a million of them.
const FAST_FORWARD_POLLS: u64 = 2_000;

/// Creates the fabric of a node.
type Make = dyn Fn(&str) -> Arc<dyn Fabric>;

/// The fabric on which a round runs.
pub struct Ground {
    make: Box<Make>,
    net: Option<SimNet>,
}

impl Ground {
    /// Creates a ground on a real fabric: the fabrics that `make` returns for two nodes reach each other.
    pub fn real(make: impl Fn(&str) -> Arc<dyn Fabric> + 'static) -> Self {
        Self { make: Box::new(make), net: None }
    }

    /// Creates a ground on the simulated fabric.
    pub fn simulated(net: SimNet) -> Self {
        let nodes = net.clone();
        Self { make: Box::new(move |node| nodes.fabric(node)), net: Some(net) }
    }

    /// Creates a ground on the simulated fabric with a wrapper.
    pub fn wrapped(
        net: SimNet,
        wrap: impl Fn(Arc<dyn Fabric>) -> Arc<dyn Fabric> + 'static,
    ) -> Self {
        let nodes = net.clone();
        Self { make: Box::new(move |node| wrap(nodes.fabric(node))), net: Some(net) }
    }

    /// Returns the declared capabilities.
    pub fn capabilities(&self) -> Capabilities {
        (self.make)("capabilities").capabilities()
    }

    fn step(&self, steps: u64) {
        for _ in 0..steps {
            if self.net.as_ref().is_none_or(|net| !net.step()) {
                return;
            }
        }
    }
}

/// Totals of a soak.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of messages sent.
    pub messages: u64,
    /// Number of messages received, by all receivers together.
    pub received: u64,
    /// Number of rounds.
    pub rounds: u64,
}

impl Tally {
    /// Adds the totals of another soak.
    pub const fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.received += other.received;
        self.rounds += other.rounds;
    }
}

/// The failure of a round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The channel could not be opened or connected.
    Opening(Error),
    /// A message was lost, repeated, reordered or damaged.
    Corrupt(String),
    /// An end reported an unexpected error.
    Error(Error),
    /// No end makes progress.
    Stalled(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opening(error) => write!(f, "not opened: {error}"),
            Self::Corrupt(what) => f.write_str(what),
            Self::Error(error) => write!(f, "an unexpected error: {error}"),
            Self::Stalled(what) => write!(f, "no progress: {what}"),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Opening(error)
    }
}

/// The ends of a round.
struct RoundEnds {
    sources: Vec<SoakSource>,
    sinks: Vec<Sink>,
}

/// Runs a round.
///
/// # Errors
/// [`Trouble`].
pub fn play(round: &Round, ground: &Ground) -> Result<Tally, Trouble> {
    let ends = open(round, ground)?;
    let received = if ground.net.is_none() && round.threads {
        play_on_threads(ends)?
    } else {
        SingleThread::new(round, ground, ends).play()?
    };
    Ok(Tally { messages: round.messages, received, rounds: 1 })
}

/// Polls a sender; returns the number of its receivers. Errors are reported when it is used.
fn receivers_of(sender: &mut Sender) -> usize {
    let _ = sender.progress();
    sender.peers()
}

/// Polls a receiver; returns the number of its senders. Errors are reported when it is used.
fn senders_of(receiver: &mut Receiver) -> usize {
    let _ = receiver.progress();
    receiver.peers()
}

/// Connects the ends one after the other, so that the n-th has index n at the listener.
fn open(round: &Round, ground: &Ground) -> Result<RoundEnds, Trouble> {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = format!("soak-{}-{number}", std::process::id());
    let fabric = |node: &str| (ground.make)(node);
    let options = &round.options;
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    let (senders_count, receivers_count) = round.topology.ends();
    let sender_listens = match round.topology {
        Topology::Pair => round.sender_listens,
        Topology::FanIn => false,
        Topology::FanOut => true,
    };
    if sender_listens {
        senders.push(Sender::listen(fabric("sender0"), &name, options)?);
        for peer in 0..receivers_count {
            let at = fabric(&format!("receiver{peer}"));
            let mut receiver = Receiver::connect(at, &name, options)?;
            connect(ground, || {
                Ok(receivers_of(&mut senders[0]) > peer && senders_of(&mut receiver) == 1)
            })?;
            receivers.push(receiver);
        }
    } else {
        receivers.push(Receiver::listen(fabric("receiver0"), &name, options)?);
        for peer in 0..senders_count {
            let at = fabric(&format!("sender{peer}"));
            let mut sender = Sender::connect(at, &name, options)?;
            connect(ground, || {
                Ok(senders_of(&mut receivers[0]) > peer && receivers_of(&mut sender) == 1)
            })?;
            senders.push(sender);
        }
    }
    let each = round.messages / senders_count as u64;
    let counts: Vec<u64> = (0..senders_count as u64)
        .map(|who| each + u64::from(who < round.messages % senders_count as u64))
        .collect();
    let sources = senders.into_iter().enumerate();
    let sources = sources.map(|(who, sender)| SoakSource::new(sender, who, counts[who], round));
    let sinks = receivers.into_iter().enumerate();
    let sinks = sinks.map(|(at, receiver)| Sink::new(receiver, at, &counts, round));
    Ok(RoundEnds {
        sources: sources.collect::<Result<_, _>>()?,
        sinks: sinks.collect::<Result<_, _>>()?,
    })
}

fn connect(ground: &Ground, mut there: impl FnMut() -> Result<bool, Error>) -> Result<(), Trouble> {
    for _ in 0..IDLE_POLLS_MAX {
        if there()? {
            return Ok(());
        }
        ground.step(1);
    }
    Err(Trouble::Stalled("the ends never connect".to_owned()))
}

/// A round on one thread.
struct SingleThread<'a> {
    round: &'a Round,
    ground: &'a Ground,
    sources: Vec<Option<SoakSource>>,
    sinks: Vec<Option<Sink>>,
    /// Senders and receivers that were notified of the loss of all peers.
    lost: (Vec<bool>, Vec<bool>),
    death: Option<Death>,
    random: Random,
    received: u64,
}

impl<'a> SingleThread<'a> {
    fn new(round: &'a Round, ground: &'a Ground, ends: RoundEnds) -> Self {
        Self {
            round,
            ground,
            lost: (vec![false; ends.sources.len()], vec![false; ends.sinks.len()]),
            sources: ends.sources.into_iter().map(Some).collect(),
            sinks: ends.sinks.into_iter().map(Some).collect(),
            death: round.death,
            random: Random::new(round.seed ^ 0x7475_726e),
            received: 0,
        }
    }

    fn play(mut self) -> Result<u64, Trouble> {
        let (mut poll, mut idle) = (0, 0);
        while !self.is_over() {
            if self.death.is_some_and(|death| death.poll <= poll) {
                self.die();
            }
            poll += 1;
            idle = if self.progress()? { 0 } else { idle + 1 };
            if idle > IDLE_POLLS_MAX {
                return Err(Trouble::Stalled(self.describe()));
            }
            let hurry = (idle / FAST_FORWARD_POLLS).min(1_000);
            self.ground.step(1 + hurry + self.random.below(self.round.steps_max));
        }
        let sinks = self.sinks.iter().flatten().map(ChannelEnd::passed);
        Ok(self.received + sinks.sum::<u64>())
    }

    /// Polls one end. Returns whether it made progress.
    fn progress(&mut self) -> Result<bool, Trouble> {
        let at = self.random.index(self.sources.len() + self.sinks.len());
        let (result, lost) = match at.checked_sub(self.sources.len()) {
            None => match &mut self.sources[at] {
                Some(source) => (source.progress(), &mut self.lost.0[at]),
                None => return Ok(false),
            },
            Some(at) => match &mut self.sinks[at] {
                Some(sink) => (sink.progress(), &mut self.lost.1[at]),
                None => return Ok(false),
            },
        };
        match result {
            Ok(progress) => Ok(progress),
            Err(SoakStop::Error(error))
                if error.code == ErrorCode::PeerLost && self.round.death.is_some() =>
            {
                Ok(!std::mem::replace(lost, true))
            }
            Err(SoakStop::Error(error)) => Err(Trouble::Error(error)),
            Err(SoakStop::Corrupt(what)) => Err(Trouble::Corrupt(what)),
        }
    }

    fn die(&mut self) {
        let Some(death) = self.death.take() else {
            return;
        };
        let node = if death.sender { "sender" } else { "receiver" };
        if let Some(net) = &self.ground.net {
            net.kill(&format!("{node}{}", death.end));
        }
        if death.sender {
            self.sources[death.end] = None;
            for sink in self.sinks.iter_mut().flatten() {
                sink.dead[death.end] = true;
            }
        } else if let Some(sink) = self.sinks[death.end].take() {
            self.received += sink.passed();
        }
    }

    /// Whether all living ends are done. An end that has lost, or is going to lose, its only peer must instead have
    /// been notified of the loss.
    fn is_over(&self) -> bool {
        let Some(death) = self.round.death else {
            return self.sources.iter().flatten().all(ChannelEnd::is_done)
                && self.sinks.iter().flatten().all(ChannelEnd::is_done);
        };
        let alone = |survivors: bool| survivors && self.death.is_none();
        let sources_alone = alone(!death.sender && self.sinks.len() == 1);
        let sinks_alone = alone(death.sender && self.sources.len() == 1);
        let sources = self.sources.iter().zip(&self.lost.0);
        let sinks = self.sinks.iter().zip(&self.lost.1);
        let mut sources = sources.filter_map(|(source, lost)| Some((source.as_ref()?, *lost)));
        let mut sinks = sinks.filter_map(|(sink, lost)| Some((sink.as_ref()?, *lost)));
        sources.all(|(source, lost)| if sources_alone { lost } else { source.is_done() })
            && sinks.all(|(sink, lost)| if sinks_alone { lost } else { sink.is_done() })
    }

    fn describe(&self) -> String {
        let sources = self.sources.iter().flatten().map(ChannelEnd::describe);
        let sinks = self.sinks.iter().flatten().map(ChannelEnd::describe);
        let mut all: Vec<String> = sources.chain(sinks).collect();
        all.push(format!("lost all peers {:?}", self.lost));
        if let Some(net) = &self.ground.net {
            all.push(format!("at {} ns", net.now_ns()));
        }
        all.join("; ")
    }
}

/// Runs each end on a thread.
fn play_on_threads(ends: RoundEnds) -> Result<u64, Trouble> {
    let RoundEnds { mut sources, mut sinks } = ends;
    let mut ends: Vec<&mut dyn ChannelEnd> = Vec::new();
    ends.extend(sources.iter_mut().map(|source| source as &mut dyn ChannelEnd));
    ends.extend(sinks.iter_mut().map(|sink| sink as &mut dyn ChannelEnd));
    let busy = AtomicUsize::new(ends.len());
    let over = AtomicBool::new(false);
    let trouble = Mutex::new(None);
    std::thread::scope(|threads| {
        for end in ends {
            threads.spawn(|| {
                if let Err(what) = play_end(end, &busy, &over) {
                    over.store(true, Ordering::Relaxed);
                    let mut first = trouble.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(what);
                }
            });
        }
    });
    match trouble.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(trouble) => Err(trouble),
        None => Ok(sinks.iter().map(ChannelEnd::passed).sum()),
    }
}

fn play_end(
    end: &mut dyn ChannelEnd,
    busy: &AtomicUsize,
    over: &AtomicBool,
) -> Result<(), Trouble> {
    let (mut idle, mut counted) = (0_u64, false);
    while !over.load(Ordering::Relaxed) && busy.load(Ordering::Relaxed) > 0 {
        let progress = match end.progress() {
            Ok(progress) => progress,
            Err(SoakStop::Corrupt(what)) => return Err(Trouble::Corrupt(what)),
            Err(SoakStop::Error(error)) => return Err(Trouble::Error(error)),
        };
        if end.is_done() && !counted {
            counted = true;
            busy.fetch_sub(1, Ordering::Relaxed);
        }
        idle = if progress || counted { 0 } else { idle + 1 };
        if !progress {
            std::thread::yield_now();
        }
        if idle > IDLE_YIELDS_MAX {
            return Err(Trouble::Stalled(end.describe()));
        }
    }
    Ok(())
}
