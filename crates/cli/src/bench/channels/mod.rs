//! `farside bench channels`: latency, rate and bandwidth of the data channels.

mod ends;
mod entry;
mod measure;
mod plot;
mod serve;
mod virtual_time;

use super::window::Figure;
use crate::arguments::{BenchChannels, Pattern, ProfileName};
use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::output::{Output, time};
use entry::{Entry, Payload, Wait};
use farside::ErrorCode;
use farside::channel::{DeviceWords, Kind};
use measure::{Case, Measurement};
use serde::Serialize;
pub(crate) use serve::Task;

/// The channel that is measured in its special forms too, and the one whose messages are handed over
/// where they lie.
const SPECIAL: Kind = Kind::RingImmediate;
const IN_PLACE: Kind = Kind::ReadSlotDetached;
const BLOCKING_BYTES: u32 = 64;
const HANDED_OVER_BYTES: u32 = 65_536;
/// What a channel of integers carries.
const INTEGER_BYTES: u32 = 4;
/// About how long a window takes, with what belongs to it: see `window.rs`.
const WINDOW_S: f64 = 0.0005;

const MEASURED: &str = "measured";
const VIRTUAL: &str = "virtual";

/// A yardstick as `--json` shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Yardstick {
    name: String,
    best_ns: f64,
    median_ns: f64,
}

/// Everything that was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Report {
    profile: &'static str,
    /// Whether it was measured or is virtual.
    time: &'static str,
    /// 1:1.
    figures: Vec<Entry>,
    /// N:1 and 1:N.
    fan_figures: Vec<Entry>,
    baselines: Vec<Yardstick>,
    /// What was not measured, and why; how to read what was.
    remarks: Vec<String>,
    /// How many figures could not be measured that should have been.
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
        // Those of many ends have a drawing of their own.
        let one_to_one = !report.figures.is_empty();
        plot::draw(path, if one_to_one { &report.figures } else { &report.fan_figures })?;
    }
    output.value(&report);
    if report.time == VIRTUAL {
        output.line(format!(
            "virtual time: the simulated profile {}; nothing is measured on an adapter",
            report.profile
        ));
    }
    output.line(entry::text(report.figures.iter().chain(&report.fan_figures)));
    for line in entry::distributions(&report.figures) {
        output.line(line);
    }
    for Yardstick { name, best_ns, median_ns } in &report.baselines {
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

/// Prints the findings of 001 §6 in virtual time.
fn findings(output: Output) -> Result<(), Failure> {
    let text = farside_sim::channel_bench::document()?;
    output.value(&serde_json::json!({ "time": VIRTUAL, "document": text }));
    output.line(text.trim_end());
    Ok(())
}

/// Measures between processes, of this machine or at agents.
fn real(arguments: &BenchChannels, output: Output) -> Result<Report, Failure> {
    let (mut cases, mut remarks) = cases(arguments);
    let hosts = Hosts::of(&arguments.places)?;
    let fabric = hosts.fabric();
    let before = cases.len();
    cases.retain(|case| case.device == DeviceWords::Nothing || fabric == "verbs");
    if cases.len() < before {
        remarks.push(format!(
            "skipped: words at the adapter: {fabric} has no adapter, and such memory is memory like any \
             other there; `--profile connectx5` has them in virtual time"
        ));
    }
    if hosts.is_between() {
        let before = cases.len();
        cases.retain(|case| case.payload != Payload::Untouched);
        if cases.len() < before {
            remarks.push(format!(
                "skipped: {IN_PLACE} untouched: {fabric} does not reach the memory of a peer, so \
                 nothing is looked at there"
            ));
        }
        remarks.push(format!("the ends are processes {}", hosts.describe()));
    }
    let workers = cases.iter().map(|case| usize::from(case.peers)).max().unwrap_or(1);
    let mut measurement = Measurement::start(hosts, workers, windows(arguments))?;
    let mut report = Report::new(fabric, MEASURED, remarks);
    report.sweep(&cases, output, |case| measurement.run(case))?;
    let yardstick = |(name, figure): (String, &Figure)| Yardstick {
        name,
        best_ns: figure.best_ns,
        median_ns: figure.median_ns,
    };
    report.baselines = measurement.baselines().map(yardstick).collect();
    if report.figures.iter().any(|entry| entry.wait == Wait::Block) {
        report.remarks.push(
            "blocking ends spin for a moment before they sleep, so what comes at once finds them \
             awake; a futex round trip always sleeps"
                .to_owned(),
        );
    }
    Ok(report)
}

/// Measures in virtual time on the cluster of paper 001.
fn connectx5(arguments: &BenchChannels, output: Output) -> Result<Report, Failure> {
    let (cases, remarks) = cases(arguments);
    // The special forms are questions to this machine.
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

    /// Measures all cases; a channel that fails does not stop the others.
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
                Err(failure) if makes_no_sense(&failure) => {
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

/// Whether a channel is not for this fabric, this size or so many peers.
fn makes_no_sense(failure: &Failure) -> bool {
    [ErrorCode::FabricLacks, ErrorCode::BadConfiguration, ErrorCode::BadForm]
        .into_iter()
        .any(|code| failure.is(code))
}

fn windows(arguments: &BenchChannels) -> u32 {
    match arguments.seconds {
        // Between 8 and 7.2 million: the argument's own bounds.
        Some(seconds) => ((seconds / WINDOW_S) as u32).max(8),
        None => arguments.windows,
    }
}

/// What is to be measured, and what is left out and why.
fn cases(arguments: &BenchChannels) -> (Vec<Case>, Vec<String>) {
    let (mut cases, mut remarks) = (Vec::new(), Vec::new());
    let mut sizes = arguments.bytes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    for kind in arguments.kinds() {
        let integers = kind == Kind::SendBufferless;
        let integer = [INTEGER_BYTES];
        if integers && sizes != integer {
            remarks.push(format!(
                "{kind} is measured with {INTEGER_BYTES} B, which is all it carries"
            ));
        }
        let settings = settings(arguments, kind);
        if settings.is_empty() {
            remarks.push(format!("skipped: {kind}: it has nothing of what was asked for"));
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

/// What a channel is measured with, beside its sizes and ends: words at the adapter, bytes beyond a bell,
/// and what becomes of messages.
fn settings(arguments: &BenchChannels, kind: Kind) -> Vec<(DeviceWords, u32, Payload)> {
    let payloads = match (arguments.copy, kind) {
        (false, _) => &[Payload::Copied][..],
        // An integer has no bytes to be copied.
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

/// The forms of a channel that others are compared with.
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
    use crate::arguments::{Arguments, Bench, Command};
    use clap::Parser;

    fn arguments(line: &[&str]) -> BenchChannels {
        let line = [&["farside", "bench", "channels"], line].concat();
        match Arguments::try_parse_from(line).unwrap().command {
            Command::Bench { which: Bench::Channels(arguments) } => arguments,
            other => unreachable!("the line says bench channels, not {other:?}"),
        }
    }

    #[test]
    fn every_channel_is_measured_in_every_size_and_pattern() {
        let (cases, remarks) = cases(&arguments(&[]));
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
    fn settings_multiply_the_cases_of_channels_that_have_them() {
        let count = |line: &[&str]| {
            let (cases, remarks) =
                cases(&arguments(&[&["--pattern", "1:1", "--bytes", "64"], line].concat()));
            (cases.len(), remarks.len())
        };
        assert_eq!(
            count(&["--channel", "shared-ring-immediate,send", "--device-words"]),
            (4 + 1, 0)
        );
        assert_eq!(count(&["--channel", "read-ring-inlined,send", "--prefetch", "512"]), (1, 1));
        assert_eq!(count(&["--channel", "send", "--copy", "--distribution"]), (2, 0));
    }

    #[test]
    fn integers_have_their_own_size() {
        let line = ["--channel", "send-bufferless", "--bytes", "4", "--pattern", "1:1"];
        let (cases, remarks) = cases(&arguments(&line));
        assert_eq!((cases.len(), cases[0].message_bytes, remarks.len()), (1, 4, 0));
    }

    #[test]
    fn a_time_becomes_windows() {
        assert_eq!(windows(&arguments(&[])), 100);
        assert_eq!(windows(&arguments(&["--seconds", "1"])), 2000);
        assert_eq!(windows(&arguments(&["--seconds", "0.01"])), 20);
    }

    #[test]
    fn a_channel_that_fails_does_not_stop_the_others() {
        let (cases, _) = cases(&arguments(&["--channel", "ring-inlined", "--bytes", "8"]));
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
