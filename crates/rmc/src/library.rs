//! The library of ready-made calls: their objects by name, and their parameters as types.
//!
//! The sources in `crates/rmc/library` document parameters, results, output, cost, and the layout of memory. A
//! parameter type has the layout of the program's `struct parameters` in C.
//!
//! ```
//! use farside_rmc::library::{HostWord, LibraryEntry, ListSearch};
//! use farside_rmc::{Limits, verify};
//!
//! let entry = LibraryEntry::with_name("list_search").ok_or("no such call")?;
//! let verified = verify(entry.program()?, &Limits::DEFAULT)?;
//! let head = HostWord::new(0, 64).ok_or("too far")?;
//! let parameters = ListSearch { head, key: 5 }.to_bytes();
//! assert_eq!(parameters.len(), verified.context_bytes() as usize);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

use crate::helpers::status;
use crate::limits::Limits;
use crate::program::{LoadError, LoadProblem, Program, load};

/// A call of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LibraryEntry {
    /// The program's name.
    pub name: &'static str,
    /// What it does.
    pub sentence: &'static str,
    /// Its parameters in order, words unless stated otherwise.
    pub parameters: &'static str,
    /// Its source in `crates/rmc/library`.
    pub file: &'static str,
    /// The object that clang made of the source; it may hold other programs too.
    pub object: &'static [u8],
}

macro_rules! entries {
    ($($file:literal $object:literal { $($name:literal [$parameters:literal] $sentence:literal;)* })*) => {
        /// The library.
        pub const ENTRIES: &[LibraryEntry] = &[
            $($(LibraryEntry {
                name: $name,
                sentence: $sentence,
                parameters: $parameters,
                file: $file,
                object: include_bytes!(concat!("../library/", $object)),
            },)*)*
        ];
    };
}

entries! {
    "list_search.c" "list_search.o" {
        "list_search" ["head, key"] "The value of a key in a linked list.";
    }
    "hash_lookup.c" "hash_lookup.o" {
        "hash_lookup" ["buckets, mask, key"] "The value of a key in a hash table with chained buckets.";
    }
    "dht_lookup.c" "dht_lookup.o" {
        "dht_lookup" ["table, bucket, tag and bytes of key (4 B each), 64 B of key"] "The value of a key in a bucket of the distributed hash table, in global memory.";
    }
    "btree_lookup.c" "btree_lookup.o" {
        "btree_lookup" ["root, key"] "The value of a key in a B+tree.";
    }
    "range_scan.c" "range_scan.o" {
        "range_scan" ["root, first, last, mask, wanted, leaves"] "The entries of a B+tree in a range of keys that pass a filter.";
    }
    "multi_cas.c" "multi_cas.o" {
        "multi_cas" ["region, lock, record, count, 8 x (offset, expected, desired)"] "Compares up to 8 words and replaces all or none, even if its caller dies.";
        "multi_cas_recover" ["region, lock, found"] "Ends what a dead caller of multi_cas had begun.";
    }
    "log_append.c" "log_append.o" {
        "log_append" ["log, slots, slot_bytes, bytes, 128 B of record"] "Appends a record to a log of fixed slots, also while others do.";
    }
    "multi_read.c" "multi_read.o" {
        "multi_read" ["region, count, 4 x (version, offset, bytes)"] "Several pieces of memory as they were at one moment, by their versions.";
    }
    "checksum.c" "checksum.o" {
        "checksum_crc32c" ["buffer, bytes, previous"] "CRC32C of a buffer, computed where it is.";
        "checksum_xxhash64" ["buffer, bytes, seed"] "xxHash64 of a buffer, computed where it is.";
    }
}

impl LibraryEntry {
    /// The call with this name.
    pub fn with_name(name: &str) -> Option<&'static Self> {
        ENTRIES.iter().find(|entry| entry.name == name)
    }

    /// Its program, to be verified.
    pub fn program(&self) -> Result<Program, Box<LoadError>> {
        let programs = load(self.object, &Limits::DEFAULT)?;
        let found = programs.into_iter().find(|program| program.name == self.name);
        found.ok_or_else(|| {
            LoadError::of_section("", LoadProblem::Undefined { name: self.name.to_string() })
        })
    }
}

/// What a result of the library's calls means: a number, or one of [`status`]'s negative ones.
pub fn answer(result: u64) -> Result<u64, i64> {
    let signed = result.cast_signed();
    if (status::LEAST..0).contains(&signed) { Err(signed) } else { Ok(result) }
}

/// A place in host memory as one word: the region in the upper 16 bits, the offset in the lower 48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct HostWord(u64);

impl HostWord {
    /// None: the end of a list, an empty tree.
    pub const NONE: Self = Self(0);
    const OFFSET_BITS: u32 = 48;

    /// Creates a place; `None` if the offset is 2^48 or more.
    pub const fn new(region: u16, offset: u64) -> Option<Self> {
        if offset >> Self::OFFSET_BITS != 0 {
            return None;
        }
        Some(Self((region as u64) << Self::OFFSET_BITS | offset))
    }

    /// As stored in memory and parameters.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The place that a word is.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Its region.
    pub const fn region(self) -> u64 {
        self.0 >> Self::OFFSET_BITS
    }

    /// Its offset there.
    pub const fn offset(self) -> u64 {
        self.0 & ((1 << Self::OFFSET_BITS) - 1)
    }
}

/// More of something than a call takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooMany {
    /// Of what.
    pub what: &'static str,
    /// How much there is.
    pub found: usize,
    /// How much fits.
    pub most: usize,
}

impl fmt::Display for TooMany {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, found, most } = self;
        write!(out, "{found} {what}, and one call takes at most {most}: make several calls")
    }
}

impl core::error::Error for TooMany {}

/// The consecutive words and bytes of a C structure.
struct Fields(Vec<u8>);

impl Fields {
    fn words(words: &[u64]) -> Self {
        Self(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// The structure, with zeros up to its length.
    fn padded(mut self, length: usize) -> Vec<u8> {
        self.0.resize(length, 0);
        self.0
    }
}

fn at_most(what: &'static str, found: usize, most: usize) -> Result<(), TooMany> {
    if found > most { Err(TooMany { what, found, most }) } else { Ok(()) }
}

/// Parameters of `list_search`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListSearch {
    /// The first node.
    pub head: HostWord,
    /// The key of the node to find.
    pub key: u64,
}

impl ListSearch {
    /// As the program takes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        Fields::words(&[self.head.word(), self.key]).0
    }
}

/// Parameters of `hash_lookup`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashLookup {
    /// The first bucket.
    pub buckets: HostWord,
    /// Buckets, less one; their number is a power of two.
    pub mask: u64,
    /// Whose value is wanted.
    pub key: u64,
}

impl HashLookup {
    /// As the program takes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        Fields::words(&[self.buckets.word(), self.mask, self.key]).0
    }
}

const DHT_LOOKUP_BYTES: usize = 24 + DhtLookup::KEY_BYTES_MAX;

/// Parameters of `dht_lookup`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DhtLookup<'a> {
    /// The table's number.
    pub table: u64,
    /// The global address of the bucket where the key should be.
    pub bucket: u64,
    /// The tag of the key's hash.
    pub tag: u32,
    /// Whose value is wanted.
    pub key: &'a [u8],
}

impl DhtLookup<'_> {
    /// Most bytes of a key.
    pub const KEY_BYTES_MAX: usize = 64;
    /// Maximum bytes of a value, if the limits of executor and caller permit as many.
    pub const VALUE_BYTES_MAX: usize = 4096;
    /// Bytes of what the program takes.
    pub const BYTES: usize = DHT_LOOKUP_BYTES;
    /// The result if the bucket cannot decide: the key has left it or is being moved.
    pub const MOVED: u64 = 1;
    /// The result if a record is gone or does not belong to its entry.
    pub const STALE: u64 = 2;

    /// As the program takes them.
    pub fn to_bytes(&self) -> Result<[u8; DHT_LOOKUP_BYTES], TooMany> {
        at_most("bytes of key", self.key.len(), Self::KEY_BYTES_MAX)?;
        let key_bytes = u32::try_from(self.key.len()).unwrap_or(u32::MAX);
        let mut bytes = [0; DHT_LOOKUP_BYTES];
        bytes[..8].copy_from_slice(&self.table.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bucket.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.tag.to_le_bytes());
        bytes[20..24].copy_from_slice(&key_bytes.to_le_bytes());
        bytes[24..24 + self.key.len()].copy_from_slice(self.key);
        Ok(bytes)
    }
}

/// Parameters of `btree_lookup`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtreeLookup {
    /// The root.
    pub root: HostWord,
    /// Whose value is wanted.
    pub key: u64,
}

impl BtreeLookup {
    /// As the program takes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        Fields::words(&[self.root.word(), self.key]).0
    }
}

/// Parameters of `range_scan`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeScan {
    /// The root.
    pub root: HostWord,
    /// The least key wanted.
    pub first: u64,
    /// The greatest key wanted.
    pub last: u64,
    /// Mask of the filter: values pass if these bits equal `wanted`.
    pub mask: u64,
    /// See `mask`; both zero for all.
    pub wanted: u64,
    /// Most leaves of one call.
    pub leaves: u64,
}

impl RangeScan {
    /// As the program takes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { root, first, last, mask, wanted, leaves } = *self;
        Fields::words(&[root.word(), first, last, mask, wanted, leaves]).0
    }
}

/// A word that is to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Its offset, a multiple of eight.
    pub offset: u64,
    /// The expected value.
    pub expected: u64,
    /// The new value.
    pub desired: u64,
}

/// Parameters of `multi_cas`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiCas<'a> {
    /// Where everything is.
    pub region: u64,
    /// The offset of the lock word of these words.
    pub lock: u64,
    /// The offset of the caller's own record: [`MultiCas::RECORD_BYTES`].
    pub record: u64,
    /// The words, each once.
    pub changes: &'a [Change],
}

impl MultiCas<'_> {
    /// Most words of one call.
    pub const CHANGES_MAX: usize = 8;
    /// Bytes of a caller's record.
    pub const RECORD_BYTES: usize = 200;

    /// As the program takes them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TooMany> {
        at_most("words", self.changes.len(), Self::CHANGES_MAX)?;
        let count = u64::try_from(self.changes.len()).unwrap_or(u64::MAX);
        let mut words = alloc::vec![self.region, self.lock, self.record, count];
        let change = |change: &Change| [change.offset, change.expected, change.desired];
        words.extend(self.changes.iter().flat_map(change));
        Ok(Fields::words(&words).padded(32 + 24 * Self::CHANGES_MAX))
    }
}

/// Parameters of `multi_cas_recover`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiCasRecover {
    /// Where everything is.
    pub region: u64,
    /// The offset of the lock word.
    pub lock: u64,
    /// The lock word as it was found.
    pub found: u64,
}

impl MultiCasRecover {
    /// As the program takes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        Fields::words(&[self.region, self.lock, self.found]).0
    }
}

/// Parameters of `log_append`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogAppend<'a> {
    /// The log.
    pub log: HostWord,
    /// Slots that it has.
    pub slots: u64,
    /// Bytes of each slot: eight more than the longest record, rounded up to a multiple of eight.
    pub slot_bytes: u64,
    /// What is appended.
    pub record: &'a [u8],
}

impl LogAppend<'_> {
    /// Most bytes of a record.
    pub const RECORD_BYTES_MAX: usize = 128;

    /// As the program takes them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TooMany> {
        at_most("bytes of record", self.record.len(), Self::RECORD_BYTES_MAX)?;
        let bytes = u64::try_from(self.record.len()).unwrap_or(u64::MAX);
        let mut fields = Fields::words(&[self.log.word(), self.slots, self.slot_bytes, bytes]);
        fields.0.extend_from_slice(self.record);
        Ok(fields.padded(32 + Self::RECORD_BYTES_MAX))
    }
}

/// A piece of memory and its version word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionedPiece {
    /// The offset of the version word.
    pub version: u64,
    /// The offset of the piece.
    pub offset: u64,
    /// Bytes of the piece.
    pub bytes: u64,
}

/// Parameters of `multi_read`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultiRead<'a> {
    /// Where everything is.
    pub region: u64,
    /// What is read; together at most [`MultiRead::BYTES_MAX`].
    pub pieces: &'a [VersionedPiece],
}

impl MultiRead<'_> {
    /// Most pieces of one call.
    pub const PIECES_MAX: usize = 4;
    /// Most bytes of all pieces together.
    pub const BYTES_MAX: usize = 256;

    /// As the program takes them.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TooMany> {
        at_most("pieces", self.pieces.len(), Self::PIECES_MAX)?;
        let lengths = self.pieces.iter().map(|piece| usize::try_from(piece.bytes));
        let total =
            lengths.fold(0usize, |sum, length| sum.saturating_add(length.unwrap_or(usize::MAX)));
        at_most("bytes of pieces", total, Self::BYTES_MAX)?;
        let count = u64::try_from(self.pieces.len()).unwrap_or(u64::MAX);
        let mut words = alloc::vec![self.region, count];
        let piece = |piece: &VersionedPiece| [piece.version, piece.offset, piece.bytes];
        words.extend(self.pieces.iter().flat_map(piece));
        Ok(Fields::words(&words).padded(16 + 24 * Self::PIECES_MAX))
    }
}

/// Parameters of `checksum_crc32c` and `checksum_xxhash64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum {
    /// The buffer.
    pub buffer: HostWord,
    /// Its bytes, at most 1 MiB.
    pub bytes: u64,
    /// The seed of xxHash64; the CRC32C of the bytes before these, or 0.
    pub start: u64,
}

impl Checksum {
    /// As the program takes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        Fields::words(&[self.buffer.word(), self.bytes, self.start]).0
    }
}
