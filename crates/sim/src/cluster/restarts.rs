//! Nodes that die or leave and are replaced, with so few node numbers that each is reused: a value written at one
//! address never appears at another, and no member waits forever.

use super::{Error, ErrorCode, GlobalAddress, IDLE_SWEEPS_MAX, Random, Session, SimCluster, Task};
use farside::{AllocationHint, AllocationSpec, Joining};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Number of node numbers of a cluster, and maximum number of members at a time.
const NUMBERS: u16 = 4;

/// Results of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RestartSummary {
    /// Node numbers of the nodes that joined, in order.
    pub joined: Vec<u16>,
    /// Number of operations that succeeded.
    pub operations: u64,
    /// Number of operations that failed because a home was gone.
    pub failed: u64,
}

/// Shared state of all tasks.
#[derive(Default)]
struct RestartState {
    addresses: RefCell<Vec<GlobalAddress>>,
    operations: Cell<u64>,
    failed: Cell<u64>,
    trouble: RefCell<Option<String>>,
}

impl RestartState {
    fn accept<T>(&self, what: &str, result: Result<T, Error>) -> Option<T> {
        use ErrorCode::{LineLost, NodeClosed, NodeLeft, NodeLost, OutOfMemory, Unallocated};
        match result {
            Ok(value) => {
                self.operations.set(self.operations.get() + 1);
                Some(value)
            }
            Err(error) => {
                let codes = [NodeLost, NodeLeft, LineLost, NodeClosed, OutOfMemory, Unallocated];
                if !codes.contains(&error.code) {
                    self.trouble.borrow_mut().get_or_insert(format!("{what}: {error}"));
                }
                self.failed.set(self.failed.get() + 1);
                None
            }
        }
    }
}

/// Runs `count` random operations on words that hold zero or their own address.
async fn work(mut session: Session, shared: Rc<RestartState>, mut random: Random, count: u16) {
    for _ in 0..count {
        let known = shared.addresses.borrow().len();
        if known == 0 || random.chance(200) {
            let hint = *random.pick(&[AllocationHint::Default, AllocationHint::Remote]);
            let spec = AllocationSpec::new(hint);
            let word = session.alloc_with_async(512, spec).await;
            shared.addresses.borrow_mut().extend(shared.accept("alloc", word));
            continue;
        }
        let address = shared.addresses.borrow()[random.index(known)];
        let own = address.to_bits();
        match random.below(4) {
            0 => {
                let done = session.write_async(address, &own.to_le_bytes()).await;
                shared.accept("write", done);
                let done = session.fence_async().await;
                shared.accept("fence", done);
            }
            1 => {
                let guard = session.lock_write_async(address, 8).await.map(|guard| guard.keep());
                if shared.accept("lock", guard).is_some() {
                    let done = session.unlock_async(address, 8).await;
                    shared.accept("unlock", done);
                }
            }
            2 => {
                let done = session.compare_swap_async(address, 0, own).await;
                shared.accept("compare_swap", done);
            }
            _ => {
                let read = session.read_u64_async(address).await;
                if let Some(other) = shared.accept("read", read).filter(|it| ![0, own].contains(it))
                {
                    let text = format!("{address} reads {other:#x}");
                    shared.trouble.borrow_mut().get_or_insert(text);
                }
            }
        }
    }
}

/// Runs the restarts of a seed.
///
/// # Errors
/// The violated property, with the seed.
pub fn simulate_restarts(seed: u64, rounds: u16) -> Result<RestartSummary, String> {
    run(seed, rounds).map_err(|trouble| format!("seed {seed}: {trouble}"))
}

fn run(seed: u64, rounds: u16) -> Result<RestartSummary, String> {
    let mut cluster = SimCluster::start_with(seed, NUMBERS - 1, 2, None, NUMBERS)?;
    let shared = Rc::new(RestartState::default());
    let mut summary = RestartSummary::default();
    for _ in 0..rounds {
        round(&mut cluster, &shared, &mut summary)?;
        agree(&mut cluster)?;
        check_gone(&mut cluster, &shared)?;
        if let Some(trouble) = shared.trouble.borrow_mut().take() {
            return Err(trouble);
        }
    }
    (summary.operations, summary.failed) = (shared.operations.get(), shared.failed.get());
    Ok(summary)
}

/// Runs one round: all members work, one dies or leaves meanwhile, and another joins.
fn round(
    cluster: &mut SimCluster,
    shared: &Rc<RestartState>,
    summary: &mut RestartSummary,
) -> Result<(), String> {
    let alive = cluster.alive();
    let mut tasks: Vec<(u16, Option<Task>)> = Vec::new();
    for at in &alive {
        let session = super::session(cluster, *at)?;
        let count = cluster.random.between(5, 30) as u16;
        let task = work(session, Rc::clone(shared), cluster.random.fork(), count);
        tasks.push((*at, Some(Box::pin(task))));
    }
    let departing = *cluster.random.pick(&alive);
    let (at_step, leaves) = (cluster.random.below(400), cluster.random.chance(400));
    let (mut step, mut joined, mut joining, mut idle) = (0, false, None::<Joining>, 0);
    while !joined || tasks.iter().any(|(_, task)| task.is_some()) || cluster.leaving.is_some() {
        let gone = step >= at_step;
        if step == at_step && leaves {
            cluster.start_leaving(departing);
        } else if step == at_step {
            cluster.kill(departing);
            tasks.iter_mut().filter(|(at, _)| *at == departing).for_each(|(_, task)| *task = None);
        }
        step += 1;
        let mut busy = cluster.poll_tasks(&mut tasks) | cluster.sweep();
        busy |= cluster.leaving.is_some() && cluster.poll_leave()?;
        if gone && !joined {
            joined = cluster.poll_joining(&mut joining, summary)?;
        }
        idle = if busy || joined && step <= at_step { 0 } else { idle + 1 };
        if idle > 40 * IDLE_SWEEPS_MAX {
            return Err(format!("stuck, joined {joined}: {}", cluster.describe()));
        }
    }
    Ok(())
}

impl SimCluster {
    /// Polls each task. Returns whether one has ended.
    fn poll_tasks(&mut self, tasks: &mut [(u16, Option<Task>)]) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let mut ended = false;
        for (_, task) in tasks {
            if let Some(Poll::Ready(())) =
                task.as_mut().map(|task| task.as_mut().poll(&mut context))
            {
                (*task, ended) = (None, true);
            }
        }
        ended
    }

    /// Continues to join, or starts over. Returns whether there is a new member.
    fn poll_joining(
        &mut self,
        joining: &mut Option<Joining>,
        summary: &mut RestartSummary,
    ) -> Result<bool, String> {
        let number = self.nodes.len() as u16;
        let polled = match joining.as_mut() {
            Some(joining) => joining.poll(),
            None => self.start_joining(number).map(|started| {
                *joining = Some(started);
                None
            }),
        };
        match polled {
            Ok(None) => Ok(false),
            Ok(Some(node)) => {
                summary.joined.push(node.id().0);
                self.nodes.push(Some(node));
                Ok(true)
            }
            // The coordinator is gone, its successor has not bound the name, or no number is free yet.
            Err(error) => match error.code {
                ErrorCode::NoSuchCluster
                | ErrorCode::NodeClosed
                | ErrorCode::Busy
                | ErrorCode::ClusterFull => {
                    *joining = None;
                    self.net.kill(&super::process(number));
                    self.nodes.push(None);
                    Ok(false)
                }
                _ => Err(format!("join: {error}")),
            },
        }
    }
}

/// Runs until all members agree on which are alive: cached data is valid until then.
fn agree(cluster: &mut SimCluster) -> Result<(), String> {
    let mut idle = 0;
    loop {
        let count = cluster.alive().len();
        let agrees = |node: &farside::Node| {
            node.members().iter().filter(|member| member.alive).count() == count
        };
        if cluster.nodes.iter().flatten().all(agrees) {
            return Ok(());
        }
        idle = if cluster.sweep() { 0 } else { idle + 1 };
        if idle > 40 * IDLE_SWEEPS_MAX {
            return Err(format!("members do not agree: {}", cluster.describe()));
        }
    }
}

/// Checks that all members refuse addresses of lost memory, and no others.
fn check_gone(cluster: &mut SimCluster, shared: &RestartState) -> Result<(), String> {
    let memories = |cluster: &SimCluster| -> BTreeSet<_> {
        cluster.nodes.iter().flatten().filter_map(farside::Node::memory).collect()
    };
    let known = shared.addresses.borrow().clone();
    for at in cluster.alive() {
        let mut session = super::session(cluster, at)?;
        for address in &known {
            let read = cluster.finish(session.read_u64_async(*address))?;
            let lives = memories(cluster).contains(&address.memory());
            let fits = match &read {
                Ok(value) => lives && [0, address.to_bits()].contains(value),
                Err(error) if lives => error.code == ErrorCode::LineLost,
                Err(error) => matches!(error.code, ErrorCode::NodeLost | ErrorCode::NodeLeft),
            };
            if !fits {
                return Err(format!("{address} at member {at}, its home lives: {lives}: {read:?}"));
            }
        }
    }
    // Memory of surviving nodes is used in later rounds.
    let lives = memories(cluster);
    shared.addresses.borrow_mut().retain(|address| lives.contains(&address.memory()));
    Ok(())
}
