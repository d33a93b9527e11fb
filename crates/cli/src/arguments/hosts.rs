//! Arguments of commands that use several hosts.

use super::{Protection, bytes, seconds};
use crate::failure::Failure;
use crate::rdma::{DeviceName, Rdma, RdmaOption};
use clap::{Args, ValueEnum};
use farside::fabrics::Scheme;
use farside_bootstrap::Endpoint;
use farside_fabric_tcp::Congestion;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside key new cluster.key                                        once; copy it to every host
  farside node --listen 10.0.0.1:7400 --key cluster.key              the first host
  farside node --listen 10.0.0.2:7400 --join 10.0.0.1:7400 --key cluster.key
  farside node --config node.toml                                    the same from a file:
      listen = \"10.0.0.2:7400\"
      join = [\"10.0.0.1:7400\", \"10.0.0.3:7400\"]
      key = \"cluster.key\"                       relative to the folder of node.toml
      memory_bytes = \"4G\"

Without --join the node founds a new cluster at every start. For a founder that joins an existing cluster after a
restart, give --found and --join with the other hosts. A node can join at any member; name several, since one may
be down. A node that finds no cluster waits for one. A founder with --join founds the cluster after each of these
hosts has answered that it has none, as a waiting node does; with --found-alone it does not wait for answers. With
--json there is one object per line for each event: waiting, started, member_joined, member_lost, isolated,
not_joined, other_cluster, ended, each with its `time` (RFC 3339, UTC). Events that are not read in time are
dropped and counted by the next one (`dropped`). If two clusters of one name meet, their nodes report it
(other_cluster); the clusters never merge.

Without a key, every process that can reach the address of a node can read and write all memory. With a key, TCP
connections use TLS 1.3: `--protect everything`, the default, covers the data too; `--protect handshake` covers
only authentication and memory keys. Data packets of RDMA fabrics are always plain text: use a separate network.

Over verbs, --rdma takes several options, separated by commas; in a file: rdma = [\"connection-manager\"].
All nodes must use the same way to connect.")]
pub(crate) struct Node {
    #[command(flatten)]
    pub(crate) settings: NodeSettings,
    /// Read settings from a TOML file: the names of the flags, with underscores; flags take precedence
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,
}

/// The settings of a node, from flags or from a file with the same names.
#[derive(Args, Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NodeSettings {
    /// Address of this node; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(deserialize_with = "parsed")]
    pub(crate) listen: Option<Endpoint>,
    /// Address that other nodes connect to, if it differs: with address translation, or with --listen 0.0.0.0
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(deserialize_with = "parsed")]
    pub(crate) advertise: Option<Endpoint>,
    /// Members to join at, tried in this order; without this option the node founds the cluster
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    #[serde(deserialize_with = "all_parsed")]
    pub(crate) join: Vec<Endpoint>,
    /// The cluster's name [default: farside]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// Global memory of this node [default: 256M]
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "some_bytes")]
    pub(crate) memory_bytes: Option<u64>,
    /// Cache of this node [default: 64M]
    #[arg(long, value_parser = bytes, value_name = "BYTES")]
    #[serde(deserialize_with = "some_bytes")]
    pub(crate) cache_bytes: Option<u64>,
    /// Line size of allocations that specify none, 64 to 65536 [default: 512]
    #[arg(long, value_name = "BYTES")]
    pub(crate) line_bytes: Option<u32>,
    /// Maximum number of members, 1 to 256; the founder's setting applies [default: 128]
    #[arg(long, value_name = "COUNT")]
    pub(crate) nodes_max: Option<u16>,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// What TLS 1.3 protects; by default everything if there is a key, otherwise nothing
    #[arg(long)]
    pub(crate) protect: Option<Protection>,
    /// Fabric, the same on all nodes [default: tcp]
    #[arg(long)]
    pub(crate) fabric: Option<HostFabric>,
    /// Device for verbs, with its port and GID index; omitted parts are chosen automatically
    #[arg(long, value_name = "DEVICE[:PORT[:GID]]")]
    #[serde(deserialize_with = "parsed")]
    pub(crate) device: Option<DeviceName>,
    /// Options for verbs
    #[arg(long, value_name = "OPTION", value_delimiter = ',')]
    pub(crate) rdma: Vec<RdmaOption>,
    /// Congestion control of the kernel for tcp [default: unpaced]
    #[arg(long, value_name = "CONTROL")]
    pub(crate) congestion: Option<CongestionName>,
    /// A member that is unreachable for longer is removed; the founder's setting applies to all [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    #[serde(deserialize_with = "some_seconds")]
    pub(crate) lease: Option<f64>,
    /// Whether to join again, as a new node, after this node was isolated from its cluster [default: true]
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) rejoin: Option<bool>,
    /// Found the cluster after each host of --join has answered that it has none. The same settings then serve
    /// for every start
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) found: Option<bool>,
    /// Found the cluster even if hosts of --join do not answer. Only use it if none of them can be in this
    /// cluster: otherwise there will be two of one name
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) found_alone: Option<bool>,
    /// Run without a key: every process that can reach the address can connect. Only use it on a private network
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,
}

impl NodeSettings {
    /// Returns these settings, completed from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            advertise: self.advertise.or(other.advertise),
            join: if self.join.is_empty() { other.join } else { self.join },
            cluster: self.cluster.or(other.cluster),
            memory_bytes: self.memory_bytes.or(other.memory_bytes),
            cache_bytes: self.cache_bytes.or(other.cache_bytes),
            line_bytes: self.line_bytes.or(other.line_bytes),
            nodes_max: self.nodes_max.or(other.nodes_max),
            key: self.key.or(other.key),
            protect: self.protect.or(other.protect),
            fabric: self.fabric.or(other.fabric),
            device: self.device.or(other.device),
            rdma: if self.rdma.is_empty() { other.rdma } else { self.rdma },
            congestion: self.congestion.or(other.congestion),
            lease: self.lease.or(other.lease),
            rejoin: self.rejoin.or(other.rejoin),
            found: self.found.or(other.found),
            found_alone: self.found_alone.or(other.found_alone),
            insecure: self.insecure.or(other.insecure),
        }
    }
}

/// The kernel's congestion control for TCP connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CongestionName {
    /// The system default, or cubic or reno if that is BBR, which arms a timer for every segment
    Unpaced,
    /// The system default, also if it is BBR: for long routes that lose packets
    System,
}

impl CongestionName {
    /// Returns the congestion control for TCP; an error if one is given for another fabric.
    pub(crate) fn of(asked: Option<Self>, over_tcp: bool) -> Result<Congestion, Failure> {
        match asked {
            Some(_) if !over_tcp => Err(Failure::usage("--congestion is for --fabric tcp")),
            None | Some(Self::Unpaced) => Ok(Congestion::Unpaced),
            Some(Self::System) => Ok(Congestion::System),
        }
    }
}

/// A fabric between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HostFabric {
    /// TCP
    Tcp,
    /// InfiniBand or RoCE, by libibverbs
    Verbs,
}

impl HostFabric {
    /// Returns its name.
    pub(crate) const fn name(self) -> &'static str {
        self.scheme().name()
    }

    /// The facade's form.
    pub(crate) const fn scheme(self) -> Scheme {
        match self {
            Self::Tcp => Scheme::Tcp,
            Self::Verbs => Scheme::Verbs,
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside agent --listen 0.0.0.0:7401 --key cluster.key              on each host
  farside demo --on 10.0.0.1:7401,10.0.0.2:7401,10.0.0.3:7401 --key cluster.key
  farside agent --listen 127.0.0.1:7401 --insecure                   to try it out on one machine

An agent starts `farside worker` processes of its own program for commands on other hosts, and nothing else.
Workers access no files, and end with their command. Every holder of the key can use this host's memory and
processors through the agent. With a key, connections between commands and agents use TLS 1.3; --protect of the
command applies to the traffic between nodes.")]
pub(crate) struct Agent {
    /// Address of the agent; port 0 selects a free port
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Endpoint,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Maximum number of workers
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers_max: u16,
    /// Run without a key on a loopback address, for commands of this user only
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// The hosts of a command's node processes, and the fabric between them.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Places {
    /// Fabric between nodes; by default tcp with --on, otherwise shm
    #[arg(long)]
    pub(crate) fabric: Option<WorkerFabric>,
    /// Distribute the processes round-robin over these agents (see farside agent)
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) on: Vec<Endpoint>,
    /// Applied on each host.
    #[command(flatten)]
    pub(crate) rdma: Rdma,
    /// The file with the cluster's key, for several hosts (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// What TLS 1.3 protects of the traffic between nodes; by default everything if there is a key
    #[arg(long)]
    pub(crate) protect: Option<Protection>,
}

/// A fabric between the processes of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum WorkerFabric {
    /// Shared memory of this machine
    Shm,
    /// TCP, on the loopback or between hosts
    Tcp,
    /// InfiniBand or RoCE, by libibverbs
    Verbs,
}

/// Deserializes a value from its text form.
fn parsed<'de, D: Deserializer<'de>, T>(from: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
{
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

fn all_parsed<'de, D: Deserializer<'de>, T>(from: D) -> Result<Vec<T>, D::Error>
where
    T: FromStr<Err: fmt::Display>,
{
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
}

/// Deserializes a size: a number of bytes, or a text such as "256M".
fn some_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes, or a text such as \"256M\"")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
            let wrong = |_| E::invalid_value(Unexpected::Signed(number), &self);
            u64::try_from(number).map_err(wrong)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            bytes(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
    from.deserialize_any(Bytes).map(Some)
}

/// Deserializes a time in seconds, with the limits of the flag.
fn some_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let number = f64::deserialize(from)?;
    seconds(&number.to_string()).map(Some).map_err(D::Error::custom)
}
