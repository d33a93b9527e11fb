//! READs and WRITEs of DRAM and NVM, one-sided and two-sided: Figures 4 to 7 of 002 §3.

use super::scene::{Load, Outcome, Path, ServerWork};
use crate::fabric::{NvmWriter, OPTANE_NVM};
use crate::paper_figure::{Claim, PaperFigure, PaperLine};
use crate::reproduce_000::scene::Verb;
use farside_fabric::FabricError;

/// Threads of the server: two for each of ten cores (002 Table 2, §4.1).
pub(super) const SERVER_THREADS: usize = 20;
/// Payloads of the diagrams of rates, and of those of bandwidths.
const SMALL: [u32; 4] = [16, 64, 128, 256];
const LARGE: [u32; 4] = [256, 512, 1_024, 2_048];
/// 100 Gb/s: what the paper divides bandwidths by (002 §3).
pub(super) const PEAK_GBPS: f64 = 100.0;

/// One of two diagrams of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Diagram {
    /// Rates of small payloads.
    Rates,
    /// Bandwidths of large payloads.
    Bandwidths,
}

impl Diagram {
    const fn payloads(self) -> [u32; 4] {
        match self {
            Self::Rates => SMALL,
            Self::Bandwidths => LARGE,
        }
    }

    const fn up(self) -> &'static str {
        match self {
            Self::Rates => "M/s",
            Self::Bandwidths => "Gb/s",
        }
    }

    fn value(self, outcome: &Outcome, bytes: u32) -> f64 {
        match self {
            Self::Rates => outcome.rate,
            Self::Bandwidths => outcome.gbps(bytes),
        }
    }

    /// Returns a line of that load.
    fn line(self, name: &str, load: impl Fn(u32) -> Load) -> Result<PaperLine, FabricError> {
        let mut line = PaperLine::new(name);
        for bytes in self.payloads() {
            let outcome = load(bytes).run()?;
            line.points.push((f64::from(bytes), self.value(&outcome, bytes)));
        }
        Ok(line)
    }
}

/// WRITE.
pub(super) const WRITE: Path = Path::OneSided(Verb::Write);
/// READ.
const READ: Path = Path::OneSided(Verb::Read);

/// Messages of which the server copies the payload with these stores.
pub(super) const fn stored(writer: NvmWriter) -> Path {
    Path::TwoSided(SERVER_THREADS, ServerWork::Write(writer))
}

/// Messages that the server answers at once.
pub(super) const LIMIT: Path = Path::TwoSided(SERVER_THREADS, ServerWork::Nothing);

/// Returns the one-sided WRITE with H1, H3, and H5 or H6.
pub(super) fn optimized_write(bytes: u32) -> Load {
    let load = Load::near(WRITE, bytes).without_ddio();
    load.padded(if bytes < 256 { 64 } else { 256 })
}

/// Returns the two-sided write with H1, H4, and H5 or H7.
pub(super) fn optimized_store(bytes: u32) -> Load {
    Load::near(stored(NvmWriter::NonTemporal), bytes).padded(if bytes < 256 { 64 } else { 256 })
}

const TWO_SIDED_READ: Path = Path::TwoSided(SERVER_THREADS, ServerWork::Read);

/// Why DDIO costs more with few large blocks than in the paper.
pub(super) const UNEVEN: &str = "The cache of the model holds 32 blocks of 2,048 B, which are unevenly spread over the six DIMMs, and the fullest DIMM stops the others. With 512 B the model has the paper's bandwidth.";

/// What is the same in all figures.
pub(super) const RANDOM: &str =
    "40 client threads with 12 requests each, random addresses in 64 MiB of one socket.";

/// Returns Figure 4: one-sided READs.
pub(super) fn reads(id: &'static str, diagram: Diagram) -> Result<PaperFigure, FabricError> {
    let lines = vec![
        diagram.line("DRAM", |bytes| Load::dram(READ, bytes))?,
        diagram.line("NVM", |bytes| Load::near(READ, bytes))?,
    ];
    let share = |x| lines[1].at(x) / lines[0].at(x);
    let claims = match diagram {
        Diagram::Rates => vec![Claim::new("NVM over DRAM, 16 B: negligible", "", share(16.0), 1.0)],
        Diagram::Bandwidths => vec![Claim::new("NVM over DRAM, 2,048 B", "", share(2_048.0), 0.99)],
    };
    let up = diagram.up();
    let remarks = vec![RANDOM];
    Ok(PaperFigure { id, title: "One-sided READ", across: "bytes", up, lines, claims, remarks })
}

/// Returns Figure 5: two-sided reads.
pub(super) fn messages_read(
    id: &'static str,
    diagram: Diagram,
) -> Result<PaperFigure, FabricError> {
    let lines = vec![
        diagram.line("LIMIT", |bytes| Load::dram(LIMIT, bytes))?,
        diagram.line("DRAM", |bytes| Load::dram(TWO_SIDED_READ, bytes))?,
        diagram.line("NVM", |bytes| Load::near(TWO_SIDED_READ, bytes))?,
    ];
    let share = |x| lines[2].at(x) / lines[1].at(x);
    let claims = match diagram {
        Diagram::Rates => vec![Claim::new("NVM over DRAM, 16 B", "", share(16.0), 0.59).because(
            "The model's threads take 430 ns for a message and its page, and load once, in 271 or 82 ns; the paper's ratio would need 190 ns, or several loads.",
        )],
        Diagram::Bandwidths => vec![Claim::new("NVM over DRAM, 2,048 B", "", share(2_048.0), 0.9)],
    };
    Ok(PaperFigure {
        id,
        title: "Two-sided read",
        across: "bytes",
        up: diagram.up(),
        lines,
        claims,
        remarks: vec![RANDOM, "LIMIT: the answer has 16 B, and nothing is read."],
    })
}

/// Returns Figure 6: one-sided WRITEs.
pub(super) fn writes(id: &'static str, diagram: Diagram) -> Result<PaperFigure, FabricError> {
    let lines = vec![
        diagram.line("DRAM", |bytes| Load::dram(WRITE, bytes))?,
        diagram.line("NVM", |bytes| Load::baseline(WRITE, bytes))?,
        diagram.line("NVM-OPT", optimized_write)?,
    ];
    let [dram, plain, optimized] = &lines[..] else {
        return Err(FabricError::Unknown("line"));
    };
    let claims = match diagram {
        Diagram::Rates => vec![
            Claim::new("NVM, 16 B", "M/s", plain.at(16.0), 15.0).input(),
            Claim::new("NVM-OPT, 16 B", "M/s", optimized.at(16.0), 45.0),
            Claim::new(
                "NVM-OPT, 16 B, share of 52 M/s",
                "",
                optimized.at(16.0) / OPTANE_NVM.writes_per_us(),
                0.87,
            ),
            Claim::new("DRAM, 256 B", "M/s", dram.at(256.0), 37.0),
        ],
        Diagram::Bandwidths => {
            let share = plain.at(2_048.0) / PEAK_GBPS;
            vec![
                Claim::new("NVM, 2,048 B, share of 100 Gb/s", "", share, 0.38)
                    .input()
                    .because(UNEVEN),
            ]
        }
    };
    Ok(PaperFigure {
        id,
        title: "One-sided WRITE",
        across: "bytes",
        up: diagram.up(),
        lines,
        claims,
        remarks: vec![
            RANDOM,
            "NVM: other socket, DDIO on. NVM-OPT: H1, H3, and H6 below 256 B, H5 from there.",
        ],
    })
}

/// Returns Figure 7: two-sided writes.
pub(super) fn messages_written(
    id: &'static str,
    diagram: Diagram,
) -> Result<PaperFigure, FabricError> {
    let plain = stored(NvmWriter::Store);
    let lines = vec![
        diagram.line("LIMIT", |bytes| Load::dram(LIMIT, bytes))?,
        diagram.line("DRAM", |bytes| Load::dram(plain, bytes))?,
        diagram.line("NVM", |bytes| Load::baseline(plain, bytes))?,
        diagram.line("NVM-OPT", optimized_store)?,
    ];
    let claims = match diagram {
        Diagram::Rates => {
            vec![Claim::new("LIMIT, 16 B", "M/s", lines[0].at(16.0), 54.0).input()]
        }
        Diagram::Bandwidths => {
            let share = lines[2].at(2_048.0) / PEAK_GBPS;
            vec![Claim::new("NVM, 2,048 B, share of 100 Gb/s", "", share, 0.125).because(
                "The paper's two texts differ: 12.5 % of 100 Gb/s here, 8 Gb/s in its section 4.1 (Figure 9b), where the model agrees.",
            )]
        }
    };
    Ok(PaperFigure {
        id,
        title: "Two-sided write",
        across: "bytes",
        up: diagram.up(),
        lines,
        claims,
        remarks: vec![
            RANDOM,
            "NVM: plain stores to the other socket. NVM-OPT: H1, H4, and H7 below 256 B, H5 from there.",
        ],
    })
}
