//! Requests to persistent memory over the simulated fabric.

use super::scene::LinkedNodes;
use super::{
    HardwareProfile, NvmProfile, OPTANE_CX5, OPTANE_NVM, SimNet, SimOptions, SocketPlacement,
    VERBS_CONNECTX5,
};
use farside_base::{Access, CompletionStatus, Operation};

fn on(nvm: NvmProfile) -> LinkedNodes {
    let hardware = HardwareProfile { nvm: Some(nvm), ..OPTANE_CX5 };
    let net = SimNet::new(1, SimOptions::on_hardware(VERBS_CONNECTX5, hardware));
    net.place_persistent("b", true).unwrap();
    let places = ["a", "b"].map(|node| (node, SocketPlacement::default()));
    LinkedNodes::placed(&net, &places, Access::ALL)
}

/// Steps until node `a` has polled so many successful completions. Returns the time.
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
