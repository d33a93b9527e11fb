//! Whose call runs next: tenants share the processor by weight, and sessions of a tenant share equally
//! what is its (`queue.rs` says how, at both levels). Calls of a session take turns.
//!
//! A session is at turn until it has used a quantum, or has nothing to run. What a call's slice costs is
//! known afterwards. So with `q` for the quantum and `s` for the longest slice of either:
//!
//! - while two tenants both have calls to run, what they have used, each divided by its weight, comes to
//!   differ by no more than a turn of each (`q + s`, divided by its weight), however many sessions and calls
//!   either has; so it is with two sessions of a tenant;
//! - a call of a session that owes less than `q`, of a tenant that owes less, waits for the turn that is
//!   going on, at most `q + s`, and for those that came like it before it, however many have long calls;
//! - slices of more than `DEBT_NS_MAX` for each of their tenant's weight are not charged in full.
//!
//! Debts outlast what made them. A tenant's account is that of all its sessions, past ones too; and a new
//! session of it begins with the largest debt that one left which is over, since it might be the same
//! caller; one that is not waits at its beginning, for at most that long for each other session.
//!
//! Each turn costs a search in a sorted list of who stands and a small insertion, at both levels.

use super::canary::{Canary, Mutant};
use super::queue::{Account, Queue};
use super::{Call, Session};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A tenant may use what it has saved for so long.
const BURST_NS: u64 = 10_000_000;

/// What becomes of a call after its turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    /// It could go on.
    Ready,
    /// It waits for something.
    Waits,
    /// It has ended.
    Over,
}

/// A session that takes part.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Line {
    tenant: usize,
    /// In the queue of its tenant. It stands while it has calls that could run.
    account: Account,
    /// Slots whose calls could run.
    ready: VecDeque<u8>,
}

impl Line {
    fn new(tenant: usize, at_ns: u64) -> Self {
        // The quota's weight is the tenant's: its sessions are equals.
        Self { tenant, account: Account::new(1, at_ns), ready: VecDeque::new() }
    }
}

/// What a tenant may use of the processor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Allowance {
    ns_per_s: u64,
    /// Negative when more was used.
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

    /// When something is left again.
    fn ready_at_ns(&self) -> u64 {
        let missing = u128::from(self.left_ns.min(0).unsigned_abs()) + 1;
        let wait = missing * 1_000_000_000 / u128::from(self.ns_per_s.max(1)) + 1;
        self.at_ns.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

/// A tenant and its sessions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Tenant {
    /// In the queue of tenants. It stands while one of its sessions does, unless it is barred.
    account: Account,
    /// Its sessions with calls that could run.
    queue: Queue,
    /// `None` for one without a bound.
    allowance: Option<Allowance>,
    /// It has calls that could run, and has used up what it may.
    barred: bool,
    /// Where the account was that was farthest ahead of its sessions' that are over.
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

/// Who is at turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct AtTurn {
    session: Session,
    used_ns: u64,
}

/// Sessions, their calls that could run, and what they have used.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Schedule {
    quantum_ns: u64,
    /// By session number.
    lines: Vec<Line>,
    tenants: Vec<Tenant>,
    /// Tenants that have calls to run and may.
    queue: Queue,
    /// Tenants that have calls to run and may not before later.
    barred: Vec<usize>,
    at_turn: Option<AtTurn>,
    /// About now: what was said last, and what was used since.
    now_ns: u64,
    canary: Canary,
}

impl Schedule {
    pub(super) fn new(quantum_ns: u64, canary: Canary) -> Self {
        let quantum_ns = quantum_ns.max(1);
        Self {
            quantum_ns,
            lines: Vec::new(),
            tenants: Vec::new(),
            queue: Queue::new(quantum_ns),
            barred: Vec::new(),
            at_turn: None,
            now_ns: 0,
            canary,
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
            self.lines.resize_with(at + 1, || Line::new(tenant, 0));
        }
        self.lines[at] = Line::new(tenant, self.tenants[tenant].left_at_ns);
    }

    /// Nothing of a session runs any more.
    pub(super) fn close(&mut self, session: Session) {
        let Some(line) = self.lines.get_mut(session.0 as usize) else {
            return;
        };
        line.ready.clear();
        if !self.canary.is(Mutant::DebtShed) {
            let left_at_ns = &mut self.tenants[line.tenant].left_at_ns;
            *left_at_ns = line.account.at_ns().max(*left_at_ns);
        }
        self.leave(session);
    }

    /// A call could run: it has just begun, or what it waited for has come.
    pub fn ready(&mut self, call: Call, now_ns: u64) {
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

    /// A call runs no more, though it could.
    pub(super) fn forget(&mut self, call: Call) {
        if self.canary.is(Mutant::CancelledRuns) {
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

    /// A session has nothing to run any more.
    fn leave(&mut self, session: Session) {
        let line = &mut self.lines[session.0 as usize];
        if !line.account.stands() {
            return;
        }
        let tenant = &mut self.tenants[line.tenant];
        tenant.queue.leave(session.0, &mut line.account, self.now_ns);
        if self.at_turn.is_some_and(|at_turn| at_turn.session == session) {
            self.at_turn = None;
        }
        if !tenant.queue.is_empty() {
            return;
        }
        self.queue.leave(line.tenant as u32, &mut tenant.account, self.now_ns);
        if core::mem::replace(&mut tenant.barred, false) {
            self.barred.retain(|barred| *barred != line.tenant);
        }
    }

    /// The call whose turn it is; tell [`Self::ran`] what it has used. `None` while none may run.
    pub fn next(&mut self, now_ns: u64) -> Option<Call> {
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
                // Where it stood it would hold the clock back, and be far behind when it comes again.
                self.queue.leave(at, &mut tenant.account, now_ns);
                tenant.barred = true;
                self.barred.push(at as usize);
                continue;
            }
            let session = Session(tenant.queue.first()?);
            let Some(slot) = self.lines[session.0 as usize].ready.pop_front() else {
                // Its last call was given out already, and nobody has said that it ran.
                self.leave(session);
                continue;
            };
            self.at_turn = Some(AtTurn { session, used_ns: 0 });
            return Some(Call { session, slot });
        }
    }

    /// Tenants that were barred and may run again stand with the others.
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

    /// The next call of who is at turn, if its quantum is not used up.
    fn goes_on(&mut self, now_ns: u64) -> Option<Call> {
        let AtTurn { session, used_ns } = self.at_turn?;
        let line = &mut self.lines[session.0 as usize];
        if used_ns >= self.quantum_ns || !self.tenants[line.tenant].may_run(now_ns) {
            return None;
        }
        let slot = line.ready.pop_front()?;
        Some(Call { session, slot })
    }

    /// The call that was at turn has used so much, and goes on as `turn` says. One that is over may have been
    /// forgotten before, and its session be closed.
    pub fn ran(&mut self, call: Call, used_ns: u64, turn: Turn) {
        self.now_ns = self.now_ns.saturating_add(used_ns);
        if let Some(at_turn) = &mut self.at_turn {
            at_turn.used_ns = at_turn.used_ns.saturating_add(used_ns);
        }
        if turn == Turn::Ready {
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

    /// A session has used so much.
    pub(super) fn charge(&mut self, session: Session, used_ns: u64) {
        let Some(line) = self.lines.get_mut(session.0 as usize) else {
            return;
        };
        let tenant = &mut self.tenants[line.tenant];
        if let Some(allowance) = &mut tenant.allowance {
            let used_ns = i64::try_from(used_ns).unwrap_or(i64::MAX);
            allowance.left_ns = allowance.left_ns.saturating_sub(used_ns);
        }
        if !self.canary.is(Mutant::NothingCharged) {
            tenant.queue.charge(session.0, &mut line.account, used_ns);
        }
        if !self.canary.is(Mutant::TenantsUncharged) {
            self.queue.charge(line.tenant as u32, &mut tenant.account, used_ns);
        }
    }

    /// Whether no call could run, also if its tenant had something left.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.barred.is_empty()
    }

    /// When a tenant that has used up what it may has something left again, of those whose calls
    /// [`Self::next`] has passed over.
    pub fn wakes_at_ns(&self) -> Option<u64> {
        let allowances = self.barred.iter().filter_map(|at| self.tenants[*at].allowance.as_ref());
        allowances.map(Allowance::ready_at_ns).min()
    }
}

#[cfg(test)]
mod tests;
