//! Processes that are stopped under load for so long that they are removed, and then go on.
//!
//! The stopped process notes when each of its operations began that ended well, by the system's clock,
//! which all processes share. None of them may have begun after the others had removed it, and no read
//! may have returned what was overwritten before it began.

use farside::{Config, ErrorCode, GlobalAddress, Node, NodeId, Session};
use farside_fabric::Fabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

const LEASE: Duration = Duration::from_millis(200);
const THREADS: usize = 4;

/// The system's clock.
fn now_ns() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::try_from(time.as_nanos()).expect("before 2554")
}

fn config(cluster: &str) -> Config {
    let lease_ns = u64::try_from(LEASE.as_nanos()).expect("a lease");
    Config { memory_bytes: 4 << 20, cache_bytes: 4 << 20, lease_ns, ..Config::new(cluster) }
}

fn tcp(founder: Option<SocketAddr>) -> Arc<dyn Fabric> {
    let options = TcpOptions {
        listen: Some("127.0.0.1:0".parse().expect("an address")),
        hosts: founder.into_iter().map(Into::into).collect(),
        lease: LEASE,
        request_timeout: LEASE,
        ..TcpOptions::default()
    };
    Arc::new(TcpFabric::new(options).expect("a fabric"))
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").expect("a parent that listens");
    out.flush().expect("a parent that listens");
}

/// What one thread of the stopped process has found.
#[derive(Clone, Copy, Default)]
struct Found {
    /// When the last operation began that ended well.
    acknowledged_ns: u64,
    /// When the last read began that returned the value before the removal.
    old_ns: u64,
    operations: u64,
}

/// Uses what is cached, owned and at home until this process knows that it was removed.
fn use_all(
    session: &mut Session,
    has: [GlobalAddress; 3],
    works: &AtomicUsize,
) -> (Found, ErrorCode) {
    let [shared, owned, own] = has;
    let mut found = Found::default();
    let error = loop {
        let start = now_ns();
        let done = match found.operations % 6 {
            0 | 3 => session.read_u64(shared).map(|value| {
                if value == 1 {
                    found.old_ns = start;
                }
            }),
            1 => session.write_u64(owned, start).and_then(|()| session.fence()),
            2 => session.fetch_add(own, 1).map(drop),
            4 => session.read_u64(owned).map(drop),
            _ => session.lock_write(owned, 64).and_then(farside::LockGuard::unlock),
        };
        match done {
            Ok(()) => found.acknowledged_ns = start,
            Err(error) => break error.code,
        }
        found.operations += 1;
        if found.operations == 100 {
            works.fetch_add(1, Ordering::SeqCst);
        }
    };
    (found, error)
}

/// The process that is stopped.
pub(super) fn member(cluster: &str) {
    let founder = std::env::var("FARSIDE_TEST_HOST").expect("the founder's host");
    let fabric = tcp(Some(founder.parse().expect("an address")));
    let node = Node::join_on(&config(cluster), fabric).expect("a node");
    let bits = std::env::var("FARSIDE_TEST_ADDRESS").expect("an address");
    let shared = GlobalAddress::from_bits(bits.parse().expect("a number")).expect("an address");
    let own = node.session().and_then(|mut s| s.alloc_on(64, node.id())).expect("memory");
    let works = AtomicUsize::new(0);
    let found: Vec<(Found, ErrorCode)> = std::thread::scope(|scope| {
        let works = &works;
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let mut session = node.session().expect("a session");
                session.read_u64(shared).expect("a member");
                let owned = session.alloc_on(64, NodeId(0)).expect("memory");
                scope.spawn(move || use_all(&mut session, [shared, owned, own], works))
            })
            .collect();
        super::until("all threads work", || works.load(Ordering::SeqCst) == THREADS);
        say("works");
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let most = |which: fn(&Found) -> u64| found.iter().map(|(found, _)| which(found)).max();
    let (acknowledged, old) = (most(|found| found.acknowledged_ns), most(|found| found.old_ns));
    let operations: u64 = found.iter().map(|(found, _)| found.operations).sum();
    let codes: Vec<ErrorCode> = found.iter().map(|(_, code)| *code).collect();
    say(&format!(
        "found {} {} {operations} {codes:?}",
        acknowledged.unwrap_or(0),
        old.unwrap_or(0)
    ));
    // Until its parent has heard it.
    let _ = std::io::stdin().read_line(&mut String::new());
}

struct Member {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Member {
    fn start(cluster: &str, founder: SocketAddr, shared: GlobalAddress) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env("FARSIDE_TEST_CLUSTER", cluster)
            .env("FARSIDE_TEST_HOST", founder.to_string())
            .env("FARSIDE_TEST_ADDRESS", shared.to_bits().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, said }
    }

    /// The rest of the line that has `word`.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.said.read_line(&mut line).expect("its output");
            assert!(count > 0, "the process ended before `{word}`");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(done.expect("kill").success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One process is stopped, removed, and continued after what it had cached was changed.
pub(super) fn stop_over_tcp(number: u32) {
    let cluster = format!("stopped-{number}-{}", std::process::id());
    let fabric = tcp(None);
    let host = fabric.host().expect("a host");
    let node = Node::create_on(&config(&cluster), fabric).expect("a node");
    let mut session = node.session().expect("a session");
    let shared = session.alloc_on(64, NodeId(0)).expect("memory");
    session.write_u64(shared, 1).expect("a write");
    session.fence().expect("a fence");
    let mut member = Member::start(&cluster, host, shared);
    member.hear("works");
    member.signal("-STOP");
    let alive = || node.members().iter().filter(|member| member.alive).count();
    super::until("it is removed", || alive() == 1);
    let removed_ns = now_ns();
    // Waits until what was cached there is reclaimed.
    session.write_u64(shared, 2).expect("a write");
    session.fence().expect("a fence");
    let overwritten_ns = now_ns();
    member.signal("-CONT");
    let found = member.hear("found ");
    let mut numbers = found.split(' ').map_while(|text| text.parse::<u64>().ok());
    let mut number = || numbers.next().expect("three numbers");
    let (acknowledged_ns, old_ns, operations) = (number(), number(), number());
    assert!(operations > 0, "it did nothing before it was stopped: {found}");
    assert!(acknowledged_ns < removed_ns, "acknowledged after its removal: {found}");
    assert!(old_ns < overwritten_ns, "an old value was read: {found}");
    assert!(found.contains("NodeClosed") || found.contains("Isolated"), "{found}");
    assert_eq!(session.read_u64(shared), Ok(2));
}
