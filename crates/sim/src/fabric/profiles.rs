//! Capabilities of the protocols of 001 Table 1 and similar ones, to test channels and refusals against:
//!
//! | constant | requests | messages | order |
//! | --- | --- | --- | --- |
//! | [`INFINIBAND`] | SEND, WRITE, READ, atomics | many packets | of messages and of bytes |
//! | [`ADAPTIVE_ROUTING`] | the same | many packets | none |
//! | [`UNORDERED`](super::UNORDERED) | the same without atomics | many packets | none |
//! | [`EFA`] | SEND, READ | one packet | none |
//! | [`ONE_RMA`] | READ, WRITE by READ | one packet | none |
//! | [`SHARED_MEMORY`](super::SHARED_MEMORY) | SEND, WRITE, READ, atomics with processors too | | as declared |

use super::options::INFINIBAND;
use farside_base::{AtomicScope, Capabilities};

/// InfiniBand or RoCE with adaptive routing: the packets of a message take several routes, and messages and their
/// bytes are placed in order of arrival (001 §2 "Data ordering" and Table 1, note b). The ConnectX-5 product brief:
/// data delivered out of order, "ordered completion semantics" kept.
pub const ADAPTIVE_ROUTING: Capabilities =
    Capabilities { message_order: false, byte_order: false, ..INFINIBAND };

/// The Elastic Fabric Adapter with its scalable reliable datagrams, as described in 001 §2: only SEND and READ, one
/// packet per message, delivered in any order.
///
/// Figures: a packet is about 8 KiB (libfabric, `fi_efa(7)`: "maximum message size of the MTU of the underlying
/// hardware (approximately 8 KiB)"); 32 bytes inline, 2 slices of a SEND and 4 bytes of immediate data are the
/// content of a send descriptor in rdma-core's `efa_io_defs.h`. Newer devices also WRITE and READ more than a packet;
/// neither 001 nor this profile relies on it.
pub const EFA: Capabilities = Capabilities {
    write: false,
    atomics: AtomicScope::None,
    extended_atomics: false,
    message_order: false,
    byte_order: false,
    inline_bytes_max: 32,
    send_bytes_max: 8_192,
    transfer_bytes_max: 8_192,
    slices_max: 2,
    device_bytes_max: 0,
    ..INFINIBAND
};

/// 1RMA (Singhvi et al., *1RMA: Re-envisioning Remote Memory Access for Multi-tenant Datacenters*, SIGCOMM 2020), as
/// described in 001 §2: READs of one packet of 4 KiB at most, in any order, and WRITEs that ask the target to READ,
/// two round trips; this also requires [`SimOptions::write_by_read`](super::SimOptions::write_by_read). No SEND, no
/// immediate data, and no atomics in 001 Table 1. One slice per request, not inline: the target fetches the bytes
/// from memory.
pub const ONE_RMA: Capabilities = Capabilities {
    atomics: AtomicScope::None,
    extended_atomics: false,
    send: false,
    immediate: false,
    message_order: false,
    byte_order: false,
    completion_means_placed: true,
    inline_bytes_max: 0,
    send_bytes_max: 0,
    transfer_bytes_max: 4_096,
    slices_max: 1,
    device_bytes_max: 0,
    ..INFINIBAND
};
