//! GETs by one remote memory call each: `dht_lookup` of the library of calls, at an executor that is part
//! of the bucket's node. It reads bucket and record by the rules of `table.rs`; if it has no result, the
//! caller looks the key up itself, which also updates the directory.

use super::error::DhtError;
use super::layout::bucket_address;
use super::space::Space;
use super::table::TableAccess;
use farside::call::rmc::helpers::status;
use farside::call::rmc::library::{DhtLookup, LibraryEntry};
use farside::call::{CallAnswer, CallOptions, Caller, Program, Ticket};
use farside::{Error, ErrorCode, NodeId, Session};
use std::collections::BTreeMap;
use std::time::Duration;

/// Counts the outcomes of GETs that may use calls. Each is counted once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LookupStats {
    /// Answered by one call.
    pub answered: u64,
    /// Made without a call: the bucket is at a node without an executor, as this one is, or the key has
    /// more than 64 bytes.
    pub direct: u64,
    /// Repeated without a call, since the bucket was split or being split.
    pub moved: u64,
    /// Likewise, since the record was replaced meanwhile, or an earlier call still occupied the executor's
    /// space for records.
    pub stale: u64,
    /// Likewise, since the record or value exceeds what a call returns.
    pub large: u64,
    /// Likewise, since the executor was unreachable, too slow or failed; see [`Lookups::last_error`].
    pub failed: u64,
}

impl LookupStats {
    /// GETs that were repeated without a call.
    pub fn fell_back(&self) -> u64 {
        self.moved + self.stale + self.large + self.failed
    }
}

/// The outcome of a call.
pub(super) enum Called {
    /// It has ended.
    Ended(CallAnswer),
    /// That node has no executor.
    Nowhere,
    /// It did not run, or that is unknown.
    Failed,
}

/// The result of a call about a key.
enum LookupResult {
    Value(Vec<u8>),
    Absent,
    /// None: look the key up without a call.
    Nothing,
}

/// An executor for lookups.
#[derive(Debug)]
struct LookupExecutor {
    caller: Caller,
    program: Program,
    /// A call that timed out and is still running; until it ends no other call is made.
    late: Option<Ticket>,
}

/// The executors for GETs, by node.
///
/// *Cost* of a GET by call: one round trip, with the key one way and the value back; nothing is cached at
/// the caller, so the bucket's home need not recall anything from it when the key changes. A GET without
/// calls takes no round trip on cached lines and two otherwise; so calls are for keys that this node rarely
/// reads. One per [`Dht`](super::Dht).
#[derive(Debug)]
pub struct Lookups {
    executors: BTreeMap<NodeId, LookupExecutor>,
    timeout: Duration,
    stats: LookupStats,
    last_error: Option<Error>,
}

impl Lookups {
    /// Creates an empty set: all GETs are made without calls. So is one that takes longer than `timeout`.
    pub fn new(timeout: Duration) -> Self {
        let (executors, stats) = (BTreeMap::new(), LookupStats::default());
        Self { executors, timeout, stats, last_error: None }
    }

    /// Sends GETs of buckets at `home` to this executor from now on. The executor should be part of that
    /// node ([`CallServer::share`](farside::call::CallServer::share)): elsewhere it is equally correct, and
    /// slower. Add none for the local node, where lines are accessed directly.
    ///
    /// *Blocks*, as [`Caller::register`], with the same errors: `FabricLacks` if the executor is not part
    /// of a node.
    pub fn add(&mut self, home: NodeId, mut caller: Caller) -> Result<(), Error> {
        let missing = || Error::with(ErrorCode::NoProgram, "the library has no dht_lookup");
        let entry = LibraryEntry::with_name("dht_lookup").ok_or_else(missing)?;
        let programs = caller.register(entry.object)?;
        let named = |program: &Program| program.name == entry.name;
        let program = programs.into_iter().find(named).ok_or_else(missing)?;
        self.executors.insert(home, LookupExecutor { caller, program, late: None });
        Ok(())
    }

    /// The counts of the GETs so far.
    pub fn stats(&self) -> LookupStats {
        self.stats
    }

    /// The error of the last call that failed.
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }

    #[inline]
    pub(super) fn get(
        &mut self,
        table: &mut TableAccess,
        session: &mut Session,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, DhtError> {
        let Self { executors, timeout, stats, last_error } = self;
        get_with(table, session, key, out, stats, |_, home, parameters| {
            let Some(executor) = executors.get_mut(&home) else {
                return Called::Nowhere;
            };
            match executor.call(parameters, *timeout) {
                Ok(answer) => {
                    if answer.result.cast_signed() == status::PEER_LOST {
                        let text = "memory of the table is lost, or was not to be had there";
                        *last_error = Some(Error::with(ErrorCode::PeerLost, text));
                    }
                    Called::Ended(answer)
                }
                Err(error) => {
                    *last_error = Some(error);
                    Called::Failed
                }
            }
        })
    }
}

impl LookupExecutor {
    fn call(&mut self, parameters: &[u8], timeout: Duration) -> Result<CallAnswer, Error> {
        let Self { caller, program, late } = self;
        caller.progress()?;
        if let Some(ticket) = *late {
            if caller.poll(ticket).is_none() {
                return Err(Error::with(ErrorCode::TimedOut, "a call before it has not ended"));
            }
            *late = None;
        }
        if !caller.is_connected() {
            return Err(Error::with(
                ErrorCode::PeerLost,
                "the executor is out of reach at present",
            ));
        }
        let Some(ticket) = caller.invoke(program, parameters, CallOptions::new())? else {
            return Err(Error::with(ErrorCode::Busy, "the executor takes no call more"));
        };
        let end = caller.wait(ticket, timeout);
        if end.as_ref().is_err_and(|error| error.code == ErrorCode::TimedOut) {
            *late = Some(ticket);
        }
        end
    }
}

/// Looks a key up by `call`, which gets its bucket's home and the parameters of `dht_lookup`; without a
/// call if that has no result.
#[inline]
pub(super) fn get_with<S: Space>(
    table: &mut TableAccess,
    space: &mut S,
    key: &[u8],
    out: &mut Vec<u8>,
    stats: &mut LookupStats,
    call: impl FnOnce(&mut S, NodeId, &[u8]) -> Called,
) -> Result<bool, DhtError> {
    let (home, lookup) = table.lookup(key)?;
    let called = match lookup.to_bytes() {
        Ok(parameters) => call(space, home, &parameters),
        Err(_) => Called::Nowhere,
    };
    let told = match called {
        Called::Ended(answer) => told(answer, stats),
        Called::Nowhere => {
            stats.direct += 1;
            LookupResult::Nothing
        }
        Called::Failed => {
            stats.failed += 1;
            LookupResult::Nothing
        }
    };
    match told {
        LookupResult::Value(value) => {
            *out = value;
            Ok(true)
        }
        LookupResult::Absent => Ok(false),
        LookupResult::Nothing => table.get(space, key, out),
    }
}

/// Interprets and counts an answer of `dht_lookup`.
fn told(answer: CallAnswer, stats: &mut LookupStats) -> LookupResult {
    let count = match answer.result {
        DhtLookup::MOVED => &mut stats.moved,
        DhtLookup::STALE => &mut stats.stale,
        result => match result.cast_signed() {
            status::OK => {
                stats.answered += 1;
                return LookupResult::Value(answer.output);
            }
            status::NOT_FOUND => {
                stats.answered += 1;
                return LookupResult::Absent;
            }
            // Also if the memory of the record was freed after the bucket had been read.
            status::NOT_PERMITTED | status::BUSY => &mut stats.stale,
            status::OUT_OF_RANGE | status::FULL => &mut stats.large,
            _ => &mut stats.failed,
        },
    };
    *count += 1;
    LookupResult::Nothing
}

impl TableAccess {
    /// The home of the key's bucket according to the directory, and the parameters for it.
    fn lookup<'a>(&self, key: &'a [u8]) -> Result<(NodeId, DhtLookup<'a>), DhtError> {
        let sought = self.sought(key)?;
        let segment = self.directory.lookup(sought.hash);
        let bucket = bucket_address(segment, super::layout::bucket_index(sought.hash))
            .ok_or(DhtError::Damaged(segment))?;
        let (table, tag) = (self.shape.table, sought.tag);
        Ok((bucket.home(), DhtLookup { table, bucket: bucket.to_bits(), tag, key }))
    }
}
