//! Processes that open a node by one URL: the first founds the cluster, the others join it.

use farside::prelude::*;
use farside_testkit::{Process, free_address, role, say};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Additions of each process to the shared word.
const ADDITIONS: u64 = 200;

fn config(cluster: &str) -> Config {
    let config = Config::new(cluster).memory_bytes(4 << 20).cache_bytes(4 << 20);
    config.join_timeout_ns(60_000_000_000)
}

/// Not a test by itself: the other process.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [cluster, url] = &role[..] else { panic!("{role:?}") };
    let node = Node::open(&config(cluster), url, Security::open()).unwrap();
    say(&format!("is {} {}", node.id(), node.cluster_id()));
    let mut session = node.session().unwrap();
    for line in std::io::stdin().lines() {
        let word: GlobalAddress = line.unwrap().parse().unwrap();
        for _ in 0..ADDITIONS {
            session.fetch_add(word, 1).unwrap();
        }
        say("added");
    }
    drop(session);
    node.leave().unwrap();
}

/// Starts a process that opens a node.
fn opener(cluster: &str, url: &str) -> Process {
    Process::child(&format!("{cluster} {url}"))
}

fn name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

/// The same program in four processes, which differ in nothing.
fn processes_share_a_word(cluster: &str, url: &str) {
    let mut others: Vec<_> = (0..3).map(|_| opener(cluster, url)).collect();
    let node = Node::open(&config(cluster), url, Security::open()).unwrap();
    node.wait_for_members(4, PATIENCE).unwrap();
    let mut nodes = vec![node.id().0];
    for other in &mut others {
        let said = other.hear("is ");
        let (id, cluster_id) = said.split_once(' ').unwrap();
        assert_eq!(cluster_id, node.cluster_id().to_string());
        nodes.push(id.parse().unwrap());
    }
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 1, 2, 3]);
    let mut session = node.session().unwrap();
    let word = session.alloc(8).unwrap();
    for other in &mut others {
        other.say(&word.to_string());
    }
    for other in &mut others {
        other.hear("added");
    }
    assert_eq!(session.read_u64(word).unwrap(), 3 * ADDITIONS);
}

#[test]
fn processes_of_one_url_share_memory_over_shm() {
    processes_share_a_word(&name("open-shm"), "shm");
}

#[test]
fn processes_of_one_url_share_memory_over_tcp() {
    processes_share_a_word(&name("open-tcp"), &format!("tcp://{}", free_address()));
}

#[test]
fn processes_of_two_addresses_found_one_cluster() {
    let url = format!("tcp://{},{}", free_address(), free_address());
    processes_share_a_word(&name("open-two"), &url);
}

#[test]
fn joiner_waits_for_the_founder() {
    let (cluster, founder) = (name("open-wait"), free_address());
    // It may not listen at the founder's address, so it can only join.
    let mut other = opener(&cluster, &format!("tcp://{founder}?listen=127.0.0.1:0"));
    let alone = config(&cluster).join_timeout_ns(0);
    let elsewhere = format!("tcp://{founder}?listen=127.0.0.1:0");
    let error = Node::open(&alone, &elsewhere, Security::open()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NoSuchCluster);
    assert!(error.detail.contains(&founder.to_string()), "{error}");
    let node =
        Node::open(&config(&cluster), &format!("tcp://{founder}"), Security::open()).unwrap();
    assert_eq!(node.id().0, 0);
    assert!(other.hear("is ").starts_with("1 "));
}

#[test]
fn process_founds_when_the_founders_address_becomes_free() {
    let (cluster, founder) = (name("open-freed"), free_address());
    let listener = std::net::TcpListener::bind(founder).unwrap();
    let mut other = opener(&cluster, &format!("tcp://{founder}"));
    // It listens elsewhere, since it dials this one.
    drop(listener.accept().unwrap());
    drop(listener);
    assert!(other.hear("is ").starts_with("0 "));
}

farside_testkit::on_each_fabric! { shm tcp => (cluster_of_a_killed_founder_is_founded_again) }

fn cluster_of_a_killed_founder_is_founded_again(fabric: &str) {
    let url = if fabric == "shm" { "shm".to_owned() } else { format!("tcp://{}", free_address()) };
    let cluster = name(&format!("open-killed-{fabric}"));
    let mut first = opener(&cluster, &url);
    let before = first.hear("is 0 ");
    first.kill();
    let node = Node::open(&config(&cluster), &url, Security::open()).unwrap();
    assert_eq!(node.id().0, 0);
    assert_ne!(node.cluster_id().to_string(), before);
}

#[test]
fn member_that_outlives_the_founder_is_joined() {
    let cluster = name("open-outlives");
    let mut first = opener(&cluster, "shm");
    let founded = first.hear("is 0 ");
    let second = Node::open(&config(&cluster), "shm", Security::open()).unwrap();
    first.kill();
    // The name of the cluster may be free at this moment, and a member has not ended.
    let third = Node::open(&config(&cluster), "shm", Security::open()).unwrap();
    assert_eq!(third.cluster_id().to_string(), founded);
    assert_eq!(third.cluster_id(), second.cluster_id());
}

#[test]
fn occupancy_of_an_absent_cluster_is_no_such_cluster() {
    let absent = name("open-absent");
    for url in ["shm".to_owned(), format!("tcp://{}", free_address())] {
        let fabric = fabrics::open(&url, Security::open()).unwrap();
        let error = farside::occupancy(&*fabric, &absent, PATIENCE).unwrap_err();
        assert_eq!(error.code, ErrorCode::NoSuchCluster, "{url}: {error}");
    }
}

#[test]
fn occupancy_counts_the_members() {
    let (cluster, url) = (name("open-count"), format!("tcp://{}", free_address()));
    let _node = Node::open(&config(&cluster), &url, Security::open()).unwrap();
    let fabric = fabrics::open(&url, Security::open()).unwrap();
    assert_eq!(farside::occupancy(&*fabric, &cluster, PATIENCE).unwrap().members, 1);
}

#[test]
fn witness_with_data_or_without_votes_is_refused() {
    let witness = || Config::new(name("witness")).memory_bytes(0).witness(true);
    witness().check().unwrap();
    let refused = |config: Config, says: &str| {
        let error = Node::create(&config).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadConfiguration);
        assert!(error.to_string().contains(says), "{error}");
    };
    refused(witness().memory_bytes(1 << 20), "memory_bytes is 1048576: set it to 0");
    refused(witness().state(Some("folder".into())), "leave out state");
    refused(witness().state_copies(vec!["127.0.0.1:1/a".to_owned()]), "leave out state");
    refused(witness(), "members do not vote over shm");
}
