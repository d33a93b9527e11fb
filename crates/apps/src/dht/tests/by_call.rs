//! GETs by calls over the real memory: several nodes in this process, each with an executor.

use super::cluster::{cluster, create};
use crate::dht::{Dht, Lookups};
use farside::call::{CallServer, Caller, CallerOptions, ServerOptions};
use farside::{Node, NodeId, fabrics};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

fn address(name: &str, node: NodeId) -> String {
    format!("dht-{name}-{}-calls-{}", std::process::id(), node.0)
}

/// Ends the executors however the test ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `body` while each node has an executor; how many requests each has served.
fn with_executors(name: &str, nodes: &[Node], body: impl FnOnce()) -> Vec<u64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
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

/// What a user at `here` looks keys up with.
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

#[test]
fn a_get_is_one_call_and_asks_nothing_else() {
    const KEYS: u64 = 400;
    let name = "one-call";
    let nodes = cluster(name, 2);
    let root = create(&nodes, 512);
    let key = |number: u64| format!("user{number}").into_bytes();
    // In one line of each size, and in several.
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
                let (count, misses) = (lookups.stats().answered, nodes[1].stats().misses);
                let mut dht = dht.with_calls(&mut session, &mut lookups);
                assert!(dht.get(&key(number), &mut out).unwrap());
                assert!(out == value(number), "key {number}");
                if lookups.stats().answered > count {
                    assert_eq!(nodes[1].stats().misses, misses, "key {number}");
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
