use super::*;
use crate::call::queue::DEBT_NS_MAX;

const QUANTUM_NS: u64 = 500;

fn call(session: u32, slot: u8) -> CallId {
    CallId { session: Session(session), slot }
}

/// Tenants with these weights and numbers of sessions.
fn tenants(mutant: Planted<CallMutant>, tenants: &[(u32, u32)]) -> Schedule {
    let mut schedule = Schedule::new(QUANTUM_NS, mutant);
    let mut session = 0;
    for (tenant, (weight, sessions)) in tenants.iter().enumerate() {
        schedule.add_tenant(*weight, None);
        for _ in 0..*sessions {
            schedule.open(Session(session), tenant);
            session += 1;
        }
    }
    schedule
}

fn schedule(tenants_of: &[(u32, u32)]) -> Schedule {
    tenants(Planted::NONE, tenants_of)
}

/// A schedule with a fixed slice cost for each session, and the time that has passed.
struct ScheduleBench {
    schedule: Schedule,
    costs_ns: Vec<u64>,
    used_ns: Vec<u64>,
    now_ns: u64,
}

impl ScheduleBench {
    fn new(schedule: Schedule, costs_ns: &[u64]) -> Self {
        let used_ns = alloc::vec![0; costs_ns.len()];
        Self { schedule, costs_ns: costs_ns.to_vec(), used_ns, now_ns: 1 << 40 }
    }

    fn ready(&mut self, session: u32) {
        self.schedule.ready(call(session, 0), self.now_ns);
    }

    /// Runs one slice; returns its session.
    fn slice(&mut self, state: RunState) -> Option<u32> {
        let call = self.schedule.next(self.now_ns)?;
        let index = call.session.0 as usize;
        self.now_ns += self.costs_ns[index];
        self.used_ns[index] += self.costs_ns[index];
        self.schedule.ran(call, self.costs_ns[index], state);
        Some(call.session.0)
    }

    fn for_ns(&mut self, ns: u64) -> &[u64] {
        let until_ns = self.now_ns + ns;
        while self.now_ns < until_ns {
            self.slice(RunState::Ready).unwrap();
        }
        &self.used_ns
    }
}

/// The time that each session has used after a fifth of a second in which all are always runnable.
fn used(schedule: Schedule, costs_ns: &[u64]) -> Vec<u64> {
    let mut bench = ScheduleBench::new(schedule, costs_ns);
    (0..).zip(costs_ns).for_each(|(session, _)| bench.ready(session));
    bench.for_ns(200_000_000).to_vec()
}

#[track_caller]
fn assert_near(used_ns: u64, share_ns: u64, most_ns: u64) {
    assert!(used_ns.abs_diff(share_ns) <= most_ns, "{used_ns} of {share_ns}");
}

#[test]
fn sessions_get_equal_shares_with_any_slice_length() {
    // Slices of a millisecond against usual ones and short calls, and slices of half the maximum lag.
    for costs_ns in [[1_000_000, 500], [50_000_000, 500], [1_000_000, 50], [300, 70], [33_000, 500]]
    {
        let used_ns = used(schedule(&[(1, 2)]), &costs_ns);
        assert_near(used_ns[0], used_ns[1], costs_ns[0] + costs_ns[1] + QUANTUM_NS);
    }
}

#[test]
fn tenants_get_weighted_shares_with_any_slice_length() {
    for costs_ns in [[1_000_000, 500], [500, 1_000_000], [70, 300]] {
        let used_ns = used(schedule(&[(1, 1), (3, 1)]), &costs_ns);
        let most_ns = 3 * (costs_ns[0] + QUANTUM_NS) + costs_ns[1] + QUANTUM_NS;
        assert_near(used_ns[1], 3 * used_ns[0], most_ns);
    }
    let used_ns = used(schedule(&[(1, 1), (1_000_000, 1)]), &[500, 500]);
    assert_near(used_ns[0], 500, 500);
}

#[test]
fn a_tenant_with_more_sessions_gets_no_more() {
    let mut costs_ns = alloc::vec![500; 9];
    for slice_ns in [500, 70_000, 1_000_000] {
        costs_ns[8] = slice_ns;
        let used_ns = used(schedule(&[(1, 8), (1, 1)]), &costs_ns);
        let eight_ns = used_ns[..8].iter().sum();
        assert_near(used_ns[8], eight_ns, slice_ns + 2 * QUANTUM_NS);
        for one_ns in &used_ns[..8] {
            assert_near(*one_ns, eight_ns / 8, 2 * QUANTUM_NS);
        }
    }
}

#[test]
fn sessions_of_one_tenant_share_equally_whatever_its_weight() {
    let used_ns = used(schedule(&[(7, 2), (1, 1)]), &[1_000_000, 500, 500]);
    assert_near(used_ns[0], used_ns[1], 1_000_000 + QUANTUM_NS);
    assert_near(used_ns[0] + used_ns[1], 7 * used_ns[2], 8_000_000);
}

#[cfg(canary)]
#[test]
fn canary_schedules_that_charge_too_little_are_found() {
    let charges_none = tenants(Planted::new(CallMutant::NothingCharged), &[(1, 2)]);
    let used_ns = used(charges_none, &[1_000_000, 500]);
    assert!(used_ns[0] > 2 * used_ns[1], "not found by the test of sessions' shares: {used_ns:?}");
    let charges_sessions = tenants(Planted::new(CallMutant::TenantsUncharged), &[(1, 1), (3, 1)]);
    let used_ns = used(charges_sessions, &[500, 500]);
    assert!(used_ns[1] < 2 * used_ns[0], "not found by the test of tenants' shares: {used_ns:?}");
}

#[test]
fn calls_of_one_session_take_turns() {
    let mut schedule = schedule(&[(1, 1)]);
    schedule.ready(call(0, 1), 0);
    schedule.ready(call(0, 2), 0);
    for slot in [1, 2, 1, 2] {
        assert_eq!(schedule.next(0), Some(call(0, slot)));
        schedule.ran(call(0, slot), 1000, RunState::Ready);
    }
    schedule.forget(call(0, 1));
    assert_eq!(schedule.next(0), Some(call(0, 2)));
    schedule.ran(call(0, 2), 1, RunState::Over);
    assert_eq!((schedule.next(0), schedule.is_idle()), (None, true));
}

#[test]
fn newly_runnable_flow_runs_next() {
    for sessions in [1, 8] {
        let mut bench = ScheduleBench::new(schedule(&[(1, sessions), (1, 1)]), &[700; 9]);
        (0..sessions).for_each(|session| bench.ready(session));
        for _ in 0..1000 {
            bench.slice(RunState::Ready).unwrap();
        }
        bench.ready(sessions);
        assert_eq!(bench.slice(RunState::Ready), Some(sessions));
    }
}

#[test]
fn short_calls_wait_for_one_run_of_a_long_call() {
    // A slice is shorter than a quantum here, so a run may be two slices.
    let mut bench =
        ScheduleBench::new(schedule(&[(1, 9)]), &[400, 400, 400, 400, 400, 400, 400, 400, 10]);
    (0..8).for_each(|session| bench.ready(session));
    bench.for_ns(10_000);
    for _ in 0..1000 {
        bench.slice(RunState::Ready).unwrap();
        bench.ready(8);
        let begun_ns = bench.now_ns;
        while bench.slice(RunState::Ready) != Some(8) {}
        assert!(bench.now_ns - begun_ns <= QUANTUM_NS + 400 + 10);
        bench.schedule.forget(call(8, 0));
    }
}

#[test]
fn short_slices_of_one_session_follow_each_other_for_a_quantum() {
    let mut bench = ScheduleBench::new(schedule(&[(1, 2)]), &[100, 100]);
    (0..2).for_each(|session| bench.ready(session));
    let states: Vec<_> = (0..15).map(|_| bench.slice(RunState::Ready).unwrap()).collect();
    assert_eq!(states, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn lag_outlasts_idle_moments_of_others() {
    for tenants_of in [&[(1, 2)][..], &[(1, 1), (1, 1)]] {
        let mut bench = ScheduleBench::new(schedule(tenants_of), &[20_000_000, 500]);
        bench.ready(1);
        bench.ready(0);
        while bench.slice(RunState::Ready) != Some(0) {}
        bench.costs_ns[0] = 500;
        // The other flow has nothing to run for a moment, in which the one with the lag runs.
        while bench.slice(RunState::Over) != Some(1) {}
        assert_eq!(bench.slice(RunState::Ready), Some(0));
        bench.ready(1);
        let others_ns = bench.used_ns[1];
        while bench.slice(RunState::Ready) == Some(1) {}
        assert_near(bench.used_ns[1] - others_ns, 20_000_000, 4_000);
    }
}

#[test]
fn lag_is_kept_by_a_flow_that_leaves_and_returns() {
    let mut bench = ScheduleBench::new(schedule(&[(1, 2)]), &[1 << 40, 500]);
    bench.ready(0);
    bench.ready(1);
    assert_eq!(bench.slice(RunState::Over), Some(0));
    bench.ready(0);
    while bench.slice(RunState::Ready) == Some(1) {}
    assert_near(bench.used_ns[1], DEBT_NS_MAX, 2 * QUANTUM_NS);
}

#[test]
fn flow_that_ran_alone_owes_nothing_to_later_flows() {
    let mut bench = ScheduleBench::new(schedule(&[(1, 1), (1, 1)]), &[1_000_000, 500]);
    bench.ready(0);
    bench.for_ns(1_000_000_000);
    bench.ready(1);
    bench.used_ns.fill(0);
    let used_ns = bench.for_ns(20_000_000);
    assert_near(used_ns[0], used_ns[1], 2_001_000);
}

#[test]
fn idle_flow_saves_up_nothing() {
    let mut bench = ScheduleBench::new(schedule(&[(1, 2)]), &[500, 500]);
    bench.ready(0);
    bench.for_ns(1_000_000_000);
    bench.ready(1);
    bench.used_ns.fill(0);
    let used_ns = bench.for_ns(100_000);
    assert_near(used_ns[0], used_ns[1], 2 * QUANTUM_NS);
}

#[test]
fn flow_below_its_share_gets_all_requested_time() {
    // Bursts of 50 us; the next one arrives while a slice of a millisecond is running.
    let mut bench = ScheduleBench::new(schedule(&[(1, 1), (1, 1)]), &[1_000_000, 500]);
    bench.ready(0);
    for _ in 0..1000 {
        assert_eq!(bench.slice(RunState::Ready), Some(0));
        bench.ready(1);
        for left in (0..100).rev() {
            let state = if left == 0 { RunState::Over } else { RunState::Ready };
            assert_eq!(bench.slice(state), Some(1));
        }
    }
}

/// Time used by a session that is reopened after each slice, and by one that stays open.
fn reopening(mut bench: ScheduleBench) -> Vec<u64> {
    bench.ready(1);
    for _ in 0..1000 {
        bench.schedule.open(Session(0), 0);
        bench.ready(0);
        while bench.slice(RunState::Ready) != Some(0) {}
        bench.schedule.close(Session(0));
    }
    bench.used_ns
}

#[test]
fn reopened_session_keeps_its_lag() {
    for tenants_of in [&[(1, 2)][..], &[(1, 1), (1, 1)]] {
        let used_ns = reopening(ScheduleBench::new(schedule(tenants_of), &[300_000, 500]));
        assert_near(used_ns[0], used_ns[1], 600_000 + QUANTUM_NS);
    }
}

#[cfg(canary)]
#[test]
fn canary_a_session_that_sheds_its_debt_is_found() {
    let sheds = tenants(Planted::new(CallMutant::DebtShed), &[(1, 2)]);
    let used_ns = reopening(ScheduleBench::new(sheds, &[300_000, 500]));
    assert!(used_ns[0] > 2 * used_ns[1], "not found by the test of reopened sessions: {used_ns:?}");
}

#[test]
fn work_outside_calls_is_charged() {
    let mut bench = ScheduleBench::new(schedule(&[(1, 2)]), &[500, 500]);
    bench.ready(1);
    bench.slice(RunState::Ready);
    bench.schedule.charge(Session(0), 1_000_000);
    bench.ready(0);
    while bench.slice(RunState::Ready) == Some(1) {}
    assert_near(bench.used_ns[1], 1_000_000, 2 * QUANTUM_NS);
}

#[test]
fn a_tenant_that_has_used_up_its_time_waits_for_more() {
    let mut schedule = Schedule::new(100, Planted::NONE);
    schedule.add_tenant(1, Some(100_000_000));
    schedule.add_tenant(1, None);
    schedule.open(Session(0), 0);
    schedule.open(Session(1), 1);
    schedule.ready(call(0, 0), 0);
    assert_eq!(schedule.next(0), Some(call(0, 0)));
    schedule.ran(call(0, 0), BURST_NS + 1_000_000, RunState::Ready);
    assert_eq!((schedule.next(0), schedule.is_idle()), (None, false));
    let at = schedule.wakes_at_ns().unwrap();
    assert!((10_000_000..10_000_100).contains(&at), "{at}: a tenth of the time");
    schedule.ready(call(1, 0), 0);
    assert_eq!(schedule.next(0), Some(call(1, 0)), "others are not disturbed");
    schedule.ran(call(1, 0), 1, RunState::Over);
    assert_eq!(schedule.next(at), Some(call(0, 0)));
    schedule.ran(call(0, 0), BURST_NS, RunState::Ready);
    assert_eq!(schedule.next(at), None);
    schedule.forget(call(0, 0));
    assert_eq!((schedule.is_idle(), schedule.wakes_at_ns()), (true, None));
}

#[test]
fn barred_tenant_saves_up_nothing() {
    let mut schedule = Schedule::new(QUANTUM_NS, Planted::NONE);
    schedule.add_tenant(1, Some(100_000_000));
    schedule.add_tenant(1, None);
    (0..2).for_each(|session| schedule.open(Session(session), session as usize));
    let mut bench = ScheduleBench::new(schedule, &[500, 500]);
    (0..2).for_each(|session| bench.ready(session));
    let used_ns = bench.for_ns(1_000_000_000);
    assert_near(used_ns[0], 100_000_000 + BURST_NS, 10_000);
    // Each time that it may run again, others wait for one of its runs.
    let begun_ns = bench.used_ns[0];
    let used_ns = bench.for_ns(10_000);
    assert!(used_ns[0] - begun_ns <= 2_000);
}

#[test]
fn a_number_that_serves_again_has_nothing_of_its_former_session() {
    let mut schedule = schedule(&[(1, 1)]);
    schedule.ready(call(0, 3), 0);
    schedule.close(Session(0));
    schedule.open(Session(0), 0);
    assert_eq!(schedule.next(0), None);
    schedule.ready(call(0, 1), 0);
    assert_eq!(schedule.next(0), Some(call(0, 1)));
}

#[test]
fn next_without_ran_gives_each_call_once() {
    let mut schedule = schedule(&[(1, 2)]);
    schedule.ready(call(0, 0), 0);
    schedule.ready(call(1, 0), 0);
    assert_eq!(schedule.next(0), Some(call(0, 0)));
    assert_eq!(schedule.next(0), Some(call(1, 0)));
    assert_eq!((schedule.next(0), schedule.is_idle()), (None, true));
    schedule.ran(call(0, 0), 10, RunState::Ready);
    assert_eq!(schedule.next(0), Some(call(0, 0)));
}

#[test]
fn answered_call_may_be_charged_later() {
    for others in [0, 1] {
        let ends = [true, false].map(|early| {
            let mut schedule = schedule(&[(1, 1), (1, 1)]);
            (0..=others).for_each(|session| schedule.ready(call(session, 0), 5));
            for session in 0..=others {
                assert_eq!(schedule.next(10), Some(call(session, 0)));
                if early {
                    schedule.forget(call(session, 0));
                }
                schedule.ran(call(session, 0), 700, RunState::Over);
            }
            assert!(schedule.is_idle());
            schedule
        });
        assert_eq!(ends[0], ends[1]);
    }
}
