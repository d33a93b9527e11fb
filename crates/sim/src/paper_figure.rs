//! A figure of a paper that a model reproduces: lines of the model, and numbers of the paper beside those of the model.

/// Deviation above which a number of the paper counts as not reproduced.
pub const DEVIATION_MAX: f64 = 0.2;

/// A figure or table of the paper.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PaperFigure {
    /// Its number in the paper, such as `6a` or `III`, or a section, such as `s5`.
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
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), points: Vec::new() }
    }

    /// Returns the value at this point, NaN if there is none.
    pub(crate) fn at(&self, x: f64) -> f64 {
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
    pub(crate) fn new(name: &str, unit: &'static str, model: f64, paper: f64) -> Self {
        Self::range(name, unit, model, (paper, paper))
    }

    pub(crate) fn range(name: &str, unit: &'static str, model: f64, paper: (f64, f64)) -> Self {
        Self { name: name.to_owned(), unit, model, paper, input: false, reason: "" }
    }

    /// A number from which a parameter of the profile comes.
    pub(crate) fn input(self) -> Self {
        Self { input: true, ..self }
    }

    /// A number that the model may not reproduce, and why.
    pub(crate) fn because(self, reason: &'static str) -> Self {
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
