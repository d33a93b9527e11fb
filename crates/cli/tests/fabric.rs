//! `farside bench fabric` between two processes, and cluster keys.
#![forbid(unsafe_code)]

mod common;

use common::{Running, farside, json, name, report, text};
use rustix::process::Signal;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Output;

farside_testkit::on_each_fabric! { shm tcp => (process_killed_peer_is_reported) }

/// A running `farside bench fabric --listen`.
struct Server {
    running: Running,
    address: String,
}

impl Server {
    fn start(at: &str, arguments: &[&str]) -> Self {
        let fixed = ["bench", "fabric", "--json", "--listen", at];
        let mut running = Running::start(&[], &[&fixed, arguments].concat());
        let address = json(&running.line())["listening"].as_str().unwrap_or_default().to_owned();
        Self { running, address }
    }

    /// Returns its report of the next client.
    fn served(&mut self) -> Value {
        json(&self.running.line())["served"].clone()
    }
}

fn client(to: &str, arguments: &[&str]) -> Output {
    farside(&[]).args(["bench", "fabric", "--json", to]).args(arguments).output().unwrap()
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
    let second = farside(&[]).args(arguments).output().unwrap();
    let said = text(&second.stdout);
    assert!(second.status.success() && said.contains("t_typical[usec]"), "{said}");
    assert!(said.contains("path") && said.contains("half of a round trip"), "{said}");
    assert_eq!(server.served()["tests"], 1);
    server.running.signal(Signal::INT);
    assert_eq!(server.running.end(), (Some(0), String::new()));
}

#[test]
fn process_all_tests_run_between_processes_over_tcp() {
    let server = Server::start("127.0.0.1:0", &["--once"]);
    let to = server.address.clone();
    assert!(to.ends_with("/bench"), "{to}");
    check_everything(&report(&client(&to, &EVERYTHING)), "tcp");
    assert_eq!(server.running.end(), (Some(0), String::new()));
    let refused = failure(&client(&to, &[]));
    assert!(refused.contains("no process listens"), "the only client is gone: {refused}");
}

#[test]
fn process_only_holders_of_the_key_are_served() {
    let folder = std::env::temp_dir().join(name());
    std::fs::create_dir(&folder).unwrap();
    let file = |name: &str| -> PathBuf { folder.join(name) };
    let make =
        |path: &PathBuf| farside(&[]).args(["key", "new", "--json"]).arg(path).output().unwrap();
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

fn process_killed_peer_is_reported(fabric: &str) {
    let at = if fabric == "shm" { name() } else { "127.0.0.1:0".to_owned() };
    let server = Server::start(&at, &[]);
    let mut command = farside(&[]);
    command.args(["bench", "fabric", &server.address, "--test", "read", "-n", "8,1"]);
    assert_eq!(command.output().unwrap().status.code(), Some(2), "no number");
    let client = |to: &str| {
        let mut client =
            Running::start(&[], &["bench", "fabric", to, "--test", "read", "-D", "60"]);
        // The table head: the test is about to run.
        client.hear("#bytes");
        client
    };
    let running = client(&server.address);
    server.running.signal(Signal::KILL);
    let (code, said) = running.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("gone") || said.contains("reached"), "{said}");
    // The other way round: the client is killed.
    let mut server = Server::start(&at, &["--once"]);
    client(&server.address).kill();
    assert_eq!(server.served()["failure"]["kind"], "system");
    assert_eq!(server.running.end().0, Some(1));
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
