//! Fabrics, ports and links that are opened and closed leave no descriptor, thread or mapping in the
//! process. In a file of its own, since these are counted for the whole process.

mod common;

use common::{name, node};
use farside_base::{Access, RegionKind};
use farside_fabric::{Fabric, LinkEvent, Loss, RegionSpec};
use std::time::{Duration, Instant};

/// Descriptors, threads, and mappings of shared memory.
fn held() -> [usize; 3] {
    let entries = |folder| std::fs::read_dir(folder).into_iter().flatten().count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
    let mapped = maps.lines().filter(|line| line.contains("memfd:farside")).count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), mapped]
}

/// Everything that can be made, made and dropped in several orders.
fn round(number: usize) {
    let listen = name("leak");
    let mut listener = node(Some(&listen));
    let mut other = node(None);
    let mut links = Vec::new();
    for _ in 0..3 {
        let here = other.port.connect(&listen, b"", other.queue).expect("a listener");
        let there = listener.accept();
        let LinkEvent::Connected { .. } = other.event() else { panic!("expected to be connected") };
        let token = listener.region.token;
        let region = other.port.import(here, &token).expect("a region");
        other.works(here, region);
        assert!(listener.try_send(there, 5));
        assert_eq!(other.message(), 5);
        links.push((here, there));
    }
    // A request without an answer, a refusal, and a region that is deregistered while it is mapped.
    other.port.connect(&listen, b"", other.queue).expect("a listener");
    let LinkEvent::Requested { link, .. } = listener.event() else { panic!("expected a request") };
    if number.is_multiple_of(2) {
        listener.port.refuse(link, b"no").expect("to refuse");
        let LinkEvent::Refused { .. } = other.event() else { panic!("expected to be refused") };
    }
    listener.fabric.deregister(listener.region.id).expect("a region");
    let spec = RegionSpec { bytes: 4 << 20, access: Access::READ, kind: RegionKind::Memory };
    let extra = other.fabric.register(&spec).expect("a region");
    let mirrored = RegionSpec { kind: RegionKind::Mirrored, ..spec };
    let mirrored = other.fabric.register(&mirrored).expect("a region");
    match number % 4 {
        0 => drop(listener),
        1 => drop(other),
        2 => {
            for (here, there) in links {
                other.port.close(here);
                assert_eq!(listener.event(), LinkEvent::Lost { link: there, loss: Loss::Ended });
            }
        }
        _ => {
            drop(other.fabric);
            drop(other.port);
            assert!(matches!(listener.event(), LinkEvent::Lost { .. }));
        }
    }
    drop((extra, mirrored));
}

#[test]
fn nothing_is_left_in_the_process() {
    for number in 0..4 {
        round(number);
    }
    let before = held();
    assert_eq!(before[2], 0, "no shared memory without a fabric");
    for number in 0..24 {
        round(number);
        // A joined thread has released its memory, which joining waits for; the kernel removes it from
        // the list a moment later.
        let end = Instant::now() + Duration::from_secs(20);
        while held() != before && Instant::now() < end {
            std::thread::yield_now();
        }
        assert_eq!(held(), before, "descriptors, threads, mappings after round {number}");
    }
}
