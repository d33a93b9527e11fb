//! The steps of `cargo xtask ci`, cheapest first.

use crate::debian::{self, Need};
use crate::fenced::fenced_commands;
use crate::guest;
use crate::instructions;
use crate::shell::Shell;
use crate::tidy;
use std::process::Command;

/// A step of `cargo xtask ci`.
pub(crate) struct Step {
    /// Its name for `--only`.
    pub(crate) name: &'static str,
    /// What it checks.
    pub(crate) sentence: &'static str,
    /// The step that includes this one; a full run then skips this one.
    pub(crate) within: Option<&'static str>,
    /// What it does in addition when it is requested by name.
    pub(crate) more_by_name: Option<&'static str>,
    /// Runs it.
    pub(crate) run: fn(&mut Shell) -> Result<(), String>,
}

/// With which joins are compared.
const DUCKDB: &str = "duckdb==1.4.4";
/// Number of seeded simulations of each kind.
const SIMULATIONS_EACH: &str = "2000";
/// Of clients of lent memory, which run as threads.
const THREADED_SIMULATIONS_EACH: &str = "150";
/// Runs of a durable log, and of a memory's state, on a simulated disk, which take some seconds each.
const CRASH_IMAGES: &str = "20000";

/// Every step, in order.
pub(crate) const ALL: &[Step] = &[
    Step {
        name: "fmt",
        sentence: "the code is formatted",
        within: None,
        more_by_name: None,
        run: |shell| shell.cargo(&["fmt", "--all", "--check"]),
    },
    Step {
        name: "tidy",
        sentence: "directions, unsafe homes, sizes, leftovers",
        within: None,
        more_by_name: None,
        run: |_| tidy::run().map(|text| println!("{text}")),
    },
    Step {
        name: "clippy",
        sentence: "no warning",
        within: None,
        more_by_name: None,
        run: |shell| {
            let words =
                ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
            shell.cargo(&words)
        },
    },
    Step {
        name: "docs",
        sentence: "the documentation builds without a warning",
        within: None,
        more_by_name: None,
        run: |shell| {
            shell.set("RUSTDOCFLAGS", "-D warnings");
            shell.cargo(&["doc", "--workspace", "--no-deps", "--quiet"])
        },
    },
    Step {
        name: "readme",
        sentence: "the README's own test command",
        within: None,
        more_by_name: None,
        run: readme,
    },
    Step {
        name: "conformance",
        sentence: "one suite over the fabrics mem, shm and sim",
        within: Some("readme"),
        more_by_name: None,
        run: |shell| {
            shell.cargo_test(&["-p", "farside-fabric", "--tests"])?;
            shell.cargo_test(&["-p", "farside-fabric-shm", "--test", "conformance"])?;
            shell.cargo_test(&["-p", "farside-sim", "--test", "conformance"])
        },
    },
    Step {
        name: "explorer",
        sentence: "every reachable state of the large models of the machines",
        within: None,
        more_by_name: Some("the other models, which readme has"),
        run: explorer,
    },
    Step {
        name: "litmus",
        sentence: "no forbidden outcome at the level of nodes and the wire",
        within: None,
        more_by_name: Some("the level of machines, which readme has"),
        run: litmus,
    },
    Step {
        name: "simulation",
        sentence: "seeded simulations: 2,000 each with delays, deaths, leaves, between hosts, and of calls; 150 each of lent memory; 20,000 disks each of durable logs and of memories' states",
        within: None,
        more_by_name: None,
        run: simulation,
    },
    Step {
        name: "loom",
        sentence: "every interleaving of the hit path's words and of the shared-memory rings",
        within: None,
        more_by_name: None,
        run: |shell| interleavings(shell, "loom"),
    },
    Step {
        name: "shuttle",
        sentence: "random interleavings of the same, in larger programs",
        within: None,
        more_by_name: None,
        run: |shell| interleavings(shell, "shuttle"),
    },
    Step {
        name: "canary",
        sentence: "every planted defect is found by its test",
        within: None,
        more_by_name: None,
        run: |shell| {
            build_for_models(shell);
            shell.cargo_test(&["--release", "-p", "farside-protocol", "--lib", "canary_"])?;
            shell.cargo_test(&["--release", "-p", "farside", "--test", "call", "canary_"])?;
            let tests = tests_with("crates/sim/tests", "canary_")?;
            let tests = tests.iter().flat_map(|test| ["--test", test]);
            let words: Vec<_> =
                ["--release", "-p", "farside-sim", "--lib"].into_iter().chain(tests).collect();
            shell.cargo_test(&[&words[..], &["canary_"]].concat())
        },
    },
    Step {
        name: "sanitizer",
        sentence: "AddressSanitizer over the homes of unsafe code",
        within: None,
        more_by_name: None,
        run: sanitizer,
    },
    Step {
        name: "process",
        sentence: "processes that are killed during their work",
        within: Some("readme"),
        more_by_name: None,
        run: |shell| {
            shell.cargo_test(&["-p", "farside-fabric-shm", "--test", "process"])?;
            let tests = ["--test", "processes", "--test", "channel_processes", "--test", "hosts"];
            shell.cargo_test(&[&["-p", "farside"], &tests[..]].concat())?;
            shell.cargo_test(&["-p", "farside-apps", "--test", "kill"])?;
            let tests =
                ["process", "hosts", "namespaces", "rmc_processes", "rmc_places", "rmc_guide"];
            let tests = tests.map(|test| ["--test", test]);
            shell.cargo_test(&[&["-p", "farside-cli"], tests.as_flattened()].concat())
        },
    },
    Step {
        name: "instructions",
        sentence: "instructions per operation, counted by callgrind, against a table",
        within: None,
        more_by_name: None,
        run: |shell| {
            optimize(shell);
            instructions::run(shell)
        },
    },
    Step {
        name: "data",
        sentence: "joins of Parquet files equal those of DuckDB, which is installed from PyPI",
        within: None,
        more_by_name: None,
        run: data,
    },
    Step {
        name: "demo",
        sentence: "the demonstration, with few records",
        within: Some("readme"),
        more_by_name: None,
        run: |shell| shell.cargo_test(&["-p", "farside-cli", "--test", "process", "process_demo"]),
    },
    Step {
        name: "rdma",
        sentence: "verbs in a guest with soft-RoCE: conformance, all commands in three nodes, kills, loss",
        within: None,
        more_by_name: Some(
            "rdma_cm, memory windows, soft-iWARP, outages, an NVDIMM, the guest itself",
        ),
        run: |shell| guest::rdma(shell, SUITES_OF_VERBS),
    },
];

/// Cases that soft-iWARP of the guest's kernel fails.
const EXCEPT_ON_SIW: &str = "protection::claims_of_a_token_grant_nothing,\
                             protection::each_permission_is_needed";

/// Test suites that run in guests. Tests that need only the library are in the step `readme`.
const SUITES_OF_VERBS: &[guest::Suite] = &[
    guest::Suite {
        in_full_run: true,
        ..guest::Suite::new(&[
            "-p",
            "farside-fabric-verbs",
            "-p",
            "farside-rmc",
            "-p",
            "farside-bench",
            "--test",
            "conformance",
        ])
    },
    guest::Suite {
        in_full_run: true,
        ..guest::Suite::new(&[
            "-p",
            "farside-fabric-verbs",
            "-p",
            "farside-rmc",
            "-p",
            "farside-bench",
            "--test",
            "process",
        ])
    },
    // A stolen key.
    guest::Suite {
        only: "port::theft_tests",
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--lib"])
    },
    // With keys that are valid on one link each.
    guest::Suite {
        environment: &[("FARSIDE_VERBS_WINDOWS", "1"), ("FARSIDE_VERBS_CASE", "protection::")],
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "conformance"])
    },
    // Across a network between two devices, posting by lists, with control streams under a key.
    guest::Suite {
        nodes: 2,
        environment: &[
            ("FARSIDE_VERBS_DEVICES", "rxe1,rxe2"),
            ("FARSIDE_VERBS_PLAIN", "1"),
            ("FARSIDE_VERBS_SECURITY", "key"),
            ("FARSIDE_VERBS_CASE", "order::"),
        ],
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "conformance"])
    },
    // The same by rdma_cm.
    guest::Suite {
        environment: &[("FARSIDE_VERBS_MANAGER", "1")],
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "conformance"])
    },
    // Soft-iWARP answers READs even of memory without that permission.
    guest::Suite {
        siw: true,
        environment: &[("FARSIDE_VERBS_EXCEPT", EXCEPT_ON_SIW)],
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "conformance"])
    },
    guest::Suite {
        siw: true,
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "process"])
    },
    // A process in each of three nodes.
    guest::Suite {
        siw: true,
        nodes: 3,
        only: "three_nodes_write_to_each_other",
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "process"])
    },
    guest::Suite {
        nodes: 2,
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "nodes"])
    },
    // The command: agents, global memory with hash table and word count, channels, kills and outages.
    guest::Suite {
        in_full_run: true,
        nodes: 3,
        memory_mib: 3000,
        // With the features that the whole workspace has together, as the README's command builds it.
        ..guest::Suite::new(&["--workspace", "--test", "guest"])
    },
    // The recovery time of a cluster after a link outage.
    guest::Suite { nodes: 3, ..guest::Suite::new(&["-p", "farside-cli", "--test", "outages"]) },
    guest::Suite {
        on_nvdimm: 2,
        ..guest::Suite::new(&["-p", "farside-fabric-verbs", "--test", "persistent"])
    },
];

/// Optimizes as for a release, but without LTO, which takes long to link and does not help these steps; steps that do
/// so share their builds.
fn optimize(shell: &mut Shell) {
    shell.set("CARGO_PROFILE_RELEASE_LTO", "off");
    shell.set("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
}

/// Runs twice as many tests at a time as there are processors: tests of processes wait for leases and for each other most
/// of their time.
fn overlap_waits(shell: &mut Shell) {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    shell.set("RUST_TEST_THREADS", (2 * processors).to_string());
}

/// Runs the README's `cargo test` command.
fn readme(shell: &mut Shell) -> Result<(), String> {
    overlap_waits(shell);
    let text = std::fs::read_to_string("README.md").map_err(|e| format!("README.md: {e}"))?;
    let commands = fenced_commands(&text);
    let command = commands.iter().find_map(|(_, command)| command.strip_prefix("cargo test"));
    let rest = command.ok_or("README.md names no `cargo test` command")?;
    let words: Vec<_> = rest.split_whitespace().collect();
    // Tests that take minutes are ignored there and run by the step `explorer`.
    shell.cargo_test_but_ignored(&words)
}

/// Installs DuckDB into a virtual environment below the target folder, where the tests of `farside-data` look for it.
fn install_duckdb() -> Result<(), String> {
    let folder = "target/tmp/duckdb";
    let run = |program: &str, arguments: &[&str]| {
        let ran = Command::new(program).args(arguments).output();
        let output = ran.map_err(|error| format!("{program}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let last = || text.trim().lines().last().unwrap_or("no message").to_owned();
        if output.status.success() { Ok(()) } else { Err(last()) }
    };
    let python = format!("{folder}/bin/python");
    if run(&python, &["-c", "import duckdb"]).is_ok() {
        return Ok(());
    }
    run("python3", &["-m", "venv", "--clear", folder])?;
    run(&python, &["-m", "pip", "install", "--quiet", DUCKDB])
}

/// Runs the tests that need Python with virtual environments, and the registry of its packages.
fn data(shell: &mut Shell) -> Result<(), String> {
    let has_venv = Command::new("python3").args(["-c", "import ensurepip, venv"]).output();
    if !has_venv.is_ok_and(|output| output.status.success()) {
        let what = "/usr/share/doc/python3-venv";
        debian::ensure(&[Need { what, package: "python3-venv" }], &|text| println!("{text}"))?;
    }
    if let Err(why) = install_duckdb() {
        shell.skipped.push(format!("DuckDB could not be installed from PyPI: {why}"));
        return Ok(());
    }
    // Of the whole workspace, as the README's command has built it: a single package has other features.
    let tests = ["--workspace", "--test", "duckdb", "--"];
    shell.cargo_test(&[&tests[..], &["--ignored", "--nocapture", "--test-threads", "1"]].concat())
}

/// Builds with planted defects, none of which is enabled outside their own tests: one build serves all steps of the
/// simulator.
fn build_for_models(shell: &mut Shell) {
    optimize(shell);
    shell.set_cfg("canary");
}

/// Returns the test programs in `folder` that have a test with this word: others need not be built.
fn tests_with(folder: &str, word: &str) -> Result<Vec<String>, String> {
    let failed = |reason| format!("{folder}: {reason}");
    let mut tests = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let has = std::fs::read_to_string(&path).is_ok_and(|text| text.contains(word));
        if let Some(name) = path.file_stem().filter(|_| has) {
            tests.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(tests)
}

fn explorer(shell: &mut Shell) -> Result<(), String> {
    build_for_models(shell);
    if shell.by_name {
        let targets = ["--lib", "--test", "coherence", "--test", "lock", "--test", "lock_walks"];
        let flags = ["--", "--include-ignored", "--skip", "canary_"];
        return shell
            .cargo_test(&[&["--release", "-p", "farside-sim"], &targets[..], &flags].concat());
    }
    shell.cargo_test(&[
        "--release",
        "-p",
        "farside-sim",
        "--lib",
        "--test",
        "coherence",
        "--",
        "--ignored",
    ])
}

fn litmus(shell: &mut Shell) -> Result<(), String> {
    build_for_models(shell);
    if shell.by_name {
        shell.cargo_test(&["--release", "-p", "farside-sim", "--test", "litmus_machine"])?;
    }
    shell.set("FARSIDE_RUNS", "500");
    shell.cargo_test(&["--release", "-p", "farside-sim", "--test", "litmus_node"])?;
    shell.set("FARSIDE_RUNS", "100");
    shell.cargo_test(&["--release", "-p", "farside-sim", "--test", "litmus_wire"])
}

/// Derives the seed from the commit: every commit tests new schedules, and each run can be repeated.
fn simulation(shell: &mut Shell) -> Result<(), String> {
    build_for_models(shell);
    shell.set("FARSIDE_RUNS", SIMULATIONS_EACH);
    shell.set("FARSIDE_SEED", commit_seed().to_string());
    let tests = ["--test", "simulation", "--test", "calls"];
    shell.cargo_test(&[&["--release", "-p", "farside-sim"], &tests[..]].concat())?;
    shell.set("FARSIDE_RUNS", THREADED_SIMULATIONS_EACH);
    let tests = ["--test", "onesided", "--test", "durable_replicas"];
    shell.cargo_test(&[&["--release", "-p", "farside-sim"], &tests[..]].concat())?;
    shell.cargo_test(&["--release", "-p", "farside-apps", "--lib", "simulat"])?;
    shell.set("FARSIDE_RUNS", CRASH_IMAGES);
    let tests = ["--test", "durable", "--test", "memory_state", "committed"];
    shell.cargo_test(&[&["--release", "-p", "farside-sim"], &tests[..]].concat())
}

/// Returns the first 32 bits of the commit's hash; zero without a repository.
fn commit_seed() -> u32 {
    let asked = std::process::Command::new("git").args(["rev-parse", "HEAD"]).output();
    let text = asked
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let head = text.get(..8).unwrap_or_default();
    u32::from_str_radix(head, 16).unwrap_or(0)
}

fn interleavings(shell: &mut Shell, engine: &str) -> Result<(), String> {
    optimize(shell);
    shell.set_cfg(engine);
    let tests = format!("{engine}_");
    let packages = ["--release", "-p", "farside-fabric-shm", "-p", "farside", "--lib"];
    shell.cargo_test(&[&packages[..], &[&tests]].concat())
}

fn sanitizer(shell: &mut Shell) -> Result<(), String> {
    if !shell.use_nightly() {
        return Ok(());
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    shell.own_target("sanitizer");
    overlap_waits(shell);
    // The fake libibverbs is loaded at run time and finds the sanitizer in the program that loads it.
    let shown = "-Clink-arg=-Wl,--export-dynamic-symbol=__asan_*";
    shell.set("RUSTFLAGS", format!("-Zsanitizer=address {shown}"));
    // A test allocates more memory than the machine has, and expects an error.
    let options = "allocator_may_return_null=1";
    shell.set("ASAN_OPTIONS", options);
    // Tests that forget a future leak its memory intentionally; tests that limit address space or threads leave none
    // for the sanitizer; one measures resident memory, which the sanitizer keeps after it is freed.
    let test = |shell: &mut Shell, packages: &[&'static str], tests: &[&'static str]| {
        let packages: Vec<_> = packages.iter().flat_map(|package| ["-p", package]).collect();
        let tests = [&["--lib", "--target", &target], tests].concat();
        let skip =
            ["forgotten_", "address_space_limit", "too_few_threads", "use_the_memory_of_one"];
        let skipped = skip.map(|name| ["--skip", name]);
        shell.cargo_test(&[&packages[..], &tests, &["--"], skipped.as_flattened()].concat())
    };
    test(shell, &["farside-fabric", "farside-fabric-shm", "farside-fabric-tcp"], &["--tests"])?;
    // The tests that reach its homes with data, peers that end or break the protocol, and programs of calls.
    let tests = [
        "call",
        "channel_hostile",
        "channels",
        "death",
        "direct",
        "hostile",
        "locks",
        "memory",
        "removal",
        "write_back",
    ];
    test(shell, &["farside"], tests.map(|test| ["--test", test]).as_flattened())?;
    // That library never frees its devices, since contexts point to them.
    shell.set("ASAN_OPTIONS", format!("{options}:detect_leaks=0"));
    test(shell, &["farside-fabric-verbs-fake"], &["--tests"])
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn names_of_steps_are_listed() {
        let names: Vec<_> = ALL.iter().map(|step| step.name).collect();
        assert_eq!(names, crate::names::STEPS);
    }
}
