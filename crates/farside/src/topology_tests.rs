//! The text of a topology, and what the system reports.

use super::*;
use farside_base::Random;
use std::fs;

/// Two nodes of four processors each, of which processor 7 is not allowed; node 2 has memory alone.
fn machine() -> SystemNodes {
    SystemNodes {
        allowed: (0..7).collect(),
        nodes: vec![(0, (0..4).collect()), (1, (4..7).collect()), (2, Vec::new())],
        memory: vec![0, 1, 2],
    }
}

fn given(text: &str) -> Result<Topology, Error> {
    Topology::given(text, &machine())
}

#[test]
fn system_topology_has_a_socket_for_each_node_with_processors() {
    let topology = Topology::of(&machine());
    assert_eq!(topology.to_string(), "0-3;4-6");
    assert!(topology.is_numa());
    let second = topology.socket(1).unwrap();
    assert_eq!((second.number(), second.nodes(), second.has_others), (1, &[1][..], true));
    assert_eq!(topology.socket_of_node(1), Some(second));
    assert_eq!(topology.socket_of_node(2), None);
    assert_eq!(topology.socket(2).unwrap_err().code, ErrorCode::BadConfiguration);
}

#[test]
fn given_topology_takes_the_nodes_of_its_processors() {
    let topology = given("0,2;1,3-4").unwrap();
    assert_eq!(topology.to_string(), "0,2;1,3-4");
    let nodes: Vec<&[u32]> = topology.sockets().iter().map(CpuSocket::nodes).collect();
    assert_eq!(nodes, [&[0][..], &[0, 1]]);
    let halves = given("0-1;2-3").unwrap();
    assert!(!halves.is_numa(), "both are of node 0");
}

#[test]
fn wrong_topology_is_refused_with_its_part() {
    for (text, part) in [
        ("", "socket 0 is ``"),
        ("0;", "socket 1 is ``"),
        ("0;x", "socket 1 is `x`"),
        ("3-1", "`3-1`"),
        ("0-", "`0-`"),
        ("-0", "`-0`"),
        ("+1", "`+1`"),
        ("0,,1", "`0,,1`"),
        ("0-99999999999", "`0-99999999999`"),
        ("1024", "`1024`"),
        ("0;7", "processor 7: this thread may use 0-6"),
        ("0-2;2", "processor 2 is of two sockets"),
    ] {
        let error = given(text).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadConfiguration, "{text}");
        assert!(error.detail.contains(part), "{text}: {}", error.detail);
    }
    let many = vec!["0"; SOCKETS_MAX + 1].join(";");
    assert_eq!(given(&many).unwrap_err().code, ErrorCode::BadConfiguration);
}

/// Any text is refused or gives a topology whose text gives the same one.
#[test]
fn random_texts_are_refused_or_survive_their_text() {
    let mut random = Random::new(0x70_90);
    let mut valid = 0;
    for _ in 0..100_000 {
        let length = random.below(10);
        let byte = |_| char::from(b"0123456;;,,--7 x"[random.below(16) as usize]);
        let text: String = (0..length).map(byte).collect();
        match given(&text) {
            Ok(topology) => {
                assert_eq!(given(&topology.to_string()).unwrap(), topology, "{text}");
                valid += 1;
            }
            Err(error) => assert_eq!(error.code, ErrorCode::BadConfiguration, "{text}"),
        }
    }
    assert!(valid > 1000, "{valid}");
}

#[test]
fn folder_of_the_system_is_read_and_a_missing_one_is_one_socket() {
    let folder = std::env::temp_dir().join(format!("farside-nodes-{}", std::process::id()));
    for (node, processors) in [(0, "0-1,4-5\n"), (1, "2-3,6-7\n")] {
        fs::create_dir_all(folder.join(format!("node{node}"))).unwrap();
        fs::write(folder.join(format!("node{node}/cpulist")), processors).unwrap();
    }
    fs::write(folder.join("online"), "0-1\n").unwrap();
    fs::write(folder.join("has_memory"), "0\n").unwrap();
    let machine = SystemNodes::read(&folder, vec![0, 1, 2, 6]);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(machine.nodes, [(0, vec![0, 1]), (1, vec![2, 6])]);
    let topology = Topology::of(&machine);
    let others: Vec<bool> = topology.sockets().iter().map(|socket| socket.has_others).collect();
    assert_eq!(others, [false, true], "node 1 has no memory");
    let missing = Topology::of(&SystemNodes::read(&folder, vec![0, 1]));
    assert_eq!((missing.to_string().as_str(), missing.is_numa()), ("0-1", false));
}

#[test]
fn thread_is_bound_or_an_error_is_returned() {
    let topology = Topology::of_system().unwrap();
    let socket = topology.socket(0).unwrap();
    assert_eq!(socket.run(allowed).unwrap().unwrap(), socket.processors());
    let first = socket.processors()[0];
    let one: Topology = first.to_string().parse().unwrap();
    let inherited = one.socket(0).unwrap().run(|| std::thread::spawn(allowed).join().unwrap());
    assert_eq!(inherited.unwrap().unwrap(), [first]);
    // No machine of the tests has processor 1,023.
    let absent = CpuSocket { number: 3, processors: vec![1023], nodes: vec![0], has_others: false };
    assert_eq!(absent.run(|| ()).unwrap_err().code, ErrorCode::System);
    let partly =
        CpuSocket { number: 3, processors: vec![first, 1023], nodes: vec![0], has_others: false };
    let error = partly.run(|| ()).unwrap_err();
    assert!(error.detail.contains("processor 1023"), "{error}");
}

#[test]
fn memory_on_another_node_is_an_error() {
    let memory = Arena::heap(10_000);
    let nowhere = CpuSocket { number: 1, processors: vec![0], nodes: vec![1023], has_others: true };
    assert_eq!(nowhere.place(&memory).unwrap_err().code, ErrorCode::System);
    let only = CpuSocket { has_others: false, ..nowhere };
    assert_eq!(only.place(&memory), Ok(()), "the machine has no other memory");
}
