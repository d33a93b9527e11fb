//! Reads a state back from its log.

use super::contents::{Contents, RecordOrigin};
use super::pass::Pass;
use super::record::{RecordFault, StateRecord, VERSION};
use super::types::{Allocation, Restored};
use crate::durable::recovery::LogVisitor;
use crate::durable::{RecordTag, Recovered};
use crate::record::RecordHeader;
use crate::{Error, ErrorCode, canary};

/// Applies the records of a log, while it is opened.
pub(super) struct Replay {
    contents: Contents,
    memory_bytes: u64,
    origin: Option<RecordOrigin>,
    pass: Option<Pass>,
    live: u64,
    records: u64,
    bytes: u64,
    /// The first record that is none of a state.
    damage: Option<String>,
}

impl Replay {
    pub(super) fn new(memory_bytes: u64) -> Self {
        Self {
            contents: Contents::new(memory_bytes),
            memory_bytes,
            origin: None,
            pass: None,
            live: 0,
            records: 0,
            bytes: 0,
            damage: None,
        }
    }

    /// Returns what was read.
    pub(super) fn restored(&self, found: &Recovered) -> Restored {
        let spans = self.contents.allocations.values().filter_map(Allocation::span);
        Restored {
            records: self.records,
            bytes: self.bytes,
            allocations: self.contents.allocations.len() as u64,
            allocated_bytes: spans.sum(),
            end: found.end,
            cut: found.cut,
        }
    }

    /// Returns the contents, the pass in flight, and the bytes that the last whole pass has restated.
    pub(super) fn into_parts(self) -> (Contents, Option<Pass>, u64) {
        let pass = match canary::mutant!(canary::nodes(), StatePassForgotten) {
            // Taken for one that has restated all.
            true => self.pass.map(|pass| Pass { cursor: u64::MAX, ..pass }),
            false => self.pass,
        };
        (self.contents, pass, self.live)
    }

    fn foreign(text: String) -> Error {
        Error::with(ErrorCode::StateForeign, text)
    }

    /// Follows the pass that the records are of. Records of one whose beginning was trimmed are ignored.
    fn follow(&mut self, record: &StateRecord<'_>, position: u64, payload: usize) {
        if let StateRecord::PassBegin = record {
            self.pass = Some(Pass::new(position));
        }
        if let StateRecord::PassEnd { restated, .. } = record {
            self.live = *restated;
        }
        let Some(pass) = &mut self.pass else { return };
        let takes = RecordHeader::footprint(payload as u64);
        match record {
            StateRecord::Identity(_) | StateRecord::Saving(_) => pass.has_identity = true,
            // At least a byte, so that a pass that is interrupted again and again continues.
            StateRecord::Restated { offset, bytes, .. } => {
                pass.cursor = offset + (bytes.len() as u64).max(1);
                pass.restated += takes;
            }
            StateRecord::RestatedBytes { offset, bytes } => {
                pass.cursor = offset + bytes.len() as u64;
                pass.restated += takes;
            }
            StateRecord::PassEnd { begin, .. } if *begin == pass.begin => {
                pass.end = Some(position + takes);
            }
            _ => {}
        }
    }
}

impl LogVisitor for Replay {
    fn record(&mut self, tag: RecordTag, position: u64, payload: &[u8]) -> Result<(), Error> {
        let origin = *self.origin.get_or_insert(match position {
            0 => RecordOrigin::WholeLog,
            _ => RecordOrigin::TrimmedLog,
        });
        self.records += 1;
        self.bytes += payload.len() as u64;
        let record = match StateRecord::decode(tag, payload) {
            Ok(record) => record,
            Err(RecordFault::Version(version)) => {
                let text = format!("a state of version {version}; this Farside reads {VERSION}");
                return Err(Self::foreign(text));
            }
            Err(RecordFault::Meaningless(why)) => {
                self.damage.get_or_insert_with(|| format!("{why} at position {position}"));
                return Ok(());
            }
        };
        if let StateRecord::Identity(identity) | StateRecord::Saving(identity) = &record
            && identity.memory_bytes != self.memory_bytes
        {
            let text = format!(
                "a state of a memory of {} B; memory_bytes is {}",
                identity.memory_bytes, self.memory_bytes
            );
            return Err(Self::foreign(text));
        }
        // After damage only the identity is of interest: it says whether the state is of this memory at all.
        if self.damage.is_some() {
            self.contents.identity = match record {
                StateRecord::Identity(identity) | StateRecord::Saving(identity) => Some(identity),
                _ => self.contents.identity.take(),
            };
            return Ok(());
        }
        match self.contents.check(&record, origin) {
            Ok(()) => {
                self.contents.apply(&record);
                self.follow(&record, position, payload.len());
            }
            Err(why) => self.damage = Some(format!("{why}, by the record at position {position}")),
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        if self.records > 0 && self.contents.identity.is_none() {
            return Err(Self::foreign("the log is not of a memory's state".to_owned()));
        }
        match self.damage.take() {
            Some(why) => Err(Error::with(ErrorCode::LogDamaged, why)),
            None => Ok(()),
        }
    }
}
