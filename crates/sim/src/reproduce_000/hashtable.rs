//! The disaggregated hash table: Figures 12 and 13 of 000 §IV-B, puts of 64 bytes by one thread a front-end.
//!
//! A cold put takes a version by FETCH_ADD, then writes the entry. A hot put changes the front-end's image of a block;
//! each `theta` of them take the block's lock, write the block and release the lock by one doorbell. A front-end waits
//! for each of these before it continues.

use super::atomics::BACK_OFF_NS;
use super::machines::{
    ClientMachines, HANDOFF_NS, PostSequence, SequencePost, ServerLinks, SocketPolicy,
};
use super::scene::{Link, Request, Verb, copy_ns};
use crate::fabric::E5_2640_V2;
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use farside_base::Random;
use farside_fabric::FabricError;
use std::rc::Rc;

/// Bytes of a value (000 §IV-B).
const VALUE_BYTES: u32 = 64;
/// Number of keys, and their distribution (000 §IV-B); the paper does not give the number.
const KEYS: u64 = 1 << 20;
const ZIPF: f64 = 0.99;
/// Entries of a block: 1 KB, as in 000 Figure 8.
const BLOCK_ENTRIES: u64 = 16;
const BLOCK_BYTES: u32 = BLOCK_ENTRIES as u32 * VALUE_BYTES;
/// Puts after which a block is written, and the share of hot keys, of Figure 12; the paper gives neither.
const THETA: u64 = 16;
const HOT_SHARE: u64 = 8;
/// Distance of cold entries: a version and a value.
const COLD_STRIDE: u64 = 72;
/// Offsets of locks, blocks and cold entries in the memory of a socket.
const BLOCKS_AT: u64 = 1 << 17;
const COLD_AT: u64 = BLOCKS_AT + KEYS / 8 * VALUE_BYTES as u64;
const SOCKET_BYTES: u64 = COLD_AT + KEYS / 2 * COLD_STRIDE;
/// Front-ends of Figure 12.
const FRONT_ENDS: [usize; 6] = [1, 2, 4, 6, 10, 14];
/// Front-ends of Figure 13: those of the paper's peak.
const PEAK: usize = 6;
/// Entry of `farside_apps::hashtable`: header, key of 8 bytes, value.
const FARSIDE_ENTRY_BYTES: u32 = 24 + 8 + VALUE_BYTES;
/// Replaced entries that it frees together.
const FARSIDE_FREED: u64 = 16;
/// Bytes of slots for a key, of which half are used, and bytes of the heap for entries of one client.
const FARSIDE_SLOT_BYTES: u64 = 16;
const FARSIDE_CHUNK_BYTES: u64 = 1 << 17;

/// Numbers below [`KEYS`], Zipf distributed: Gray et al., *Quickly generating billion-record synthetic databases*,
/// SIGMOD 1994, as YCSB has them.
struct ZipfRanks {
    zeta: f64,
    eta: f64,
}

impl ZipfRanks {
    fn new() -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-ZIPF)).sum::<f64>();
        let all = zeta(KEYS);
        let eta = (1.0 - (2.0 / KEYS as f64).powf(1.0 - ZIPF)) / (1.0 - zeta(2) / all);
        Self { zeta: all, eta }
    }

    /// Returns a rank; 0 is the most frequent.
    fn next(&self, random: &mut Random) -> u64 {
        let share = (random.word() >> 11) as f64 / (1_u64 << 53) as f64;
        let at = share * self.zeta;
        if at < 1.0 {
            return 0;
        }
        if at < 1.0 + 0.5_f64.powf(ZIPF) {
            return 1;
        }
        let rank = (self.eta * (share - 1.0) + 1.0).powf(1.0 / (1.0 - ZIPF));
        ((KEYS as f64 * rank) as u64).min(KEYS - 1)
    }
}

/// How a cold entry is put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ColdPut {
    /// A version by FETCH_ADD, then a WRITE: the paper's description.
    Versioned,
    /// A WRITE alone.
    Single,
    /// As `farside_apps::hashtable` at a known place: a WRITE and a compare-and-swap by one doorbell; each sixteenth
    /// put frees sixteen entries by a FETCH_ADD each.
    Farside,
}

/// Hot blocks, or none.
#[derive(Clone, Copy, Debug)]
struct HotArea {
    /// One key of this number is hot.
    share: u64,
    theta: u64,
}

#[derive(Clone, Copy, Debug)]
struct TableLoad {
    policy: SocketPolicy,
    cold: ColdPut,
    hot: Option<HotArea>,
}

const BASIC: TableLoad =
    TableLoad { policy: SocketPolicy::Any, cold: ColdPut::Versioned, hot: None };
const NUMA: TableLoad = TableLoad { policy: SocketPolicy::Matched, ..BASIC };
const HOT: TableLoad = TableLoad { hot: Some(HotArea { share: HOT_SHARE, theta: THETA }), ..NUMA };

/// What follows the list that has completed.
#[derive(Clone, Copy, Debug)]
enum PutStep {
    /// Another put.
    Start,
    /// The WRITE of a cold entry with its version.
    Value { entry: u64 },
    /// The lock of a block has been tried.
    Locked { block: u64, back_off_ns: u64 },
    /// Entries are left to free.
    Free { left: u64 },
}

/// The path of the requests for one key.
#[derive(Clone, Copy)]
struct KeyPath {
    end: usize,
    link: Link,
    handoff_ns: u64,
}

struct FrontEnd {
    load: TableLoad,
    links: ServerLinks,
    socket: usize,
    ranks: Rc<ZipfRanks>,
    random: Random,
    /// Puts that each block holds.
    held: Vec<u64>,
    step: PutStep,
    path: KeyPath,
    puts: u64,
    /// Where the entries of `farside_apps::hashtable` are.
    chunk: u64,
}

impl FrontEnd {
    fn new(
        load: TableLoad,
        number: usize,
        links: ServerLinks,
        socket: u8,
        ranks: &Rc<ZipfRanks>,
    ) -> Self {
        let mut random = Random::new(number as u64 + 1);
        let blocks = load.hot.map_or(0, |hot| KEYS / hot.share / BLOCK_ENTRIES);
        let theta = load.hot.map_or(1, |hot| hot.theta);
        // Blocks are somewhere between two flushes when the study begins.
        let held = (0..blocks).map(|_| random.below(theta)).collect();
        let path = KeyPath { end: 0, link: links[0][0][0], handoff_ns: 0 };
        let (ranks, socket) = (Rc::clone(ranks), usize::from(socket));
        let chunk = COLD_AT + KEYS / 2 * FARSIDE_SLOT_BYTES + number as u64 * FARSIDE_CHUNK_BYTES;
        Self {
            load,
            links,
            socket,
            ranks,
            random,
            held,
            step: PutStep::Start,
            path,
            puts: 0,
            chunk,
        }
    }

    /// Returns the path to the memory of a socket.
    fn path(&mut self, memory: usize) -> KeyPath {
        let is_other = memory != self.socket;
        match (self.load.cold, self.load.policy) {
            (ColdPut::Farside, _) => {
                let link = self.links[self.socket][memory][memory];
                KeyPath { end: self.socket, link, handoff_ns: 0 }
            }
            (_, SocketPolicy::Matched) => {
                let handoff_ns = if is_other { HANDOFF_NS } else { 0 };
                KeyPath { end: memory, link: self.links[memory][memory][memory], handoff_ns }
            }
            (_, SocketPolicy::Any) => {
                let (end, port) = (self.random.index(2), self.random.index(2));
                KeyPath { end, link: self.links[end][port][memory], handoff_ns: 0 }
            }
        }
    }

    fn post(
        &self,
        list: Vec<Request>,
        prepare_ns: u64,
        finish_ns: u64,
        units: u64,
    ) -> SequencePost {
        let KeyPath { end, link, .. } = self.path;
        SequencePost { end, link, list, prepare_ns, finish_ns, units }
    }

    /// Begins a put.
    fn start(&mut self) -> SequencePost {
        let rank = self.ranks.next(&mut self.random);
        let find_ns = E5_2640_V2.miss_ns;
        let blocks = self.held.len() as u64;
        if rank < blocks * BLOCK_ENTRIES {
            let block = rank % blocks;
            let held = &mut self.held[block as usize];
            *held += 1;
            let buffered_ns = find_ns + copy_ns(1, VALUE_BYTES.into());
            if *held < self.load.hot.map_or(1, |hot| hot.theta) {
                return self.post(Vec::new(), buffered_ns, 0, 1);
            }
            *held = 0;
            self.path = self.path((block % 2) as usize);
            if self.load.cold == ColdPut::Farside {
                return self.commit(block, buffered_ns);
            }
            return self.lock(block, BACK_OFF_NS.0, buffered_ns + self.path.handoff_ns);
        }
        // Scattered: neighbours in rank are not neighbours in memory.
        let key = rank.wrapping_mul(0x9_e377_9b97) % KEYS;
        let entry = COLD_AT + key / 2 * COLD_STRIDE;
        self.path = self.path((key % 2) as usize);
        let prepare_ns = find_ns + self.path.handoff_ns;
        match self.load.cold {
            ColdPut::Versioned => {
                self.step = PutStep::Value { entry };
                self.post(vec![at(Verb::FetchAdd, entry)], prepare_ns, 0, 0)
            }
            ColdPut::Single => self.value(entry, prepare_ns),
            ColdPut::Farside => {
                self.puts += 1;
                if self.puts.is_multiple_of(FARSIDE_FREED) {
                    self.step = PutStep::Free { left: FARSIDE_FREED };
                }
                let used = self.puts * u64::from(FARSIDE_ENTRY_BYTES);
                let place = self.chunk + used % FARSIDE_CHUNK_BYTES;
                let slot = COLD_AT + key / 2 * FARSIDE_SLOT_BYTES;
                let copied_ns = copy_ns(1, FARSIDE_ENTRY_BYTES.into());
                let write = Request::new(Verb::Write, 0, FARSIDE_ENTRY_BYTES, place);
                let list = vec![write, at(Verb::CompareSwap(0, 0), slot)];
                self.post(list, prepare_ns + copied_ns, 0, 1)
            }
        }
    }

    fn lock(&mut self, block: u64, back_off_ns: u64, prepare_ns: u64) -> SequencePost {
        self.step = PutStep::Locked { block, back_off_ns };
        self.post(vec![at(Verb::CompareSwap(0, 1), block / 2 * 8)], prepare_ns, 0, 0)
    }

    /// Writes a cold entry.
    fn value(&mut self, entry: u64, prepare_ns: u64) -> SequencePost {
        let write = Request::new(Verb::Inline, 0, VALUE_BYTES, entry + 8);
        self.post(vec![write], prepare_ns, self.path.handoff_ns, 1)
    }

    /// Writes a block of `farside_apps::hashtable`, which has one owner and no lock: half of it, then its word.
    fn commit(&self, block: u64, prepare_ns: u64) -> SequencePost {
        let bytes = BLOCK_ENTRIES as u32 * FARSIDE_ENTRY_BYTES;
        let offset = BLOCKS_AT + block / 2 * u64::from(BLOCK_BYTES);
        let write = Request::new(Verb::Write, 0, bytes, offset);
        let list = vec![write, at(Verb::CompareSwap(0, 0), block / 2 * 8)];
        self.post(list, prepare_ns, 0, 1)
    }

    /// Writes a block and releases its lock.
    fn block(&mut self, block: u64) -> SequencePost {
        let offset = BLOCKS_AT + block / 2 * u64::from(BLOCK_BYTES);
        let write = Request::new(Verb::Write, 0, BLOCK_BYTES, offset);
        let list = vec![write, at(Verb::CompareSwap(1, 0), block / 2 * 8)];
        self.post(list, 0, self.path.handoff_ns, 1)
    }
}

const fn at(verb: Verb, offset: u64) -> Request {
    Request { verb, local: Vec::new(), at: offset }
}

impl PostSequence for FrontEnd {
    fn next(&mut self, result: u64) -> SequencePost {
        match std::mem::replace(&mut self.step, PutStep::Start) {
            PutStep::Start => self.start(),
            PutStep::Value { entry } => self.value(entry, 0),
            PutStep::Locked { block, .. } if result == 0 => self.block(block),
            PutStep::Locked { block, back_off_ns } => {
                self.lock(block, (2 * back_off_ns).min(BACK_OFF_NS.1), back_off_ns)
            }
            PutStep::Free { left: 0 } => self.start(),
            PutStep::Free { left } => {
                self.step = PutStep::Free { left: left - 1 };
                // The bits of freed entries are in one page a chunk.
                self.post(vec![at(Verb::FetchAdd, BLOCKS_AT)], 0, 0, 0)
            }
        }
    }
}

/// Returns the puts of all front-ends a second, in millions.
fn rate(load: TableLoad, front_ends: usize, ranks: &Rc<ZipfRanks>) -> Result<f64, FabricError> {
    let machines = ClientMachines::connect(front_ends, load.policy, SOCKET_BYTES)?;
    machines
        .rate(WARM_UP_NS, |number, links, socket| FrontEnd::new(load, number, links, socket, ranks))
}

/// Time before the measurement.
const WARM_UP_NS: u64 = 100_000;

fn line(name: &str, load: TableLoad, ranks: &Rc<ZipfRanks>) -> Result<PaperLine, FabricError> {
    let mut line = PaperLine::new(name);
    for front_ends in FRONT_ENDS {
        line.points.push((front_ends as f64, rate(load, front_ends, ranks)?));
    }
    Ok(line)
}

/// Returns the load with cold puts that are a WRITE alone.
const fn single(load: TableLoad) -> TableLoad {
    TableLoad { cold: ColdPut::Single, ..load }
}

/// Why puts with a version deviate.
const ATOMICS: &str = "The paper's rates exceed the 5 M/s of atomics that two ports serve by its §III-E, so its puts to one back-end are not each a FETCH_ADD and a WRITE, as its text says. The lines of one WRITE leave out the FETCH_ADD.";
/// Why puts by one WRITE deviate.
const MISSES: &str = "WRITEs at random into 75 MB miss translations; with 65,536 keys, which fit, the model has 8.7 M/s. The paper does not give the number of keys.";
/// Why front-ends are slower than the paper's.
const OVERLAP: &str = "24.4 M/s of six front-ends are 0.25 us a put; a front-end of the model, one thread that waits for its requests, takes longer for the cold ones alone. 28 such threads reach 24.8 M/s; the paper does not give the threads of a front-end.";

/// Returns Figure 12: front-ends and optimizations.
pub(super) fn optimizations() -> Result<PaperFigure, FabricError> {
    let ranks = Rc::new(ZipfRanks::new());
    let lines = vec![
        line("basic", BASIC, &ranks)?,
        line("NUMA", NUMA, &ranks)?,
        line("NUMA, blocks", HOT, &ranks)?,
        line("basic, 1 WRITE", single(BASIC), &ranks)?,
        line("NUMA, 1 WRITE", single(NUMA), &ranks)?,
        line("blocks, 1 WRITE", single(HOT), &ranks)?,
        line("Farside", TableLoad { cold: ColdPut::Farside, ..NUMA }, &ranks)?,
        line("Farside, held", TableLoad { cold: ColdPut::Farside, ..HOT }, &ranks)?,
    ];
    let [basic, numa, hot, basic_1, numa_1, hot_1, ..] = &lines[..] else {
        return Err(FabricError::Unknown("line"));
    };
    let gain = |line: &PaperLine, other: &PaperLine, x| line.at(x) / other.at(x);
    let (all, peak) = (14.0, PEAK as f64);
    let claims = vec![
        Claim::new("NUMA, 14 front-ends", "M/s", numa.at(all), 10.5).because(ATOMICS),
        Claim::new("NUMA over basic, 14 front-ends", "", gain(numa, basic, all), 1.141),
        Claim::new("blocks, 6 front-ends", "M/s", hot.at(peak), 24.4).because(OVERLAP),
        Claim::range("blocks over basic, 6 front-ends", "", gain(hot, basic, peak), (1.85, 2.70))
            .because(ATOMICS),
        Claim::new("NUMA, 14 front-ends, 1 WRITE", "M/s", numa_1.at(all), 10.5).because(MISSES),
        Claim::new("NUMA over basic, 14, 1 WRITE", "", gain(numa_1, basic_1, all), 1.141),
        Claim::new("blocks, 6 front-ends, 1 WRITE", "M/s", hot_1.at(peak), 24.4).because(OVERLAP),
        Claim::range("blocks over basic, 6, 1 WRITE", "", gain(hot_1, basic_1, peak), (1.85, 2.70)),
    ];
    Ok(PaperFigure {
        id: "12",
        title: "Hash table, puts of 64 B, Zipf 0.99",
        across: "front-ends",
        up: "puts, M/s",
        lines,
        claims,
        remarks: vec![
            "Chosen, since the paper does not give them: 1,048,576 keys, an eighth of them hot, 16 entries a block, theta 16; no lease ends.",
            "Farside: cold puts with the requests of farside_apps::hashtable. Its blocks have one owner each: keys that all front-ends put stay cold.",
            "Farside, held: each front-end puts hot keys of its own.",
        ],
    })
}

/// Returns the lines of Figure 13: the paper's put, and that of one WRITE.
fn blocks(points: impl Iterator<Item = (f64, HotArea)>) -> Result<[PaperLine; 2], FabricError> {
    let ranks = Rc::new(ZipfRanks::new());
    let mut lines = ["NUMA, blocks", "blocks, 1 WRITE"].map(PaperLine::new);
    for (x, area) in points {
        let load = TableLoad { hot: Some(area), ..HOT };
        lines[0].points.push((x, rate(load, PEAK, &ranks)?));
        lines[1].points.push((x, rate(single(load), PEAK, &ranks)?));
    }
    Ok(lines)
}

/// Returns Figure 13a: shares of hot keys.
pub(super) fn shares() -> Result<PaperFigure, FabricError> {
    let shares = [4, 8, 16, 32].into_iter();
    let lines = blocks(shares.map(|share| (share as f64, HotArea { share, theta: THETA })))?;
    let [versioned, single] = &lines;
    let drop = |line: &PaperLine| line.at(4.0) - line.at(32.0);
    let share = |line: &PaperLine| drop(line) / line.at(4.0);
    let claims = vec![
        Claim::new("1/4 less 1/32", "M/s", drop(versioned), 6.0).because(OVERLAP),
        Claim::new("the same as a share (6 of 24.4 M/s)", "-", share(versioned), 0.25)
            .because(ATOMICS),
        Claim::new("1/4 less 1/32, 1 WRITE", "M/s", drop(single), 6.0).because(OVERLAP),
        Claim::new("the same as a share, 1 WRITE", "-", share(single), 0.25),
    ];
    Ok(PaperFigure {
        id: "13a",
        title: "Hash table, hot keys, six front-ends",
        across: "one of",
        up: "puts, M/s",
        lines: lines.into(),
        claims,
        remarks: vec!["The paper does not give the front-ends; six have its peak of Figure 12."],
    })
}

/// Returns Figure 13b: puts of a block until it is written.
pub(super) fn thetas() -> Result<PaperFigure, FabricError> {
    let thetas = [1, 2, 4, 8, 16, 32].into_iter();
    let lines = blocks(thetas.map(|theta| (theta as f64, HotArea { share: HOT_SHARE, theta })))?;
    Ok(PaperFigure {
        id: "13b",
        title: "Hash table, puts of a block until it is written, six front-ends",
        across: "theta",
        up: "puts, M/s",
        lines: lines.into(),
        claims: Vec::new(),
        remarks: vec![
            "The paper gives no numbers: its rate grows by less than the batch, as the model's does.",
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_drawn_by_zipf() {
        const DRAWS: u64 = 100_000;
        let (ranks, mut random) = (ZipfRanks::new(), Random::new(1));
        let drawn: Vec<u64> = (0..DRAWS).map(|_| ranks.next(&mut random)).collect();
        let share = |below: u64| drawn.iter().filter(|rank| **rank < below).count() as f64;
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-ZIPF)).sum::<f64>();
        for below in [1, 2, 100, KEYS / 32, KEYS / 4, KEYS] {
            let (is, expected) = (share(below) / DRAWS as f64, zeta(below) / ranks.zeta);
            assert!((is - expected).abs() < 0.02, "below {below}: {is}, not {expected}");
        }
    }
}
