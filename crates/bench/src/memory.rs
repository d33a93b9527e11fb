//! `farside bench memory`: operations of the coherent memory, each with its baseline on the bare machine.
//!
//! This process is one node; a worker process is the home of the lines that figures call "cached". Before each
//! timed window of misses the home writes the lines, which invalidates this node's copies.

use super::baseline::Baseline;
use super::idle::pause;
use super::report::{Report, Target};
use super::table::measure_get;
use super::window::{Figure, measure, measure_prepared};
use farside::{AllocationHint, AllocationSpec, GlobalAddress, LineSize, Node, NodeId, Session};
use farside_command::failure::Failure;
use farside_command::processors::{Allowed, bind};
use farside_launcher::cluster::Cluster;
use farside_launcher::worker::Command;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lines that one window of misses accesses: enough to time, few enough for any cache.
const MISSES: usize = 512;
/// Lines of the other node that hits are measured on; those for misses follow them.
const HITS: usize = 16;
/// Writes in flight at once in figures of overlapping writes.
const OVERLAP: usize = 8;
/// Idle time after which the other node sleeps, whatever its spin budget.
const ASLEEP: Duration = Duration::from_millis(3);
/// Most windows of a figure that commands the worker process before each window.
const PREPARED_WINDOWS_MAX: u32 = 100;

/// Lines that one call of bulk figures accesses.
const BULK: usize = 64;

const READ_CACHED: &str = "read 8 B, cached";
const READ_MISS: &str = "read miss, home awake";

/// The session, nodes and allocations of the measurements.
pub(crate) struct Bench<'a> {
    node: &'a Node,
    session: Session,
    /// Its worker 0 is the other node.
    cluster: &'a mut Cluster,
    /// Two lines of this node.
    own: GlobalAddress,
    /// Lines of the other node: `HITS` for hits, then `MISSES` for misses.
    other: GlobalAddress,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(node: &'a Node, cluster: &'a mut Cluster) -> Result<Self, Failure> {
        let mut session = node.session()?;
        let spec = |hint| AllocationSpec::new(hint).line_size(Some(LineSize::DEFAULT));
        let line_bytes = LineSize::DEFAULT.bytes() as u64;
        let own = session.alloc_with(2 * line_bytes, spec(AllocationHint::Local))?;
        let home = NodeId(cluster.node(0));
        let bytes = line_bytes * (HITS + MISSES) as u64;
        let other = session.alloc_with(bytes, spec(AllocationHint::On(home)))?;
        let mut bench = Self { node, session, cluster, own, other };
        for number in 0..HITS {
            // This node owns the lines that figures call cached, whether it reads directly or not.
            bench.session.write_u64(bench.line(number)?, 0)?;
        }
        bench.session.fence()?;
        Ok(bench)
    }

    /// Returns line `number` of the other node's allocation.
    fn line(&self, number: usize) -> Result<GlobalAddress, Failure> {
        let bytes = LineSize::DEFAULT.bytes() as u64 * number as u64;
        self.other
            .checked_add(bytes)
            .ok_or_else(|| Failure::system("the allocation passes its home's end"))
    }

    /// Returns the lines that misses are measured on.
    fn missing(&self) -> Result<Vec<GlobalAddress>, Failure> {
        (HITS..HITS + MISSES).map(|number| self.line(number)).collect()
    }

    /// Invalidates this node's copies of the lines for misses: their home writes all of them.
    fn invalidate(&mut self) -> Result<(), Failure> {
        let command = Command::Touch { address: self.line(HITS)?.to_bits(), lines: MISSES as u64 };
        self.cluster.ask(0, command).map(|_| ())
    }

    /// Measures everything for which the other node is awake or not involved.
    pub(crate) fn awake(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.hits(report)?;
        self.words(report)?;
        self.locks(report)?;
        self.direct_reads(report, "home awake", |_| {})?;
        self.read_misses(report)?;
        self.bulk_reads(report)?;
        self.write_misses(report)
    }

    fn hits(&mut self, report: &mut Report) -> Result<(), Failure> {
        let at_most = Target::AtMostNs(20.0);
        let own_write = Target::AtMostTimes(1.5, READ_CACHED);
        let (own, cached) = (self.own, self.line(0)?);
        self.read(report, READ_CACHED, cached, 8, at_most)?;
        self.read(report, "read 8 B, local", own, 8, at_most)?;
        self.read(report, "read 64 B, cached", cached, 64, Target::None)?;
        self.read(report, "read 512 B, cached", cached, 512, Target::None)?;
        self.read(report, "read 4096 B, cached", cached, 4096, Target::ShareOfBaseline(0.6))?;
        self.write(report, "write 8 B, owned", cached, 8, own_write)?;
        self.write(report, "write 8 B, local", own, 8, own_write)?;
        self.write(report, "write 512 B, owned", cached, 512, Target::None)
    }

    fn read(
        &mut self,
        report: &mut Report,
        name: &str,
        at: GlobalAddress,
        bytes: usize,
        target: Target,
    ) -> Result<(), Failure> {
        let mut out = vec![0; bytes];
        report.add(name, Baseline::Copy(bytes), target, |windows| {
            measure(windows, |count| {
                for _ in 0..count {
                    self.session.read(black_box(at), &mut out)?;
                }
                Ok(())
            })
        })
    }

    fn write(
        &mut self,
        report: &mut Report,
        name: &str,
        at: GlobalAddress,
        bytes: usize,
        target: Target,
    ) -> Result<(), Failure> {
        let from = vec![7; bytes];
        report.add(name, Baseline::Copy(bytes), target, |windows| {
            self.session.write(at, &from)?;
            self.session.fence()?;
            measure(windows, |count| {
                for _ in 0..count {
                    self.session.write(black_box(at), &from)?;
                }
                Ok(())
            })
        })
    }

    fn words(&mut self, report: &mut Report) -> Result<(), Failure> {
        for (name, at) in [("fetch_add, owned", self.line(9)?), ("fetch_add, local", self.own)] {
            report.add(name, Baseline::Atomic, Target::None, |windows| {
                measure(windows, |count| {
                    for _ in 0..count {
                        self.session.fetch_add(black_box(at), 1)?;
                    }
                    Ok::<_, Failure>(())
                })
            })?;
        }
        Ok(())
    }

    fn locks(&mut self, report: &mut Report) -> Result<(), Failure> {
        let at = self.line(10)?;
        let target = Target::AtMostNs(60.0);
        report.add("lock and unlock, cached", Baseline::Atomic, target, |windows| {
            measure(windows, |count| {
                for _ in 0..count {
                    self.session.lock_write(black_box(at), 8)?.unlock()?;
                }
                Ok::<_, Failure>(())
            })
        })
    }

    /// Measures two threads, each with its own line; the figure is per operation of both.
    fn scaling(&mut self, report: &mut Report) -> Result<(), Failure> {
        let lines = [self.line(0)?, self.line(12)?];
        let target = Target::AtMostTimes(1.0 / 1.8, READ_CACHED);
        let node = self.node;
        let allowed = report.allowed().clone();
        report.add("read 8 B, cached, 2 threads", Baseline::Copy(8), target, |windows| {
            let figure = together(windows, lines, &allowed, |at| {
                let mut session = node.session()?;
                let mut out = [0; 8];
                Ok(move |count| {
                    for _ in 0..count {
                        session.read(black_box(at), &mut out)?;
                    }
                    Ok(())
                })
            })?;
            Ok(figure.per(2.0))
        })
    }

    /// Measures reads of lines that their home has just written, in its memory; `settle` runs before each
    /// window.
    fn direct_reads(
        &mut self,
        report: &mut Report,
        home: &str,
        settle: impl Fn(&mut Self),
    ) -> Result<(), Failure> {
        for (bytes, times) in [(8, 3.0), (512, 5.0)] {
            let name = format!("direct read {bytes} B, {home}");
            report.add(&name, Baseline::Line, Target::AtMostBaselines(times), |windows| {
                let lines = self.missing()?;
                let windows = windows.min(PREPARED_WINDOWS_MAX);
                let before = self.node.stats().misses;
                let prepare = |bench: &mut Self| {
                    bench.invalidate()?;
                    settle(bench);
                    Ok::<_, Failure>(())
                };
                let figure = measure_prepared(windows, MISSES as u64, self, prepare, |bench| {
                    let mut out = [0; 512];
                    for line in &lines {
                        bench.session.read(*line, &mut out[..bytes])?;
                    }
                    Ok(())
                })?;
                match self.node.stats().misses {
                    after if after == before => Ok(figure),
                    _ => Err(Failure::check("a direct read has sent a message")),
                }
            })?;
        }
        Ok(())
    }

    /// Measures reads that get their lines by messages.
    fn read_misses(&mut self, report: &mut Report) -> Result<(), Failure> {
        let target = Target::AtMostBaselines(6.0);
        self.session.set_direct_reads(false);
        report.add(READ_MISS, Baseline::Line, target, |windows| {
            let lines = self.missing()?;
            let windows = windows.min(PREPARED_WINDOWS_MAX);
            measure_prepared(windows, MISSES as u64, self, Self::invalidate, |bench| {
                let mut out = [0; 8];
                for line in &lines {
                    bench.session.read(*line, &mut out)?;
                }
                Ok(())
            })
        })?;
        self.session.set_direct_reads(true);
        Ok(())
    }

    /// Measures reads of many lines by one call, which get their lines by messages; the figure is for one line.
    fn bulk_reads(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.session.set_direct_reads(false);
        for (name, times) in [("read miss, 64 parts", 0.5), ("read miss, range of 64 lines", 0.6)] {
            let target = Target::AtMostTimes(times, READ_MISS);
            report.add(name, Baseline::Line, target, |windows| {
                let lines = self.missing()?;
                let windows = windows.min(PREPARED_WINDOWS_MAX);
                let mut out = vec![0; BULK * LineSize::DEFAULT.bytes()];
                measure_prepared(windows, MISSES as u64, self, Self::invalidate, |bench| {
                    for lines in lines.chunks_exact(BULK) {
                        if name.contains("range") {
                            bench.session.read(lines[0], &mut out)?;
                            continue;
                        }
                        let parts = lines.iter().copied().zip(out.chunks_mut(8));
                        bench.session.read_vectored(&mut parts.collect::<Vec<_>>())?;
                    }
                    Ok(())
                })
            })?;
        }
        self.session.set_direct_reads(true);
        Ok(())
    }

    fn write_misses(&mut self, report: &mut Report) -> Result<(), Failure> {
        let returns = Target::AtMostNs(200.0);
        report.add("write miss returns", Baseline::Line, returns, |windows| {
            let lines = self.missing()?;
            let mut next = lines.chunks_exact(OVERLAP).cycle();
            let prepare = |bench: &mut Self| {
                bench.session.fence()?;
                bench.invalidate()
            };
            let windows = windows.min(PREPARED_WINDOWS_MAX);
            measure_prepared(windows, OVERLAP as u64, self, prepare, |bench| {
                for line in next.next().unwrap_or_default() {
                    bench.session.write(*line, &[9; 8])?;
                }
                Ok(())
            })
        })?;
        self.fenced_writes(report, "write miss and fence", 1, false)?;
        self.fenced_writes(report, "8 write misses and fence", OVERLAP, false)?;
        self.fenced_writes(report, "64 write misses and fence", BULK, false)?;
        self.fenced_writes(report, "write miss, 64 parts, and fence", BULK, true)
    }

    /// Measures `at_once` write misses, by one call or by as many, followed by a fence; the figure is for one
    /// write.
    fn fenced_writes(
        &mut self,
        report: &mut Report,
        name: &str,
        at_once: usize,
        by_one_call: bool,
    ) -> Result<(), Failure> {
        report.add(name, Baseline::Line, Target::None, |windows| {
            let lines = self.missing()?;
            let windows = windows.min(PREPARED_WINDOWS_MAX);
            measure_prepared(windows, MISSES as u64, self, Self::invalidate, |bench| {
                for group in lines.chunks_exact(at_once) {
                    if by_one_call {
                        let parts = group.iter().map(|line| (*line, &[9; 8][..]));
                        bench.session.write_vectored(&parts.collect::<Vec<_>>())?;
                    } else {
                        for line in group {
                            bench.session.write(*line, &[9; 8])?;
                        }
                    }
                    bench.session.fence()?;
                }
                Ok(())
            })
        })
    }

    /// Measures everything for which the other node sleeps or is not involved.
    pub(crate) fn asleep(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.scaling(report)?;
        measure_get(self.node, NodeId(self.cluster.node(0)), report)?;
        self.direct_reads(report, "home asleep", |_| pause(ASLEEP))?;
        self.session.set_direct_reads(false);
        report.add("read miss, home asleep", Baseline::Futex, Target::None, |windows| {
            let lines = self.missing()?;
            let mut next = 0;
            let prepare = |bench: &mut Self| {
                bench.invalidate()?;
                pause(ASLEEP);
                Ok(())
            };
            measure_prepared(windows.min(PREPARED_WINDOWS_MAX), 1, self, prepare, |bench| {
                next = (next + 1) % lines.len();
                Ok(bench.session.read(lines[next], &mut [0; 8])?)
            })
        })
    }
}

/// Orders of the measuring thread to a second one. Both spin: a wake-up would be part of the figure.
#[derive(Default)]
struct Orders {
    /// Low bits: how often the second thread does the operation; high bits: the order's number.
    order: AtomicU64,
    /// The last order that the second thread has executed, or [`FAILED`].
    done: AtomicU64,
}

/// Bits of an order that contain its count.
const COUNT_BITS: u32 = 40;
/// In place of a count: the second thread returns.
const END: u64 = (1 << COUNT_BITS) - 1;
/// In place of an order: the second thread has returned or failed.
const FAILED: u64 = u64::MAX;

impl Orders {
    /// Executes orders until one with [`END`].
    fn serve(&self, mut run: impl FnMut(u64) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut last = 0;
        loop {
            let order = self.order.load(Ordering::Acquire);
            if order == last {
                std::hint::spin_loop();
                continue;
            }
            last = order;
            if order & END == END {
                return Ok(());
            }
            run(order & END)?;
            self.done.store(order, Ordering::Release);
        }
    }

    /// Stores an order and returns the value of `done` to wait for.
    fn give(&self, count: u64) -> u64 {
        let number = (self.order.load(Ordering::Relaxed) >> COUNT_BITS) + 1;
        let order = number << COUNT_BITS | count;
        self.order.store(order, Ordering::Release);
        order
    }

    fn wait_for(&self, order: u64) -> Result<(), Failure> {
        loop {
            match self.done.load(Ordering::Acquire) {
                done if done == order => return Ok(()),
                FAILED => return Err(Failure::system("the second thread has failed")),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

/// Measures one operation on two threads at once, each with its own line.
fn together<R>(
    windows: u32,
    lines: [GlobalAddress; 2],
    allowed: &Allowed,
    prepare: impl Fn(GlobalAddress) -> Result<R, Failure> + Sync,
) -> Result<Figure, Failure>
where
    R: FnMut(u64) -> Result<(), Failure>,
{
    let [mine, other] = lines;
    let orders = Orders::default();
    std::thread::scope(|scope| {
        let (prepare, orders) = (&prepare, &orders);
        let second = scope.spawn(move || {
            bind(allowed.processor(1));
            let served = prepare(other).and_then(|run| orders.serve(run));
            orders.done.store(FAILED, Ordering::Release);
            served
        });
        let figure = prepare(mine).and_then(|mut run| {
            measure(windows, |count| {
                let order = orders.give(count);
                run(count)?;
                orders.wait_for(order)
            })
        });
        orders.give(END);
        let served = second.join().map_err(|_| Failure::system("the second thread has ended"))?;
        served.and(figure)
    })
}
