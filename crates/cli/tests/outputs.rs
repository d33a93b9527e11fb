//! Outputs that cannot be written, that are not read, or that are not regular files.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, WATCHDOG, farside, json, name, output, signal, text};
use farside::call::{Caller, CallerOptions};
use farside::onesided::{LendOptions, MemoryServer};
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use farside_testkit::free_address;
use rustix::fs::{CWD, FileType, makedev, mkfifoat, mknodat};
use rustix::process::Signal;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

fn object() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rmc/library");
    folder.join("list_search.o").display().to_string()
}

/// Returns every command without subcommands, as listed by the help, without hidden ones.
fn commands(path: &[&str]) -> Vec<Vec<String>> {
    let help = text(&farside(&[]).args(path).arg("--help").output().unwrap().stdout);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty());
    // The descriptions continue on lines with a larger indentation.
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return vec![path.iter().map(|part| (*part).to_owned()).collect()];
    }
    names.iter().flat_map(|name| commands(&[path, &[name]].concat())).collect()
}

/// Creates a program that replaces `clang` for `farside rmc build`: it writes an object to its last argument.
fn compiler(folder: &Folder) -> String {
    compiler_of(folder, &object())
}

fn compiler_of(folder: &Folder, object: &str) -> String {
    let script = format!("#!/bin/sh\nfor last; do :; done\ncp '{object}' \"$last\"\n");
    let path = folder.file("compiler", script.as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// The behaviour of a command whose standard output is full.
enum Case {
    /// With these arguments it ends by itself.
    Ends(Vec<String>),
    /// With these arguments it serves until a signal.
    Serves(Vec<String>),
}

/// Returns arguments with which a command soon prints something.
fn case(command: &str, folder: &Folder, [executor, log, node]: [&str; 3]) -> Case {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let ends = |text: &str| Case::Ends(words(text));
    let serves = |text: &str| Case::Serves(words(text));
    let source = folder.file("source.c", b"");
    let memory = folder.file("memory", &[0; 64]);
    let config = "--memory-bytes 16M --cache-bytes 4M";
    match command {
        "demo" => ends("--nodes 2 --records 200 --operations 200"),
        "up" => serves(&format!("--nodes 1 --name {} {config}", name())),
        "run" => ends("-n 1 /bin/echo text"),
        "node" => serves(&format!("--listen 127.0.0.1:0 {config}")),
        "witness" => serves(&format!("--listen 127.0.0.1:0 --join {node}")),
        "agent" => serves("--listen 127.0.0.1:0 --insecure"),
        "lend" => serves(&format!("--bytes 1M --socket 0 --name {}", name())),
        "log append" | "log tail" => ends(log),
        "wordcount" => ends(&format!("--nodes 1 {}", folder.file("text", b"a b a\n"))),
        "channels" | "info" | "rmc list" | "rmc figures" => ends(""),
        "reproduce" => ends("000 --figure I"),
        "doctor" => ends("--list"),
        "key new" => ends(&folder.path(&name())),
        "bench memory" => ends("--only hit --windows 8"),
        "bench fabric" => ends("--only fetch_add --windows 8"),
        "bench channels" => ends("--profile connectx5 --channel ring-inlined --bytes 64"),
        "bench ycsb" => ends("--nodes 1 --records 200 --operations 200"),
        "bench graph" => ends("--scale 6 --runs 1"),
        "bench hashtable" | "bench log" => ends("--windows 1"),
        "bench vector" | "bench consolidate" => ends("--windows 1"),
        "bench durable" => ends("--windows 1"),
        "log keep" => ends(&folder.path(&name())),
        "log print" | "log check" => {
            let (log, line) = (folder.path(&name()), folder.file("line", b"a record\n"));
            let line = std::fs::File::open(line).unwrap();
            let kept = farside(&[]).args(["log", "keep", &log]).stdin(line).output();
            assert!(kept.unwrap().status.success());
            ends(&log)
        }
        "bench access" => ends("--windows 1 --region 1M"),
        "bench shuffle" | "bench join" => ends("--rows 1000 --runs 1"),
        "bench atomics" => ends("--windows 1 --clients 1"),
        "bench numa" => ends("--windows 1 --batch 2"),
        "bench rmc" => ends("--fabric shm --rounds 20"),
        "rmc build" => ends(&format!("{source} --clang {}", compiler(folder))),
        "rmc check" => ends(&object()),
        "rmc run" => ends(&format!("list_search --parameters 0,7 --memory 0={memory}")),
        "rmc serve" => serves(&format!("{} --memory 0=1M", name())),
        "rmc register" => ends(&format!("{executor} list_search")),
        "rmc call" => ends(&format!("{executor} list_search --parameters 0,7")),
        "rmc listen" => serves(&format!("{executor} 7")),
        _ => panic!("no arguments are known for `farside {command}`: add them here"),
    }
}

/// Lends memory with a log of one record.
fn lend_log() -> MemoryServer {
    let fabric = farside::fabrics::shared_memory().unwrap();
    let lent = MemoryServer::lend(&fabric, &name(), 1 << 20, &LendOptions::default()).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"a record\n").unwrap();
    drop(writer);
    let appended =
        farside(&[]).args(["log", "append", lent.address()]).stdin(reader).output().unwrap();
    assert!(appended.status.success(), "{}", text(&appended.stderr));
    lent
}

#[test]
fn every_command_fails_when_its_output_cannot_be_written() {
    let folder = Folder::new();
    let (server, executor) = serve(Stdio::piped(), true);
    let lent = lend_log();
    let mut founder = Running::node(&[], &["--listen", "127.0.0.1:0"]);
    let (_, node) = founder.started();
    let all = commands(&[]);
    assert!(all.len() >= 20, "{all:?}");
    for command in all {
        let path = command.join(" ");
        for form in [&[][..], &["--json"]] {
            let case = case(&path, &folder, [&executor, lent.address(), &node]);
            let (Case::Ends(arguments) | Case::Serves(arguments)) = &case;
            let mut run = farside(&[]);
            run.args(&command).args(form).args(arguments).stdin(Stdio::null());
            let mut child = run.stdout(full()).stderr(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(child.stderr.take().unwrap());
            let mut words = String::new();
            if matches!(case, Case::Serves(_)) {
                // It reports the error at once, and continues.
                said.read_line(&mut words).unwrap();
                assert!(words.contains("standard output: "), "{path} {form:?}: {words}");
                assert!(child.try_wait().unwrap().is_none(), "{path} {form:?}: {words}");
                signal(child.id(), Signal::INT);
                words.clear();
            }
            said.read_to_string(&mut words).unwrap();
            let code = child.wait().unwrap().code();
            assert_eq!(code, Some(1), "{path} {form:?}: {words}");
            assert!(words.contains("standard output: No space left"), "{path} {form:?}: {words}");
        }
        let help = farside(&[]).args(&command).arg("--help").stdout(full()).output().unwrap();
        assert_eq!(help.status.code(), Some(1), "{path} --help");
        assert!(text(&help.stderr).contains("standard output: No space left"), "{path} --help");
    }
    drop(server);
}

#[test]
fn closed_reader_is_no_failure() {
    for arguments in [&["channels"][..], &["rmc", "list", "--json"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = farside(&[]).args(arguments).stdout(writer).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{arguments:?}: {}", text(&done.stderr));
        assert!(done.stderr.is_empty(), "{arguments:?}: {}", text(&done.stderr));
    }
}

/// A service; killed on drop.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    /// Waits for its end, and returns its exit code and standard error.
    fn end(&mut self, stderr: &mut ChildStderr) -> (Option<i32>, String) {
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

/// Starts an executor, and returns it with its address. If `reads`, waits for its first event, from a pipe of this
/// process.
fn serve(stdout: Stdio, reads: bool) -> (Service, String) {
    let at = name();
    let arguments = ["--json", "rmc", "serve", &at, "--memory", "0=1M"];
    let mut child =
        farside(&[]).args(arguments).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    if reads {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(json(&line)["event"], "serving");
    }
    (Service(child), at)
}

/// Creates a full pipe, at which a writer waits for the reader.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'\n'; 4096]).is_ok() {}
    while writer.write(b"\n").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// Connects to an executor, with retries until it listens.
fn connect(fabric: &Arc<dyn Fabric>, at: &str) -> Caller {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        match Caller::connect(fabric, at, &CallerOptions::default()) {
            Ok(caller) => return caller,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[test]
fn executor_serves_and_ends_without_a_reader_of_its_events() {
    let (reader, writer) = full_pipe();
    let (mut server, at) = serve(writer.into(), false);
    let mut stderr = server.0.stderr.take().unwrap();
    let fabric: Arc<dyn Fabric> = Arc::new(ShmFabric::new().unwrap());
    // Each caller is an event, and the executor still serves the next one.
    for _ in 0..20 {
        let mut caller = connect(&fabric, &at);
        let object = std::fs::read(object()).unwrap();
        let programs = caller.register(&object).unwrap();
        assert!(!programs.is_empty());
    }
    signal(server.0.id(), Signal::TERM);
    let (code, said) = server.end(&mut stderr);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("standard output: it is not read; "), "{said}");
    drop(reader);
}

#[test]
fn unread_events_are_counted_by_the_next_one() {
    let (reader, writer) = full_pipe();
    let at = free_address().to_string();
    let mut agent = {
        // The `Command` value holds an end of the pipe until it is dropped.
        let mut command = farside(&[]);
        command.args(["--json", "agent", "--insecure", "--listen", &at]).stdout(writer);
        Service(command.stderr(Stdio::piped()).spawn().unwrap())
    };
    let mut stderr = agent.0.stderr.take().unwrap();
    let deadline = Instant::now() + WATCHDOG;
    let mut refused = 0;
    while refused < 1200 {
        match TcpStream::connect(&at) {
            // The agent refuses an invalid handshake, which is an event, and then ends the stream.
            Ok(mut stream) => {
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
                refused += 1;
            }
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
    signal(agent.0.id(), Signal::INT);
    let (mut dropped, mut seen, mut last) = (0, 0, String::new());
    for line in BufReader::new(reader).lines().map(Result::unwrap) {
        if line.is_empty() {
            continue;
        }
        let event = json(&line);
        assert!(event["time"].as_str().unwrap().ends_with('Z'), "{event}");
        dropped += event["dropped"].as_u64().unwrap_or(0);
        seen += 1;
        last = event["event"].as_str().unwrap().to_owned();
    }
    assert_eq!(last, "closed");
    assert!(dropped > 0);
    // Listening, each refusal and the end: each event is either seen or counted.
    assert_eq!(seen + dropped, 1 + refused + 1);
    assert_eq!(agent.end(&mut stderr), (Some(0), String::new()));
}

#[test]
fn object_is_written_to_a_fifo_only_with_a_reader() {
    let folder = Folder::new();
    let (source, compiler) = (folder.file("source.c", b""), compiler(&folder));
    let fifo = folder.path("fifo");
    mkfifoat(CWD, &fifo, 0o600.into()).unwrap();
    let build = || {
        let arguments = ["rmc", "build", &source, "--clang", &compiler, "-o", &fifo];
        farside(&[]).args(arguments).output().unwrap()
    };
    let refused = build();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains(&format!("{fifo}: no process reads it")), "{said}");
    let mut reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let built = build();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let expected = std::fs::read(object()).unwrap();
    let mut read = vec![0; expected.len()];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(read, expected);
    assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
}

#[test]
fn object_over_a_device_leaves_the_device() {
    let folder = Folder::new();
    let (source, compiler, null) =
        (folder.file("source.c", b""), compiler(&folder), folder.path("null"));
    let device = mknodat(CWD, &null, FileType::CharacterDevice, 0o600.into(), makedev(1, 3));
    if device.is_err() {
        skipped("only a privileged user creates device nodes");
        return;
    }
    let arguments = ["rmc", "build", &source, "--clang", &compiler, "-o", &null];
    let built = farside(&[]).args(arguments).output().unwrap();
    let found = std::fs::symlink_metadata(&null).unwrap();
    assert!(found.file_type().is_char_device());
    assert_eq!(found.rdev(), makedev(1, 3), "{}", text(&built.stderr));
}

#[allow(clippy::print_stderr, reason = "reports a skipped test")]
fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}

#[test]
fn write_back_keeps_links_mode_and_owner() {
    let folder = Folder::new();
    let memory = folder.file("memory", &[0; 64]);
    let (hard, soft) = (folder.path("hard"), folder.path("soft"));
    std::fs::hard_link(&memory, &hard).unwrap();
    std::os::unix::fs::symlink("memory", &soft).unwrap();
    std::fs::set_permissions(&memory, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = std::fs::metadata(&memory).unwrap();
    let store = b"    r1 = 0\n    r2 = 8\n    r3 = 7\n    call store_u64\n    r0 = 0\n    exit\n";
    let program = folder.file("store.s", store);
    let region = format!("0={soft}");
    let arguments = ["rmc", "run", &program, "--memory", &region, "--write-back"];
    let done = farside(&[]).args(arguments).output().unwrap();
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    let after = std::fs::metadata(&memory).unwrap();
    let identity =
        |file: &std::fs::Metadata| (file.ino(), file.nlink(), file.mode(), file.uid(), file.gid());
    assert_eq!(identity(&after), identity(&before));
    assert_eq!(std::fs::read(&hard).unwrap()[8], 7);
    assert_eq!(std::fs::read_link(&soft).unwrap(), Path::new("memory"));
}

#[test]
fn history_is_written_to_a_fifo() {
    let folder = Folder::new();
    let fifo = folder.path("fifo");
    mkfifoat(CWD, &fifo, 0o600.into()).unwrap();
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || {
            let mut lines = String::new();
            File::open(fifo).unwrap().read_to_string(&mut lines).unwrap();
            lines.lines().count()
        }
    });
    let numbers = ["--nodes", "2", "--records", "100", "--operations", "50"];
    let mut bench = farside(&[]);
    bench.args(["bench", "ycsb", "--history", &fifo]).args(numbers);
    let done = bench.output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(reader.join().unwrap(), 50);
    assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    let left = std::fs::read_dir(Path::new(&fifo).parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "parts of the history are removed");
}

#[test]
fn object_to_redirected_standard_output_is_refused() {
    let folder = Folder::new();
    let (source, compiler) = (folder.file("source.c", b""), compiler(&folder));
    let said = folder.path("said");
    let mut build = Command::new(env!("CARGO_BIN_EXE_farside"));
    build.args(["rmc", "build", &source, "--clang", &compiler, "-o", "/dev/stdout"]);
    let done = build.stdout(File::create(&said).unwrap()).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let why = text(&done.stderr);
    assert!(why.contains("/dev/stdout: is the standard output of this command"), "{why}");
}

#[test]
fn object_of_a_refused_program_is_kept_on_request() {
    let folder = Folder::new();
    let source = folder.file("source.c", b"");
    // `r0 = r0` instead of each `exit`: the program runs past its end.
    let mut bytes = std::fs::read(object()).unwrap();
    let ends = bytes.chunks_exact_mut(8).filter(|slot| **slot == [0x95, 0, 0, 0, 0, 0, 0, 0]);
    ends.for_each(|slot| slot[0] = 0xbf);
    for (name, bytes) in [("refused.o", &bytes[..]), ("none.o", b"no object")] {
        let compiler = compiler_of(&folder, &folder.file(name, bytes));
        let kept = folder.path("kept.o");
        let build = |more: &[&str]| {
            let fixed = ["--json", "rmc", "build", &source, "--clang", &compiler, "-o", &kept];
            let done = farside(&[]).args(fixed).args(more).output().unwrap();
            assert_eq!(done.status.code(), Some(1), "{name}: {}", text(&done.stderr));
            json(&text(&done.stdout))
        };
        build(&[]);
        assert!(!Path::new(&kept).exists(), "{name}");
        let said = build(&["--keep-refused"]);
        assert_eq!(said["error"]["kind"], "check", "{name}: {said}");
        assert_eq!(std::fs::read(&kept).unwrap(), bytes, "{name}");
        std::fs::remove_file(&kept).unwrap();
    }
}

#[test]
fn text_events_of_a_node_have_a_time() {
    let config = ["--memory-bytes", "16M", "--cache-bytes", "4M", "--cluster", "timed"];
    let mut node = farside(&[]);
    node.args(["node", "--listen", "127.0.0.1:0"]).args(config).stdout(Stdio::piped());
    let mut node = Service(node.spawn().unwrap());
    let mut said = BufReader::new(node.0.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let (time, text) = line.trim_end().split_once(' ').unwrap();
        assert!(time.len() == 24 && time.ends_with('Z') && time.contains('T'), "{line}");
        text.to_owned()
    };
    assert!(next().starts_with("is node 0 of cluster timed at 127.0.0.1:"));
    signal(node.0.id(), Signal::TERM);
    assert_eq!(next(), "has left cluster timed");
    assert_eq!(node.0.wait().unwrap().code(), Some(0));
}

#[test]
fn benchmarks_of_lent_memory_are_drawn() {
    let folder = Folder::new();
    let plot = folder.path("bench.svg");
    let cases: [(&[&str], &[&str]); 6] = [
        (
            &["numa", "--windows", "1", "--unbound", "--topology", "0"],
            &["requests of a doorbell", "0 to 0"],
        ),
        (&["vector", "--windows", "1"], &["a piece, ns, median", "read gather, pieces: 16"]),
        (&["consolidate", "--windows", "1"], &["until its flush", "random direct", "zipf held"]),
        (&["hashtable", "--windows", "1", "--hot", "8,16"], &["held, 16 puts a flush"]),
        (&["shuffle", "--rows", "1000", "--runs", "1"], &["rows of a batch", "stage", "gather"]),
        (
            &["join", "--rows", "1000", "--runs", "1"],
            &["executors", "local", "join, batches of 16"],
        ),
    ];
    for (bench, expected) in cases {
        let all = [&["bench"], bench, &["--quiet", "--plot", &plot]].concat();
        let done = output(&[], &all);
        assert!(done.status.success(), "{all:?}: {}", text(&done.stderr));
        let drawing = std::fs::read_to_string(&plot).unwrap();
        for word in expected {
            assert!(drawing.starts_with("<svg") && drawing.contains(word), "{word} of {bench:?}");
        }
    }
}

#[test]
fn persistent_memory_is_reproduced_as_a_model_and_foreign_figures_are_refused() {
    let run = |figure: &str| {
        let fixed = ["--json", "reproduce", "002", "--figure", figure];
        farside(&[]).args(fixed).output().unwrap()
    };
    let refused = run("19");
    assert_eq!(refused.status.code(), Some(2), "a figure of paper 000: {}", text(&refused.stderr));
    let done = run("12");
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = json(&text(&done.stdout));
    assert_eq!(said["model"], true);
    let claims = said["figures"][0]["claims"].as_array().unwrap();
    assert!(
        claims.iter().any(|claim| claim["name"] == "8 B at 0x40: reads" && claim["model"] == 1.0)
    );
}

#[test]
fn reproduced_figures_are_drawn_and_tables_without_lines_are_refused() {
    let folder = Folder::new();
    let plot = folder.path("figure.svg");
    let run = |figure: &str| {
        let fixed = ["--json", "reproduce", "000", "--figure", figure, "--plot", &plot];
        farside(&[]).args(fixed).output().unwrap()
    };
    let refused = run("II");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(!Path::new(&plot).exists());
    let done = run("19");
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = json(&text(&done.stdout));
    let drawing = std::fs::read_to_string(&plot).unwrap();
    assert!(drawing.starts_with("<svg") && drawing.contains("Figure 19"));
    for line in said["figures"][0]["lines"].as_array().unwrap() {
        let name = line["name"].as_str().unwrap();
        assert!(drawing.contains(name), "{name}");
    }
}
