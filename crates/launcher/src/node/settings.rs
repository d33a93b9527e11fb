//! A node of a cluster of several hosts: the settings of its flags and its file.

use farside_bootstrap::Endpoint;
use farside_command::settings::{CongestionName, DeviceName, HostFabric, Protection, RdmaOption};
use farside_command::units::{bytes, seconds};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A node, by its flags and its file.
#[derive(Debug)]
pub struct Node {
    /// These take precedence over the file.
    pub settings: NodeSettings,
    /// A file of settings.
    pub config: Option<PathBuf>,
    /// It is a witness.
    pub witness: bool,
}

/// The settings of a node, from flags or from a file with the same names.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSettings {
    /// Address of this node; port 0 selects a free port.
    #[serde(deserialize_with = "parsed")]
    pub listen: Option<Endpoint>,
    /// Address that other nodes connect to, if it differs.
    #[serde(deserialize_with = "parsed")]
    pub advertise: Option<Endpoint>,
    /// Members to join at, tried in this order.
    #[serde(deserialize_with = "all_parsed")]
    pub join: Vec<Endpoint>,
    /// The cluster's name.
    pub cluster: Option<String>,
    /// Global memory of this node.
    #[serde(deserialize_with = "some_bytes")]
    pub memory_bytes: Option<u64>,
    /// The folder that keeps this node's memory.
    pub state: Option<PathBuf>,
    /// Whether that folder is on persistent memory.
    pub persistent_memory: Option<bool>,
    /// Addresses of memory that keeps this node's memory instead.
    pub state_copies: Vec<String>,
    /// The least of them to start with, and to continue with when others are lost.
    pub state_copies_min: Option<u8>,
    /// Whether it waits while another process uses its state.
    pub standby: Option<bool>,
    /// The folder to which it saves its memory when it leaves.
    pub drain_to: Option<PathBuf>,
    /// Addresses of memory to which it saves its memory instead.
    pub drain_to_copies: Vec<String>,
    /// Cache of this node.
    #[serde(deserialize_with = "some_bytes")]
    pub cache_bytes: Option<u64>,
    /// Line size of allocations that specify none.
    pub line_bytes: Option<u32>,
    /// Maximum number of members; the founder's setting applies.
    pub nodes_max: Option<u16>,
    /// The file with the cluster's key.
    pub key: Option<PathBuf>,
    /// `None` for everything, if there is a key.
    pub protect: Option<Protection>,
    /// `None` for TCP.
    pub fabric: Option<HostFabric>,
    /// The device of the verbs fabric; `None` for the one that the fabric chooses.
    #[serde(deserialize_with = "parsed")]
    pub device: Option<DeviceName>,
    /// Further options of the verbs fabric.
    pub rdma: Vec<RdmaOption>,
    /// Congestion control of TCP; `None` for the default.
    pub congestion: Option<CongestionName>,
    /// Seconds after which an unreachable member is removed.
    #[serde(deserialize_with = "some_seconds")]
    pub lease: Option<f64>,
    /// Whether to join again, as a new node, after isolation.
    pub rejoin: Option<bool>,
    /// Whether it founds the cluster after the hosts of `join` have answered that they have none.
    pub found: Option<bool>,
    /// Whether it founds the cluster without these answers.
    pub found_alone: Option<bool>,
    /// Whether it runs without a key.
    pub insecure: Option<bool>,
}

impl NodeSettings {
    /// Parses the text of a file; an error has the line and the name.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())
    }

    /// Returns these settings, completed from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            advertise: self.advertise.or(other.advertise),
            join: if self.join.is_empty() { other.join } else { self.join },
            cluster: self.cluster.or(other.cluster),
            memory_bytes: self.memory_bytes.or(other.memory_bytes),
            state: self.state.or(other.state),
            persistent_memory: self.persistent_memory.or(other.persistent_memory),
            state_copies: match self.state_copies.is_empty() {
                true => other.state_copies,
                false => self.state_copies,
            },
            state_copies_min: self.state_copies_min.or(other.state_copies_min),
            standby: self.standby.or(other.standby),
            drain_to: self.drain_to.or(other.drain_to),
            drain_to_copies: match self.drain_to_copies.is_empty() {
                true => other.drain_to_copies,
                false => self.drain_to_copies,
            },
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
