//! The objects that sessions have registered, and the resources that tenants have taken.
//!
//! An object has one program, or several that share their state, and is identified by a number derived from its
//! bytes. It exists once for all sessions that have registered it, and is erased with the last of them (003 §2).

use super::Session;
use super::canary::{CallMutant, mutant};
use super::message::Refused;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use farside_base::Planted;

/// The maximum number of programs of an object.
pub const PROGRAMS_MAX: usize = 256;

/// The number of a program's object; the lowest byte of a program's number is its index in the object.
pub const fn object_of(program: u64) -> u64 {
    program & !0xff
}

/// The number of a program of an object.
pub const fn program_of(object: u64, at: u8) -> u64 {
    object_of(object) | at as u64
}

/// The resources that a tenant may take, all its sessions together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quota {
    /// Registrations: a program that two sessions have registered counts twice.
    pub programs: u32,
    /// Bytes of state and programs. Counts registered programs as stored, the state that they declare, and objects
    /// that are being registered; state shared by sessions counts for each.
    pub state_bytes: u64,
    /// Calls in progress.
    pub calls: u32,
    /// Sessions of callers, including disconnected ones that may reconnect. `None`: the executor's default per
    /// tenant, which is all but a quarter, less one for each other tenant; all if no tenant is named.
    pub sessions: Option<u32>,
    /// Processor nanoseconds per second, on average; `None` for no limit.
    pub processor_ns_per_s: Option<u64>,
    /// Its share of the processor, relative to other tenants' and independent of the number of sessions, which share
    /// it equally. At least 1.
    pub weight: u32,
}

impl Quota {
    /// The quota of a tenant without a configured one.
    pub const DEFAULT: Self = Self {
        programs: 256,
        state_bytes: 64 << 20,
        calls: 1024,
        sessions: None,
        processor_ns_per_s: None,
        weight: 1,
    };
}

/// The resources that a tenant has taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Taken {
    /// Registrations.
    pub programs: u32,
    /// Bytes of registered programs and their state.
    pub state_bytes: u64,
    /// Bytes of objects that are being registered.
    pub registering_bytes: u64,
    /// Calls in progress.
    pub calls: u32,
    /// Sessions.
    pub sessions: u32,
}

impl Taken {
    /// Bytes that count towards [`Quota::state_bytes`].
    pub const fn bytes(self) -> u64 {
        self.state_bytes.saturating_add(self.registering_bytes)
    }
}

/// The resources that an object takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sizes {
    /// Its programs, at most [`PROGRAMS_MAX`].
    pub programs: u32,
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
struct Object {
    sessions: BTreeSet<Session>,
    sizes: Sizes,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Tenant {
    quota: Quota,
    taken: Taken,
}

/// State to erase when a session drops an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Left {
    /// State of the session at this object.
    Own(u64),
    /// The whole object.
    All(u64),
}

/// Programs and tenants.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Programs {
    objects: BTreeMap<u64, Object>,
    tenants: Vec<Tenant>,
    /// Bytes of the object that a session is registering.
    reservations: BTreeMap<Session, u64>,
    /// The maximum of these bytes, of all tenants together.
    registering_bytes_max: u64,
    /// The maximum number of sessions of a tenant without a session quota.
    sessions_max: u32,
    mutant: Planted<CallMutant>,
}

impl Programs {
    pub(super) const fn new(
        sessions_max: u32,
        registering_bytes_max: u64,
        mutant: Planted<CallMutant>,
    ) -> Self {
        Self {
            objects: BTreeMap::new(),
            tenants: Vec::new(),
            reservations: BTreeMap::new(),
            registering_bytes_max,
            sessions_max,
            mutant,
        }
    }

    pub(super) fn add_tenant(&mut self, quota: Quota) -> usize {
        let sessions = Some(quota.sessions.unwrap_or(self.sessions_max));
        let quota = Quota { sessions, ..quota };
        self.tenants.push(Tenant { quota, taken: Taken::default() });
        self.tenants.len() - 1
    }

    /// The resources that a tenant has taken, and its quota.
    pub(super) fn taken(&self, tenant: usize) -> (Taken, Quota) {
        let known = self.tenants.get(tenant);
        known.map_or((Taken::default(), Quota::DEFAULT), |tenant| (tenant.taken, tenant.quota))
    }

    /// Counts a new session.
    pub(super) fn open(&mut self, tenant: usize) -> Result<(), Refused> {
        let Tenant { quota, taken } = &mut self.tenants[tenant];
        if quota.sessions.is_some_and(|most| taken.sessions >= most) {
            return Err(Refused::TenantSessions);
        }
        taken.sessions += 1;
        Ok(())
    }

    /// Removes an ended session from the count.
    pub(super) fn close(&mut self, tenant: usize) {
        if !mutant!(self, PlacesKept) {
            self.tenants[tenant].taken.sessions -= 1;
        }
    }

    /// Whether a tenant may register anything more.
    pub(super) fn has_room(&self, tenant: usize) -> bool {
        let tenant = self.tenants.get(tenant);
        tenant.is_some_and(|tenant| tenant.taken.programs < tenant.quota.programs)
    }

    /// Reserves `bytes` for the object that a session begins to register, until [`Self::release`]; replaces the
    /// session's previous reservation.
    pub(super) fn reserve(
        &mut self,
        session: Session,
        tenant: usize,
        bytes: u64,
    ) -> Result<(), Refused> {
        self.release(session, tenant);
        let Tenant { quota, taken } = &mut self.tenants[tenant];
        if taken.bytes().saturating_add(bytes) > quota.state_bytes {
            return Err(Refused::State);
        }
        let all: u64 = self.reservations.values().sum();
        if all.saturating_add(bytes) > self.registering_bytes_max {
            return Err(Refused::Registrations);
        }
        taken.registering_bytes += bytes;
        self.reservations.insert(session, bytes);
        Ok(())
    }

    /// Releases the reservation of a session.
    pub(super) fn release(&mut self, session: Session, tenant: usize) {
        if mutant!(self, ReservationsKept) {
            return;
        }
        if let Some(bytes) = self.reservations.remove(&session) {
            self.tenants[tenant].taken.registering_bytes -= bytes;
        }
    }

    /// Bytes of all objects that are being registered.
    pub(super) fn registering_bytes(&self) -> u64 {
        self.reservations.values().sum()
    }

    /// Registers an object for a session; returns whether it is new to the executor. Does nothing if repeated.
    pub(super) fn register(
        &mut self,
        session: Session,
        tenant: usize,
        object: u64,
        sizes: Sizes,
    ) -> Result<bool, Refused> {
        if self.has(session, object) {
            return Ok(false);
        }
        let Tenant { quota, taken } = &mut self.tenants[tenant];
        let programs = taken.programs.saturating_add(sizes.programs);
        if programs > quota.programs {
            return Err(Refused::Programs);
        }
        if taken.bytes().saturating_add(sizes.all()) > quota.state_bytes {
            return Err(Refused::State);
        }
        let state_bytes = taken.state_bytes + sizes.all();
        (taken.programs, taken.state_bytes) = (programs, state_bytes);
        let is_new = !self.objects.contains_key(&object);
        let known = self.objects.entry(object);
        let known = known.or_insert(Object { sessions: BTreeSet::new(), sizes });
        known.sessions.insert(session);
        Ok(is_new)
    }

    /// Whether a session has registered an object.
    pub(super) fn has(&self, session: Session, object: u64) -> bool {
        self.objects.get(&object).is_some_and(|known| known.sessions.contains(&session))
    }

    /// Whether a session has registered a program.
    fn has_program(&self, session: Session, program: u64) -> bool {
        let known = self.objects.get(&object_of(program));
        let at = program - object_of(program);
        known.is_some_and(|known| {
            at < u64::from(known.sizes.programs) && known.sessions.contains(&session)
        })
    }

    /// Drops a session's registration of an object.
    pub(super) fn unregister(
        &mut self,
        session: Session,
        tenant: usize,
        object: u64,
    ) -> Option<Left> {
        let known = self.objects.get_mut(&object)?;
        if !known.sessions.remove(&session) {
            return None;
        }
        let taken = &mut self.tenants[tenant].taken;
        taken.programs -= known.sizes.programs;
        taken.state_bytes -= known.sizes.all();
        if !known.sessions.is_empty() && !mutant!(self, ErasedEarly) {
            return Some(Left::Own(object));
        }
        self.objects.remove(&object);
        Some(Left::All(object))
    }

    /// The objects that a session has registered.
    pub(super) fn of(&self, session: Session) -> Vec<u64> {
        let all = self.objects.iter();
        all.filter(|(_, object)| object.sessions.contains(&session))
            .map(|(number, _)| *number)
            .collect()
    }

    /// Counts a call of a program.
    pub(super) fn call(
        &mut self,
        session: Session,
        tenant: usize,
        program: u64,
    ) -> Result<(), Refused> {
        if !self.has_program(session, program) {
            return Err(Refused::NoProgram);
        }
        let Tenant { quota, taken } = &mut self.tenants[tenant];
        if taken.calls >= quota.calls {
            return Err(Refused::Calls);
        }
        taken.calls += 1;
        Ok(())
    }

    /// Removes an ended call from the count.
    pub(super) fn ended(&mut self, tenant: usize) {
        self.tenants[tenant].taken.calls -= 1;
    }

    /// The number of programs.
    pub(super) fn len(&self) -> usize {
        self.objects.values().map(|object| object.sizes.programs as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { programs: 1, own_bytes: 10, shared_bytes: 20 };
    const SMALL: Sizes = Sizes { programs: 1, own_bytes: 0, shared_bytes: 0 };
    /// Numbers of objects.
    const NINE: u64 = 0x900;

    #[test]
    fn the_last_session_takes_the_program_with_it() {
        let mut programs = Programs::new(1, u64::MAX, Planted::NONE);
        let tenant = programs.add_tenant(Quota::DEFAULT);
        let (one, two) = (Session(1), Session(2));
        assert_eq!(programs.register(one, tenant, NINE, SIZES), Ok(true));
        assert_eq!(programs.register(one, tenant, NINE, SIZES), Ok(false));
        assert_eq!(programs.register(two, tenant, NINE, SIZES), Ok(false));
        assert_eq!((programs.len(), programs.of(two)), (1, alloc::vec![NINE]));
        assert_eq!(programs.unregister(one, tenant, NINE), Some(Left::Own(NINE)));
        assert_eq!(programs.unregister(one, tenant, NINE), None);
        assert_eq!(programs.unregister(two, tenant, NINE), Some(Left::All(NINE)));
        assert_eq!((programs.len(), programs.tenants[tenant].taken.state_bytes), (0, 0));
    }

    #[cfg(canary)]
    #[test]
    fn canary_a_program_that_is_erased_early_is_found() {
        let mut programs = Programs::new(1, u64::MAX, Planted::new(CallMutant::ErasedEarly));
        let tenant = programs.add_tenant(Quota::DEFAULT);
        for session in [Session(1), Session(2)] {
            programs.register(session, tenant, NINE, SIZES).unwrap();
        }
        assert_eq!(programs.unregister(Session(1), tenant, NINE), Some(Left::All(NINE)));
        assert!(!programs.has(Session(2), NINE), "the test of the last session would find it");
    }

    #[test]
    fn quotas_hold_and_come_back() {
        let mut programs = Programs::new(1, u64::MAX, Planted::NONE);
        let quota = Quota { programs: 2, state_bytes: 50, calls: 1, ..Quota::DEFAULT };
        let (tenant, one) = (programs.add_tenant(quota), Session(1));
        assert_eq!(programs.register(one, tenant, 0x100, SIZES), Ok(true));
        assert_eq!(programs.register(one, tenant, 0x200, SIZES), Err(Refused::State));
        assert_eq!(programs.register(one, tenant, 0x200, SMALL), Ok(true));
        assert_eq!(programs.register(one, tenant, 0x300, SMALL), Err(Refused::Programs));
        assert_eq!(programs.call(one, tenant, 0x300), Err(Refused::NoProgram));
        assert_eq!(programs.call(one, tenant, 0x100), Ok(()));
        assert_eq!(programs.call(one, tenant, 0x100), Err(Refused::Calls));
        programs.ended(tenant);
        assert_eq!(programs.call(one, tenant, 0x100), Ok(()));
        assert_eq!(programs.unregister(one, tenant, 0x100), Some(Left::All(0x100)));
        assert_eq!(programs.register(one, tenant, 0x300, SIZES), Ok(true));
    }

    #[test]
    fn programs_of_an_object_come_and_go_together() {
        let mut programs = Programs::new(1, u64::MAX, Planted::NONE);
        let quota = Quota { programs: 4, state_bytes: 50, ..Quota::DEFAULT };
        let (tenant, one) = (programs.add_tenant(quota), Session(1));
        let three = Sizes { programs: 3, ..SIZES };
        assert_eq!(programs.register(one, tenant, NINE, three), Ok(true));
        assert_eq!(programs.tenants[tenant].taken.state_bytes, 30, "they share their state");
        for at in 0..3 {
            assert_eq!(programs.call(one, tenant, program_of(NINE, at)), Ok(()));
        }
        assert_eq!(programs.call(one, tenant, program_of(NINE, 3)), Err(Refused::NoProgram));
        assert_eq!(programs.register(one, tenant, 0x100, three), Err(Refused::Programs));
        assert_eq!((programs.len(), programs.has_room(tenant)), (3, true));
        assert_eq!(programs.register(one, tenant, 0x100, SMALL), Ok(true));
        assert!(!programs.has_room(tenant));
        assert_eq!(programs.unregister(one, tenant, NINE), Some(Left::All(NINE)));
        assert_eq!(programs.call(one, tenant, program_of(NINE, 0)), Err(Refused::NoProgram));
        assert_eq!((programs.len(), programs.tenants[tenant].taken.state_bytes), (1, 0));
    }

    /// How often a tenant with a quota of 50 B can begin to register an object of 30 B and abandon it.
    fn begun_again(mutant: Planted<CallMutant>) -> usize {
        let mut programs = Programs::new(1, u64::MAX, mutant);
        let tenant = programs.add_tenant(Quota { state_bytes: 50, ..Quota::DEFAULT });
        let begun = |programs: &mut Programs| {
            let begun = programs.reserve(Session(0), tenant, 30).is_ok();
            programs.release(Session(0), tenant);
            begun
        };
        (0..9).take_while(|_| begun(&mut programs)).count()
    }

    #[test]
    fn objects_that_are_being_registered_count_until_they_are_not() {
        assert_eq!(begun_again(Planted::NONE), 9);
        let mut programs = Programs::new(1, 100, Planted::NONE);
        let tenant = programs.add_tenant(Quota { state_bytes: 90, ..Quota::DEFAULT });
        let other = programs.add_tenant(Quota::DEFAULT);
        let (one, two, three) = (Session(1), Session(2), Session(3));
        assert_eq!(programs.register(one, tenant, NINE, SIZES), Ok(true), "30 B");
        assert_eq!(programs.reserve(one, tenant, 50), Ok(()));
        assert_eq!(programs.reserve(two, tenant, 20), Err(Refused::State), "100 of 90 B");
        assert_eq!(programs.register(two, tenant, NINE, SIZES), Err(Refused::State));
        assert_eq!(programs.reserve(three, other, 60), Err(Refused::Registrations), "110 of 100 B");
        assert_eq!(programs.reserve(one, tenant, 20), Ok(()), "in place of the one before");
        assert_eq!(programs.reserve(three, other, 60), Ok(()));
        assert_eq!(programs.registering_bytes(), 80);
        for (session, tenant) in [(one, tenant), (three, other), (three, other)] {
            programs.release(session, tenant);
        }
        assert_eq!(programs.registering_bytes(), 0);
        assert_eq!(programs.taken(tenant).0.bytes(), 30);
        assert_eq!(programs.register(two, tenant, NINE, SIZES), Ok(false));
    }

    #[cfg(canary)]
    #[test]
    fn canary_reservations_that_are_kept_are_found() {
        assert_eq!(begun_again(Planted::new(CallMutant::ReservationsKept)), 1);
    }

    /// The number of sessions that a tenant can open after as many have ended.
    fn opened_again(mutant: Planted<CallMutant>) -> usize {
        let mut programs = Programs::new(3, u64::MAX, mutant);
        let tenant = programs.add_tenant(Quota::DEFAULT);
        (0..3).for_each(|_| programs.open(tenant).unwrap());
        assert_eq!(programs.open(tenant), Err(Refused::TenantSessions));
        (0..2).for_each(|_| programs.close(tenant));
        (0..9).take_while(|_| programs.open(tenant).is_ok()).count()
    }

    #[test]
    fn a_tenant_has_no_more_sessions_than_it_may() {
        assert_eq!(opened_again(Planted::NONE), 2);
        let mut programs = Programs::new(3, u64::MAX, Planted::NONE);
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
        assert_eq!(opened_again(Planted::new(CallMutant::PlacesKept)), 0);
    }
}
