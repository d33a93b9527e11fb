//! `--check`: a self-test of guests and engines, each part in a separate guest.

use super::boot::GuestExit;
use super::engine::Engine;
use super::image::Images;
use super::options::{Devices, EngineChoice, Job, Options};
use super::progress::say;
use super::run::{GuestOutcome, NO_SUCH_COMMAND, run};
use super::{apt, cache};
use crate::debian::{Need, ensure};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The C program of the check, compiled on this machine and run in the guest.
const PROGRAM: &str = include_str!("../../guest/check.c");
const NEEDS: &[Need] = &[
    Need { what: "gcc", package: "gcc" },
    Need { what: "/usr/include/stdio.h", package: "libc6-dev" },
];

/// The environment of one part of the check.
struct Bench<'a> {
    images: &'a Images,
    options: Options,
    folder: PathBuf,
}

/// A part: its name and function.
type Part = (&'static str, fn(&Bench<'_>) -> Result<(), String>);

const COMMON: &[Part] = &[
    ("one rxe device: ibv_devinfo, rdma_cm, every operation", rxe_device),
    ("two nodes with rxe: traffic under loss, a peer that ends", rxe_nodes),
    ("exit code, arguments, variables, output, files", machinery),
    ("a time limit, and the output until then", time_limit),
    ("a command that does not exist", no_such_command),
    ("two guests at the same time", two_at_once),
];
const OF_UML: &[Part] = &[("one siw device, two nodes with siw: rdma_cm", siw)];
const OF_QEMU: &[Part] = &[("persistent flush; its data in a second guest", pmem)];

/// Runs all parts, and returns their number.
pub(super) fn run_all(images: &Images, options: &Options) -> Result<usize, String> {
    ensure(NEEDS, &say)?;
    let engine = images.engine(options);
    let begun = Instant::now();
    images.prepare(engine)?;
    say(&format!("check of the engine {}, ready after {}", engine.name(), seconds(begun)));
    let folder = cache::RunFolder::new(&images.cache)?;
    let mut bench = Bench { images, options: options.clone(), folder: folder.path.clone() };
    bench.options.engine = match engine {
        Engine::Uml => EngineChoice::Uml,
        Engine::Qemu => EngineChoice::Qemu,
    };
    bench.compile()?;
    let own = match engine {
        Engine::Uml => OF_UML,
        Engine::Qemu => OF_QEMU,
    };
    let mut failed = 0;
    for (name, part) in COMMON.iter().chain(own) {
        let begun = Instant::now();
        let done = part(&bench);
        let state = if done.is_ok() { "ok" } else { "FAILED" };
        println!("{state:<6} {:>6}  {name}", seconds(begun));
        if let Err(text) = done {
            failed += 1;
            println!("{text}");
        }
    }
    match failed {
        0 => Ok(COMMON.len() + own.len()),
        _ => Err(format!(
            "{failed} parts failed: cargo xtask rdma-guest --check --engine {}",
            engine.name()
        )),
    }
}

fn seconds(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f64())
}

impl Bench<'_> {
    /// Compiles the program against the guest's libraries.
    fn compile(&self) -> Result<(), String> {
        let source = self.folder.join("check.c");
        std::fs::write(&source, PROGRAM).map_err(|e| cache::failed(&source, e))?;
        let development = self.images.development();
        let mut command = Command::new("gcc");
        command
            .args(["-O1", "-Wall", "-Werror", "-Wno-parentheses", "-o"])
            .arg(self.program())
            .arg(&source);
        command.arg("-I").arg(development.join("include"));
        // The guest's libraries need a newer C library than this machine's; the guest has it.
        command.arg(development.join("lib/libibverbs.so.1"));
        command.arg("-Wl,--unresolved-symbols=ignore-in-shared-libs");
        apt::output(command, "gcc check.c").map(|_| ())
    }

    fn program(&self) -> PathBuf {
        self.folder.join("check")
    }

    /// Returns the options of a guest that runs this script, with the program.
    fn script(&self, text: &str) -> Options {
        let words = ["sh", "-e", "-c", text, "check"].map(str::to_owned).to_vec();
        let program = self.program().display().to_string();
        let mut options = Options::new(Job::Command([words, vec![program]].concat()));
        options.engine = self.options.engine;
        options.cache = self.options.cache.clone();
        options.verbose = self.options.verbose;
        options.with = vec![self.program()];
        options.tools = true;
        options
    }

    /// Runs a guest, and checks that its command passes.
    fn passes(&self, options: &Options) -> Result<GuestOutcome, String> {
        let outcome = run(self.images, options, false)?;
        match outcome.end {
            GuestExit::Code(0) => Ok(outcome),
            _ => Err(described(&outcome)),
        }
    }
}

/// Formats an outcome.
fn described(outcome: &GuestOutcome) -> String {
    let text = format!("{:?}\n{}{}", outcome.end, outcome.stdout, outcome.stderr);
    text.trim_end().replace('\n', "\n    ")
}

fn demand(good: bool, what: &str, outcome: &GuestOutcome) -> Result<(), String> {
    if good { Ok(()) } else { Err(format!("{what}: {}", described(outcome))) }
}

/// Connects to this device by rdma_cm, and sends data in both directions. The client waits for the server: over siw,
/// rping hangs if it is refused.
const CONNECT: &str = "
    rping -s -a $RDMA_ADDRESS -C 10 & server=$!
    until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done
    rping -c -a $RDMA_ADDRESS -C 10
    wait $server
";

fn rxe_device(bench: &Bench<'_>) -> Result<(), String> {
    let text = format!(
        "ibv_devinfo -d $RDMA_DEVICE
        {CONNECT}
        $1 $RDMA_DEVICE $RDMA_GID_INDEX $RDMA_DEVICE $RDMA_GID_INDEX operations"
    );
    let outcome = bench.passes(&bench.script(&text))?;
    demand(outcome.stdout.contains("PORT_ACTIVE"), "no active port", &outcome)
}

fn rxe_nodes(bench: &Bench<'_>) -> Result<(), String> {
    let text = "
        first=$(on 1 sh -c 'echo $RDMA_DEVICE $RDMA_GID_INDEX')
        second=$(on 2 sh -c 'echo $RDMA_DEVICE $RDMA_GID_INDEX')
        on 2 rping -s -a 10.77.0.2 -C 10 & server=$!
        until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done
        on 1 rping -c -a 10.77.0.2 -C 10
        wait $server
        on 1 tc qdisc add dev eth0 root netem loss 2%
        on 2 tc qdisc add dev eth0 root netem loss 2%
        $1 $first $second traffic
        on 1 tc -s qdisc show dev eth0
        ping -c 1 10.77.0.2 || ping -c 3 10.77.0.2";
    let mut options = bench.script(text);
    options.nodes = 2;
    bench.passes(&options).map(|_| ())
}

/// Connects over siw. There rping occasionally hangs between two connected queue pairs, which is not a fault of the
/// guest, so it may retry.
const CONNECT_SIW: &str = "
    connect() {
        rping -s -a $RDMA_ADDRESS -C 10 & server=$!
        until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done
        timeout 30 rping -c -a $RDMA_ADDRESS -C 10 && return 0
        kill -9 $server
        sleep 1
        return 1
    }
    connect || connect || connect || connect
";

fn siw(bench: &Bench<'_>) -> Result<(), String> {
    let mut options = bench.script(&format!("ibv_devinfo -d $RDMA_DEVICE {CONNECT_SIW}"));
    options.devices = Devices::Siw;
    bench.passes(&options)?;
    let mut options = bench.script(&format!("on 1 sh -e -c '{CONNECT_SIW}'"));
    options.devices = Devices::Siw;
    options.nodes = 2;
    bench.passes(&options).map(|_| ())
}

fn pmem(bench: &Bench<'_>) -> Result<(), String> {
    let file = bench.folder.join("pmem");
    for what in ["persist", "survived"] {
        let here = "$RDMA_DEVICE $RDMA_GID_INDEX";
        let mut options = bench.script(&format!("$1 {here} {here} {what} $RDMA_PMEM"));
        options.pmem_mib = if what == "persist" { 64 } else { 0 };
        options.pmem_file = Some(file.clone());
        bench.passes(&options)?;
    }
    Ok(())
}

fn machinery(bench: &Bench<'_>) -> Result<(), String> {
    let text = "
        printf '%s|' \"$@\" \"$WORD\"; echo to the errors > /dev/stderr
        echo kept > /out/file; mkdir /out/folder; echo too > /out/folder/file
        exit 42";
    let mut options = bench.script(text);
    let odd = "it's \"two\" $words\\";
    if let Job::Command(words) = &mut options.job {
        words.push(odd.to_owned());
    }
    options.environment.push(("WORD".to_owned(), odd.to_owned()));
    let out = bench.folder.join("out");
    options.out = Some(out.clone());
    options.tools = false;
    let outcome = run(bench.images, &options, false)?;
    demand(outcome.end == GuestExit::Code(42), "exit code 42 is not passed on", &outcome)?;
    let program = bench.program().display().to_string();
    let printed = format!("{program}|{odd}|{odd}|");
    demand(outcome.stdout == printed, "words change on the way to the guest", &outcome)?;
    demand(outcome.stderr == "to the errors\n", "standard error is not passed on", &outcome)?;
    let text = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    let kept = text("file") == "kept\n" && text("folder/file") == "too\n";
    demand(kept, "files in /out are not copied back", &outcome)
}

fn time_limit(bench: &Bench<'_>) -> Result<(), String> {
    let mut options = bench.script("echo before; echo kept > /out/file; sleep 1000");
    let out = bench.folder.join("out-of-time");
    (options.timeout_s, options.tools, options.out) = (2, false, Some(out.clone()));
    let outcome = run(bench.images, &options, false)?;
    demand(outcome.end == GuestExit::Timeout, "the time limit is not enforced", &outcome)?;
    let kept = outcome.stdout == "before\n" && out.join("file").exists();
    demand(kept, "output before the limit is lost", &outcome)
}

fn no_such_command(bench: &Bench<'_>) -> Result<(), String> {
    let mut options = bench.script("");
    options.job = Job::Command(vec!["no-such-command".to_owned()]);
    options.tools = false;
    let outcome = run(bench.images, &options, false)?;
    demand(outcome.end == GuestExit::Code(NO_SUCH_COMMAND), "not exit code 127", &outcome)
}

/// Both guests use the same names, and each must see only its own files.
fn two_at_once(bench: &Bench<'_>) -> Result<(), String> {
    let one = |word: &str| {
        let mut options = bench.script(
            "echo $WORD > /tmp/word; echo $WORD > /out/word; sleep 0.5
             cat /tmp/word; $1 $RDMA_DEVICE $RDMA_GID_INDEX $RDMA_DEVICE $RDMA_GID_INDEX traffic",
        );
        options.environment.push(("WORD".to_owned(), word.to_owned()));
        options.out = Some(bench.folder.join(word));
        let outcome = bench.passes(&options)?;
        let kept = std::fs::read_to_string(bench.folder.join(word).join("word"));
        let own =
            outcome.stdout.starts_with(word) && kept.is_ok_and(|text| text.trim_end() == word);
        demand(own, "guests see each other's files", &outcome)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| one("left"));
        let this = one("right");
        let other = other.join().map_err(|_| "a part of the check panicked".to_owned())?;
        this.and(other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_unique() {
        let parts: Vec<_> = COMMON.iter().chain(OF_UML).chain(OF_QEMU).map(|part| part.0).collect();
        for (at, name) in parts.iter().enumerate() {
            assert!(!parts[..at].contains(name));
        }
    }
}
