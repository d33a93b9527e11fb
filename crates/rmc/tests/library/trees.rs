//! B+trees.

use std::collections::BTreeMap;

use farside_rmc::Limits;
use farside_rmc::helpers::status;
use farside_rmc::library::{BtreeLookup, HostWord, RangeScan};

use crate::host::TestHost;
use crate::programs::Programs;
use crate::runner::{SeededRandom, call, put};

const KEYS: usize = 15;
const NODE_BYTES: u64 = 256;

/// A tree in memory, made of sorted entries.
struct Tree {
    host: TestHost,
    root: HostWord,
    height: u64,
    entries: BTreeMap<u64, u64>,
    /// The first key of each leaf, in order.
    leaves: Vec<u64>,
}

/// A node and the least key below it.
type Child = (u64, HostWord);

struct Builder<'a> {
    host: TestHost,
    places: Vec<usize>,
    chance: &'a mut SeededRandom,
}

impl Builder<'_> {
    fn place(&mut self) -> HostWord {
        let at = self.places.pop().expect("there are enough places") as u64;
        HostWord::new(0, NODE_BYTES * (1 + at)).unwrap()
    }

    fn node(&mut self, at: HostWord, level: u64, keys: &[u64], values: &[u64]) {
        let mut words = vec![level | (keys.len() as u64) << 32];
        words.extend(keys);
        words.resize(1 + KEYS, u64::MAX);
        words.extend(values);
        put(&mut self.host, 0, at.offset(), &words);
    }

    /// Cuts things into groups by chance.
    fn groups<T: Copy>(&mut self, things: &[T], least: usize, most: usize) -> Vec<Vec<T>> {
        let mut groups: Vec<Vec<T>> = Vec::new();
        let mut rest = things;
        while !rest.is_empty() {
            let wanted = least + self.chance.below((most - least + 1) as u64) as usize;
            // A rest that is too short for a group would be left over.
            let taken = if rest.len() < wanted + least { rest.len().min(most) } else { wanted };
            let (group, behind) = rest.split_at(taken);
            groups.push(group.to_vec());
            rest = behind;
        }
        groups
    }

    fn leaves(&mut self, entries: &[(u64, u64)]) -> Vec<Child> {
        let groups = self.groups(entries, 1, KEYS);
        let places: Vec<_> = groups.iter().map(|_| self.place()).collect();
        for (k, group) in groups.iter().enumerate() {
            let keys: Vec<_> = group.iter().map(|entry| entry.0).collect();
            let mut values: Vec<_> = group.iter().map(|entry| entry.1).collect();
            values.resize(KEYS, 0xdead);
            values.push(places.get(k + 1).map_or(0, |place| place.word()));
            self.node(places[k], 0, &keys, &values);
        }
        groups.iter().zip(places).map(|(group, place)| (group[0].0, place)).collect()
    }

    fn inner(&mut self, level: u64, children: &[Child]) -> Vec<Child> {
        let groups = self.groups(children, 2, KEYS + 1);
        let mut nodes = Vec::new();
        for group in groups {
            let keys: Vec<_> = group[1..].iter().map(|child| child.0).collect();
            let values: Vec<_> = group.iter().map(|child| child.1.word()).collect();
            let place = self.place();
            self.node(place, level, &keys, &values);
            nodes.push((group[0].0, place));
        }
        nodes
    }
}

impl Tree {
    fn new(entries: BTreeMap<u64, u64>, chance: &mut SeededRandom) -> Self {
        let count = 2 * entries.len() + 8;
        let host = TestHost::new(vec![vec![0; (count + 1) * NODE_BYTES as usize]]);
        let places = chance.order(count);
        let mut builder = Builder { host, places, chance };
        let all: Vec<_> = entries.iter().map(|(key, value)| (*key, *value)).collect();
        let mut level = builder.leaves(&all);
        let leaves = level.iter().map(|child| child.0).collect();
        let mut height = u64::from(!level.is_empty());
        while level.len() > 1 {
            level = builder.inner(height, &level);
            height += 1;
        }
        let root = level.first().map_or(HostWord::NONE, |child| child.1);
        Self { host: builder.host, root, height, entries, leaves }
    }

    fn by_chance(seed: u64) -> Self {
        let mut chance = SeededRandom::new(seed);
        let count = if seed < 3 { seed } else { chance.below(700) };
        let far = seed.is_multiple_of(2);
        let mut key =
            || if far { chance.next().min(u64::MAX - 5_000) } else { chance.below(2_000) };
        let keys: Vec<_> = (0..count).map(|_| key()).collect();
        let entries = keys.into_iter().map(|key| (key, chance.next())).collect();
        Self::new(entries, &mut chance)
    }
}

/// Trees of all heights: keys that are there, their neighbours, and others.
pub(crate) fn trees(programs: &Programs) {
    let lookup = programs.verified("btree_lookup");
    let mut heights = [0; 8];
    for seed in 0..40 {
        let mut tree = Tree::by_chance(seed);
        heights[tree.height as usize] += 1;
        let near = tree.entries.keys().step_by(7);
        let keys = near.flat_map(|key| [key.wrapping_sub(1), *key, key + 1]);
        let keys: Vec<_> = keys.chain([0, 1, u64::MAX - 1]).collect();
        for key in keys.into_iter().filter(|key| *key != u64::MAX) {
            let parameters = BtreeLookup { root: tree.root, key }.to_bytes();
            let done = call(&lookup, &mut tree.host, &parameters);
            let (expected, bytes) = match tree.entries.get(&key) {
                Some(value) => (status::OK, value.to_le_bytes().to_vec()),
                None => (status::NOT_FOUND, vec![]),
            };
            assert_eq!((done.result(), done.output), (expected, bytes), "seed {seed} key {key}");
            assert_eq!(done.accesses, tree.height, "seed {seed} key {key}");
        }
    }
    assert!(heights[0] > 0 && heights[1] > 0 && heights[3] > 0, "{heights:?}");
}

/// Inner nodes that lead to themselves, a key that cannot be, and a root that is not there.
pub(crate) fn no_trees(programs: &Programs) {
    let (lookup, scan) = (programs.verified("btree_lookup"), programs.verified("range_scan"));
    let mut host = TestHost::new(vec![vec![0xff; 1_024]]);
    let at = HostWord::new(0, 256).unwrap();
    put(&mut host, 0, 256, &[5]);
    for child in 0..16 {
        put(&mut host, 0, 256 + 128 + 8 * child, &[at.word()]);
    }
    let done = call(&lookup, &mut host, &BtreeLookup { root: at, key: 7 }.to_bytes());
    assert_eq!((done.result(), done.accesses), (status::OUT_OF_RANGE, 12));
    let all = RangeScan { root: at, first: 0, last: u64::MAX, mask: 0, wanted: 0, leaves: 16 };
    let done = call(&scan, &mut host, &all.to_bytes());
    assert_eq!((done.result(), done.accesses), (status::OUT_OF_RANGE, 12));
    let done = call(&lookup, &mut host, &BtreeLookup { root: at, key: u64::MAX }.to_bytes());
    assert_eq!((done.result(), done.accesses), (status::OUT_OF_RANGE, 0));
    let root = HostWord::new(0, 900).unwrap();
    let done = call(&lookup, &mut host, &BtreeLookup { root, key: 7 }.to_bytes());
    assert_eq!((done.result(), done.accesses), (status::NOT_PERMITTED, 1));
}

fn pairs(output: &[u8]) -> Vec<(u64, u64)> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    output.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..]))).collect()
}

/// Ranges read to their end, call by call, against the map they were made of.
pub(crate) fn ranges(programs: &Programs) {
    let scan = programs.verified("range_scan");
    let mut several = 0;
    for seed in 0..40 {
        let mut tree = Tree::by_chance(seed);
        let mut chance = SeededRandom::new(seed + 1_000);
        for turn in 0..12 {
            let keys: Vec<_> = tree.entries.keys().copied().collect();
            let any = |chance: &mut SeededRandom| match keys.len() as u64 {
                0 => chance.next(),
                count => {
                    keys[chance.below(count) as usize].wrapping_add(chance.below(3)).wrapping_sub(1)
                }
            };
            let (a, b) = (any(&mut chance), any(&mut chance));
            let (mut first, last) = if turn == 0 { (0, u64::MAX) } else { (a.min(b), a.max(b)) };
            let (mask, wanted) = [(0, 0), (1, 1), (6, 4), (0, 1)][turn % 4];
            let leaves = [1, 2, 16, 1_000][chance.below(4) as usize];
            let passes = |value: u64| value & mask == wanted;
            let range = tree.entries.range(first..=last).filter(|entry| passes(*entry.1));
            let expected: Vec<_> = range.map(|(key, value)| (*key, *value)).collect();
            let mut found = Vec::new();
            for part in 0.. {
                several += usize::from(part == 1);
                let parameters = RangeScan { root: tree.root, first, last, mask, wanted, leaves };
                let done = call(&scan, &mut tree.host, &parameters.to_bytes());
                found.extend(pairs(&done.output));
                let accesses = accesses(&tree, first, last, leaves);
                assert_eq!(done.accesses, accesses, "seed {seed} {turn}");
                match done.result() {
                    0 => break,
                    next => first = next as u64,
                }
            }
            assert_eq!(found, expected, "seed {seed} {turn}");
        }
    }
    assert!(several > 0, "no range took several calls");
    // Whose first is above its last needs no access.
    let mut host = TestHost::new(vec![vec![]]);
    let nothing =
        RangeScan { root: HostWord::NONE, first: 2, last: 1, mask: 0, wanted: 0, leaves: 16 };
    let done = call(&scan, &mut host, &nothing.to_bytes());
    assert_eq!((done.result(), done.accesses), (0, 0));
}

/// Nodes down to the first leaf, and leaves up to the one that shows the end, or as many as allowed and the next one,
/// where the next call continues.
fn accesses(tree: &Tree, first: u64, last: u64, leaves: u64) -> u64 {
    if tree.leaves.is_empty() {
        return 0;
    }
    let from = tree.leaves.partition_point(|least| *least <= first).saturating_sub(1);
    // The end shows in the first leaf with a greater key, or in the last of all.
    let greatest = |leaf: usize| {
        let behind = tree.leaves.get(leaf + 1).copied().unwrap_or(u64::MAX);
        tree.entries.range(..behind).next_back().map_or(0, |entry| *entry.0)
    };
    let ends = (from..tree.leaves.len()).find(|leaf| greatest(*leaf) > last);
    let ends = ends.unwrap_or(tree.leaves.len() - 1);
    tree.height + ((ends - from) as u64).min(leaves)
}

/// Results that do not fit into the output continue where they ended.
pub(crate) fn small_outputs(programs: &Programs) {
    let limits = Limits { output_bytes_max: 100, ..Limits::DEFAULT };
    let scan = programs.within("range_scan", &limits);
    let mut tree =
        Tree::new((10..60).map(|key| (key, key * key)).collect(), &mut SeededRandom::new(3));
    let (mut first, mut found, mut calls) = (0, Vec::new(), 0);
    loop {
        let all = RangeScan { root: tree.root, first, last: 55, mask: 0, wanted: 0, leaves: 16 };
        let done = call(&scan, &mut tree.host, &all.to_bytes());
        found.extend(pairs(&done.output));
        calls += 1;
        match done.result() {
            0 => break,
            next => first = next as u64,
        }
    }
    assert_eq!(found, (10..56).map(|key| (key, key * key)).collect::<Vec<_>>());
    assert_eq!(calls, 46usize.div_ceil(6));
}
