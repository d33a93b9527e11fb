//! Events of a node, as text and in the form of `--json`.

use farside_command::output::{Output, bytes};
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

/// An event of a node, in the form of `--json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(super) enum NodeEvent<'a> {
    /// It is a member.
    Started {
        cluster: &'a str,
        node: u16,
        /// The address at which others reach it.
        address: SocketAddr,
        security: &'a str,
        /// A security warning for the operator, with a remedy.
        #[serde(skip_serializing_if = "Option::is_none")]
        warning: Option<&'a str>,
        memory_bytes: u64,
        /// How its memory is kept; nothing if it is volatile.
        #[serde(skip_serializing_if = "Option::is_none")]
        state: Option<String>,
        /// It is a witness.
        witness: bool,
        members: usize,
        /// The maximum number of members.
        members_max: usize,
        /// A member that is unreachable for longer is removed; set by the founder.
        lease_ms: u64,
        /// It joined again after it was isolated.
        again: bool,
    },
    MemberJoined {
        node: u16,
        members: usize,
        members_max: usize,
    },
    MemberLost {
        node: u16,
        members: usize,
        members_max: usize,
    },
    /// It was partitioned from the cluster, which continues without it.
    Isolated {
        reason: &'a str,
        /// Whether it will join again.
        rejoins: bool,
    },
    /// It could not join again yet.
    NotJoined {
        reason: &'a str,
    },
    /// It waits until no other process uses its state.
    Standby {
        reason: &'a str,
    },
    /// It continues without a copy of its state.
    CopyLost {
        reason: &'a str,
    },
    /// It saves its memory, and leaves then.
    Draining {
        place: &'a str,
    },
    /// All of its memory is in that place.
    Drained {
        place: &'a str,
        /// Bytes that were saved, read back and compared.
        memory_bytes: u64,
        /// Lines that had been lost with their owners before.
        lines_lost: u64,
        /// How long the memory could not be written.
        paused_ms: u64,
    },
    /// Its memory could not be saved; it is still a member.
    NotDrained {
        reason: &'a str,
    },
    /// No cluster can be reached; with a reason for each host.
    Waiting {
        /// It founds one after each of these hosts has answered that it has none.
        founds: bool,
        hosts: &'a [Unanswered],
        /// What the operator can do if waiting does not help.
        #[serde(skip_serializing_if = "Option::is_none")]
        remedy: Option<&'a str>,
    },
    /// A host of `--join` belongs to another cluster of this name.
    OtherCluster {
        host: &'a str,
        /// Its cluster's identifier in hexadecimal, as `own`.
        other: String,
        own: String,
    },
    Ended {
        cluster: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        /// Bytes of its memory that were in use and are lost.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory_bytes: Option<u64>,
    },
}

/// A host that must answer before this node founds, and why its answer is missing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct Unanswered {
    pub(super) host: String,
    pub(super) reason: String,
}

impl NodeEvent<'_> {
    pub(super) fn tell(&self, output: Output) {
        output.event(self, |time| self.lines(time));
    }

    /// Prints the event that ends the command.
    pub(super) fn tell_last(&self, output: Output) {
        output.last_event(self, |time| self.lines(time));
    }

    pub(super) fn lines(&self, time: &str) -> Vec<String> {
        vec![format!("{time} {}", self.text())]
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Started {
                cluster,
                node,
                address,
                security,
                memory_bytes,
                state,
                witness,
                members,
                members_max,
                lease_ms,
                again,
                ..
            } => {
                let lends = lends(*memory_bytes, state.as_deref(), *witness);
                let what = if *again { "joined again as" } else { "is" };
                format!(
                    "{what} node {node} of cluster {cluster} at {address} ({security}), {lends}, members \
                     {members} of {members_max}, lease {} s; Ctrl-C leaves",
                    Duration::from_millis(*lease_ms).as_secs_f64()
                )
            }
            Self::MemberJoined { node, members, members_max } => {
                format!("node {node} has joined, members {members} of {members_max}")
            }
            Self::MemberLost { node, members, members_max } => {
                format!("node {node} is lost, members {members} of {members_max}")
            }
            Self::Isolated { reason, rejoins: true } => {
                format!("isolated from the cluster, joins again: {reason}")
            }
            Self::Isolated { reason, rejoins: false } => {
                format!("isolated from the cluster: {reason}")
            }
            Self::NotJoined { reason } => format!("not joined yet: {reason}"),
            Self::Standby { reason } => {
                format!("standby until the process that uses the state has ended: {reason}")
            }
            Self::CopyLost { reason } => format!(
                "continues without a copy of its state: {reason}; start it again with a new copy in its place"
            ),
            Self::Draining { place } => format!("saves its memory to {place}"),
            Self::Drained { place, memory_bytes, lines_lost, paused_ms } => {
                drained(place, *memory_bytes, *lines_lost, *paused_ms)
            }
            Self::NotDrained { reason } => format!(
                "its memory could not be saved, so it has not left: {reason}; asked again, it leaves without"
            ),
            Self::Waiting { founds, hosts, remedy } => {
                let hosts: Vec<_> =
                    hosts.iter().map(|one| format!("{} ({})", one.host, one.reason)).collect();
                let what = if *founds { "waits to found the cluster, for" } else { "waits for" };
                let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
                format!("{what} {}{remedy}", hosts.join(", "))
            }
            Self::OtherCluster { host, other, own } => format!(
                "{host} belongs to another cluster of this name ({other}; this one is {own}). They do not merge: end \
                 the nodes of one of them, and start them with --join and without --found-alone"
            ),
            Self::Ended { cluster, memory_bytes: Some(gone), .. } if *gone > 0 => {
                format!(
                    "has left cluster {cluster}; {} of its memory in use are lost",
                    bytes(*gone)
                )
            }
            Self::Ended { cluster, .. } => format!("has left cluster {cluster}"),
        }
    }
}

/// What a node that has started lends.
fn lends(memory_bytes: u64, state: Option<&str>, is_witness: bool) -> String {
    match state {
        Some(state) => format!("{} in {state}", bytes(memory_bytes)),
        None if is_witness => "a witness".to_owned(),
        None => bytes(memory_bytes),
    }
}

/// The text of a node whose memory is saved.
fn drained(place: &str, memory_bytes: u64, lines_lost: u64, paused_ms: u64) -> String {
    let lost = match lines_lost {
        0 => String::new(),
        lost => format!(", with {lost} lines that their owners had taken with them"),
    };
    let saved = bytes(memory_bytes);
    format!("its memory is in {place}: {saved}{lost}; it could not be written for {paused_ms} ms")
}
