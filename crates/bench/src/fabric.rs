//! `farside bench fabric` of the shared-memory fabric: one-sided operations, messages and wake-ups, each with
//! its baseline on the bare machine.

use super::baseline::Baseline;
use super::report::{Report, Target};
use super::window::measure;
use farside_base::{LocalSlice, Operation, RemoteSlice, Source, Work};
use farside_command::failure::Failure;
use farside_launcher::ends::pair::{Mode, PairEnd, REGION_BYTES};

/// Work requests of one post list.
const BATCH: usize = 64;

/// Measures one-sided operations; the peer executes nothing.
pub(crate) fn one_sided(end: &mut PairEnd, report: &mut Report) -> Result<(), Failure> {
    for bytes in [8, 64, 1024, 65_536] {
        let target = if bytes <= 64 { Target::AtMostNs(16.0) } else { Target::None };
        let baseline = Baseline::Copy(bytes as usize);
        report.add(&format!("write {bytes} B"), baseline, target, |windows| {
            single(end, windows, |end| write(end, bytes))
        })?;
        report.add(&format!("read {bytes} B"), baseline, target, |windows| {
            single(end, windows, |end| read(end, bytes))
        })?;
    }
    inline_write(end, report)?;
    atomics(end, report)?;
    batches(end, report)
}

fn local(end: &PairEnd, bytes: u32) -> LocalSlice {
    LocalSlice { region: end.region.id, offset: 0, bytes }
}

fn remote(end: &PairEnd) -> RemoteSlice {
    RemoteSlice { region: end.remote, offset: REGION_BYTES / 4 }
}

fn write(end: &mut PairEnd, bytes: u32) -> Result<(), Failure> {
    let from = [local(end, bytes)];
    let operation =
        Operation::Write { source: Source::Gather(&from), to: remote(end), immediate: None };
    end.complete(&[end.work(operation)])
}

fn read(end: &mut PairEnd, bytes: u32) -> Result<(), Failure> {
    let into = [local(end, bytes)];
    let operation = Operation::Read { into: &into, from: remote(end) };
    end.complete(&[end.work(operation)])
}

/// Measures an operation that is posted, checked and completed before the next one.
fn single(
    end: &mut PairEnd,
    windows: u32,
    mut operation: impl FnMut(&mut PairEnd) -> Result<(), Failure>,
) -> Result<super::window::Figure, Failure> {
    measure(windows, |count| {
        for _ in 0..count {
            operation(end)?;
        }
        Ok(())
    })
}

fn inline_write(end: &mut PairEnd, report: &mut Report) -> Result<(), Failure> {
    report.add("write 8 B inline", Baseline::Copy(8), Target::AtMostNs(16.0), |windows| {
        single(end, windows, |end| {
            let operation = Operation::Write {
                source: Source::Inline(&[7; 8]),
                to: remote(end),
                immediate: None,
            };
            end.complete(&[end.work(operation)])
        })
    })
}

fn atomics(end: &mut PairEnd, report: &mut Report) -> Result<(), Failure> {
    let target = Target::AtMostNs(18.0);
    report.add("fetch_add", Baseline::Atomic, target, |windows| {
        single(end, windows, |end| end.complete(&[end.work(fetch_add(end))]))
    })?;
    report.add("compare_swap", Baseline::Atomic, Target::None, |windows| {
        let mut value = 0;
        single(end, windows, |end| {
            let operation = Operation::CompareSwap {
                at: remote(end),
                expected: value,
                new: value + 1,
                into: local(end, 8),
            };
            value += 1;
            end.complete(&[end.work(operation)])
        })
    })?;
    report.add("swap", Baseline::Atomic, Target::None, |windows| {
        single(end, windows, |end| {
            let operation = Operation::Swap { at: remote(end), new: 9, into: local(end, 8) };
            end.complete(&[end.work(operation)])
        })
    })
}

fn fetch_add(end: &PairEnd) -> Operation<'static> {
    Operation::FetchAdd { at: remote(end), add: 1, into: local(end, 8) }
}

/// Measures post lists whose last work request is signalled; the figure is for one request.
fn batches(end: &mut PairEnd, report: &mut Report) -> Result<(), Failure> {
    let (local, remote) = ([local(end, 8)], remote(end));
    let write = Operation::Write { source: Source::Gather(&local), to: remote, immediate: None };
    let read = Operation::Read { into: &local, from: remote };
    let cases = [
        ("write 8 B, list of 64", write, Baseline::Copy(8)),
        ("read 8 B, list of 64", read, Baseline::Copy(8)),
        ("fetch_add, list of 64", fetch_add(end), Baseline::Atomic),
    ];
    for (name, operation, baseline) in cases {
        let target =
            if baseline == Baseline::Atomic { Target::None } else { Target::AtMostNs(10.0) };
        let mut list: [Work<'_>; BATCH] = [end.work(operation); BATCH];
        for work in &mut list[..BATCH - 1] {
            work.flags.signalled = false;
        }
        report.add(name, baseline, target, |windows| {
            let figure = single(end, windows, |end| end.complete(&list))?;
            Ok::<_, Failure>(figure.per(BATCH as f64))
        })?;
    }
    Ok(())
}

/// Measures round trips of messages that the peer echoes.
pub(crate) fn messages(end: &mut PairEnd, mode: Mode, report: &mut Report) -> Result<(), Failure> {
    match mode {
        Mode::Awake => {
            for bytes in [8, 1024, 4096] {
                let name = format!("send {bytes} B and back, awake");
                report.add(&name, Baseline::Line, Target::None, |windows| {
                    single(end, windows, |end| end.round_trip(bytes, mode))
                })?;
            }
            Ok(())
        }
        Mode::Asleep => {
            report.add("send 8 B and back, asleep", Baseline::Futex, Target::None, |windows| {
                single(end, windows, |end| end.round_trip(8, mode))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_fabric::MemFabric;
    use farside_launcher::ends::pair::serve;
    use std::sync::mpsc::channel;

    fn with_pair(mode: Mode, run: impl FnOnce(&mut PairEnd)) {
        let fabric = MemFabric::new();
        let other = fabric.another();
        let (sender, ready) = channel();
        let peer = std::thread::spawn(move || {
            serve(&other, "bench", mode, || sender.send(()).unwrap(), || false)
        });
        ready.recv().unwrap();
        let mut end = PairEnd::connect(&fabric, "bench").unwrap();
        run(&mut end);
        let link = end.link;
        end.port.close(link);
        assert_eq!(peer.join().unwrap(), Ok(()));
    }

    #[test]
    fn one_sided_operations_give_all_figures() {
        with_pair(Mode::Asleep, |end| {
            let mut report = Report::new(8, None);
            one_sided(end, &mut report).unwrap();
            assert_eq!(report.len(), 15);
        });
    }

    #[test]
    fn messages_are_echoed_in_both_modes() {
        for mode in [Mode::Awake, Mode::Asleep] {
            with_pair(mode, |end| {
                let mut report = Report::new(8, None);
                messages(end, mode, &mut report).unwrap();
                assert_eq!(report.len(), if mode == Mode::Awake { 3 } else { 1 });
            });
        }
    }

    #[test]
    fn lost_peer_ends_measurement() {
        with_pair(Mode::Asleep, |end| {
            let link = end.link;
            end.port.close(link);
            assert!(write(end, 8).is_err());
        });
    }
}
