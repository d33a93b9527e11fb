//! The terms under which a fabric connects queue pairs.

use crate::core::Core;
use crate::facts::Transport;
use crate::ffi::Terms;
use crate::manager::Manager;
use crate::options::RETRIES;
use crate::token::lock;
use crate::wire::{QueuePairEnd, Ways};

/// The description of a fabric without rdma_cm.
pub(crate) const WITHOUT: &str = "queue pairs connected over the control stream (the default)";

impl Core {
    /// Returns how this side connects.
    pub(crate) fn ways(&self) -> Ways {
        let iwarp = self.device.facts.transport == Transport::Iwarp;
        Ways { manager: self.manager.is_some(), iwarp }
    }

    /// Returns how queue pairs are connected and why, for display.
    pub(crate) fn connecting(&self) -> String {
        self.manager.as_ref().map_or_else(|| WITHOUT.to_owned(), Manager::describe)
    }

    /// Returns why this side cannot connect with that one, in words.
    pub(crate) fn differs(&self, peer: &QueuePairEnd) -> Option<&'static str> {
        let (own, peer_ways) = (self.ways(), peer.ways);
        let own_layer = lock(&self.state).link_layer;
        match () {
            () if own.iwarp != peer_ways.iwarp => Some("one end is iWARP, the other is not"),
            () if own_layer != peer.link_layer => Some("one end is InfiniBand, the other Ethernet"),
            () if own.manager != peer_ways.manager => Some(
                "one end connects queue pairs by rdma_cm, the other does not: set the option \
                 `connection_manager` alike",
            ),
            () => None,
        }
    }

    /// Returns the parameters of a connection for rdma_cm, which its queue pair keeps too.
    pub(crate) fn terms(&self, queue_pair: u32, own: &QueuePairEnd, peer: &QueuePairEnd) -> Terms {
        let route = self.route(own, peer);
        Terms {
            queue_pair,
            reads_out: route.reads_out,
            reads_in: route.reads_in,
            retries: RETRIES,
            not_ready_retries: route.not_ready_retries,
            mtu: route.mtu,
            timeout: route.timeout,
            not_ready_timer: route.not_ready_timer,
        }
    }
}
