//! Packet throttling, random access and IO consolidation: Figures 1, 6 and 8 of 000 §II-B, §III-B and §III-C.

use super::scene::{Batch, NextBatch, Request, Setup, Verb, copy_ns, latency, stream};
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use farside_fabric::FabricError;
use std::rc::Rc;

/// Longest payload that a program posts inline.
const INLINE_BYTES: u32 = 64;
/// Queue pairs of rates, and the requests of each in flight.
const QUEUE_PAIRS: usize = 8;
const WINDOW: usize = 8;
/// Bytes of the region of Figure 6. The paper has 2 GB; of 64 MiB as well 94 % of the pages are not cached.
const REGION_BYTES: u64 = 64 << 20;

/// Returns one request of `bytes` bytes after the other.
fn same(verb: Verb, bytes: u32) -> NextBatch {
    let verb = if verb == Verb::Write && bytes <= INLINE_BYTES { Verb::Inline } else { verb };
    Rc::new(move |_, _| Batch {
        list: vec![Request::new(verb, 0, bytes, 0)],
        units: 1,
        prepare_ns: 0,
    })
}

/// Why fetched payloads take longer than in the paper.
pub(super) const FETCH: &str = "One PCIe read of 750 ns serves READs, which need 0.84 us more than WRITEs in the paper, and payloads, which need 0.63 us.";

/// Returns Figure 1: packet throttling.
pub(super) fn throttling() -> Result<PaperFigure, FabricError> {
    let names = ["WRITE, us", "READ, us", "WRITE, M/s", "READ, M/s"];
    let mut lines: Vec<_> = names.map(PaperLine::new).into();
    for bytes in [8, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192] {
        for (number, verb) in [Verb::Write, Verb::Read].into_iter().enumerate() {
            let us = latency(&Setup::new(1), &same(verb, bytes))?;
            lines[number].points.push((f64::from(bytes), us));
            // Rates are those of payloads that are fetched.
            let next = single(verb, bytes, AddressOrder::Steps, AddressOrder::Steps, 1 << 20);
            let rate = stream(&Setup::new(QUEUE_PAIRS), WINDOW, &next)?;
            lines[2 + number].points.push((f64::from(bytes), rate));
        }
    }
    let claims = vec![
        Claim::new("WRITE, 8 B", "us", lines[0].at(8.0), 1.16),
        Claim::new("READ, 8 B", "us", lines[1].at(8.0), 2.00),
        Claim::new("WRITE, 256 B", "us", lines[0].at(256.0), 1.79).because(FETCH),
        Claim::new("READ, 256 B", "us", lines[1].at(256.0), 2.22),
        Claim::new("WRITE, up to 256 B", "M/s", lines[2].at(256.0), 4.7).input(),
        Claim::new("READ, up to 256 B", "M/s", lines[3].at(256.0), 4.2).because(
            "The paper's READs are slower here than in its Table III (6.17 M/s); the model has one limit for both, that of inline requests.",
        ),
        Claim::new("WRITE, 256 B over 8 B: flat", "", lines[2].at(256.0) / lines[2].at(8.0), 1.0),
    ];
    Ok(PaperFigure {
        id: "1",
        title: "Packet throttling",
        across: "bytes",
        up: "latency and rate",
        lines,
        claims,
        remarks: vec![
            "WRITEs of up to 64 B are inline where latency is measured, and fetched where the rate is.",
        ],
    })
}

/// The order of addresses at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AddressOrder {
    /// Each range after the one before.
    Steps,
    /// Ranges at random.
    Random,
}

impl AddressOrder {
    fn at(self, number: u64, ranges: u64, random: &mut farside_base::Random) -> u64 {
        match self {
            Self::Steps => number % ranges,
            Self::Random => random.below(ranges),
        }
    }
}

/// Returns requests with these orders of addresses in a region of `region` bytes at each end.
fn single(
    verb: Verb,
    bytes: u32,
    source: AddressOrder,
    target: AddressOrder,
    region: u64,
) -> NextBatch {
    let ranges = region / u64::from(bytes);
    Rc::new(move |number, random| {
        let local = source.at(number, ranges, random) * u64::from(bytes);
        let at = target.at(number, ranges, random) * u64::from(bytes);
        Batch { list: vec![Request::new(verb, local, bytes, at)], units: 1, prepare_ns: 0 }
    })
}

/// The four patterns: source, then destination.
const PATTERNS: [(&str, AddressOrder, AddressOrder); 4] = [
    ("seq-seq", AddressOrder::Steps, AddressOrder::Steps),
    ("seq-rand", AddressOrder::Steps, AddressOrder::Random),
    ("rand-seq", AddressOrder::Random, AddressOrder::Steps),
    ("rand-rand", AddressOrder::Random, AddressOrder::Random),
];

/// Returns Figure 6a or 6b: random and sequential access to 2 GB.
pub(super) fn patterns(id: &'static str, verb: Verb) -> Result<PaperFigure, FabricError> {
    let setup = Setup { bytes: REGION_BYTES, ..Setup::new(QUEUE_PAIRS) };
    let mut lines = Vec::new();
    for (name, source, target) in PATTERNS {
        let mut line = PaperLine::new(name);
        for bytes in [1_u32, 32, 512, 2_048, 8_192] {
            let (local, remote) =
                if verb == Verb::Read { (target, source) } else { (source, target) };
            let next = single(verb, bytes, local, remote, REGION_BYTES);
            line.points.push((f64::from(bytes), stream(&setup, WINDOW, &next)?));
        }
        lines.push(line);
    }
    let sequential = lines[0].at(32.0);
    let ratio = |line: &PaperLine| sequential / line.at(32.0);
    let mut claims: Vec<_> = lines[1..]
        .iter()
        .map(|line| {
            let name = format!("seq-seq over {}, 32 B", line.name);
            Claim::range(&name, "", ratio(line), (2.0, 4.0)).because(
                "A missing translation at the target makes 358 ns of the receive engine's 38 ns, against the 213 ns of a send.",
            )
        })
        .collect();
    let flat = lines[0].at(512.0) / lines[0].at(1.0);
    claims.push(Claim::new("seq-seq, 512 B over 1 B: flat", "", flat, 1.0));
    Ok(PaperFigure {
        id,
        title: if verb == Verb::Read { "READ, four patterns" } else { "WRITE, four patterns" },
        across: "bytes",
        up: "M/s",
        lines,
        claims,
        remarks: vec![
            "The paper says more than 2, and less than the 4 to 8 of local memory.",
            "Source-destination. Regions of 64 MiB, 16 times what the cache of translations covers; the paper has 2 GB.",
        ],
    })
}

/// Returns Figure 6c, which is about local memory.
pub(super) fn local() -> PaperFigure {
    PaperFigure {
        id: "6c",
        title: "Local memory, four patterns",
        remarks: vec!["Not reproduced: the model has no caches of processors."],
        ..PaperFigure::default()
    }
}

/// Returns Figure 6d: sizes of the region, 32 bytes.
pub(super) fn regions() -> Result<PaperFigure, FabricError> {
    let mut lines: Vec<_> = ["seq-seq", "rand-rand"].map(PaperLine::new).into();
    for mebibytes in [1_u64, 2, 4, 8, 16, 64] {
        let bytes = mebibytes << 20;
        let pages = bytes / 4_096;
        // Where the translations fit, each page is used once before the measurement.
        let warm_up_ns = if pages <= 1_024 { 700_000 } else { 60_000 };
        let setup = Setup { bytes, warm_up_ns, ..Setup::new(QUEUE_PAIRS) };
        for (line, order) in lines.iter_mut().zip([AddressOrder::Steps, AddressOrder::Random]) {
            let measured = single(Verb::Write, 32, order, order, bytes);
            let next: NextBatch = Rc::new(move |number, random| match number {
                number if number < pages && pages <= 1_024 => {
                    let list = vec![Request::new(Verb::Write, number * 4_096, 32, number * 4_096)];
                    Batch { list, units: 1, prepare_ns: 0 }
                }
                _ => measured(number, random),
            });
            line.points.push((mebibytes as f64, stream(&setup, WINDOW, &next)?));
        }
    }
    let gain = |x| lines[0].at(x) / lines[1].at(x);
    let claims = vec![
        Claim::new("sequential over random, 1 MB", "", gain(1.0), 1.0),
        Claim::new("sequential over random, 2 MB", "", gain(2.0), 1.0),
        Claim::range("sequential over random, 64 MB", "", gain(64.0), (2.0, 4.0)),
    ];
    Ok(PaperFigure {
        id: "6d",
        title: "WRITE of 32 B, sizes of the region",
        across: "MiB",
        up: "M/s",
        lines,
        claims,
        remarks: vec!["1,024 translations of 4 KiB cover 4 MB: an input, from this figure."],
    })
}

/// Returns Figure 8: consolidation of writes of 32 bytes to one block of 1 KB.
pub(super) fn consolidation() -> Result<PaperFigure, FabricError> {
    const BLOCK_BYTES: u32 = 1_024;
    let setup = Setup { bytes: 16 << 20, ..Setup::new(1) };
    let blocks = setup.bytes / u64::from(BLOCK_BYTES);
    let native = 1.0
        / latency(
            &setup,
            &single(Verb::Inline, 32, AddressOrder::Steps, AddressOrder::Random, setup.bytes),
        )?;
    let mut lines: Vec<_> = ["native", "consolidated"].map(PaperLine::new).into();
    for theta in [1_u64, 2, 4, 8, 16] {
        let next: NextBatch = Rc::new(move |_, random| {
            let block = random.below(blocks) * u64::from(BLOCK_BYTES);
            Batch {
                list: vec![Request::new(Verb::Write, block, BLOCK_BYTES, block)],
                units: theta,
                prepare_ns: copy_ns(theta, 32),
            }
        });
        lines[0].points.push((theta as f64, native));
        lines[1].points.push((theta as f64, stream(&setup, 1, &next)?));
    }
    let gain = lines[1].at(16.0) / native;
    let claims = vec![Claim::new("consolidated over native, theta 16", "", gain, 7.49)];
    Ok(PaperFigure {
        id: "8",
        title: "IO consolidation, writes of 32 B, blocks of 1 KB",
        across: "theta",
        up: "writes, M/s",
        lines,
        claims,
        remarks: vec![
            "A native write is inline; each write or block is completed before the next.",
        ],
    })
}
