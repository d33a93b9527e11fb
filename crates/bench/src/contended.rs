//! Contended locks: threads that lock and unlock one range without a pause, of one node or of two. The figure is
//! the time per acquisition of all threads; remarks tell how they were shared out and what they cost.

use super::baseline::Baseline;
use super::idle::pause;
use super::report::{Report, Target};
use super::window::Figure;
use farside::{AllocationHint, AllocationSpec, GlobalAddress, LineSize, Node};
use farside_command::failure::Failure;
use farside_launcher::worker::NodeSpec;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads of one node.
const THREADS: [usize; 5] = [1, 2, 3, 4, 8];
/// Threads of the home of the lock, and of another node.
const NODES: [[usize; 2]; 5] = [[1, 1], [2, 2], [1, 4], [4, 1], [8, 1]];
/// Length of a window: several time slices of a processor, since threads may outnumber the processors.
const WINDOW: Duration = Duration::from_millis(20);
/// Most windows of a figure.
const WINDOWS_MAX: u32 = 25;
/// What the threads of a run have in common. The holder of the lock alone changes the run and the longest runs.
#[derive(Default)]
struct Run {
    begins: AtomicBool,
    ends: AtomicBool,
    /// The acquisitions of each thread.
    locked: Vec<AtomicU64>,
    /// The threads of each node that wait for the lock.
    waiting: [AtomicU64; 2],
    /// The node of the last grant, and how many it had in a row while a thread of the other node waited.
    last: AtomicU64,
    run: AtomicU64,
    longest: [AtomicU64; 2],
}

impl Run {
    /// Counts a grant to a node of the run.
    fn granted(&self, node: usize) {
        let same = self.last.swap(node as u64, Ordering::Relaxed) == node as u64;
        let waits = self.waiting[1 - node].load(Ordering::Relaxed) > 0;
        let before = if same { self.run.load(Ordering::Relaxed) } else { 0 };
        let run = if waits { before + 1 } else { 0 };
        self.run.store(run, Ordering::Relaxed);
        self.longest[node].fetch_max(run, Ordering::Relaxed);
    }
}

/// Measures contended locks at two nodes of this process.
pub(super) fn measure(report: &mut Report) -> Result<(), Failure> {
    let create = NodeSpec::bench("contended", None, None);
    let join = NodeSpec { create: false, ..create.clone() };
    let (home, other) = (Node::create(&create.config()?)?, Node::join(&join.config()?)?);
    home.wait_for_members(2, Duration::from_secs(10))?;
    let spec = AllocationSpec::new(AllocationHint::Local).line_size(Some(LineSize::DEFAULT));
    let line = home.session()?.alloc_with(LineSize::DEFAULT.bytes() as u64, spec)?;
    for threads in THREADS {
        let name = format!("contended lock, {threads} threads");
        contend(&[(&home, threads)], line, &name, report)?;
    }
    for [here, there] in NODES {
        let name = format!("contended lock, {here} + {there} threads of 2 nodes");
        contend(&[(&home, here), (&other, there)], line, &name, report)?;
    }
    other.leave()?;
    home.leave()?;
    Ok(())
}

fn contend(
    nodes: &[(&Node, usize)],
    line: GlobalAddress,
    name: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    let places = nodes.iter().enumerate().flat_map(|(at, (_, threads))| vec![at; *threads]);
    let places: Vec<usize> = places.collect();
    let locked = places.iter().map(|_| AtomicU64::new(0)).collect();
    let run = Run { locked, ..Run::default() };
    let sleeps = || nodes.iter().map(|(node, _)| node.stats().sleeps).sum::<u64>();
    let before = sleeps();
    report.add(name, Baseline::Atomic, Target::None, |windows| {
        std::thread::scope(|scope| {
            let start = |(number, at): (usize, &usize)| {
                let (run, at) = (&run, *at);
                scope.spawn(move || locks(nodes[at].0, line, run, (number, at)))
            };
            let threads: Vec<_> = places.iter().enumerate().map(start).collect();
            run.begins.store(true, Ordering::Release);
            let locked = || run.locked.iter().map(|locked| locked.load(Ordering::Relaxed)).sum();
            let figure = watch(locked, windows.min(WINDOWS_MAX));
            run.ends.store(true, Ordering::Release);
            for thread in threads {
                thread.join().map_err(|_| Failure::system("a thread has ended"))??;
            }
            Ok::<_, Failure>(figure)
        })
    })?;
    if run.begins.into_inner() {
        let locked: Vec<u64> = run.locked.into_iter().map(AtomicU64::into_inner).collect();
        let longest = run.longest.map(AtomicU64::into_inner);
        report.remark(shares(name, &places, &locked, longest, sleeps() - before));
    }
    Ok(())
}

/// Locks and unlocks as a thread of a node until the run ends.
fn locks(
    node: &Node,
    line: GlobalAddress,
    run: &Run,
    (number, at): (usize, usize),
) -> Result<(), Failure> {
    let mut session = node.session()?;
    while !run.begins.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let mut count = 0;
    while !run.ends.load(Ordering::Relaxed) {
        run.waiting[at].fetch_add(1, Ordering::Relaxed);
        let lock = session.lock_write(line, 8)?;
        run.waiting[at].fetch_sub(1, Ordering::Relaxed);
        run.granted(at);
        lock.unlock()?;
        count += 1;
        run.locked[number].store(count, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the time per operation in each window, of threads that do operations meanwhile; `done` counts them.
pub(super) fn watch(done: impl Fn() -> u64, windows: u32) -> Figure {
    pause(WINDOW);
    let mut last = (Instant::now(), done());
    let windows = (0..windows).map(|_| {
        pause(WINDOW);
        let now = (Instant::now(), done());
        let each_ns = (now.0 - last.0).as_nanos() as f64 / (now.1 - last.1).max(1) as f64;
        last = now;
        each_ns
    });
    Figure::from_windows(windows.collect(), 1)
}

/// Describes how the acquisitions were shared out.
fn shares(name: &str, places: &[usize], locked: &[u64], longest: [u64; 2], sleeps: u64) -> String {
    let all = locked.iter().sum::<u64>().max(1) as f64;
    let least = locked.iter().min().copied().unwrap_or(0) as f64 / all;
    let mut text = format!(
        "{name}: {:.2} sleeps per 1,000 acquisitions; the thread with the fewest has {:.1}%",
        1000.0 * sleeps as f64 / all,
        100.0 * least,
    );
    if places.contains(&1) {
        let of_home = locked.iter().zip(places).filter(|(_, at)| **at == 0);
        let share = of_home.map(|(locked, _)| locked).sum::<u64>() as f64 / all;
        text += &format!(
            "; the home has {:.1}% and at most {} in a row while the other waits, the other {}",
            100.0 * share,
            longest[0],
            longest[1],
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_in_a_row_count_while_the_other_node_waits() {
        let run = Run::default();
        run.granted(0);
        run.waiting[1].store(1, Ordering::Relaxed);
        [0, 0, 1, 0, 0, 0].into_iter().for_each(|node| run.granted(node));
        assert_eq!(run.longest.map(AtomicU64::into_inner), [3, 0]);
    }

    #[test]
    fn shares_name_the_thread_with_the_fewest_and_the_home() {
        let text = shares("lock", &[0, 0, 1], &[50, 40, 10], [4, 2], 5);
        assert_eq!(
            text,
            "lock: 50.00 sleeps per 1,000 acquisitions; the thread with the fewest has 10.0%; the home has \
             90.0% and at most 4 in a row while the other waits, the other 2"
        );
    }
}
