//! Lookups in the distributed hash table, against the rules of its layout written down once more.

use farside_rmc::helpers::status;
use farside_rmc::library::DhtLookup;

use crate::host::TestHost;
use crate::programs::Programs;
use crate::runner::{Done, SeededRandom, call};

const MEMORY: usize = 96 << 10;
const BUCKET: usize = 512;
const TABLE: u64 = 0x7461_626c_6521;
const SLOTS: usize = 15;
const MOVED: i64 = DhtLookup::MOVED as i64;
const STALE: i64 = DhtLookup::STALE as i64;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The expected lookup: its result, the value with `OK`, and the records read.
struct Expected {
    result: i64,
    value: Vec<u8>,
    records: u64,
    tells: bool,
}

/// What an entry leads to.
enum Record {
    Value(Vec<u8>),
    Other,
    Nothing(i64),
}

fn expected(memory: &[u8], lookup: &DhtLookup<'_>) -> Expected {
    let mut records = 0;
    let ends = |result, value, records| Expected { result, value, records, tells: true };
    if lookup.key.is_empty() {
        return Expected { tells: false, ..ends(status::OUT_OF_RANGE, vec![], 0) };
    }
    let bucket = &memory[BUCKET..][..256];
    let (prefix, depth, state) = (number(&bucket[8..12]), bucket[12], bucket[13]);
    let tag = u64::from(lookup.tag);
    // The bits of a tag, the highest first.
    let bit = |of: u64, at: u8| of >> (23 - at) & 1;
    let its = number(&bucket[..8]) == lookup.table
        && depth <= 24
        && prefix < 1 << 24
        && (0..depth).all(|at| bit(tag, at) == bit(prefix, at));
    let stays = depth >= 24 || bit(tag, depth) == 0;
    if !its || !(state == 0 || state == 1 && stays) {
        return ends(MOVED, vec![], 0);
    }
    for slot in 0..SLOTS {
        let word = |at: usize| number(&bucket[at + 8 * slot..][..8]);
        let (meta, link) = (word(16), word(16 + 8 * SLOTS));
        if meta == 0 || meta >> 40 != tag {
            continue;
        }
        match record(memory, meta, link, lookup.key, &mut records) {
            Record::Value(value) => return ends(status::OK, value, records),
            Record::Nothing(result) => return ends(result, vec![], records),
            Record::Other => {}
        }
    }
    ends(status::NOT_FOUND, vec![], records)
}

fn record(memory: &[u8], meta: u64, link: u64, key: &[u8], records: &mut u64) -> Record {
    let (lines, generation) = ((meta >> 32 & 255) as usize, &meta.to_le_bytes()[..4]);
    if link & 1 == 0 || lines == 0 {
        return Record::Nothing(STALE);
    }
    let line = 64_usize << (link >> 42 & 15);
    if lines > 16 || line * lines > 8_192 {
        return Record::Nothing(status::OUT_OF_RANGE);
    }
    *records += 1;
    let start = (link & ((1 << 42) - 2)) as usize;
    // Above: the generation and the node of another memory.
    let of_this_memory = link >> 46 == 0;
    let bytes = memory.get(start..start.saturating_add(line * lines));
    let Some(bytes) = bytes.filter(|_| of_this_memory) else {
        return Record::Nothing(status::NOT_PERMITTED);
    };
    let key_bytes = (number(&bytes[4..8]) & 0x7fff_ffff) as usize;
    let value_bytes = number(&bytes[8..12]) as usize;
    let further = (key_bytes + value_bytes).saturating_sub(line - 16);
    if !bytes.starts_with(generation) || 1 + further.div_ceil(line - 4) != lines {
        return Record::Nothing(STALE);
    }
    if key_bytes != key.len() {
        return Record::Other;
    }
    if key_bytes > line - 16 || value_bytes > 4_096 {
        return Record::Nothing(status::OUT_OF_RANGE);
    }
    if &bytes[16..16 + key_bytes] != key {
        return Record::Other;
    }
    let mut payload = bytes[16..line].to_vec();
    for further in bytes[line..].chunks(line) {
        if !further.starts_with(generation) {
            return Record::Nothing(STALE);
        }
        payload.extend_from_slice(&further[4..]);
    }
    Record::Value(payload[key_bytes..key_bytes + value_bytes].to_vec())
}

/// A bucket by chance, and records that its entries lead to.
struct Made {
    memory: Vec<u8>,
    keys: Vec<Vec<u8>>,
    /// Where the first key's entry is.
    slot: usize,
    tag: u32,
}

impl Made {
    fn new(chance: &mut SeededRandom) -> Self {
        let mut memory = vec![0; MEMORY];
        let depth = chance.below(25) as u8;
        let tag = chance.below(1 << 24) as u32;
        let mask = if depth == 0 { 0 } else { (1 << 24) - (1 << (24 - depth)) };
        let bucket = &mut memory[BUCKET..][..256];
        bucket[..8].copy_from_slice(&TABLE.to_le_bytes());
        bucket[8..12].copy_from_slice(&(tag & mask).to_le_bytes());
        (bucket[12], bucket[13]) = (depth, [0, 0, 0, 1][chance.below(4) as usize]);
        let mut made = Self { memory, keys: Vec::new(), slot: 0, tag };
        let mut at = 1_024;
        for slot in chance.order(SLOTS).into_iter().take(chance.below(16) as usize) {
            at = made.put(chance, slot, at);
        }
        made
    }

    /// Puts a record and its entry; where the next one may begin.
    fn put(&mut self, chance: &mut SeededRandom, slot: usize, at: usize) -> usize {
        let class = chance.below(5);
        let line = 64_usize << class;
        let at = at.next_multiple_of(line);
        let key_bytes = [1, 7, 8, 9, 16, 23, 40, 47, 48, 49, 64][chance.below(11) as usize];
        let key = chance.bytes(key_bytes);
        let most = [0, 1, 30, line, 3 * line, 5 * line][chance.below(6) as usize];
        let value_bytes = chance.below(most as u64 + 1) as usize;
        let value = chance.bytes(value_bytes);
        let generation = (chance.next() as u32).max(1).to_le_bytes();
        let payload = [&key[..], &value].concat();
        let (mut image, mut rest) = (generation.to_vec(), &payload[..]);
        for word in [key.len(), value.len(), self.tag as usize] {
            image.extend_from_slice(&(word as u32).to_le_bytes());
        }
        loop {
            let (here, further) = rest.split_at(rest.len().min(line - image.len() % line));
            image.extend_from_slice(here);
            rest = further;
            if rest.is_empty() {
                break;
            }
            image.extend_from_slice(&generation);
        }
        let (lines, end) = (image.len().div_ceil(line), at + image.len());
        self.memory[at..end].copy_from_slice(&image);
        // Most entries have the tag that is asked for.
        let tag = if chance.below(4) == 0 { self.tag ^ 1 } else { self.tag };
        let meta = u64::from(tag) << 40 | (lines as u64) << 32 | number(&generation);
        let link = class << 42 | at as u64 | 1;
        let bucket = &mut self.memory[BUCKET..][..256];
        bucket[16 + 8 * slot..][..8].copy_from_slice(&meta.to_le_bytes());
        bucket[136 + 8 * slot..][..8].copy_from_slice(&link.to_le_bytes());
        if self.keys.is_empty() {
            self.slot = slot;
        }
        self.keys.push(key);
        end
    }

    fn check(&self, what: &str, verified: &farside_rmc::Verified, key: &[u8]) -> i64 {
        let lookup = DhtLookup { table: TABLE, bucket: BUCKET as u64, tag: self.tag, key };
        let expected = expected(&self.memory, &lookup);
        let mut host = TestHost::for_program(vec![], verified.program());
        host.global.clone_from(&self.memory);
        let done = call(verified, &mut host, &lookup.to_bytes().unwrap());
        assert_eq!(done.result(), expected.result, "{what}");
        if expected.result == status::OK {
            assert!(done.output == expected.value, "{what}");
        }
        assert_eq!(reads(&done), u64::from(expected.tells) + expected.records, "{what}");
        expected.result
    }
}

/// Accesses to the memory; a lock is taken before the first record.
fn reads(done: &Done) -> u64 {
    done.accesses - done.locks
}

/// Buckets as the table makes them: every key that is there, and one that is not.
pub(crate) fn lookups(programs: &Programs) {
    let verified = programs.verified("dht_lookup");
    let mut found = 0;
    for seed in 0..150 {
        let mut chance = SeededRandom::new(seed);
        let made = Made::new(&mut chance);
        for key in &made.keys {
            found += usize::from(made.check(&format!("seed {seed}"), &verified, key) == status::OK);
        }
        made.check(&format!("seed {seed}, another key"), &verified, b"none of them");
    }
    assert!(found > 300, "{found}");
}

/// The same with arbitrary bytes in bucket and records: a lookup always ends, and returns a value only of a whole
/// record.
pub(crate) fn lookups_in_odd_bytes(programs: &Programs) {
    let verified = programs.verified("dht_lookup");
    let mut results = std::collections::BTreeMap::<i64, u32>::new();
    for seed in 0..1_200 {
        let mut chance = SeededRandom::new(seed);
        let mut made = Made::new(&mut chance);
        let Some(key) = made.keys.first().cloned() else { continue };
        let links = made.memory[BUCKET + 136..][..8 * SLOTS].to_vec();
        for _ in 0..=chance.below(3) {
            let slot = match chance.below(3) {
                0 => chance.below(SLOTS as u64) as usize,
                _ => made.slot,
            };
            let lines = u64::from(made.memory[BUCKET + 16 + 8 * slot + 4]).clamp(1, 16);
            let link = number(&links[8 * slot..][..8]);
            let record = (link & 0x3ff_ffff_fffe) as usize;
            let line = 64_usize << (link >> 42 & 15);
            let (at, bytes) = match chance.below(8) {
                0 => (BUCKET + chance.below(16) as usize, 1),
                1 => (BUCKET + 16 + 8 * slot, 8),
                2 => (BUCKET + 16 + 8 * slot + 4, 1),
                3 => (BUCKET + 136 + 8 * slot, 8),
                4 => (BUCKET + 136 + 8 * slot + 5, 1),
                5 => (record + chance.below(12) as usize, 1),
                6 => (record + 4 * chance.below(3) as usize, 4),
                _ => (record + line * chance.below(lines) as usize, 4),
            };
            let odd = chance.bytes(bytes);
            made.memory[at..at + bytes].copy_from_slice(&odd);
        }
        *results.entry(made.check(&format!("seed {seed}"), &verified, &key)).or_default() += 1;
    }
    for result in [status::OK, status::NOT_FOUND, status::OUT_OF_RANGE, MOVED, STALE] {
        assert!(results.get(&result).is_some_and(|times| *times > 20), "{result}: {results:?}");
    }
}

/// Nothing but noise, which mostly is no bucket: made one by its head alone.
pub(crate) fn lookups_in_noise(programs: &Programs) {
    let verified = programs.verified("dht_lookup");
    for seed in 0..200 {
        let mut chance = SeededRandom::new(seed);
        let mut memory = chance.bytes(MEMORY);
        memory[BUCKET..][..8].copy_from_slice(&TABLE.to_le_bytes());
        memory[BUCKET + 8..][..8].fill(0);
        let tag = chance.below(1 << 24) as u32;
        for slot in 0..SLOTS {
            memory[BUCKET + 16 + 8 * slot + 5..][..3].copy_from_slice(&tag.to_le_bytes()[..3]);
        }
        let made = Made { memory, keys: Vec::new(), slot: 0, tag };
        made.check(&format!("seed {seed}"), &verified, &[7; 20]);
    }
}

/// What is asked wrongly, and memory that there is none of.
pub(crate) fn lookups_nowhere(programs: &Programs) {
    let verified = programs.verified("dht_lookup");
    let ask = |bucket: u64, key: &[u8]| {
        let lookup = DhtLookup { table: TABLE, bucket, tag: 1, key };
        let mut host = TestHost::for_program(vec![], verified.program());
        host.global = vec![0; MEMORY];
        let done = call(&verified, &mut host, &lookup.to_bytes().unwrap());
        (done.result(), done.accesses)
    };
    assert_eq!(ask(0, b""), (status::OUT_OF_RANGE, 0));
    assert_eq!(ask(MEMORY as u64 - 255, b"key"), (status::NOT_PERMITTED, 1));
    assert_eq!(ask(11 << 42, b"key"), (status::NOT_PERMITTED, 1));
    assert_eq!(ask(0, b"key"), (MOVED, 1));
    assert!(DhtLookup { table: 0, bucket: 0, tag: 0, key: &[1; 65] }.to_bytes().is_err());
}
