//! A caller with several places, over every fabric.

use crate::over::{FABRICS, over};
use crate::programs::{LIST_SEARCH, parameters};
use farside::ErrorCode;
use farside::call::{
    Caller, CallerOptions, Core, Manner, PlaceModel, Placed, Prices, Program, Runs, ServerOptions,
    Why,
};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

fn place(name: &str, core: Core, round_trip_ns: u64, access_ns: u64) -> PlaceModel {
    PlaceModel {
        name: name.into(),
        core,
        round_trip_ns,
        start_ns: 0,
        access_ns,
        call_bytes: 32,
        access_bytes: 0,
    }
}

fn placed(ends: &crate::over::Ends, caller: Caller, manner: Manner) -> Placed {
    let mut placed = Placed::new(&ends.fabric, Prices::LATENCY, manner);
    let here = (Runs::Here, place("here", Core::Client, 0, 10_000));
    let there = (Runs::There, place("there", Core::Host, 20_000, 100));
    assert_eq!(placed.add(caller, &[here, there]).unwrap(), 0);
    placed
}

/// A node at 64 with key 1.
fn node(ends: &crate::over::Ends) {
    let words = [1_u64, 100, 0].map(u64::to_le_bytes);
    ends.memory.write(64, &words.concat()).unwrap();
}

#[test]
fn a_call_runs_where_it_is_expected_to_cost_least_and_says_why() {
    for fabric in FABRICS {
        over(fabric, &ServerOptions::default(), |ends| {
            node(ends);
            let caller = ends.caller(&CallerOptions::default());
            let mut placed = placed(ends, caller, Manner::default());
            let search = placed.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
            let bytes = parameters(&[64, 1]);
            for (hint, name) in [(1, "here"), (100, "there")] {
                let end = placed.call(search, &bytes, Some(hint), LONG).unwrap();
                assert_eq!((end.answer.result, end.choice.name.as_ref()), (100, name), "{fabric}");
                assert_eq!(end.choice.why, Why::Model);
            }
            placed.placement().pin(Some(1));
            let end = placed.call(search, &bytes, Some(1), LONG).unwrap();
            assert_eq!((end.choice.name.as_ref(), end.choice.why), ("there", Why::Pinned));
            placed.placement().pin(None);
            // Wherever the next ones run, they end with the same.
            for _ in 0..200 {
                let ticket = placed.begin(search, &bytes, Some(1)).unwrap().unwrap();
                let end = loop {
                    placed.turn().unwrap();
                    if let Some(end) = placed.poll(ticket) {
                        break end.unwrap();
                    }
                };
                assert_eq!(end.answer.result, 100, "{fabric}");
            }
        });
    }
}

#[test]
fn what_cannot_be_placed_is_refused() {
    over("mem", &ServerOptions::default(), |ends| {
        node(ends);
        let mut placed = placed(ends, ends.caller(&CallerOptions::default()), Manner::default());
        let mut caller = ends.caller(&CallerOptions::default());
        let search = caller.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        let keeps = Program { keeps_state: true, ..search };
        assert_eq!(placed.add_program(vec![keeps]).unwrap_err().code, ErrorCode::BadForm);
        assert_eq!(placed.add_program(Vec::new()).unwrap_err().code, ErrorCode::BadForm);
        placed.register(LIST_SEARCH.as_bytes()).unwrap();
        let late = placed.add(ends.caller(&CallerOptions::default()), &[]).unwrap_err();
        assert_eq!(late.code, ErrorCode::BadForm);
    });
}
