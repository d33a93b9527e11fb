//! Arguments of commands that reach other hosts.

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
      key = \"cluster.key\"                       beside the file, unless the path says otherwise
      memory_bytes = \"4G\"

Without --join the node founds the cluster, each time that it is started: give the founder --found and the
others' addresses, and it joins them when they are there. Any member will do to join at; name several, for
one may be down. A node that finds no cluster waits for one. A founder with --join founds once each of these
hosts has answered that it has none, which a waiting node does; --found-alone does without their answers. With
--json there is an object a line for each event: waiting, started, member_joined, member_lost, isolated,
not_joined, other_cluster, ended, each with its `time` (RFC 3339, UTC). Events that are not read in time are
dropped, and the next one that is written counts them (`dropped`). Of two clusters of one name that meet, the
nodes say so (other_cluster): the two never merge.

Whoever can reach an address without a key can read and write all memory. With a key TCP travels under
TLS 1.3: `--protect everything`, which is the default, covers the data too; `--protect handshake` only
who is who and the keys of memory. Data packets of RDMA fabrics are plain text, whatever the handshake:
keep those on a network of their own.

Over verbs --rdma takes several of its words with commas between; in a file: rdma = [\"connection-manager\"].
All nodes must connect alike.")]
pub(crate) struct Node {
    #[command(flatten)]
    pub(crate) settings: NodeSettings,
    /// Settings from a TOML file: these flags, with underscores; flags win
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,
}

/// How a node is set up: flags, and by the same names what a file may say.
#[derive(Args, Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NodeSettings {
    /// Where this node is reached; port 0 is any that is free
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(deserialize_with = "parsed")]
    pub(crate) listen: Option<Endpoint>,
    /// What others call, where that is another address: behind a translation, or with --listen 0.0.0.0
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(deserialize_with = "parsed")]
    pub(crate) advertise: Option<Endpoint>,
    /// Members to join at, tried in this order; without, the node founds the cluster
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
    /// Line size of allocations that name none, 64 to 65536 [default: 512]
    #[arg(long, value_name = "BYTES")]
    pub(crate) line_bytes: Option<u32>,
    /// Members that the cluster can have at a time, 1 to 256; its founder's counts [default: 128]
    #[arg(long, value_name = "COUNT")]
    pub(crate) nodes_max: Option<u16>,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// What travels under TLS 1.3; by default everything with a key, nothing without
    #[arg(long)]
    pub(crate) protect: Option<Protection>,
    /// Over which fabric, the same on all nodes [default: tcp]
    #[arg(long)]
    pub(crate) fabric: Option<HostFabric>,
    /// Over verbs, this device, its port and GID index; what is left out is found out
    #[arg(long, value_name = "DEVICE[:PORT[:GID]]")]
    #[serde(deserialize_with = "parsed")]
    pub(crate) device: Option<DeviceName>,
    /// Over verbs, what else is asked of it
    #[arg(long, value_name = "OPTION", value_delimiter = ',')]
    pub(crate) rdma: Vec<RdmaOption>,
    /// Over tcp, which congestion control of the kernel [default: unpaced]
    #[arg(long, value_name = "CONTROL")]
    pub(crate) congestion: Option<CongestionName>,
    /// An outage of fewer seconds costs time alone, a longer one its member; the founder's counts for all [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    #[serde(deserialize_with = "some_seconds")]
    pub(crate) lease: Option<f64>,
    /// Whether to join again, as a new node, when the cluster went on without this one [default: true]
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) rejoin: Option<bool>,
    /// Found the cluster once each host of --join has answered that it has none: the same settings then do for
    /// every start
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) found: Option<bool>,
    /// Found it although hosts of --join do not answer: only where none of them can be in this cluster, or there
    /// will be two of one name
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) found_alone: Option<bool>,
    /// Let anybody in who can reach the address: no key, on a network that nobody else is on
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,
}

impl NodeSettings {
    /// These, and where they say nothing the others.
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

/// Which of the kernel's congestion controls TCP connections use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CongestionName {
    /// The system's, but cubic or reno in place of BBR, which arms a timer for every segment
    Unpaced,
    /// The system's, for long ways that lose packets
    System,
}

impl CongestionName {
    /// What is asked for over TCP; refuses to ask another fabric.
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
    /// Its name.
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

An agent starts `farside worker` processes of its own program for commands that were started elsewhere,
and nothing else; these touch no files. They end with the command that wanted them. Whoever holds the key
can use this host's memory and processors through it. What commands say to an agent travels under TLS 1.3 wherever there is a key; --protect
of the command says what the nodes' own traffic does.")]
pub(crate) struct Agent {
    /// Where commands reach it; port 0 is any that is free
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Endpoint,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Most workers at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) workers_max: u16,
    /// Do without a key, on an address of the loopback: for commands of this user alone
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// Where the node processes of a command run.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Places {
    /// Over which fabric nodes reach each other; by default tcp with --on, else shm
    #[arg(long)]
    pub(crate) fabric: Option<WorkerFabric>,
    /// Run the processes at these agents in turn (see farside agent)
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) on: Vec<Endpoint>,
    /// The same at each host.
    #[command(flatten)]
    pub(crate) rdma: Rdma,
    /// The file with the cluster's key, between hosts (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// What of the nodes' traffic travels under TLS 1.3; by default everything with a key
    #[arg(long)]
    pub(crate) protect: Option<Protection>,
}

/// A fabric that the processes of a command can go over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum WorkerFabric {
    /// Shared memory of this machine
    Shm,
    /// TCP, on the loopback or between hosts
    Tcp,
    /// InfiniBand or RoCE, by libibverbs
    Verbs,
}

/// Reads what has a form of its own.
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

/// Reads a number of bytes, or a text like 256M.
fn some_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    struct Bytes;
    impl Visitor<'_> for Bytes {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes, or a text like \"256M\"")
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

/// Reads a time in the bounds of the flag.
fn some_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let number = f64::deserialize(from)?;
    seconds(&number.to_string()).map(Some).map_err(D::Error::custom)
}
