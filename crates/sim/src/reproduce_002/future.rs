//! The next generations of 002 §5, and memory behind CXL.

use super::access::{RANDOM, optimized_write};
use super::scene::Load;
use crate::fabric::{ADAPTERS_200G, CXL_NVM, NEXT_NVM, NvmProfile, OPTANE_NVM};
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use farside_fabric::FabricError;

const PAYLOADS: [u32; 4] = [64, 256, 1_024, 2_048];

/// Returns a WRITE with H1 to H6 to that memory, with faster adapters or those of the paper.
fn write(bytes: u32, nvm: NvmProfile, is_fast: bool) -> Load {
    let load = optimized_write(bytes);
    let hardware = if is_fast { ADAPTERS_200G } else { load.hardware };
    Load { hardware, ..load }.with_nvm(nvm)
}

/// Returns §5: the bandwidth of WRITEs on what the paper expects.
pub(super) fn generations() -> Result<PaperFigure, FabricError> {
    let off = |nvm| NvmProfile { ddio: false, ..nvm };
    let variants = [
        ("Optane", off(OPTANE_NVM), false),
        ("next NVM", off(NEXT_NVM), false),
        ("next NVM, DDIO", NEXT_NVM, false),
        ("Optane, 200G", off(OPTANE_NVM), true),
        ("next NVM, 200G", off(NEXT_NVM), true),
        ("CXL, 200G", off(CXL_NVM), true),
    ];
    let mut lines = Vec::new();
    for (name, nvm, is_fast) in variants {
        let mut line = PaperLine::new(name);
        for bytes in PAYLOADS {
            let outcome = write(bytes, nvm, is_fast).run()?;
            line.points.push((f64::from(bytes), outcome.gbps(bytes)));
        }
        lines.push(line);
    }
    let peak = NEXT_NVM.write_gbps() / OPTANE_NVM.write_gbps();
    let claims = vec![Claim::new("peak of the next NVM over Optane", "", peak, 1.25).input()];
    Ok(PaperFigure {
        id: "s5",
        title: "One-sided WRITEs with H1 to H6, next generations",
        across: "bytes",
        up: "Gb/s",
        lines,
        claims,
        remarks: vec![
            RANDOM,
            "The paper gives no results for these. DDIO off except where named.",
            "Caches in the persistent domain keep what DDIO has cached, and still evict it at random.",
            "CXL: 200 ns, 32 GB/s, lines of 64 B; not from the paper.",
        ],
    })
}
