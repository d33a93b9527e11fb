//! Arguments of `farside reproduce`.

use clap::{Args, ValueEnum};
use farside_sim::reproduce_000;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside reproduce                                   what can be reproduced
  farside reproduce 000                               every figure, in about fifteen seconds
  farside reproduce 000 --figure 6                    figures 6a to 6d
  farside reproduce 000 --figure 12 --plot 12.svg     the model's lines as a drawing, too
  farside reproduce 000 --figure III --json | jq '.figures[].claims[] | select(.deviates)'

The figures are a model: programs post work requests to simulated adapters, in virtual time. Nothing is measured on
hardware. Programs of figures 12 to 19 are the applications as the paper describes them; the lines named Farside post
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
}

fn figure(name: &str) -> Result<String, String> {
    match reproduce_000::named(name).is_empty() {
        true => Err(format!("no such figure; there are {}", reproduce_000::FIGURES.join(", "))),
        false => Ok(name.to_owned()),
    }
}
