//! Options of `cargo xtask rdma-guest`.

use std::path::PathBuf;

/// The help text. Tests depend on its names of devices, addresses and variables.
pub(crate) const USAGE: &str = "\
cargo xtask rdma-guest [OPTION...] -- COMMAND [ARGUMENT...]
cargo xtask rdma-guest [OPTION...] --tests -p PACKAGE [CARGO-OPTION...] [-- TEST-ARGUMENT...]
cargo xtask rdma-guest [OPTION...] --check | --bench | --prepare | --chosen

Runs a command in a temporary Linux guest with software verbs devices: soft-RoCE
(rdma_rxe) or soft-iWARP (siw). The machine needs no RDMA hardware, no KVM and no kernel modules.

Command
  COMMAND with a `/` is a program of this machine; it is copied to the same path in the guest, with
  libraries that the guest lacks. Without a `/` it is a program of the guest: sh, ip, tc, rdma,
  timeout, busybox's, and those of --tools. It runs as root, with empty standard input.
  --with PATH          copy a file or folder to the same path in the guest; may be repeated
  --tests CARGO-OPTION...  build the tests with `cargo test --no-run CARGO-OPTION...` and run every
                       resulting test program in one guest, each in the folder of its package, with
                       the TEST-ARGUMENTs after `--`; must be the last option
  --env NAME=VALUE     set a variable of the command; --env NAME passes this machine's value.
                       RUST_BACKTRACE and FARSIDE_* are always passed
  --out FOLDER         copy the files that the command creates in /out to FOLDER
  --timeout SECONDS    end the command after this time (300); its output and files in /out are kept

The guest
  --engine uml         User Mode Linux: starts in about a second and runs at native speed. Its kernel
                       is built once, which takes minutes
  --engine qemu        QEMU emulating Debian's own kernel: ready quickly on a fresh machine, then
                       several seconds per run; supports an NVDIMM. No siw
  --engine auto        (default) qemu for --pmem; uml for --siw, and if its kernel is built (see
                       --prepare); otherwise qemu
  --nodes N            N network namespaces node1..nodeN on a bridge, 1 to 32, each with its device.
                       The command runs outside of them; `on 2 COMMAND` runs a command in node2
  --siw                siw devices instead of rxe: connections only by rdma_cm, no atomics
  --pmem MIB           an NVDIMM of this size as /dev/dax0.0, a multiple of 16, at least 64: the only
                       memory for which rxe accepts IBV_ACCESS_FLUSH_PERSISTENT
  --pmem-file FILE     keep the NVDIMM's contents in FILE, which is created if absent: a guest sees
                       what the previous one has written; its size overrides --pmem
  --tools              ibv_devinfo, rping, perftest, ndctl and similar programs
  --memory MIB (1024)  --processors N (2)
  --verbose            show the console of the guest's kernel

Devices and addresses
  without --nodes      rxe0 (siw0) on dummy0, 10.77.0.1, for any number of processes
  with --nodes         rxe1..rxeN (siw1..) on eth0 of node1..nodeN, 10.77.0.1..N; the command itself
                       has 10.77.0.254 and sees all devices. Loss, delay and so on:
                       on 1 tc qdisc add dev eth0 root netem loss 1%
  variables            RDMA_DEVICE, RDMA_ADDRESS and RDMA_GID_INDEX of the first device (`on` sets
                       those of the node), RDMA_KIND (rxe or siw), RDMA_NODES, RDMA_PMEM

Example: server and client of a benchmark, each in a node
  cargo xtask rdma-guest --nodes 2 --with target/release/farside -- sh -c '
    on 2 target/release/farside bench fabric --fabric verbs --listen 0.0.0.0:7000 & sleep 1
    on 1 target/release/farside bench fabric --fabric verbs 10.77.0.2:7000'

Other
  --check              the guest's self-test: devices, verbs, nodes, exit codes, time limits, pmem
  --bench              alternate `farside bench fabric --fabric verbs` and perftest between two nodes:
                       medians of seven runs and of paired ratios; fails if farside is 25% slower
  --prepare            fetch and build what the engine needs, run nothing; auto means both engines
  --chosen             print the contents of the guest: package, version
  --rebuild            delete what was fetched and built before for --engine uml or qemu
  --cache FOLDER       keep everything in FOLDER. Without it, packages are in rdma-guest in cargo's target
                       folder, the kernel of uml in $XDG_CACHE_HOME/farside (~/.cache/farside)

Exit code: that of the command; 124 if --timeout passed; 125 if the guest failed; 127 if the command
does not exist. With --tests 101 if a test failed, as with cargo.
Only Debian packages are fetched, from the mirror of this machine's apt and with its keys; apt's own
state is not changed. Missing programs are installed if this is root, and otherwise reported.";

/// The requested engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EngineChoice {
    Auto,
    Uml,
    Qemu,
}

/// The driver of the guest's devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Devices {
    Rxe,
    Siw,
}

impl Devices {
    /// Returns the name, as in names of devices and types of links.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }
}

/// A job of the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    Help,
    Prepare,
    Check,
    Bench,
    Chosen,
    /// A command and its arguments.
    Command(Vec<String>),
    /// Options of `cargo test`, and arguments for the test programs.
    Tests {
        cargo: Vec<String>,
        arguments: Vec<String>,
    },
}

/// The command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(crate) job: Job,
    pub(crate) engine: EngineChoice,
    pub(crate) nodes: u8,
    pub(crate) devices: Devices,
    /// Zero for none, or for the size of the file.
    pub(crate) pmem_mib: u32,
    pub(crate) pmem_file: Option<PathBuf>,
    pub(crate) timeout_s: u64,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) with: Vec<PathBuf>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) tools: bool,
    pub(crate) memory_mib: u32,
    pub(crate) processors: u8,
    pub(crate) verbose: bool,
    pub(crate) rebuild: bool,
    pub(crate) cache: Option<PathBuf>,
}

/// Maximum nodes of one guest; each costs a namespace, a device and its kernel threads.
const NODES_MAX: u8 = 32;
/// CONFIG_NR_CPUS of the UML kernel.
const PROCESSORS_MAX: u8 = 8;
/// Processors of QEMU's guests with an NVDIMM: with several emulated ones, the kernel now and then traps over code that
/// another one has just patched, while it starts.
pub(crate) const PROCESSORS_ON_PMEM: u8 = 1;
/// Minimum memory; the guest's root file system and kernel take some 100 MiB.
const MEMORY_MIN_MIB: u32 = 256;

impl Options {
    /// Returns default options for `job`.
    pub(crate) fn new(job: Job) -> Self {
        Self {
            job,
            engine: EngineChoice::Auto,
            nodes: 0,
            devices: Devices::Rxe,
            pmem_mib: 0,
            pmem_file: None,
            timeout_s: 300,
            environment: Vec::new(),
            with: Vec::new(),
            out: None,
            tools: false,
            memory_mib: 1024,
            processors: 2,
            verbose: false,
            rebuild: false,
            cache: None,
        }
    }

    /// Parses a command line; `variable` returns this machine's value of an environment variable.
    pub(crate) fn parse(
        words: &[&str],
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut options = Self::new(Job::Help);
        let mut words = words.iter().copied();
        let mut jobs = Vec::new();
        while let Some(word) = words.next() {
            match word {
                "--" => jobs.push(Job::Command(words.by_ref().map(str::to_owned).collect())),
                "--tests" => jobs.push(tests(&mut words)),
                "--help" | "-h" => return Ok(options),
                "--check" => jobs.push(Job::Check),
                "--bench" => jobs.push(Job::Bench),
                "--prepare" => jobs.push(Job::Prepare),
                "--chosen" => jobs.push(Job::Chosen),
                "--siw" => options.devices = Devices::Siw,
                "--tools" => options.tools = true,
                "--verbose" => options.verbose = true,
                "--rebuild" => options.rebuild = true,
                name => {
                    let value = words.next().map(str::to_owned);
                    options.set(name, value, variable)?;
                }
            }
        }
        let mut jobs = jobs.into_iter();
        options.job = match (jobs.next(), jobs.next()) {
            (Some(Job::Command(words)), None) if words.is_empty() => {
                return Err("no command after `--`".to_owned());
            }
            (Some(job), None) => job,
            (None, _) => return Err("nothing to do: `-- COMMAND`, --tests or --check".to_owned()),
            (Some(_), Some(_)) => return Err("one of `-- COMMAND`, --tests, --check".to_owned()),
        };
        options.checked()
    }

    /// Sets an option that has a value.
    fn set(
        &mut self,
        name: &str,
        value: Option<String>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        const KNOWN: &[&str] = &[
            "--engine",
            "--nodes",
            "--pmem",
            "--pmem-file",
            "--timeout",
            "--env",
            "--with",
            "--out",
            "--memory",
            "--processors",
            "--cache",
        ];
        if !KNOWN.contains(&name) {
            let hint = if name.starts_with('-') { "" } else { "; a command follows `--`" };
            return Err(format!("unknown option `{name}`{hint}"));
        }
        let value = value.ok_or(format!("{name} needs a value"))?;
        match name {
            "--engine" => self.engine = engine(&value)?,
            "--nodes" => self.nodes = number(name, &value)?,
            "--pmem" => self.pmem_mib = number(name, &value)?,
            "--pmem-file" => self.pmem_file = Some(value.into()),
            "--timeout" => self.timeout_s = number(name, &value)?,
            "--env" => self.environment.extend(assignment(&value, variable)?),
            "--with" => self.with.push(value.into()),
            "--out" => self.out = Some(value.into()),
            "--memory" => self.memory_mib = number(name, &value)?,
            "--processors" => self.processors = number(name, &value)?,
            _ => self.cache = Some(value.into()),
        }
        Ok(())
    }

    /// Returns whether the guest has an NVDIMM.
    pub(crate) fn has_pmem(&self) -> bool {
        self.pmem_mib > 0 || self.pmem_file.is_some()
    }

    /// Refuses impossible options, before anything is fetched or built.
    fn checked(self) -> Result<Self, String> {
        if self.nodes > NODES_MAX {
            return Err(format!("--nodes: at most {NODES_MAX}"));
        }
        if self.processors == 0 || self.processors > PROCESSORS_MAX {
            return Err(format!("--processors: 1 to {PROCESSORS_MAX}"));
        }
        if self.memory_mib < MEMORY_MIN_MIB {
            return Err(format!("--memory: at least {MEMORY_MIN_MIB}"));
        }
        if self.timeout_s == 0 {
            return Err("--timeout: at least 1".to_owned());
        }
        if self.pmem_mib > 0 && (self.pmem_mib < 64 || !self.pmem_mib.is_multiple_of(16)) {
            return Err("--pmem: a multiple of 16, at least 64".to_owned());
        }
        if self.rebuild && self.engine == EngineChoice::Auto {
            return Err("--rebuild needs --engine uml or --engine qemu".to_owned());
        }
        let siw = self.devices == Devices::Siw;
        if siw && (self.engine == EngineChoice::Qemu || self.has_pmem()) {
            return Err("--siw needs the engine uml: Debian's kernels have no siw".to_owned());
        }
        if self.has_pmem() && self.engine == EngineChoice::Uml {
            return Err("--pmem needs the engine qemu: User Mode Linux has no NVDIMM".to_owned());
        }
        Ok(self)
    }
}

/// Parses the words after `--tests`: cargo's options, and the test programs' arguments after `--`.
fn tests<'a>(words: &mut impl Iterator<Item = &'a str>) -> Job {
    let cargo = words.by_ref().take_while(|word| *word != "--").map(str::to_owned).collect();
    Job::Tests { cargo, arguments: words.map(str::to_owned).collect() }
}

fn engine(value: &str) -> Result<EngineChoice, String> {
    match value {
        "auto" => Ok(EngineChoice::Auto),
        "uml" => Ok(EngineChoice::Uml),
        "qemu" => Ok(EngineChoice::Qemu),
        _ => Err(format!("--engine is auto, uml or qemu, not `{value}`")),
    }
}

fn number<N: std::str::FromStr>(name: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{name}: `{value}` is not a valid number"))
}

/// Parses `NAME=VALUE`, or `NAME` for this machine's value, which may be absent.
fn assignment(
    text: &str,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<(String, String)>, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, variable(text)),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(format!("--env: `{name}` is not a valid variable name"));
    }
    Ok(value.map(|value| (name.to_owned(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<_> = line.split_whitespace().collect();
        Options::parse(&words, &|name| (name == "SET").then(|| "here".to_owned()))
    }

    #[test]
    fn options_end_at_the_command() {
        let options =
            parse("--nodes 3 --timeout 9 --env A=b=c --env SET --env UNSET -- ./x --nodes 4");
        let options = options.unwrap();
        assert_eq!(options.job, Job::Command(vec!["./x".into(), "--nodes".into(), "4".into()]));
        assert_eq!((options.nodes, options.timeout_s), (3, 9));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(options.environment, [pair("A", "b=c"), pair("SET", "here")]);
    }

    #[test]
    fn options_of_cargo_and_tests_are_separated() {
        let options = parse("--siw --tests -p x --test y -- --test-threads 1").unwrap();
        let list = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let expected =
            Job::Tests { cargo: list("-p x --test y"), arguments: list("--test-threads 1") };
        assert_eq!((options.job, options.devices), (expected, Devices::Siw));
    }

    #[test]
    fn invalid_options_are_refused() {
        for line in [
            "",
            "--",
            "ls",
            "--polish -- x",
            "--check --prepare",
            "--nodes 33 -- x",
            "--nodes -- x",
            "--pmem 60 -- x",
            "--pmem 130 -- x",
            "--pmem 64 --engine uml -- x",
            "--siw --engine qemu -- x",
            "--siw --pmem-file f -- x",
            "--engine kvm -- x",
            "--env 1A=2 -- x",
            "--env =2 -- x",
            "--processors 0 -- x",
            "--timeout 0 -- x",
            "--rebuild -- x",
            "--memory 64 -- x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
