//! The conformance suite on this machine's RDMA device: in a guest with soft-RoCE or soft-iWARP, or on
//! real hardware. Each fabric has a context, a protection domain, a listening socket and a control
//! thread of its own, as if it were another process. Without a device the test reports so and passes.
//!
//! `FARSIDE_VERBS_CASE` selects cases by a part of their names, and `FARSIDE_VERBS_EXCEPT` excludes
//! those that contain one of its words, separated by commas, for faults of the device (soft-iWARP
//! answers READs of memory that allows none); `FARSIDE_VERBS_PLAIN=1` posts by lists;
//! `FARSIDE_VERBS_MANAGER=1` connects by rdma_cm if there is a choice; `FARSIDE_VERBS_WINDOWS=1` grants
//! rkeys of memory windows; `FARSIDE_VERBS_ON_DEMAND=1` does not pin memory;
//! `FARSIDE_VERBS_SECURITY=key` protects the control streams by a cluster key;
//! `FARSIDE_VERBS_DEVICES=rxe1,rxe2` assigns these devices to fabrics in rotation, so that packets
//! cross the network between them.

mod common;

use common::skipped;
use farside_bootstrap::{ClusterKey, Endpoint, Identity, Protect, Security};
use farside_fabric::Fabric;
use farside_fabric::conformance::{CASES, Subject, run_case};
use farside_fabric_verbs::{OpenError, Options, VerbsFabric};
use std::net::{Ipv4Addr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most fabrics of one case.
const FABRICS_MAX: usize = 8;

struct Verbs {
    options: Options,
    next: AtomicUsize,
}

fn flag(name: &str) -> bool {
    std::env::var_os(name).is_some()
}

fn security() -> Security {
    if !flag("FARSIDE_VERBS_SECURITY") {
        return Security::open();
    }
    let key = ClusterKey::from_hex(&"5e".repeat(32)).expect("64 digits");
    let identity = Identity::cluster_key(&key).expect("a key");
    Security::new(identity, Protect::Handshake).expect("a combination that there is")
}

impl Verbs {
    /// Returns endpoints for all fabrics, each of which knows the others'.
    fn new() -> Self {
        let listeners: Vec<_> = (0..FABRICS_MAX)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"))
            .collect();
        let hosts = listeners.iter().map(|listener| {
            Endpoint::from(listener.local_addr().expect("an address of a listener"))
        });
        let mut options = Options::new(security());
        options.hosts = hosts.collect();
        options.plain_posting = flag("FARSIDE_VERBS_PLAIN");
        options.connection_manager = flag("FARSIDE_VERBS_MANAGER");
        options.memory_windows = flag("FARSIDE_VERBS_WINDOWS");
        options.on_demand_paging = flag("FARSIDE_VERBS_ON_DEMAND");
        // Guests share few processors, and no case is about leases.
        options.lease = Duration::from_secs(3);
        Self { options, next: AtomicUsize::new(0) }
    }

    fn open(&self) -> Result<VerbsFabric, OpenError> {
        let mut options = self.options.clone();
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        options.listen = Some(options.hosts[at].clone());
        if let Ok(devices) = std::env::var("FARSIDE_VERBS_DEVICES") {
            let devices: Vec<_> = devices.split(',').collect();
            options.device = Some(devices[at % devices.len()].to_owned());
        }
        VerbsFabric::open(options)
    }
}

impl Subject for Verbs {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        let open = || self.open().expect("the device that was there before");
        (0..count).map(|_| Arc::new(open()) as Arc<dyn Fabric>).collect()
    }

    fn names_are_shared(&self) -> bool {
        false
    }

    fn polls_max(&self) -> u64 {
        3_000_000
    }
}

/// Returns the optional capabilities that the device lacks.
fn lacks(fabric: &VerbsFabric) -> Vec<&'static str> {
    use farside_base::{AtomicScope, BackPressure, FlushScope, WordScope};
    let has = fabric.capabilities();
    let table = [
        (has.atomics < AtomicScope::Adapter, "atomics"),
        (has.atomics < AtomicScope::System, "atomics against processors"),
        (!has.extended_atomics, "extended_atomics"),
        (!has.atomic_write, "atomic_write"),
        (has.flush < FlushScope::Visible, "flush"),
        (has.flush < FlushScope::Persistent, "persistent flush"),
        (!has.own_memory, "own_memory"),
        (!has.protected, "protected"),
        (!has.send, "send"),
        (!has.immediate, "immediate"),
        (!has.message_order, "message_order"),
        (has.receiver_not_ready == BackPressure::EndsLink, "receiver_not_ready without loss"),
        (has.slices_max == 1, "several slices"),
        (!has.byte_order, "byte_order"),
        (has.words < WordScope::Aligned, "words"),
        (has.words < WordScope::Any, "words of unaligned requests"),
        (!has.completion_means_placed, "completion_means_placed"),
        (has.inline_bytes_max == 0, "inline bytes"),
        (!has.mirrored_regions, "mirrored_regions"),
        (has.device_bytes_max == 0, "device_memory"),
    ];
    table.into_iter().filter(|(lacks, _)| *lacks).map(|(_, name)| name).collect()
}

#[test]
#[allow(clippy::print_stdout, reason = "says which cases run, on what, and what was skipped")]
fn conformance() {
    let fabric = match Verbs::new().open() {
        Ok(fabric) => fabric,
        Err(error) => {
            skipped(&error.to_string());
            return;
        }
    };
    println!("on {}", fabric.describe());
    println!("facts: {:?}", fabric.facts());
    println!("capabilities: {:?}", fabric.capabilities());
    println!("the device lacks: {}", lacks(&fabric).join(", "));
    drop(fabric);
    let wanted = std::env::var("FARSIDE_VERBS_CASE").unwrap_or_default();
    let except = std::env::var("FARSIDE_VERBS_EXCEPT").unwrap_or_default();
    let is_left_out = |name: &str| {
        let left_out = except.split(',').any(|word| !word.is_empty() && name.contains(word));
        if left_out {
            println!("{name} left out, as asked for");
        }
        left_out
    };
    let (mut failed, mut passed) = (Vec::new(), 0);
    for (name, _) in CASES.iter().filter(|(name, _)| name.contains(&wanted)) {
        if is_left_out(name) {
            continue;
        }
        let start = Instant::now();
        println!("{name} ...");
        let case = || run_case(name, &Verbs::new());
        match catch_unwind(AssertUnwindSafe(case)) {
            Ok(()) => {
                passed += 1;
                println!("{name} ok {:?}", start.elapsed());
            }
            Err(_) => {
                println!("{name} FAILED {:?}", start.elapsed());
                failed.push(*name);
            }
        }
    }
    println!("{passed} passed, {} failed: {failed:?}", failed.len());
    assert!(failed.is_empty(), "{failed:?}");
}
