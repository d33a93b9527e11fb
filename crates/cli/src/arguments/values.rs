//! Names and help of the values of options, for the enumerations of the settings.

use crate::settings::{EngineName, FabricName, LogMode};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use farside_apps::join::JoinKind;
use farside_bench::settings::{KernelName, NumaPath, Pattern, ProfileName};
use farside_command::settings::{
    CongestionName, FabricKind, HostFabric, LaunchFabric, Protection, RdmaOption, WorkerFabric,
};
use farside_launcher::ends::task::DeviceWordsName;
use farside_launcher::worker::GraphForm;

/// The values of an option, each with its name and help.
pub(super) trait Named: Copy + Send + Sync + 'static {
    const ALL: &'static [(Self, &'static str, &'static str)];
}

/// Returns the parser of an option with these values.
pub(super) fn named<T: Named>() -> impl TypedValueParser<Value = T> {
    let possible = T::ALL.iter().map(|(_, name, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(possible).try_map(|text| {
        let found = T::ALL.iter().find(|(_, name, _)| *name == text);
        found.map(|(value, ..)| *value).ok_or("no such value")
    })
}

/// Returns the values that are given, each once, in the order of the table; all if none is.
pub(super) fn selected<T: Named + PartialEq>(given: &[T]) -> Vec<T> {
    let values = T::ALL.iter().map(|(value, ..)| *value);
    values.filter(|value| given.is_empty() || given.contains(value)).collect()
}

/// Implements [`Named`] by a table.
macro_rules! values {
    ($($kind:ident { $($value:ident => $name:literal, $help:literal;)* })*) => {$(
        impl Named for $kind {
            const ALL: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$value, $name, $help)),*];
        }
    )*};
}

values! {
    FabricKind {
        Shm => "shm", "Processes of this machine";
        Tcp => "tcp", "TCP, between machines";
        Verbs => "verbs", "InfiniBand or RoCE, between machines";
    }
    HostFabric {
        Tcp => "tcp", "TCP";
        Verbs => "verbs", "InfiniBand or RoCE, by libibverbs";
    }
    WorkerFabric {
        Shm => "shm", "Shared memory of this machine";
        Tcp => "tcp", "TCP, on the loopback or between hosts";
        Verbs => "verbs", "InfiniBand or RoCE, by libibverbs";
    }
    LaunchFabric {
        Shm => "shm", "Shared memory";
        Tcp => "tcp", "TCP on the loopback";
    }
    Protection {
        Nothing => "nothing", "No authentication; all traffic is plain text";
        Handshake => "handshake", "Authentication and memory keys; data is plain text";
        Everything => "everything", "Authentication, memory keys and data";
    }
    CongestionName {
        Unpaced => "unpaced", "The system default, or cubic or reno if that is BBR, which arms a timer for every segment";
        System => "system", "The system default, also if it is BBR: for long routes that lose packets";
    }
    RdmaOption {
        ConnectionManager => "connection-manager", "Connect queue pairs through rdma_cm even if not required; must be the same at both peers";
        OnDemandPaging => "on-demand-paging", "Do not pin memory: the adapter faults in pages on demand";
        MemoryWindows => "memory-windows", "Issue separate memory keys per connection, by memory windows, if the device has them";
    }
    DeviceWordsName {
        Nothing => "nothing", "All words are in main memory";
        Head => "head", "The head of a shared ring, the target of FETCH_ADDs; bells that readers READ";
        Tail => "tail", "The tail of a shared ring, which its senders READ";
        All => "all", "Both";
    }
    Pattern {
        OneToOne => "1:1", "One sender, one receiver";
        ManyToOne => "N:1", "Many senders, one receiver";
        OneToMany => "1:N", "One sender, many receivers that each get every message (broadcast)";
    }
    KernelName {
        Bfs => "bfs", "Breadth-first search from the vertex with the most edges";
        PageRank => "pagerank", "PageRank";
        Components => "components", "Connected components";
    }
    NumaPath {
        Direct => "direct", "A client of the thread";
        Proxy => "proxy", "The proxy of the socket that serves the memory";
    }
    JoinKind {
        Inner => "inner", "Each pair of a left and a right row of one key";
        LeftOuter => "left-outer", "The same, and each left row without a right row";
        Semi => "semi", "Each left row with a right row, once";
        Anti => "anti", "Each left row without one";
    }
    GraphForm {
        Bulk => "bulk", "Ranges, by long and vectored reads and writes";
        Words => "words", "Each element by a read or write of 4 or 8 bytes";
    }
    LogMode {
        Positioned => "positioned", "Each append reserves its place: two round trips";
        Planned => "planned", "The writer reserves many places at a time: one round trip";
        Lazy => "lazy", "A reader decides about the place: one round trip";
    }
    ProfileName {
        Shm => "shm", "Processes of this machine";
        Connectx5 => "connectx5", "Virtual time: two ConnectX-5 of 100 Gb/s, the cluster of paper 001";
    }
    FabricName {
        Shm => "shm", "Processes of this machine";
        Infiniband => "infiniband", "InfiniBand or RoCE";
        Adaptive => "adaptive", "InfiniBand or RoCE with adaptive routing";
        Efa => "efa", "The Elastic Fabric Adapter: SEND and READ of one packet, in any order";
        OneRma => "1rma", "1RMA: READ of one packet, in any order";
    }
    EngineName {
        Checked => "checked", "An interpreter that checks every access and trusts no proof";
        Fast => "fast", "The interpreter for verified programs";
        Compiled => "compiled", "Machine code for this processor (x86-64)";
    }
}
