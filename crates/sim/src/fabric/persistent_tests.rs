//! Requests to persistent memory over the simulated fabric.

use super::scene::LinkedNodes;
use super::{
    HardwareProfile, NvmProfile, OPTANE_CX5, OPTANE_NVM, SimNet, SimOptions, SocketPlacement,
    VERBS_CONNECTX5, VERBS_FLUSH,
};
use farside_base::{Access, CompletionStatus, FlushScope, Operation, RegionKind};
use farside_fabric::{Fabric, RegionSpec};

fn on(nvm: NvmProfile) -> LinkedNodes {
    let hardware = HardwareProfile { nvm: Some(nvm), ..OPTANE_CX5 };
    let net = SimNet::new(1, SimOptions::on_hardware(VERBS_CONNECTX5, hardware));
    net.place_persistent("b", true).unwrap();
    let places = ["a", "b"].map(|node| (node, SocketPlacement::default()));
    LinkedNodes::placed(&net, &places, Access::ALL)
}

/// Steps until node `a` has polled `count` successful completions. Returns the time.
fn completed(scene: &mut LinkedNodes, count: usize) -> u64 {
    let start_ns = scene.net.now_ns();
    let mut done = 0;
    while done < count {
        assert!(scene.net.step());
        let polled = scene.poll(0);
        assert!(polled.iter().all(|one| one.status == CompletionStatus::Success), "{polled:?}");
        done += polled.len();
    }
    scene.net.now_ns() - start_ns
}

fn read(scene: &mut LinkedNodes, id: u64) {
    let into = [scene.slice(0, 8_192, 8)];
    let from = scene.at(0, 1, 0);
    scene.post(0, 1, id, Operation::Read { into: &into, from });
}

#[test]
fn read_after_write_makes_it_durable_only_without_ddio() {
    for (ddio, volatile) in [(true, 4), (false, 0)] {
        let mut scene = on(NvmProfile { ddio, ..OPTANE_NVM });
        scene.write(0, 1, 1, 0, 256);
        read(&mut scene, 2);
        completed(&mut scene, 2);
        assert_eq!(scene.net.volatile_lines("b", 0), volatile, "DDIO {ddio}");
        let counters = scene.net.nvm_counters("b", 0);
        assert_eq!(counters.write_requests, 4 - volatile as u64);
        assert_eq!(scene.net.nvm_counters("a", 0).write_requests, 0, "ordinary memory");
    }
}

#[test]
fn long_writes_reach_all_lines_packet_by_packet() {
    let mut scene = on(NvmProfile { ddio: false, ..OPTANE_NVM });
    scene.write(0, 1, 1, 128, 12_032);
    read(&mut scene, 2);
    completed(&mut scene, 2);
    let counters = scene.net.nvm_counters("b", 0);
    assert_eq!(counters.write_requests, 188);
    assert_eq!(scene.net.nvm_counters("b", 1).write_requests, 0, "another socket");
}

#[test]
fn reads_of_persistent_memory_are_later_by_the_latency_of_its_loads() {
    let time = |persistent| {
        let hardware = OPTANE_CX5;
        let net = SimNet::new(1, SimOptions::on_hardware(VERBS_CONNECTX5, hardware));
        net.place_persistent("b", persistent).unwrap();
        let places = ["a", "b"].map(|node| (node, SocketPlacement::default()));
        let mut scene = LinkedNodes::placed(&net, &places, Access::ALL);
        read(&mut scene, 1);
        completed(&mut scene, 1)
    };
    let more_ns = time(true) - time(false);
    assert!((189..=330).contains(&more_ns), "{more_ns}");
}

#[test]
fn profiles_without_persistent_memory_refuse_it() {
    let hardware = HardwareProfile { nvm: None, ..OPTANE_CX5 };
    let net = SimNet::new(1, SimOptions::on_hardware(VERBS_CONNECTX5, hardware));
    assert!(net.place_persistent("b", true).is_err());
    assert!(net.place_persistent("b", false).is_ok());
}

#[test]
fn flush_makes_writes_durable_with_and_without_ddio() {
    for ddio in [true, false] {
        let nvm = NvmProfile { ddio, ..OPTANE_NVM };
        let hardware = HardwareProfile { nvm: Some(nvm), ..OPTANE_CX5 };
        let net = SimNet::new(1, SimOptions::on_hardware(VERBS_FLUSH, hardware));
        net.place_persistent("b", true).unwrap();
        net.place_persistent("a", true).unwrap();
        let places = ["a", "b"].map(|node| (node, SocketPlacement::default()));
        let access = Access::ALL.with(Access::FLUSH_PERSISTENT);
        let mut scene = LinkedNodes::placed(&net, &places, access);
        // A range, and the whole region.
        for bytes in [256, 0] {
            scene.write(0, 1, 1, 0, 256);
            let (from, scope) = (scene.at(0, 1, 0), FlushScope::Persistent);
            scene.post(0, 1, 2, Operation::Flush { from, bytes, scope });
            completed(&mut scene, 2);
            assert_eq!(net.volatile_lines("b", 0), 0, "DDIO {ddio}");
        }
        assert_eq!(net.nvm_counters("b", 0).write_requests, 8);
    }
}

#[test]
fn only_persistent_memory_may_be_flushed_to_persistence() {
    let net = SimNet::new(1, SimOptions::on_hardware(VERBS_FLUSH, OPTANE_CX5));
    let access = Access::ALL.with(Access::FLUSH_PERSISTENT);
    let spec = RegionSpec { bytes: 4_096, access, kind: RegionKind::Memory };
    assert!(net.fabric("a").register(&spec).is_err());
    net.place_persistent("a", true).unwrap();
    assert!(net.fabric("a").register(&spec).is_ok());
}
