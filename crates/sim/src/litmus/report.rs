//! Comparison of observed outcomes with allowed ones.

use super::program::{Condition, Litmus, LitmusOutcome, ModelVerdict};
use super::reference::{MemoryModel, outcomes};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// Number of observations of each outcome.
pub type Observations = BTreeMap<LitmusOutcome, u64>;

/// One outcome of a test at one height.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The outcome.
    pub outcome: LitmusOutcome,
    /// Number of observations.
    pub seen: u64,
    /// The verdict of the memory model.
    pub verdict: ModelVerdict,
    /// Whether it is the witness of the test.
    pub witness: bool,
}

/// The report of a test at one height: every outcome that is allowed or was observed.
///
/// `Display` prints a table; [`json_lines`](Self::json_lines) returns the same as JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LitmusReport {
    /// The test.
    pub litmus: &'static Litmus,
    /// `machine`, `node`, `wire`, ...
    pub height: String,
    /// The memory model that the test must satisfy.
    pub model: MemoryModel,
    /// One row per outcome.
    pub rows: Vec<Row>,
}

impl LitmusReport {
    /// Compares observations with all outcomes that `model` allows.
    pub fn new(
        litmus: &'static Litmus,
        height: impl Into<String>,
        model: MemoryModel,
        observations: &Observations,
    ) -> Self {
        let allowed = outcomes(litmus, model);
        let mut all: BTreeMap<&LitmusOutcome, u64> = allowed.iter().map(|one| (one, 0)).collect();
        all.extend(observations.iter().map(|(outcome, seen)| (outcome, *seen)));
        let row = |(outcome, seen): (&LitmusOutcome, u64)| Row {
            outcome: outcome.clone(),
            seen,
            verdict: if allowed.contains(outcome) {
                ModelVerdict::Allowed
            } else {
                ModelVerdict::Forbidden
            },
            witness: litmus.is_witness(outcome),
        };
        Self { litmus, height: height.into(), model, rows: all.into_iter().map(row).collect() }
    }

    /// Returns the number of completed runs.
    pub fn runs(&self) -> u64 {
        self.rows.iter().map(|row| row.seen).sum()
    }

    /// Returns the number of observations of the witness.
    pub fn witness_seen(&self) -> u64 {
        let witnesses = self.rows.iter().filter(|row| row.witness);
        witnesses.map(|row| row.seen).sum()
    }

    /// Returns the witness as text.
    pub fn witness(&self) -> String {
        witness_text(self.litmus.witness)
    }

    /// Returns the observed outcomes that are forbidden.
    pub fn forbidden_seen(&self) -> impl Iterator<Item = &Row> {
        let forbidden = |row: &&Row| row.verdict == ModelVerdict::Forbidden && row.seen > 0;
        self.rows.iter().filter(forbidden)
    }

    /// Returns the allowed outcomes that were not observed: a hint that the runs vary too little.
    pub fn allowed_unseen(&self) -> impl Iterator<Item = &Row> {
        let unseen = |row: &&Row| row.verdict == ModelVerdict::Allowed && row.seen == 0;
        self.rows.iter().filter(unseen)
    }

    /// Returns the report if no forbidden outcome was observed.
    ///
    /// # Errors
    /// The table, if a forbidden outcome was observed.
    pub fn holds(self) -> Result<Self, String> {
        if self.forbidden_seen().next().is_some() {
            return Err(self.to_string());
        }
        Ok(self)
    }

    /// Returns one JSON object per line: `test`, `height`, `model`, `outcome`, `seen`, `verdict`, `witness`. The
    /// first line is the witness as a whole, since a forbidden one has no other line.
    pub fn json_lines(&self) -> String {
        let mut out = String::new();
        let model = match self.model {
            MemoryModel::Pso => "pso",
            MemoryModel::Tso => "tso",
        };
        let mut line = |outcome: &str, seen: u64, verdict: ModelVerdict, witness: bool| {
            let _ = writeln!(
                out,
                "{{\"test\":\"{}\",\"height\":\"{}\",\"model\":\"{model}\",\"outcome\":\"{outcome}\",\
                 \"seen\":{seen},\"verdict\":\"{verdict}\",\"witness\":{witness}}}",
                self.litmus.name, self.height,
            );
        };
        let witness = witness_text(self.litmus.witness);
        line(&witness, self.witness_seen(), self.litmus.verdict(self.model), true);
        for row in &self.rows {
            line(&row.outcome.to_string(), row.seen, row.verdict, row.witness);
        }
        out
    }
}

fn witness_text(conditions: &[Condition]) -> String {
    let one = |condition: &Condition| match *condition {
        Condition::Register(register, value) => format!("r{register}={value}"),
        Condition::Memory(variable, value) => {
            format!("{}={value}", super::program::name_of(variable))
        }
    };
    conditions.iter().map(one).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for LitmusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} at height {}, {:?}", self.litmus, self.height, self.model)?;
        writeln!(
            f,
            "  witness {:<36} {:>9} seen  {}",
            witness_text(self.litmus.witness),
            self.witness_seen(),
            self.litmus.verdict(self.model),
        )?;
        for row in &self.rows {
            let mark = match (row.verdict, row.seen) {
                (ModelVerdict::Forbidden, _) => "FORBIDDEN",
                (ModelVerdict::Allowed, 0) => "allowed, never seen",
                (ModelVerdict::Allowed, _) => "allowed",
            };
            let star = if row.witness { '*' } else { ' ' };
            writeln!(f, "  {star} {:<42} {:>9} seen  {mark}", row.outcome.to_string(), row.seen)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::CATALOG;
    use super::*;

    fn sb_fences() -> &'static Litmus {
        CATALOG.iter().find(|litmus| litmus.name == "SB+fences").unwrap()
    }

    fn outcome(registers: [u64; 2]) -> LitmusOutcome {
        LitmusOutcome { registers: registers.to_vec(), memory: vec![1, 1] }
    }

    #[test]
    fn forbidden_outcome_fails_and_unseen_outcome_is_listed() {
        let mut seen = Observations::from([(outcome([1, 1]), 5), (outcome([0, 1]), 2)]);
        let report = LitmusReport::new(sb_fences(), "test", MemoryModel::Pso, &seen);
        let report = report.holds().expect("nothing forbidden");
        assert_eq!(report.runs(), 7);
        assert!(report.allowed_unseen().map(|row| &row.outcome).eq([&outcome([1, 0])]));
        seen.insert(outcome([0, 0]), 1);
        let report = LitmusReport::new(sb_fences(), "test", MemoryModel::Pso, &seen);
        assert_eq!(report.witness_seen(), 1);
        let text = report.holds().expect_err("r0=0 r1=0 is forbidden");
        assert!(text.contains("FORBIDDEN"), "{text}");
    }

    #[test]
    fn json_lines_have_all_fields() {
        let seen = Observations::from([(outcome([1, 1]), 5)]);
        let lines = LitmusReport::new(sb_fences(), "test", MemoryModel::Pso, &seen).json_lines();
        assert!(lines.starts_with(
            "{\"test\":\"SB+fences\",\"height\":\"test\",\"model\":\"pso\",\"outcome\":\"r0=0 r1=0\",\
             \"seen\":0,\"verdict\":\"forbidden\",\"witness\":true}\n"
        ));
        assert_eq!(lines.lines().count(), 4);
    }
}
