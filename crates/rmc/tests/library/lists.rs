//! Linked lists and hash tables.

use farside_rmc::helpers::{Call, status, xxhash64};
use farside_rmc::library::{Checksum, HashLookup, HostWord, ListSearch, answer};
use farside_rmc::run::{Outcome, Resource, Stop};

use crate::host::TestHost;
use crate::programs::Programs;
use crate::runner::{SeededRandom, call, put};

fn place(region: u64, offset: u64) -> HostWord {
    HostWord::new(region as u16, offset).unwrap()
}

/// Lists of all lengths in two regions, in any order: the first node that has the key.
pub(crate) fn lists(programs: &Programs) {
    let search = programs.verified("list_search");
    for seed in 0..60 {
        let mut chance = SeededRandom::new(seed);
        let length = if seed < 4 { seed as usize } else { chance.below(70) as usize };
        let mut host = TestHost::new(vec![vec![0; 24 * 80], vec![0; 24 * 80]]);
        // Place 0 is unused: it marks the end of a list.
        let order = chance.order(150);
        let at = |k: usize| place(order[k] as u64 / 75, 24 * (1 + order[k] as u64 % 75));
        let nodes: Vec<_> = (0..length).map(|_| (chance.below(100), chance.next() >> 8)).collect();
        for (k, (key, value)) in nodes.iter().enumerate() {
            let next = if k + 1 < length { at(k + 1) } else { HostWord::NONE };
            let here = at(k);
            let node = [*key, *value, next.word()];
            put(&mut host, here.region() as usize, here.offset(), &node);
        }
        let head = if length == 0 { HostWord::NONE } else { at(0) };
        for key in 0..100 {
            let done = call(&search, &mut host, &ListSearch { head, key }.to_bytes());
            let found = nodes.iter().position(|node| node.0 == key);
            let expected = found.map_or(status::NOT_FOUND, |k| nodes[k].1 as i64);
            assert_eq!(done.result(), expected, "seed {seed} key {key}");
            let accesses = found.map_or(length, |k| k + 1);
            assert_eq!(done.accesses, accesses as u64, "seed {seed} key {key}");
            let Outcome::Returned(result) = done.outcome else { unreachable!() };
            assert_eq!(answer(result).is_ok(), found.is_some());
        }
    }
}

/// A list that never ends: the meter ends the call.
pub(crate) fn cycles(programs: &Programs) {
    let search = programs.verified("list_search");
    let mut host = TestHost::new(vec![vec![0; 256]]);
    put(&mut host, 0, 24, &[1, 10, 48]);
    put(&mut host, 0, 48, &[2, 20, 24]);
    let found = call(&search, &mut host, &ListSearch { head: place(0, 24), key: 2 }.to_bytes());
    assert_eq!((found.result(), found.accesses), (20, 2));
    let done = call(&search, &mut host, &ListSearch { head: place(0, 24), key: 3 }.to_bytes());
    let Outcome::Stopped(Stop::Budget { resource, .. }) = done.outcome else {
        panic!("{done:?}");
    };
    assert_eq!((resource, done.accesses), (Resource::HelperCalls, 1 << 16));
}

/// A table in memory.
struct Table {
    host: TestHost,
    mask: u64,
    /// The bytes that are taken.
    used: u64,
    /// Keys and values, the latest first, in the order of their chains.
    chains: Vec<Vec<(u64, Vec<u8>)>>,
}

impl Table {
    const BUCKETS: u64 = 64;

    fn new(buckets: u64) -> Self {
        let host = TestHost::new(vec![vec![], vec![0; 600_000]]);
        let used = Self::BUCKETS + 8 * buckets;
        Self { host, mask: buckets - 1, used, chains: vec![vec![]; buckets as usize] }
    }

    fn bucket(&self, key: u64) -> usize {
        (xxhash64(&key.to_le_bytes(), 0) & self.mask) as usize
    }

    fn insert(&mut self, key: u64, value: &[u8]) {
        let bucket = self.bucket(key);
        let head = Self::BUCKETS + 8 * bucket as u64;
        let next = crate::runner::word(&self.host, 1, head);
        let at = self.used;
        put(&mut self.host, 1, at, &[key, next, value.len() as u64]);
        let from = at as usize + 24;
        self.host.regions[1][from..from + value.len()].copy_from_slice(value);
        put(&mut self.host, 1, head, &[place(1, at).word()]);
        self.used += 24 + value.len() as u64;
        self.chains[bucket].insert(0, (key, value.to_vec()));
    }

    fn parameters(&self, key: u64) -> Vec<u8> {
        HashLookup { buckets: place(1, Self::BUCKETS), mask: self.mask, key }.to_bytes()
    }
}

/// Tables of few and many buckets, values of all lengths.
pub(crate) fn tables(programs: &Programs) {
    let lookup = programs.verified("hash_lookup");
    for (seed, buckets) in [(1, 2), (2, 4), (3, 8), (4, 64)] {
        let mut chance = SeededRandom::new(seed);
        let mut table = Table::new(buckets);
        for _ in 0..40 {
            let length =
                [0, 1, 8, 255, 256, 257, 511, 512, 1_000, 2_048][chance.below(10) as usize];
            let (key, value) = (chance.below(120), chance.bytes(length));
            table.insert(key, &value);
        }
        for key in 0..120 {
            let parameters = table.parameters(key);
            let done = call(&lookup, &mut table.host, &parameters);
            let chain = &table.chains[table.bucket(key)];
            let found = chain.iter().position(|entry| entry.0 == key);
            let (expected, bytes) = match found {
                Some(at) => (status::OK, &chain[at].1[..]),
                None => (status::NOT_FOUND, &[][..]),
            };
            assert_eq!((done.result(), &done.output[..]), (expected, bytes), "{seed} {key}");
            let entries = found.map_or(chain.len(), |at| at + 1);
            let accesses = 1 + entries + bytes.len().div_ceil(256);
            assert_eq!(done.accesses, accesses as u64, "{seed} {key}");
        }
    }
}

/// A chain at its bound and above it, and values likewise.
pub(crate) fn long_chains_and_values(programs: &Programs) {
    let lookup = programs.verified("hash_lookup");
    let mut table = Table::new(1);
    for key in 0..32 {
        table.insert(key, &[key as u8]);
    }
    let ask = |table: &mut Table, key| {
        let parameters = table.parameters(key);
        let done = call(&lookup, &mut table.host, &parameters);
        (done.result(), done.output, done.accesses)
    };
    assert_eq!(ask(&mut table, 0), (status::OK, vec![0], 34));
    assert_eq!(ask(&mut table, 32), (status::NOT_FOUND, vec![], 33));
    table.insert(32, &[7]);
    assert_eq!(ask(&mut table, 0), (status::OUT_OF_RANGE, vec![], 33));
    assert_eq!(ask(&mut table, 32), (status::OK, vec![7], 3));
    table.insert(65, &[9; 2_049]);
    assert_eq!(ask(&mut table, 65), (status::OUT_OF_RANGE, vec![], 2));
}

/// Memory that the caller may not access: by buffers a status, by words the end of the call.
pub(crate) fn foreign_memory(programs: &Programs) {
    let mut host = TestHost::new(vec![vec![0; 64]]);
    let search = programs.verified("list_search");
    let done = call(&search, &mut host, &ListSearch { head: place(0, 60), key: 1 }.to_bytes());
    assert_eq!((done.result(), done.accesses), (status::NOT_PERMITTED, 1));
    let lookup = programs.verified("hash_lookup");
    let parameters = HashLookup { buckets: place(9, 0), mask: 0, key: 1 }.to_bytes();
    let done = call(&lookup, &mut host, &parameters);
    let Outcome::Stopped(Stop::Refused { call: by, slot }) = done.outcome else {
        panic!("{done:?}");
    };
    assert_eq!(by, Call::LoadU64);
    let line = lookup.program().line_at(slot).expect("lines are kept");
    assert!(line.file.ends_with("hash_lookup.c"), "{line}");
    let checksum = programs.verified("checksum_crc32c");
    let parameters = Checksum { buffer: place(0, 32), bytes: 33, start: 0 }.to_bytes();
    let done = call(&checksum, &mut host, &parameters);
    assert!(matches!(done.outcome, Outcome::Stopped(Stop::Refused { .. })), "{done:?}");
}
