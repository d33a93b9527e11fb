//! Processes that open a node by one URL: the first founds the cluster, the others join it.

use farside::prelude::*;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Additions of each process to the shared word.
const ADDITIONS: u64 = 200;

/// A process that opens a node, killed when the test ends.
struct Opener {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Opener {
    fn start(cluster: &str, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env("FARSIDE_TEST_CLUSTER", cluster)
            .env("FARSIDE_TEST_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// Returns the rest of the next line that has `word`.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.output.read_line(&mut line).unwrap();
            assert!(count > 0, "the process ended before `{word}`");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn say(&mut self, text: &str) {
        writeln!(self.input, "{text}").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(cluster: &str) -> Config {
    let config = Config::new(cluster).memory_bytes(4 << 20).cache_bytes(4 << 20);
    config.join_timeout_ns(60_000_000_000)
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").unwrap();
    out.flush().unwrap();
}

/// Not a test by itself: the other process.
#[test]
fn child() {
    let Ok(cluster) = std::env::var("FARSIDE_TEST_CLUSTER") else {
        return;
    };
    let url = std::env::var("FARSIDE_TEST_URL").unwrap();
    let node = Node::open(&config(&cluster), &url, Security::open()).unwrap();
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

fn name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

/// Returns an address of the loopback that was free a moment ago.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The same program in four processes, which differ in nothing.
fn processes_share_a_word(cluster: &str, url: &str) {
    let mut others: Vec<_> = (0..3).map(|_| Opener::start(cluster, url)).collect();
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
    let mut other = Opener::start(&cluster, &format!("tcp://{founder}?listen=127.0.0.1:0"));
    let alone = config(&cluster).join_timeout_ns(0);
    let elsewhere = format!("tcp://{founder}?listen=127.0.0.1:0");
    let error = Node::open(&alone, &elsewhere, Security::open()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NoSuchCluster);
    assert!(error.detail.contains(&founder), "{error}");
    let node =
        Node::open(&config(&cluster), &format!("tcp://{founder}"), Security::open()).unwrap();
    assert_eq!(node.id().0, 0);
    assert!(other.hear("is ").starts_with("1 "));
}

#[test]
fn cluster_of_a_killed_founder_is_founded_again() {
    for url in ["shm".to_owned(), format!("tcp://{}", free_address())] {
        let cluster = name("open-killed");
        let mut first = Opener::start(&cluster, &url);
        let before = first.hear("is 0 ");
        first.kill();
        let node = Node::open(&config(&cluster), &url, Security::open()).unwrap();
        assert_eq!(node.id().0, 0);
        assert_ne!(node.cluster_id().to_string(), before);
    }
}

#[test]
fn member_that_outlives_the_founder_is_joined() {
    let cluster = name("open-outlives");
    let mut first = Opener::start(&cluster, "shm");
    let founded = first.hear("is 0 ");
    let second = Node::open(&config(&cluster), "shm", Security::open()).unwrap();
    first.kill();
    // The name of the cluster may be free at this moment, and a member has not ended.
    let third = Node::open(&config(&cluster), "shm", Security::open()).unwrap();
    assert_eq!(third.cluster_id().to_string(), founded);
    assert_eq!(third.cluster_id(), second.cluster_id());
}
