//! Helpers of the tests that start commands.
#![allow(dead_code, reason = "each test file uses a part")]

use farside_testkit::Process;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Output, Stdio};

/// Time after which a test counts as hung.
pub(crate) const WATCHDOG: std::time::Duration = farside_testkit::WATCHDOG;

/// Returns the command, run by `wrapper`, if any.
pub(crate) fn farside(wrapper: &[&str]) -> Command {
    let mut words = wrapper.iter().copied().chain([env!("CARGO_BIN_EXE_farside")]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

/// Runs the command and waits for its end.
pub(crate) fn output(wrapper: &[&str], arguments: &[&str]) -> Output {
    farside(wrapper).args(arguments).output().unwrap()
}

/// Returns a name that no other test or run uses.
pub(crate) fn name() -> String {
    farside_testkit::unique_name("cli")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Returns the JSON output of a command that must have succeeded.
pub(crate) fn report(done: &Output) -> Value {
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    json(&text(&done.stdout))
}

/// Returns the exit code of a failed command with `--json`, the name or otherwise the kind of its error, and the text.
pub(crate) fn failure(done: &Output) -> (Option<i32>, String, String) {
    let said = text(&done.stdout);
    let error = json(said.lines().last().unwrap_or_default())["error"].clone();
    let part = |name: &str| error[name].as_str().map(str::to_owned);
    let kind = part("name").or(part("kind")).unwrap_or_default();
    (done.status.code(), kind, part("text").unwrap_or_default())
}

pub(crate) fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
    kill_process(process, signal).unwrap();
}

/// Returns whether a process runs (zombies do not).
pub(crate) fn runs(process: u32) -> bool {
    !matches!(state(&format!("/proc/{process}")), None | Some('Z' | 'X'))
}

/// Returns whether all threads of a process are stopped.
pub(crate) fn is_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let state = |thread: std::fs::DirEntry| state(&thread.path().display().to_string());
    threads.map(Result::unwrap).all(|thread| state(thread) == Some('T'))
}

/// Returns the state letter of a process or thread, from its folder in `/proc`.
fn state(folder: &str) -> Option<char> {
    let status = std::fs::read_to_string(format!("{folder}/stat")).unwrap_or_default();
    status.rsplit(") ").next().and_then(|rest| rest.chars().next())
}

/// A temporary folder of a test, deleted on drop.
pub(crate) struct Folder(farside_testkit::Folder);

impl Deref for Folder {
    type Target = farside_testkit::Folder;

    fn deref(&self) -> &farside_testkit::Folder {
        &self.0
    }
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self(farside_testkit::Folder::new())
    }

    /// Creates a cluster key, and returns its path.
    pub(crate) fn key(&self, file: &str) -> String {
        let path = self.path(file);
        report(&output(&[], &["key", "new", "--json", &path]));
        path
    }

    /// Writes a text with repeated words, and returns its path and the output of the shell pipeline for it.
    pub(crate) fn text(&self) -> (String, String) {
        let mut long = String::from("-- ");
        for number in 0..60_000_u32 {
            let letters = [number % 7, number % 5, number % 3].map(|n| char::from(b'a' + n as u8));
            let letters: String = letters.iter().collect();
            long.push_str(&letters[..1 + number as usize % 3]);
            long.push([' ', '\n', ',', '7'][number as usize % 4]);
        }
        long.push_str(&"long".repeat(30_000));
        let file = self.file("text", long.as_bytes());
        let script = "tr -cs '[:alpha:]' '\\n' < \"$1\" | sort | uniq -c";
        let run = Command::new("sh").args(["-c", script, "sh", &file]).env("LC_ALL", "C").output();
        (file, text(&run.unwrap().stdout))
    }
}

/// A running command that prints events line by line; killed on drop.
pub(crate) struct Running(Process);

impl Deref for Running {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}

impl Running {
    pub(crate) fn start(wrapper: &[&str], arguments: &[&str]) -> Self {
        let mut command = farside(wrapper);
        command.args(arguments).stderr(Stdio::piped());
        Self(Process::start(command))
    }

    /// Starts `farside node` with little memory.
    pub(crate) fn node(wrapper: &[&str], arguments: &[&str]) -> Self {
        let fixed = ["--json", "node", "--memory-bytes", "16M", "--cache-bytes", "4M"];
        Self::start(wrapper, &[&fixed, arguments].concat())
    }

    /// Starts `farside agent`, and returns it with its address.
    pub(crate) fn agent(wrapper: &[&str], arguments: &[&str]) -> (Self, String) {
        let mut agent = Self::start(wrapper, &[&["--json", "agent"], arguments].concat());
        let address = agent.event("listening")["address"].as_str().unwrap().to_owned();
        (agent, address)
    }

    /// Returns the next event of this name, and skips others.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        loop {
            let event = json(&self.line());
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Waits for the next event of this name about a node.
    pub(crate) fn event_of(&mut self, name: &str, node: u64) {
        while self.event(name)["node"] != node {}
    }

    /// Waits for the start of a node, and returns its number and address.
    pub(crate) fn started(&mut self) -> (u64, String) {
        let event = self.event("started");
        (event["node"].as_u64().unwrap(), event["address"].as_str().unwrap().to_owned())
    }

    /// Waits for its end, and returns its exit code and standard error.
    pub(crate) fn end(self) -> (Option<i32>, String) {
        self.0.end()
    }
}

/// Checks the result of `farside demo --json` with this number of records.
pub(crate) fn check_demo(shown: &Value, fabric: &str, records: u64) {
    assert_eq!(shown["fabric"], fabric);
    for workload in ["A", "B", "C", "D", "F"] {
        assert_eq!(shown["workloads"][workload]["errors"], 0, "{workload}");
    }
    let all = records + shown["inserted"].as_u64().unwrap();
    assert_eq!(shown["before"]["right"], all);
    let after = &shown["after"];
    let errors = after["errors"].as_object().unwrap();
    let lost: u64 = errors.values().map(|count| count.as_u64().unwrap()).sum();
    assert!(errors.keys().all(|name| name == "NodeLost" || name == "LineLost"), "{errors:?}");
    assert_eq!(after["right"].as_u64().unwrap() + lost, all);
    assert!(lost > 0, "some records of the killed node are lost");
}

/// Checks its second part: the killed node has returned with each of this number of records.
pub(crate) fn check_returned(shown: &Value, records: u64) {
    let part = &shown["replicated"];
    assert_eq!((&part["records"], &part["copies"]), (&records.into(), &2.into()));
    assert_eq!(part["killed_node"], part["replacement_node"]);
    for found in [&part["before"], &part["after"]] {
        let counts = [&found["right"], &found["wrong"], &found["missing"]];
        assert_eq!(counts, [&records.into(), &Value::from(0), &Value::from(0)]);
        assert_eq!(found["errors"], serde_json::json!({}));
    }
    assert_eq!(part["before"]["digest"], part["after"]["digest"]);
    assert_eq!(part["workloads"]["A"]["errors"], 0);
    let (joined, verified) = (part["joined_ns"].as_u64(), part["verified_ns"].as_u64());
    assert!(joined > Some(0) && verified > joined, "{joined:?} {verified:?}");
    assert!(shown.get("replicated_left_out").is_none(), "{shown}");
}

/// Checks that the second part was left out, with a reason that has this text.
pub(crate) fn check_left_out(shown: &Value, reason: &str) {
    assert!(shown["replicated_left_out"].as_str().unwrap().contains(reason), "{shown}");
    assert!(shown.get("replicated").is_none(), "{shown}");
}

/// Appends lines to a log in memory that is lent, from one host, and reads them on another; uses a hash table in other
/// memory. `lend` lends memory of this length under a name, and returns its address.
pub(crate) fn use_applications(
    folder: &Folder,
    [writes, reads]: [&[&str]; 2],
    choice: &[&str],
    mut lend: impl FnMut(&str, &str) -> String,
) {
    let address = lend("log", "1M");
    let lines: String = (0..500).map(|number| format!("line {number}\n")).collect();
    let file = folder.file("lines", lines.as_bytes());
    for mode in ["positioned", "planned", "lazy"] {
        let mut append = farside(writes);
        append.args(["log", "append", &address, "--mode", mode, "--batch", "7"]).args(choice);
        let appended = append.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
        assert!(appended.status.success(), "{mode}: {}", text(&appended.stderr));
        let tail = [&["log", "tail", &address, "--trim"], choice].concat();
        let printed = output(reads, &tail);
        assert!(printed.status.success(), "{mode}: {}", text(&printed.stderr));
        assert!(text(&printed.stdout) == lines, "{mode}");
    }
    let address = lend("table", "70M");
    let bench = [&["--json", "bench", "hashtable", &address, "--windows", "1"], choice].concat();
    let figures = report(&output(reads, &bench));
    assert_eq!(figures.as_array().unwrap().len(), 10);
}
