//! Exact costs of the cases of paper 004 (§2.3 and §2.4, figures 3 and 4), of atomics and of locks: messages, work
//! requests, doorbells and bytes placed at each node. A change of the message path shows here, however fast the
//! machine is.

use farside::fabrics::{Fabric, MemFabric};
use farside::{Config, Error, GlobalAddress, Joining, Node, NodeId, Session, Stats};
use farside_testkit::unique_name;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const LINE: u64 = 512;

/// What a node did: messages, work requests, doorbells, bytes placed.
type Counts = [u64; 4];
const NOTHING: Counts = [0; 4];
/// One message.
const MESSAGE: Counts = [1, 1, 1, 0];
/// The bytes of a line and the message that announces them, with one doorbell.
const LINE_AND_MESSAGE: Counts = [1, 2, 1, LINE];

/// A home with a line and two other nodes, driven by the test's thread.
struct ThreeNodes {
    nodes: Vec<Node>,
    sessions: Vec<Session>,
    line: GlobalAddress,
}

/// Polls until no node has anything to do.
fn settle(nodes: &[Node]) {
    while nodes.iter().fold(false, |any, node| any | node.progress()) {}
}

/// Runs a call, and what follows of it, to the end.
fn finish<T>(nodes: &[Node], call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut call = pin!(call);
    loop {
        if let Poll::Ready(end) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            settle(nodes);
            return end;
        }
        nodes.iter().for_each(|node| _ = node.progress());
    }
}

impl ThreeNodes {
    fn new() -> Result<Self, Error> {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let mut config = Config::new(unique_name("counts"))
            .memory_bytes(1 << 20)
            .cache_bytes(1 << 20)
            .direct_reads(false);
        config.write_back_ns = None;
        let mut nodes = vec![Node::create_driven(&config, Arc::clone(&fabric))?];
        while nodes.len() < 3 {
            let mut joining = Joining::start(&config, Arc::clone(&fabric))?;
            let node = loop {
                nodes.iter().for_each(|node| _ = node.progress());
                if let Some(node) = joining.poll()? {
                    break node;
                }
            };
            nodes.push(node);
        }
        settle(&nodes);
        let mut sessions = nodes.iter().map(Node::session).collect::<Result<Vec<_>, _>>()?;
        let line = finish(&nodes, sessions[0].alloc_on_async(LINE, NodeId(0)))?;
        Ok(Self { nodes, sessions, line })
    }

    fn read(&mut self, node: usize) -> Result<(), Error> {
        finish(&self.nodes, self.sessions[node].read_async(self.line, &mut [0; 8]))
    }

    fn write(&mut self, node: usize) -> Result<(), Error> {
        finish(&self.nodes, self.sessions[node].write_async(self.line, &[7; 8]))?;
        finish(&self.nodes, self.sessions[node].fence_async())
    }

    /// Returns what each node does during `step`.
    fn counts(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<Vec<Counts>, Error> {
        let before: Vec<Stats> = self.nodes.iter().map(Node::stats).collect();
        step(self)?;
        let each = self.nodes.iter().zip(&before).map(|(node, before)| {
            let after = node.stats();
            [
                after.messages_sent - before.messages_sent,
                after.work_requests - before.work_requests,
                after.doorbells - before.doorbells,
                after.bytes_placed - before.bytes_placed,
            ]
        });
        Ok(each.collect())
    }
}

#[test]
fn read_of_an_unowned_line_is_one_round_trip() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    assert_eq!(cluster.counts(|c| c.read(1))?, [LINE_AND_MESSAGE, MESSAGE, NOTHING]);
    assert_eq!(cluster.counts(|c| c.read(1))?, [NOTHING; 3], "a hit");
    assert_eq!(cluster.counts(|c| c.read(0))?, [NOTHING; 3], "the home shares it");
    assert_eq!(cluster.counts(|c| c.read(2))?, [LINE_AND_MESSAGE, NOTHING, MESSAGE]);
    Ok(())
}

#[test]
fn read_of_an_owned_line_is_served_by_its_owner() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    cluster.write(1)?;
    // The home recalls and grants; the owner places the line at both, and announces it to both.
    let owner = [2, 4, 1, 2 * LINE];
    assert_eq!(cluster.counts(|c| c.read(2))?, [[2, 2, 2, 0], owner, MESSAGE]);
    cluster.write(1)?;
    assert_eq!(cluster.counts(|c| c.read(0))?, [MESSAGE, LINE_AND_MESSAGE, NOTHING]);
    Ok(())
}

#[test]
fn write_of_an_unshared_line_is_one_round_trip() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    assert_eq!(cluster.counts(|c| c.write(0))?, [NOTHING; 3], "the home owns it");
    assert_eq!(cluster.counts(|c| c.write(1))?, [LINE_AND_MESSAGE, MESSAGE, NOTHING]);
    assert_eq!(cluster.counts(|c| c.write(1))?, [NOTHING; 3], "a hit");
    Ok(())
}

#[test]
fn write_of_a_shared_line_recalls_each_sharer_once() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    cluster.read(1)?;
    // An upgrade moves no bytes.
    assert_eq!(cluster.counts(|c| c.write(1))?, [MESSAGE, MESSAGE, NOTHING]);
    let mut cluster = ThreeNodes::new()?;
    cluster.read(1)?;
    cluster.read(2)?;
    assert_eq!(cluster.counts(|c| c.write(1))?, [[2, 2, 2, 0], MESSAGE, MESSAGE]);
    cluster.read(1)?;
    cluster.read(2)?;
    // The home recalls both with one doorbell.
    assert_eq!(cluster.counts(|c| c.write(0))?, [[2, 2, 1, 0], MESSAGE, MESSAGE]);
    Ok(())
}

#[test]
fn write_of_an_owned_line_moves_its_bytes_once() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    cluster.write(1)?;
    let owner = [2, 3, 1, LINE];
    assert_eq!(cluster.counts(|c| c.write(2))?, [[2, 2, 2, 0], owner, MESSAGE]);
    Ok(())
}

#[test]
fn write_back_of_an_owned_line_is_one_round_trip() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    cluster.write(1)?;
    let write_back =
        |c: &mut ThreeNodes| finish(&c.nodes, c.sessions[1].write_back_async(c.line, 8));
    // The bytes go with the request, and the copy remains.
    assert_eq!(cluster.counts(write_back)?, [MESSAGE, LINE_AND_MESSAGE, NOTHING]);
    assert_eq!(cluster.counts(|c| c.read(1))?, [NOTHING; 3]);
    assert_eq!(cluster.counts(write_back)?, [MESSAGE, MESSAGE, NOTHING]);
    Ok(())
}

#[test]
fn atomic_costs_as_much_as_a_write() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    let add =
        |c: &mut ThreeNodes| finish(&c.nodes, c.sessions[1].fetch_add_async(c.line, 1)).map(|_| ());
    assert_eq!(cluster.counts(add)?, [LINE_AND_MESSAGE, MESSAGE, NOTHING]);
    assert_eq!(cluster.counts(add)?, [NOTHING; 3]);
    Ok(())
}

#[test]
fn lock_is_one_round_trip_until_it_is_delegated() -> Result<(), Error> {
    let mut cluster = ThreeNodes::new()?;
    let lock = |node: usize| {
        move |c: &mut ThreeNodes| {
            let guard = finish(&c.nodes, c.sessions[node].lock_write_async(c.line, LINE))?;
            finish(&c.nodes, guard.unlock_async())
        }
    };
    assert_eq!(cluster.counts(lock(1))?, [MESSAGE, [2, 2, 2, 0], NOTHING], "granted and released");
    assert_eq!(
        cluster.counts(lock(1))?,
        [MESSAGE, MESSAGE, NOTHING],
        "delegated with the second grant"
    );
    assert_eq!(cluster.counts(lock(1))?, [NOTHING; 3], "of its own delegation");
    // The home recalls the delegation, is answered, and grants.
    assert_eq!(cluster.counts(lock(2))?, [[2, 2, 2, 0], MESSAGE, [2, 2, 2, 0]]);
    Ok(())
}
