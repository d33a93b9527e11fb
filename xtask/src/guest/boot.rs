//! Starts a guest with a run folder, and waits for its end.
//!
//! All files that the guest reads and writes are in the run folder's `share`. Its output is copied while it runs. The
//! guest ends with this process, for whatever reason that ends.

use super::cache::failed;
use super::engine::Engine;
use super::options::Options;
use super::progress::say;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit from the start of the guest to the start of the command. A busy machine takes many times the usual 1 s
/// (uml) or 5 s (qemu).
const START_LIMIT: Duration = Duration::from_secs(240);
/// Additional time after the command's time limit, for clean-up in the guest and copies.
const END_LIMIT: Duration = Duration::from_secs(60);
/// Interval at which the guest's output is polled.
const LOOK: Duration = Duration::from_millis(10);
/// Kernel messages that are reported even if the command passed.
const KERNEL_COMPLAINTS: &[&str] =
    &["BUG:", "WARNING:", "Oops", "general protection", "Out of memory", "Kernel panic"];

/// The end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum GuestExit {
    /// With the command's exit code.
    Code(u8),
    /// The time limit passed.
    Timeout,
    /// The guest itself failed, with the reason.
    Failed(String),
}

/// The kernel and root file system of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) engine: Engine,
    pub(crate) kernel: PathBuf,
    /// Archives that fill the root file system, in this order.
    pub(crate) archives: Vec<PathBuf>,
    /// The file of the NVDIMM and its size.
    pub(crate) pmem: Option<(PathBuf, u32)>,
}

/// Runs a guest with the files in `run`/share. With `show`, its output is copied to this process's.
pub(crate) fn boot(
    image: &Image,
    options: &Options,
    run: &Path,
    show: bool,
) -> Result<GuestExit, String> {
    concatenate(&image.archives, &run.join("initramfs"))?;
    let share = run.join("share");
    for name in ["stdout", "stderr", "result"] {
        File::create(share.join(name)).map_err(|e| failed(&share.join(name), e))?;
    }
    // User Mode Linux prints the console itself; QEMU writes it to a file and has its own messages.
    let (mut command, messages) = match image.engine {
        Engine::Uml => (uml(image, options, run), run.join("console")),
        Engine::Qemu => (qemu(image, options), run.join("messages")),
    };
    let log = File::create(&messages).map_err(|e| failed(&messages, e))?;
    let errors = log.try_clone().map_err(|e| failed(&messages, e))?;
    // Relative paths if possible: engines cannot handle some blanks and commas in paths.
    command.current_dir(run).stdin(Stdio::null()).stdout(log).stderr(errors);
    let child = command.spawn().map_err(|e| format!("{}: {e}", image.engine.name()))?;
    let mut watch = OutputWatch::new(run, options, show);
    let (status, limit_passed) = watch.follow(child)?;
    let result = read(&share.join("result"));
    let console = read(&run.join("console")) + &read(&run.join("messages"));
    for line in console.lines().filter(|line| KERNEL_COMPLAINTS.iter().any(|c| line.contains(c))) {
        say(&format!("the guest's kernel says: {}", line.trim()));
    }
    Ok(end_of(&result, limit_passed, status, &console))
}

/// Returns the guest's result, or the known reason if there is none.
fn end_of(result: &str, limit_passed: bool, status: ExitStatus, console: &str) -> GuestExit {
    let mut timeout = false;
    let mut started = false;
    for line in result.lines() {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("started", _) => started = true,
            ("timeout", _) => timeout = true,
            ("note", text) => say(text),
            ("failed", text) => return GuestExit::Failed(format!("the guest failed: {text}")),
            ("code", _) if timeout => return GuestExit::Timeout,
            ("code", text) => match text.parse() {
                Ok(code) => return GuestExit::Code(code),
                Err(_) => return GuestExit::Failed(format!("the guest's result is `{text}`")),
            },
            _ => {}
        }
    }
    if started && limit_passed {
        return GuestExit::Timeout;
    }
    let lines: Vec<_> = console.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n    ");
    let what = match (limit_passed, started) {
        (true, _) => format!("the guest did not start within {} s", START_LIMIT.as_secs()),
        (false, true) => format!("the guest died while the command ran ({status})"),
        (false, false) => format!("the guest did not start ({status})"),
    };
    GuestExit::Failed(format!("{what}; its console:\n    {last}"))
}

/// Returns the command of User Mode Linux, a program with kernel arguments.
fn uml(image: &Image, options: &Options, run: &Path) -> Command {
    let mut command = dying_with_us(&image.kernel);
    command.arg(format!("mem={}M", options.memory_mib));
    command.arg(format!("ncpus={}", options.processors));
    // System calls are intercepted by seccomp, which several processors need and which is faster than ptrace.
    command.args(["seccomp=on", "initrd=initramfs", "share=hostfs", "uml_dir=uml"]);
    // The only path that must be absolute.
    command.arg(format!("hostfs={}", run.join("share").display()));
    command.args(["con0=null,fd:1", "con=null", "quiet", "panic=-1"]);
    command.env("TMPDIR", memory_folder(options.memory_mib).unwrap_or_else(|| run.to_owned()));
    command
}

/// Returns the command of QEMU without acceleration.
fn qemu(image: &Image, options: &Options) -> Command {
    // Mitigations and checks that a temporary emulated guest does not need.
    const KERNEL: &str = "console=ttyS0 panic=-1 loglevel=5 share=9p mitigations=off nokaslr \
        tsc=reliable no_timer_check cryptomgr.notests audit=0 apparmor=0 selinux=0 \
        kfence.sample_interval=0 init_on_alloc=0 8250.nr_uarts=1 rcupdate.rcu_expedited=1 \
        random.trust_cpu=on i8042.nokbd i8042.noaux";
    let mut command = dying_with_us(Path::new("qemu-system-x86_64"));
    command.args(["-accel", "tcg,thread=multi", "-cpu", "Nehalem,+rdrand"]);
    command.args(["-no-user-config", "-nodefaults", "-no-reboot", "-display", "none"]);
    command.args(["-smp", &options.processors.to_string()]);
    command.arg("-kernel").arg(&image.kernel);
    command.args(["-initrd", "initramfs", "-append", KERNEL]);
    command.args(["-chardev", "file,id=console,path=console", "-serial", "chardev:console"]);
    command.args(["-fsdev", "local,id=share,path=share,security_model=none"]);
    command.args(["-device", "virtio-9p-pci,fsdev=share,mount_tag=share"]);
    let memory = options.memory_mib;
    match &image.pmem {
        None => command.args(["-m", &memory.to_string()]),
        Some((file, size)) => {
            let most = memory + size + 4096;
            command.args(["-machine", "pc,nvdimm=on", "-m"]);
            command.arg(format!("{memory}M,slots=2,maxmem={most}M"));
            // A comma in an option's value is written twice.
            let path = file.display().to_string().replace(',', ",,");
            command.arg("-object");
            command
                .arg(format!("memory-backend-file,id=pmem,share=on,mem-path={path},size={size}M"));
            command.args(["-device", "nvdimm,id=nvdimm,memdev=pmem"])
        }
    };
    command
}

/// Returns a command that the kernel kills when this process ends, if the program `setpriv` is available.
fn dying_with_us(program: &Path) -> Command {
    if !crate::debian::is_here("setpriv") {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Returns a folder in memory with room for a guest's memory, without `noexec`: User Mode Linux maps its memory from a
/// file. `None` without such a folder, as in many containers.
fn memory_folder(memory_mib: u32) -> Option<PathBuf> {
    let folder = "/dev/shm";
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let mut lines = mounts.lines().rev().map(|line| line.split(' ').collect::<Vec<_>>());
    let options = lines.find(|words| words.get(1) == Some(&folder))?.get(3)?.to_owned();
    if options.split(',').any(|option| option == "noexec" || option == "ro") {
        return None;
    }
    let output = Command::new("df").args(["-BM", "--output=avail", folder]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let free_mib: u32 = text.lines().last()?.trim().trim_end_matches('M').parse().ok()?;
    (free_mib >= memory_mib).then(|| PathBuf::from(folder))
}

/// Concatenates the archives, without a copy if there is only one.
fn concatenate(archives: &[PathBuf], to: &Path) -> Result<(), String> {
    if let [only] = archives {
        return std::os::unix::fs::symlink(only, to).map_err(|e| failed(to, e));
    }
    let mut all = File::create(to).map_err(|e| failed(to, e))?;
    for archive in archives {
        let mut file = File::open(archive).map_err(|e| failed(archive, e))?;
        std::io::copy(&mut file, &mut all).map_err(|e| failed(to, e))?;
    }
    Ok(())
}

/// Copies the guest's output and enforces time limits.
struct OutputWatch {
    tails: Vec<Tail>,
    result: PathBuf,
    command_limit: Duration,
}

impl OutputWatch {
    fn new(run: &Path, options: &Options, show: bool) -> Self {
        let share = run.join("share");
        let mut tails = Vec::new();
        if show {
            tails.push(Tail::new(share.join("stdout"), Box::new(std::io::stdout())));
            tails.push(Tail::new(share.join("stderr"), Box::new(std::io::stderr())));
        }
        if options.verbose {
            tails.push(Tail::new(run.join("console"), Box::new(std::io::stderr())));
        }
        let command_limit = Duration::from_secs(options.timeout_s).saturating_add(END_LIMIT);
        Self { tails, result: share.join("result"), command_limit }
    }

    /// Waits for the guest's end, or ends it when a limit passes; returns whether one did.
    fn follow(&mut self, mut child: Child) -> Result<(ExitStatus, bool), String> {
        let mut since = Instant::now();
        let mut limit = START_LIMIT;
        let mut started = false;
        let mut limit_passed = false;
        let status = loop {
            let ended = child.try_wait().map_err(|e| format!("waiting for the guest: {e}"))?;
            self.tails.iter_mut().for_each(Tail::advance);
            if let Some(status) = ended {
                break status;
            }
            if !started && read(&self.result).starts_with("started") {
                (started, since, limit) = (true, Instant::now(), self.command_limit);
            }
            if since.elapsed() > limit {
                limit_passed = true;
                child.kill().map_err(|e| format!("ending the guest: {e}"))?;
            }
            // The guest's files provide no events to wait for.
            std::thread::park_timeout(LOOK);
        };
        self.tails.iter_mut().for_each(Tail::advance);
        Ok((status, limit_passed))
    }
}

/// Copies a growing file.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    to: Box<dyn Write>,
}

impl Tail {
    fn new(path: PathBuf, to: Box<dyn Write>) -> Self {
        Self { path, file: None, to }
    }

    /// Copies added bytes. If our own output is closed, the guest continues.
    fn advance(&mut self) {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else {
            return;
        };
        let mut bytes = Vec::new();
        if file.read_to_end(&mut bytes).is_ok() && !bytes.is_empty() {
            let _ = self.to.write_all(&bytes).and_then(|()| self.to.flush());
        }
    }
}

/// Returns the valid text of a file; empty if it does not exist.
pub(crate) fn read(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn end(result: &str, limit_passed: bool) -> GuestExit {
        end_of(result, limit_passed, ExitStatus::from_raw(0), "last words")
    }

    #[test]
    fn results_are_distinguished() {
        assert_eq!(end("started\ncode 42\n", false), GuestExit::Code(42));
        assert_eq!(end("started\ntimeout\ncode 124\n", false), GuestExit::Timeout);
        assert_eq!(end("started\ncode 124\n", false), GuestExit::Code(124), "the command's own");
        assert_eq!(end("started\n", true), GuestExit::Timeout, "the guest hung");
        for (result, limit_passed) in [
            ("", true),
            ("", false),
            ("started\n", false),
            ("failed bridge\n", false),
            ("code x", false),
        ] {
            assert!(matches!(end(result, limit_passed), GuestExit::Failed(_)), "{result:?}");
        }
    }

    #[test]
    fn tail_copies_added_bytes() {
        let path = std::env::temp_dir().join(format!("farside-tail-{}", std::process::id()));
        let mut tail = Tail::new(path.clone(), Box::new(std::io::sink()));
        tail.advance();
        for text in ["one", "one two"] {
            std::fs::write(&path, text).unwrap();
            tail.advance();
            let mut rest = String::new();
            tail.file.as_ref().unwrap().read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "", "all of it was copied");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
