//! Reads that writes cause: Figures 12 and 13 of 002 §4.

use super::access::{RANDOM, WRITE, stored};
use super::scene::{Addresses, Load};
use crate::fabric::{NvmAccess, NvmProfile, NvmSocket, NvmWriter, OPTANE_NVM};
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use farside_fabric::FabricError;

/// Payloads of Figure 13.
const PAYLOADS: [u32; 5] = [16, 64, 80, 128, 200];

/// Returns Figure 12: what a cache and a partial write do to the order and the number of requests.
pub(super) fn requests() -> PaperFigure {
    let mut line = PaperLine::new("amplification");
    for ddio in [false, true] {
        let mut socket = NvmSocket::new(NvmProfile { ddio, ..OPTANE_NVM });
        for number in 0..16_384 {
            let access = NvmAccess { address: number * 256, bytes: 256, is_across: false };
            socket.write(0, &access, NvmWriter::Adapter);
        }
        line.points.push((f64::from(u8::from(ddio)), socket.counters().write_amplification()));
    }
    let mut socket = NvmSocket::new(NvmProfile { ddio: false, ..OPTANE_NVM });
    let access = NvmAccess { address: 0x40, bytes: 8, is_across: false };
    socket.write(0, &access, NvmWriter::Adapter);
    let counters = socket.counters();
    let claims = vec![
        Claim::new("8 B at 0x40: reads", "", counters.read_requests as f64, 1.0),
        Claim::new("8 B at 0x40: writes", "", counters.write_requests as f64, 1.0),
        Claim::new("sequential, DDIO off: amplification", "", line.at(0.0), 1.0),
        Claim::new("sequential, DDIO on: amplification", "", line.at(1.0), 2.0).input(),
    ];
    PaperFigure {
        id: "12",
        title: "Random eviction, and a partial write",
        across: "DDIO",
        up: "NMediaWrite / (64 NWriteReq)",
        lines: vec![line],
        claims,
        remarks: vec!["The memory model by itself, without adapters."],
    }
}

/// Returns a line of reads for each write, by payload.
fn reads(name: &str, load: impl Fn(u32) -> Load) -> Result<PaperLine, FabricError> {
    let mut line = PaperLine::new(name);
    for bytes in PAYLOADS {
        let outcome = load(bytes).run()?;
        let requests = outcome.counters.read_requests as f64;
        // Of the request, not of each of its lines.
        let lines = f64::from(load(bytes).bytes.div_ceil(64));
        let writes = outcome.counters.write_requests as f64 / lines;
        line.points.push((f64::from(bytes), requests / writes));
    }
    Ok(line)
}

const fn at_any_8(load: Load) -> Load {
    Load { addresses: Addresses::Random(8), ..load }
}

const fn aligned(load: Load) -> Load {
    Load { addresses: Addresses::Random(64), ..load }
}

/// Returns Figure 13a: one-sided WRITEs.
pub(super) fn writes() -> Result<PaperFigure, FabricError> {
    let load = |bytes| Load::near(WRITE, bytes).without_ddio();
    let lines = vec![
        reads("plain", |bytes| at_any_8(load(bytes)))?,
        reads("+1 align", |bytes| aligned(load(bytes)))?,
        reads("+2 pad", |bytes| load(bytes).padded(64))?,
    ];
    let claims = vec![
        Claim::new("plain, 16 B", "", lines[0].at(16.0), 1.0),
        Claim::new("+1 align, 16 B", "", lines[1].at(16.0), 1.0),
        Claim::new("writes without a read, +2 pad, 16 B", "", 1.0 - lines[2].at(16.0), 1.0),
        Claim::new("writes without a read, +2 pad, 200 B", "", 1.0 - lines[2].at(200.0), 1.0),
    ];
    Ok(PaperFigure {
        id: "13a",
        title: "Reads a one-sided WRITE",
        across: "bytes",
        up: "NReadReq a WRITE",
        lines,
        claims,
        remarks: vec![RANDOM, "DDIO off. Addresses in steps of 8 B before they are aligned."],
    })
}

/// Returns Figure 13b: two-sided writes.
pub(super) fn messages() -> Result<PaperFigure, FabricError> {
    let plain = |bytes| Load::near(stored(NvmWriter::Store), bytes);
    let streamed = |bytes| Load::near(stored(NvmWriter::NonTemporal), bytes);
    let lines = vec![
        reads("plain", |bytes| at_any_8(plain(bytes)))?,
        reads("+1 align", |bytes| aligned(plain(bytes)))?,
        reads("+2 ntstore", |bytes| aligned(streamed(bytes)))?,
        reads("+3 pad", |bytes| streamed(bytes).padded(64))?,
    ];
    let claims = vec![
        Claim::new("plain stores, aligned, 16 B", "", lines[1].at(16.0), 1.0),
        Claim::new("plain stores, aligned, 64 B", "", lines[1].at(64.0), 1.0),
        Claim::new("writes without a read, +3 pad, 16 B", "", 1.0 - lines[3].at(16.0), 1.0),
        Claim::new("writes without a read, +3 pad, 200 B", "", 1.0 - lines[3].at(200.0), 1.0),
    ];
    Ok(PaperFigure {
        id: "13b",
        title: "Reads a two-sided write",
        across: "bytes",
        up: "NReadReq a message",
        lines,
        claims,
        remarks: vec![RANDOM, "The paper's 100 % is one read for each written line."],
    })
}
