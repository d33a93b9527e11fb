//! A count of words, lent memory, and advice on channels.

use farside::channel::Requirements;
use farside_bootstrap::Endpoint;
use farside_command::settings::{FabricSettings, Places};
use std::path::PathBuf;
use std::time::Duration;

/// A count of the words of files.
#[derive(Debug)]
pub(crate) struct Wordcount {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) nodes: u16,
    pub(crate) places: Places,
}

/// Memory lent to clients.
#[derive(Debug)]
pub(crate) struct LendMemory {
    /// The name, and where it is between hosts.
    pub(crate) name: String,
    pub(crate) listen: Option<Endpoint>,
    pub(crate) bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) exclusive: bool,
    pub(crate) clients_max: usize,
    /// The socket next to which the memory is, and the sockets; those of the system without.
    pub(crate) socket: Option<usize>,
    pub(crate) topology: Option<String>,
    /// Whether it serves other machines without a key.
    pub(crate) insecure: bool,
    pub(crate) choice: FabricSettings,
}

/// Where a durable log is.
#[derive(Debug)]
pub(crate) enum LogPlace {
    Folder(PathBuf),
    /// Memory that servers lend exclusively.
    Copies {
        addresses: Vec<String>,
        least: Option<usize>,
        choice: FabricSettings,
    },
}

/// Records to append to a log.
#[derive(Debug)]
pub(crate) struct LogAppend {
    /// The memory server of the log.
    pub(crate) to: String,
    pub(crate) choice: FabricSettings,
    pub(crate) mode: LogMode,
    /// Bytes that a planned writer reserves at a time.
    pub(crate) quota_bytes: u64,
    /// Lines of a batch.
    pub(crate) batch: usize,
    /// Of a log that is created.
    pub(crate) lanes: u32,
    pub(crate) lease: Duration,
}

/// Records to read of a log.
#[derive(Debug)]
pub(crate) struct LogTail {
    /// The memory server of the log.
    pub(crate) to: String,
    pub(crate) choice: FabricSettings,
    /// Waits for more records at the end.
    pub(crate) follow: bool,
    /// Frees the records that were printed.
    pub(crate) trim: bool,
    /// Ends after this many records.
    pub(crate) records: Option<u64>,
}

/// How records get their places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogMode {
    Positioned,
    Planned,
    Lazy,
}

/// A request for advice on channels.
#[derive(Debug)]
pub(crate) struct ChannelAdvice {
    pub(crate) requirements: Requirements,
    pub(crate) fabric: FabricName,
}

/// A fabric whose capabilities the advisor knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FabricName {
    /// Processes of this machine.
    Shm,
    /// InfiniBand or RoCE.
    Infiniband,
    /// InfiniBand or RoCE with adaptive routing.
    Adaptive,
    /// The Elastic Fabric Adapter: SEND and READ of one packet, in any order.
    Efa,
    /// 1RMA: READ of one packet, in any order.
    OneRma,
}

impl FabricName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Infiniband => "infiniband",
            Self::Adaptive => "adaptive",
            Self::Efa => "efa",
            Self::OneRma => "1rma",
        }
    }
}
