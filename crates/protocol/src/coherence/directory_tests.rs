//! The directory against a reference map, with grants on both sides of the limit of eight bytes.

extern crate std;

use super::Level;
use super::copies::Copy;
use super::directory::Directory;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use farside_base::{GlobalAddress, Grant, LineAddress, LineSize, NodeId};
use std::collections::BTreeMap;
use std::hash::DefaultHasher;

/// A line's holders, in the reference map.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ReferenceHolders {
    Owner(Copy),
    Shared(BTreeMap<NodeId, Grant>),
    Lost,
}

type Lines = BTreeMap<LineAddress, ReferenceHolders>;

/// A deterministic pseudo-random sequence for a seed.
struct DirectoryGenerator(u64);

impl DirectoryGenerator {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Lines of several sizes, some at the same bytes, adjacent and distant.
    fn line(&mut self) -> LineAddress {
        let size = LineSize::from_class([0, 3, 10][self.below(3) as usize]).unwrap();
        let number = [0, 1, 62, 63, 64, 65, 1 << 20][self.below(7) as usize];
        let offset = number * size.bytes() as u64;
        GlobalAddress::new(NodeId(0), size, offset).unwrap().line()
    }

    fn copy(&mut self, nodes: u64) -> Copy {
        let node = NodeId(self.below(nodes) as u16);
        let grant = match self.below(4) {
            0 => u64::MAX - self.below(3),
            1 => (1 << 52) - 2 + self.below(4),
            _ => self.below(1_000),
        };
        (node, Grant(grant))
    }
}

fn change(
    numbers: &mut DirectoryGenerator,
    nodes: u64,
    directory: &mut Directory,
    lines: &mut Lines,
) {
    let line = numbers.line();
    let copy = numbers.copy(nodes);
    match numbers.below(16) {
        0 => {
            directory.set_owner(line, copy);
            lines.insert(line, ReferenceHolders::Owner(copy));
        }
        1 if numbers.below(4) == 0 => {
            directory.set_lost(line);
            lines.insert(line, ReferenceHolders::Lost);
        }
        2 => {
            directory.clear(line);
            lines.remove(&line);
        }
        3..8 => {
            let was = match lines.get_mut(&line) {
                Some(ReferenceHolders::Shared(sharers)) => sharers.remove(&copy.0).is_some(),
                _ => false,
            };
            lines.retain(|_, plain| *plain != ReferenceHolders::Shared(BTreeMap::new()));
            assert_eq!(directory.remove_sharer(line, copy.0), was);
        }
        _ => {
            directory.add_sharer(line, copy);
            match lines.get_mut(&line) {
                Some(ReferenceHolders::Shared(sharers)) => {
                    sharers.insert(copy.0, copy.1);
                }
                _ => {
                    lines.insert(line, ReferenceHolders::Shared(BTreeMap::from([copy])));
                }
            }
        }
    }
}

fn check(directory: &Directory, line: LineAddress, plain: Option<&ReferenceHolders>) {
    let (level, owner, lost) = match plain {
        None => (Level::Dirty, None, false),
        Some(ReferenceHolders::Shared(_)) => (Level::Shared, None, false),
        Some(ReferenceHolders::Owner(copy)) => (Level::Invalid, Some(*copy), false),
        Some(ReferenceHolders::Lost) => (Level::Invalid, None, true),
    };
    let sharers: Vec<Copy> = match plain {
        Some(ReferenceHolders::Shared(sharers)) => {
            sharers.iter().map(|(node, grant)| (*node, *grant)).collect()
        }
        _ => Vec::new(),
    };
    assert_eq!(directory.level(line), level);
    assert_eq!(directory.owner(line), owner);
    assert_eq!(directory.is_lost(line), lost);
    assert_eq!(directory.sharers(line).len(), sharers.len());
    assert!(directory.sharers(line).eq(sharers.iter().copied()));
    assert!(sharers.iter().all(|copy| directory.is_sharer(line, *copy)));
}

fn lines_of(lines: &Lines, node: NodeId) -> Vec<LineAddress> {
    let holds = |plain: &ReferenceHolders| match plain {
        ReferenceHolders::Owner(copy) => copy.0 == node,
        ReferenceHolders::Shared(sharers) => sharers.contains_key(&node),
        ReferenceHolders::Lost => false,
    };
    lines.iter().filter(|(_, plain)| holds(plain)).map(|(line, _)| *line).collect()
}

fn hash_of(directory: &Directory) -> u64 {
    let mut hasher = DefaultHasher::new();
    directory.hash(&mut hasher);
    hasher.finish()
}

/// The same contents, inserted in another order.
fn again(lines: &Lines) -> Directory {
    let mut directory = Directory::default();
    for (line, plain) in lines.iter().rev() {
        match plain {
            ReferenceHolders::Owner(copy) => directory.set_owner(*line, *copy),
            ReferenceHolders::Lost => directory.set_lost(*line),
            ReferenceHolders::Shared(sharers) => {
                for (node, grant) in sharers.iter().rev() {
                    directory.add_sharer(*line, (*node, *grant));
                }
            }
        }
    }
    directory
}

#[test]
fn behaves_like_a_map_of_sets() {
    for seed in 1..60 {
        let mut numbers = DirectoryGenerator::new(seed);
        let nodes = [2, 4, 9, 40, 256][numbers.below(5) as usize];
        let (mut directory, mut lines) = (Directory::default(), Lines::new());
        for step in 0..800 {
            change(&mut numbers, nodes, &mut directory, &mut lines);
            directory.invariants(Grant(u64::MAX)).unwrap();
            assert_eq!(directory.len(), lines.len(), "seed {seed}, step {step}");
            let line = numbers.line();
            check(&directory, line, lines.get(&line));
        }
        for (line, plain) in &lines {
            check(&directory, *line, Some(plain));
        }
        let node = NodeId(numbers.below(nodes) as u16);
        let mut found = Vec::new();
        directory.lines_of(node, &mut found);
        found.sort_unstable();
        assert_eq!(found, lines_of(&lines, node), "seed {seed}");
    }
}

#[test]
fn equality_and_hash_forget_the_history() {
    for seed in 1..200 {
        let mut numbers = DirectoryGenerator::new(seed);
        let (mut directory, mut lines) = (Directory::default(), Lines::new());
        for _ in 0..numbers.below(120) {
            change(&mut numbers, 6, &mut directory, &mut lines);
        }
        let mut other = again(&lines);
        assert_eq!(directory, other, "seed {seed}");
        assert_eq!(hash_of(&directory), hash_of(&other), "seed {seed}");
        let before = lines.clone();
        change(&mut numbers, 6, &mut other, &mut lines);
        assert_eq!(directory == other, before == lines, "seed {seed}");
        assert_eq!(hash_of(&directory) == hash_of(&other), before == lines, "seed {seed}");
    }
}

/// The home's cost of each line that another node holds, besides its tag.
#[test]
fn a_line_with_one_holder_takes_sixteen_bytes_at_most() {
    let mut directory = Directory::default();
    let lines = |count: u64| {
        (0..count).map(|number| {
            let offset = number * LineSize::DEFAULT.bytes() as u64;
            GlobalAddress::new(NodeId(0), LineSize::DEFAULT, offset).unwrap().line()
        })
    };
    // Just after each doubling of the table of pages, when it has the most unused capacity.
    for count in [1 << 10, 3 << 12, (3 << 12) + 64, (3 << 14) + 64, 3 << 15] {
        for line in lines(count) {
            directory.set_owner(line, (NodeId(1), Grant(7)));
        }
        let each = directory.bytes() as f64 / count as f64;
        assert!(each <= 16.0, "{each} bytes for each of {count} lines");
    }
    let mut bytes = Vec::new();
    for round in 0..3 {
        lines(3 << 15).for_each(|line| directory.clear(line));
        assert_eq!(directory.len(), 0);
        lines(3 << 15).for_each(|line| directory.add_sharer(line, (NodeId(2), Grant(round))));
        bytes.push(directory.bytes());
    }
    assert!(bytes.iter().all(|all| *all == bytes[0]), "pages are used again: {bytes:?}");
}
