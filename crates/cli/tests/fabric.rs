//! `farside bench fabric` between two processes, and cluster keys.
#![forbid(unsafe_code)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

fn farside() -> Command {
    Command::new(env!("CARGO_BIN_EXE_farside"))
}

/// Returns a name that no other test or run uses.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("bench-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A running `farside bench fabric --listen`.
struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(at: &str, arguments: &[&str]) -> Self {
        let mut child = farside()
            .args(["bench", "fabric", "--json", "--listen", at])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = json(&line)["listening"].as_str().unwrap_or_default().to_owned();
        Self { child, output, address }
    }

    /// Returns its report of the next client.
    fn served(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        json(&line)["served"].clone()
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(process, signal).unwrap();
    }

    /// Waits for its end, and returns its exit code and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(to: &str, arguments: &[&str]) -> Output {
    farside().args(["bench", "fabric", "--json", to]).args(arguments).output().unwrap()
}

fn report(done: &Output) -> Value {
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    json(&text(&done.stdout))
}

/// Returns the error text of a command that failed with exit code 1.
fn failure(done: &Output) -> String {
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    json(&text(&done.stdout))["error"]["text"].as_str().unwrap().to_owned()
}

/// Checks the form of a report of all tests at two sizes, 40 requests each.
fn check_everything(report: &Value, fabric: &str) {
    assert_eq!((&report["fabric"], &report["skipped"]), (&fabric.into(), &Value::Array(vec![])));
    assert_ne!(report["path"], "", "{report}");
    for table in ["latency", "bandwidth", "rate"] {
        let lines = report[table].as_array().unwrap();
        let heads: Vec<_> = lines
            .iter()
            .map(|line| (line["test"].as_str().unwrap(), line["bytes"].as_u64().unwrap()))
            .collect();
        let both = |test| [(test, 1), (test, 4096)];
        let atomic = vec![("atomic", 8)];
        let expected =
            [both("write").to_vec(), both("read").to_vec(), atomic, both("send").to_vec()];
        assert_eq!(heads, expected.concat(), "{table}");
        for line in lines {
            assert_eq!(line["iterations"], 40, "{line}");
            let keys = match table {
                "latency" => ["min_us", "typical_us", "p99_us", "p999_us", "max_us"].to_vec(),
                _ => ["average_mib_per_second", "peak_mib_per_second"].to_vec(),
            };
            let values: Vec<_> = keys.iter().map(|key| line[key].as_f64().unwrap()).collect();
            assert!(values.is_sorted() && values[values.len() - 1] > 0.0, "{line}");
        }
    }
}

const EVERYTHING: [&str; 6] = ["--measure", "all", "-s", "1,4096", "-n", "40"];

#[test]
fn process_all_tests_run_between_processes_over_shm() {
    let mut server = Server::start(&name(), &[]);
    let to = server.address.clone();
    check_everything(&report(&client(&to, &EVERYTHING)), "shm");
    assert_eq!(server.served()["tests"], 3 * 7);
    // A second client, with text output and a duration.
    let arguments = ["bench", "fabric", &to, "--test", "write", "-D", "0.02"];
    let second = farside().args(arguments).output().unwrap();
    let said = text(&second.stdout);
    assert!(second.status.success() && said.contains("t_typical[usec]"), "{said}");
    assert!(said.contains("path") && said.contains("half of a round trip"), "{said}");
    assert_eq!(server.served()["tests"], 1);
    server.signal(Signal::INT);
    assert_eq!(server.end(), (Some(0), String::new()));
}

#[test]
fn process_all_tests_run_between_processes_over_tcp() {
    let server = Server::start("127.0.0.1:0", &["--once"]);
    let to = server.address.clone();
    assert!(to.ends_with("/bench"), "{to}");
    check_everything(&report(&client(&to, &EVERYTHING)), "tcp");
    assert_eq!(server.end(), (Some(0), String::new()));
    let refused = failure(&client(&to, &[]));
    assert!(refused.contains("no process listens"), "the only client is gone: {refused}");
}

#[test]
fn process_only_holders_of_the_key_are_served() {
    let folder = std::env::temp_dir().join(name());
    std::fs::create_dir(&folder).unwrap();
    let file = |name: &str| -> PathBuf { folder.join(name) };
    let make =
        |path: &PathBuf| farside().args(["key", "new", "--json"]).arg(path).output().unwrap();
    let (mine, other) = (file("mine"), file("other"));
    let made = report(&make(&mine));
    assert_eq!(made["fingerprint"].as_str().map(str::len), Some(16));
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&mine).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    let before = std::fs::read(&mine).unwrap();
    assert!(failure(&make(&mine)).contains("mine"), "a key file is never overwritten");
    assert_eq!(std::fs::read(&mine).unwrap(), before);
    report(&make(&other));
    let [mine, other] = [mine, other].map(|path| path.to_str().unwrap().to_owned());
    let mut server = Server::start("127.0.0.1:0", &["--key", &mine]);
    let to = server.address.clone();
    for wrong in [&["--key", &other][..], &[]] {
        let refused = failure(&client(&to, wrong));
        assert!(refused.contains("trust"), "{refused}");
    }
    let found = report(&client(&to, &["--key", &mine, "--test", "read", "-n", "9"]));
    assert_eq!(found["latency"][0]["iterations"], 9);
    assert_eq!(server.served()["tests"], 1);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn process_killed_peer_is_reported() {
    for at in [name(), "127.0.0.1:0".to_owned()] {
        let server = Server::start(&at, &[]);
        let mut command = farside();
        command.args(["bench", "fabric", &server.address, "--test", "read", "-n", "8,1"]);
        assert_eq!(command.output().unwrap().status.code(), Some(2), "no number");
        let mut running = farside()
            .args(["bench", "fabric", &server.address, "--test", "read", "-D", "60"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
        // The table head: the test is about to run.
        while !lines.next().unwrap().unwrap().contains("#bytes") {}
        server.signal(Signal::KILL);
        let mut said = String::new();
        running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(1), "{said}");
        assert!(said.contains("gone") || said.contains("reached"), "{said}");
        // The other way round: the client is killed.
        let mut server = Server::start(&at, &["--once"]);
        let mut running = farside()
            .args(["bench", "fabric", &server.address, "--test", "read", "-D", "60"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("#bytes") {}
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(server.served()["failure"]["kind"], "system");
        assert_eq!(server.end().0, Some(1));
    }
}

#[test]
fn process_impossible_measurements_are_refused() {
    let absent = name();
    assert!(failure(&client(&absent, &[])).contains("no process listens"));
    assert!(failure(&client(&absent, &["--test", "send", "-s", "8M"])).contains("send_bytes_max"));
    assert!(failure(&client(&absent, &["-t", "1000000"])).contains("outstanding_max"));
    for wrong in [&["--key", "x"][..], &["--fabric", "tcp"], &["--only", "read"], &["--once"]] {
        assert_eq!(client(&absent, wrong).status.code(), Some(2), "{wrong:?}");
    }
}
