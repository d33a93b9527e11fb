//! `farside bench memory`: what operations of the coherent memory cost, beside what the bare machine
//! needs for the same.
//!
//! This process is one node, a worker process the home of what is "cached" here. Misses are made by
//! letting the home write the lines, which ends our copies, before each timed window.

use super::baseline::Baseline;
use super::core::{Allowed, bind};
use super::pause;
use super::report::{Report, Target};
use super::table::measure_get;
use super::window::{Figure, measure, measure_prepared};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::worker::Command;
use farside::{AllocationHint, AllocationSpec, GlobalAddress, LineSize, Node, NodeId, Session};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Lines that one window of misses reads: enough to time, few enough for any cache.
const MISSES: usize = 512;
/// Lines of the other node before those that misses are measured on.
const HITS: usize = 16;
/// Asynchronous writes that are in flight together where they shall overlap.
const OVERLAP: usize = 8;
/// After so long without work every node sleeps, whatever it spins.
const ASLEEP: Duration = Duration::from_millis(3);
/// Windows of figures that talk to the worker process before each.
const SPOILED_WINDOWS: u32 = 100;

const READ_CACHED: &str = "read 8 B, cached";

/// What the measurements work on.
pub(crate) struct Bench<'a> {
    node: &'a Node,
    session: Session,
    /// Its first worker is the other home.
    cluster: &'a mut Cluster,
    /// Two lines of this node.
    own: GlobalAddress,
    /// Lines of the other node: some for hits, the rest for misses.
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
        Ok(Self { node, session, cluster, own, other })
    }

    /// The line of the other node with this number.
    fn line(&self, number: usize) -> Result<GlobalAddress, Failure> {
        let bytes = LineSize::DEFAULT.bytes() as u64 * number as u64;
        self.other
            .checked_add(bytes)
            .ok_or_else(|| Failure::system("the allocation passes its home's end"))
    }

    /// The lines that misses are measured on.
    fn missing(&self) -> Result<Vec<GlobalAddress>, Failure> {
        (HITS..HITS + MISSES).map(|number| self.line(number)).collect()
    }

    /// Lets the home write every line that misses are measured on.
    fn spoil(&mut self) -> Result<(), Failure> {
        let command = Command::Touch { address: self.line(HITS)?.to_bits(), lines: MISSES as u64 };
        self.cluster.ask(0, command).map(|_| ())
    }

    /// Everything that needs the other node awake, or not at all.
    pub(crate) fn awake(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.hits(report)?;
        self.words(report)?;
        self.locks(report)?;
        self.read_misses(report)?;
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

    /// Two threads on lines of their own; the figure is per operation of both together.
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

    fn read_misses(&mut self, report: &mut Report) -> Result<(), Failure> {
        let target = Target::AtMostBaselines(6.0);
        report.add("read miss, home awake", Baseline::Line, target, |windows| {
            let lines = self.missing()?;
            let windows = windows.min(SPOILED_WINDOWS);
            measure_prepared(windows, MISSES as u64, self, Self::spoil, |bench| {
                let mut out = [0; 8];
                for line in &lines {
                    bench.session.read(*line, &mut out)?;
                }
                Ok(())
            })
        })
    }

    fn write_misses(&mut self, report: &mut Report) -> Result<(), Failure> {
        let returns = Target::AtMostNs(200.0);
        report.add("write miss returns", Baseline::Line, returns, |windows| {
            let lines = self.missing()?;
            let mut next = lines.chunks_exact(OVERLAP).cycle();
            let prepare = |bench: &mut Self| {
                bench.session.fence()?;
                bench.spoil()
            };
            let windows = windows.min(SPOILED_WINDOWS);
            measure_prepared(windows, OVERLAP as u64, self, prepare, |bench| {
                for line in next.next().unwrap_or_default() {
                    bench.session.write(*line, &[9; 8])?;
                }
                Ok(())
            })
        })?;
        self.fenced_writes(report, "write miss and fence", 1)?;
        self.fenced_writes(report, "8 write misses and fence", OVERLAP)
    }

    /// `at_once` write misses, then a fence; the figure is for one write.
    fn fenced_writes(
        &mut self,
        report: &mut Report,
        name: &str,
        at_once: usize,
    ) -> Result<(), Failure> {
        report.add(name, Baseline::Line, Target::None, |windows| {
            let lines = self.missing()?;
            let windows = windows.min(SPOILED_WINDOWS);
            measure_prepared(windows, MISSES as u64, self, Self::spoil, |bench| {
                for some in lines.chunks_exact(at_once) {
                    for line in some {
                        bench.session.write(*line, &[9; 8])?;
                    }
                    bench.session.fence()?;
                }
                Ok(())
            })
        })
    }

    /// Everything that needs the other node asleep.
    pub(crate) fn asleep(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.scaling(report)?;
        measure_get(self.node, NodeId(self.cluster.node(0)), report)?;
        report.add("read miss, home asleep", Baseline::Futex, Target::None, |windows| {
            let lines = self.missing()?;
            let mut next = 0;
            let prepare = |bench: &mut Self| {
                bench.spoil()?;
                pause(ASLEEP);
                Ok(())
            };
            measure_prepared(windows.min(SPOILED_WINDOWS), 1, self, prepare, |bench| {
                next = (next + 1) % lines.len();
                Ok(bench.session.read(lines[next], &mut [0; 8])?)
            })
        })
    }
}

/// What two measuring threads tell each other. Both spin: a sleeper's wake-up would be measured too.
#[derive(Default)]
struct Orders {
    /// How often the other thread shall do the operation, and the number of the order above it.
    order: AtomicU64,
    /// The last order that the other thread has carried out.
    done: AtomicU64,
}

/// Bits of an order that are its count.
const COUNT_BITS: u32 = 40;
/// Not a count: the other thread ends.
const END: u64 = (1 << COUNT_BITS) - 1;
/// Not the number of an order: the other thread has failed.
const FAILED: u64 = u64::MAX;

impl Orders {
    /// Carries out orders until the last.
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

    /// Gives an order; what to wait for.
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

/// Measures the same operation on two threads at once, each with its own line.
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
