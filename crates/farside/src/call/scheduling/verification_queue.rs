//! Scheduling of registrations: one verification per tenant at a time, and a limit for all.
//!
//! A verification has working memory of up to [`Verification::BYTES_MAX`](farside_rmc::Verification::BYTES_MAX)
//! bytes, so registrations queue here. Round robin over tenants: among tenants with a queued registration and none
//! in progress, the least recently served one is next, with its oldest registration.

use std::collections::{BTreeMap, VecDeque};

/// The slots of registrations, with their tenants.
#[derive(Debug)]
pub(crate) struct VerificationQueue {
    waiting: VecDeque<(usize, usize)>,
    verified: Vec<(usize, usize)>,
    /// When each tenant was served last, counted in registrations.
    served: BTreeMap<usize, u64>,
    serving: u64,
    verified_max: usize,
}

impl VerificationQueue {
    /// Returns a scheduler that runs at most this many at once, at least one.
    pub(crate) fn new(verified_max: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            verified: Vec::new(),
            served: BTreeMap::new(),
            serving: 0,
            verified_max: verified_max.max(1),
        }
    }

    /// Queues a registration.
    pub(crate) fn add(&mut self, place: usize, tenant: usize) {
        self.waiting.push_back((place, tenant));
    }

    /// Removes a registration that has ended.
    pub(crate) fn remove(&mut self, place: usize) {
        self.waiting.retain(|(at, _)| *at != place);
        self.verified.retain(|(at, _)| *at != place);
    }

    /// Returns the next registration that may be verified now.
    pub(crate) fn start(&mut self) -> Option<usize> {
        if self.verified.len() >= self.verified_max {
            return None;
        }
        let is_served = |tenant: usize| self.verified.iter().any(|(_, other)| *other == tenant);
        let waiting = self.waiting.iter().enumerate();
        let free = waiting.filter(|(_, (_, tenant))| !is_served(*tenant));
        let since = |tenant: &usize| self.served.get(tenant).copied().unwrap_or(0);
        let (at, _) = free.min_by_key(|(at, (_, tenant))| (since(tenant), *at))?;
        let (place, tenant) = self.waiting.remove(at)?;
        self.serving += 1;
        self.served.insert(tenant, self.serving);
        self.verified.push((place, tenant));
        Some(place)
    }

    /// Returns the registrations of a tenant, queued or in progress.
    pub(crate) fn of(&self, tenant: usize) -> usize {
        self.waiting.iter().chain(&self.verified).filter(|(_, other)| *other == tenant).count()
    }

    /// Returns how many are queued, and how many are in progress.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.verified.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_has_one_verification_at_a_time() {
        let mut loads = VerificationQueue::new(8);
        (0..5).for_each(|place| loads.add(place, 7));
        assert_eq!((loads.start(), loads.start()), (Some(0), None));
        assert_eq!((loads.counts(), loads.of(7)), ((4, 1), 5));
        loads.remove(0);
        loads.remove(2);
        assert_eq!((loads.start(), loads.start()), (Some(1), None));
        assert_eq!((loads.counts(), loads.of(7), loads.of(8)), ((2, 1), 3, 0));
    }

    #[test]
    fn tenants_are_served_round_robin_regardless_of_queue_length() {
        let mut loads = VerificationQueue::new(1);
        (0..6).for_each(|place| loads.add(place, 1));
        loads.add(10, 2);
        loads.add(20, 3);
        loads.add(21, 3);
        let mut order = Vec::new();
        while let Some(place) = loads.start() {
            assert_eq!(loads.start(), None, "no more than one of all");
            order.push(place);
            loads.remove(place);
        }
        assert_eq!(order, [0, 10, 20, 1, 21, 2, 3, 4, 5]);
    }
}
