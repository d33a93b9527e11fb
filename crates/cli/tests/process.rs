//! The command as its users run it, with real processes and signals.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, check_returned, farside, json, name, output, runs, signal, text};
use farside::fabrics::{self, Fabric};
use farside::onesided::{MemoryClient, MemoryClientOptions};
use farside::security::Security;
use farside::{Config, ErrorCode, Node};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running `farside up`.
struct Up {
    child: Child,
    workers: Vec<u32>,
}

impl Up {
    fn start(name: &str, nodes: &str) -> Self {
        let mut child = farside(&[])
            .args([
                "up",
                "--json",
                "--memory-bytes",
                "16M",
                "--cache-bytes",
                "4M",
                "--nodes",
                nodes,
                "--name",
                name,
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let members = json(&line)["nodes"].as_array().unwrap().clone();
        let process = |member: &Value| u32::try_from(member["process"].as_u64().unwrap()).unwrap();
        Self { child, workers: members.iter().map(process).collect() }
    }

    /// Waits for the end of the parent and of all workers, which share its standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let code = self.child.wait().unwrap().code();
        // A process closes its files before it has ended.
        let deadline = Instant::now() + Duration::from_secs(20);
        for worker in &self.workers {
            while runs(*worker) {
                assert!(Instant::now() < deadline, "worker {worker} still runs");
                std::thread::yield_now();
            }
        }
        (code, said)
    }
}

#[test]
fn process_program_joins_by_name_and_interrupt_ends_the_cluster() {
    let name = name();
    let up = Up::start(&name, "2");
    let node = Node::join(&Config::new(name.as_str())).unwrap();
    let mut session = node.session().unwrap();
    let address = session.alloc(64).unwrap();
    session.write_u64(address, 7).unwrap();
    assert_eq!(session.read_u64(address).unwrap(), 7);
    drop(session);
    node.leave().unwrap();
    signal(up.child.id(), Signal::INT);
    assert_eq!(up.end(), (Some(0), String::new()));
    let gone = Node::join(&Config::new(name.as_str())).unwrap_err();
    assert_eq!(gone.code, ErrorCode::NoSuchCluster);
}

#[test]
fn process_workers_end_with_a_killed_parent() {
    let up = Up::start(&name(), "2");
    signal(up.child.id(), Signal::KILL);
    let (code, _) = up.end();
    assert_eq!(code, None, "killed by a signal");
}

#[test]
fn process_second_cluster_of_one_name_is_refused() {
    let name = name();
    let up = Up::start(&name, "1");
    let second =
        farside(&[]).args(["up", "--json", "--nodes", "1", "--name", &name]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(json(&text(&second.stdout))["error"]["name"], "NameTaken");
    assert!(up.workers.iter().all(|worker| runs(*worker)));
    signal(up.child.id(), Signal::TERM);
    assert_eq!(up.end().0, Some(0));
}

#[test]
fn process_worker_continues_after_invalid_commands() {
    let mut worker =
        farside(&[]).arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut commands = worker.stdin.take().unwrap();
    let mut events = BufReader::new(worker.stdout.take().unwrap());
    let mut next = |line: &str| {
        writeln!(commands, "{line}").unwrap();
        let mut event = String::new();
        events.read_line(&mut event).unwrap();
        json(&event)
    };
    assert_eq!(next("no json")["failure"]["kind"], "usage");
    assert_eq!(next("{\"command\":\"dance\"}")["failure"]["kind"], "usage");
    assert_eq!(next("{\"command\":\"stats\"}")["failure"]["name"], "NodeClosed");
    drop(commands);
    assert!(worker.wait().unwrap().success(), "ends with its input");
}

#[test]
fn process_wrong_usage_exits_with_2() {
    for arguments in [
        &[][..],
        &["dance"],
        &["up", "--nodes", "0"],
        &["up", "--memory-bytes", "much"],
        &["wordcount"],
        &["bench"],
        &["channels", "--fan-in", "0"],
        &["channels", "--bytes", "16M"],
        &["bench", "channels", "--seconds", "1", "--windows", "8"],
        &["bench", "channels", "--profile", "abacus"],
    ] {
        assert_eq!(output(&[], arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn process_error_of_an_unknown_name_lists_valid_names() {
    for (arguments, names) in [
        (&["channels", "--need", "blocking,luck"][..], &["zero-copy-recv", "one-trip"][..]),
        (&["channels", "--fabric", "pigeon"], &["infiniband", "adaptive", "efa", "1rma"]),
        (&["bench", "channels", "--channel", "ring"], &["all", "ring-inlined", "read-ring-notify"]),
        (&["bench", "channels", "--pattern", "2:2"], &["1:1", "N:1", "1:N"]),
    ] {
        let refused = output(&[], arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        let said = text(&refused.stderr);
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
    }
}

#[test]
fn process_channels_are_listed_and_filtered_by_requirements() {
    let table = json(&text(&output(&[], &["channels", "--json"]).stdout));
    assert_eq!(table["channels"].as_array().unwrap().len(), 20);
    let shown = text(&output(&[], &["channels"]).stdout);
    assert!(shown.contains("ring-inlined-zeroing") && shown.contains("# HRT"), "{shown}");
    let asked = ["channels", "--need", "blocking,variable", "--fan-in", "64", "--fabric", "efa"];
    let advice = json(&text(&output(&[], &[&asked[..], &["--json"]].concat()).stdout));
    let unfit = advice["unfit"].as_array().unwrap();
    assert_eq!(advice["fitting"].as_array().unwrap().len() + unfit.len(), 20);
    assert!(unfit.iter().all(|one| !one["reasons"].as_array().unwrap().is_empty()), "{advice}");
    assert!(unfit.iter().any(|one| one["channel"] == "ring-immediate"), "no WRITE there");
    let shown = text(&output(&[], &["channels", "--fabric", "efa", "--bytes", "64"]).stdout);
    assert!(shown.contains("fits, best first") && shown.contains("the fabric lacks"), "{shown}");
}

#[test]
fn process_invalid_names_and_sizes_are_refused_with_error_codes() {
    for (arguments, error) in [
        (["up", "--json", "--nodes", "1", "--name", "white space"], "BadConfiguration"),
        (["up", "--json", "--nodes", "1", "--line-bytes", "100"], "BadLineSize"),
    ] {
        let refused = output(&[], &arguments);
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}");
        assert_eq!(json(&text(&refused.stdout))["error"]["name"], error);
    }
}

#[test]
fn process_memory_beyond_the_machine_is_refused() {
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap();
    let bytes = |field: &str| {
        let line = machine.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    };
    let each = ((bytes("MemTotal:") + bytes("SwapTotal:")) / 3).to_string();
    let refused =
        output(&[], &["up", "--json", "--nodes", "4", "--name", &name(), "--memory-bytes", &each]);
    assert_eq!(refused.status.code(), Some(1));
    let error = &json(&text(&refused.stdout))["error"];
    assert_eq!(error["name"], "BadConfiguration");
    let said = error["text"].as_str().unwrap();
    assert!(said.contains("4 nodes of up to memory_bytes"), "{said}");
}

/// A program opens what the command lends by the address that it prints, until it is interrupted.
fn lends(options: &[&str], fabric: &Arc<dyn Fabric>) {
    let mut child = farside(&[])
        .args(["lend", "--json", "--bytes", "1MiB", "--name", &name()])
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let lending = json(&line);
    assert_eq!((&lending["event"], &lending["bytes"]), (&"lending".into(), &(1 << 20).into()));
    let second = Duration::from_secs(20);
    let mut client = MemoryClient::new(fabric, &MemoryClientOptions::default()).unwrap();
    let memory = client.open(lending["address"].as_str().unwrap(), second).unwrap();
    let added = client.fetch_add(memory.at(8), 3).unwrap();
    assert_eq!(client.wait(added, second), Ok(0));
    let again = client.fetch_add(memory.at(8), 3).unwrap();
    assert_eq!(client.wait(again, second), Ok(3));
    signal(child.id(), Signal::INT);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(json(&rest)["event"], "ended");
    assert!(child.wait().unwrap().success());
}

#[test]
fn process_lend_serves_clients_until_it_is_interrupted() {
    lends(&[], &fabrics::shared_memory().unwrap());
    let tcp = fabrics::open("tcp://127.0.0.1:1", Security::open()).unwrap();
    lends(&["--listen", "127.0.0.1:0"], &tcp);
    let open = output(&[], &["lend", "--bytes", "1M", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(text(&open.stderr).contains("farside key new"), "{}", text(&open.stderr));
    let none = output(&[], &["lend", "--bytes", "0", "--name", &name()]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("zero"), "{}", text(&none.stderr));
}

#[test]
fn process_bench_vector_counts_the_requests_of_each_way() {
    let report = output(&[], &["bench", "vector", "--windows", "1", "--json"]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    let figures = json(&text(&report.stdout));
    let figures = figures.as_array().unwrap();
    assert_eq!(figures.len(), 2 * 4 * 5 * 3);
    for figure in figures {
        let requests = match figure["way"].as_str().unwrap() {
            "doorbell" => figure["pieces"].as_u64().unwrap(),
            "gather" => figure["pieces"].as_u64().unwrap().div_ceil(16),
            _ => 1,
        };
        assert_eq!(figure["work_requests"], requests, "{figure}");
    }
    let list = ["bench", "vector", "--list", "1000", "--windows", "1"];
    let report = output(&[], &[&list[..], &["--json"]].concat());
    let figures = json(&text(&report.stdout));
    let forms: Vec<_> = figures.as_array().unwrap().iter().map(|one| one["form"].clone()).collect();
    assert_eq!(forms, ["strided", "blocks", "explicit", "strided", "blocks", "explicit"]);
    let drawn = output(&[], &[&list[..], &["--plot", "list.svg"]].concat());
    assert_eq!(drawn.status.code(), Some(2), "{}", text(&drawn.stderr));
}

#[test]
fn process_bench_atomics_measures_each_form() {
    let arguments = ["bench", "atomics", "--windows", "1", "--clients", "1,2", "--json"];
    let report = output(&[], &arguments);
    assert!(report.status.success(), "{}", text(&report.stderr));
    let figures = json(&text(&report.stdout));
    let figures = figures.as_array().unwrap();
    assert_eq!(figures.len(), 2 * (3 + 3 * 2 + 2 + 2));
    for figure in figures {
        assert!(figure["operations_per_us"].as_f64().unwrap() > 0.0, "{figure}");
    }
    let spinlock = |figure: &&Value| figure["operation"] == "spinlock";
    assert_eq!(figures.iter().filter(spinlock).count(), 2 * 6);
}

#[test]
fn process_every_command_has_help_with_examples() {
    for command in ["demo", "up", "wordcount", "lend", "doctor", "info", "channels"] {
        let help = output(&[], &[command, "--help"]);
        assert!(help.status.success());
        assert!(text(&help.stdout).contains("Examples:"), "{command}");
    }
    for bench in ["memory", "fabric", "channels", "ycsb", "graph", "vector", "atomics"] {
        assert!(
            text(&output(&[], &["bench", bench, "--help"]).stdout).contains("Examples:"),
            "{bench}"
        );
    }
}

#[test]
fn process_info_and_doctor_report_findings() {
    let info = json(&text(&output(&[], &["info", "--json"]).stdout));
    assert_eq!(info["chosen"], "shm");
    assert_eq!(info["fabrics"][0]["capabilities"]["one_sided"], "yes");
    // For a cluster it reports the number and the maximum of members.
    let config = Config::new(name()).memory_bytes(1 << 20).cache_bytes(4 << 20);
    let node = Node::create(&config).unwrap();
    let members = format!("running: {}, members 1 of {}", config.cluster, node.members_max());
    let shown = text(&output(&[], &["info"]).stdout);
    assert!(shown.contains(&members), "{shown}");
    let info = json(&text(&output(&[], &["info", "--json"]).stdout));
    let clusters = info["clusters"].as_array().unwrap();
    let own = clusters.iter().find(|one| one["cluster"] == config.cluster.as_str()).unwrap();
    assert_eq!((&own["members"], &own["members_max"]), (&1.into(), &node.members_max().into()));
    let doctor = json(&text(&output(&[], &["doctor", "--json", "--nodes", "1"]).stdout));
    assert!(doctor["checks"].as_array().unwrap().iter().any(|check| check["name"] == "memfd"));
    let impossible = output(&[], &["doctor", "--nodes", "100", "--memory-bytes", "1T"]);
    assert_eq!(impossible.status.code(), Some(1));
}

#[test]
fn process_doctor_lists_selects_and_reports_skipped_checks() {
    let list = text(&output(&[], &["doctor", "--list"]).stdout);
    assert!(list.lines().count() >= 30, "{list}");
    let listed = json(&text(&output(&[], &["doctor", "--list", "--json"]).stdout));
    assert_eq!(listed.as_array().unwrap().len(), list.lines().count());

    let one = output(&[], &["doctor", "--json", "--only", "clock,gid_table", "--memory", "1M"]);
    let checks = json(text(&one.stdout).lines().next().unwrap())["checks"].clone();
    for check in checks.as_array().unwrap() {
        assert!(check["name"] == "clock" || check["name"] == "gid_table", "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
    }
    assert_eq!(output(&[], &["doctor", "--only", "nothing"]).status.code(), Some(2));
    let shown = text(&output(&[], &["doctor", "--peer", "127.0.0.1", "--nodes", "1"]).stdout);
    for part in ["peer_route", "this machine itself", "gid_table", "skipped", "shared memory: "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// Returns the output of the shell pipeline for these files together.
fn pipeline(files: &[&str]) -> String {
    let script = "cat \"$@\" | tr -cs '[:alpha:]' '\\n' | sort | uniq -c";
    let run = Command::new("sh")
        .args(["-c", script, "sh"])
        .args(files)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert!(run.status.success());
    text(&run.stdout)
}

#[test]
fn process_wordcount_equals_the_shell_pipeline() {
    let folder = Folder::new();
    let mut long = String::new();
    for number in 0..20_000_u32 {
        // Words of one to three letters: all nodes count all of them.
        let letters: String = [number % 7, number % 5, number % 3]
            .map(|n| char::from(b'a' + n as u8))
            .iter()
            .collect();
        long.push_str(&letters[..1 + number as usize % 3]);
        long.push([' ', '\n', ',', '7'][number as usize % 4]);
    }
    let long = folder.file("long", long.as_bytes());
    let opens_empty = folder.file("opens-empty", b"--- word, word\xe9 Word\n\nlast");
    let joined = folder.file("joined", b"ing and the end");
    let empty = folder.file("empty", b"");
    for files in
        [&[&*long][..], &[&opens_empty, &joined, &empty, &long], &[&empty], &[&empty, &opens_empty]]
    {
        for nodes in ["1", "3"] {
            let counted =
                farside(&[]).args(["wordcount", "--nodes", nodes]).args(files).output().unwrap();
            assert!(counted.status.success(), "{}", text(&counted.stderr));
            assert_eq!(text(&counted.stdout), pipeline(files), "{files:?} on {nodes} nodes");
        }
    }
}

#[test]
fn process_wordcount_of_a_missing_file_names_it() {
    let failed = output(&[], &["wordcount", "/no/such/file"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("/no/such/file"));
}

#[test]
fn process_demo_loses_only_records_of_the_killed_node() {
    let shown = output(&[], &["demo", "--json", "--records", "20000", "--operations", "20000"]);
    assert!(shown.status.success(), "{}{}", text(&shown.stdout), text(&shown.stderr));
    let shown = json(&text(&shown.stdout));
    for workload in ["A", "B", "C", "D", "F"] {
        assert_eq!(shown["workloads"][workload]["operations"], 20_000, "{workload}");
    }
    let all = 20_000 + shown["inserted"].as_u64().unwrap();
    assert!(all > 20_000, "workload D inserts");
    assert_eq!(shown["before"]["right"], all);
    let after = &shown["after"];
    let errors = after["errors"].as_object().unwrap();
    let lost: u64 = errors.values().map(|count| count.as_u64().unwrap()).sum();
    assert!(errors.keys().all(|name| name == "NodeLost" || name == "LineLost"), "{errors:?}");
    assert_eq!(after["right"].as_u64().unwrap() + lost, all);
    assert!(lost > 0, "some records of the killed node are lost");
    check_returned(&shown, 2_000);
}

#[test]
fn process_demo_prints_what_volatile_and_replicated_memory_lose() {
    let size = ["--records", "300", "--operations", "300"];
    let shown = output(&[], &[&["demo"][..], &size].concat());
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    let row = |memory: &str| {
        let row = shown.lines().find(|line| line.starts_with(memory)).unwrap();
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (volatile, replicated) = (row("volatile "), row("replicated "));
    // Memory, records, node N, correct, lost, wrong, missing.
    assert_eq!(
        (&*replicated[1], &replicated[4..]),
        ("300", &["300", "0", "0", "0"].map(str::to_owned)[..])
    );
    assert_ne!(volatile[5], "0", "{shown}");
    for words in [
        "in another process on this machine",
        "in its place",
        "at the same address",
        "all bytes unchanged",
    ] {
        assert!(shown.contains(words), "{shown}");
    }
}

#[test]
fn process_ycsb_measures_logged_and_volatile_memory() {
    let size = ["--nodes", "2", "--records", "300", "--operations", "900"];
    let bench =
        |more: &[&str]| output(&[], &[&["--json", "bench", "ycsb"], &size[..], more].concat());
    let found = bench(&["--logged"]);
    assert!(found.status.success(), "{}", text(&found.stderr));
    let found = json(&text(&found.stdout));
    for table in [&found, &found["logged"]] {
        assert_eq!(
            (&table["load"]["operations"], &table["load"]["errors"]),
            (&300.into(), &0.into())
        );
        assert_eq!(
            (&table["run"]["operations"], &table["run"]["errors"]),
            (&900.into(), &0.into())
        );
        assert_eq!(table["nodes"].as_array().unwrap().len(), 2);
    }
    assert!(json(&text(&bench(&[]).stdout)).get("logged").is_none());
    assert_eq!(bench(&["--logged", "--fabric", "verbs"]).status.code(), Some(2));
    assert_eq!(bench(&["--logged", "--on", "127.0.0.1:1"]).status.code(), Some(2));
}

#[test]
fn process_interrupt_during_work_leaves_no_process() {
    let mut demo = farside(&[])
        .args(["demo", "--records", "200000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(demo.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("200,000 records"), "{line}");
    signal(demo.id(), Signal::INT);
    // The workers share its standard error, which ends with the last of them.
    let mut said = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130), "{said}");
}

#[test]
fn process_interrupt_during_the_second_part_leaves_no_process() {
    let mut demo = farside(&[])
        .args(["demo", "--records", "2000", "--operations", "2000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    assert!(lines.any(|line| line.contains("2 copies each")));
    signal(demo.id(), Signal::INT);
    assert_eq!(lines.find(|line| line.contains("correct")), None);
    let mut said = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130), "{said}");
}

#[test]
fn process_history_has_every_operation() {
    let folder = Folder::new();
    let history = folder.file("history", b"");
    let properties = b"recordcount=500\noperationcount=99\nreadproportion=0.5\nupdateproportion=0.5\nthreadcount=2\n";
    let properties = folder.file("properties", properties);
    let arguments = [
        "bench",
        "ycsb",
        "--json",
        "--nodes",
        "2",
        "--operations",
        "1000",
        "--properties",
        &properties,
    ];
    let run = farside(&[]).args(arguments).args(["--history", &history]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let report = json(&text(&run.stdout));
    assert_eq!((&report["run"]["operations"], &report["run"]["errors"]), (&1000.into(), &0.into()));
    let lines = std::fs::read_to_string(&history).unwrap();
    let mut processes = std::collections::BTreeSet::new();
    for line in lines.lines() {
        let operation = json(line);
        assert!(operation["invoke_ns"].as_u64() <= operation["return_ns"].as_u64());
        assert_eq!(operation["outcome"], "ok");
        processes.insert(operation["process"].as_u64().unwrap());
    }
    assert_eq!(lines.lines().count(), 1000);
    assert_eq!(processes.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3], "two nodes of two threads");
    let scans = output(&[], &["bench", "ycsb", "--workload", "e"]);
    assert_eq!(scans.status.code(), Some(2));
    assert!(text(&scans.stderr).contains("scan"));
}

#[test]
fn process_graph_kernels_of_two_nodes_agree_with_sequential_ones() {
    for fabric in ["shm", "tcp"] {
        let arguments =
            ["bench", "graph", "--json", "--scale", "8", "--runs", "2", "--fabric", fabric];
        let run = output(&[], &arguments);
        assert!(run.status.success(), "{fabric}: {}", text(&run.stderr));
        let report = json(&text(&run.stdout));
        assert_eq!((&report["vertices"], &report["fabric"]), (&256.into(), &fabric.into()));
        assert_eq!(report["nodes"].as_array().unwrap().len(), 2);
        let figures = report["figures"].as_array().unwrap();
        let name = |figure: &Value| {
            assert!(figure["speed"].as_f64().unwrap() > 0.0, "{figure}");
            format!("{} {}", figure["kernel"], figure["form"]).replace('"', "")
        };
        let names: Vec<_> = figures.iter().map(name).collect();
        let kernels = ["bfs", "pagerank", "components"];
        let expected = kernels.map(|kernel| [format!("{kernel} bulk"), format!("{kernel} words")]);
        assert_eq!(names, expected.concat());
    }
}

#[test]
fn process_graph_refuses_sizes_out_of_range() {
    for (option, value, range) in [
        ("--scale", "25", "0..=24"),
        ("--edge-factor", "257", "0..=256"),
        ("--runs", "0", "1..=10000"),
        ("--nodes", "65", "1..=64"),
        ("--kernel", "walk", "bfs, pagerank, components"),
        ("--form", "lines", "bulk, words"),
    ] {
        let refused = output(&[], &["bench", "graph", option, value]);
        assert_eq!(refused.status.code(), Some(2), "{option}");
        let said = text(&refused.stderr);
        assert!(said.contains(option) && said.contains(range), "{said}");
    }
}

#[test]
fn process_figures_have_baselines() {
    for (bench, only) in [("fabric", "fetch_add"), ("memory", "read 8 B")] {
        let run = output(&[], &["bench", bench, "--json", "--windows", "8", "--only", only]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        let report = json(&text(&run.stdout));
        let figures = report["figures"].as_array().unwrap();
        assert!(figures.len() > 1, "{report}");
        for figure in figures {
            assert!(figure["name"].as_str().unwrap().contains(only));
            assert!(figure["best_ns"].as_f64() <= figure["median_ns"].as_f64(), "{figure}");
            assert!(figure["baseline_best_ns"].as_f64().unwrap() > 0.0, "{figure}");
        }
    }
}

/// Returns the output of `farside bench channels --json` with these arguments.
fn bench_channels(arguments: &[&str]) -> Value {
    let fixed =
        ["bench", "channels", "--json", "--windows", "8", "--clients", "2", "--readers", "2"];
    let run = output(&[], &[&fixed, arguments].concat());
    assert!(run.status.success(), "{}{}", text(&run.stdout), text(&run.stderr));
    json(&text(&run.stdout))
}

/// Checks whether an entry has a latency, and whether it has rates.
fn check_entry(entry: &Value, latency: bool, rates: bool) {
    let ordered = |name: &str, keys: [&str; 2]| {
        let [one, other] = keys.map(|key| entry[name][key].as_f64().unwrap());
        assert!(one > 0.0 && one <= other, "{name} of {entry}");
    };
    assert_eq!(entry["latency_ns"].is_object(), latency, "{entry}");
    if latency {
        ordered("latency_ns", ["best", "median"]);
        assert!(entry["latency_ns"]["p99"].as_f64().unwrap() > 0.0, "{entry}");
    }
    assert_eq!(entry["messages_per_second"].is_object(), rates, "{entry}");
    if rates {
        ordered("messages_per_second", ["median", "best"]);
        ordered("bytes_per_second", ["median", "best"]);
    }
}

#[test]
fn process_channels_are_measured_between_processes_and_plotted() {
    let folder = Folder::new();
    let plot = folder.file("channels.svg", b"");
    let report = bench_channels(&[
        "--channel",
        "ring-immediate,send-bufferless,read-slot-detached",
        "--bytes",
        "64,65536",
        "--pattern",
        "1:1,N:1",
        "--plot",
        &plot,
    ]);
    let figures = report["figures"].as_array().unwrap();
    // Integers, two sizes of two channels, and two special forms of each of them.
    assert_eq!(figures.len(), 1 + 2 * 2 + 2 * 2, "{report}");
    let in_place = figures.iter().find(|figure| figure["payload"] == "untouched");
    assert_eq!(in_place.unwrap()["channel"], "read-slot-detached");
    for figure in figures {
        let plain = figure["payload"] == "copied" && figure["wait"] == "spin";
        check_entry(figure, true, plain);
        assert!(figure["baseline"]["ratio"].as_f64().unwrap() > 0.0, "{figure}");
        assert_ne!(figure["path"], "", "{figure}");
    }
    let fans = report["fan_figures"].as_array().unwrap();
    assert_eq!(fans.len(), 1 + 2 * 2, "{report}");
    for figure in fans {
        check_entry(figure, false, true);
        assert_eq!((&figure["pattern"], &figure["peers"]), (&"N:1".into(), &2.into()));
    }
    let drawing = std::fs::read_to_string(&plot).unwrap();
    assert!(drawing.starts_with("<svg") && drawing.contains("ring-immediate"));
}

#[test]
fn process_broadcast_is_measured() {
    let report =
        bench_channels(&["--channel", "read-ring-notify", "--bytes", "64", "--pattern", "1:N"]);
    let fans = report["fan_figures"].as_array().unwrap();
    assert_eq!((fans.len(), &fans[0]["channel"]), (1, &"read-ring-notify".into()));
    check_entry(&fans[0], false, true);
}

#[test]
fn process_channels_are_measured_in_virtual_time() {
    let arguments = ["--profile", "connectx5", "--channel", "ring-inlined", "--bytes", "64"];
    let report = bench_channels(&arguments);
    check_entry(&report["figures"][0], true, true);
    assert_eq!(report["fan_figures"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(bench_channels(&arguments), report, "virtual time is deterministic");
}

#[test]
fn process_channels_are_measured_with_copies_prefetching_and_distribution() {
    let settings = ["--copy", "--prefetch", "0,512", "--distribution"];
    let ends = ["--channel", "read-ring-inlined", "--bytes", "64", "--pattern", "1:1"];
    let report = bench_channels(&[&ends[..], &settings].concat());
    assert_eq!(report["time"], "measured");
    let figures = report["figures"].as_array().unwrap();
    let settings: Vec<(&str, u64)> = figures
        .iter()
        .map(|one| (one["payload"].as_str().unwrap(), one["prefetch_bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(settings, [("seen", 0), ("logged", 0), ("seen", 512), ("logged", 512)]);
    for figure in figures {
        check_entry(figure, true, true);
        let distribution = &figure["distribution"];
        assert!(distribution["round_trips"].as_u64().unwrap() >= 100, "{figure}");
        assert!(distribution["p5_ns"].as_f64() <= distribution["p95_ns"].as_f64(), "{figure}");
    }
}

#[test]
fn process_device_words_are_measured_only_in_virtual_time() {
    let ends = ["--channel", "shared-ring-immediate", "--bytes", "64", "--pattern", "1:1"];
    let settings = ["--device-words", "nothing,head"];
    let here = bench_channels(&[&ends[..], &settings].concat());
    assert_eq!(here["figures"].as_array().unwrap().len(), 1, "{here}");
    assert!(here["remarks"].to_string().contains("shm has no adapter"), "{here}");
    let there = bench_channels(&[&ends[..], &settings, &["--profile", "connectx5"]].concat());
    assert_eq!(there["time"], "virtual");
    let median = |at: usize| there["figures"][at]["latency_ns"]["median"].as_f64().unwrap();
    assert!(median(1) < median(0), "{there}");
}
