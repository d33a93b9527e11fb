//! GETs by calls: over the real memory, several nodes in this process, each with an executor; and with a
//! model of an executor in the adversarial memory.

use super::cluster::{check_histories, cluster, create};
use super::model::ModelSession;
use crate::dht::lookup::{Called, get_with};
use crate::dht::space::Space;
use crate::dht::table::{TableAccess, is_freed};
use crate::dht::{Dht, DhtError, LookupStats, Lookups};
use farside::call::rmc::helpers::{Call, status};
use farside::call::rmc::library::LibraryEntry;
use farside::call::rmc::run::{Buffers, Lent, Near, Outcome, Reply, Request};
use farside::call::rmc::{Limits, Machine, Verified, verify};
use farside::call::{CallAnswer, CallServer, Caller, CallerOptions, ServerOptions};
use farside::{ErrorCode, GlobalAddress, Node, NodeId, fabrics};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

fn address(name: &str, node: NodeId) -> String {
    format!("dht-{name}-{}-calls-{}", std::process::id(), node.0)
}

/// Ends the executors on every exit of the test.
struct ExecutorGuard<'a>(&'a AtomicBool);

impl Drop for ExecutorGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `body` with an executor at each node; returns how many requests each has served.
fn with_executors(name: &str, nodes: &[Node], body: impl FnOnce()) -> Vec<u64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = ExecutorGuard(&stop);
        let serve = |node: &Node| {
            let fabric = fabrics::shared_memory().unwrap();
            let options = ServerOptions::default();
            let at = address(name, node.id());
            let mut server = CallServer::listen(&fabric, &at, &options).unwrap();
            server.share(node).unwrap();
            let stop = &stop;
            scope.spawn(move || {
                server.serve(stop);
                server.served()
            })
        };
        let threads: Vec<_> = nodes.iter().map(serve).collect();
        body();
        stop.store(true, Ordering::Release);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The lookups of a user at `here`.
fn lookups(name: &str, nodes: &[Node], here: NodeId) -> Lookups {
    let mut lookups = Lookups::new(TIMEOUT);
    for node in nodes.iter().filter(|node| node.id() != here) {
        let fabric = fabrics::shared_memory().unwrap();
        let at = address(name, node.id());
        let caller = Caller::connect(&fabric, &at, &CallerOptions::default()).unwrap();
        lookups.add(node.id(), caller).unwrap();
    }
    lookups
}

/// An executor in the model's memory: the program runs on the session of the requester, access by access.
pub(super) struct ModelCalls {
    program: Verified,
    variables: Vec<u8>,
    pub(super) stats: LookupStats,
}

impl Default for ModelCalls {
    fn default() -> Self {
        let program = LibraryEntry::with_name("dht_lookup").unwrap().program().unwrap();
        let variables = program.variables.own.clone();
        let program = verify(program, &Limits::DEFAULT).unwrap();
        Self { program, variables, stats: LookupStats::default() }
    }
}

impl ModelCalls {
    pub(super) fn get(
        &mut self,
        table: &mut TableAccess,
        session: &mut ModelSession,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, DhtError> {
        let Self { program, variables, stats } = self;
        get_with(table, session, key, out, stats, |session, _, parameters| {
            let mut machine = Machine::new();
            machine.start(program, parameters, Limits::DEFAULT.budget).unwrap();
            let lent = Lent { own: variables, shared: &mut [] };
            match machine.run(program, lent, &mut NearModel(session)) {
                Outcome::Returned(result) => {
                    Called::Ended(CallAnswer { result, output: machine.output().to_vec() })
                }
                other => panic!("{other:?}"),
            }
        })
    }
}

struct NearModel<'a>(&'a mut ModelSession);

impl Near for NearModel<'_> {
    fn perform(&mut self, request: &Request, buffers: Buffers<'_>) -> Reply {
        let result = match request.call {
            Call::Lock => status::OK,
            Call::GlobalRead => match GlobalAddress::from_bits(request.arguments[0]) {
                Err(_) => status::NOT_PERMITTED,
                Ok(at) => match self.0.read(at, buffers.output) {
                    Ok(()) => status::OK,
                    Err(error) if is_freed(&error) => status::NOT_PERMITTED,
                    Err(error) => {
                        let dead = [ErrorCode::NodeLost, ErrorCode::LineLost];
                        assert!(dead.contains(&error.code) || error.code == ErrorCode::NodeClosed);
                        status::PEER_LOST
                    }
                },
            },
            other => panic!("{other:?}"),
        };
        Reply::Now(result.cast_unsigned())
    }
}

#[test]
fn get_is_exactly_one_call() {
    const KEYS: u64 = 400;
    let name = "one-call";
    let nodes = cluster(name, 2);
    let root = create(&nodes, 512);
    let key = |number: u64| format!("user{number}").into_bytes();
    // One line of each size, and several.
    let value = |number: u64| number.to_le_bytes().repeat(1 + number as usize % 200);
    let mut session = nodes[0].session().unwrap();
    let mut dht = Dht::open(&mut session, root).unwrap();
    for number in 0..KEYS {
        dht.with(&mut session).put(&key(number), &value(number)).unwrap();
    }
    let served = with_executors(name, &nodes, || {
        let mut session = nodes[1].session().unwrap();
        let mut lookups = lookups(name, &nodes, nodes[1].id());
        let mut dht = Dht::open(&mut session, root).unwrap();
        let mut out = Vec::new();
        // The first round learns how the table has grown.
        for round in 0..2 {
            let before = lookups.stats();
            for number in 0..KEYS {
                let of_lines = || (nodes[1].stats().misses, nodes[1].stats().direct_reads);
                let (count, before) = (lookups.stats().answered, of_lines());
                let mut dht = dht.with_calls(&mut session, &mut lookups);
                assert!(dht.get(&key(number), &mut out).unwrap());
                assert!(out == value(number), "key {number}");
                if lookups.stats().answered > count {
                    assert_eq!(of_lines(), before, "key {number}");
                }
            }
            let mut dht = dht.with_calls(&mut session, &mut lookups);
            assert!(!dht.get(b"nobody", &mut out).unwrap());
            let now = lookups.stats();
            let fell_back = now.fell_back() - before.fell_back();
            let answered = now.answered - before.answered;
            assert_eq!(fell_back + answered + now.direct - before.direct, KEYS + 1);
            assert!(round == 0 || fell_back == 0, "{now:?} after {before:?}");
            assert!(answered > 0 && now.direct > before.direct, "{now:?}");
        }
        assert_eq!(lookups.last_error(), None);
    });
    assert!(served[0] > 0);
}

#[test]
fn histories_by_calls_are_linearizable() {
    for line in [64, 512] {
        let name = format!("calls-history{line}");
        let nodes = cluster(&name, 3);
        let all = Mutex::new(Vec::new());
        with_executors(&name, &nodes, || {
            let looked =
                check_histories(&nodes, line, |node| Some(lookups(&name, &nodes, node.id())));
            all.lock().unwrap().extend(looked);
        });
        for looked in all.into_inner().unwrap() {
            // Six of sixteen operations are GETs, and each node has one or two of the four partitions.
            assert!(looked.answered > 500 && looked.direct > 100, "{looked:?}");
            assert_eq!(looked.failed, 0, "{looked:?}");
        }
    }
}

#[test]
fn get_without_executor_falls_back_and_is_counted() {
    let name = "gone";
    let nodes = cluster(name, 2);
    let root = create(&nodes, 512);
    let mut session = nodes[1].session().unwrap();
    let mut dht = Dht::open(&mut session, root).unwrap();
    let keys: Vec<_> = (0..40_u32).map(|number| number.to_le_bytes()).collect();
    let large = vec![7; 5_000];
    for key in &keys {
        dht.with(&mut session).put(key, key).unwrap();
        dht.with(&mut session).put(&[&key[..], b"large"].concat(), &large).unwrap();
    }
    let kept = Mutex::new(None);
    with_executors(name, &nodes, || {
        *kept.lock().unwrap() = Some(lookups(name, &nodes, nodes[1].id()));
    });
    let mut lookups = kept.into_inner().unwrap().unwrap();
    let mut out = Vec::new();
    for key in &keys {
        let mut dht = dht.with_calls(&mut session, &mut lookups);
        assert!(dht.get(key, &mut out).unwrap() && out == key);
    }
    let looked = lookups.stats();
    assert!(looked.failed > 0 && looked.answered == 0, "{looked:?}");
    assert_eq!(looked.failed + looked.direct, keys.len() as u64);
    assert!(lookups.last_error().is_some());
    // With another executor, calls are answered again, and values too large for a call are still found.
    with_executors(name, &nodes, || {
        let again = self::lookups(name, &nodes, nodes[1].id());
        lookups = again;
        for key in &keys {
            let mut dht = dht.with_calls(&mut session, &mut lookups);
            assert!(dht.get(key, &mut out).unwrap() && out == key);
            assert!(dht.get(&[&key[..], b"large"].concat(), &mut out).unwrap() && out == large);
        }
        let looked = lookups.stats();
        assert!(looked.answered > 0 && looked.large > 0, "{looked:?}");
        assert_eq!((looked.moved, looked.stale, looked.failed), (0, 0, 0));
        assert_eq!(looked.answered + looked.large + looked.direct, 2 * keys.len() as u64);
    });
}
