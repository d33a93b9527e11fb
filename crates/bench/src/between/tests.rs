//! Both ends over the in-process fabric: every test, and valid, lost and invalid clients.

use super::measure::{latency, stream};
use super::wire::{self, ControlMessage, Hello, encode_versioned};
use super::*;
use crate::settings::Effort;
use farside_base::AtomicScope;
use farside_command::settings::FabricSettings;
use farside_fabric::{Fabric, LinkEvent, MemFabric, PortSpec, Waiter};
use server::Served;
use std::thread::JoinHandle;

/// A running server and the results of its sessions.
struct Serving {
    fabric: MemFabric,
    stop: Arc<AtomicBool>,
    waiter: Arc<dyn Waiter>,
    thread: JoinHandle<Vec<Served>>,
}

impl Serving {
    fn start() -> Self {
        let fabric = MemFabric::new();
        let other: Arc<dyn Fabric> = Arc::new(fabric.another());
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Server::listen(other, NAME.to_owned(), false, Arc::clone(&stop)).unwrap();
        let waiter = server.end().port.waiter();
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            while let Some(served) = server.serve_one().unwrap() {
                all.push(served);
            }
            all
        });
        Self { fabric, stop, waiter, thread }
    }

    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.fabric.another())
    }

    fn client(&self) -> Result<Client, Failure> {
        Client::connect(self.fabric(), NAME, 4096, false)
    }

    /// Connects a client as soon as the server has ended the previous session.
    fn next_client(&self) -> Client {
        loop {
            match self.client() {
                Ok(client) => return client,
                Err(why) if why.to_string().contains("another client") => std::thread::yield_now(),
                Err(why) => panic!("{why}"),
            }
        }
    }

    /// Stops the server; returns the tests and the failure of each session.
    fn end(self) -> Vec<(u32, Option<String>)> {
        self.stop.store(true, Ordering::Release);
        self.waiter.wake();
        let served = self.thread.join().unwrap();
        served.into_iter().map(|one| (one.tests, one.failure.map(|why| why.to_string()))).collect()
    }

    /// Returns the reason for which the server refuses this hello.
    fn refusal(&self, hello: &[u8]) -> String {
        let fabric = self.fabric();
        let mut port = fabric.open(&PortSpec::default()).unwrap();
        let queue = port.create_receive_queue(1).unwrap();
        port.connect(NAME, hello, queue).unwrap();
        let mut events = Vec::new();
        loop {
            port.link_events(&mut events);
            match events.pop() {
                Some(LinkEvent::Refused { reason, .. }) => return wire::printable(&reason),
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
    }
}

#[test]
fn all_tests_are_measured_and_served() {
    let serving = Serving::start();
    let mut client = serving.client().unwrap();
    let mut count = 0;
    for test in Test::ALL {
        for (bytes, inline) in [(8, 0), (1, 64), (4096, 0)] {
            let (bytes, inline) = if test == Test::Atomic { (8, 0) } else { (bytes, inline) };
            // More rounds than a byte has values.
            let found = latency(&mut client, test, bytes, inline, Extent::Iterations(600)).unwrap();
            assert_eq!((found.bytes, found.iterations), (bytes, 600));
            assert!(0.0 < found.max_us && found.min_us <= found.typical_us);
            assert!(found.typical_us <= found.p99_us && found.p99_us <= found.max_us);
            for (batch, every) in [(1, 1), (4, 100), (32, 7)] {
                let flow = Flow::new(16, batch, every);
                let extent = Extent::Iterations(1001);
                let found = stream(&mut client, test, bytes, inline, flow, extent).unwrap();
                assert_eq!((found.bytes, found.iterations), (bytes, 1001), "{test:?} {flow:?}");
                assert!(found.peak_mib_per_second >= found.average_mib_per_second);
                count += 1;
            }
            count += 1;
        }
    }
    client.leave().unwrap();
    assert_eq!(serving.end(), [(count, None)]);
}

#[test]
fn test_may_run_for_a_time() {
    let serving = Serving::start();
    let mut client = serving.client().unwrap();
    let time = Extent::Time(Duration::from_millis(5));
    for test in [Test::Read, Test::Send] {
        assert!(latency(&mut client, test, 8, 0, time).unwrap().iterations > 0);
        let found = stream(&mut client, test, 8, 0, Flow::new(16, 4, 8), time).unwrap();
        assert!(found.iterations > 0 && found.iterations.is_multiple_of(8), "{found:?}");
    }
    client.leave().unwrap();
    assert_eq!(serving.end(), [(4, None)]);
}

#[test]
fn second_client_is_refused_until_the_first_is_lost() {
    let serving = Serving::start();
    let first = serving.client().unwrap();
    let refused = serving.client().map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("another client"), "{refused}");
    drop(first);
    let mut second = serving.next_client();
    let begin = wire::Begin {
        test: Test::Send,
        part: wire::Part::AnswerMessages,
        bytes: 8,
        inline_bytes: 0,
    };
    second.begin(begin).unwrap();
    drop(second);
    let mut third = serving.next_client();
    assert_eq!(
        latency(&mut third, Test::Write, 8, 0, Extent::Iterations(9)).unwrap().iterations,
        9
    );
    third.leave().unwrap();
    let served = serving.end();
    let gone = |at: usize| served[at].1.as_ref().is_some_and(|why| why.contains("gone"));
    assert!(served.len() == 3 && gone(0) && gone(1), "{served:?}");
    assert_eq!(served[2], (1, None));
}

#[test]
fn invalid_hellos_are_refused_and_disturb_no_client() {
    let serving = Serving::start();
    assert!(serving.refusal(b"\xff\x00junk").contains("no `farside bench fabric`"));
    let other = String::from_utf8(encode_versioned(&Hello::Control { bytes_max: 8 })).unwrap();
    let other = other.replace("\"version\":1", "\"version\":2");
    assert!(serving.refusal(other.as_bytes()).contains("version 2"));
    let huge = encode_versioned(&Hello::Control { bytes_max: u32::MAX });
    assert!(serving.refusal(&huge).contains("more bytes"));
    let stray = encode_versioned(&Hello::Data { session: 1, token: [0; 24] });
    assert!(serving.refusal(&stray).contains("over"));
    serving.client().unwrap().leave().unwrap();
    assert_eq!(serving.end(), [(0, None)]);
}

#[test]
fn junk_of_a_client_ends_only_its_session() {
    let serving = Serving::start();
    for junk in [&b"junk"[..], b"", &[b'['; 512], &ControlMessage::Ready.encode()] {
        let mut client = serving.next_client();
        client.end.send_bytes(junk).unwrap();
        let failed = client.finish(0).unwrap_err();
        assert!(matches!(failed, Failure::System { .. }), "{failed}");
    }
    let mut client = serving.next_client();
    let longer =
        wire::Begin { test: Test::Read, part: wire::Part::Sleep, bytes: 8192, inline_bytes: 0 };
    let refused = client.begin(longer).unwrap_err().to_string();
    assert!(refused.contains("announced"), "{refused}");
    client.leave().unwrap();
    let served = serving.end();
    assert_eq!(served.len(), 5);
    assert!(served[..4].iter().all(|(tests, why)| *tests == 0 && why.is_some()), "{served:?}");
    assert_eq!(served[4], (0, None));
}

#[test]
fn stopped_or_absent_server_is_a_named_failure() {
    let serving = Serving::start();
    let mut client = serving.client().unwrap();
    serving.end();
    let failed = latency(&mut client, Test::Read, 8, 0, Extent::Iterations(9)).unwrap_err();
    assert!(failed.to_string().contains("gone"), "{failed}");
    let absent =
        Client::connect(Arc::new(MemFabric::new()), "absent", 8, true).map(|_| ()).unwrap_err();
    assert!(absent.to_string().contains("no process listens at absent"), "{absent}");
}

/// Returns a client with the default settings of the command, changed by `change`.
fn client(change: impl FnOnce(&mut BenchFabric)) -> BenchFabric {
    let mut settings = BenchFabric {
        effort: Effort { only: None, windows: 400 },
        to: Some("lab".to_owned()),
        listen: None,
        once: false,
        strict_ordering: false,
        choice: FabricSettings::default(),
        tests: Test::ALL.to_vec(),
        all_tests: true,
        measures: vec![Measure::Latency],
        all: false,
        bytes: Vec::new(),
        iterations: None,
        seconds: None,
        window: None,
        batch: None,
        signal_every: 100,
        inline: None,
    };
    change(&mut settings);
    settings
}

#[test]
fn settings_of_a_fabric_without_an_end_are_refused() {
    let keyed = client(|it| (it.to, it.choice.key) = (None, Some("x".into())));
    let strict = client(|it| (it.to, it.strict_ordering) = (None, true));
    for alone in [keyed, strict] {
        let refused = run(&alone, Output::new(false, true));
        assert!(matches!(refused, Err(Failure::Usage { .. })), "{alone:?} for no end");
    }
}

#[test]
fn plan_contains_what_the_fabric_supports() {
    let has = MemFabric::new().capabilities();
    let (runs, skipped) = plan(&client(|_| {}), &has).unwrap();
    assert_eq!((runs.len(), skipped.len()), (4, 0));
    let every = client(|it| {
        it.measures = vec![Measure::Latency, Measure::Bandwidth, Measure::Rate];
        it.bytes = vec![8, 64];
    });
    let (runs, _) = plan(&every, &has).unwrap();
    assert_eq!(runs.len(), 3 * (3 * 2 + 1), "an atomic has one size");
    let short = Capabilities { send_bytes_max: 4096, atomics: AtomicScope::None, ..has };
    let (runs, skipped) = plan(&client(|it| it.all = true), &short).unwrap();
    assert_eq!((runs.len(), skipped.len()), (23 + 23 + 12, 1 + 11));
    for (test, bytes, missing) in
        [(Test::Atomic, Vec::new(), "`atomics`"), (Test::Send, vec![8192], "`send_bytes_max`")]
    {
        let asked = client(|it| (it.tests, it.all_tests, it.bytes) = (vec![test], false, bytes));
        let refused = plan(&asked, &short).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains(missing), "{refused}");
    }
}

#[test]
fn window_and_inline_bytes_are_limited_by_the_fabric() {
    let few = Capabilities {
        outstanding_max: 10,
        inline_bytes_max: 16,
        ..MemFabric::new().capabilities()
    };
    let usual = client(|_| {});
    assert_eq!(Flows::of(&usual, &few).unwrap().bandwidth.window, 10);
    assert!(Flows::of(&client(|it| it.window = Some(11)), &few).is_err());
    assert_eq!(inline_max(&usual, &few), Ok(None));
    assert!(inline_max(&client(|it| it.inline = Some(17)), &few).is_err());
}
