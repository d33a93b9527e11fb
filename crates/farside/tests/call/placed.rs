//! A caller with several places, over every fabric.

use crate::over::{over, pair};
use crate::programs::{COUNT_OWN, COUNT_SHARED, LIST_SEARCH, parameters};
use farside::call::{
    CallOptions, CallServer, Caller, CallerOptions, ChoiceReason, LearningOptions, PlaceModel,
    Placed, PlacedAnswer, PlacedProgram, PlacedTicket, Prices, Processor, Program, ServerOptions,
    Site,
};
use farside::{Error, ErrorCode};
use farside_base::Access;
use farside_fabric::{Fabric, FaultFabric, FaultPlan};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    call_runs_at_least_cost_and_reports_the_reason
    state_stays_at_its_first_place_and_each_call_counts_once
    state_does_not_move_when_another_place_becomes_cheaper
    concurrent_first_calls_share_one_place
    call_fails_while_its_state_is_unreachable
    call_resumes_at_its_state_after_reconnect
)}

const LONG: Duration = Duration::from_secs(30);

/// Options of a call with about this many accesses.
fn call_of(accesses: u64) -> CallOptions {
    CallOptions::new().accesses(accesses).timeout(LONG)
}

fn place(name: &str, core: Processor, round_trip_ns: u64, access_ns: u64) -> PlaceModel {
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

fn placed(ends: &crate::over::Ends, caller: Caller, manner: LearningOptions) -> Placed {
    let mut placed = Placed::new(&ends.fabric, Prices::LATENCY, manner);
    let here = (Site::Local, place("here", Processor::Client, 0, 10_000));
    let there = (Site::Remote, place("there", Processor::Host, 20_000, 100));
    assert_eq!(placed.add(caller, &[here, there]).unwrap(), 0);
    placed
}

/// Writes a node with key 1 at offset 64.
fn node(ends: &crate::over::Ends) {
    let words = [1_u64, 100, 0].map(u64::to_le_bytes);
    ends.memory.write(64, &words.concat()).unwrap();
}

fn call_runs_at_least_cost_and_reports_the_reason(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        node(ends);
        let caller = ends.caller(&CallerOptions::default());
        let mut placed = placed(ends, caller, LearningOptions::default());
        let search = placed.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        let bytes = parameters(&[64, 1]);
        for (hint, name) in [(1, "here"), (100, "there")] {
            let end = placed.call(search, &bytes, call_of(hint)).unwrap();
            assert_eq!((end.answer.result, end.choice.name.as_ref()), (100, name), "{fabric}");
            assert_eq!(end.choice.why, ChoiceReason::Model);
        }
        placed.placement().pin(Some(1));
        let end = placed.call(search, &bytes, call_of(1)).unwrap();
        assert_eq!((end.choice.name.as_ref(), end.choice.why), ("there", ChoiceReason::Pinned));
        placed.placement().pin(None);
        // All further calls return the same, at any place.
        for _ in 0..200 {
            let ticket = placed.begin(search, &bytes, call_of(1)).unwrap().unwrap();
            let end = loop {
                placed.progress().unwrap();
                if let Some(end) = placed.poll(ticket) {
                    break end.unwrap();
                }
            };
            assert_eq!(end.answer.result, 100, "{fabric}");
        }
    });
}

#[test]
fn unplaceable_programs_are_refused() {
    over("mem", &ServerOptions::default(), |ends| {
        node(ends);
        let mut placed =
            placed(ends, ends.caller(&CallerOptions::default()), LearningOptions::default());
        let mut caller = ends.caller(&CallerOptions::default());
        let search = caller.register(LIST_SEARCH.as_bytes()).unwrap().remove(0);
        let keeps = Program { keeps_state: true, ..search };
        let mut only_here = Placed::new(&ends.fabric, Prices::LATENCY, LearningOptions::default());
        let here = (Site::Local, place("here", Processor::Client, 0, 10_000));
        only_here.add(caller, &[here]).unwrap();
        assert_eq!(only_here.add_program(vec![keeps]).unwrap_err().code, ErrorCode::BadForm);
        assert_eq!(placed.add_program(Vec::new()).unwrap_err().code, ErrorCode::BadForm);
        placed.register(LIST_SEARCH.as_bytes()).unwrap();
        let late = placed.add(ends.caller(&CallerOptions::default()), &[]).unwrap_err();
        assert_eq!(late.code, ErrorCode::BadForm);
    });
}

const HERE: usize = 0;
const HOST: usize = 1;
const NIC: usize = 2;

/// Executors at a host and next to its adapter, and a caller with these two places and a local one, all on this
/// thread. By the models, a call of one access costs least locally, and least of the two executors at the adapter;
/// a call of a hundred accesses costs least at the host.
struct Three {
    fabric: Arc<dyn Fabric>,
    /// By place, while running; none for the local place.
    servers: [Option<CallServer>; 3],
    addresses: [String; 2],
    placed: Placed,
    count: PlacedProgram,
    search: PlacedProgram,
}

fn progress(servers: &mut [Option<CallServer>; 3]) {
    for server in servers.iter_mut().flatten() {
        server.progress();
    }
}

/// Registers an object with a caller whose executor is on this thread too.
fn register(
    servers: &mut [Option<CallServer>; 3],
    caller: &mut Caller,
    object: &str,
) -> Result<Program, Error> {
    let mut begun = false;
    loop {
        progress(servers);
        caller.progress()?;
        begun = begun || caller.begin_register(object.as_bytes())?;
        if let Some(programs) = caller.registered() {
            return Ok(programs?.remove(0));
        }
    }
}

impl Three {
    fn new(fabric: &str) -> Self {
        Self::on(pair(fabric), None)
    }

    /// Executors on the first fabric and callers on the second. Each caller may have four calls in progress and
    /// redials a lost executor for this time.
    fn on(fabrics: (Arc<dyn Fabric>, Arc<dyn Fabric>), patience: Option<Duration>) -> Self {
        static SCENES: AtomicUsize = AtomicUsize::new(0);
        let number = SCENES.fetch_add(1, Ordering::Relaxed);
        let name = |of: &str| format!("call-{of}-{}-{number}", std::process::id());
        let (there, fabric) = fabrics;
        let options = ServerOptions::default().grace(Some(LONG));
        let mut host = CallServer::listen(&there, &name("host"), &options).unwrap();
        host.make_region(0, 4096, Access::ALL).unwrap();
        let to_host = host.address().unwrap();
        let nic = CallServer::listen_with_host(&there, &name("nic"), &to_host, &options).unwrap();
        let addresses = [to_host, nic.address().unwrap()];
        let mut servers = [None, Some(host), Some(nic)];
        while !servers[NIC].as_ref().unwrap().has_memory() {
            progress(&mut servers);
        }
        let options = CallerOptions::default().slots(4).patience(patience);
        let mut callers =
            addresses.each_ref().map(|to| Caller::begin(&fabric, to, &options).unwrap());
        let [count, search] = [COUNT_SHARED, LIST_SEARCH].map(|object| {
            let each = callers.iter_mut();
            each.map(|caller| register(&mut servers, caller, object).unwrap()).collect::<Vec<_>>()
        });
        let mut placed = Placed::new(&fabric, Prices::LATENCY, LearningOptions::default());
        let [to_host, to_nic] = callers;
        let here = (Site::Local, place("here", Processor::Client, 0, 10_000));
        let host = (Site::Remote, place("host", Processor::Host, 20_000, 100));
        // Latency beyond the round trip is time of the processor at the adapter.
        let nic = PlaceModel { start_ns: 10_000, ..place("nic", Processor::Nic, 0, 1_000) };
        assert_eq!(placed.add(to_host, &[here, host]).unwrap(), HERE);
        assert_eq!(placed.add(to_nic, &[(Site::Remote, nic)]).unwrap(), NIC);
        let count = placed.add_program(count).unwrap();
        let search = placed.add_program(search).unwrap();
        Self { fabric, servers, addresses, placed, count, search }
    }

    fn begin(&mut self, program: PlacedProgram, hint: u64) -> Result<Option<PlacedTicket>, Error> {
        // A search of an empty list; the counting programs ignore the parameters.
        self.placed.begin(program, &parameters(&[0, 1]), call_of(hint))
    }

    fn end(&mut self, ticket: PlacedTicket) -> Result<PlacedAnswer, Error> {
        loop {
            progress(&mut self.servers);
            // An error of a session is also the outcome of the call.
            let _ = self.placed.progress();
            if let Some(end) = self.placed.poll(ticket) {
                return end;
            }
        }
    }

    fn call(&mut self, program: PlacedProgram, hint: u64) -> Result<PlacedAnswer, Error> {
        let ticket = self.begin(program, hint)?.expect("a free slot");
        self.end(ticket)
    }

    /// Counts once; returns the count, the place and the reason.
    fn count(&mut self, hint: u64) -> (u64, usize, ChoiceReason) {
        let end = self.call(self.count, hint).unwrap();
        (end.answer.result, end.choice.place, end.choice.why)
    }

    /// Returns how often the counter of an executor was incremented, by incrementing it.
    fn counted(&mut self, place: usize) -> u64 {
        let address = &self.addresses[place - HOST];
        let mut caller = Caller::begin(&self.fabric, address, &CallerOptions::default()).unwrap();
        let count = register(&mut self.servers, &mut caller, COUNT_SHARED).unwrap();
        let ticket = caller.invoke(&count, &[], CallOptions::new()).unwrap().unwrap();
        loop {
            progress(&mut self.servers);
            caller.progress().unwrap();
            if let Some(end) = caller.poll(ticket) {
                return end.unwrap().result - 1;
            }
        }
    }
}

fn state_stays_at_its_first_place_and_each_call_counts_once(fabric: &str) {
    let firsts = [
        (None, None, 1, (NIC, ChoiceReason::Model)),
        (None, None, 100, (HOST, ChoiceReason::Model)),
        (Some(HOST), None, 1, (HOST, ChoiceReason::Pinned)),
        (None, Some(HOST), 1, (HOST, ChoiceReason::StateThere)),
        (Some(HERE), Some(NIC), 100, (NIC, ChoiceReason::StateThere)),
        (Some(NIC), Some(HOST), 1, (HOST, ChoiceReason::StateThere)),
    ];
    for (pinned, told, hint, (place, why)) in firsts {
        let mut three = Three::new(fabric);
        three.placed.placement().pin(pinned);
        if let Some(told) = told {
            three.placed.bind(three.count, told).unwrap();
        }
        assert_eq!(three.placed.bound(three.count), told);
        assert_eq!(three.count(hint), (1, place, why), "{fabric} {pinned:?} {told:?} {hint}");
        assert_eq!(three.placed.bound(three.count), Some(place));
        let mut counted = 1;
        for pinned in [None, Some(HERE), Some(HOST), Some(NIC)] {
            three.placed.placement().pin(pinned);
            for hint in [1, 100, 1, 100] {
                counted += 1;
                let expected = (counted, place, ChoiceReason::StateThere);
                assert_eq!(three.count(hint), expected, "{fabric} {pinned:?} {hint}");
            }
        }
        assert_eq!(three.counted(place), counted, "{fabric}");
        assert_eq!(three.counted(HOST + NIC - place), 0, "{fabric}: at the other executor");
    }
}

fn state_does_not_move_when_another_place_becomes_cheaper(fabric: &str) {
    let mut three = Three::new(fabric);
    assert_eq!(three.count(1), (1, NIC, ChoiceReason::Model), "{fabric}");
    let dear = Prices { client_core: 1e6, nic_core: 1e6, ..Prices::LATENCY };
    three.placed.placement().set_prices(dear);
    let search = three.call(three.search, 1).unwrap();
    assert_eq!(search.choice.place, HOST, "{fabric}: a program without state moves");
    for counted in 2..100 {
        let end = three.call(three.count, 1).unwrap();
        let (cost, other) = (end.choice.expected_cost, end.choice.other.clone());
        let (name, other_cost) = other.expect("the host's");
        assert!(name.as_ref() == "host" && other_cost < cost, "{fabric} {}", end.choice);
        assert_eq!((end.answer.result, end.choice.place), (counted, NIC), "{fabric}");
        assert_eq!(end.choice.why, ChoiceReason::StateThere);
    }
    // The model predicts 11 us; the measurement replaces it, whatever it was.
    let end = three.call(three.count, 1).unwrap();
    assert!((end.choice.expected_ns - 11_000.0).abs() > 1e-6, "{fabric} {}", end.choice);
}

fn concurrent_first_calls_share_one_place(fabric: &str) {
    let mut three = Three::new(fabric);
    let hints = [1, 100, 1, 100];
    let tickets = hints.map(|hint| three.begin(three.count, hint).unwrap().unwrap());
    assert_eq!(three.begin(three.count, 100).unwrap(), None, "{fabric}: not at the host");
    let mut results = tickets.map(|ticket| {
        let end = three.end(ticket).unwrap();
        assert_eq!(end.choice.place, NIC, "{fabric}");
        end.answer.result
    });
    results.sort_unstable();
    assert_eq!(results, [1, 2, 3, 4], "{fabric}");
}

#[test]
fn first_call_that_cannot_begin_binds_no_place() {
    let mut three = Three::new("mem");
    three.placed.placement().pin(Some(HOST));
    let full = [(); 4].map(|()| three.begin(three.search, 1).unwrap().unwrap());
    assert_eq!(three.begin(three.count, 1).unwrap(), None);
    assert_eq!(three.placed.bound(three.count), None);
    three.placed.placement().pin(None);
    assert_eq!(three.count(1), (1, NIC, ChoiceReason::Model));
    for ticket in full {
        assert_eq!(three.end(ticket).unwrap().answer.result, 0);
    }
}

#[test]
fn state_cannot_be_bound_to_a_local_place_or_to_two_places() {
    let mut three = Three::new("mem");
    let (count, search) = (three.count, three.search);
    let refused = |three: &mut Three, program, place| {
        let error = three.placed.bind(program, place).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadForm, "{error}");
        error.detail
    };
    assert!(refused(&mut three, search, HOST).contains("it keeps no state"));
    assert!(refused(&mut three, count, HERE).contains("bind it to an executor's place"));
    assert!(refused(&mut three, count, 3).contains("no place of this number"));
    three.placed.placement().pin(Some(HERE));
    let error = three.begin(count, 1).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadForm, "{error}");
    assert!(error.detail.contains("`here` cannot") && error.detail.contains("bind"), "{error}");
    assert_eq!(three.placed.bound(count), None, "no call has begun");
    assert_eq!(
        three.call(search, 1).unwrap().choice.place,
        HERE,
        "a program without state runs there"
    );

    three.placed.bind(count, NIC).unwrap();
    three.placed.bind(count, HOST).unwrap();
    assert_eq!(
        three.count(1),
        (1, HOST, ChoiceReason::StateThere),
        "may be bound again before a call"
    );
    assert!(refused(&mut three, count, NIC).contains("at `host` since its first call"));
    three.placed.bind(count, HOST).unwrap();

    // A program registered again is the same program, and keeps its state.
    let to = three.addresses.clone();
    let same = to.map(|to| {
        let mut caller = Caller::begin(&three.fabric, &to, &CallerOptions::default()).unwrap();
        let own = register(&mut three.servers, &mut caller, COUNT_OWN).unwrap();
        (register(&mut three.servers, &mut caller, COUNT_SHARED).unwrap(), own)
    });
    let (same, own): (Vec<_>, Vec<_>) = same.into_iter().unzip();
    assert_eq!(three.placed.add_program(same).unwrap(), count);
    let third = three.placed.add_program(own).unwrap();
    let mut another = Three::new("mem");
    assert_eq!(another.placed.bind(third, HOST).unwrap_err().code, ErrorCode::NoProgram);
    assert_eq!(another.placed.bound(third), None);
}

fn call_fails_while_its_state_is_unreachable(fabric: &str) {
    let mut three = Three::new(fabric);
    assert_eq!(three.count(1), (1, NIC, ChoiceReason::Model), "{fabric}");
    three.servers[NIC] = None;
    // A call begun before the loss is detected fails with it.
    let lost = three.call(three.count, 1).unwrap_err();
    assert_eq!(lost.code, ErrorCode::PeerLost, "{fabric} {lost}");
    for pinned in [None, Some(HERE), Some(HOST), Some(NIC)] {
        three.placed.placement().pin(pinned);
        let again = three.begin(three.count, 100).unwrap_err();
        assert_eq!(again.code, ErrorCode::PeerLost, "{fabric} {again}");
        let text = "its state is at `nic`, which is out of reach";
        assert!(again.detail.contains(text), "{fabric} {again}");
    }
    assert_eq!(three.placed.bound(three.count), Some(NIC));
    three.placed.placement().pin(None);
    let search = three.call(three.search, 100).unwrap();
    assert_eq!(search.choice.place, HOST, "{fabric}: other programs continue");
    assert_eq!(three.counted(HOST), 0, "{fabric}");
}

fn call_resumes_at_its_state_after_reconnect(fabric: &str) {
    let (there, here) = pair(fabric);
    // Each caller's link is lost once, at some point among the calls.
    let plan = FaultPlan { lose_link_at: Some(100), ..FaultPlan::default() };
    let here: Arc<dyn Fabric> = Arc::new(FaultFabric::new(here, plan));
    let mut three = Three::on((there, here), Some(LONG));
    three.placed.bind(three.count, NIC).unwrap();
    let (mut in_flight, mut results, mut refused) = (Vec::new(), Vec::new(), 0);
    while results.len() < 200 {
        // The link may be lost when a call begins; the next poll reconnects it.
        three.placed.progress().unwrap();
        match three.begin(three.count, 1) {
            Ok(ticket) => in_flight.extend(ticket),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::PeerLost, "{fabric} {error}");
                refused += 1;
            }
        }
        progress(&mut three.servers);
        in_flight.retain(|ticket| match three.placed.poll(*ticket) {
            Some(end) => {
                let end = end.unwrap();
                assert_eq!(end.choice.place, NIC, "{fabric}");
                results.push(end.answer.result);
                false
            }
            None => true,
        });
    }
    for ticket in in_flight {
        results.push(three.end(ticket).unwrap().answer.result);
    }
    results.sort_unstable();
    assert!(results.iter().copied().eq(1..=results.len() as u64), "{fabric} {results:?}");
    assert!(refused > 0, "{fabric}: it was out of reach");
    assert_eq!(three.counted(HOST), 0, "{fabric}");
}
