//! Tables I to III of 002: granularities, testbed, and which hint helps which primitive.

use super::access::{SERVER_THREADS, WRITE, stored};
use super::persist::{latency, one_doorbell, two_round_trips};
use super::scene::{Addresses, Load, Path, ServerMemory, ServerWork};
use crate::fabric::{NVM_LINE_BYTES, NvmWriter, OPTANE_NVM};
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use crate::reproduce_000::scene::{Request, Verb};
use farside_fabric::FabricError;

/// Gain from which a hint counts as helping.
const HELPS: f64 = 1.02;

/// Why H5 does not help messages of 16 bytes.
const WIRE: &str = "H5 makes messages of 256 B of those of 16 B, and the wire limits these to 30 M/s, below what partial lines reach.";

/// Returns Table I.
pub(super) fn granularities() -> PaperFigure {
    let bytes = |name, model, paper| Claim::new(name, "B", model, paper).input();
    PaperFigure {
        id: "I",
        title: "Access granularities",
        claims: vec![
            bytes("processor, PCIe and controller", NVM_LINE_BYTES as f64, 64.0),
            bytes("media", f64::from(OPTANE_NVM.media_bytes), 256.0),
        ],
        ..PaperFigure::default()
    }
}

/// Returns Table II.
pub(super) fn testbed() -> PaperFigure {
    PaperFigure {
        id: "II",
        title: "The machines of the model",
        remarks: vec![
            "Server: two sockets of one adapter of 100 Gb/s and six DIMMs each, 20 threads of XEON_5215M; results are for one socket.",
            "Clients: ten adapters of the same kind (the paper: five machines with two ConnectX-4), 40 threads.",
        ],
        ..PaperFigure::default()
    }
}

/// Returns the gain of a load over another.
fn gain(with: &Load, without: &Load) -> Result<f64, FabricError> {
    let (with_rate, without_rate) = (with.run()?.rate, without.run()?.rate);
    Ok(with_rate / without_rate)
}

fn one_dimm(threads: usize) -> Load {
    let path = Path::TwoSided(threads, ServerWork::Write(NvmWriter::NonTemporal));
    let near = Load::near(path, 2_048);
    Load { addresses: Addresses::OneDimm, clients: 2 * threads, ..near }
}

/// Returns the gains of the one-sided primitive, by hint.
fn one_sided() -> Result<Vec<(f64, f64)>, FabricError> {
    let small = Load::near(WRITE, 16).without_ddio();
    let large = Load::near(WRITE, 2_048);
    let add = |memory| {
        let load = Load { memory, ..Load::near(WRITE, 8) };
        load.latency(vec![vec![Request::word(Verb::FetchAdd)]])
    };
    Ok(vec![
        (1.0, gain(&Load::near(WRITE, 16), &Load::baseline(WRITE, 16))?),
        (3.0, gain(&large.without_ddio(), &large)?),
        (5.0, gain(&small.padded(256), &small)?),
        (6.0, gain(&small.padded(64), &small)?),
        (8.0, add(ServerMemory::Nvm)? / add(ServerMemory::Dram)?),
        (9.0, latency(two_round_trips())? / latency(one_doorbell())?),
    ])
}

/// Returns the gains of the two-sided primitive, by hint.
fn two_sided() -> Result<Vec<(f64, f64)>, FabricError> {
    let (plain, streamed) = (stored(NvmWriter::Store), stored(NvmWriter::NonTemporal));
    let small = Load::near(streamed, 16);
    Ok(vec![
        (1.0, gain(&Load::near(plain, 2_048), &Load::baseline(plain, 2_048))?),
        (2.0, gain(&one_dimm(4), &one_dimm(SERVER_THREADS))?),
        (4.0, gain(&Load::near(streamed, 2_048), &Load::near(plain, 2_048))?),
        (5.0, gain(&small.padded(256), &small)?),
        (7.0, gain(&small.padded(64), &Load::near(plain, 16))?),
        (8.0, gain(&Load::dram(plain, 16), &Load::near(plain, 16))?),
    ])
}

/// Returns Table III: the gain of each hint.
pub(super) fn hints() -> Result<PaperFigure, FabricError> {
    let mut claims = Vec::new();
    let mut lines = Vec::new();
    for (name, points) in [("one-sided", one_sided()?), ("two-sided", two_sided()?)] {
        for (hint, gain) in &points {
            let helps = f64::from(u8::from(*gain > HELPS));
            claims.push(Claim::new(&format!("H{hint} helps {name}"), "", helps, 1.0).because(WIRE));
        }
        // One column a primitive, one row a hint.
        let row = |hint: f64| points.iter().find(|point| point.0 == hint).map_or(f64::NAN, |p| p.1);
        let points = (1..=9).map(|hint| (f64::from(hint), row(f64::from(hint)))).collect();
        lines.push(PaperLine { name: name.to_owned(), points });
    }
    Ok(PaperFigure {
        id: "III",
        title: "Gain of each hint",
        across: "hint",
        up: "gain",
        lines,
        claims,
        remarks: vec![
            "NaN: the paper's hint does not target the primitive.",
            "H8: latency of one-sided atomics, rate of stores of 16 B, in NVM against DRAM. H9: latency. The others: rates.",
        ],
    })
}
