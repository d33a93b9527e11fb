//! A node with state that is killed while clients at several nodes read and update its memory: the history of all of
//! them is linearizable, where an update is acknowledged once it is fenced. `FARSIDE_RUNS` sets the number of kills.
//!
//! The test executable starts itself again as the home.

use farside::fabrics::{self, Fabric, FabricOptions, Scheme};
use farside::onesided::{LendOptions, MemoryServer};
use farside::{AllocationSpec, Config, Durability, Error, ErrorCode, GlobalAddress, Node, Retry};
use farside_sim::linearizability::{HistoryCall, Register, RegisterOperation, check_each};
use farside_sim::seeds;
use farside_testkit::{Process, Random, await_parent, role, say, unique_name, until};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

const CLIENTS: u64 = 3;
const WORDS: u64 = 24;
/// In lines of their own, as are the homes of most records.
const STRIDE: u64 = 512;

type Call = (u64, HistoryCall<RegisterOperation, u64>);

/// Where the home keeps its state.
enum StatePlace {
    Folder(PathBuf),
    Copies(Box<[MemoryServer; 2]>),
}

impl StatePlace {
    fn new(kind: &str) -> Self {
        if kind == "folder" {
            return Self::Folder(std::env::temp_dir().join(unique_name("state-kill")));
        }
        let (fabric, options) =
            (fabrics::shared_memory().unwrap(), LendOptions::default().exclusive(true));
        let lend = |_| MemoryServer::lend(&fabric, &unique_name("copy"), 80 << 20, &options);
        Self::Copies(Box::new([0, 1].map(|at| lend(at).unwrap())))
    }

    fn words(&self) -> String {
        match self {
            Self::Folder(path) => format!("folder {}", path.display()),
            Self::Copies(copies) => {
                format!("copies {} {}", copies[0].address(), copies[1].address())
            }
        }
    }
}

impl Drop for StatePlace {
    fn drop(&mut self) {
        if let Self::Folder(path) = self {
            _ = std::fs::remove_dir_all(path);
        }
    }
}

/// The fabric of a process or node, which joins at this host.
fn fabric(name: &str, host: Option<SocketAddr>) -> Arc<dyn Fabric> {
    let options = match name {
        "shm" => FabricOptions::new(Scheme::Shm),
        _ => FabricOptions::new(Scheme::Tcp)
            .listen(Some("127.0.0.1:0".parse().unwrap()))
            .hosts(host.into_iter().map(Into::into).collect()),
    };
    options.open().unwrap().fabric
}

/// The home: joins with its state, and serves until it is killed.
#[test]
fn child() {
    let Some(words) = role() else { return };
    let config = Config::new(&words[1]).memory_bytes(4 << 20).cache_bytes(1 << 20);
    let config = match words[3].as_str() {
        "folder" => config.state(Some(PathBuf::from(&words[4]))),
        _ => config.state_copies(words[4..].to_vec()),
    };
    let fabric = fabric(&words[0], words[2].parse().ok());
    let node = loop {
        match Node::join_on(&config, fabric.clone()) {
            Err(error) if error.code.entry().retry == Retry::Later => std::thread::yield_now(),
            node => break node.unwrap(),
        }
    };
    say("ready");
    await_parent();
    drop(node);
}

/// What one client has done.
struct StateClient<'a> {
    number: u64,
    words: GlobalAddress,
    began: Instant,
    /// Acknowledged operations of all clients.
    acknowledged: &'a AtomicU64,
}

impl StateClient<'_> {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Reads and updates words, half and half, until asked to end.
    fn run(&self, node: &Node, ends: &AtomicBool) -> Vec<Call> {
        let (mut session, mut random) = (node.session().unwrap(), Random::new(self.number));
        let mut calls = Vec::new();
        for count in 1.. {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            // Skewed: of two draws the smaller.
            let key = random.below(WORDS).min(random.below(WORDS));
            let word = self.words.checked_add(key * STRIDE).unwrap();
            let value = self.number << 32 | count;
            let invoke_ns = self.now_ns();
            let (operation, done) = match random.below(8) {
                0..4 => (RegisterOperation::Read, session.read_u64(word)),
                4..7 => {
                    (RegisterOperation::Write(value), session.write_u64(word, value).map(|()| 0))
                }
                _ => (RegisterOperation::Swap(value), session.swap(word, value)),
            };
            // What a read has seen was durable or is, but for this node's own updates: each is fenced before the next call.
            let done = done.and_then(|answer| session.fence().map(|()| answer));
            let returned = match done {
                Ok(answer) => Some((self.now_ns(), answer)),
                Err(Error { code: ErrorCode::WritesLost, .. }) => None,
                Err(error) => panic!("client {}: {operation:?}: {error}", self.number),
            };
            self.acknowledged.fetch_add(u64::from(returned.is_some()), Ordering::Relaxed);
            calls.push((key, HistoryCall { process: self.number, operation, invoke_ns, returned }));
        }
        calls
    }
}

/// The time from each kill to the first acknowledgement of an update that began after it.
fn away_ms(kills_ns: &[u64], calls: &[Call]) -> Vec<f64> {
    let updates = || {
        calls
            .iter()
            .filter(|(_, call)| !matches!(call.operation, RegisterOperation::Read))
            .filter_map(|(_, call)| {
                call.returned.map(|(returned_ns, _)| (call.invoke_ns, returned_ns))
            })
    };
    let mut away: Vec<f64> = kills_ns
        .iter()
        .filter_map(|killed_ns| {
            let after = updates().filter(|(invoke_ns, _)| invoke_ns > killed_ns);
            after.map(|(_, returned_ns)| (returned_ns - killed_ns) as f64 / 1e6).reduce(f64::min)
        })
        .collect();
    away.sort_by(f64::total_cmp);
    away
}

fn histories_hold(fabric_name: &str, kind: &str) {
    let place = StatePlace::new(kind);
    let config = Config::new(unique_name("kill")).memory_bytes(0).cache_bytes(1 << 20);
    let founder = Node::create_on(&config, fabric(fabric_name, None)).unwrap();
    let me = founder.members().into_iter().find(|member| member.node == founder.id()).unwrap();
    let host = me.host.map_or("-".to_owned(), |host| host.to_string());
    let role = format!("{fabric_name} {} {host} {}", config.cluster, place.words());
    let mut home = Process::child(&role);
    home.hear("ready");
    let more = (1..CLIENTS).map(|_| Node::join_on(&config, fabric(fabric_name, me.host)).unwrap());
    let nodes: Vec<Node> = more.chain([founder]).collect();
    let mut session = nodes[0].session().unwrap();
    let logged = AllocationSpec::default().durability(Durability::Logged);
    let words = session.alloc_with(WORDS * STRIDE, logged).unwrap();
    let (ends, acknowledged, began) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let kills = seeds::setting("FARSIDE_RUNS", 3);
    let mut random = Random::new(seeds::setting("FARSIDE_SEED", 1));
    let (mut calls, kills_ns) = std::thread::scope(|scope| {
        let start = |(node, number)| {
            let client = StateClient { number, words, began, acknowledged: &acknowledged };
            let ends = &ends;
            scope.spawn(move || client.run(node, ends))
        };
        let clients: Vec<_> = nodes.iter().zip(1..).map(start).collect();
        let mut kills_ns = Vec::new();
        for _ in 0..kills {
            let enough = acknowledged.load(Ordering::Relaxed) + 20 + random.below(200);
            until("more acknowledgements", || {
                assert!(!clients.iter().any(ScopedJoinHandle::is_finished), "a client has failed");
                acknowledged.load(Ordering::Relaxed) >= enough
            });
            kills_ns.push(began.elapsed().as_nanos() as u64);
            home.kill();
            home = Process::child(&role);
            home.hear("ready");
        }
        let enough = acknowledged.load(Ordering::Relaxed) + 50;
        until("more acknowledgements", || acknowledged.load(Ordering::Relaxed) >= enough);
        ends.store(true, Ordering::Relaxed);
        let calls = clients.into_iter().flat_map(|client| client.join().unwrap());
        (calls.collect::<Vec<Call>>(), kills_ns)
    });
    for key in 0..WORDS {
        let invoke_ns = began.elapsed().as_nanos() as u64;
        let answer = session.read_u64(words.checked_add(key * STRIDE).unwrap()).unwrap();
        let returned = Some((began.elapsed().as_nanos() as u64, answer));
        let operation = RegisterOperation::Read;
        calls.push((key, HistoryCall { process: 0, operation, invoke_ns, returned }));
    }
    let away = away_ms(&kills_ns, &calls);
    let unknown = calls.iter().filter(|(_, call)| call.returned.is_none()).count();
    say(&format!(
        "{kind} over {fabric_name}: {kills} kills, {} operations, {unknown} of unknown outcome; from a kill to the next \
         durable update, the start of a process included: median {:.0} ms, longest {:.0} ms",
        calls.len(),
        away[away.len() / 2],
        away[away.len() - 1]
    ));
    check_each(&Register(0), calls).holds().unwrap();
}

#[test]
fn histories_hold_when_a_home_with_a_folder_is_killed_over_shm() {
    histories_hold("shm", "folder");
}

#[test]
fn histories_hold_when_a_home_with_a_folder_is_killed_over_tcp() {
    histories_hold("tcp", "folder");
}

#[test]
fn histories_hold_when_a_home_with_copies_is_killed_over_shm() {
    histories_hold("shm", "copies");
}
