//! Each effect of distance and footprint, against a profile without it.

use super::scene::LinkedNodes;
use super::{
    ADAPTER_PORTS, AdapterCaches, CONNECTX3_IB, CONNECTX5_ROCE, HardwareProfile, SimNet,
    SimOptions, SocketCosts, SocketPlacement, VERBS_CONNECTX3,
};
use farside_base::{Access, LocalSlice, Operation, Source};

/// The profile of the paper without caches and sockets that cost anything.
const PLAIN: HardwareProfile =
    HardwareProfile { caches: AdapterCaches::NONE, sockets: SocketCosts::NONE, ..CONNECTX3_IB };
/// One page for the test to use twice, of few translations.
const CACHED: AdapterCaches = AdapterCaches { translations_max: 4, ..CONNECTX3_IB.caches };

fn options(hardware: HardwareProfile) -> SimOptions {
    SimOptions::on_hardware(VERBS_CONNECTX3, hardware)
}

fn linked(hardware: HardwareProfile, nodes: usize) -> LinkedNodes {
    LinkedNodes::with(1, options(hardware), nodes)
}

/// Two nodes, of which the first has this placement and the second that one.
fn placed(hardware: HardwareProfile, [client, server]: [SocketPlacement; 2]) -> LinkedNodes {
    let net = SimNet::new(1, options(hardware));
    LinkedNodes::placed(&net, &[("a", client), ("b", server)], Access::ALL)
}

/// Time until the requests of node 0 have completed.
fn elapsed_ns(scene: &mut LinkedNodes, post: impl FnOnce(&mut LinkedNodes)) -> u64 {
    let start_ns = scene.net.now_ns();
    post(scene);
    scene.net.run_until_idle();
    let count = scene.poll(0).len();
    assert!(count > 0);
    scene.net.now_ns() - start_ns
}

fn read_ns(scene: &mut LinkedNodes, at: u64) -> u64 {
    let (into, from) = ([scene.slice(0, at, 32)], scene.at(0, 1, at));
    elapsed_ns(scene, |scene| scene.post(0, 1, 1, Operation::Read { into: &into, from }))
}

fn write_ns(scene: &mut LinkedNodes, at: u64) -> u64 {
    elapsed_ns(scene, |scene| scene.write(0, 1, 1, at, 32))
}

fn inline_ns(scene: &mut LinkedNodes) -> u64 {
    let (source, to) = (Source::Inline(&[9; 8]), scene.at(0, 1, 0));
    let write = Operation::Write { source, to, immediate: None };
    elapsed_ns(scene, |scene| scene.post(0, 1, 1, write))
}

const HERE: SocketPlacement =
    SocketPlacement { port: 0, port_socket: 0, thread_socket: 0, memory_socket: 0 };

#[test]
fn a_missing_translation_costs_a_read_of_the_bus_at_each_end() {
    let mut scene = linked(HardwareProfile { caches: CACHED, ..PLAIN }, 2);
    let plain_ns = write_ns(&mut linked(PLAIN, 2), 0);
    let miss_ns = CACHED.translation_miss_ns + PLAIN.pcie_read_ns;
    // The queue pairs miss once too, with the translation.
    let cold_ns = plain_ns + 2 * (miss_ns + CACHED.queue_pair_miss_ns);
    assert_eq!(write_ns(&mut scene, 0), cold_ns);
    assert_eq!(write_ns(&mut scene, 64), plain_ns, "the same page");
    assert_eq!(write_ns(&mut scene, 4_096), plain_ns + 2 * miss_ns, "another page");
    for page in 2..5 {
        write_ns(&mut scene, 4_096 * page);
    }
    assert_eq!(write_ns(&mut scene, 4_096), plain_ns, "one of the last four");
    assert_eq!(write_ns(&mut scene, 0), plain_ns + 2 * miss_ns, "replaced by others");
}

#[test]
fn a_read_translates_its_source_and_its_destination() {
    let mut scene = linked(HardwareProfile { caches: CACHED, ..PLAIN }, 2);
    let plain_ns = read_ns(&mut linked(PLAIN, 2), 0);
    read_ns(&mut scene, 0);
    assert_eq!(read_ns(&mut scene, 0), plain_ns);
    let miss_ns = CACHED.translation_miss_ns + PLAIN.pcie_read_ns;
    assert_eq!(read_ns(&mut scene, 8_192), plain_ns + 2 * miss_ns);
}

#[test]
fn many_queue_pairs_in_turns_miss() {
    let round_ns = |queue_pairs_max: usize| {
        let caches = AdapterCaches { queue_pairs_max, ..AdapterCaches::NONE };
        let caches = AdapterCaches { queue_pair_miss_ns: 142, ..caches };
        let mut scene = linked(HardwareProfile { caches, ..PLAIN }, 4);
        let mut round = || {
            elapsed_ns(&mut scene, |scene| {
                for to in 1..4 {
                    scene.write(0, to, 1, 0, 32);
                }
            })
        };
        round();
        round()
    };
    let (all, fewer) = (round_ns(3), round_ns(2));
    assert_eq!(all, round_ns(0), "three fit");
    assert!(fewer >= all + PLAIN.pcie_read_ns, "{all} {fewer}");
}

#[test]
fn a_thread_on_the_other_socket_delays_doorbells_and_completions() {
    let hardware = HardwareProfile { sockets: CONNECTX3_IB.sockets, ..PLAIN };
    let own_ns = inline_ns(&mut placed(hardware, [HERE, HERE]));
    let away = SocketPlacement { thread_socket: 1, ..HERE };
    let crossing_ns = hardware.sockets.crossing_ns;
    assert_eq!(inline_ns(&mut placed(hardware, [away, HERE])), own_ns + 2 * crossing_ns);
    assert_eq!(inline_ns(&mut placed(hardware, [HERE, away])), own_ns, "its thread does nothing");
}

#[test]
fn memory_on_the_other_socket_delays_and_limits_both_directions() {
    let hardware = HardwareProfile { sockets: CONNECTX3_IB.sockets, ..PLAIN };
    let away = SocketPlacement { memory_socket: 1, ..HERE };
    let own_ns = read_ns(&mut placed(hardware, [HERE, HERE]), 0);
    let crossing_ns = hardware.sockets.crossing_ns;
    assert_eq!(read_ns(&mut placed(hardware, [HERE, away]), 0), own_ns + 2 * crossing_ns);
    assert!(read_ns(&mut placed(hardware, [away, HERE]), 0) > own_ns + crossing_ns);
    // Sixteen at once: the interconnect serves one READ after the other, the receive engine the WRITEs.
    let many_ns = |placements, read: bool| {
        let mut scene = placed(hardware, placements);
        let into: [LocalSlice; 1] = [scene.slice(0, 0, 32)];
        let (from, bytes) = (scene.at(0, 1, 0), [9; 32]);
        elapsed_ns(&mut scene, |scene| {
            for id in 0..16 {
                let source = Source::Inline(&bytes);
                scene.post(
                    0,
                    1,
                    id,
                    match read {
                        true => Operation::Read { into: &into, from },
                        false => Operation::Write { source, to: from, immediate: None },
                    },
                );
            }
        })
    };
    for (read, busy_ns) in [
        (true, hardware.sockets.read_busy_ns),
        (false, hardware.sockets.write_busy_ns + hardware.receive_ns),
    ] {
        let (near, far) = (many_ns([HERE, HERE], read), many_ns([HERE, away], read));
        assert!(
            far >= 15 * busy_ns && far > near + 15 * (busy_ns - hardware.send_ns),
            "{near} {far}"
        );
    }
}

#[test]
fn two_ports_have_engines_of_their_own() {
    let many_ns = |port| {
        let net = SimNet::new(1, options(PLAIN));
        let places =
            [("a", HERE), ("a", SocketPlacement { port, ..HERE }), ("b", HERE), ("c", HERE)];
        let mut scene = LinkedNodes::placed(&net, &places, Access::ALL);
        elapsed_ns(&mut scene, |scene| {
            for id in 0..32 {
                for (from, to) in [(0, 2), (1, 3)] {
                    let (source, at) = (Source::Inline(&[9; 8]), scene.at(from, to, 0));
                    scene.post(from, to, id, Operation::Write { source, to: at, immediate: None });
                }
            }
        })
    };
    let (same, other) = (many_ns(0), many_ns(1));
    assert!(10 * same > 15 * other, "{same} {other}");
    let net = SimNet::new(1, options(PLAIN));
    let refused = net.place("a", SocketPlacement { port: ADAPTER_PORTS as u8, ..HERE });
    assert!(refused.unwrap_err().to_string().contains("adapter port 2 of 2"));
}

#[test]
fn fetched_payloads_of_one_link_do_not_overlap() {
    let many_ns = |hardware| {
        let mut scene = linked(hardware, 2);
        elapsed_ns(&mut scene, |scene| (0..16).for_each(|id| scene.write(0, 1, id, 0, 32)))
    };
    let overlapped = HardwareProfile { link_fetch_ns: 0, fetch_ns: 0, ..PLAIN };
    let (apart, overlapped) = (many_ns(PLAIN), many_ns(overlapped));
    assert!(apart >= overlapped + 15 * PLAIN.link_fetch_ns, "{apart} {overlapped}");
}

#[test]
fn a_profile_without_these_effects_ignores_placements() {
    let time = |placement| {
        let mut scene = placed(CONNECTX5_ROCE, [placement, placement]);
        (read_ns(&mut scene, 0), write_ns(&mut scene, 40_000), inline_ns(&mut scene))
    };
    let away = SocketPlacement { port: 1, port_socket: 1, thread_socket: 0, memory_socket: 0 };
    assert_eq!(time(HERE), time(away));
    assert!(!CONNECTX5_ROCE.to_string().contains("translations"));
    assert!(CONNECTX3_IB.to_string().contains("translations=1024x4096B/320"));
}
