//! One persistent WRITE: 002 §4.3 (H9).

use super::access::WRITE;
use super::scene::Load;
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use crate::reproduce_000::scene::{Request, Verb};
use farside_fabric::FabricError;

/// Bytes of the WRITE.
const BYTES: u32 = 64;

/// Lists of requests, each posted by one doorbell when the one before has completed.
type Lists = Vec<Vec<Request>>;

fn write() -> Request {
    Request::new(Verb::Inline, 0, BYTES, 0)
}

fn read() -> Request {
    Request::new(Verb::Read, 0, 8, 0)
}

/// Returns the time of these lists, in microseconds, DDIO off.
pub(super) fn latency(lists: Lists) -> Result<f64, FabricError> {
    Load::near(WRITE, BYTES).without_ddio().latency(lists)
}

/// Two round trips: a WRITE, then a READ.
pub(super) fn two_round_trips() -> Lists {
    vec![vec![write()], vec![read()]]
}

/// WRITE and READ by one doorbell (H9).
pub(super) fn one_doorbell() -> Lists {
    vec![vec![write(), read()]]
}

/// Returns the latencies of §4.3.
pub(super) fn latencies() -> Result<PaperFigure, FabricError> {
    let ways: [(&str, Lists); 5] = [
        ("WRITE", vec![vec![write()]]),
        ("READ", vec![vec![read()]]),
        ("WRITE, READ", two_round_trips()),
        ("H9: one doorbell", one_doorbell()),
        ("WRITE and FLUSH", vec![vec![write(), Request::new(Verb::Flush, 0, BYTES, 0)]]),
    ];
    let mut lines = Vec::new();
    for (name, lists) in ways {
        let points = vec![(f64::from(BYTES), latency(lists)?)];
        lines.push(PaperLine { name: name.to_owned(), points });
    }
    let at = |number: usize| lines.get(number).map_or(f64::NAN, |line| line.at(BYTES.into()));
    let single = f64::midpoint(at(0), at(1));
    let claims = vec![
        Claim::new("one request, between WRITE and READ", "us", single, 2.0),
        Claim::new("WRITE, then READ", "us", at(2), 4.0),
        Claim::new("H9: WRITE and READ by one doorbell", "us", at(3), 3.0),
        Claim::new("H9 under two round trips", "", at(3) / at(2), 0.75),
    ];
    Ok(PaperFigure {
        id: "s4.3",
        title: "Latency of a persistent WRITE",
        across: "bytes",
        up: "us",
        lines,
        claims,
        remarks: vec![
            "One request at a time, own socket, DDIO off.",
            "FLUSH: by one doorbell, on an adapter with annex A19; not from the paper.",
        ],
    })
}
