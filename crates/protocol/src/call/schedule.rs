//! Selects the next call to run: tenants share the processor by weight, and sessions of a tenant share its part
//! equally (`queue.rs` describes the algorithm of both levels). Calls of a session run round robin.
//!
//! A session runs until it has used a quantum, or has no call to run. The cost of a call's slice is known afterwards.
//! So with `q` for the quantum and `s` for the longest slice of either:
//!
//! - while two tenants both have calls to run, the times that they have used, each divided by its weight, diverge by
//!   at most one run of each (`q + s`, divided by its weight), for any number of sessions and calls; the same holds
//!   for two sessions of a tenant;
//! - a call of a session with a lag below `q`, of a tenant with a lag below `q`, waits for the current run, at most
//!   `q + s`, and for such calls that became runnable earlier, however many sessions have long calls;
//! - slices of more than `DEBT_NS_MAX` per unit of their tenant's weight are not charged in full.
//!
//! Lags outlast the sessions that incurred them. A tenant's account covers all its sessions, past ones too. A new
//! session of the tenant begins with the largest lag of an ended one, since it may be the same caller; a different
//! caller waits initially for at most that long for each other session.
//!
//! Each run costs a search in a sorted list of the runnable flows and a small insertion, at both levels.

use super::canary::{CallMutant, mutant};
use super::queue::{Account, Queue};
use super::{CallId, Session};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::Planted;

/// A tenant may use the time that it saved over this period.
const BURST_NS: u64 = 10_000_000;

/// The state of a call after a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RunState {
    /// It is runnable.
    Ready,
    /// It is blocked.
    Waits,
    /// It has ended.
    Over,
}

/// A session with scheduled calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Flow {
    tenant: usize,
    /// In the queue of its tenant. Runnable while it has runnable calls.
    account: Account,
    /// Slots with runnable calls.
    ready: VecDeque<u8>,
}

impl Flow {
    fn new(tenant: usize, at_ns: u64) -> Self {
        // The quota's weight belongs to the tenant: its sessions are equal.
        Self { tenant, account: Account::new(1, at_ns), ready: VecDeque::new() }
    }
}

/// The processor time that a tenant may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Allowance {
    ns_per_s: u64,
    /// Negative if more was used.
    left_ns: i64,
    at_ns: u64,
}

impl Allowance {
    fn renew(&mut self, now_ns: u64) {
        let passed = u128::from(now_ns.saturating_sub(self.at_ns));
        let gained = passed * u128::from(self.ns_per_s) / 1_000_000_000;
        if gained > 0 {
            let gained = i64::try_from(gained).unwrap_or(i64::MAX);
            let most = i64::try_from(BURST_NS).unwrap_or(i64::MAX);
            self.left_ns = self.left_ns.saturating_add(gained).min(most);
            self.at_ns = now_ns;
        }
    }

    /// When the allowance is positive again.
    fn ready_at_ns(&self) -> u64 {
        let missing = u128::from(self.left_ns.min(0).unsigned_abs()) + 1;
        let wait = missing * 1_000_000_000 / u128::from(self.ns_per_s.max(1)) + 1;
        self.at_ns.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

/// A tenant and its sessions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Tenant {
    /// In the queue of tenants. Runnable while one of its sessions is, unless it is barred.
    account: Account,
    /// Its runnable sessions.
    queue: Queue,
    /// `None` for a tenant without a limit.
    allowance: Option<Allowance>,
    /// It has runnable calls, and has used up its allowance.
    barred: bool,
    /// The largest start tag of its ended sessions.
    left_at_ns: u64,
}

impl Tenant {
    /// Whether it may use the processor now.
    fn may_run(&mut self, now_ns: u64) -> bool {
        let Some(allowance) = &mut self.allowance else { return true };
        allowance.renew(now_ns);
        allowance.left_ns >= 0
    }
}

/// The running session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RunningFlow {
    session: Session,
    used_ns: u64,
}

/// Sessions, their runnable calls, and the time that they have used.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Schedule {
    quantum_ns: u64,
    /// By session number.
    lines: Vec<Flow>,
    tenants: Vec<Tenant>,
    /// Runnable tenants within their allowance.
    queue: Queue,
    /// Tenants with runnable calls that have used up their allowance.
    barred: Vec<usize>,
    running_flow: Option<RunningFlow>,
    /// The approximate current time: the last time given, plus the time used since.
    now_ns: u64,
    mutant: Planted<CallMutant>,
}

impl Schedule {
    pub(super) fn new(quantum_ns: u64, mutant: Planted<CallMutant>) -> Self {
        let quantum_ns = quantum_ns.max(1);
        Self {
            quantum_ns,
            lines: Vec::new(),
            tenants: Vec::new(),
            queue: Queue::new(quantum_ns),
            barred: Vec::new(),
            running_flow: None,
            now_ns: 0,
            mutant,
        }
    }

    pub(super) fn add_tenant(&mut self, weight: u32, processor_ns_per_s: Option<u64>) {
        let burst = i64::try_from(BURST_NS).unwrap_or(i64::MAX);
        self.tenants.push(Tenant {
            account: Account::new(weight, 0),
            queue: Queue::new(self.quantum_ns),
            allowance: processor_ns_per_s.map(|ns_per_s| Allowance {
                ns_per_s,
                left_ns: burst,
                at_ns: 0,
            }),
            barred: false,
            left_at_ns: 0,
        });
    }

    pub(super) fn open(&mut self, session: Session, tenant: usize) {
        let at = session.0 as usize;
        if self.lines.len() <= at {
            self.lines.resize_with(at + 1, || Flow::new(tenant, 0));
        }
        self.lines[at] = Flow::new(tenant, self.tenants[tenant].left_at_ns);
    }

    /// Removes a session.
    pub(super) fn close(&mut self, session: Session) {
        let Some(line) = self.lines.get_mut(session.0 as usize) else {
            return;
        };
        line.ready.clear();
        if !mutant!(self, DebtShed) {
            let left_at_ns = &mut self.tenants[line.tenant].left_at_ns;
            *left_at_ns = line.account.at_ns().max(*left_at_ns);
        }
        self.leave(session);
    }

    /// Makes a call runnable: it has just begun, or is no longer blocked.
    pub fn ready(&mut self, call: CallId, now_ns: u64) {
        let Some(line) = self.lines.get_mut(call.session.0 as usize) else {
            return;
        };
        line.ready.push_back(call.slot);
        if line.account.stands() {
            return;
        }
        let tenant = &mut self.tenants[line.tenant];
        tenant.queue.enter(call.session.0, &mut line.account, now_ns);
        if !tenant.account.stands() && !tenant.barred {
            self.queue.enter(line.tenant as u32, &mut tenant.account, now_ns);
        }
    }

    /// Removes a call, which may be runnable.
    pub(super) fn forget(&mut self, call: CallId) {
        if mutant!(self, CancelledRuns) {
            return;
        }
        let Some(line) = self.lines.get_mut(call.session.0 as usize) else {
            return;
        };
        line.ready.retain(|slot| *slot != call.slot);
        if line.ready.is_empty() {
            self.leave(call.session);
        }
    }

    /// Removes a session without runnable calls from its queue.
    fn leave(&mut self, session: Session) {
        let line = &mut self.lines[session.0 as usize];
        if !line.account.stands() {
            return;
        }
        let tenant = &mut self.tenants[line.tenant];
        tenant.queue.leave(session.0, &mut line.account, self.now_ns);
        if self.running_flow.is_some_and(|running_flow| running_flow.session == session) {
            self.running_flow = None;
        }
        if !tenant.queue.is_empty() {
            return;
        }
        self.queue.leave(line.tenant as u32, &mut tenant.account, self.now_ns);
        if core::mem::replace(&mut tenant.barred, false) {
            self.barred.retain(|barred| *barred != line.tenant);
        }
    }

    /// Returns the call to run next; report the time that it used to [`Self::ran`]. `None` while none may run.
    pub fn next(&mut self, now_ns: u64) -> Option<CallId> {
        self.now_ns = now_ns;
        if !self.barred.is_empty() {
            self.let_in(now_ns);
        }
        if let Some(call) = self.goes_on(now_ns) {
            return Some(call);
        }
        loop {
            let at = self.queue.first()?;
            let tenant = &mut self.tenants[at as usize];
            if !tenant.may_run(now_ns) {
                // If it stayed, it would hold back the virtual time, and be far behind when it is runnable again.
                self.queue.leave(at, &mut tenant.account, now_ns);
                tenant.barred = true;
                self.barred.push(at as usize);
                continue;
            }
            let session = Session(tenant.queue.first()?);
            let Some(slot) = self.lines[session.0 as usize].ready.pop_front() else {
                // Its last call was returned already, and has not been reported to `ran`.
                self.leave(session);
                continue;
            };
            self.running_flow = Some(RunningFlow { session, used_ns: 0 });
            return Some(CallId { session, slot });
        }
    }

    /// Returns barred tenants that may run again to the queue.
    fn let_in(&mut self, now_ns: u64) {
        let (tenants, queue) = (&mut self.tenants, &mut self.queue);
        self.barred.retain(|at| {
            let tenant = &mut tenants[*at];
            tenant.barred = !tenant.may_run(now_ns);
            if !tenant.barred {
                queue.enter(*at as u32, &mut tenant.account, now_ns);
            }
            tenant.barred
        });
    }

    /// The next call of the running session, if its quantum is not used up.
    fn goes_on(&mut self, now_ns: u64) -> Option<CallId> {
        let RunningFlow { session, used_ns } = self.running_flow?;
        let line = &mut self.lines[session.0 as usize];
        if used_ns >= self.quantum_ns || !self.tenants[line.tenant].may_run(now_ns) {
            return None;
        }
        let slot = line.ready.pop_front()?;
        Some(CallId { session, slot })
    }

    /// Charges the call that ran for `used_ns`; `state` is its state now. A call that is over may have been removed
    /// before, and its session closed.
    pub fn ran(&mut self, call: CallId, used_ns: u64, state: RunState) {
        self.now_ns = self.now_ns.saturating_add(used_ns);
        if let Some(running_flow) = &mut self.running_flow {
            running_flow.used_ns = running_flow.used_ns.saturating_add(used_ns);
        }
        if state == RunState::Ready {
            self.ready(call, self.now_ns);
        }
        if let Some(line) = self.lines.get(call.session.0 as usize) {
            let tenant = line.tenant;
            if line.ready.is_empty() {
                self.leave(call.session);
            }
            // A session that left while its call ran was not idle before now.
            self.tenants[tenant].queue.left_by(self.now_ns);
            self.queue.left_by(self.now_ns);
        }
        self.charge(call.session, used_ns);
    }

    /// Charges a session for time used.
    pub(super) fn charge(&mut self, session: Session, used_ns: u64) {
        let Some(line) = self.lines.get_mut(session.0 as usize) else {
            return;
        };
        let tenant = &mut self.tenants[line.tenant];
        if let Some(allowance) = &mut tenant.allowance {
            let used_ns = i64::try_from(used_ns).unwrap_or(i64::MAX);
            allowance.left_ns = allowance.left_ns.saturating_sub(used_ns);
        }
        if !mutant!(self, NothingCharged) {
            tenant.queue.charge(session.0, &mut line.account, used_ns);
        }
        if !mutant!(self, TenantsUncharged) {
            self.queue.charge(line.tenant as u32, &mut tenant.account, used_ns);
        }
    }

    /// Whether no call is runnable, not even one of a tenant without allowance left.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.barred.is_empty()
    }

    /// The earliest time at which a tenant skipped by [`Self::next`] has allowance again.
    pub fn wakes_at_ns(&self) -> Option<u64> {
        let allowances = self.barred.iter().filter_map(|at| self.tenants[*at].allowance.as_ref());
        allowances.map(Allowance::ready_at_ns).min()
    }
}

#[cfg(test)]
mod tests;
