//! Tests `farside rmc serve`, `register` and `call` between processes over shm and TCP.
//!
//! Covers the path from C source to results, and processes that are killed during a call.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, json, name, output, report, text};
use farside::ErrorCode;
use farside::call::{CallOptions, Caller, CallerOptions, Program, Ticket};
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::Random;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

farside_testkit::on_each_fabric! { shm tcp => (
    process_region_restrictions_are_enforced
    process_programs_of_a_file_share_state
    process_calls_agree_with_native_code
    process_errors_have_name_and_exit_code
    process_access_beyond_the_file_is_refused
    process_killed_client_is_removed_without_affecting_others
    process_killed_server_is_an_error_at_its_clients
    process_second_executor_accesses_the_memory_of_its_host
    process_killed_second_executor_is_an_error_at_its_clients_only
    process_killed_host_ends_calls_but_not_the_second_executor
    process_call_is_stopped_at_its_deadline
)}

/// Timeout after which a test counts as hung.
const LONG: Duration = Duration::from_secs(60);

/// Increments the word at 8, then waits until the word at 0 is not 0.
const WAITS: &str = "
.program waits
    r1 = 0
    r2 = 8
    r3 = 1
    call fetch_add
    r1 = 0
    r2 = 0
    r3 = 0
    r4 = -1
    call wait_word
    exit
";
/// Like [`WAITS`], but returns the word at 0.
const WAITS_AND_LOADS: &str = "
.program waits_and_loads
    r1 = 0
    r2 = 8
    r3 = 1
    call fetch_add
    r1 = 0
    r2 = 0
    r3 = 0
    r4 = -1
    call wait_word
    r1 = 0
    r2 = 0
    call load_u64
    exit
";
/// Stores the second parameter at the first, and returns the word at 8.
const STORES: &str = "
.program stores
    r2 = *(u64 *)(r1 + 0)
    r3 = *(u64 *)(r1 + 8)
    r1 = 0
    call store_u64
    r1 = 0
    r2 = 8
    call load_u64
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
    serve_at(&at, arguments)
}

fn serve_at(at: &str, arguments: &[&str]) -> (Running, String) {
    let fixed = ["--json", "rmc", "serve", at];
    let mut server = Running::start(&[], &[&fixed, arguments].concat());
    let address = server.event("serving")["address"].as_str().unwrap().to_owned();
    (server, address)
}

/// Ends a serving process with SIGINT; returns its last event.
fn end(mut server: Running) -> Value {
    server.signal(Signal::INT);
    let ended = server.event("ended");
    assert_eq!(server.end(), (Some(0), String::new()));
    ended
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a kilobyte of noise followed by 40 scattered list nodes with odd keys, and the offset of the first node.
fn memory() -> (Vec<u8>, u64) {
    let mut random = Random::new(7);
    let mut memory: Vec<u8> = (0..1024).map(|_| random.byte()).collect();
    let offset = |at: u64| 1024 + at * 17 % 40 * 24;
    memory.resize(1024 + 40 * 24, 0);
    for at in 0..40 {
        let next = if at < 39 { offset(at + 1) } else { 0 };
        let node = words(&[2 * at + 1, 1000 + at, next]);
        let from = offset(at) as usize;
        memory[from..from + 24].copy_from_slice(&node);
    }
    (memory, offset(0))
}

/// Reference implementation of the library's list search.
fn searched(memory: &[u8], mut at: u64, key: u64) -> u64 {
    let word = |at: u64| {
        let at = at as usize;
        u64::from_le_bytes(memory[at..at + 8].try_into().unwrap())
    };
    while at != 0 {
        if word(at) == key {
            return word(at + 8);
        }
        at = word(at + 16);
    }
    -2_i64 as u64
}

/// Bitwise CRC32C.
fn crc32c(bytes: &[u8]) -> u64 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    u64::from(!crc)
}

/// Returns the path of a library object, built from source if clang is installed.
fn object(folder: &Folder, called: &str) -> String {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rmc/library");
    let clang = Command::new("clang").arg("--print-targets").output();
    if clang.is_ok_and(|done| text(&done.stdout).contains("bpf")) {
        let source = library.join(format!("{called}.c")).display().to_string();
        let object = folder.path(&format!("{called}.o"));
        let built = value(&["build", &source, "-o", &object]);
        assert_eq!(built["programs"][0]["accepted"], true, "{built}");
        return object;
    }
    library.join(format!("{called}.o")).display().to_string()
}

fn process_calls_agree_with_native_code(fabric: &str) {
    let folder = Folder::new();
    let (bytes, head) = memory();
    let region = format!("0={}", folder.file("memory.bin", &bytes));
    let (search, checksum) = (object(&folder, "list_search"), object(&folder, "checksum"));
    value(&["check", &search, &checksum]);
    let (server, to) = serve(fabric, &["--memory", &region]);
    let known = value(&["register", &to, &checksum]);
    let names = known["programs"].as_array().unwrap().iter().map(|one| one["name"].clone());
    assert_eq!(names.collect::<Vec<_>>(), ["checksum_crc32c", "checksum_xxhash64"]);
    assert_eq!(known["regions"][0]["bytes"], bytes.len(), "{fabric}: as long as the file");
    assert_eq!(
        (&known["programs"][0]["keeps_state"], &known["fabric"]),
        (&false.into(), &fabric.into())
    );
    assert!(known["registered_ns"].as_u64().unwrap() > 0 && known["path"] != "", "{known}");
    for here in [&[][..], &["--here"]] {
        for key in [1, 3, 79, 80, 0] {
            let parameters = format!("{head},{key}");
            let call = ["call", &to, &search, "--parameters", &parameters];
            let called = value(&[&call[..], here].concat());
            let expected = searched(&bytes, head, key);
            assert_eq!(called["returned"]["result"], expected, "{fabric} {key} {here:?}");
            let status = if expected > 1 << 32 { "FARSIDE_NOT_FOUND".into() } else { Value::Null };
            assert_eq!(called["returned"]["status"], status, "{fabric} {key}");
        }
        for (from, length) in [(0, 1024), (3, 1000), (1023, 1), (5, 0)] {
            let parameters = format!("{from},{length},0");
            let call = ["call", &to, &checksum, "--program", "checksum_crc32c"];
            let called =
                value(&[&call[..], &["--parameters", &parameters, "--times", "3"], here].concat());
            let expected = crc32c(&bytes[from..from + length]);
            assert_eq!(called["returned"]["result"], expected, "{fabric} {from} {here:?}");
            assert_eq!(called["calls"], 3);
        }
    }
    // The text output.
    let done =
        rmc(&["call", &to, "list_search", "--parameters", &format!("{head},3"), "--times", "9"]);
    let said = text(&done.stdout);
    for part in ["returned    1001 (0x3e9, 1001)", "round trip  median", "of 9 calls", "path "] {
        assert!(said.contains(part), "{said}");
    }
    let ended = end(server);
    // Registrations and calls at the executor; calls in the caller's process are one-sided and not counted.
    assert!(ended["served"].as_u64().unwrap() >= 5 + 4 * 3 + 9, "{ended}");
    assert_eq!(ended["written_back"], Value::Array(vec![]));
}

#[test]
fn process_writes_reach_files_only_with_write_back() {
    let folder = Folder::new();
    let store = folder.file("stores.s", STORES.as_bytes());
    for (fabric, write_back) in [("shm", false), ("shm", true), ("tcp", true)] {
        let file = folder.file("memory.bin", &[9; 61]);
        let region = format!("0={file}");
        let mut arguments = vec!["--memory", &region, "--memory", "200=64K"];
        arguments.extend(write_back.then_some("--write-back"));
        let (server, to) = serve(fabric, &arguments);
        let called = value(&["call", &to, &store, "--parameters", "53,0x1122334455667788"]);
        assert_eq!(called["returned"]["result"], 0x0909_0909_0909_0909_u64);
        assert_eq!(called["regions"][1]["region"], 200);
        assert_eq!(std::fs::read(&file).unwrap(), [9; 61], "not before the end");
        let ended = end(server);
        let mut expected = vec![9; 61];
        if write_back {
            expected[53..].copy_from_slice(&words(&[0x1122_3344_5566_7788]));
            assert_eq!(ended["written_back"][0], file);
        }
        assert!(std::fs::read(&file).unwrap() == expected, "{fabric} {write_back}");
    }
}

fn process_errors_have_name_and_exit_code(fabric: &str) {
    let folder = Folder::new();
    let bad = folder.file("bad.s", b".program bad\nr0 = r3\nexit\n");
    let load = folder.file("foreign.s", b".program foreign\nr1 = 7\nr2 = 0\ncall load_u64\nexit\n");
    let junk = folder.file("junk.o", b"\x7fELF and no more");
    let hostile = folder.file("hostile.s", b".program a\x1b[2Jb\nr0 = r3\nexit\n");
    let tenants = ["--tenant", "poor=programs:0", "--tenant", "idle=calls:0"];
    let (server, to) = serve(fabric, &[&["--memory", "0=4K"][..], &tenants].concat());
    let cases: [(&[&str], i32, &str, &str); 12] = [
        (&["register", &to, &bad], 1, "UnsafeProgram", "bad"),
        (&["register", &to, &junk], 1, "BadProgram", "junk.o"),
        (&["register", &to, "search.c"], 2, "usage", "farside rmc build"),
        (&["register", &to, "/nowhere.o"], 1, "system", "/nowhere.o"),
        (&["register", &to, "list_search", "--tenant", "poor"], 1, "OverQuota", "0 of 0 programs"),
        (&["call", &to, &load, "--tenant", "idle"], 1, "OverQuota", "quota of calls is 0"),
        (&["call", &to, &load], 1, "CallStopped", "foreign"),
        (&["call", &to, &load, "--here"], 1, "CallStopped", "foreign"),
        (&["call", &to, "list_search", "--parameters", "64"], 2, "usage", "16 to 4096 B"),
        (&["call", &to, "list_search", "--parameters", "64;7"], 2, "", ""),
        (&["call", &to, "list_search", "--program", "none"], 2, "usage", "no program `none`"),
        (&["call", &to, "list_search", "--parameters", "@/nowhere"], 1, "system", "/nowhere"),
    ];
    for (arguments, code, kind, said) in cases {
        if kind.is_empty() {
            assert_eq!(rmc(arguments).status.code(), Some(code), "{arguments:?}");
            continue;
        }
        let (found, name, text) = failure(arguments);
        assert_eq!((found, name.as_str()), (Some(code), kind), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    let done = rmc(&["register", &to, &hostile]);
    assert_eq!(done.status.code(), Some(1));
    assert!(!done.stderr.contains(&0x1b), "a terminal control sequence is printed");
    // The server is unaffected.
    let called = value(&["call", &to, "list_search", "--parameters", "0,1"]);
    assert_eq!(called["returned"]["status"], "FARSIDE_NOT_FOUND");
    end(server);
    let (code, kind, said) = failure(&["call", &to, "list_search", "--parameters", "0,1"]);
    assert_eq!((code, kind.as_str()), (Some(1), "NoListener"), "{said}");
    assert!(said.contains(&to), "{said}");
}

fn process_region_restrictions_are_enforced(fabric: &str) {
    let folder = Folder::new();
    let load = folder.file("load.s", b".program load\nr2 = 0\nr1 = 1\ncall load_u64\nexit\n");
    let text = b".program store\nr2 = 0\nr1 = 0\nr3 = 7\ncall store_u64\nexit\n";
    let store = folder.file("store.s", text);
    let read = folder.file("read.s", b".program read\nr2 = 0\nr1 = 0\ncall load_u64\nexit\n");
    let memory = ["--memory", "0=4K", "--memory", "1=4K", "--read-only", "0"];
    let tenants = ["--tenant", "accounts=weight:1", "--only-for", "1=accounts"];
    let (server, to) = serve(fabric, &[&memory[..], &tenants[..]].concat());
    for here in [&[][..], &["--here"]] {
        let called = |object: &str, more: &[&str]| {
            let mut arguments = vec!["call", &to, object];
            arguments.extend(here.iter().chain(more));
            rmc(&arguments).status.code()
        };
        assert_eq!(called(&load, &["--tenant", "accounts"]), Some(0), "{fabric} {here:?}");
        assert_eq!(called(&load, &[]), Some(1), "{fabric} {here:?}: no tenant was given");
        assert_eq!(called(&read, &[]), Some(0), "{fabric} {here:?}");
        assert_eq!(called(&store, &[]), Some(1), "{fabric} {here:?}: it is read-only");
    }
    end(server);
}

#[test]
fn process_wrong_region_restrictions_are_refused() {
    for (arguments, said) in [
        (&["--memory", "0=4K", "--only-for", "0=who"][..], "who"),
        (&["--memory", "0=4K", "--read-only", "1"], "--read-only 1"),
        (&["--memory", "0=4K", "--tenant", "a=weight:1", "--only-for", "2=a"], "--only-for 2"),
    ] {
        let (code, kind, text) = failure(&[&["serve", &name()], arguments].concat());
        assert_eq!((code, kind.as_str()), (Some(2), "usage"), "{text}");
        assert!(text.contains(said), "{text}");
    }
}

fn process_programs_of_a_file_share_state(fabric: &str) {
    let folder = Folder::new();
    let clang = Command::new("clang").arg("--print-targets").output();
    if !clang.is_ok_and(|done| text(&done.stdout).contains("bpf")) {
        return;
    }
    let source = br#"#include "farside_rmc.h"
FARSIDE_SHARED farside_u64 puts;
FARSIDE_MAP(values, farside_u64, farside_u64, 100, FARSIDE_BETWEEN_QUEUE_PAIRS);
FARSIDE_PROGRAM(put)(const farside_u64 *pair, farside_u64 size) {
    if (size < 16)
        return FARSIDE_OUT_OF_RANGE;
    puts += 1;
    return farside_map_put(&values, &pair[0], &pair[1]);
}
FARSIDE_PROGRAM(get)(const farside_u64 *key, farside_u64 size) {
    farside_u64 value;
    if (size < 8 || farside_map_get(&values, key, &value))
        return FARSIDE_NOT_FOUND;
    return value;
}
FARSIDE_PROGRAM(count)(const farside_u64 *none, farside_u64 size) {
    return puts;
}
"#;
    let source = folder.file("kept.c", source);
    let object = source.replace(".c", ".o");
    let built = rmc(&["build", &source, "-o", &object]);
    assert_eq!(built.status.code(), Some(0), "{}", text(&built.stderr));
    let (server, to) = serve(fabric, &["--memory", "0=4K"]);
    let mut keeper = Running::start(&[], &["--json", "rmc", "register", &to, &object, "--keep"]);
    keeper.line();
    let call = |program: &str, parameters: &str| {
        let fixed = ["call", &to, &object, "--program", program, "--parameters", parameters];
        value(&fixed)["returned"]["result"].as_u64().unwrap().cast_signed()
    };
    assert_eq!(call("put", "5,55"), 0);
    assert_eq!((call("get", "5"), call("get", "6")), (55, -2), "{fabric}");
    assert_eq!((call("put", "6,66"), call("get", "6")), (0, 66), "{fabric}");
    assert_eq!(call("count", "0"), 2, "{fabric}");
    keeper.signal(Signal::INT);
    keeper.end();
    end(server);
}

#[test]
fn process_impossible_serve_is_refused() {
    let folder = Folder::new();
    let (full, empty) = (folder.file("full", b"x"), folder.file("empty", b""));
    let (zero, one, hole) = (format!("0={full}"), format!("1={full}"), format!("0={empty}"));
    let (key, good) = (folder.path("no.key"), new_key(&folder, "good.key"));
    let at = name();
    let cases: [(&[&str], i32, &str); 11] = [
        (&["serve", &at, "--memory", "7=99999G"], 1, "region 7 of 107373108658176 B: over"),
        (&["serve", &at], 2, "--memory 0=FILE"),
        (&["serve", &at, "--memory", &zero, "--memory", &one], 2, "a file is one region"),
        (&["serve", &at, "--memory", &zero, "--memory", "0=4K"], 2, "lent twice"),
        (&["serve", &at, "--memory", &hole], 2, "is empty"),
        (&["serve", &at, "--memory", "0=/nowhere/at/all"], 1, "/nowhere/at/all"),
        (&["serve", "0.0.0.0:0", "--memory", "0=4K"], 2, "farside key new"),
        (&["serve", "192.0.2.1:7471", "--memory", "0=4K", "--key", &good], 1, "192.0.2.1:7471"),
        (&["serve", &at, "--beside", "127.0.0.1:1"], 2, "different fabrics"),
        (&["serve", &at, "--memory", "0=4K", "--key", &key], 2, "between machines"),
        (
            &["serve", &at, "--memory", "0=4K", "--tenant", "a=calls:1", "--tenant", "a=calls:2"],
            2,
            "twice",
        ),
    ];
    for (arguments, code, said) in cases {
        let (found, _, text) = failure(arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    for arguments in [
        &["serve", &at, "--memory", "256=4K"][..],
        &["serve", &at, "--memory", "0=4K", "--beside", "other"],
        &["serve", &at, "--memory", "0=4K", "--tenant", "a=speed:1"],
        &["call", &at, "list_search", "--times", "0"],
    ] {
        assert_eq!(rmc(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let (server, to) = serve("shm", &["--memory", "0=4K"]);
    let (code, kind, _) = failure(&["serve", &to, "--memory", "0=4K"]);
    assert_eq!((code, kind.as_str()), (Some(1), "AddressTaken"));
    end(server);
    for (beside, at) in [(name(), name()), ("127.0.0.1:1".to_owned(), "127.0.0.1:0".to_owned())] {
        let (code, _, said) = failure(&["serve", &at, "--beside", &beside]);
        assert_eq!(code, Some(1), "{said}");
    }
}

/// A region ends at the end of its file, although fabrics register whole pages.
fn process_access_beyond_the_file_is_refused(fabric: &str) {
    let folder = Folder::new();
    let store = folder.file("stores.s", STORES.as_bytes());
    let region = format!("0={}", folder.file("memory.bin", &[9; 61]));
    let (server, to) = serve(fabric, &["--memory", &region]);
    for (offset, inside) in [(53_u64, true), (54, false), (61, false), (4095, false)] {
        for here in [&[][..], &["--here"]] {
            let parameters = format!("{offset},7");
            let call = ["call", &to, &store, "--parameters", &parameters];
            let arguments = [&call[..], here].concat();
            if inside {
                value(&arguments);
            } else {
                let (code, kind, said) = failure(&arguments);
                assert_eq!((code, &kind[..]), (Some(1), "CallStopped"), "{offset} {here:?}");
                assert!(said.contains("slot 3: store_u64 of memory"), "{fabric}: {said}");
            }
        }
    }
    end(server);
}

/// Returns the path of a new key file.
fn new_key(folder: &Folder, called: &str) -> String {
    let key = folder.path(called);
    assert!(output(&[], &["key", "new", &key]).status.success());
    key
}

#[test]
fn process_caller_without_the_key_is_refused() {
    let folder = Folder::new();
    let (key, other) = (new_key(&folder, "a.key"), new_key(&folder, "b.key"));
    let (server, to) = serve("tcp", &["--memory", "0=4K", "--key", &key]);
    let call = ["call", &to, "list_search", "--parameters", "0,1"];
    let called = value(&[&call[..], &["--key", &key]].concat());
    assert_eq!(called["returned"]["status"], "FARSIDE_NOT_FOUND");
    for refused in [&[][..], &["--key", &other]] {
        let (code, kind, said) = failure(&[&call[..], refused].concat());
        assert_eq!((code, &kind[..]), (Some(1), "NotPermitted"), "{refused:?}: {said}");
        assert!(said.contains(&to) && said.contains("the same key"), "{refused:?}: {said}");
    }
    // The refused callers have not affected the server.
    value(&[&call[..], &["--key", &key]].concat());
    end(server);
    let (server, to) = serve("tcp", &["--memory", "0=4K"]);
    let (code, _, said) =
        failure(&["call", &to, "list_search", "--parameters", "0,1", "--key", &key]);
    assert_eq!(code, Some(1), "a caller with a key trusts no server without: {said}");
    end(server);
}

/// A caller in this process that accesses the executor's memory.
struct Watcher {
    caller: Caller,
    stores: Program,
}

impl Watcher {
    fn new(fabric: &str, to: &str) -> Self {
        let fabric: Arc<dyn Fabric> = match fabric {
            "shm" => Arc::new(ShmFabric::new().unwrap()),
            _ => Arc::new(TcpFabric::new(TcpOptions::default()).unwrap()),
        };
        let mut caller = Caller::connect(&fabric, to, &CallerOptions::default()).unwrap();
        let stores = caller.register(STORES.as_bytes()).unwrap().remove(0);
        Self { caller, stores }
    }

    /// Stores a word; returns the number of calls that have started to wait.
    fn store(&mut self, offset: u64, word: u64) -> u64 {
        let parameters = words(&[offset, word]);
        self.caller
            .call(&self.stores, &parameters, CallOptions::new().timeout(LONG))
            .unwrap()
            .result
    }

    /// Blocks until `waiting` calls have started to wait.
    fn until(&mut self, waiting: u64) {
        while self.store(16, 0) != waiting {}
    }

    /// Starts a call that waits.
    fn wait(&mut self) -> Ticket {
        let waits = self.caller.register(WAITS.as_bytes()).unwrap().remove(0);
        self.caller.invoke(&waits, &[], CallOptions::new()).unwrap().unwrap()
    }

    /// Asserts that the waiting call ends after the word changes.
    fn resumes(&mut self, waits: Ticket) {
        assert!(self.caller.poll(waits).is_none(), "it has ended");
        self.store(0, 1);
        assert_eq!(self.caller.wait(waits, LONG).unwrap().result, 0);
    }
}

/// Starts a process with a call that waits.
fn waiting(folder: &Folder, to: &str) -> Running {
    let waits = folder.file("waits.s", WAITS.as_bytes());
    Running::start(&[], &["rmc", "call", to, &waits])
}

/// Asserts that a process ended with this error.
fn ended_with(client: Running, code: ErrorCode) {
    let (exit, said) = client.end();
    assert_eq!(exit, Some(1), "{said}");
    assert!(said.contains(code.entry().name), "{said}");
}

/// Skips events until the server has this number of callers and programs.
fn until(server: &mut Running, sessions: u64, programs: u64) {
    loop {
        let event = server.event("changed");
        if (&event["sessions"], &event["programs"]) == (&sessions.into(), &programs.into()) {
            return;
        }
    }
}

fn process_killed_client_is_removed_without_affecting_others(fabric: &str) {
    let folder = Folder::new();
    let (mut server, to) = serve(fabric, &["--memory", "0=4K"]);
    let mut watcher = Watcher::new(fabric, &to);
    until(&mut server, 1, 1);
    let client = waiting(&folder, &to);
    watcher.until(1);
    until(&mut server, 2, 2);
    client.signal(Signal::KILL);
    until(&mut server, 1, 1);
    // Again, while a call of another client waits.
    let own = watcher.wait();
    let client = waiting(&folder, &to);
    watcher.until(3);
    until(&mut server, 2, 2);
    client.signal(Signal::KILL);
    until(&mut server, 1, 2);
    watcher.resumes(own);
    drop(watcher);
    until(&mut server, 0, 0);
    end(server);
}

fn process_killed_server_is_an_error_at_its_clients(fabric: &str) {
    let folder = Folder::new();
    let (server, to) = serve(fabric, &["--memory", "0=4K"]);
    let mut watcher = Watcher::new(fabric, &to);
    let (own, client) = (watcher.wait(), waiting(&folder, &to));
    watcher.until(2);
    let object = folder.path("waits.s");
    let mut keeper = Running::start(&[], &["--json", "rmc", "register", &to, &object, "--keep"]);
    keeper.line();
    server.signal(Signal::KILL);
    ended_with(client, ErrorCode::PeerLost);
    ended_with(keeper, ErrorCode::PeerLost);
    assert_eq!(watcher.caller.wait(own, LONG).unwrap_err().code, ErrorCode::PeerLost);
}

fn process_second_executor_accesses_the_memory_of_its_host(fabric: &str) {
    let folder = Folder::new();
    let (bytes, head) = memory();
    let region = format!("3={}", folder.file("memory.bin", &bytes));
    let (host, to) = serve(fabric, &["--memory", &region]);
    let (near, at) = serve(fabric, &["--beside", &to]);
    for (key, to) in [(79, &at), (80, &at), (79, &to)] {
        // Region 3 is in the upper 16 bits of each address. The links in the list itself name region 0.
        let parameters = format!("{},{key},0", 3_u64 << 48 | 16);
        let call = ["call", to, "checksum_crc32c", "--parameters", &parameters];
        let expected = crc32c(&bytes[16..16 + key as usize]);
        assert_eq!(value(&call)["returned"]["result"], expected, "{fabric}");
    }
    let parameters = format!("{},1", 3_u64 << 48 | head);
    let call = ["call", &at, "list_search", "--parameters", &parameters];
    assert_eq!(value(&call)["returned"]["result"], 1000, "{fabric}");
    // This executor lends no memory to callers, so a program that reads cannot run here: refused before the call.
    let (code, kind, said) = failure(&[&call[..], &["--here"]].concat());
    assert_eq!((code, kind.as_str()), (Some(1), "NotHere"), "{fabric} {said}");
    assert!(said.contains("calls read") && said.contains("--beside"), "{fabric} {said}");
    let seven = folder.file("seven.s", b".program seven\nr0 = 7\nexit\n");
    assert_eq!(value(&["call", &at, &seven, "--here"])["returned"]["result"], 7, "{fabric}");
    assert_eq!(end(near)["written_back"], Value::Array(vec![]));
    end(host);
}

fn process_killed_second_executor_is_an_error_at_its_clients_only(fabric: &str) {
    let folder = Folder::new();
    let (host, to) = serve(fabric, &["--memory", "0=4K"]);
    let (near, at) = serve(fabric, &["--beside", &to]);
    let mut watcher = Watcher::new(fabric, &to);
    let (own, client) = (watcher.wait(), waiting(&folder, &at));
    watcher.until(2);
    near.signal(Signal::KILL);
    ended_with(client, ErrorCode::PeerLost);
    watcher.resumes(own);
    drop(watcher);
    end(host);
}

fn process_killed_host_ends_calls_but_not_the_second_executor(fabric: &str) {
    let folder = Folder::new();
    let seven = folder.file("seven.s", b".program seven\nr0 = 7\nexit\n");
    let (host, to) = serve(fabric, &["--memory", "0=4K"]);
    let (mut near, at) = serve(fabric, &["--beside", &to]);
    let mut watcher = Watcher::new(fabric, &to);
    let waits = folder.file("waits.s", WAITS.as_bytes());
    let mut status = Running::start(&[], &["--json", "rmc", "call", &at, &waits]);
    let loads = folder.file("loads.s", WAITS_AND_LOADS.as_bytes());
    let stopped = Running::start(&[], &["rmc", "call", &at, &loads]);
    watcher.until(2);
    host.signal(Signal::KILL);
    // A helper with a status returns the error to the program; a failed load of a word ends the call.
    assert_eq!(json(&status.line())["returned"]["status"], "FARSIDE_PEER_LOST", "{fabric}");
    ended_with(stopped, ErrorCode::PeerLost);
    assert_ne!(near.event("host_lost")["reason"], "");
    // Programs that access no memory run; others get the error.
    assert_eq!(value(&["call", &at, &seven])["returned"]["result"], 7, "{fabric}");
    let called = value(&["call", &at, "list_search", "--parameters", "64,1"]);
    assert_eq!(called["returned"]["status"], "FARSIDE_PEER_LOST", "{fabric}");
    // Calls reach a restarted host, whose memory has its initial contents.
    let (host, _) = serve_at(&to, &["--memory", "0=4K"]);
    near.event("host_found");
    let stores = folder.file("stores.s", STORES.as_bytes());
    let parameters = ["--parameters", "8,42"];
    let called = value(&[&["call", &at, &stores][..], &parameters].concat());
    assert_eq!(called["returned"]["result"], 42, "{fabric}");
    end(near);
    end(host);
}

#[test]
fn process_program_with_state_is_refused_outside_its_executor() {
    let folder = Folder::new();
    let counts = b".program counts\n.state c counters 0 8 4 own\nr1 = state c\nr2 = 0\nr3 = 1\n\
        call counter_add\nexit\n";
    let counts = folder.file("counts.s", counts);
    let (server, to) = serve("shm", &["--memory", "0=4K"]);
    let (code, kind, said) = failure(&["call", &to, &counts, "--here"]);
    assert_eq!((code, kind.as_str()), (Some(1), "NotHere"), "{said}");
    assert!(said.contains("keeps state") && said.contains("Run it at its executor"), "{said}");
    assert_eq!(value(&["call", &to, &counts])["calls"], 1);
    end(server);
}

fn process_call_is_stopped_at_its_deadline(fabric: &str) {
    let folder = Folder::new();
    let waits = folder.file("waits.s", WAITS.as_bytes());
    let (server, to) = serve(fabric, &["--memory", "0=4K"]);
    for here in [&[][..], &["--here"]] {
        let call = ["call", &to, &waits, "--timeout-ms", "20"];
        let (code, kind, said) = failure(&[&call[..], here].concat());
        assert_eq!((code, kind.as_str()), (Some(1), "DeadlinePassed"), "{fabric} {here:?} {said}");
    }
    end(server);
}
