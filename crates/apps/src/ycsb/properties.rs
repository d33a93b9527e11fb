//! YCSB's property files: Java's format (`key=value`, `key: value`, `key value`, `#` and `!` comments, a
//! backslash continues the line), and YCSB's names.

use super::workload::{FieldLength, NO_SCANS, RequestDistribution, Workload};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Properties of YCSB without a meaning here: they configure other stores, or YCSB's own reports.
const WITHOUT_EFFECT: &[&str] = &[
    "basicdb.verbose",
    "columnfamily",
    "core_workload_insertion_keep_going_on_error",
    "core_workload_insertion_retry_interval",
    "core_workload_insertion_retry_limit",
    "dataintegrity",
    "db",
    "discardscannedrecord",
    "dotransactions",
    "exporter",
    "exportfile",
    "fieldlengthhistogram",
    "fieldnameprefix",
    "hdrhistogram.percentiles",
    "histogram.buckets",
    "label",
    "latencytrackederrors",
    "maxscanlength",
    "maxscanrate",
    "measurement.histogram.verbose",
    "measurement.interval",
    "measurement.raw.output_file",
    "measurement.trackjvm",
    "measurementtype",
    "minscanlength",
    "readallfieldsbyname",
    "reportlatencyforeacherror",
    "scanlengthdistribution",
    "scanoptimelimit",
    "status",
    "status.interval",
    "table",
    "timeseries.granularity",
];

/// The workload of a property file, and the keys that it did not use.
#[derive(Clone, PartialEq, Debug)]
pub struct Parsed {
    /// The workload.
    pub workload: Workload,
    /// Keys that YCSB's core workload does not define, with their lines.
    pub unknown: Vec<(usize, String)>,
    /// Keys that YCSB defines and this benchmark does not use, with their lines.
    pub without_effect: Vec<(usize, String)>,
}

/// A property with an unusable value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PropertyError {
    /// Its line in the file, from 1.
    pub line: usize,
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The expected value, or why this one is invalid.
    pub wanted: String,
}

impl fmt::Display for PropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, key, value, wanted } = self;
        write!(f, "line {line}: {key}={value}: {wanted}")
    }
}

impl std::error::Error for PropertyError {}

impl Workload {
    /// Parses the workload in a property file; missing properties have YCSB's defaults.
    ///
    /// # Errors
    /// The first property with a bad value, in file order; unknown keys are no errors.
    pub fn from_properties(text: &str) -> Result<Parsed, PropertyError> {
        let mut file = File::read(text);
        let workload = file.workload()?;
        let left = file.properties.into_iter().map(|(key, property)| (property.line, key));
        let (mut without_effect, mut unknown): (Vec<_>, Vec<_>) =
            left.partition(|(_, key)| WITHOUT_EFFECT.contains(&key.as_str()));
        without_effect.sort();
        unknown.sort();
        Ok(Parsed { workload, unknown, without_effect })
    }
}

struct Property {
    line: usize,
    value: String,
}

/// The properties of a file that were not taken yet; the last of a key given twice.
struct File {
    properties: BTreeMap<String, Property>,
    /// The first error so far; the properties are taken in another order than the file's.
    error: Option<PropertyError>,
}

impl File {
    fn read(text: &str) -> Self {
        let mut properties = BTreeMap::new();
        for (line, logical) in logical_lines(text) {
            let (key, value) = split_property(&logical);
            properties.insert(key, Property { line, value });
        }
        Self { properties, error: None }
    }

    fn workload(&mut self) -> Result<Workload, PropertyError> {
        let defaults = Workload::default();
        self.check_class();
        let records = self.number("recordcount", defaults.records, 1..=u64::MAX >> 16);
        let insert_start = self.number("insertstart", 0, 0..=records - 1);
        let mut workload = Workload {
            records,
            operations: self.number("operationcount", defaults.operations, 0..=u64::MAX),
            insert_start,
            insert_count: self.number(
                "insertcount",
                records - insert_start,
                1..=records - insert_start,
            ),
            fields: self.number("fieldcount", 10, 1..=10_000) as u32,
            field_length: self.field_length(),
            read_all_fields: self.truth("readallfields", true),
            write_all_fields: self.truth("writeallfields", false),
            requests: self.requests(),
            zipfian_constant: self.decimal("zipfianconstant", defaults.zipfian_constant, |c| {
                (0.01..=0.9999).contains(&c)
            }),
            ordered_inserts: self.choice("insertorder", &["hashed", "ordered"]) == 1,
            zero_padding: self.number("zeropadding", 1, 0..=1_000) as usize,
            execution_seconds_max: self.number("maxexecutiontime", 0, 0..=u64::MAX >> 32),
            threads: self.number("threadcount", 1, 1..=1_024) as u32,
            ..defaults
        };
        let target = self.number("target", 0, 0..=u64::MAX);
        if target > 0 {
            self.refuse("target", "throttling is not supported: leave it out or set it to 0");
        }
        self.properties.remove("target");
        self.proportions(&mut workload);
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(workload),
        }
    }

    fn check_class(&mut self) {
        let class = self.properties.get("workload").map(|property| property.value.clone());
        if class.is_some_and(|class| !class.ends_with(".CoreWorkload")) {
            self.refuse("workload", "only site.ycsb.workloads.CoreWorkload can run");
        }
        self.properties.remove("workload");
    }

    fn proportions(&mut self, workload: &mut Workload) {
        let mut share = |key, usual| self.decimal(key, usual, |share| (0.0..=1e9).contains(&share));
        let proportions = &mut workload.proportions;
        proportions.read = share("readproportion", proportions.read);
        proportions.update = share("updateproportion", proportions.update);
        proportions.insert = share("insertproportion", 0.0);
        proportions.read_modify_write = share("readmodifywriteproportion", 0.0);
        let scans = share("scanproportion", 0.0);
        if scans > 0.0 {
            self.refuse("scanproportion", NO_SCANS);
        }
        let all = proportions.read
            + proportions.update
            + proportions.insert
            + proportions.read_modify_write;
        if all <= 0.0 && workload.operations > 0 {
            self.refuse("readproportion", "all proportions are zero: give one of them a share");
        }
        for key in ["read", "update", "insert", "scan", "readmodifywrite"] {
            self.properties.remove(&format!("{key}proportion"));
        }
    }

    fn field_length(&mut self) -> FieldLength {
        let max = self.number("fieldlength", 100, 1..=1 << 20) as u32;
        let min = self.number("minfieldlength", 1, 1..=u64::from(max)) as u32;
        match self.choice("fieldlengthdistribution", &["constant", "uniform", "zipfian"]) {
            0 => FieldLength::Constant(max),
            1 => FieldLength::Uniform(min, max),
            _ => FieldLength::Zipfian(min, max),
        }
    }

    fn requests(&mut self) -> RequestDistribution {
        let share = |share: f64| (0.0..=1.0).contains(&share);
        let data = self.decimal("hotspotdatafraction", 0.2, share);
        let operations = self.decimal("hotspotopnfraction", 0.8, share);
        let percentile = self.decimal("exponential.percentile", 95.0, |p| p > 0.0 && p < 100.0);
        let range = self.decimal("exponential.frac", 0.857_142_857_1, |f| f > 0.0 && f <= 1.0);
        let names = ["uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"];
        match self.choice("requestdistribution", &names) {
            0 => RequestDistribution::Uniform,
            1 => RequestDistribution::Zipfian,
            2 => RequestDistribution::Latest,
            3 => RequestDistribution::Hotspot { data, operations },
            4 => RequestDistribution::Exponential { percentile, share: range },
            _ => RequestDistribution::Sequential,
        }
    }

    fn number(&mut self, key: &str, usual: u64, range: std::ops::RangeInclusive<u64>) -> u64 {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        self.value(key, usual, &wanted, |number| range.contains(number))
    }

    fn decimal(&mut self, key: &str, usual: f64, fits: impl Fn(f64) -> bool) -> f64 {
        self.value(key, usual, "a number in the range of its meaning", |number| fits(*number))
    }

    fn truth(&mut self, key: &str, usual: bool) -> bool {
        self.value(key, usual, "true or false", |_| true)
    }

    fn choice(&mut self, key: &str, names: &[&str]) -> usize {
        let wanted = format!("one of {}", names.join(", "));
        let name = self.value(key, names[0].to_owned(), &wanted, |name: &String| {
            names.contains(&name.as_str())
        });
        names.iter().position(|known| **known == *name).unwrap_or(0)
    }

    /// Takes a property; the default if it is missing or bad.
    fn value<T: FromStr>(
        &mut self,
        key: &str,
        usual: T,
        wanted: &str,
        fits: impl Fn(&T) -> bool,
    ) -> T {
        let Some(property) = self.properties.get(key) else {
            return usual;
        };
        match property.value.trim().parse() {
            Ok(value) if fits(&value) => {
                // Proportions and target stay until they have been checked together.
                if !key.ends_with("proportion") && key != "target" {
                    self.properties.remove(key);
                }
                value
            }
            _ => {
                self.refuse(key, wanted);
                usual
            }
        }
    }

    /// Keeps the first error by line.
    fn refuse(&mut self, key: &str, wanted: &str) {
        let (line, value) = match self.properties.get(key) {
            Some(property) => (property.line, property.value.clone()),
            None => (0, String::new()),
        };
        if self.error.as_ref().is_none_or(|error| line < error.line) {
            self.error =
                Some(PropertyError { line, key: key.to_owned(), value, wanted: wanted.to_owned() });
        }
    }
}

/// Lines without comments and blanks, joined where a backslash ends one; each with its first number.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let (number, mut whole) = match open.take() {
            Some(begun) => begun,
            None if line.is_empty() || line.starts_with(['#', '!']) => continue,
            None => (number + 1, String::new()),
        };
        let backslashes = line.bytes().rev().take_while(|byte| *byte == b'\\').count();
        if backslashes % 2 == 1 {
            whole.push_str(&line[..line.len() - 1]);
            open = Some((number, whole));
        } else {
            whole.push_str(line);
            lines.push((number, whole));
        }
    }
    lines.extend(open);
    lines
}

/// Key and value of a line: up to the first `=`, `:` or blank that no backslash protects.
fn split_property(line: &str) -> (String, String) {
    let mut protected = false;
    let end = line.find(|c: char| {
        let ends = !protected && (c == '=' || c == ':' || c.is_whitespace());
        protected = !protected && c == '\\';
        ends
    });
    let (key, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (unescape(key), unescape(value.trim_start()).trim_end().to_owned())
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('u') => {
                let code: String = chars.by_ref().take(4).collect();
                let c = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                out.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::workload::{CoreWorkload, Proportions};
    use super::*;

    fn error(text: &str) -> (usize, String) {
        let error = Workload::from_properties(text).unwrap_err();
        (error.line, error.key)
    }

    /// The settings of YCSB's `workloads/workloada` and `workloadd`, in its layout.
    #[test]
    fn ycsbs_own_files_are_read() {
        let common = "# Yahoo! Cloud System Benchmark\n\nrecordcount=1000\noperationcount=1000\n\
            workload=site.ycsb.workloads.CoreWorkload\n\nreadallfields=true\n";
        let a = format!(
            "{common}\nreadproportion=0.5\nupdateproportion=0.5\nscanproportion=0\ninsertproportion=0\n\n\
             requestdistribution=zipfian\n"
        );
        let parsed = Workload::from_properties(&a).unwrap();
        assert_eq!(parsed.workload, CoreWorkload::A.workload(1_000, 1_000));
        assert!(parsed.unknown.is_empty() && parsed.without_effect.is_empty());
        let d = format!(
            "{common}\nreadproportion=0.95\nupdateproportion=0\nscanproportion=0\ninsertproportion=0.05\n\
             \nrequestdistribution=latest\n"
        );
        assert_eq!(
            Workload::from_properties(&d).unwrap().workload,
            CoreWorkload::D.workload(1_000, 1_000)
        );
    }

    #[test]
    fn missing_properties_have_ycsbs_defaults() {
        let parsed = Workload::from_properties("").unwrap();
        assert_eq!(parsed.workload, Workload::default());
        let wanted = Proportions { read: 0.95, update: 0.05, ..Proportions::NONE };
        assert_eq!(parsed.workload.proportions, wanted);
    }

    #[test]
    fn javas_format_is_understood() {
        let text = "  ! a comment\nrecordcount : 5\\\n   0\r\nfieldcount\t7\n\\u0066ieldlength = 9 \n\
            requestdistribution=hotspot\nhotspotdatafraction=0.1\nrecordcount=60\n";
        let workload = Workload::from_properties(text).unwrap().workload;
        assert_eq!((workload.records, workload.fields), (60, 7));
        assert_eq!(workload.field_length, FieldLength::Constant(9));
        let wanted = RequestDistribution::Hotspot { data: 0.1, operations: 0.8 };
        assert_eq!(workload.requests, wanted);
    }

    #[test]
    fn unknown_keys_are_distinguished_from_unused_ones() {
        let parsed =
            Workload::from_properties("table=usertable\nrecordcuont=5\nstatus=true\n").unwrap();
        assert_eq!(parsed.unknown, [(2, "recordcuont".to_owned())]);
        let idle = [(1, "table".to_owned()), (3, "status".to_owned())];
        assert_eq!(parsed.without_effect, idle);
    }

    #[test]
    fn bad_values_name_line_and_key() {
        assert_eq!(error("\nrecordcount=many"), (2, "recordcount".to_owned()));
        assert_eq!(error("recordcount=0"), (1, "recordcount".to_owned()));
        assert_eq!(error("fieldcount=-1"), (1, "fieldcount".to_owned()));
        assert_eq!(error("readallfields=perhaps"), (1, "readallfields".to_owned()));
        assert_eq!(error("requestdistribution=normal"), (1, "requestdistribution".to_owned()));
        assert_eq!(error("insertorder=backwards"), (1, "insertorder".to_owned()));
        assert_eq!(error("readproportion=NaN"), (1, "readproportion".to_owned()));
        assert_eq!(error("zipfianconstant=1"), (1, "zipfianconstant".to_owned()));
        assert_eq!(error("hotspotdatafraction=2"), (1, "hotspotdatafraction".to_owned()));
        assert_eq!(error("target=100"), (1, "target".to_owned()));
        assert_eq!(
            error("fieldlengthdistribution=histogram"),
            (1, "fieldlengthdistribution".to_owned())
        );
        assert_eq!(error("workload=site.ycsb.workloads.RestWorkload"), (1, "workload".to_owned()));
        assert_eq!(error("readproportion=0\nupdateproportion=0"), (1, "readproportion".to_owned()));
        assert_eq!(
            error("recordcount=10\ninsertstart=5\ninsertcount=6"),
            (3, "insertcount".to_owned())
        );
        let two = "fieldcount=x\nrecordcount=y";
        assert_eq!(error(two), (1, "fieldcount".to_owned()), "the first line first");
    }

    #[test]
    fn scans_are_refused_with_the_reason() {
        let error = Workload::from_properties("\n\nscanproportion=0.95\n").unwrap_err();
        assert_eq!((error.line, error.wanted.as_str()), (3, NO_SCANS));
        assert!(error.to_string().starts_with("line 3: scanproportion=0.95: scans need"));
    }
}
