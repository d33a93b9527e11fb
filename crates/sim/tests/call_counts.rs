//! Exact costs of remote memory calls on the simulated fabric (003 §4): round trips, requests, doorbells and bytes.

use farside::call::Prices;
use farside_fabric::FabricCounts;
use farside_sim::call_bench::{
    BLUEFIELD, CallScene, Counted, FROM_NIC_NS, LIQUIDIO, NFP6000, NIC_START_NS, Nic,
    ROUND_TRIP_NS, SimSite, TO_NIC_NS,
};
use farside_sim::fabric::Traffic;

const NODES: [u64; 6] = [1, 2, 4, 8, 16, 64];
/// 1 KiB to 1 MiB.
const BYTES: [u64; 6] = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20];
/// Number of bytes of a remote buffer that are read at a time.
const BLOCK_BYTES: u64 = 64 << 10;

fn scene(nic: &Nic, place: SimSite) -> CallScene {
    let mut scene = CallScene::new(nic, Prices::LATENCY).expect("a scene");
    scene.pin(Some(place));
    scene
}

fn search(scene: &mut CallScene, nodes: u64) -> Counted {
    let counted = scene.counted(|scene| scene.search(nodes)).expect("an answer");
    assert_eq!(counted.result, nodes * 10);
    counted
}

/// Traffic of requests one way, and their answers the other way.
fn requests(requests: u64, bytes: u64) -> Traffic {
    Traffic { requests, answers: 0, bytes }
}

fn answers(answers: u64, bytes: u64) -> Traffic {
    Traffic { requests: 0, answers, bytes }
}

#[test]
fn a_one_sided_search_is_a_read_for_each_node() {
    let mut scene = scene(&NFP6000, SimSite::Client);
    for nodes in NODES {
        let counted = search(&mut scene, nodes);
        let [client, nic, host] = counted.at;
        let expected = FabricCounts {
            reads: nodes,
            doorbells: nodes,
            signalled: nodes,
            completions: nodes,
            bytes: 24 * nodes,
            empty_polls: client.empty_polls,
            ..FabricCounts::default()
        };
        assert_eq!(client, expected);
        assert_eq!((nic.requests(), host.requests()), (0, 0));
        assert_eq!(counted.host, [requests(nodes, 0), answers(nodes, 24 * nodes)]);
        assert_eq!(counted.nic, [Traffic::default(); 2]);
        // Consecutive round trips, each with 24 bytes at 80 ps, rounded up to a nanosecond.
        assert_eq!(counted.took_ns, nodes * (ROUND_TRIP_NS + 2));
    }
}

/// Asserts one request and one answer with these bytes, and one doorbell each, at the caller and at the executor.
fn check_call(there: &FabricCounts, back: &FabricCounts, bytes: u64) {
    assert_eq!((there.sends, there.doorbells, there.bytes), (1, 1, bytes));
    assert_eq!((there.reads, there.writes, there.receives), (0, 0, 1));
    assert_eq!(there.bytes_received, 8);
    assert_eq!((back.sends, back.receives, back.bytes_received), (1, 1, bytes));
    assert_eq!(back.writes, 0);
}

#[test]
fn a_call_at_the_host_is_one_round_trip_of_24_and_8_bytes() {
    let mut scene = scene(&NFP6000, SimSite::Host);
    for nodes in NODES {
        let counted = search(&mut scene, nodes);
        let [client, nic, host] = counted.at;
        check_call(&client, &host, 24);
        assert_eq!((host.doorbells, host.bytes, host.reads), (1, 8, 0));
        assert_eq!(nic.requests(), 0);
        let one = |bytes| Traffic { requests: 1, answers: 1, bytes };
        assert_eq!(counted.host, [one(24), one(8)], "each is acknowledged");
        assert_eq!(counted.network_bytes(), 32);
    }
}

#[test]
fn a_call_at_the_nic_is_one_round_trip_and_a_local_read_for_each_node() {
    for nic in [NFP6000, LIQUIDIO, BLUEFIELD] {
        let mut scene = scene(&nic, SimSite::Nic);
        for nodes in NODES {
            let counted = search(&mut scene, nodes);
            let [client, beside, host] = counted.at;
            check_call(&client, &beside, 24);
            assert_eq!((beside.reads, beside.doorbells), (nodes, nodes + 1));
            assert_eq!(beside.bytes, 24 * nodes + 8);
            assert_eq!((host.requests(), host.receives), (0, 0));
            assert_eq!(counted.host, [Traffic::default(); 2]);
            assert_eq!(counted.local, [requests(nodes, 0), answers(nodes, 24 * nodes)]);
            assert_eq!(counted.network_bytes(), 32);
            // Bytes of both directions over the network, and of each node over the local link.
            let network_ns = TO_NIC_NS + 2 + FROM_NIC_NS + 1;
            let local_ns = nic.host_round_trip_ns + 2;
            assert_eq!(counted.took_ns, network_ns + NIC_START_NS + nodes * local_ns);
        }
    }
}

#[test]
fn checksum_transfers_only_the_digest() {
    let mut all = Vec::new();
    for place in SimSite::ALL {
        let mut scene = scene(&NFP6000, place);
        let mut digests = Vec::new();
        for bytes in BYTES {
            let counted = scene.counted(|scene| scene.checksum(bytes)).expect("an answer");
            digests.push(counted.result);
            match place {
                SimSite::Client => {
                    let blocks = bytes.div_ceil(BLOCK_BYTES);
                    assert_eq!(counted.host, [requests(blocks, 0), answers(blocks, bytes)]);
                    assert_eq!(counted.network_bytes(), bytes);
                }
                // Program, buffer, length and seed in the request, the digest in the answer.
                SimSite::Host | SimSite::Nic => assert_eq!(counted.network_bytes(), 32 + 8),
            }
            let local = if place == SimSite::Nic { bytes } else { 0 };
            assert_eq!(counted.local[1].bytes, local);
        }
        all.push(digests);
    }
    assert!(all.windows(2).all(|two| two[0] == two[1]), "the same wherever it runs: {all:?}");
}

#[test]
fn calls_between_two_polls_share_a_doorbell() {
    for place in [SimSite::Host, SimSite::Nic] {
        let mut scene = scene(&NFP6000, place);
        for calls in [1, 2, 7, 16] {
            let nodes = vec![3; calls];
            let counted = scene
                .counted(|scene| {
                    let answers = scene.search_all(&nodes)?;
                    assert!(answers.iter().all(|one| one.answer.result == 30));
                    Ok(answers.into_iter().next().expect("one"))
                })
                .expect("an answer");
            let client = counted.at[0];
            assert_eq!((client.sends, client.doorbells), (calls as u64, 1));
            assert_eq!(counted.network_bytes(), 32 * calls as u64);
        }
    }
}
