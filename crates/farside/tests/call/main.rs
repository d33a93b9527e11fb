//! Remote memory calls over every fabric of these tests: guarantees for callers.

mod global;
mod hostile;
mod library;
mod over;
mod placed;
mod polls;
mod programs;
mod words;

use farside::ErrorCode;
use farside::call::rmc::helpers::status;
use farside::call::{CallOptions, CallServer, Caller, CallerOptions, Quota, ServerOptions, Site};
use over::{Ends, over};
use programs::{LIST_SEARCH, parameters};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

farside_testkit::on_each_fabric! { mem shm tcp => (
    list_search_returns_the_same_result_at_every_site
    concurrent_calls_each_get_their_answer
    long_calls_beyond_ring_capacity_are_all_answered
    closed_caller_ends_its_session_before_its_grace
    abandoned_call_frees_its_slot_and_outcome
    compute_bound_calls_do_not_delay_other_callers
    invalid_requests_return_located_errors_and_the_executor_continues
    helpers_agree_on_local_and_remote_memory
    state_is_scoped_as_declared_and_erased_with_the_last_caller
    calls_stop_on_cancel_deadline_and_budget
    waiting_call_resumes_when_its_word_changes
    locks_exclude_and_are_released_when_a_call_is_stopped
    subscribers_receive_notifications
    topic_limit_is_reported_and_other_topics_still_deliver
    quotas_are_enforced_without_affecting_other_tenants
    tenant_cannot_use_the_sessions_of_all_others
    output_arrives_whole_or_the_call_is_stopped
    multi_part_object_is_registered_by_a_busy_executor
    unregister_at_a_silent_executor_times_out_without_residue
)}

const LONG: Duration = Duration::from_secs(30);

/// Writes a list of nodes (key, value, next) with keys 1 to n to scattered offsets of region 0; returns the offset
/// of its head.
fn list(ends: &Ends, nodes: u64) -> u64 {
    let place = |at: u64| 64 + (at * 7 % nodes) * 24;
    for at in 0..nodes {
        let next = if at + 1 < nodes { place(at + 1) } else { 0 };
        let words = [at + 1, (at + 1) * 100, next].map(u64::to_le_bytes);
        ends.memory.write(place(at), &words.concat()).unwrap();
    }
    place(0)
}

fn list_search_returns_the_same_result_at_every_site(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let head = list(ends, 16);
        let mut caller = ends.caller(&CallerOptions::default());
        let programs = caller.register(LIST_SEARCH.as_bytes()).unwrap();
        assert_eq!((programs.len(), programs[0].name.as_str()), (1, "list_search"));
        for (key, value) in [(1, 100), (9, 900), (16, 1600), (17, 0)] {
            for runs in [Site::Remote, Site::Local] {
                let parameters = parameters(&[head, key]);
                let answer = caller
                    .call(&programs[0], &parameters, CallOptions::new().site(runs).timeout(LONG))
                    .unwrap();
                assert_eq!((answer.result, answer.output), (value, vec![]), "{fabric} {runs:?}");
            }
        }
    });
}

fn concurrent_calls_each_get_their_answer(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let head = list(ends, 100);
        let mut caller = ends.caller(&CallerOptions::default());
        let search = caller.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        let mut begun = Vec::new();
        let mut answers = 0;
        for key in 0..1000_u64 {
            let key = key % 100 + 1;
            loop {
                if let Some(ticket) =
                    caller.invoke(&search, &parameters(&[head, key]), CallOptions::new()).unwrap()
                {
                    begun.push((ticket, key));
                    break;
                }
                caller.progress().unwrap();
                answers += taken(&mut caller, &mut begun);
            }
        }
        for (ticket, key) in begun {
            assert_eq!(caller.wait(ticket, LONG).unwrap().result, key * 100, "{fabric}");
            answers += 1;
        }
        assert_eq!(answers, 1000);
    });
}

fn long_calls_beyond_ring_capacity_are_all_answered(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        let first = b".program first\nr0 = *(u64 *)(r1 + 0)\nexit";
        let first = caller.register(first).unwrap().remove(0);
        for round in 0..4 {
            let begin = |number: u64| {
                let mut parameters = vec![0; 4096];
                parameters[..8].copy_from_slice(&(round * 100 + number).to_le_bytes());
                caller
                    .invoke(&first, &parameters, CallOptions::new())
                    .unwrap()
                    .expect("a free slot")
            };
            let tickets: Vec<_> = (0..32).map(begin).collect();
            for (number, ticket) in (0..).zip(tickets) {
                let answer = caller.wait(ticket, LONG).unwrap();
                assert_eq!(answer.result, round * 100 + number, "{fabric}");
            }
        }
    });
}

fn closed_caller_ends_its_session_before_its_grace(fabric: &str) {
    let options = ServerOptions::default().grace(Some(Duration::from_secs(3600)));
    over(fabric, &options, |ends| {
        let mut stays = ends.caller(&CallerOptions::default());
        let search = stays.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        for _ in 0..3 {
            let mut leaves = ends.caller(&CallerOptions::default());
            ends.until(|counts| counts.sessions == 2);
            leaves.register(LIST_SEARCH.as_bytes()).unwrap();
            drop(leaves);
            ends.until(|counts| counts.sessions == 1);
        }
        let answer =
            stays.call(&search, &parameters(&[0, 1]), CallOptions::new().timeout(LONG)).unwrap();
        assert_eq!(answer.result, 0, "{fabric}");
    });
}

fn abandoned_call_frees_its_slot_and_outcome(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let options = CallerOptions::default().slots(2);
        let mut caller = ends.caller(&options);
        let waits = b".program waits\nr1 = 0\nr2 = 8\nr3 = 0\nr4 = -1\ncall wait_word\nexit";
        let waits = caller.register(waits).unwrap().remove(0);
        for runs in [Site::Remote, Site::Local] {
            ends.memory.write(8, &0_u64.to_le_bytes()).unwrap();
            let short = Duration::from_millis(1);
            let late =
                caller.call(&waits, &[], CallOptions::new().site(runs).timeout(short)).unwrap_err();
            assert_eq!(late.code, ErrorCode::TimedOut, "{fabric} {runs:?} {late}");
            ends.memory.write(8, &1_u64.to_le_bytes()).unwrap();
            // Its slot is free again, and no outcome of an abandoned call remains.
            for _ in 0..4 {
                let answer =
                    caller.call(&waits, &[], CallOptions::new().site(runs).timeout(LONG)).unwrap();
                assert_eq!(answer.result, 0, "{fabric} {runs:?}");
            }
            while caller.room() < 2 {
                caller.progress().unwrap();
            }
            assert_eq!(caller.poll_any(), None, "{fabric} {runs:?}");
        }
    });
}

/// Some 8,000,000 instructions without an access.
const COMPUTES: &[u8] =
    b".program computes\nr0 = 2000000\nagain:\nr1 = r0\nr1 *= 3\nr0 -= 1\nif r0 != 0 goto again\nexit";

fn compute_bound_calls_do_not_delay_other_callers(fabric: &str) {
    let name = format!("call-fair-{fabric}-{}", std::process::id());
    let (there, here) = over::pair(fabric);
    let mut options = ServerOptions::default();
    options.limits.budget.instructions = 1 << 23;
    let mut server = CallServer::listen(&there, &name, &options).unwrap();
    let address = server.address().unwrap();
    let first = b".program first\nr0 = *(u64 *)(r1 + 0)\nexit";
    let mut both = [COMPUTES, first].map(|object| {
        let mut caller = Caller::begin(&here, &address, &CallerOptions::default()).unwrap();
        let mut begun = false;
        let program = loop {
            server.progress();
            caller.progress().unwrap();
            begun = begun || caller.begin_register(object).unwrap();
            if let Some(programs) = caller.registered() {
                break programs.unwrap().remove(0);
            }
        };
        (caller, program)
    });
    let [(long, computes), (short, first)] = &mut both;
    let (mut polls_each, mut ended) = (Vec::new(), 0);
    // Callers and executor are polled alternately, so a call's wait is counted in polls of the executor.
    for number in 0..100 {
        let ticket =
            short.invoke(first, &parameters(&[number]), CallOptions::new()).unwrap().unwrap();
        short.progress().unwrap();
        let mut polls = 0;
        let end = loop {
            server.progress();
            polls += 1;
            // Eight long calls are always in progress.
            while long.room() > 24 {
                long.invoke(computes, &[], CallOptions::new()).unwrap();
            }
            long.progress().unwrap();
            while let Some((_, end)) = long.poll_any() {
                end.unwrap();
                ended += 1;
            }
            short.progress().unwrap();
            if let Some(end) = short.poll(ticket) {
                break end;
            }
        };
        assert_eq!(end.unwrap().result, number);
        polls_each.push(polls);
    }
    polls_each.sort_unstable();
    // On any machine, a slice has at most 4,096 instructions and a poll 64 slices.
    let polls = polls_each.iter().sum::<usize>();
    assert!(ended * 20 <= polls, "{fabric}: {ended} long calls ended within {polls} polls");
    // The clock may occasionally charge time of other processes. Over TCP some polls find nothing, since
    // messages are still in flight.
    assert!(fabric == "tcp" || polls_each[50] <= 6, "{fabric}: {polls_each:?}");
}

fn taken(caller: &mut Caller, begun: &mut Vec<(farside::call::Ticket, u64)>) -> usize {
    let before = begun.len();
    begun.retain(|(ticket, key)| match caller.poll(*ticket) {
        Some(answer) => {
            assert_eq!(answer.unwrap().result, key * 100);
            false
        }
        None => true,
    });
    before - begun.len()
}

fn invalid_requests_return_located_errors_and_the_executor_continues(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        let code = |result: Result<_, farside::Error>| result.map(|_: Vec<_>| ()).unwrap_err();
        let error = code(caller.register(b"\x7fELFjunk"));
        assert_eq!(error.code, ErrorCode::BadProgram, "{error}");
        let error = code(caller.register(b"r0 = what"));
        assert_eq!(error.code, ErrorCode::BadProgram, "{error}");
        let error = code(caller.register(b".program bad\nr0 = r3\nexit"));
        assert_eq!(error.code, ErrorCode::UnsafeProgram, "{error}");
        assert!(error.detail.contains("bad") && error.detail.contains(":3"), "{error}");
        let error = code(caller.register(b"r1 = 0\ncall global_load_u64\nexit"));
        assert_eq!(error.code, ErrorCode::ExecutorLacks, "{error}");
        assert_eq!(code(caller.register(b"")).code, ErrorCode::BadProgram);

        let search = caller.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        let short = caller.invoke(&search, &[0; 8], CallOptions::new()).unwrap_err();
        assert_eq!(short.code, ErrorCode::BadParameters, "{short}");
        for runs in [Site::Remote, Site::Local] {
            let outside = parameters(&[1 << 40, 1]);
            let error = caller
                .call(&search, &outside, CallOptions::new().site(runs).timeout(LONG))
                .unwrap_err();
            assert_eq!(error.code, ErrorCode::CallStopped, "{fabric} {runs:?} {error}");
            assert!(error.detail.contains("list_search"), "{error}");
        }
        let forged = farside::call::Program { number: search.number ^ 1, ..search.clone() };
        let error = caller
            .call(&forged, &parameters(&[0, 0]), CallOptions::new().timeout(LONG))
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::NoProgram);
        caller.unregister(&search).unwrap();
        let error = caller
            .call(&search, &parameters(&[0, 0]), CallOptions::new().timeout(LONG))
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::NoProgram);
        assert_eq!(caller.unregister(&search).unwrap_err().code, ErrorCode::NoProgram);
        let head = list(ends, 3);
        let search = caller.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        let answer = caller
            .call(&search, &parameters(&[head, 3]), CallOptions::new().timeout(LONG))
            .unwrap();
        assert_eq!(answer.result, 300, "{fabric}");
    });
}

fn helpers_agree_on_local_and_remote_memory(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        for (name, text) in programs::HELPERS {
            let program = caller.register(text.as_bytes()).unwrap().remove(0);
            let mut answers = Vec::new();
            for runs in [Site::Remote, Site::Local] {
                let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
                ends.memory.write(0, &bytes).unwrap();
                let answer = caller.call(
                    &program,
                    &parameters(&[64, 3]),
                    CallOptions::new().site(runs).timeout(LONG),
                );
                let mut after = vec![0; 4096];
                ends.memory.read(0, &mut after).unwrap();
                answers.push((
                    answer.unwrap_or_else(|e| panic!("{fabric} {name} {runs:?}: {e}")),
                    after,
                ));
            }
            assert_eq!(answers[0], answers[1], "{fabric} {name}");
            assert_eq!(answers[0].0.result, programs::expected(name), "{fabric} {name}");
        }
    });
}

fn state_is_scoped_as_declared_and_erased_with_the_last_caller(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut one = ends.caller(&CallerOptions::default());
        let mut two = ends.caller(&CallerOptions::default());
        let count = |caller: &mut Caller, text: &str| {
            let program = caller.register(text.as_bytes()).unwrap().remove(0);
            caller.call(&program, &[], CallOptions::new().timeout(LONG)).unwrap().result
        };
        for expected in 1..=3 {
            assert_eq!(count(&mut one, programs::COUNT_OWN), expected);
            assert_eq!(count(&mut one, programs::VARIABLE_OWN), expected);
        }
        assert_eq!(count(&mut two, programs::COUNT_OWN), 1, "{fabric}");
        assert_eq!(count(&mut two, programs::VARIABLE_OWN), 1, "{fabric}");
        for expected in [1, 3] {
            assert_eq!(count(&mut one, programs::COUNT_SHARED), expected);
            assert_eq!(count(&mut two, programs::COUNT_SHARED), expected + 1);
        }
        let here = one.register(programs::COUNT_OWN.as_bytes()).unwrap().remove(0);
        assert!(here.keeps_state);
        assert_eq!(
            one.invoke(&here, &[], CallOptions::new().site(Site::Local)).unwrap_err().code,
            ErrorCode::NotHere
        );
        assert_eq!(one.check_local(&here).unwrap_err().code, ErrorCode::NotHere);
        drop((one, two));
        let mut three = ends.caller(&CallerOptions::default());
        ends.until(|counts| counts.sessions == 1);
        assert_eq!(count(&mut three, programs::COUNT_SHARED), 1, "{fabric}: erased");
    });
}

fn calls_stop_on_cancel_deadline_and_budget(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        let wait = caller.register(programs::WAIT_WORD.as_bytes()).unwrap().remove(0);
        let endless = caller.register(programs::ENDLESS.as_bytes()).unwrap().remove(0);
        let second = 1_000_000_000;
        for runs in [Site::Remote, Site::Local] {
            let waits = parameters(&[0, 1000 * second]);
            let ticket =
                caller.invoke(&wait, &waits, CallOptions::new().site(runs)).unwrap().unwrap();
            for _ in 0..100 {
                caller.progress().unwrap();
            }
            assert!(caller.poll(ticket).is_none());
            if let Some(asked) = caller.cancel(ticket).unwrap() {
                assert_eq!(caller.wait(asked, LONG).unwrap().result, 1);
            }
            let error = caller.wait(ticket, LONG).unwrap_err();
            assert_eq!(error.code, ErrorCode::CallCancelled, "{fabric} {runs:?}");
            let soon = parameters(&[0, 1000]);
            let answer =
                caller.call(&wait, &soon, CallOptions::new().site(runs).timeout(LONG)).unwrap();
            assert_eq!(answer.result as i64, -5, "{fabric} {runs:?}: timed out");
        }
        let waits = parameters(&[0, 1000 * second]);
        for site in [Site::Remote, Site::Local] {
            let options = CallOptions::new().site(site).deadline(Duration::from_millis(1));
            let ticket = caller.invoke(&wait, &waits, options).unwrap().unwrap();
            assert_eq!(caller.wait(ticket, LONG).unwrap_err().code, ErrorCode::DeadlinePassed);
        }
        let error = caller.call(&endless, &[], CallOptions::new().timeout(LONG)).unwrap_err();
        assert_eq!(error.code, ErrorCode::CallStopped, "{error}");
        assert!(error.detail.contains("it has used up its instructions"), "{error}");
    });
}

fn waiting_call_resumes_when_its_word_changes(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        let wait = caller.register(programs::WAIT_WORD.as_bytes()).unwrap().remove(0);
        for (runs, word) in [(Site::Remote, 0_u64), (Site::Local, 7)] {
            ends.memory.write(0, &word.to_le_bytes()).unwrap();
            let waits = parameters(&[word, u64::MAX]);
            let ticket =
                caller.invoke(&wait, &waits, CallOptions::new().site(runs)).unwrap().unwrap();
            for _ in 0..100 {
                caller.progress().unwrap();
            }
            assert!(caller.poll(ticket).is_none(), "{fabric} {runs:?}");
            ends.memory.write(0, &99_u64.to_le_bytes()).unwrap();
            assert_eq!(caller.wait(ticket, LONG).unwrap().result, 0, "{fabric} {runs:?}");
        }
    });
}

fn locks_exclude_and_are_released_when_a_call_is_stopped(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut one = ends.caller(&CallerOptions::default());
        let mut two = ends.caller(&CallerOptions::default());
        let lock_1 = one.register(programs::LOCK_AND_WAIT.as_bytes()).unwrap().remove(0);
        let lock_2 = two.register(programs::LOCK_AND_WAIT.as_bytes()).unwrap().remove(0);
        let ever = parameters(&[0, u64::MAX]);
        let holds = one.invoke(&lock_1, &ever, CallOptions::new()).unwrap().unwrap();
        // It holds the lock once it has incremented the word.
        while ends.word(8) != 1 {
            one.progress().unwrap();
        }
        let waits = two.invoke(&lock_2, &ever, CallOptions::new()).unwrap().unwrap();
        two.progress().unwrap();
        one.cancel(holds).unwrap();
        assert_eq!(one.wait(holds, LONG).unwrap_err().code, ErrorCode::CallCancelled);
        while ends.word(8) != 2 {
            two.progress().unwrap();
            assert!(two.poll(waits).is_none(), "{fabric}");
        }
        let third = one.call(&lock_1, &ever, CallOptions::new().timeout(LONG)).unwrap();
        assert_eq!(third.result as i64, status::BUSY, "{fabric}: busy for too long");
        drop(two);
        ends.until(|counts| counts.sessions == 1);
        ends.memory.write(0, &1_u64.to_le_bytes()).unwrap();
        assert_eq!(
            one.call(&lock_1, &ever, CallOptions::new().timeout(LONG)).unwrap().result,
            0,
            "{fabric}"
        );
    });
}

fn subscribers_receive_notifications(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut one = ends.caller(&CallerOptions::default());
        let mut two = ends.caller(&CallerOptions::default());
        let heard = one.listen(5).unwrap().unwrap();
        one.progress().unwrap();
        let notify = two.register(programs::NOTIFY.as_bytes()).unwrap().remove(0);
        // After one more round trip of the listener, it is subscribed.
        one.register(programs::NOTIFY.as_bytes()).unwrap();
        two.call(&notify, &parameters(&[5, 0x41]), CallOptions::new().timeout(LONG)).unwrap();
        let answer = one.wait(heard, LONG).unwrap();
        assert_eq!((answer.result, answer.output), (0, vec![0x41, 0, 0, 0, 0, 0, 0, 0]));
        two.call(&notify, &parameters(&[5, 0x42]), CallOptions::new().timeout(LONG)).unwrap();
        two.call(&notify, &parameters(&[6, 0x43]), CallOptions::new().timeout(LONG)).unwrap();
        let heard = one.listen(5).unwrap().unwrap();
        let none = one.listen(7).unwrap().unwrap();
        let (ticket, end) = one.wait_any(LONG).unwrap();
        assert_eq!((ticket, end.unwrap().output[0]), (heard, 0x42), "{fabric}");
        let error = one.wait_any(Duration::ZERO).unwrap_err();
        assert_eq!((error.code, one.poll(none)), (ErrorCode::TimedOut, None), "{fabric}");
        // A local run has no subscribers; [`Caller::check_local`] reports that.
        assert_eq!(two.check_local(&notify).unwrap_err().code, ErrorCode::NotHere);
        two.call(
            &notify,
            &parameters(&[7, 0x44]),
            CallOptions::new().site(Site::Local).timeout(LONG),
        )
        .unwrap();
        let search = two.register(programs::LIST_SEARCH.as_bytes()).unwrap().remove(0);
        assert_eq!(two.check_local(&search), Ok(()), "{fabric}");
    });
}

fn topic_limit_is_reported_and_other_topics_still_deliver(fabric: &str) {
    let options = ServerOptions::default().slots(100);
    over(fabric, &options, |ends| {
        let slots = CallerOptions::default().slots(100);
        let mut caller = ends.caller(&slots);
        let notify = caller.register(programs::NOTIFY.as_bytes()).unwrap().remove(0);
        let mut tickets: Vec<_> =
            (0..65).map(|topic| caller.listen(topic).unwrap().expect("a free slot")).collect();
        let refused = caller.wait(tickets.pop().unwrap(), LONG).unwrap_err();
        assert_eq!(refused.code, ErrorCode::OverQuota, "{fabric}: {refused}");
        for (topic, ticket) in (0..).zip(tickets) {
            caller
                .call(&notify, &parameters(&[topic, 0x41]), CallOptions::new().timeout(LONG))
                .unwrap();
            assert_eq!(caller.wait(ticket, LONG).unwrap().output[0], 0x41, "{fabric} {topic}");
        }
        let heard = caller.listen(64).unwrap().unwrap();
        caller.call(&notify, &parameters(&[64, 0x42]), CallOptions::new().timeout(LONG)).unwrap();
        assert_eq!(caller.wait(heard, LONG).unwrap().output[0], 0x42, "{fabric}");
    });
}

fn quotas_are_enforced_without_affecting_other_tenants(fabric: &str) {
    let small = Quota { programs: 1, state_bytes: 1_000, calls: 2, ..Quota::DEFAULT };
    let mut options = ServerOptions::default().sessions(2);
    options.tenants.insert("small".to_owned(), small);
    over(fabric, &options, |ends| {
        let tenant = |name: &str| CallerOptions::default().tenant(name.into());
        let mut poor = ends.caller(&tenant("small"));
        let mut rich = ends.caller(&tenant("large"));
        let wait = poor.register(programs::WAIT_WORD.as_bytes()).unwrap().remove(0);
        let error = poor.register(programs::NOTIFY.as_bytes()).unwrap_err();
        assert_eq!(error.code, ErrorCode::OverQuota, "{error}");
        assert!(error.detail.contains("has registered 1 of 1"), "{error}");
        rich.register(programs::NOTIFY.as_bytes()).unwrap();
        let ever = parameters(&[0, u64::MAX]);
        let calls =
            [(); 3].map(|()| poor.invoke(&wait, &ever, CallOptions::new()).unwrap().unwrap());
        let error = poor.wait(calls[2], LONG).unwrap_err();
        assert_eq!(error.code, ErrorCode::OverQuota, "{error}");
        assert!(error.detail.contains("has 2 of 2 calls in progress"), "{error}");
        let wait = rich.register(programs::WAIT_WORD.as_bytes()).unwrap().remove(0);
        assert_eq!(
            rich.call(&wait, &parameters(&[1, 1]), CallOptions::new().timeout(LONG))
                .unwrap()
                .result,
            0
        );
        poor.unregister(&wait).unwrap();
        let error = poor.register(programs::BIG_STATE.as_bytes()).unwrap_err();
        assert_eq!(error.code, ErrorCode::OverQuota, "{error}");
        assert!(error.detail.contains("has 0 B of 1000 B"), "{error}");
        let error = Caller::connect(&ends.fabric, &ends.address, &tenant("third")).unwrap_err();
        assert_eq!(error.code, ErrorCode::OverQuota, "{fabric} {error}");
        assert!(error.detail.contains("the executor has 2 of 2 callers"), "{error}");
    });
}

fn tenant_cannot_use_the_sessions_of_all_others(fabric: &str) {
    let mut options = ServerOptions::default().sessions(4);
    options.tenants.insert("greedy".to_owned(), Quota::DEFAULT);
    options.tenants.insert("one".to_owned(), Quota { sessions: Some(1), ..Quota::DEFAULT });
    over(fabric, &options, |ends| {
        let tenant = |name: &str| CallerOptions::default().tenant(name.into());
        let refused = |name: &str| {
            let error = Caller::connect(&ends.fabric, &ends.address, &tenant(name)).unwrap_err();
            assert_eq!(error.code, ErrorCode::OverQuota, "{fabric} {error}");
            error.detail
        };
        let mut greedy = vec![ends.caller(&tenant("greedy")), ends.caller(&tenant("greedy"))];
        assert!(refused("greedy").contains("2 of 2 callers"));
        let _one = ends.caller(&tenant("one"));
        assert!(refused("one").contains("1 of 1 callers"));
        let mut other = ends.caller(&tenant("other"));
        other.register(LIST_SEARCH.as_bytes()).unwrap();
        greedy.pop();
        ends.until(|counts| counts.sessions == 3);
        greedy.push(ends.caller(&tenant("greedy")));
    });
}

fn output_arrives_whole_or_the_call_is_stopped(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default().output_bytes_max(100));
        let emit = caller.register(programs::EMIT.as_bytes()).unwrap().remove(0);
        for runs in [Site::Remote, Site::Local] {
            let answer = caller
                .call(&emit, &parameters(&[12]), CallOptions::new().site(runs).timeout(LONG))
                .unwrap();
            assert_eq!(answer.output.len(), 96, "{fabric} {runs:?}");
            assert!(answer.output.chunks(8).all(|word| word == 0x0102_u64.to_le_bytes()));
        }
        let error =
            caller.call(&emit, &parameters(&[13]), CallOptions::new().timeout(LONG)).unwrap_err();
        assert_eq!(error.code, ErrorCode::CallStopped, "{error}");
    });
}

/// Regression: a caller slept until its deadline while it registered an object of several parts. The answer to a
/// part took longer than the spin budget, and the next part was begun but not flushed.
fn multi_part_object_is_registered_by_a_busy_executor(fabric: &str) {
    let object = format!("{LIST_SEARCH}{}", "// more of it\n".repeat(1000));
    let (there, here) = over::pair(fabric);
    let name = format!("call-parts-{fabric}-{}", std::process::id());
    let mut server = CallServer::listen(&there, &name, &ServerOptions::default()).unwrap();
    let (address, stop) = (server.address().unwrap(), AtomicBool::new(false));
    let registered = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                server.progress();
                let works = Instant::now();
                while works.elapsed() < Duration::from_millis(2) {
                    std::hint::spin_loop();
                }
            }
        });
        let caller = Caller::connect(&here, &address, &CallerOptions::default());
        let registered = caller.and_then(|mut caller| caller.register(object.as_bytes()));
        stop.store(true, Ordering::Release);
        registered
    });
    assert_eq!(registered.unwrap()[0].name, "list_search", "{fabric}");
}

/// Regression: a request that had timed out left an outcome that no call owned.
fn unregister_at_a_silent_executor_times_out_without_residue(fabric: &str) {
    let (there, here) = over::pair(fabric);
    let name = format!("call-silent-{fabric}-{}", std::process::id());
    let mut server = CallServer::listen(&there, &name, &ServerOptions::default()).unwrap();
    let timeout = Duration::from_millis(20);
    let options = CallerOptions::default().timeout(timeout);
    let mut caller = Caller::begin(&here, &server.address().unwrap(), &options).unwrap();
    while !caller.is_connected() {
        server.progress();
        caller.progress().unwrap();
    }
    let room = caller.room();
    assert!(caller.begin_register(LIST_SEARCH.as_bytes()).unwrap());
    let mut programs = None;
    while programs.is_none() {
        server.progress();
        caller.progress().unwrap();
        programs = caller.registered();
    }
    let program = programs.unwrap().unwrap().remove(0);
    let error = caller.unregister(&program).unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut, "{fabric}: {error}");
    let begun = Instant::now();
    while caller.room() < room {
        assert!(begun.elapsed() < LONG, "{fabric}");
        server.progress();
        caller.progress().unwrap();
    }
    assert!(caller.poll_any().is_none(), "{fabric}");
}
