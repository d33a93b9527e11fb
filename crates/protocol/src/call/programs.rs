//! Which sessions have registered which programs, and what tenants take.
//!
//! A program is known by a number made from its bytes; it is there once for all sessions that have
//! registered it, and goes with the last of them (003 §2).

use super::Session;
use super::canary::{Canary, Mutant};
use super::message::Refused;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// What a tenant may take, all its sessions together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quota {
    /// Registrations: a program that two sessions have registered counts twice.
    pub programs: u32,
    /// Bytes of registered programs and of the state that they declare; what sessions share counts for
    /// each.
    pub state_bytes: u64,
    /// Calls in progress.
    pub calls: u32,
    /// Sessions: callers, those that are out of reach and may come back included. `None`: as many as an
    /// executor lets a tenant have of whom nothing is said, which is all but a quarter, and but one for
    /// each other tenant; where no tenant is named, all.
    pub sessions: Option<u32>,
    /// Nanoseconds of processor for each second, on the average; `None` for what is there.
    pub processor_ns_per_s: Option<u64>,
    /// Its share of the processor, relative to other tenants', however many sessions either has; they
    /// share it equally. At least 1.
    pub weight: u32,
}

impl Quota {
    /// What a tenant has of whom nothing else was said.
    pub const DEFAULT: Self = Self {
        programs: 256,
        state_bytes: 64 << 20,
        calls: 1024,
        sessions: None,
        processor_ns_per_s: None,
        weight: 1,
    };
}

/// What a tenant has taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Taken {
    /// Registrations.
    pub programs: u32,
    /// Bytes of registered programs and their state.
    pub state_bytes: u64,
    /// Calls in progress.
    pub calls: u32,
    /// Sessions.
    pub sessions: u32,
}

/// What a program takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sizes {
    /// State of each session, variables included.
    pub own_bytes: u64,
    /// State that sessions share.
    pub shared_bytes: u64,
}

impl Sizes {
    /// Both.
    pub const fn all(self) -> u64 {
        self.own_bytes.saturating_add(self.shared_bytes)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Program {
    sessions: BTreeSet<Session>,
    sizes: Sizes,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Tenant {
    quota: Quota,
    taken: Taken,
}

/// What a session leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Left {
    /// State of the session at this program.
    Own(u64),
    /// The whole program.
    All(u64),
}

/// Programs and tenants.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Programs {
    programs: BTreeMap<u64, Program>,
    tenants: Vec<Tenant>,
    /// Most sessions of a tenant whose quota does not say.
    sessions_max: u32,
    canary: Canary,
}

impl Programs {
    pub(super) const fn new(sessions_max: u32, canary: Canary) -> Self {
        Self { programs: BTreeMap::new(), tenants: Vec::new(), sessions_max, canary }
    }

    pub(super) fn add_tenant(&mut self, quota: Quota) -> usize {
        let sessions = Some(quota.sessions.unwrap_or(self.sessions_max));
        let quota = Quota { sessions, ..quota };
        self.tenants.push(Tenant { quota, taken: Taken::default() });
        self.tenants.len() - 1
    }

    /// What a tenant has taken, and what it may.
    pub(super) fn taken(&self, tenant: usize) -> (Taken, Quota) {
        let known = self.tenants.get(tenant);
        known.map_or((Taken::default(), Quota::DEFAULT), |tenant| (tenant.taken, tenant.quota))
    }

    /// A session begins.
    pub(super) fn open(&mut self, tenant: usize) -> Result<(), Refused> {
        let Tenant { quota, taken } = &mut self.tenants[tenant];
        if quota.sessions.is_some_and(|most| taken.sessions >= most) {
            return Err(Refused::TenantSessions);
        }
        taken.sessions += 1;
        Ok(())
    }

    /// A session is over.
    pub(super) fn close(&mut self, tenant: usize) {
        if !self.canary.is(Mutant::PlacesKept) {
            self.tenants[tenant].taken.sessions -= 1;
        }
    }

    /// A session registers a program; whether it is new here. Once more does nothing.
    pub(super) fn register(
        &mut self,
        session: Session,
        tenant: usize,
        number: u64,
        sizes: Sizes,
    ) -> Result<bool, Refused> {
        if self.has(session, number) {
            return Ok(false);
        }
        let Tenant { quota, taken } = &mut self.tenants[tenant];
        if taken.programs >= quota.programs {
            return Err(Refused::Programs);
        }
        let state_bytes = taken.state_bytes.saturating_add(sizes.all());
        if state_bytes > quota.state_bytes {
            return Err(Refused::State);
        }
        (taken.programs, taken.state_bytes) = (taken.programs + 1, state_bytes);
        let is_new = !self.programs.contains_key(&number);
        let program = self.programs.entry(number);
        let program = program.or_insert(Program { sessions: BTreeSet::new(), sizes });
        program.sessions.insert(session);
        Ok(is_new)
    }

    /// Whether a session has registered it.
    pub(super) fn has(&self, session: Session, number: u64) -> bool {
        self.programs.get(&number).is_some_and(|program| program.sessions.contains(&session))
    }

    /// A session needs a program no more.
    pub(super) fn unregister(
        &mut self,
        session: Session,
        tenant: usize,
        number: u64,
    ) -> Option<Left> {
        let program = self.programs.get_mut(&number)?;
        if !program.sessions.remove(&session) {
            return None;
        }
        let taken = &mut self.tenants[tenant].taken;
        taken.programs -= 1;
        taken.state_bytes -= program.sizes.all();
        if !program.sessions.is_empty() && !self.canary.is(Mutant::ErasedEarly) {
            return Some(Left::Own(number));
        }
        self.programs.remove(&number);
        Some(Left::All(number))
    }

    /// What a session has registered.
    pub(super) fn of(&self, session: Session) -> Vec<u64> {
        let all = self.programs.iter();
        all.filter(|(_, program)| program.sessions.contains(&session))
            .map(|(number, _)| *number)
            .collect()
    }

    /// A call begins.
    pub(super) fn call(
        &mut self,
        session: Session,
        tenant: usize,
        number: u64,
    ) -> Result<(), Refused> {
        if !self.has(session, number) {
            return Err(Refused::NoProgram);
        }
        let Tenant { quota, taken } = &mut self.tenants[tenant];
        if taken.calls >= quota.calls {
            return Err(Refused::Calls);
        }
        taken.calls += 1;
        Ok(())
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, tenant: usize) {
        self.tenants[tenant].taken.calls -= 1;
    }

    /// Programs that there are.
    pub(super) fn len(&self) -> usize {
        self.programs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { own_bytes: 10, shared_bytes: 20 };

    #[test]
    fn the_last_session_takes_the_program_with_it() {
        let mut programs = Programs::new(1, Canary::default());
        let tenant = programs.add_tenant(Quota::DEFAULT);
        let (one, two) = (Session(1), Session(2));
        assert_eq!(programs.register(one, tenant, 9, SIZES), Ok(true));
        assert_eq!(programs.register(one, tenant, 9, SIZES), Ok(false));
        assert_eq!(programs.register(two, tenant, 9, SIZES), Ok(false));
        assert_eq!((programs.len(), programs.of(two)), (1, alloc::vec![9]));
        assert_eq!(programs.unregister(one, tenant, 9), Some(Left::Own(9)));
        assert_eq!(programs.unregister(one, tenant, 9), None);
        assert_eq!(programs.unregister(two, tenant, 9), Some(Left::All(9)));
        assert_eq!((programs.len(), programs.tenants[tenant].taken.state_bytes), (0, 0));
    }

    #[cfg(canary)]
    #[test]
    fn canary_a_program_that_is_erased_early_is_found() {
        let mut programs = Programs::new(1, Canary::new(Mutant::ErasedEarly));
        let tenant = programs.add_tenant(Quota::DEFAULT);
        for session in [Session(1), Session(2)] {
            programs.register(session, tenant, 9, SIZES).unwrap();
        }
        assert_eq!(programs.unregister(Session(1), tenant, 9), Some(Left::All(9)));
        assert!(!programs.has(Session(2), 9), "the test of the last session would find it");
    }

    #[test]
    fn quotas_hold_and_come_back() {
        let mut programs = Programs::new(1, Canary::default());
        let quota = Quota { programs: 2, state_bytes: 50, calls: 1, ..Quota::DEFAULT };
        let (tenant, one) = (programs.add_tenant(quota), Session(1));
        assert_eq!(programs.register(one, tenant, 1, SIZES), Ok(true));
        assert_eq!(programs.register(one, tenant, 2, SIZES), Err(Refused::State));
        assert_eq!(programs.register(one, tenant, 2, Sizes::default()), Ok(true));
        assert_eq!(programs.register(one, tenant, 3, Sizes::default()), Err(Refused::Programs));
        assert_eq!(programs.call(one, tenant, 3), Err(Refused::NoProgram));
        assert_eq!(programs.call(one, tenant, 1), Ok(()));
        assert_eq!(programs.call(one, tenant, 1), Err(Refused::Calls));
        programs.ended(tenant);
        assert_eq!(programs.call(one, tenant, 1), Ok(()));
        assert_eq!(programs.unregister(one, tenant, 1), Some(Left::All(1)));
        assert_eq!(programs.register(one, tenant, 3, SIZES), Ok(true));
    }

    /// Sessions that a tenant can open when it has had so many that are over.
    fn opened_again(canary: Canary) -> usize {
        let mut programs = Programs::new(3, canary);
        let tenant = programs.add_tenant(Quota::DEFAULT);
        (0..3).for_each(|_| programs.open(tenant).unwrap());
        assert_eq!(programs.open(tenant), Err(Refused::TenantSessions));
        (0..2).for_each(|_| programs.close(tenant));
        (0..9).take_while(|_| programs.open(tenant).is_ok()).count()
    }

    #[test]
    fn a_tenant_has_no_more_sessions_than_it_may() {
        assert_eq!(opened_again(Canary::default()), 2);
        let mut programs = Programs::new(3, Canary::default());
        let tenant = programs.add_tenant(Quota { sessions: Some(1), ..Quota::DEFAULT });
        let other = programs.add_tenant(Quota { sessions: Some(0), ..Quota::DEFAULT });
        assert_eq!(programs.open(tenant), Ok(()));
        assert_eq!(programs.open(tenant), Err(Refused::TenantSessions));
        assert_eq!(programs.open(other), Err(Refused::TenantSessions));
        assert_eq!(programs.taken(tenant).0, Taken { sessions: 1, ..Taken::default() });
    }

    #[cfg(canary)]
    #[test]
    fn canary_places_that_are_kept_are_found() {
        assert_eq!(opened_again(Canary::new(Mutant::PlacesKept)), 0);
    }
}
