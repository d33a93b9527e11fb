//! Tests `farside rmc call` with several places, and `farside rmc listen`, between processes.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, json, name, output, report, text};
use rustix::process::Signal;
use serde_json::Value;

farside_testkit::on_each_fabric! { shm tcp => (
    process_calls_at_every_place_return_the_same_and_report_why
    process_listener_receives_every_notification_in_order
    process_slow_listener_receives_the_number_of_lost_notifications
)}

/// A list of two nodes: key 5, value 50 at offset 64; key 7, value 70 at offset 128.
const NODES: [u64; 19] = [0, 0, 0, 0, 0, 0, 0, 0, 5, 50, 128, 0, 0, 0, 0, 0, 7, 70, 0];

/// Counts its calls.
const COUNTS: &str = ".program counts
.state c counters 0 8 4 own
    r1 = state c
    r2 = 0
    r3 = 1
    call counter_add
    exit
";
/// Sends the numbers from 0 to a topic. Parameters: topic, count.
const NOTIFIES: &str = "
.program notifies
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r8 = 0
again:
    if r8 == r7 goto over
    *(u64 *)(r10 - 8) = r8
    r1 = r6
    r2 = r10
    r2 += -8
    r3 = 8
    call notify
    if r0 != 0 goto end
    r8 += 1
    goto again
over:
    r0 = r8
end:
    exit
";

fn rmc(arguments: &[&str]) -> std::process::Output {
    output(&[], &[&["rmc"], arguments].concat())
}

fn value(arguments: &[&str]) -> Value {
    report(&rmc(&[arguments, &["--json"]].concat()))
}

/// Returns the exit code, the name or kind of the error, and its text.
fn failure(arguments: &[&str]) -> (Option<i32>, String, String) {
    common::failure(&rmc(&[arguments, &["--json"]].concat()))
}

/// Starts a serving process; also returns its address for callers.
fn serve(fabric: &str, arguments: &[&str]) -> (Running, String) {
    let at = if fabric == "tcp" { "127.0.0.1:0".to_owned() } else { name() };
    let fixed = ["--json", "rmc", "serve", &at];
    let mut server = Running::start(&[], &[&fixed, arguments].concat());
    let address = server.event("serving")["address"].as_str().unwrap().to_owned();
    (server, address)
}

/// Ends a process with SIGINT; returns its last event.
fn end(mut process: Running) -> Value {
    process.signal(Signal::INT);
    let ended = process.event("ended");
    assert_eq!(process.end(), (Some(0), String::new()));
    ended
}

/// Returns a `--memory` argument for a region with [`NODES`].
fn nodes(folder: &Folder) -> String {
    let bytes: Vec<u8> = NODES.iter().flat_map(|word| word.to_le_bytes()).collect();
    format!("0={}", folder.file("nodes.bin", &bytes))
}

/// Returns the number of calls at each place.
fn ran(called: &Value) -> Vec<(String, u64)> {
    let places = called["places"].as_array().unwrap().iter();
    let pair = |one: &Value| {
        let calls = one["calls"].as_u64().unwrap();
        assert_eq!(one["round_trip_ns"]["p50_ns"].is_u64(), calls > 0, "{one}");
        (one["place"].as_str().unwrap().to_owned(), calls)
    };
    places.map(pair).collect()
}

fn process_calls_at_every_place_return_the_same_and_report_why(fabric: &str) {
    let folder = Folder::new();
    let memory = nodes(&folder);
    let (host, to) = serve(fabric, &["--memory", &memory]);
    let (near, beside) = serve(fabric, &["--beside", &to]);
    let search = ["list_search", "--parameters", "64,7", "--times", "300"];
    // The owner of the memory may be the first or the second executor.
    for (to, also) in [(&to, &beside), (&beside, &to)] {
        let call = [&["call", to][..], &search, &["--also", also]].concat();
        let called = value(&call);
        assert_eq!(called["returned"]["result"], 70, "{fabric}");
        let ran = ran(&called);
        let places: Vec<_> = ran.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, ["here", to, also], "{fabric}");
        assert_eq!(ran.iter().map(|(_, calls)| calls).sum::<u64>(), 300, "{fabric}");
        let last = &called["last"];
        let why = last["why"].as_str().unwrap();
        assert!(["model", "measured", "explored"].contains(&why), "{last}");
        assert!(ran.iter().any(|(place, calls)| last["place"] == **place && *calls > 0));
        assert!(last["expected_ns"].is_u64() && last["other"]["place"] != last["place"]);
        assert_eq!(called["runs"] == "here", last["place"] == "here", "{called}");
        for (pinned, expected) in
            [("here", "here"), ("there", to), (to.as_str(), to), (also.as_str(), also)]
        {
            let called = value(&[&call[..], &["--place", pinned]].concat());
            assert_eq!(called["returned"]["result"], 70, "{fabric} {pinned}");
            let ran = self::ran(&called);
            let all = ran.iter().find(|(_, calls)| *calls > 0).unwrap();
            assert_eq!(*all, (expected.to_owned(), 300), "{fabric} {pinned}");
            assert_eq!(called["last"]["why"], "pinned", "{fabric} {pinned}");
        }
    }
    // The text output; with one executor there are two places.
    let said = text(&rmc(&[&["call", &to][..], &search, &["--place", "choose"]].concat()).stdout);
    for part in ["ran         ", " here, each access", &format!(" at {to}"), "last call   "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = text(&rmc(&[&["call", &to][..], &search, &["--here"]].concat()).stdout);
    assert!(said.contains("ran         here, each access a one-sided request"), "{said}");
    end(near);
    end(host);
}

#[test]
fn process_call_with_many_accesses_runs_at_its_memory() {
    let folder = Folder::new();
    let (host, to) = serve("tcp", &["--memory", &nodes(&folder)]);
    // By the first measurements, a thousand accesses from this process are a thousand round trips.
    let search = ["call", &to, "list_search", "--parameters", "64,7", "--place", "choose"];
    let called = value(&[&search[..], &["--accesses", "1000"]].concat());
    let last = &called["last"];
    assert_eq!((&last["place"], &last["why"]), (&to.as_str().into(), &"model".into()), "{last}");
    assert_eq!((&last["other"]["place"], &called["runs"]), (&"here".into(), &"there".into()));
    end(host);
}

#[test]
fn process_program_with_state_or_notifications_runs_at_an_executor() {
    let folder = Folder::new();
    let counts = folder.file("counts.s", COUNTS.as_bytes());
    let notifies = folder.file("notifies.s", NOTIFIES.as_bytes());
    let (host, to) = serve("shm", &["--memory", "0=4K"]);
    let (near, beside) = serve("shm", &["--beside", &to]);
    let call = ["call", &to, &counts, "--times", "50", "--also", &beside];
    // The first call chooses the place; the count proves that all others run there.
    let called = value(&call);
    let at = called["state_at"].as_str().unwrap();
    assert!(at == to || at == beside, "{called}");
    assert_eq!(
        (&called["returned"]["result"], &called["last"]["why"]),
        (&50.into(), &"state_there".into())
    );
    let expected: Vec<_> =
        [&to, &beside].map(|place| (place.clone(), if place == at { 50 } else { 0 })).into();
    assert_eq!(ran(&called), expected);
    assert!(called["not_here"].as_str().unwrap().contains("keeps state"), "{called}");
    for place in [&to, &beside] {
        let called = value(&[&call[..], &["--place", place]].concat());
        assert_eq!(
            (&called["state_at"], &called["returned"]["result"]),
            (&place.as_str().into(), &50.into())
        );
    }
    let (code, kind, said) = failure(&[&call[..], &["--place", "here"]].concat());
    assert_eq!((code, kind.as_str()), (Some(1), "NotHere"), "{said}");
    assert!(said.contains("keeps state"), "{said}");
    let said = text(&rmc(&call).stdout);
    assert!(said.contains("state       at ") && said.contains("state does not move"), "{said}");
    assert!(said.contains("not here    it keeps state"), "{said}");
    // Its listeners are at executors; pinned here, it nevertheless runs in this process.
    let call =
        ["call", &to, &notifies, "--parameters", "7,1", "--place", "choose", "--times", "20"];
    let called = value(&call);
    assert_eq!(ran(&called), [(to.clone(), 20)]);
    assert!(called["not_here"].as_str().unwrap().contains("notifications"), "{called}");
    assert_eq!(called["last"]["why"], "only");
    let here = ["call", &to, &notifies, "--parameters", "7,1", "--also", &beside, "--here"];
    assert_eq!(value(&here)["runs"], "here");
    end(near);
    end(host);
}

#[test]
fn process_impossible_places_are_refused() {
    let folder = Folder::new();
    let memory = nodes(&folder);
    let (host, to) = serve("shm", &["--memory", &memory]);
    let (other_host, other) = serve("shm", &["--memory", &memory]);
    let (small_host, small) = serve("shm", &["--memory", "0=64"]);
    let (near, beside) = serve("shm", &["--beside", &small]);
    let absent = name();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--place", &beside], 2, "no such place; the places are choose, here, there"),
        (&["--place", &absent, "--also", &beside], 2, &beside),
        (&["--also", &to], 2, "a place already"),
        (&["--also", &beside, "--also", &beside], 2, "a place already"),
        (&["--also", "127.0.0.1:1"], 2, "different fabrics"),
        (&["--also", &absent], 1, &absent),
        (&["--also", &other], 2, "different memory: each lends its own"),
        (&["--also", &beside], 2, "different memory: region 0 has 152 B"),
        (&["--accesses", "7"], 2, "--accesses needs --place choose"),
    ];
    for (more, code, said) in cases {
        let call = ["call", &to, "list_search", "--parameters", "64,7"];
        let (found, _, text) = failure(&[&call[..], more].concat());
        assert_eq!(found, Some(code), "{more:?}: {text}");
        assert!(text.contains(said), "{more:?}: {text}");
    }
    for more in [&["--here", "--place", "here"][..], &["--place", ""], &["--accesses", "0"]] {
        let call = ["call", &to, "list_search", "--parameters", "64,7"];
        assert_eq!(rmc(&[&call[..], more].concat()).status.code(), Some(2), "{more:?}");
    }
    // Errors of calls are the same as with one place, and deadlines are enforced.
    let call = ["call", &to, "list_search", "--place", "choose"];
    let (code, _, said) = failure(&[&call[..], &["--parameters", "64"]].concat());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("16 to 4096 B"), "{said}");
    let waits = b".program waits\nr1 = 0\nr2 = 0\nr3 = 0\nr4 = -1\ncall wait_word\nexit\n";
    let waits = folder.file("waits.s", waits);
    for place in ["there", "here", "choose"] {
        let call = ["call", &to, &waits, "--place", place, "--timeout-ms", "20"];
        let (code, kind, said) = failure(&call);
        assert_eq!((code, kind.as_str()), (Some(1), "DeadlinePassed"), "{place}: {said}");
    }
    for process in [near, small_host, other_host, host] {
        end(process);
    }
}

/// Returns the bytes of a number in hexadecimal, as printed.
fn shown(number: u64) -> String {
    number.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn process_listener_receives_every_notification_in_order(fabric: &str) {
    let folder = Folder::new();
    let notifies = folder.file("notifies.s", NOTIFIES.as_bytes());
    let (host, to) = serve(fabric, &["--memory", "0=4K"]);
    let listen = ["--json", "rmc", "listen", &to];
    let mut both = Running::start(&[], &[&listen[..], &["7", "0x10", "7"]].concat());
    assert_eq!(both.event("listening")["topics"], json("[7, 16]"), "{fabric}");
    let mut three = Running::start(&[], &[&listen[..], &["7", "--count", "3"]].concat());
    three.event("listening");
    let mut as_text = Running::start(&[], &["rmc", "listen", &to, "16"]);
    assert!(as_text.line().starts_with(&format!("listening to topic 16 at {to}")));
    let notify = |topic: &str, count: &str| {
        let parameters = format!("{topic},{count}");
        value(&["call", &to, &notifies, "--parameters", &parameters])["returned"]["result"].clone()
    };
    assert_eq!(
        (notify("7", "10"), notify("9", "1"), notify("16", "1")),
        (10.into(), 1.into(), 1.into())
    );
    let mut of_7 = 0;
    for _ in 0..11 {
        let notice = both.event("notice");
        assert_eq!(notice["lost"], 0, "{fabric}");
        if notice["topic"] == 7 {
            assert_eq!(notice["bytes"], shown(of_7), "{fabric}");
            of_7 += 1;
        } else {
            assert_eq!((&notice["topic"], &notice["bytes"]), (&16.into(), &shown(0).into()));
        }
    }
    assert_eq!(of_7, 10, "{fabric}");
    let ended = three.event("ended");
    assert_eq!((&ended["notices"], three.end()), (&3.into(), (Some(0), String::new())));
    assert_eq!(as_text.line(), "topic 16: 8 B: 0000000000000000", "{fabric}");
    as_text.signal(Signal::INT);
    assert_eq!(as_text.line(), "1 notice received", "{fabric}");
    assert_eq!(as_text.end(), (Some(0), String::new()));
    assert_eq!(end(both)["notices"], 11, "{fabric}");
    end(host);
}

/// Sends forty notifications to topic 7 while a listener is stopped.
fn notify_while_stopped(listener: &Running, to: &str, notifies: &str) {
    listener.stop();
    value(&["call", to, notifies, "--parameters", "7,40"]);
    listener.signal(Signal::CONT);
}

fn process_slow_listener_receives_the_number_of_lost_notifications(fabric: &str) {
    let folder = Folder::new();
    let notifies = folder.file("notifies.s", NOTIFIES.as_bytes());
    let (host, to) = serve(fabric, &["--memory", "0=4K"]);
    let mut slow = Running::start(&[], &["--json", "rmc", "listen", &to, "7"]);
    slow.event("listening");
    notify_while_stopped(&slow, &to, &notifies);
    let (mut received, mut lost) = (Vec::new(), 0);
    while received.last() != Some(&Value::from(shown(39))) {
        let notice = slow.event("notice");
        lost += notice["lost"].as_u64().unwrap();
        received.push(notice["bytes"].clone());
    }
    // The executor keeps the last sixteen, and one more answers the pending request.
    assert!([16, 17].contains(&received.len()), "{fabric}: {received:?}");
    assert_eq!(lost, 40 - received.len() as u64, "{fabric}");
    let kept: Vec<_> = (24..40).map(|number| Value::from(shown(number))).collect();
    assert_eq!(received[received.len() - 16..], kept, "{fabric}");
    let ended = end(slow);
    assert_eq!(
        (&ended["notices"], &ended["lost"]),
        (&received.len().into(), &lost.into()),
        "{fabric}"
    );
    // The text output.
    let mut slow = Running::start(&[], &["rmc", "listen", &to, "7"]);
    slow.line();
    notify_while_stopped(&slow, &to, &notifies);
    let lost = loop {
        let line = slow.line();
        if line.contains("lost") {
            break line;
        }
    };
    let said = ["23", "24"].map(|lost| format!("topic 7: {lost} notices lost: not read in time"));
    assert!(said.contains(&lost), "{fabric}: {lost}");
    slow.signal(Signal::KILL);
    end(host);
}

#[test]
fn process_impossible_listen_is_refused() {
    let (host, to) = serve("shm", &["--memory", "0=4K", "--slots", "2"]);
    let many: Vec<_> = (0..65).map(|topic| topic.to_string()).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let absent = name();
    let cases: [(&[&str], i32, &str); 3] = [
        (&[&["listen", &to][..], &many].concat(), 2, "65 topics: a listener has at most 64"),
        (&["listen", &to, "1", "2", "3"], 1, "--slots"),
        (&["listen", &absent, "1"], 1, &absent),
    ];
    for (arguments, code, said) in cases {
        let (found, _, text) = failure(arguments);
        assert_eq!(found, Some(code), "{text}");
        assert!(text.contains(said), "{text}");
    }
    for arguments in
        [&["listen", &to][..], &["listen", &to, "x"], &["listen", &to, "1", "--count", "0"]]
    {
        assert_eq!(rmc(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let mut listener = Running::start(&[], &["--json", "rmc", "listen", &to, "1"]);
    listener.event("listening");
    host.signal(Signal::KILL);
    assert_eq!(json(&listener.line())["error"]["name"], "PeerLost");
    assert_eq!(listener.end().0, Some(1));
}
