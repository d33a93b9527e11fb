//! The definition of a run: the core workloads of YCSB and their changes by property files.

use super::generator::ZIPFIAN_CONSTANT;
use std::fmt;
use std::str::FromStr;

/// The reason for refusing workload E and its properties.
pub(super) const NO_SCANS: &str = "scans need records in the order of keys, and the store under test is a hash table, which has none";

/// The core workloads of YCSB (`workloads/workloada` ... `workloadf` of its distribution).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoreWorkload {
    /// Update heavy: half reads, half updates, zipfian.
    A,
    /// Read mostly: 95 % reads, 5 % updates, zipfian.
    B,
    /// Read only: zipfian.
    C,
    /// Read latest: 95 % reads, 5 % inserts, newest records most.
    D,
    /// Read, modify, write: half reads, half read-modify-writes, zipfian.
    F,
}

impl CoreWorkload {
    /// All workloads that a hash table can run.
    pub const ALL: [Self; 5] = [Self::A, Self::B, Self::C, Self::D, Self::F];

    /// Its definition, for these numbers of records and operations.
    pub fn workload(self, records: u64, operations: u64) -> Workload {
        let none = Proportions::NONE;
        let proportions = match self {
            Self::A => Proportions { read: 0.5, update: 0.5, ..none },
            Self::B => Proportions { read: 0.95, update: 0.05, ..none },
            Self::C => Proportions { read: 1.0, ..none },
            Self::D => Proportions { read: 0.95, insert: 0.05, ..none },
            Self::F => Proportions { read: 0.5, read_modify_write: 0.5, ..none },
        };
        let requests = match self {
            Self::D => RequestDistribution::Latest,
            Self::A | Self::B | Self::C | Self::F => RequestDistribution::Zipfian,
        };
        Workload {
            records,
            operations,
            insert_count: records,
            proportions,
            requests,
            ..Workload::default()
        }
    }
}

impl fmt::Display for CoreWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for CoreWorkload {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, UnknownWorkload> {
        match text.trim_start_matches("workload") {
            "a" | "A" => Ok(Self::A),
            "b" | "B" => Ok(Self::B),
            "c" | "C" => Ok(Self::C),
            "d" | "D" => Ok(Self::D),
            "e" | "E" => Err(UnknownWorkload::Scans),
            "f" | "F" => Ok(Self::F),
            _ => Err(UnknownWorkload::NoSuch(text.to_owned())),
        }
    }
}

/// Why a name is no workload that can run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UnknownWorkload {
    /// Workload E: it scans.
    Scans,
    /// YCSB has no such core workload.
    NoSuch(String),
}

impl fmt::Display for UnknownWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scans => write!(f, "Workload E cannot run: {NO_SCANS}. Choose a, b, c, d or f."),
            Self::NoSuch(name) => {
                write!(f, "No core workload is called `{name}`. Choose a, b, c, d or f.")
            }
        }
    }
}

impl std::error::Error for UnknownWorkload {}

/// The shares of the kinds of operations; weights, which need not add up to one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Proportions {
    /// Reads of a record.
    pub read: f64,
    /// Updates of a record.
    pub update: f64,
    /// Inserts of a new record.
    pub insert: f64,
    /// Reads followed by an update of the same record.
    pub read_modify_write: f64,
}

impl Proportions {
    /// No operations.
    pub const NONE: Self = Self { read: 0.0, update: 0.0, insert: 0.0, read_modify_write: 0.0 };
}

/// The distribution of requests over records.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum RequestDistribution {
    /// Equal probability.
    Uniform,
    /// A few records very often, scattered over all.
    Zipfian,
    /// The newest most often.
    Latest,
    /// A part of the records gets a part of the requests.
    Hotspot {
        /// Share of the records that are hot, 0 to 1.
        data: f64,
        /// Share of the requests that go to them, 0 to 1.
        operations: f64,
    },
    /// Newer ones exponentially more often.
    Exponential {
        /// This many of 100 requests ...
        percentile: f64,
        /// ... go to this share of the newest records.
        share: f64,
    },
    /// In sequence, repeatedly.
    Sequential,
}

/// The distribution of field lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FieldLength {
    /// Always this many bytes.
    Constant(u32),
    /// From the first to the second number of bytes, with equal probability.
    Uniform(u32, u32),
    /// From the first to the second number of bytes, shorter ones more often.
    Zipfian(u32, u32),
}

impl FieldLength {
    /// Bytes of the shortest field.
    pub fn least(&self) -> u32 {
        match self {
            Self::Constant(least) | Self::Uniform(least, _) | Self::Zipfian(least, _) => *least,
        }
    }
}

/// A run: the records to load, and the operations. The default has YCSB's default of each property, with
/// 1,000 records and operations.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// Records in the table before the run (`recordcount`).
    pub records: u64,
    /// Operations of the run (`operationcount`).
    pub operations: u64,
    /// The first record to load and request (`insertstart`).
    pub insert_start: u64,
    /// The number of records to load and request from there (`insertcount`).
    pub insert_count: u64,
    /// Fields of a record (`fieldcount`).
    pub fields: u32,
    /// Bytes of a field (`fieldlength`, `minfieldlength`, `fieldlengthdistribution`).
    pub field_length: FieldLength,
    /// Whether a read wants all fields or one (`readallfields`). The table stores a record as one value and
    /// always reads it all; with one field, only that one is verified.
    pub read_all_fields: bool,
    /// Whether an update writes all fields or one (`writeallfields`).
    pub write_all_fields: bool,
    /// The kinds of operations (`readproportion`, ...).
    pub proportions: Proportions,
    /// The distribution of requests (`requestdistribution`).
    pub requests: RequestDistribution,
    /// The constant of zipfian distributions (`zipfianconstant`), over 0 and under 1.
    pub zipfian_constant: f64,
    /// Whether keys are numbered in order, rather than by the hash of their number (`insertorder`).
    pub ordered_inserts: bool,
    /// The minimum number of digits of a key's number (`zeropadding`).
    pub zero_padding: usize,
    /// The time limit of a run in seconds (`maxexecutiontime`); 0 for none.
    pub execution_seconds_max: u64,
    /// Concurrent clients (`threadcount`).
    pub threads: u32,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            records: 1_000,
            operations: 1_000,
            insert_start: 0,
            insert_count: 1_000,
            fields: 10,
            field_length: FieldLength::Constant(100),
            read_all_fields: true,
            write_all_fields: false,
            proportions: Proportions { read: 0.95, update: 0.05, ..Proportions::NONE },
            requests: RequestDistribution::Uniform,
            zipfian_constant: ZIPFIAN_CONSTANT,
            ordered_inserts: false,
            zero_padding: 1,
            execution_seconds_max: 0,
            threads: 1,
        }
    }
}

impl Workload {
    /// The share of operations that insert.
    pub(super) fn insert_share(&self) -> f64 {
        let Proportions { read, update, insert, read_modify_write } = self.proportions;
        insert / (read + update + insert + read_modify_write).max(f64::MIN_POSITIVE)
    }

    /// Writes the key of record `number` into `out`, as YCSB names it: `user` and the number, or the
    /// number's hash.
    pub fn key(&self, number: u64, out: &mut Vec<u8>) {
        let shown = if self.ordered_inserts { number } else { super::generator::fnv_hash(number) };
        let mut digits = [0_u8; 20];
        let mut first = digits.len();
        let mut left = shown;
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        out.clear();
        out.extend_from_slice(b"user");
        let shown = &digits[first..];
        out.resize(4 + self.zero_padding.saturating_sub(shown.len()), b'0');
        out.extend_from_slice(shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(workload: &Workload, number: u64) -> String {
        let mut out = b"old".to_vec();
        workload.key(number, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn keys_are_named_as_ycsb_does() {
        let hashed = Workload::default();
        assert_eq!(key(&hashed, 0), "user6284781860667377211");
        assert_eq!(key(&hashed, 1), "user8517097267634966620");
        let ordered = Workload { ordered_inserts: true, ..Workload::default() };
        assert_eq!(key(&ordered, 0), "user0");
        assert_eq!(key(&ordered, 1_234), "user1234");
        let padded = Workload { zero_padding: 8, ..ordered };
        assert_eq!(key(&padded, 5), "user00000005");
        assert_eq!(key(&padded, 1_234_567_890), "user1234567890");
    }

    #[test]
    fn workloads_have_their_names_and_e_has_a_reason() {
        assert_eq!("a".parse(), Ok(CoreWorkload::A));
        assert_eq!("workloadf".parse(), Ok(CoreWorkload::F));
        assert_eq!("e".parse::<CoreWorkload>(), Err(UnknownWorkload::Scans));
        assert!(UnknownWorkload::Scans.to_string().contains("order of keys"));
        assert!("g".parse::<CoreWorkload>().is_err());
        for workload in CoreWorkload::ALL {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
    }
}
