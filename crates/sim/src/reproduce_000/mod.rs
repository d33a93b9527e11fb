//! Figures and tables of paper 000 (Ma et al., *Thinking More about RDMA Memory Semantics*, IEEE Cluster 2020) in
//! virtual time, on the simulated adapters of [`CONNECTX3_IB`](crate::fabric::CONNECTX3_IB), beside the numbers that
//! the paper's text and tables give. **A model, not a measurement.**
//!
//! Programs post raw work requests and are charged by [`E5_2640_V2`](crate::fabric::E5_2640_V2). The numbers of the
//! paper's diagrams are not available, so its text and tables are compared.
//!
//! | figure | load |
//! | --- | --- |
//! | 1 | one WRITE or READ at a time; rates with eight queue pairs |
//! | 3, 4, 5 | one batch at a time and thread: SP copies and posts one WRITE, Doorbell posts a list, SGL posts one WRITE of many slices |
//! | 6 | eight queue pairs, addresses in steps or at random at each end |
//! | 8 | one WRITE at a time; a block is written after `theta` copies into it |
//! | Table III | one request at a time for latencies; eight queue pairs for rates |
//! | 10 | one machine a client; a lock is taken and released, a number is taken |
//!
//! Not reproduced: Figures 12, 13 and 15 to 19 (applications), and everything that the paper measures in local memory
//! (Figure 6c, local locks and vector IO), since processor caches are not modelled.

mod access;
mod atomics;
mod scene;
mod sockets;
mod vector;

pub use farside_fabric::FabricError;

/// Deviation above which a number of the paper counts as not reproduced.
pub const DEVIATION_MAX: f64 = 0.2;

/// The figures and tables, in the order of the paper.
pub const FIGURES: [&str; 15] =
    ["1", "3a", "3b", "4", "5", "I", "6a", "6b", "6c", "6d", "8", "II", "III", "10a", "10b"];

/// Returns the figures that a name means: one of [`FIGURES`], or the number of those with letters, as `6`; none if
/// there is no such figure.
pub fn named(name: &str) -> Vec<&'static str> {
    let lettered = |id: &str| id.strip_suffix(|c: char| c.is_ascii_lowercase()) == Some(name);
    FIGURES.into_iter().filter(|id| *id == name || lettered(id)).collect()
}

/// Figures of the paper that are not reproduced, and why.
pub const NOT_REPRODUCED: &str =
    "12, 13, 15 to 19 (applications); 2, 7, 9, 11 and 14 are drawings without measurements";

/// A figure or table of the paper.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PaperFigure {
    /// Its number in the paper, such as `6a` or `III`.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Label of the first column.
    pub across: &'static str,
    /// What the other columns contain, with the unit.
    pub up: &'static str,
    /// Values at points along `across`.
    pub lines: Vec<PaperLine>,
    /// Numbers that the paper gives, beside the model's.
    pub claims: Vec<Claim>,
    /// Remarks, such as what is not modelled.
    pub remarks: Vec<&'static str>,
}

/// A line of a figure: points (x, y).
#[derive(Clone, PartialEq, Debug)]
pub struct PaperLine {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

impl PaperLine {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), points: Vec::new() }
    }

    /// Returns the value at this point, NaN if there is none.
    fn at(&self, x: f64) -> f64 {
        let point = self.points.iter().find(|point| (point.0 - x).abs() < 1e-9);
        point.map_or(f64::NAN, |point| point.1)
    }
}

/// A number of the paper beside that of the model.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// What is compared.
    pub name: String,
    /// Its unit; empty for a ratio.
    pub unit: &'static str,
    /// The value of the model.
    pub model: f64,
    /// The lowest and highest value of the paper; equal for a single one.
    pub paper: (f64, f64),
    /// Whether a parameter of the profile comes from this number: it shows nothing then.
    pub input: bool,
    /// Why the model deviates; empty if it does not.
    pub reason: &'static str,
}

impl Claim {
    fn new(name: &str, unit: &'static str, model: f64, paper: f64) -> Self {
        Self::range(name, unit, model, (paper, paper))
    }

    fn range(name: &str, unit: &'static str, model: f64, paper: (f64, f64)) -> Self {
        Self { name: name.to_owned(), unit, model, paper, input: false, reason: "" }
    }

    /// A number from which a parameter of the profile comes.
    fn input(self) -> Self {
        Self { input: true, ..self }
    }

    /// A number that the model may not reproduce, and why.
    fn because(self, reason: &'static str) -> Self {
        let reason = if self.deviates() { reason } else { "" };
        Self { reason, ..self }
    }

    /// Returns the deviation from the paper as a share of its value, zero within its range.
    pub fn deviation(&self) -> f64 {
        let (low, high) = self.paper;
        if self.model < low {
            self.model / low - 1.0
        } else if self.model > high {
            self.model / high - 1.0
        } else {
            0.0
        }
    }

    /// Whether it deviates by more than [`DEVIATION_MAX`].
    pub fn deviates(&self) -> bool {
        self.deviation().is_nan() || self.deviation().abs() > DEVIATION_MAX
    }
}

/// Returns a figure by its id, one of [`FIGURES`]; `None` for others. Deterministic: a function of the profile.
///
/// # Errors
/// None that a caller causes: a study failed on the simulated fabric, which is a defect of it.
pub fn figure(id: &str) -> Result<Option<PaperFigure>, FabricError> {
    Ok(Some(match id {
        "1" => access::throttling()?,
        "3a" => vector::payloads("3a", 4)?,
        "3b" => vector::payloads("3b", 16)?,
        "4" => vector::batches()?,
        "5" => vector::threads()?,
        "I" => vector::judgement(),
        "6a" => access::patterns("6a", scene::Verb::Write)?,
        "6b" => access::patterns("6b", scene::Verb::Read)?,
        "6c" => access::local(),
        "6d" => access::regions()?,
        "8" => access::consolidation()?,
        "II" => sockets::memory(),
        "III" => sockets::placements()?,
        "10a" => atomics::locks()?,
        "10b" => atomics::sequencers()?,
        _ => return Ok(None),
    }))
}
