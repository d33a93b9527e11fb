//! The distributed log: Figure 19 of 000 §IV-E, appends by one thread an engine.
//!
//! An engine reserves a range by FETCH_ADD on the tail, then writes the records of its batch from its table by one
//! WRITE of slices, and waits for both. The log is in the memory of one socket. Half of the records are in tables of
//! the engine's other socket.

use super::machines::{ClientMachines, PostSequence, SequencePost, ServerLinks, SocketPolicy};
use super::scene::{Link, Request, Verb};
use crate::fabric::E5_2640_V2;
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use farside_base::Random;
use farside_fabric::FabricError;

/// Bytes of a record: the paper's values of §IV-B; it does not give those of a record.
const RECORD_BYTES: u32 = 64;
/// Bandwidth to memory of the other socket, in bytes a microsecond (000 Table II).
const OTHER_BYTES_PER_US: u64 = 2_270;
/// Bytes of the log, which is behind the line of its tail.
const LOG_BYTES: u64 = 1 << 20;
const LOG_AT: u64 = 64;
/// The socket of the log, which is the adapter's (000 §III).
const LOG_SOCKET: usize = 1;
/// Distance of records in a table.
const TABLE_STRIDE: u64 = 256;
/// Where an engine gathers records of the other socket.
const GATHERED: u64 = 48 << 10;
const ENGINES: [usize; 6] = [1, 2, 4, 7, 10, 14];
/// Time before the measurement.
const WARM_UP_NS: u64 = 100_000;

/// Who appends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Appends {
    /// The paper's engine: FETCH_ADD, then one WRITE.
    Paper,
    /// `farside_apps::log`: FETCH_ADD; WRITE of header and lengths, WRITE of the records, and a compare-and-swap, by
    /// one doorbell. A single record is copied behind its header.
    Farside,
}

struct LogEngine {
    appends: Appends,
    policy: SocketPolicy,
    batch: u64,
    links: ServerLinks,
    socket: usize,
    random: Random,
    is_reserving: bool,
}

impl LogEngine {
    /// Returns the end and the link of a request: of the FETCH_ADD, which one atomic unit serves for all, or a WRITE.
    fn path(&mut self, is_tail: bool) -> (usize, Link) {
        let (end, port) = match self.policy {
            SocketPolicy::Any => (self.random.index(2), self.random.index(2)),
            SocketPolicy::Matched => (self.socket, LOG_SOCKET),
        };
        (end, self.links[end][if is_tail { LOG_SOCKET } else { port }][LOG_SOCKET])
    }

    /// Returns the WRITEs of a batch, and the time to prepare them.
    fn writes(&mut self, at: u64) -> (Vec<Request>, u64) {
        let record = |number| (number * TABLE_STRIDE, RECORD_BYTES);
        let records = |count| (0..count).map(record).collect::<Vec<_>>();
        let local = match (self.appends, self.policy) {
            (Appends::Farside, _) => return (self.farside_writes(at, records(self.batch)), 0),
            (_, SocketPolicy::Any) => records(self.batch),
            (_, SocketPolicy::Matched) => {
                let odd = self.batch % 2 * self.random.below(2);
                let others = self.batch / 2 + odd;
                let mut local = records(self.batch - others);
                if others > 0 {
                    local.push((GATHERED, others as u32 * RECORD_BYTES));
                }
                let each_ns = E5_2640_V2.load_ns
                    + (u64::from(RECORD_BYTES) * 1_000).div_ceil(OTHER_BYTES_PER_US);
                return (vec![Request { verb: Verb::Write, local, at }], others * each_ns);
            }
        };
        (vec![Request { verb: Verb::Write, local, at }], 0)
    }

    fn farside_writes(&self, at: u64, records: Vec<(u64, u32)>) -> Vec<Request> {
        // The first word of the header is that of the compare-and-swap.
        let header = 32 - 8;
        let commit = Request { verb: Verb::CompareSwap(0, 0), local: Vec::new(), at };
        if self.batch == 1 {
            return vec![Request::new(Verb::Write, 0, header + RECORD_BYTES, at + 8), commit];
        }
        let lengths = 4 + 4 * self.batch as u32;
        let behind = at + u64::from(32 + lengths).next_multiple_of(8);
        vec![
            Request::new(Verb::Write, GATHERED, header + lengths, at + 8),
            Request { verb: Verb::Write, local: records, at: behind },
            commit,
        ]
    }
}

impl PostSequence for LogEngine {
    fn next(&mut self, result: u64) -> SequencePost {
        self.is_reserving = !self.is_reserving;
        let (end, link) = self.path(self.is_reserving);
        if self.is_reserving {
            let list = vec![Request::word(Verb::FetchAdd)];
            return SequencePost { end, link, list, prepare_ns: 0, finish_ns: 0, units: 0 };
        }
        let bytes = self.batch * u64::from(RECORD_BYTES) * 2;
        let at = LOG_AT + result * bytes % (LOG_BYTES - LOG_AT - bytes) / 8 * 8;
        let (list, prepare_ns) = self.writes(at);
        SequencePost { end, link, list, prepare_ns, finish_ns: 0, units: self.batch }
    }
}

fn line(
    name: &str,
    appends: Appends,
    policy: SocketPolicy,
    batch: u64,
) -> Result<PaperLine, FabricError> {
    let mut line = PaperLine::new(name);
    for engines in ENGINES {
        let machines = ClientMachines::connect(engines, policy, LOG_BYTES)?;
        let rate = machines.rate(WARM_UP_NS, |number, links, socket| LogEngine {
            appends,
            policy,
            batch,
            links,
            socket: usize::from(socket),
            random: Random::new(number as u64 + 1),
            is_reserving: false,
        })?;
        line.points.push((engines as f64, rate));
    }
    Ok(line)
}

/// Why large batches gain more than in the paper.
const RECORDS: &str = "The paper does not give the bytes of a record, and large ones are bound by the wire: with 256 B the model has 6.3, with 64 B 16.";

/// Returns Figure 19: engines, batches, and NUMA-awareness.
pub(super) fn engines() -> Result<PaperFigure, FabricError> {
    let mut lines = Vec::new();
    for batch in [1, 8, 32] {
        let plain = format!("batch {batch}*");
        lines.push(line(&plain, Appends::Paper, SocketPolicy::Any, batch)?);
        let aware = format!("batch {batch}");
        lines.push(line(&aware, Appends::Paper, SocketPolicy::Matched, batch)?);
    }
    for batch in [1, 32] {
        let name = format!("Farside, {batch}");
        lines.push(line(&name, Appends::Farside, SocketPolicy::Matched, batch)?);
    }
    let [_, one, eight_any, eight, most_any, most, ..] = &lines[..] else {
        return Err(FabricError::Unknown("line"));
    };
    let gain = |line: &PaperLine, other: &PaperLine, x| line.at(x) / other.at(x);
    let claims = vec![
        Claim::new("NUMA, 14 engines, batch 8", "M/s", eight.at(14.0), 17.7),
        Claim::new("NUMA over none, 14 engines, batch 8", "", gain(eight, eight_any, 14.0), 1.14),
        Claim::new("NUMA over none, 14 engines, batch 32", "", gain(most, most_any, 14.0), 1.14),
        Claim::new("batch 32 over 1, 7 engines", "", gain(most, one, 7.0), 9.1).because(RECORDS),
    ];
    Ok(PaperFigure {
        id: "19",
        title: "Log, records of 64 B (*: not NUMA-aware)",
        across: "engines",
        up: "records, M/s",
        lines,
        claims,
        remarks: vec![
            "The paper names neither the batch of its 17.7 M/s nor the bytes of a record. Of the batches shown, 8 comes nearest: 14 engines reserve 2.4 M times a second, the rate of the atomic unit.",
            "Farside: the requests of an append of farside_apps::log, whose readers recognize committed records; all records are on the engine's socket.",
        ],
    })
}
