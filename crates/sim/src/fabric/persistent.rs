//! Persistent memory of simulated nodes: which regions are in it, and what requests and processors cost there.
//!
//! | request | effect on the [`NvmSocket`] |
//! | --- | --- |
//! | WRITE | its packets are written as they arrive; memory that takes no more holds the bus and the receive engine |
//! | READ | waits for the lines; earlier WRITEs of its link are accepted before it starts |
//! | atomic | reads a line, and writes it in part |
//! | FLUSH | with the scope `Persistent`, brings cached lines to the DIMMs |
//! | load and store of a program | by [`SimNet::load_persistent`] and [`SimNet::store_persistent`], which charge its clock |
//!
//! Contents of memory do not depend on this module: it gives times, counters and what is durable.

use super::SimNet;
use super::nvm::{NvmAccess, NvmCounters, NvmSocket, NvmWriter};
use super::request::RemotePlace;
use super::world::{LinkEnd, NodeKey, World};
use farside_base::{Access, CompletionKind, FlushScope, RegionId, RegionKind};
use std::io::{Error, ErrorKind};

/// A range that a thread loads or stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorAccess {
    /// The region; one that is not persistent costs nothing.
    pub region: RegionId,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Socket of the thread.
    pub thread_socket: u8,
}

impl SimNet {
    /// Makes the regions that a node registers from now on persistent memory of the socket of its
    /// [placement](Self::place), or ordinary memory again; the node is created if absent.
    ///
    /// # Errors
    /// `InvalidInput` if the hardware profile has no persistent memory. Use one that has, as
    /// [`OPTANE_CX5`](super::OPTANE_CX5).
    pub fn place_persistent(&self, node: &str, persistent: bool) -> std::io::Result<()> {
        let mut world = self.lock();
        if persistent && world.options.hardware.is_none_or(|hardware| hardware.nvm.is_none()) {
            let text = "the hardware profile has no persistent memory";
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let node = world.node_named(node);
        world.nodes[node.0].persistent = persistent;
        Ok(())
    }

    /// Returns the counters of a node's persistent memory at a socket; all zero if it has none.
    pub fn nvm_counters(&self, node: &str, socket: u8) -> NvmCounters {
        self.with_memory(node, socket, NvmSocket::counters).unwrap_or_default()
    }

    /// Returns the lines of 64 bytes that were written to a node's persistent memory at a socket and that a loss of
    /// power now would take.
    pub fn volatile_lines(&self, node: &str, socket: u8) -> usize {
        self.with_memory(node, socket, NvmSocket::volatile_lines).unwrap_or_default()
    }

    /// Charges the running program for storing to persistent memory; returns the time. The bytes are not changed.
    pub fn store_persistent(&self, node: &str, access: &ProcessorAccess, writer: NvmWriter) -> u64 {
        self.charge_persistent(node, access, |memory, at_ps, access| {
            let profile = *memory.profile();
            let times = memory.write(at_ps, access, writer);
            match writer {
                NvmWriter::Store => {
                    times.accepted_ps.max(times.loaded_ps + profile.load_ns * 1_000)
                }
                NvmWriter::NonTemporal => times.accepted_ps + profile.store_ns * 1_000,
                NvmWriter::Adapter => times.accepted_ps,
            }
        })
    }

    /// Charges the running program for loading from persistent memory; returns the time. It reads nothing.
    pub fn load_persistent(&self, node: &str, access: &ProcessorAccess) -> u64 {
        self.charge_persistent(node, access, |memory, at_ps, access| {
            memory.read(at_ps, access) + memory.profile().load_ns * 1_000
        })
    }

    /// Performs an access at the time of the running program, which ends when `run` returns.
    fn charge_persistent(
        &self,
        node: &str,
        access: &ProcessorAccess,
        run: impl FnOnce(&mut NvmSocket, u64, &NvmAccess) -> u64,
    ) -> u64 {
        let mut world = self.lock();
        let at_ns = world.program_ns();
        let Some(node) = world.find_node(node) else {
            return 0;
        };
        let Some(region) = world.nodes[node.0].regions.get(&access.region) else {
            return 0;
        };
        let is_across = region.socket != access.thread_socket;
        let Some((memory, access)) =
            world.memory_at(node, access.region, access.offset, access.bytes, is_across)
        else {
            return 0;
        };
        let spent_ns = run(memory, at_ns * 1_000, &access).div_ceil(1_000).saturating_sub(at_ns);
        drop(world);
        self.spend_ns(spent_ns);
        spent_ns
    }

    fn with_memory<T>(
        &self,
        node: &str,
        socket: u8,
        run: impl FnOnce(&NvmSocket) -> T,
    ) -> Option<T> {
        let world = self.lock();
        let node = world.find_node(node)?;
        world.nvm.get(&(node, socket)).map(run)
    }
}

impl World {
    /// Returns what of this access a fabric checks for memory that it makes itself: persistent memory may be flushed
    /// to persistence.
    pub(super) fn checked_access(&self, node: NodeKey, access: Access) -> Access {
        let flushes = self.options.capabilities.flush == FlushScope::Persistent;
        let owner = &self.nodes[node.0];
        if (owner.persistent || owner.crash.is_some()) && flushes {
            let rest = access.to_bits() & !Access::FLUSH_PERSISTENT.to_bits();
            Access::from_bits(rest).unwrap_or(access)
        } else {
            access
        }
    }

    /// Takes persistent memory for a region that a node registers. Returns its address; `None` for other memory.
    pub(super) fn place_region(
        &mut self,
        node: NodeKey,
        kind: RegionKind,
        bytes: u64,
    ) -> Option<u64> {
        let profile = self.options.hardware.and_then(|hardware| hardware.nvm)?;
        let owner = &self.nodes[node.0];
        if !owner.persistent || kind == RegionKind::Device {
            return None;
        }
        let socket = owner.placement.memory_socket;
        let memory = self.nvm.entry((node, socket)).or_insert_with(|| NvmSocket::new(profile));
        Some(memory.take(bytes))
    }

    /// Returns the memory of a range of a region, and the range in it; `None` if it is not persistent.
    fn memory_at(
        &mut self,
        node: NodeKey,
        region: RegionId,
        offset: u64,
        bytes: u64,
        is_across: bool,
    ) -> Option<(&mut NvmSocket, NvmAccess)> {
        let region = self.nodes[node.0].regions.get(&region)?;
        let socket = region.socket;
        let address = region.persistent_at?.saturating_add(offset);
        let memory = self.nvm.get_mut(&(node, socket))?;
        Some((memory, NvmAccess { address, bytes, is_across }))
    }

    /// As [`memory_at`](Self::memory_at), for a request at the responder's end of a link.
    fn request_memory(
        &mut self,
        end: LinkEnd,
        at: Option<RemotePlace>,
        bytes: u64,
    ) -> Option<(&mut NvmSocket, NvmAccess)> {
        let (token, offset) = at?;
        let is_across = self.is_across(end, token.region);
        let node = self.port(end.port).node;
        self.memory_at(node, token.region, offset, bytes, is_across)
    }

    /// Writes the next `bytes` bytes of an arriving WRITE that begins at `at_ns`. Returns when the memory has taken
    /// them; `None` if the target is not persistent.
    pub(super) fn store_arriving(
        &mut self,
        end: LinkEnd,
        number: u64,
        bytes: u64,
        at_ns: u64,
    ) -> Option<u64> {
        let inbound = self.link_mut(end).inbound(number)?;
        if inbound.message.kind != CompletionKind::Write {
            return None;
        }
        let before = inbound.arrived_bytes;
        inbound.arrived_bytes += bytes;
        let at = inbound.message.at.map(|(token, offset)| (token, offset.saturating_add(before)));
        let (memory, access) = self.request_memory(end, at, bytes)?;
        let times = memory.write(at_ns * 1_000, &access, NvmWriter::Adapter);
        Some(times.accepted_ps.div_ceil(1_000))
    }

    /// Returns when the adapter may fetch bytes that a READ requests at `at_ns`.
    pub(super) fn read_persistent(
        &mut self,
        end: LinkEnd,
        at: Option<RemotePlace>,
        bytes: u64,
        at_ns: u64,
    ) -> u64 {
        let Some((memory, access)) = self.request_memory(end, at, bytes) else {
            return at_ns;
        };
        let profile = memory.profile();
        // The latency of the bus includes that of DRAM.
        let more_ns = profile.load_ns.saturating_sub(profile.dram_load_ns);
        memory.read(at_ns * 1_000, &access).div_ceil(1_000) + more_ns
    }

    /// Returns when the atomic unit has the word, and writes it back.
    pub(super) fn change_persistent(
        &mut self,
        end: LinkEnd,
        at: Option<RemotePlace>,
        at_ns: u64,
    ) -> u64 {
        let read_ns = self.read_persistent(end, at, 8, at_ns);
        let Some((memory, access)) = self.request_memory(end, at, 8) else {
            return at_ns;
        };
        let times = memory.write(read_ns * 1_000, &access, NvmWriter::Adapter);
        read_ns.max(times.accepted_ps.div_ceil(1_000))
    }

    /// Returns when the word of an ATOMIC WRITE that begins at `at_ns` is in memory.
    pub(super) fn write_persistent(
        &mut self,
        end: LinkEnd,
        at: Option<RemotePlace>,
        at_ns: u64,
    ) -> u64 {
        let Some((memory, access)) = self.request_memory(end, at, 8) else {
            return at_ns;
        };
        memory.write(at_ns * 1_000, &access, NvmWriter::Adapter).accepted_ps.div_ceil(1_000)
    }

    /// Returns when a FLUSH that the adapter performs at `at_ns` is done.
    pub(super) fn flush_persistent(&mut self, end: LinkEnd, number: u64, at_ns: u64) -> u64 {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return at_ns;
        };
        let (at, scope, reach) =
            (inbound.message.at, inbound.message.scope, inbound.message.reach as u64);
        if scope != FlushScope::Persistent {
            return at_ns;
        }
        // Zero bytes are the whole region.
        let whole = at.filter(|_| reach == 0).map(|(token, _)| ((token, 0), token.bytes));
        let (at, bytes) = whole.map_or((at, reach), |(at, bytes)| (Some(at), bytes));
        let Some((memory, access)) = self.request_memory(end, at, bytes) else {
            return at_ns;
        };
        memory.flush(at_ns * 1_000, &access).div_ceil(1_000)
    }
}
