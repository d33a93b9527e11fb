//! What each hint adds: Figures 8 and 9 of 002 §4.

use super::access::{LIMIT, RANDOM, UNEVEN, WRITE, stored};
use super::scene::Load;
use crate::fabric::NvmWriter;
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use farside_fabric::FabricError;

/// Hints in the order in which they are applied, with their loads; each has the ones before.
type Steps = Vec<(&'static str, Load)>;

/// Returns one line of one point for each step, rates or bandwidths of the payload of `bytes` bytes.
fn lines(steps: Steps, bytes: u32) -> Result<Vec<PaperLine>, FabricError> {
    let line = |(name, load): (&'static str, Load)| {
        let outcome = load.run()?;
        let value = if bytes <= 64 { outcome.rate } else { outcome.gbps(bytes) };
        Ok(PaperLine { name: name.to_owned(), points: vec![(f64::from(bytes), value)] })
    };
    steps.into_iter().map(line).collect()
}

/// Why H1 gains more than in the paper.
const EVICTED: &str = "With DDIO on, a read and an evicted line follow each other at a DIMM at random, with DDIO off always, so the model's controllers change between reads and writes less often. The paper has no such difference: 30 and 31 M/s.";

/// Returns Figure 8a: one-sided WRITEs of 16 bytes.
pub(super) fn small_writes() -> Result<PaperFigure, FabricError> {
    let near = Load::near(WRITE, 16);
    let off = near.without_ddio();
    let steps = vec![
        ("baseline", Load::baseline(WRITE, 16)),
        ("+H1 own socket", near),
        ("+H3 no DDIO", off),
        ("+H5 256 B", off.padded(256)),
        ("+H6 64 B", off.padded(64)),
        ("DRAM", Load::dram(WRITE, 16)),
        ("DRAM, 64 B", Load::dram(WRITE, 16).padded(64)),
    ];
    let lines = lines(steps, 16)?;
    let at = |number: usize| lines.get(number).map_or(f64::NAN, |line| line.at(16.0));
    let claims = vec![
        Claim::new("baseline", "M/s", at(0), 15.0).input(),
        Claim::new("+H1", "M/s", at(1), 30.0).because(EVICTED),
        Claim::new("+H1 over baseline", "", at(1) / at(0), 2.0).because(EVICTED),
        Claim::new("+H3", "M/s", at(2), 31.0).input(),
        Claim::new("+H5", "M/s", at(3), 34.0),
        Claim::new("+H5 over +H3", "", at(3) / at(2), 1.1),
        Claim::new("+H6", "M/s", at(4), 45.0),
        Claim::new("+H6 over +H5", "", at(4) / at(3), 1.3),
        Claim::new("DRAM, 64 B over 16 B", "", at(6) / at(5), 0.75)
            .because("The model's receive engine takes the same time for 16 B and for 64 B."),
    ];
    Ok(PaperFigure {
        id: "8a",
        title: "What each hint adds to one-sided WRITEs of 16 B",
        across: "bytes",
        up: "M/s",
        lines,
        claims,
        remarks: vec![RANDOM, "H6 takes the place of H5, with all before."],
    })
}

/// Returns Figure 8b: one-sided WRITEs of 2,048 bytes.
pub(super) fn large_writes() -> Result<PaperFigure, FabricError> {
    let near = Load::near(WRITE, 2_048);
    let steps = vec![
        ("baseline", Load::baseline(WRITE, 2_048)),
        ("+H1 own socket", near),
        ("+H3 no DDIO", near.without_ddio()),
        ("+H5 256 B", near.without_ddio().padded(256)),
        ("DRAM", Load::dram(WRITE, 2_048)),
    ];
    let lines = lines(steps, 2_048)?;
    let at = |number: usize| lines.get(number).map_or(f64::NAN, |line| line.at(2_048.0));
    let claims = vec![
        Claim::new("baseline", "Gb/s", at(0), 38.0).input().because(UNEVEN),
        Claim::new("+H1, as bulk with DDIO", "Gb/s", at(1), 42.0).because(UNEVEN),
        Claim::new("all: close to 100 Gb/s", "Gb/s", at(3), 100.0),
    ];
    Ok(PaperFigure {
        id: "8b",
        title: "What each hint adds to one-sided WRITEs of 2,048 B",
        across: "bytes",
        up: "Gb/s",
        lines,
        claims,
        remarks: vec![RANDOM, "Payloads are aligned to themselves, so H5 changes nothing."],
    })
}

/// Returns Figure 9a: two-sided writes of 16 bytes.
pub(super) fn small_messages() -> Result<PaperFigure, FabricError> {
    let (plain, streamed) = (stored(NvmWriter::Store), stored(NvmWriter::NonTemporal));
    let steps = vec![
        ("baseline", Load::baseline(plain, 16)),
        ("+H1 own socket", Load::near(plain, 16)),
        ("+H4 ntstore", Load::near(streamed, 16)),
        ("+H5 256 B", Load::near(streamed, 16).padded(256)),
        ("+H7 64 B", Load::near(streamed, 16).padded(64)),
        ("LIMIT", Load::dram(LIMIT, 16)),
    ];
    let lines = lines(steps, 16)?;
    let at = |number: usize| lines.get(number).map_or(f64::NAN, |line| line.at(16.0));
    let claims = vec![
        Claim::new("+H1", "M/s", at(1), 19.0),
        Claim::new("+H7", "M/s", at(4), 35.0),
        Claim::new("+H7 over +H1", "", at(4) / at(1), 1.8),
        Claim::new("LIMIT", "M/s", at(5), 54.0).input(),
    ];
    Ok(PaperFigure {
        id: "9a",
        title: "What each hint adds to two-sided writes of 16 B",
        across: "bytes",
        up: "M/s",
        lines,
        claims,
        remarks: vec![
            RANDOM,
            "20 server threads. H7 takes the place of H5. The paper does not say before which step its 19 M/s are; the model compares +H1.",
        ],
    })
}

/// Returns Figure 9b: two-sided writes of 2,048 bytes.
pub(super) fn large_messages() -> Result<PaperFigure, FabricError> {
    let (plain, streamed) = (stored(NvmWriter::Store), stored(NvmWriter::NonTemporal));
    let steps = vec![
        ("baseline", Load::baseline(plain, 2_048)),
        ("+H1 own socket", Load::near(plain, 2_048)),
        ("+H4 ntstore", Load::near(streamed, 2_048)),
        ("+H5 256 B", Load::near(streamed, 2_048).padded(256)),
        ("LIMIT", Load::dram(LIMIT, 2_048)),
    ];
    let lines = lines(steps, 2_048)?;
    let at = |number: usize| lines.get(number).map_or(f64::NAN, |line| line.at(2_048.0));
    let claims = vec![
        Claim::new("baseline", "Gb/s", at(0), 8.0),
        Claim::new("+H1", "Gb/s", at(1), 19.0),
        Claim::new("+H1 over baseline", "", at(1) / at(0), 2.4),
        Claim::new("all: close to 100 Gb/s", "Gb/s", at(3), 100.0),
    ];
    Ok(PaperFigure {
        id: "9b",
        title: "What each hint adds to two-sided writes of 2,048 B",
        across: "bytes",
        up: "Gb/s",
        lines,
        claims,
        remarks: vec![RANDOM, "20 server threads. H2 is Figure 10a."],
    })
}
