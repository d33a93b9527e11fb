//! Arguments of `farside reproduce`.

use clap::{Args, ValueEnum};
use farside_sim::fabric::{CONNECTX3_IB, HardwareProfile, OPTANE_CX5};
use farside_sim::paper_figure::PaperFigure;
use farside_sim::{reproduce_000, reproduce_002};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside reproduce                                   what can be reproduced
  farside reproduce 000                               every figure, in about fifteen seconds
  farside reproduce 000 --figure 6                    figures 6a to 6d
  farside reproduce 000 --figure 12 --plot 12.svg     the model's lines as a drawing, too
  farside reproduce 000 --figure III --json | jq '.figures[].claims[] | select(.deviates)'
  farside reproduce 002                               persistent memory: figures 4 to 13, tables, sections
  farside reproduce 002 --figure 8                    figures 8a and 8b: what each hint adds
  farside reproduce 002 --figure s5                   section 5: next generations, and memory behind CXL

The figures are a model: programs post work requests to simulated adapters, in virtual time. Nothing is measured on
hardware. Programs of 000, figures 12 to 19, are the applications as the paper describes them; the lines named Farside post
the requests of the applications of this project. A number that deviates by more than 20 % from the paper is marked, with the reason; a number that is an input
of the model's hardware profile is marked too, since it shows nothing.")]
pub(crate) struct ReproduceArguments {
    /// The paper
    #[arg(value_enum)]
    pub(crate) paper: Option<Paper>,
    /// Only this figure or table, such as 4, 6a or III
    #[arg(long, value_name = "NUMBER", requires = "paper", value_parser = figure)]
    pub(crate) figure: Option<String>,
    /// Draw the model's lines, one chart a figure
    #[arg(long, value_name = "FILE.svg", requires = "paper")]
    pub(crate) plot: Option<PathBuf>,
}

/// A paper with figures to reproduce.
#[derive(Clone, Copy, ValueEnum, Debug)]
pub(crate) enum Paper {
    /// Ma et al., Thinking More about RDMA Memory Semantics, Cluster 2020
    #[value(name = "000")]
    MemorySemantics,
    /// Wei et al., Characterizing and Optimizing Remote Persistent Memory with RDMA and NVM, USENIX ATC 2021
    #[value(name = "002")]
    PersistentMemory,
}

impl Paper {
    /// All papers.
    pub(crate) const ALL: [Self; 2] = [Self::MemorySemantics, Self::PersistentMemory];

    /// Returns its number.
    pub(crate) const fn number(self) -> &'static str {
        match self {
            Self::MemorySemantics => "000",
            Self::PersistentMemory => "002",
        }
    }

    /// Returns its number, authors, title and venue.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::MemorySemantics => {
                "000: Ma et al., Thinking More about RDMA Memory Semantics, IEEE Cluster 2020"
            }
            Self::PersistentMemory => {
                "002: Wei et al., Characterizing and Optimizing Remote Persistent Memory with RDMA and NVM, USENIX ATC 2021"
            }
        }
    }

    /// Returns the name of the model's hardware profile, and the profile.
    pub(crate) const fn profile(self) -> (&'static str, HardwareProfile) {
        match self {
            Self::MemorySemantics => ("CONNECTX3_IB", CONNECTX3_IB),
            Self::PersistentMemory => ("OPTANE_CX5", OPTANE_CX5),
        }
    }

    /// Returns the figures that can be reproduced.
    pub(crate) const fn figures(self) -> &'static [&'static str] {
        match self {
            Self::MemorySemantics => &reproduce_000::FIGURES,
            Self::PersistentMemory => &reproduce_002::FIGURES,
        }
    }

    /// Returns what is not reproduced, and why.
    pub(crate) const fn not_reproduced(self) -> &'static str {
        match self {
            Self::MemorySemantics => reproduce_000::NOT_REPRODUCED,
            Self::PersistentMemory => reproduce_002::NOT_REPRODUCED,
        }
    }

    /// Returns the figures that a name means.
    pub(crate) fn named(self, name: &str) -> Vec<&'static str> {
        match self {
            Self::MemorySemantics => reproduce_000::named(name),
            Self::PersistentMemory => reproduce_002::named(name),
        }
    }

    /// Returns a figure by its id.
    pub(crate) fn figure(self, id: &str) -> Result<Option<PaperFigure>, String> {
        match self {
            Self::MemorySemantics => reproduce_000::figure(id),
            Self::PersistentMemory => reproduce_002::figure(id),
        }
        .map_err(|e| format!("the model: {e}"))
    }
}

fn figure(name: &str) -> Result<String, String> {
    if Paper::ALL.iter().any(|paper| !paper.named(name).is_empty()) {
        return Ok(name.to_owned());
    }
    let all = Paper::ALL.map(|paper| format!("{}: {}", paper.number(), paper.figures().join(", ")));
    Err(format!("no such figure; there are {}", all.join("; ")))
}
