//! A logged hash table over nodes with state: killed one after the other under load, and all at once, it is whole, and has
//! what was fenced. `FARSIDE_RUNS` sets the number of rounds, `FARSIDE_SEED` the moments of the kills.
//!
//! The test executable starts itself again as each node.

use farside::{Config, Durability, ErrorCode, LineSize, Node};
use farside_apps::dht::{Dht, DhtError, DhtOptions, Handle};
use farside_sim::seeds;
use farside_testkit::{Folder, Process, Random, await_parent, role, say, unique_name};
use std::collections::BTreeMap;
use std::time::Duration;

const NODES: usize = 3;
/// Keys that each node writes; no other node does.
const KEYS: u64 = 400;
/// Operations between two fences.
const BATCH: u64 = 4;
const ROOT: &str = "table";
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Change `count` of a node: its key, and the number of words of the value, or none for a removal.
fn change(rank: usize, count: u64) -> (u64, Option<usize>) {
    let mut random = Random::new((rank as u64) << 48 | count);
    let key = random.below(KEYS);
    // In a line, in another line size, and in several lines.
    let words = [3, 20, 90, 200][random.below(4) as usize];
    (key, (!random.one_in(8)).then_some(words))
}

fn name(rank: usize, key: u64) -> Vec<u8> {
    format!("{rank}/{key}").into_bytes()
}

/// The changes from `first` on, each batch repeated until its fence succeeds; `done` after each.
fn work(dht: &mut Handle<'_>, rank: usize, first: u64, mut done: impl FnMut(u64)) {
    let mut next = first;
    loop {
        let batch = next..next + BATCH;
        let changed = batch.clone().try_for_each(|count| -> Result<(), DhtError> {
            let (key, words) = change(rank, count);
            match words {
                Some(words) => drop(dht.put(&name(rank, key), &count.to_le_bytes().repeat(words))?),
                None => drop(dht.delete(&name(rank, key))?),
            }
            Ok(())
        });
        match changed.and_then(|()| Ok(dht.session().fence()?)) {
            Ok(()) => {
                done(batch.end - 1);
                next = batch.end;
            }
            Err(error) if matches!(error.code(), ErrorCode::WritesLost | ErrorCode::HomeAway) => {}
            Err(error) => panic!("node {rank}: {error}"),
        }
    }
}

/// A node: serves its memory, and creates or changes the table when it is asked to.
#[test]
fn child() {
    let Some(words) = role() else { return };
    let config = Config::new(&words[1]).memory_bytes(8 << 20).cache_bytes(2 << 20);
    let config = config.state(Some((&words[2]).into()));
    let node = match words[0].as_str() {
        "founds" => Node::create(&config).unwrap(),
        _ => Node::join(&config).unwrap(),
    };
    let rank: usize = words[3].parse().unwrap();
    say("ready");
    loop {
        let asked = await_parent();
        let mut session = node.session().unwrap();
        match asked.split_once(' ') {
            Some(("create", _)) => {
                node.wait_for_members(NODES, JOIN_TIMEOUT).unwrap();
                let options = DhtOptions {
                    nodes: node.members().iter().map(|member| member.node).collect(),
                    partitions: 4,
                    record_line: LineSize::from_bytes(512).unwrap(),
                    seed: 7,
                    durability: Durability::Logged,
                };
                let root = Dht::create(&mut session, &options).unwrap().root();
                session.publish_root(ROOT, root, 64).unwrap();
                say("created");
            }
            Some(("work", first)) => {
                let root = session.root(ROOT).unwrap().address;
                let mut dht = Dht::open(&mut session, root).unwrap();
                let done = |count| say(&format!("fenced {count}"));
                work(&mut dht.with(&mut session), rank, first.parse().unwrap(), done);
            }
            _ => return,
        }
    }
}

/// The nodes, and what the table must have.
struct TableCluster {
    name: String,
    folders: [Folder; NODES],
    processes: Vec<Process>,
    /// The last change of each key that was seen; none if it was absent.
    base: BTreeMap<(usize, u64), Option<u64>>,
    /// The first change of this round of each node, and the last one that was fenced.
    rounds: [(u64, Option<u64>); NODES],
}

impl TableCluster {
    fn start(&self, rank: usize, verb: &str) -> Process {
        let state = self.folders[rank].path("state");
        let mut process = Process::child(&format!("{verb} {} {state} {rank}", self.name));
        process.hear("ready");
        process
    }

    /// Reads what a node has reported so far.
    fn listen(&mut self, rank: usize) {
        let said = self.processes[rank].said();
        let last = said.iter().rev().find_map(|line| line.split_once("fenced "));
        let last = last.map(|(_, count)| count.parse().unwrap());
        self.rounds[rank].1 = last.or(self.rounds[rank].1);
    }

    fn work(&mut self, rank: usize) {
        let (first, fenced) = self.rounds[rank];
        // A batch may be in flight when a process is killed.
        let next = fenced.map_or(first, |fenced| fenced + 1 + BATCH);
        self.rounds[rank] = (next, None);
        self.processes[rank].say(&format!("work {next}"));
    }

    /// Waits for fences of a node.
    fn await_fences(&mut self, rank: usize, count: u64) {
        (0..count).for_each(|_| drop(self.processes[rank].hear("fenced ")));
    }

    /// Checks the whole table from a new node.
    fn check(&mut self) {
        let config = Config::new(&self.name).memory_bytes(0).cache_bytes(4 << 20);
        let node = Node::join(&config).unwrap();
        let mut session = node.session().unwrap();
        let root = session.root(ROOT).unwrap().address;
        let mut dht = Dht::open(&mut session, root).unwrap();
        let mut dht = dht.with(&mut session);
        let (mut value, mut present) = (Vec::new(), 0);
        for rank in 0..NODES {
            let (first, fenced) = self.rounds[rank];
            let mut changes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            let after = fenced.map_or(first, |fenced| fenced + 1);
            for count in first..after + BATCH {
                changes.entry(change(rank, count).0).or_default().push(count);
            }
            for key in 0..KEYS {
                let found = dht.get(&name(rank, key), &mut value).unwrap();
                let words =
                    value.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                let seen = found.then(|| words.clone().next().unwrap());
                assert!(!found || words.clone().all(|word| Some(word) == seen), "a torn value");
                let of_key = changes.remove(&key).unwrap_or_default();
                let last = of_key.iter().rposition(|count| *count < after);
                let effect = |count: &u64| change(rank, *count).1.map(|words| (*count, words));
                let mut possible: Vec<_> = of_key[last.unwrap_or(0)..].iter().map(effect).collect();
                let base = self.base.get(&(rank, key)).copied().flatten();
                if last.is_none() {
                    possible.push(base.and_then(|count| effect(&count)));
                }
                let seen_all = seen.map(|count| (count, words.len()));
                assert!(
                    possible.contains(&seen_all),
                    "node {rank}, key {key}: {seen_all:?}, not one of {possible:?}; fenced: {fenced:?}"
                );
                self.base.insert((rank, key), seen);
                present += u64::from(found);
            }
        }
        let report = dht.scan_all(|_, _| {}).unwrap();
        assert_eq!((report.records, report.lost_records, report.lost_buckets), (present, 0, 0));
        dht.close().unwrap();
        drop(session);
        node.leave().unwrap();
    }
}

#[test]
fn logged_table_is_whole_after_kills_of_one_and_of_all_nodes() {
    let mut cluster = TableCluster {
        name: unique_name("table-state"),
        folders: [(); NODES].map(|()| Folder::new()),
        processes: Vec::new(),
        base: BTreeMap::new(),
        rounds: [(0, None); NODES],
    };
    for rank in 0..NODES {
        let verb = if rank == 0 { "founds" } else { "joins" };
        let process = cluster.start(rank, verb);
        cluster.processes.push(process);
    }
    cluster.processes[0].say("create .");
    cluster.processes[0].hear("created");
    let mut random = Random::new(seeds::setting("FARSIDE_SEED", 1));
    for round in 0..seeds::setting("FARSIDE_RUNS", 2) {
        (0..NODES).for_each(|rank| cluster.work(rank));
        // One is killed, and comes back, while the others wait for it and continue.
        let one = random.below(NODES as u64) as usize;
        cluster.await_fences(one, 20 + random.below(100));
        cluster.processes[one].kill();
        cluster.listen(one);
        cluster.processes[one] = cluster.start(one, "joins");
        for rank in (0..NODES).filter(|rank| *rank != one) {
            cluster.await_fences(rank, 100 + random.below(50));
        }
        // All are killed, and come back in another order.
        for rank in 0..NODES {
            cluster.processes[rank].kill();
            if rank != one {
                cluster.listen(rank);
            }
        }
        let first = (round as usize + 1) % NODES;
        cluster.processes[first] = cluster.start(first, "founds");
        for rank in (0..NODES).filter(|rank| *rank != first) {
            cluster.processes[rank] = cluster.start(rank, "joins");
        }
        cluster.check();
        say(&format!("round {round}: {:?}", cluster.rounds));
    }
}
