//! What programs may call: one table of signatures, from which verifier, interpreters, compiler,
//! assembler and the C header's test read.
//!
//! A helper that accesses memory outside of the call *suspends*: the machine hands out a request and resumes when the
//! executor has answered. An executor with local access to the memory answers in place ([`crate::run::Near`]). Pure
//! helpers are computed here.
//!
//! Errors are reported in two ways. Helpers that move buffers return a status, zero or negative, and the program
//! decides. *Word* helpers return the word itself, which leaves no value for a status: an access that is not permitted
//! ends the call with [`crate::run::Stop::Refused`], as a one-sided request to an invalid address completes with an
//! error.

mod compress;
mod crc32c;
mod hashing;

pub(crate) use compress::Compressor;
pub use compress::compress;
pub use crc32c::crc32c;
pub use hashing::{Hashing, xxhash64};

/// Negative results of helpers.
pub mod status {
    /// Done.
    pub const OK: i64 = 0;
    /// The region is unknown, too short, or not open to the caller.
    pub const NOT_PERMITTED: i64 = -1;
    /// No such key.
    pub const NOT_FOUND: i64 = -2;
    /// An index, offset or length is out of range.
    pub const OUT_OF_RANGE: i64 = -3;
    /// The state or the output is full.
    pub const FULL: i64 = -4;
    /// The deadline passed first.
    pub const TIMED_OUT: i64 = -5;
    /// Another call holds the lock.
    pub const BUSY: i64 = -6;
    /// The peer that holds the memory is gone.
    pub const PEER_LOST: i64 = -7;
    /// The least status there is.
    pub const LEAST: i64 = -4095;
}

/// Kinds of state that a program declares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StateKind {
    /// Values by index.
    Array,
    /// Numbers of 64 bits by index.
    Counters,
    /// A hash map with a maximum number of entries. A key with dozens of collisions may find it full earlier; the hash
    /// is seeded at random for each map, so that this does not happen by chance.
    Map,
    /// Locks by index. A call may hold 64 locks of its session and 64 shared ones at a time; one more fails with
    /// [`status::FULL`].
    Locks,
}

/// How many bytes an argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// The value of an argument times `each`.
    Argument {
        /// Counted from zero.
        index: u8,
        /// Bytes per unit.
        each: u32,
        /// Its maximum.
        most: u32,
    },
    /// One key of the map that the first argument names.
    Key,
    /// One value of the state that the first argument names.
    Value,
}

/// What an argument must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// Any number; never an address.
    Number,
    /// A region of host memory that the caller may access: a number that is checked when it is used.
    Region,
    /// A number of bytes that the call moves, with its maximum.
    Length(u32),
    /// Points to initialised bytes.
    Readable(Extent),
    /// Points to bytes that may be written. What is not written is cleared.
    Writable(Extent),
    /// A state of this kind that the program declares.
    State(StateKind),
}

/// Who carries a helper out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelperEffect {
    /// Computed in place, from the arguments alone.
    Pure,
    /// Changes the call's own output in place.
    Output,
    /// Suspends, and returns a status or number in its range.
    Suspends,
    /// Suspends and moves one word; a refusal ends the call. The cheap form.
    Word,
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Helper {
    /// Which.
    pub call: Call,
    /// As called in the instruction.
    pub number: u32,
    /// As in C, without `farside_`.
    pub name: &'static str,
    /// What R1 and so on must be.
    pub arguments: &'static [Argument],
    /// The least result, as a signed number.
    pub result_min: i64,
    /// The greatest result, as a signed number.
    pub result_max: i64,
    /// Who carries it out.
    pub effect: HelperEffect,
}

impl Helper {
    /// Whether `result` is in the range that the verifier assumes.
    pub const fn returns(&self, result: u64) -> bool {
        let result = result as i64;
        self.result_min <= result && result <= self.result_max
    }

    /// The row of this call.
    pub fn of(call: Call) -> &'static Self {
        &HELPERS[usize::from(BY_NUMBER[call as usize])]
    }

    /// The helper with this number.
    pub fn with_number(number: u32) -> Option<&'static Self> {
        let at = *BY_NUMBER.get(number as usize)?;
        HELPERS.get(usize::from(at))
    }

    /// The helper with this name, with or without `farside_`.
    pub fn with_name(name: &str) -> Option<&'static Self> {
        let name = name.strip_prefix("farside_").unwrap_or(name);
        HELPERS.iter().find(|helper| helper.name == name)
    }
}

/// Most bytes of one buffer that a helper is given.
pub const BUFFER_BYTES_MAX: u32 = 64 * 1024;
/// Most pieces of a vectored access.
pub const PIECES_MAX: u32 = 64;
/// Bytes of one piece: its offset (8), its length (4), four that are zero.
pub const PIECE_BYTES: u32 = 16;
/// Most bytes of host memory that one helper hashes in place.
pub const HASHED_BYTES_MAX: u32 = 1 << 20;

const fn bytes(index: u8) -> Extent {
    Extent::Argument { index, each: 1, most: BUFFER_BYTES_MAX }
}

const PIECES: Extent = Extent::Argument { index: 2, each: PIECE_BYTES, most: PIECES_MAX };
const ANY: (i64, i64) = (i64::MIN, i64::MAX);
const STATUS: (i64, i64) = (status::LEAST, 0);
const U32: (i64, i64) = (0, u32::MAX as i64);
const LENGTH: (i64, i64) = (status::LEAST, BUFFER_BYTES_MAX as i64);

macro_rules! helpers {
    ($($number:literal $variant:ident $name:ident [$($argument:expr),*] $range:ident $effect:ident $sentence:literal;)*) => {
        /// Every helper.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Call {
            $(#[doc = $sentence] $variant = $number,)*
        }

        impl Call {
            /// Whether it touches memory outside of the call, so that the machine hands out a request.
            pub fn suspends(self) -> bool {
                matches!(Helper::of(self).effect, HelperEffect::Suspends | HelperEffect::Word)
            }

            /// The helper with this number.
            pub const fn with_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        /// The table.
        pub const HELPERS: &[Helper] = &[
            $(Helper {
                call: Call::$variant,
                number: $number,
                name: stringify!($name),
                arguments: &[$($argument),*],
                result_min: $range.0,
                result_max: $range.1,
                effect: HelperEffect::$effect,
            },)*
        ];
    };
}

use Argument::{Length, Number, Readable, Region, State, Writable};

helpers! {
    1 LoadU64 load_u64 [Region, Number] ANY Word "The 8 bytes at (region, offset).";
    2 StoreU64 store_u64 [Region, Number, Number] STATUS Word "Stores 8 bytes at (region, offset).";
    3 LoadU32 load_u32 [Region, Number] U32 Word "The 4 bytes at (region, offset).";
    4 StoreU32 store_u32 [Region, Number, Number] STATUS Word "Stores 4 bytes at (region, offset).";
    5 Read read [Region, Number, Writable(bytes(3)), Number] STATUS Suspends "Reads (region, offset) into (out, length).";
    6 Write write [Region, Number, Readable(bytes(3)), Number] STATUS Suspends "Writes (bytes, length) to (region, offset).";
    7 ReadVector read_vector [Region, Readable(PIECES), Number, Writable(bytes(4)), Number] STATUS Suspends "Reads (pieces, count) of a region into (out, length), one behind the other.";
    8 WriteVector write_vector [Region, Readable(PIECES), Number, Readable(bytes(4)), Number] STATUS Suspends "Writes (bytes, length) to (pieces, count) of a region, one behind the other.";
    9 CompareSwap compare_swap [Region, Number, Number, Number] ANY Word "Stores the fourth argument at (region, offset) if the 8 bytes equal the third; returns the old value.";
    10 FetchAdd fetch_add [Region, Number, Number] ANY Word "Adds to the 8 bytes at (region, offset); returns the old value.";
    11 Crc32cOf crc32c_of [Region, Number, Length(HASHED_BYTES_MAX), Number] U32 Word "CRC32C of (region, offset, length), going on from a previous one.";
    12 Xxhash64Of xxhash64_of [Region, Number, Length(HASHED_BYTES_MAX), Number] ANY Word "xxHash64 of (region, offset, length) with a seed.";
    16 GlobalLoadU64 global_load_u64 [Number] ANY Word "The 8 bytes at a global address, coherently.";
    17 GlobalStoreU64 global_store_u64 [Number, Number] STATUS Word "Stores 8 bytes at a global address, coherently.";
    18 GlobalRead global_read [Number, Writable(bytes(2)), Number] STATUS Suspends "Reads a global address into (out, length).";
    19 GlobalWrite global_write [Number, Readable(bytes(2)), Number] STATUS Suspends "Writes (bytes, length) to a global address.";
    20 GlobalCompareSwap global_compare_swap [Number, Number, Number] ANY Word "Compare-and-swap of (address, expected, desired); returns the old value.";
    21 GlobalFetchAdd global_fetch_add [Number, Number] ANY Word "Adds to the 8 bytes at a global address; returns the old value.";
    32 ArrayRead array_read [State(StateKind::Array), Number, Writable(Extent::Value)] STATUS Suspends "Copies the value at an index out.";
    33 ArrayWrite array_write [State(StateKind::Array), Number, Readable(Extent::Value)] STATUS Suspends "Replaces the value at an index.";
    34 CounterAdd counter_add [State(StateKind::Counters), Number, Number] ANY Word "Adds to the counter at an index; returns its new value.";
    35 MapGet map_get [State(StateKind::Map), Readable(Extent::Key), Writable(Extent::Value)] STATUS Suspends "Copies the value of a key out.";
    36 MapPut map_put [State(StateKind::Map), Readable(Extent::Key), Readable(Extent::Value)] STATUS Suspends "Sets the value of a key.";
    37 MapRemove map_remove [State(StateKind::Map), Readable(Extent::Key)] STATUS Suspends "Removes a key.";
    38 Lock lock [State(StateKind::Locks), Number] STATUS Suspends "Takes the lock at an index, waiting up to the executor's limit (100 ms); it is released at the end of the call.";
    39 TryLock try_lock [State(StateKind::Locks), Number] STATUS Suspends "Takes the lock at an index if it is free.";
    40 Unlock unlock [State(StateKind::Locks), Number] STATUS Suspends "Releases the lock at an index.";
    48 WaitWord wait_word [Region, Number, Number, Number] STATUS Suspends "Waits until the 8 bytes at (region, offset) differ from the third argument, at most for the nanoseconds in the fourth.";
    49 Notify notify [Number, Readable(bytes(2)), Number] STATUS Suspends "Sends (bytes, length) to the subscribers of a topic.";
    50 TimeNs time_ns [] ANY Suspends "Nanoseconds since the executor started.";
    51 Emit emit [Readable(bytes(1)), Number] STATUS Output "Appends (bytes, length) to the result.";
    64 Crc32c crc32c [Readable(bytes(1)), Number, Number] U32 Pure "CRC32C of (bytes, length), going on from a previous one.";
    65 Xxhash64 xxhash64 [Readable(bytes(1)), Number, Number] ANY Pure "xxHash64 of (bytes, length) with a seed.";
    66 Compress compress [Readable(bytes(1)), Number, Writable(bytes(3)), Number] LENGTH Pure "Compresses (bytes, length) into (out, length) as an LZ4 block; returns its length.";
}

/// One more than the greatest number.
const NUMBERS: usize = 67;
/// No helper has this number.
const NO_HELPER: u8 = 255;
/// The index in the table of each number, so that a call needs no search.
const BY_NUMBER: [u8; NUMBERS] = {
    let mut table = [NO_HELPER; NUMBERS];
    let mut at = 0;
    while at < HELPERS.len() {
        table[HELPERS[at].number as usize] = at as u8;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_to_their_rows() {
        for helper in HELPERS {
            assert_eq!(Helper::with_number(helper.number), Some(helper));
            assert_eq!(Helper::of(helper.call), helper);
            assert_eq!(Helper::with_name(helper.name), Some(helper));
            assert_eq!(Call::with_number(helper.number), Some(helper.call));
        }
        assert_eq!(Helper::with_number(0), None);
        assert_eq!(Helper::with_number(13), None);
        assert_eq!(Helper::with_number(u32::MAX), None);
    }

    #[test]
    fn extents_name_arguments_that_are_numbers() {
        for helper in HELPERS {
            assert!(helper.arguments.len() <= 5, "{}", helper.name);
            for argument in helper.arguments {
                match argument {
                    Argument::Readable(extent) | Argument::Writable(extent) => match extent {
                        Extent::Argument { index, .. } => {
                            let length = helper.arguments.get(usize::from(*index));
                            assert_eq!(length, Some(&Argument::Number), "{}", helper.name);
                        }
                        Extent::Key | Extent::Value => {
                            assert!(matches!(helper.arguments[0], Argument::State(_)));
                        }
                    },
                    _ => {}
                }
            }
        }
    }
}
