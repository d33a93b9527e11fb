//! Counts requests, completions and bytes of a fabric: [`CountFabric`] wraps any other, [`FabricCounts`] is
//! its result.

use crate::{Fabric, FabricError, LinkEvent, Parts, Port, PortSpec, Posted, Waiter};
use farside_base::{Completion, CompletionKind, CompletionStatus, Receive, Work};
use std::fmt;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident $label:literal;)*) => {
        /// A snapshot of a [`CountFabric`]. The difference of two counts what happened between.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct FabricCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Default)]
        struct FabricCounters {
            $($name: AtomicU64,)*
        }

        impl FabricCounters {
            fn add(&self, more: &FabricCounts) {
                $(if more.$name > 0 {
                    self.$name.fetch_add(more.$name, Ordering::Relaxed);
                })*
            }

            fn counts(&self) -> FabricCounts {
                FabricCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Sub for FabricCounts {
            type Output = Self;

            /// Returns the counts since `earlier`; never below zero.
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }

        impl fmt::Display for FabricCounts {
            /// Prints one line a count, without zeroes.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if self.$name > 0 {
                    writeln!(f, "{:<18}{:>16}", $label, self.$name)?;
                })*
                Ok(())
            }
        }
    };
}

counts! {
    /// WRITE requests taken.
    writes "write";
    /// READ requests taken.
    reads "read";
    /// FETCH_ADD requests taken.
    fetch_adds "fetch_add";
    /// COMPARE_SWAP requests taken.
    compare_swaps "compare_swap";
    /// SWAP requests taken.
    swaps "swap";
    /// Masked FETCH_ADD and COMPARE_SWAP requests taken.
    masked_atomics "masked atomic";
    /// ATOMIC WRITE requests taken.
    atomic_writes "atomic write";
    /// FLUSH requests taken.
    flushes "flush";
    /// SEND requests taken.
    sends "send";
    /// Requests with immediate data among them.
    immediates "immediate";
    /// Requests that report success.
    signalled "signalled";
    /// Bytes of all these requests.
    bytes "bytes";
    /// Calls of `post` that took something: doorbells.
    doorbells "doorbell";
    /// Calls of `post` or `post_receives` that did not take everything.
    refusals "refusal";
    /// Receives posted.
    receives_posted "receive posted";
    /// Calls of `post_receives` that took something.
    receive_doorbells "receive doorbell";
    /// Completions of requests.
    completions "completion";
    /// Completions of receives.
    receives "receive";
    /// Bytes of these receives.
    bytes_received "bytes received";
    /// Completions of either sort that were no success.
    errors "error";
    /// Polls that found nothing.
    empty_polls "empty poll";
    /// Calls of `arm`.
    arms "arm";
    /// Sleeps.
    sleeps "sleep";
    /// Sleeps that something ended, rather than their time.
    wake_ups "wake-up";
    /// Links lost.
    links_lost "link lost";
}

impl FabricCounts {
    /// Work requests of every kind.
    pub fn requests(&self) -> u64 {
        let atomics = self.fetch_adds + self.compare_swaps + self.swaps + self.masked_atomics;
        self.writes + self.reads + atomics + self.atomic_writes + self.flushes + self.sends
    }
}

/// Wraps a fabric and counts its requests, completions and bytes. Costs some relaxed additions a call.
pub struct CountFabric {
    inner: Arc<dyn Fabric>,
    counters: Arc<FabricCounters>,
}

impl CountFabric {
    /// Counts the requests and completions of `inner` through this fabric's ports, all of them
    /// together.
    pub fn new(inner: Arc<dyn Fabric>) -> Self {
        Self { inner, counters: Arc::default() }
    }

    /// Returns the counts so far. Concurrent calls may be counted in part.
    pub fn counts(&self) -> FabricCounts {
        self.counters.counts()
    }
}

impl fmt::Debug for CountFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountFabric({})", self.inner.name())
    }
}

impl Fabric for CountFabric {
    crate::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        Ok(Box::new(CountPort {
            inner: self.inner.open(spec)?,
            counters: Arc::clone(&self.counters),
        }))
    }
}

struct CountPort {
    inner: Box<dyn Port>,
    counters: Arc<FabricCounters>,
}

fn count_request(counts: &mut FabricCounts, work: &Work<'_>) {
    let parts = Parts::of(&work.operation);
    let kind = match parts.name {
        "write" => &mut counts.writes,
        "read" => &mut counts.reads,
        "fetch_add" => &mut counts.fetch_adds,
        "compare_swap" => &mut counts.compare_swaps,
        "swap" => &mut counts.swaps,
        "send" => &mut counts.sends,
        "atomic_write" => &mut counts.atomic_writes,
        "flush" => &mut counts.flushes,
        _ => &mut counts.masked_atomics,
    };
    *kind += 1;
    counts.bytes += parts.bytes();
    counts.immediates += u64::from(parts.immediate.is_some());
    counts.signalled += u64::from(work.flags.signalled);
}

fn count_completion(counts: &mut FabricCounts, done: &Completion) {
    counts.errors += u64::from(done.status != CompletionStatus::Success);
    match done.kind {
        CompletionKind::Receive | CompletionKind::ReceiveImmediate => {
            counts.receives += 1;
            counts.bytes_received += u64::from(done.bytes);
        }
        _ => counts.completions += 1,
    }
}

impl Port for CountPort {
    crate::forward!(common, connect, import, close, may_land);

    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let posted = self.inner.post(work);
        let mut counts = FabricCounts {
            doorbells: u64::from(posted.accepted > 0),
            refusals: u64::from(posted.stop.is_some()),
            ..FabricCounts::default()
        };
        for request in &work[..posted.accepted] {
            count_request(&mut counts, request);
        }
        self.counters.add(&counts);
        posted
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        let posted = self.inner.post_receives(receives);
        self.counters.add(&FabricCounts {
            receives_posted: posted.accepted as u64,
            receive_doorbells: u64::from(posted.accepted > 0),
            refusals: u64::from(posted.stop.is_some()),
            ..FabricCounts::default()
        });
        posted
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = self.inner.poll(out);
        let mut counts =
            FabricCounts { empty_polls: u64::from(count == 0), ..FabricCounts::default() };
        for done in &out[..count] {
            count_completion(&mut counts, done);
        }
        self.counters.add(&counts);
        count
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        let before = out.len();
        self.inner.link_events(out);
        let lost = |event: &&LinkEvent| matches!(event, LinkEvent::Lost { .. });
        let links_lost = out[before..].iter().filter(lost).count() as u64;
        self.counters.add(&FabricCounts { links_lost, ..FabricCounts::default() });
    }

    fn arm(&mut self) -> bool {
        self.counters.arms.fetch_add(1, Ordering::Relaxed);
        self.inner.arm()
    }

    crate::forward!(wake_also);

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::new(CountWaiter { inner: self.inner.waiter(), counters: Arc::clone(&self.counters) })
    }
}

struct CountWaiter {
    inner: Arc<dyn Waiter>,
    counters: Arc<FabricCounters>,
}

impl Waiter for CountWaiter {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let woken = self.inner.wait(timeout);
        self.counters.add(&FabricCounts {
            sleeps: 1,
            wake_ups: u64::from(woken),
            ..FabricCounts::default()
        });
        woken
    }

    fn wake(&self) {
        self.inner.wake();
    }
}
