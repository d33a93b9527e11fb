//! `farside bench channels`: latency, rate and bandwidth of the data channels.

mod entry;
mod measure;
mod plot;
mod virtual_time;

use super::window::Figure;
use crate::settings::{BenchChannels, Pattern, ProfileName};
use entry::{Entry, Payload, Wait};
use farside::ErrorCode;
use farside::channel::{DeviceWords, Kind};
use farside_command::failure::Failure;
use farside_command::output::{Output, time};
use farside_launcher::hosts::Hosts;
use measure::{Case, Measurement};
use serde::Serialize;

/// The channel that is also measured with blocking ends and unwritten payloads.
const SPECIAL: Kind = Kind::RingImmediate;
/// The channel whose receiver reads messages in the sender's memory, for zero-copy figures.
const IN_PLACE: Kind = Kind::ReadSlotDetached;
const BLOCKING_BYTES: u32 = 64;
const HANDED_OVER_BYTES: u32 = 65_536;
/// Bytes of a message of a channel that carries integers.
const INTEGER_BYTES: u32 = 4;
/// Approximate time of a window with its overhead: see `window.rs`.
const WINDOW_S: f64 = 0.0005;

const MEASURED: &str = "measured";
const VIRTUAL: &str = "virtual";

/// A baseline as `--json` prints it.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct BaselineFigure {
    name: String,
    best_ns: f64,
    median_ns: f64,
}

/// The report of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Report {
    profile: &'static str,
    /// `measured` or `virtual`.
    time: &'static str,
    /// 1:1.
    figures: Vec<Entry>,
    /// N:1 and 1:N.
    fan_figures: Vec<Entry>,
    baselines: Vec<BaselineFigure>,
    /// What was not measured and why, and how to read the figures.
    remarks: Vec<String>,
    /// Number of figures whose measurement failed.
    failed: usize,
}

/// Measures and prints.
pub(crate) fn run(arguments: &BenchChannels, output: Output) -> Result<(), Failure> {
    if arguments.findings {
        return findings(output);
    }
    let report = match arguments.profile {
        ProfileName::Shm => real(arguments, output)?,
        ProfileName::Connectx5 => connectx5(arguments, output)?,
    };
    if let Some(path) = &arguments.plot {
        // Figures of N:1 and 1:N are drawn only if there are none of 1:1.
        let one_to_one = !report.figures.is_empty();
        plot::draw(path, if one_to_one { &report.figures } else { &report.fan_figures })?;
    }
    output.value(&report);
    if report.time == VIRTUAL {
        output.line(format!(
            "virtual time: simulated profile {}; nothing is measured on an adapter",
            report.profile
        ));
    }
    output.line(entry::text(report.figures.iter().chain(&report.fan_figures)));
    for line in entry::distributions(&report.figures) {
        output.line(line);
    }
    for BaselineFigure { name, best_ns, median_ns } in &report.baselines {
        let (best, median) = (time(*best_ns), time(*median_ns));
        output.line(format!("baseline: {name}: {best} best, {median} median"));
    }
    for remark in &report.remarks {
        output.line(format!("note: {remark}"));
    }
    match report.failed {
        0 => Ok(()),
        failed => {
            Err(Failure::check(format!("{failed} figures could not be measured: see the notes")))
        }
    }
}

/// Prints the findings of paper 001 §6, reproduced in virtual time.
fn findings(output: Output) -> Result<(), Failure> {
    let text = farside_sim::channel_bench::document()?;
    output.value(&serde_json::json!({ "time": VIRTUAL, "document": text }));
    output.line(text.trim_end());
    Ok(())
}

/// Measures between processes of this machine or of agents.
fn real(arguments: &BenchChannels, output: Output) -> Result<Report, Failure> {
    let (mut cases, mut remarks) = cases(arguments);
    let hosts = Hosts::of(&arguments.places)?;
    let fabric = hosts.fabric();
    let before = cases.len();
    cases.retain(|case| case.device == DeviceWords::Nothing || fabric == "verbs");
    if cases.len() < before {
        remarks.push(format!(
            "skipped: words at the adapter: {fabric} has no adapter, so they would be in ordinary memory; \
             `--profile connectx5` measures them in virtual time"
        ));
    }
    if hosts.is_between() {
        let before = cases.len();
        cases.retain(|case| case.payload != Payload::Untouched);
        if cases.len() < before {
            remarks.push(format!(
                "skipped: {IN_PLACE} untouched: over {fabric} a receiver cannot read messages in the \
                 sender's memory"
            ));
        }
        remarks.push(format!("the ends are processes {}", hosts.describe()));
    }
    let workers = cases.iter().map(|case| usize::from(case.peers)).max().unwrap_or(1);
    let mut measurement = Measurement::start(hosts, workers, windows(arguments))?;
    let mut report = Report::new(fabric, MEASURED, remarks);
    report.sweep(&cases, output, |case| measurement.run(case))?;
    let baseline = |(name, figure): (String, &Figure)| BaselineFigure {
        name,
        best_ns: figure.best_ns,
        median_ns: figure.median_ns,
    };
    report.baselines = measurement.baselines().map(baseline).collect();
    if report.figures.iter().any(|entry| entry.wait == Wait::Block) {
        report.remarks.push(
            "blocking ends spin briefly before they sleep, so a message that arrives at once finds them \
             awake; a futex round trip always sleeps"
                .to_owned(),
        );
    }
    Ok(report)
}

/// Measures in virtual time, on the simulated cluster of paper 001.
fn connectx5(arguments: &BenchChannels, output: Output) -> Result<Report, Failure> {
    let (cases, remarks) = cases(arguments);
    // Special forms are about this machine.
    let plain = |case: &Case| {
        let payload = matches!(case.payload, Payload::Copied | Payload::Seen | Payload::Logged);
        case.wait == Wait::Spin && payload
    };
    let cases: Vec<Case> = cases.into_iter().filter(plain).collect();
    let mut report = Report::new("connectx5", VIRTUAL, remarks);
    let windows = windows(arguments);
    report.sweep(&cases, output, |case| virtual_time::measure(case, windows))?;
    Ok(report)
}

impl Report {
    fn new(profile: &'static str, time: &'static str, remarks: Vec<String>) -> Self {
        let (figures, fan_figures, baselines) = (Vec::new(), Vec::new(), Vec::new());
        Self { profile, time, figures, fan_figures, baselines, remarks, failed: 0 }
    }

    /// Measures all cases. A failure of one case is a remark; the others are still measured.
    fn sweep(
        &mut self,
        cases: &[Case],
        output: Output,
        mut measure: impl FnMut(Case) -> Result<Entry, Failure>,
    ) -> Result<(), Failure> {
        let bar = output.bar("channels", cases.len() as u64);
        let mut skipped: Vec<(String, Vec<String>)> = Vec::new();
        for case in cases {
            let what = format!("{} {}", case.kind, case.pattern.name());
            let bytes = format!("{} B", case.message_bytes);
            match measure(*case) {
                Ok(entry) if case.pattern == Pattern::OneToOne => self.figures.push(entry),
                Ok(entry) => self.fan_figures.push(entry),
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) if is_unsupported(&failure) => {
                    let why = format!("skipped: {what}: {failure}");
                    match skipped.iter_mut().find(|(seen, _)| *seen == why) {
                        Some((_, sizes)) => sizes.push(bytes),
                        None => skipped.push((why, vec![bytes])),
                    }
                }
                Err(failure) => {
                    self.failed += 1;
                    self.remarks.push(format!("FAILED: {what}, {bytes}: {failure}"));
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let remark = |(why, sizes): (String, Vec<String>)| format!("{why} [{}]", sizes.join(", "));
        self.remarks.extend(skipped.into_iter().map(remark));
        self.remark_on_cores();
        Ok(())
    }

    fn remark_on_cores(&mut self) {
        let mut seen = Vec::new();
        for entry in self.figures.iter().chain(&self.fan_figures) {
            let remark = format!("{}: {}", entry.ends(), entry.cores);
            if !seen.contains(&remark) {
                seen.push(remark);
            }
        }
        self.remarks.extend(seen);
    }
}

/// Returns whether the failure says that the channel does not support this fabric, size or number of peers.
fn is_unsupported(failure: &Failure) -> bool {
    [ErrorCode::FabricLacks, ErrorCode::BadConfiguration, ErrorCode::BadForm]
        .into_iter()
        .any(|code| failure.is(code))
}

fn windows(arguments: &BenchChannels) -> u32 {
    match arguments.seconds {
        // The argument's bounds keep this between 8 and 7.2 million.
        Some(seconds) => ((seconds / WINDOW_S) as u32).max(8),
        None => arguments.windows,
    }
}

/// Returns the cases to measure, and remarks on what is left out and why.
fn cases(arguments: &BenchChannels) -> (Vec<Case>, Vec<String>) {
    let (mut cases, mut remarks) = (Vec::new(), Vec::new());
    let mut sizes = arguments.bytes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    for kind in arguments.kinds.clone() {
        let integers = kind == Kind::SendBufferless;
        let integer = [INTEGER_BYTES];
        if integers && sizes != integer {
            remarks.push(format!(
                "{kind} is measured with {INTEGER_BYTES} B only: its messages are integers"
            ));
        }
        let settings = settings(arguments, kind);
        if settings.is_empty() {
            remarks.push(format!("skipped: {kind}: it has none of the requested settings"));
        }
        for message_bytes in if integers { &integer[..] } else { &sizes[..] } {
            for pattern in &arguments.pattern {
                let peers = match pattern {
                    Pattern::OneToOne => 1,
                    Pattern::ManyToOne => arguments.clients,
                    Pattern::OneToMany => arguments.readers,
                };
                cases.extend(settings.iter().map(|(device, prefetch_bytes, payload)| Case {
                    message_bytes: *message_bytes,
                    pattern: *pattern,
                    peers,
                    payload: *payload,
                    device: *device,
                    prefetch_bytes: *prefetch_bytes,
                    distribution: arguments.distribution,
                    ..Case::plain(kind)
                }));
            }
        }
        if arguments.pattern.contains(&Pattern::OneToOne) && !arguments.is_special() {
            cases.extend(specials(kind, &sizes));
        }
    }
    (cases, remarks)
}

/// Returns the settings of a channel apart from sizes and ends: words at the adapter, bytes prefetched beyond a
/// bell, and treatment of payloads.
fn settings(arguments: &BenchChannels, kind: Kind) -> Vec<(DeviceWords, u32, Payload)> {
    let payloads = match (arguments.copy, kind) {
        (false, _) => &[Payload::Copied][..],
        // An integer has no bytes to copy.
        (true, Kind::SendBufferless) => &[],
        (true, _) => &[Payload::Seen, Payload::Logged],
    };
    let mut all = Vec::new();
    for device in arguments.devices(kind) {
        for prefetch_bytes in arguments.prefetches(kind) {
            all.extend(payloads.iter().map(|payload| (device, prefetch_bytes, *payload)));
        }
    }
    all
}

/// Returns the special forms of a channel: blocking ends, unwritten and untouched payloads.
fn specials(kind: Kind, sizes: &[u32]) -> Vec<Case> {
    [
        (SPECIAL, BLOCKING_BYTES, Payload::Copied, Wait::Block),
        (SPECIAL, HANDED_OVER_BYTES, Payload::Unwritten, Wait::Spin),
        (IN_PLACE, HANDED_OVER_BYTES, Payload::Unwritten, Wait::Spin),
        (IN_PLACE, HANDED_OVER_BYTES, Payload::Untouched, Wait::Spin),
    ]
    .into_iter()
    .filter(|(of, message_bytes, ..)| *of == kind && sizes.contains(message_bytes))
    .map(|(_, message_bytes, payload, wait)| Case {
        message_bytes,
        payload,
        wait,
        ..Case::plain(kind)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_command::settings::Places;
    use farside_launcher::ends::task::DeviceWordsName;

    /// Returns the default settings of the command, changed by `change`.
    fn settings(change: impl FnOnce(&mut BenchChannels)) -> BenchChannels {
        let mut settings = BenchChannels {
            kinds: Kind::ALL.to_vec(),
            bytes: vec![8, 64, 1024, 65536],
            pattern: vec![Pattern::OneToOne, Pattern::ManyToOne, Pattern::OneToMany],
            clients: 8,
            readers: 4,
            windows: 100,
            seconds: None,
            device_words: Vec::new(),
            prefetch: Vec::new(),
            copy: false,
            distribution: false,
            findings: false,
            plot: None,
            profile: ProfileName::Shm,
            places: Places::default(),
        };
        change(&mut settings);
        settings
    }

    #[test]
    fn default_cases_are_all_channels_sizes_and_patterns() {
        let (cases, remarks) = cases(&settings(|_| {}));
        let specials = cases.iter().filter(|case| case.wait == Wait::Block).count()
            + cases.iter().filter(|case| case.payload != Payload::Copied).count();
        assert_eq!(specials, 4);
        assert_eq!(cases.len(), (19 * 4 + 1) * 3 + specials);
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        let peers = |pattern| cases.iter().find(|case| case.pattern == pattern).unwrap().peers;
        let all = [Pattern::OneToOne, Pattern::ManyToOne, Pattern::OneToMany].map(peers);
        assert_eq!(all, [1, 8, 4]);
    }

    #[test]
    fn settings_multiply_cases_of_channels_that_support_them() {
        let count = |kinds: &[Kind], change: fn(&mut BenchChannels)| {
            let (cases, remarks) = cases(&settings(|it| {
                (it.kinds, it.bytes) = (kinds.to_vec(), vec![64]);
                it.pattern = vec![Pattern::OneToOne];
                change(it);
            }));
            (cases.len(), remarks.len())
        };
        let device: fn(&mut BenchChannels) = |it| {
            it.device_words = vec![
                DeviceWordsName::Nothing,
                DeviceWordsName::Head,
                DeviceWordsName::Tail,
                DeviceWordsName::All,
            ];
        };
        assert_eq!(count(&[Kind::SharedRingImmediate, Kind::Send], device), (4 + 1, 0));
        let kinds = [Kind::ReadRingInlined, Kind::Send];
        assert_eq!(count(&kinds, |it| it.prefetch = vec![512]), (1, 1));
        assert_eq!(count(&[Kind::Send], |it| (it.copy, it.distribution) = (true, true)), (2, 0));
    }

    #[test]
    fn channel_of_integers_has_one_size() {
        let (cases, remarks) = cases(&settings(|it| {
            (it.kinds, it.bytes) = (vec![Kind::SendBufferless], vec![4]);
            it.pattern = vec![Pattern::OneToOne];
        }));
        assert_eq!((cases.len(), cases[0].message_bytes, remarks.len()), (1, 4, 0));
    }

    #[test]
    fn seconds_are_converted_to_windows() {
        let windows = |seconds| windows(&settings(|it| it.seconds = seconds));
        assert_eq!([None, Some(1.0), Some(0.01)].map(windows), [100, 2000, 20]);
    }

    #[test]
    fn failing_channel_does_not_stop_the_sweep() {
        let (cases, _) = cases(&settings(|it| {
            (it.kinds, it.bytes) = (vec![Kind::RingInlined], vec![8]);
        }));
        let mut report = Report::new("test", MEASURED, Vec::new());
        let swept = report.sweep(&cases, Output::new(true, true), |case| match case.pattern {
            Pattern::OneToOne => Err(farside::Error::new(ErrorCode::FabricLacks).into()),
            Pattern::ManyToOne => Err(Failure::check("stalled")),
            Pattern::OneToMany => Ok(Entry::new(case.kind, 8, case.pattern, 4)),
        });
        assert_eq!((swept, report.failed, report.fan_figures.len()), (Ok(()), 1, 1));
        let starts =
            ["FAILED: ring-inlined N:1, 8 B: stalled", "skipped: ring-inlined 1:1: ", "1:4: "];
        for (remark, start) in report.remarks.iter().zip(starts) {
            assert!(remark.starts_with(start), "{remark}");
        }
    }
}
