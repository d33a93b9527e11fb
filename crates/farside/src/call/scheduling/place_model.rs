//! The cost of a call at a place before any measurement (003 §5.1): latency, processor time and bytes by price.

use std::sync::Arc;

/// The processor whose time a call takes at a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Processor {
    /// A core of the caller.
    Client,
    /// The processor next to the adapter that serves the memory.
    Nic,
    /// A core of the memory's host.
    Host,
}

/// The price of each resource, in units of the user's choice (003 §5.1). By convention a microsecond of latency
/// costs one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prices {
    /// A microsecond from call to answer.
    pub latency: f64,
    /// A microsecond of the client's core.
    pub client_core: f64,
    /// A microsecond of the processor next to the adapter.
    pub nic_core: f64,
    /// A microsecond of the host's core.
    pub host_core: f64,
    /// A KiB through the network.
    pub network: f64,
}

impl Prices {
    /// Prices latency alone.
    pub const LATENCY: Self =
        Self { latency: 1.0, client_core: 0.0, nic_core: 0.0, host_core: 0.0, network: 0.0 };

    const fn core(&self, core: Processor) -> f64 {
        match core {
            Processor::Client => self.client_core,
            Processor::Nic => self.nic_core,
            Processor::Host => self.host_core,
        }
    }
}

/// The predicted cost of a call at a place, before any measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaceModel {
    /// Name for people.
    pub name: Arc<str>,
    /// The processor whose time it takes.
    pub core: Processor,
    /// Network round trip; zero at the caller.
    pub round_trip_ns: u64,
    /// Time until the call begins: scheduling, and queueing as far as it is known.
    pub start_ns: u64,
    /// Time of each access to the memory from this place.
    pub access_ns: u64,
    /// Bytes of a call and its answer through the network.
    pub call_bytes: u64,
    /// Bytes of an access through the network.
    pub access_bytes: u64,
}

impl PlaceModel {
    /// Returns the latency from call to answer.
    pub const fn latency_ns(&self, accesses: u64) -> u64 {
        let there = self.access_ns.saturating_mul(accesses);
        self.round_trip_ns.saturating_add(self.start_ns).saturating_add(there)
    }

    /// Returns the cost of a call with this latency: the latency itself, the processor from arrival to answer, and
    /// the network.
    pub fn cost(&self, latency_ns: f64, accesses: u64, prices: &Prices) -> f64 {
        let at_core_ns = (latency_ns - self.round_trip_ns as f64).max(0.0);
        let bytes = self.access_bytes.saturating_mul(accesses).saturating_add(self.call_bytes);
        (latency_ns * prices.latency + at_core_ns * prices.core(self.core)) / 1e3
            + bytes as f64 * prices.network / 1024.0
    }
}
