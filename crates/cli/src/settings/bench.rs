//! Benchmarks: what each measures, and with which effort.

use super::{FabricKind, FabricSettings, Places};
use farside::channel::{DeviceWords, Kind, Options};
use farside_apps::ycsb::CoreWorkload;
use farside_sim::fabric::INFINIBAND;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The figures to measure, and the effort.
#[derive(Debug)]
pub(crate) struct Effort {
    /// Measure only figures whose name contains this text.
    pub(crate) only: Option<String>,
    /// Windows of about half a millisecond per figure.
    pub(crate) windows: u32,
}

/// A measurement of a fabric: within this machine, as a server, or as a client.
#[derive(Debug)]
pub(crate) struct BenchFabric {
    pub(crate) effort: Effort,
    /// The address of the server, for a client.
    pub(crate) to: Option<String>,
    /// The address to listen at, for a server.
    pub(crate) listen: Option<String>,
    /// Whether the server ends after one client.
    pub(crate) once: bool,
    /// Whether the measured memory has untorn words and ordered WRITEs.
    pub(crate) strict_ordering: bool,
    pub(crate) choice: FabricSettings,
    /// The operations to test, each once.
    pub(crate) tests: Vec<Test>,
    /// Whether operations that the fabric lacks are skipped, since all were requested.
    pub(crate) all_tests: bool,
    /// What to measure, each once.
    pub(crate) measures: Vec<Measure>,
    /// Whether all powers of two from 2 B to 8 MiB are measured.
    pub(crate) all: bool,
    /// Request sizes; perftest's defaults if empty.
    pub(crate) bytes: Vec<u32>,
    pub(crate) iterations: Option<u64>,
    pub(crate) seconds: Option<f64>,
    /// Maximum requests in flight.
    pub(crate) window: Option<u32>,
    /// Requests per doorbell.
    pub(crate) batch: Option<u32>,
    /// Requests per signaled completion.
    pub(crate) signal_every: u32,
    /// Maximum bytes that are sent inline.
    pub(crate) inline: Option<u32>,
}

impl BenchFabric {
    /// Returns whether this process is a client or a server, and does not measure within this machine.
    pub(crate) fn is_of_two_ends(&self) -> bool {
        self.to.is_some() || self.listen.is_some() || self.strict_ordering || self.choice.chooses()
    }
}

/// A measurement of the data channels.
#[derive(Debug)]
pub(crate) struct BenchChannels {
    /// The channels, each once, in the order of the table.
    pub(crate) kinds: Vec<Kind>,
    /// Message sizes.
    pub(crate) bytes: Vec<u32>,
    pub(crate) pattern: Vec<Pattern>,
    /// Senders of N:1.
    pub(crate) clients: u16,
    /// Receivers of 1:N.
    pub(crate) readers: u16,
    /// Windows of about half a millisecond per figure.
    pub(crate) windows: u32,
    /// Seconds per figure, instead of a number of windows.
    pub(crate) seconds: Option<f64>,
    /// Words in device memory; the default if empty.
    pub(crate) device_words: Vec<DeviceWordsName>,
    /// Bytes that readers fetch with the bell; the default if empty.
    pub(crate) prefetch: Vec<u32>,
    /// Whether figures with a copy of each message into a log are measured too.
    pub(crate) copy: bool,
    /// Whether the distribution of round trips is reported.
    pub(crate) distribution: bool,
    /// Whether the findings of paper 001 are printed instead.
    pub(crate) findings: bool,
    /// The file of the plot.
    pub(crate) plot: Option<PathBuf>,
    pub(crate) profile: ProfileName,
    pub(crate) places: Places,
}

impl BenchChannels {
    /// Returns the requested settings of device words that the channel supports, each once; possibly none.
    pub(crate) fn devices(&self, kind: Kind) -> Vec<DeviceWords> {
        let usual = [DeviceWordsName::Nothing];
        let asked = if self.device_words.is_empty() { &usual[..] } else { &self.device_words };
        let mut all = Vec::new();
        for device in asked.iter().map(|name| name.words()) {
            let shape = Options::new(kind, 64).device(device).shape(&INFINIBAND);
            let has = device == DeviceWords::Nothing || kind.has_device_words(&shape);
            if has && !all.contains(&device) {
                all.push(device);
            }
        }
        all
    }

    /// Returns the requested prefetch sizes that the channel supports, each once; possibly none.
    pub(crate) fn prefetches(&self, kind: Kind) -> Vec<u32> {
        let mut all = self.prefetch.clone();
        all.dedup();
        if all.is_empty() {
            return vec![0];
        }
        all.retain(|bytes| *bytes == 0 || kind == Kind::ReadRingInlined);
        all
    }

    /// Returns whether a particular figure is requested, instead of all that a channel has.
    pub(crate) fn is_special(&self) -> bool {
        self.copy || self.distribution || !self.device_words.is_empty() || !self.prefetch.is_empty()
    }
}

/// A run of a YCSB workload.
#[derive(Debug)]
pub(crate) struct BenchYcsb {
    pub(crate) workload: CoreWorkload,
    /// A property file, instead of a core workload.
    pub(crate) properties: Option<PathBuf>,
    pub(crate) nodes: u16,
    /// Threads of each node; overrides the property file, as the next two.
    pub(crate) threads: Option<u16>,
    pub(crate) records: Option<u64>,
    pub(crate) operations: Option<u64>,
    /// The file for the history.
    pub(crate) history: Option<PathBuf>,
    /// Whether reads are remote memory calls.
    pub(crate) by_call: bool,
    pub(crate) seed: u64,
    pub(crate) places: Places,
}

/// A comparison of remote memory calls with one-sided requests.
#[derive(Debug)]
pub(crate) struct BenchRmc {
    /// `None` for each fabric.
    pub(crate) fabric: Option<FabricKind>,
    /// Round trips of each kind.
    pub(crate) rounds: u32,
    /// The program that measures other engines.
    pub(crate) peers: Option<PathBuf>,
}

/// A measurement of an operation of a fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Measure {
    /// One request at a time.
    Latency,
    /// Many requests in flight.
    Bandwidth,
    /// Many requests in flight, posted in lists.
    Rate,
}

/// Most bytes of a measured request.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 64 << 20;

/// A test, named by its operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Test {
    Write,
    Read,
    Atomic,
    Send,
}

impl Test {
    pub(crate) const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Atomic, Self::Send];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Send => "send",
        }
    }
}

/// Words of a channel in device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceWordsName {
    /// All words are in main memory.
    Nothing,
    /// The head of a shared ring, the target of FETCH_ADDs; bells that readers READ.
    Head,
    /// The tail of a shared ring, which its senders READ.
    Tail,
    /// Both.
    All,
}

impl DeviceWordsName {
    /// Returns the name of these words.
    pub(crate) const fn of(words: DeviceWords) -> Self {
        match words {
            DeviceWords::Nothing => Self::Nothing,
            DeviceWords::Head => Self::Head,
            DeviceWords::Tail => Self::Tail,
            DeviceWords::All => Self::All,
        }
    }

    /// Returns the words.
    pub(crate) const fn words(self) -> DeviceWords {
        match self {
            Self::Nothing => DeviceWords::Nothing,
            Self::Head => DeviceWords::Head,
            Self::Tail => DeviceWords::Tail,
            Self::All => DeviceWords::All,
        }
    }
}

/// Numbers of senders and receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pattern {
    /// One sender, one receiver.
    OneToOne,
    /// Many senders, one receiver.
    ManyToOne,
    /// One sender, many receivers that each get every message (broadcast).
    OneToMany,
}

impl Pattern {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneToOne => "1:1",
            Self::ManyToOne => "N:1",
            Self::OneToMany => "1:N",
        }
    }
}

/// The environment of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProfileName {
    /// Processes of this machine.
    Shm,
    /// Virtual time: two ConnectX-5 of 100 Gb/s, the cluster of paper 001.
    Connectx5,
}
