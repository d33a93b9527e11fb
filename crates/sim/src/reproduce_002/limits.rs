//! One DIMM, and DDIO: Figures 10 and 11 of 002 §4.1.

use super::access::{LIMIT, PEAK_GBPS, WRITE};
use super::scene::{Addresses, Load, Path, ServerWork};
use crate::fabric::NvmWriter;
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use farside_fabric::FabricError;

/// Bandwidth of one DIMM (002 Figure 10).
const DIMM_GBPS: f64 = 16.0;

/// Returns Figure 10a: threads that write to one DIMM.
pub(super) fn threads_at_one_dimm() -> Result<PaperFigure, FabricError> {
    let mut line = PaperLine::new("two-sided");
    for threads in [1, 2, 4, 8, 12, 16, 20] {
        let path = Path::TwoSided(threads, ServerWork::Write(NvmWriter::NonTemporal));
        let load =
            Load { addresses: Addresses::OneDimm, clients: 2 * threads, ..Load::near(path, 2_048) };
        line.points.push((threads as f64, load.run()?.gbps(2_048)));
    }
    let claims = vec![
        Claim::new("4 threads: the limit of a DIMM", "Gb/s", line.at(4.0), DIMM_GBPS),
        Claim::new("20 threads over 4", "", line.at(20.0) / line.at(4.0), 0.63).input(),
    ];
    Ok(PaperFigure {
        id: "10a",
        title: "Two-sided writes of 2,048 B to one DIMM",
        across: "threads",
        up: "Gb/s",
        lines: vec![line],
        claims,
        remarks: vec!["Two clients a thread; own socket, non-temporal stores."],
    })
}

/// Returns Figure 10b: clients that WRITE to one DIMM.
pub(super) fn clients_at_one_dimm() -> Result<PaperFigure, FabricError> {
    let mut line = PaperLine::new("one-sided");
    for clients in [1, 2, 4, 8, 16, 32] {
        let near = Load::near(WRITE, 2_048).without_ddio();
        let load = Load { addresses: Addresses::OneDimm, clients, ..near };
        line.points.push((clients as f64, load.run()?.gbps(2_048)));
    }
    let claims = vec![
        Claim::new("32 clients: the limit of a DIMM", "Gb/s", line.at(32.0), DIMM_GBPS),
        Claim::new("32 clients over 4: no loss", "", line.at(32.0) / line.at(4.0), 1.0),
    ];
    Ok(PaperFigure {
        id: "10b",
        title: "One-sided WRITEs of 2,048 B to one DIMM",
        across: "clients",
        up: "Gb/s",
        lines: vec![line],
        claims,
        remarks: vec!["Own socket, DDIO off, 12 WRITEs in flight a client."],
    })
}

/// Payloads of Figure 11.
const BULK: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Returns the load of one client that writes one payload after the other.
fn bulk(bytes: u32) -> Load {
    let window = u64::from((256 << 10) / bytes).clamp(2, 16);
    Load { addresses: Addresses::Steps, clients: 1, window, ..Load::near(WRITE, bytes) }
}

/// Returns Figure 11a: bandwidth of large WRITEs, DDIO on and off.
pub(super) fn bulk_writes() -> Result<PaperFigure, FabricError> {
    let mut lines: Vec<_> = ["DDIO on", "DDIO off"].map(PaperLine::new).into();
    for bytes in BULK {
        for (line, load) in lines.iter_mut().zip([bulk(bytes), bulk(bytes).without_ddio()]) {
            line.points.push((f64::from(bytes), load.run()?.gbps(bytes)));
        }
    }
    let most = f64::from(1 << 20);
    let limit = Load::dram(LIMIT, 16);
    let (cached, uncached) = (limit.run()?.rate, limit.without_ddio().run()?.rate);
    let claims = vec![
        Claim::new("DDIO on", "Gb/s", lines[0].at(most), 42.0),
        Claim::new("DDIO off", "Gb/s", lines[1].at(most), PEAK_GBPS),
        Claim::new("messages of 16 B, DDIO on", "M/s", cached, 54.0).input(),
        Claim::new("messages of 16 B, DDIO off", "M/s", uncached, 23.0).input(),
    ];
    Ok(PaperFigure {
        id: "11a",
        title: "DDIO and large one-sided WRITEs",
        across: "bytes",
        up: "Gb/s",
        lines,
        claims,
        remarks: vec!["One client, rising addresses, own socket."],
    })
}

/// Returns Figure 11b: write amplification, DDIO on and off.
pub(super) fn amplification() -> Result<PaperFigure, FabricError> {
    let mut lines: Vec<_> = ["DDIO on", "DDIO off"].map(PaperLine::new).into();
    for bytes in BULK {
        for (line, load) in lines.iter_mut().zip([bulk(bytes), bulk(bytes).without_ddio()]) {
            line.points.push((f64::from(bytes), load.run()?.counters.write_amplification()));
        }
    }
    let most = f64::from(1 << 20);
    let claims = vec![
        Claim::new("DDIO on: about 2", "", lines[0].at(most), 2.0).input(),
        Claim::new("DDIO off", "", lines[1].at(most), 1.0),
    ];
    Ok(PaperFigure {
        id: "11b",
        title: "Write amplification of large one-sided WRITEs",
        across: "bytes",
        up: "NMediaWrite / (64 NWriteReq)",
        lines,
        claims,
        remarks: vec!["One client, rising addresses, own socket."],
    })
}
