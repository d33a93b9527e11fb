//! The choice of a remote persistent write: a decision table.

use super::facts::{Known, TargetFacts};
use super::hints::{HintOutcome, RemoteHint, RemoteHints, RemotePrimitive};
use crate::{Error, ErrorCode};
use farside_base::{Capabilities, FlushScope, WordScope};

/// Bytes from which DDIO halves the bandwidth of a WRITE (002 §4.1, Figure 11).
const DDIO_LARGE_BYTES: u64 = 64 << 10;
/// Bytes of a cache line, and of what an adapter writes at once (002 §2.1).
const LINE_BYTES: u64 = 64;
/// Lines of the medium of all known persistent memory (002 §2.1): assumed if the facts do not say it.
const MEDIA_BYTES: u64 = 256;
/// Threads that may write to one DIMM without loss (002 Figure 10a).
const WRITERS_PER_DIMM: u32 = 4;

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum RemoteRole {
    /// A record at the tail of a log.
    Log,
    /// A record in its place.
    Record,
    /// Records, and a word of 8 bytes that makes them valid.
    CommitWord,
    /// A lock or another word for atomics, which needs no persistence.
    Lock,
}

/// A write to plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RemoteWrite {
    /// What it is.
    pub role: RemoteRole,
    /// Offset of the first byte in the region, which begins at a line of the medium.
    pub offset: u64,
    /// Bytes to write.
    pub bytes: u64,
    /// Bytes from `offset` on that belong to the writer: padding may overwrite them with zeros.
    pub room_bytes: u64,
}

impl RemoteWrite {
    /// A record of `bytes` in a slot of `room_bytes`.
    pub const fn record(offset: u64, bytes: u64, room_bytes: u64) -> Self {
        Self { role: RemoteRole::Record, offset, bytes, room_bytes }
    }

    /// A record of a log, behind which only its own padding follows.
    pub const fn log(offset: u64, bytes: u64) -> Self {
        let padded = bytes.saturating_add(MEDIA_BYTES).checked_next_multiple_of(MEDIA_BYTES);
        let room_bytes = match padded {
            Some(padded) => padded,
            None => u64::MAX,
        };
        Self { role: RemoteRole::Log, offset, bytes, room_bytes }
    }

    /// Records of `bytes` in a slot, and a word that makes them valid.
    pub const fn commit(offset: u64, bytes: u64, room_bytes: u64) -> Self {
        Self { role: RemoteRole::CommitWord, offset, bytes, room_bytes }
    }

    /// A lock.
    pub const fn lock(offset: u64) -> Self {
        Self { role: RemoteRole::Lock, offset, bytes: 8, room_bytes: 8 }
    }
}

/// How a write becomes persistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum RemoteWay {
    /// WRITE and FLUSH to persistence (IBTA annex A19).
    Flush,
    /// WRITE and READ: the answer comes once the WRITE is in the target's memory system (002 §4.3).
    Read,
    /// A message to a program at the target, which stores, and answers.
    Program,
    /// WRITEs or atomics in DRAM: not persistent.
    Volatile,
}

/// The memory that a write belongs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RemoteMemoryKind {
    /// Persistent memory.
    Persistent,
    /// DRAM.
    Volatile,
}

/// How a program at the target stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum TargetStores {
    /// Non-temporal stores, and a fence.
    NonTemporal,
    /// Plain stores, write-backs of their cache lines, and a fence.
    WriteBack,
}

/// A chosen way. Made by [`choose`](Self::choose).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemotePlan {
    pub(super) write: RemoteWrite,
    pub(super) way: RemoteWay,
    pub(super) why: &'static str,
    pub(super) align_bytes: u64,
    pub(super) padded_bytes: u64,
    pub(super) stores: TargetStores,
    pub(super) writers_per_dimm_max: Option<u32>,
    pub(super) port: Option<usize>,
    pub(super) is_one_doorbell: bool,
    pub(super) has_atomic_write: bool,
    pub(super) outcomes: [HintOutcome; 9],
}

impl RemotePlan {
    /// Chooses the way of a write. A pure function of its arguments.
    ///
    /// # Errors
    /// `FabricLacks` if no way makes it persistent: the text says which fact or capability is missing.
    /// `BadConfiguration` if the write is longer than its room.
    ///
    /// *Source*: 002 §4 and Table 3; IBTA annex A19 for FLUSH.
    pub fn choose(
        capabilities: &Capabilities,
        facts: &TargetFacts,
        hints: RemoteHints,
        write: &RemoteWrite,
    ) -> Result<Self, Error> {
        if write.bytes > write.room_bytes || write.offset.checked_add(write.room_bytes).is_none() {
            let text = format!(
                "a remote write of {} B at {} in a room of {} B: write no more than the room, within 64 bits",
                write.bytes, write.offset, write.room_bytes
            );
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let (way, why) = way_of(capabilities, facts, hints, write)?;
        let mut plan = Self {
            write: *write,
            way,
            why,
            align_bytes: 1,
            padded_bytes: write.bytes,
            stores: TargetStores::WriteBack,
            writers_per_dimm_max: None,
            port: None,
            is_one_doorbell: true,
            has_atomic_write: way == RemoteWay::Flush && capabilities.atomic_write,
            outcomes: [HintOutcome::Off; 9],
        };
        for hint in RemoteHint::ALL {
            let outcome =
                if hints.has(hint) { plan.apply(hint, facts, hints) } else { HintOutcome::Off };
            plan.outcomes[hint.index()] = outcome;
        }
        let has = |hint| matches!(plan.outcome(hint), HintOutcome::Applied(_));
        plan.is_one_doorbell =
            matches!(way, RemoteWay::Program | RemoteWay::Volatile) || has(RemoteHint::H9);
        Ok(plan)
    }

    /// Applies a hint that is switched on.
    fn apply(&mut self, hint: RemoteHint, facts: &TargetFacts, hints: RemoteHints) -> HintOutcome {
        let is_two_sided = self.way == RemoteWay::Program;
        let is_other = match hint.primitive() {
            RemotePrimitive::Both => false,
            RemotePrimitive::OneSided => is_two_sided,
            RemotePrimitive::TwoSided => !is_two_sided,
        };
        // H3 has decided against WRITEs then.
        if is_other && hint != RemoteHint::H3 {
            return HintOutcome::OtherPrimitive;
        }
        if self.way == RemoteWay::Volatile && !matches!(hint, RemoteHint::H1 | RemoteHint::H8) {
            return HintOutcome::NoNeed("the write is to DRAM");
        }
        let is_small = self.write.bytes < media_bytes(facts);
        match hint {
            RemoteHint::H1 => self.choose_port(facts),
            RemoteHint::H2 => {
                self.writers_per_dimm_max = Some(WRITERS_PER_DIMM);
                HintOutcome::Applied("at most 4 threads write to a DIMM at a time")
            }
            RemoteHint::H3 => self.explain_ddio(facts),
            RemoteHint::H4 if is_small => HintOutcome::NoNeed("the write is small: see H7"),
            RemoteHint::H4 => {
                self.stores = TargetStores::NonTemporal;
                HintOutcome::Applied("the target stores past its caches")
            }
            RemoteHint::H5 if is_small && hints.has(small_hint(self.way)) => {
                HintOutcome::NoNeed("the write is small: see H6 and H7")
            }
            RemoteHint::H5 => self.pad(media_bytes(facts), "padded to lines of the medium"),
            RemoteHint::H6 if !is_small => {
                HintOutcome::NoNeed("the write has a line of the medium or more: see H5")
            }
            RemoteHint::H6 => self.pad(LINE_BYTES, "padded to 64 B"),
            RemoteHint::H7 if !is_small => {
                HintOutcome::NoNeed("the write has a line of the medium or more: see H4 and H5")
            }
            RemoteHint::H7 => {
                self.stores = TargetStores::NonTemporal;
                match self.pad(LINE_BYTES, "whole cache lines, stored past the caches") {
                    HintOutcome::Impossible(_) => {
                        HintOutcome::Applied("stored past the caches, but in parts of cache lines")
                    }
                    outcome => outcome,
                }
            }
            RemoteHint::H8 if self.way == RemoteWay::Volatile => {
                HintOutcome::Applied("the lock is in DRAM")
            }
            RemoteHint::H8 => HintOutcome::NoNeed("the write is no lock"),
            RemoteHint::H9 => {
                HintOutcome::Applied("the confirmation is outstanding with the WRITE")
            }
        }
    }

    fn choose_port(&mut self, facts: &TargetFacts) -> HintOutcome {
        self.port = facts.near_port();
        match (self.port, facts.memory_socket) {
            (Some(_), _) => HintOutcome::Applied("a port on the socket of the memory"),
            (None, None) => HintOutcome::Impossible("the socket of the memory is unknown"),
            (None, Some(_)) => HintOutcome::Impossible("no port is known to be on that socket"),
        }
    }

    fn explain_ddio(&self, facts: &TargetFacts) -> HintOutcome {
        match (self.way, facts.ddio) {
            (RemoteWay::Program, Known::No) => HintOutcome::NoNeed("DDIO is off"),
            (RemoteWay::Program, Known::Yes | Known::Unknown) if !is_ddio_large(&self.write) => {
                HintOutcome::NoNeed("the write is small")
            }
            (RemoteWay::Program, Known::Yes) => {
                HintOutcome::Applied("DDIO is on and the write is large: by message")
            }
            (RemoteWay::Program, Known::Unknown) => HintOutcome::Applied(
                "DDIO is not known to be off and the write is large: by message",
            ),
            (_, Known::No) => HintOutcome::Applied("DDIO is off: by WRITE"),
            (_, Known::Yes | Known::Unknown) if is_ddio_large(&self.write) => {
                HintOutcome::Impossible(
                    "DDIO is not known to be off, and FLUSH or a missing program decides for WRITE",
                )
            }
            (_, Known::Yes | Known::Unknown) => HintOutcome::NoNeed("the write is small"),
        }
    }

    /// Pads the write to multiples of `unit` bytes.
    fn pad(&mut self, unit: u64, what: &'static str) -> HintOutcome {
        let padded = self.write.bytes.checked_next_multiple_of(unit);
        if !self.write.offset.is_multiple_of(unit) {
            return HintOutcome::Impossible("the address is not aligned to it");
        }
        let Some(padded) = padded.filter(|padded| *padded <= self.write.room_bytes) else {
            return HintOutcome::Impossible("the room ends before it");
        };
        if padded == self.write.bytes {
            self.align_bytes = unit;
            return HintOutcome::NoNeed("the write is a multiple of it");
        }
        (self.align_bytes, self.padded_bytes) = (unit, padded);
        HintOutcome::Applied(what)
    }

    /// Returns the way.
    pub const fn way(&self) -> RemoteWay {
        self.way
    }

    /// Returns the write.
    pub const fn write(&self) -> &RemoteWrite {
        &self.write
    }

    /// Returns the memory that it belongs in.
    pub const fn memory(&self) -> RemoteMemoryKind {
        match self.way {
            RemoteWay::Volatile => RemoteMemoryKind::Volatile,
            RemoteWay::Flush | RemoteWay::Read | RemoteWay::Program => RemoteMemoryKind::Persistent,
        }
    }

    /// Returns the alignment that padding has brought: 256, 64, or 1 for none.
    pub const fn align_bytes(&self) -> u64 {
        self.align_bytes
    }

    /// Returns the bytes that are written, zeros after those of the write included.
    pub const fn padded_bytes(&self) -> u64 {
        self.padded_bytes
    }

    /// Returns how the program at the target stores.
    pub const fn stores(&self) -> TargetStores {
        self.stores
    }

    /// Returns the most threads of the target that write to a DIMM at a time; `None` for any number.
    pub const fn writers_per_dimm_max(&self) -> Option<u32> {
        self.writers_per_dimm_max
    }

    /// Returns the port to use, by its number in [`TargetFacts::port_sockets`]; `None` for any.
    pub const fn port(&self) -> Option<usize> {
        self.port
    }

    /// Returns whether WRITE and confirmation are posted with one doorbell, and take one round trip.
    pub const fn is_one_doorbell(&self) -> bool {
        self.is_one_doorbell
    }

    /// Returns whether a commit word follows its records with the same doorbell, by ATOMIC WRITE.
    pub const fn is_word_behind(&self) -> bool {
        self.has_atomic_write && self.is_one_doorbell
    }

    /// Returns the outcome of a hint.
    pub const fn outcome(&self, hint: RemoteHint) -> HintOutcome {
        self.outcomes[hint.index()]
    }
}

/// The bytes of a line of the medium.
fn media_bytes(facts: &TargetFacts) -> u64 {
    if facts.media_bytes == 0 { MEDIA_BYTES } else { u64::from(facts.media_bytes) }
}

/// The hint about small writes, which replaces H5 for them (002 §4.2).
const fn small_hint(way: RemoteWay) -> RemoteHint {
    match way {
        RemoteWay::Program => RemoteHint::H7,
        RemoteWay::Flush | RemoteWay::Read | RemoteWay::Volatile => RemoteHint::H6,
    }
}

/// Room for the headers of a message to the program at the target.
const MESSAGE_HEADERS: u64 = 2048;

/// Whether DDIO costs bandwidth.
const fn is_ddio_large(write: &RemoteWrite) -> bool {
    write.bytes >= DDIO_LARGE_BYTES
}

/// The decision table.
fn way_of(
    has: &Capabilities,
    facts: &TargetFacts,
    hints: RemoteHints,
    write: &RemoteWrite,
) -> Result<(RemoteWay, &'static str), Error> {
    let message_bytes = write.bytes.saturating_add(MESSAGE_HEADERS);
    let by_program =
        has.send && facts.has_program && message_bytes <= u64::from(has.send_bytes_max);
    // A commit word is written whole, by ATOMIC WRITE or as an aligned word of a WRITE.
    let has_words = write.role != RemoteRole::CommitWord || has.words != WordScope::None;
    let by_flush =
        has.write && has.flush == FlushScope::Persistent && (has_words || has.atomic_write);
    let is_ordered = has.write && has.read && has.message_order && has_words;
    let by_read = is_ordered && facts.read_means_persistent();
    let avoids_ddio =
        hints.has(RemoteHint::H3) && facts.ddio != Known::No && is_ddio_large(write) && by_program;
    if write.role == RemoteRole::Lock && hints.has(RemoteHint::H8) {
        return Ok((RemoteWay::Volatile, "locks need no persistence"));
    }
    if by_flush {
        return Ok((RemoteWay::Flush, "the fabric has FLUSH to persistence"));
    }
    if by_read && !avoids_ddio {
        let why = match facts.caches_persist {
            Known::Yes => "caches persist: what a READ has passed is in them",
            Known::No | Known::Unknown => {
                "DDIO is off: what a READ has passed is in the memory controller"
            }
        };
        return Ok((RemoteWay::Read, why));
    }
    if by_program {
        let why = if by_read {
            "DDIO is not known to be off and the write is large"
        } else {
            "the fabric has no FLUSH to persistence, and a READ would confirm nothing"
        };
        return Ok((RemoteWay::Program, why));
    }
    Err(refusal(has, facts, is_ordered))
}

/// Says why no way is left.
fn refusal(has: &Capabilities, facts: &TargetFacts, is_ordered: bool) -> Error {
    let flush = "no FLUSH to persistence";
    let read = if !is_ordered {
        "no READs in order behind WRITEs, or words that tear"
    } else if facts.ddio == Known::Yes {
        "DDIO is on and caches are not known to persist: switch DDIO off at the target"
    } else if facts.ddio == Known::No {
        "no adapter is known to write the bytes: set adapter_writes for one in hardware"
    } else {
        "DDIO is not known to be off: run farside doctor at the target, and set the fact"
    };
    let program = if has.send && facts.has_program {
        "the write is longer than a message of this fabric"
    } else if has.send {
        "no program at the target that stores: run a RemoteStore there"
    } else {
        "no messages"
    };
    Error::with(ErrorCode::FabricLacks, format!("persistent write: {flush}; {read}; {program}"))
}

/// Plans the writes to one target, and counts the hints that it applied.
///
/// *Cost*: some comparisons a plan; only errors allocate.
#[derive(Clone, Debug)]
pub struct RemotePlanner {
    capabilities: Capabilities,
    facts: TargetFacts,
    hints: RemoteHints,
    applied: [u64; 9],
    plans: u64,
}

impl RemotePlanner {
    /// Creates a planner with all hints.
    pub const fn new(capabilities: Capabilities, facts: TargetFacts) -> Self {
        Self { capabilities, facts, hints: RemoteHints::ALL, applied: [0; 9], plans: 0 }
    }

    /// Replaces the hints that are switched on.
    #[must_use]
    pub const fn hints(mut self, hints: RemoteHints) -> Self {
        self.hints = hints;
        self
    }

    /// Plans a write, and counts.
    ///
    /// # Errors
    /// As [`RemotePlan::choose`].
    pub fn plan(&mut self, write: &RemoteWrite) -> Result<RemotePlan, Error> {
        let plan = RemotePlan::choose(&self.capabilities, &self.facts, self.hints, write)?;
        self.plans += 1;
        for (count, outcome) in self.applied.iter_mut().zip(&plan.outcomes) {
            *count += u64::from(matches!(outcome, HintOutcome::Applied(_)));
        }
        Ok(plan)
    }

    /// Returns the number of plans whose outcome for a hint is [`HintOutcome::Applied`]. Some of them are the same without
    /// the hint: every WRITE with DDIO off counts for H3.
    pub const fn applied(&self, hint: RemoteHint) -> u64 {
        self.applied[hint.index()]
    }

    /// Returns the number of plans.
    pub const fn plans(&self) -> u64 {
        self.plans
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
