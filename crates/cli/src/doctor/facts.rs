//! What a machine is like, as far as Farside cares. Probed here, judged in `checks`.

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The facts. Text fields are as the system gives them, so that recorded ones can be judged anywhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// As `uname -sr`.
    pub(crate) kernel: String,
    /// As `uname -m`.
    pub(crate) architecture: String,
    /// What the shared-memory fabric tried.
    pub(crate) fabric: Vec<Tried>,
    /// Bytes that this process may lock, `None` for any number.
    pub(crate) memlock_bytes: Option<u64>,
    /// Most open files, now and as far as this user may raise it.
    pub(crate) open_files: (u64, u64),
    /// Most processes and threads of this user, `None` for any number.
    pub(crate) processes: Option<u64>,
    /// Processors that this process may run on.
    pub(crate) cores: u32,
    /// `MemTotal` of `/proc/meminfo`.
    pub(crate) memory_total_bytes: u64,
    /// `MemAvailable` of `/proc/meminfo`.
    pub(crate) memory_available_bytes: u64,
    /// What the control group leaves, `None` when it sets no bound.
    pub(crate) cgroup_memory_bytes: Option<u64>,
    /// Thousandths of a processor that the control group allows, `None` when it sets no bound.
    pub(crate) cgroup_cpu_permille: Option<u64>,
    /// The clock source of the kernel.
    pub(crate) clock_source: String,
}

/// One thing that the fabric rests on or likes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Tried {
    pub(crate) name: String,
    /// Whether nothing works without it.
    pub(crate) needed: bool,
    pub(crate) works: bool,
    pub(crate) finding: String,
    pub(crate) remedy: String,
}

impl From<farside_fabric_shm::Check> for Tried {
    fn from(check: farside_fabric_shm::Check) -> Self {
        Self {
            name: check.name.replace(' ', "_"),
            needed: check.needed,
            works: check.works,
            finding: check.finding,
            remedy: check.remedy.unwrap_or_default().to_owned(),
        }
    }
}

impl Facts {
    /// Asks this machine.
    pub(crate) fn probe() -> Self {
        let memory = read("/proc/meminfo");
        let files = getrlimit(Resource::Nofile);
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Self {
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            architecture: text(uname.machine()),
            fabric: farside_fabric_shm::probe().into_iter().map(Tried::from).collect(),
            memlock_bytes: getrlimit(Resource::Memlock).current,
            open_files: (files.current.unwrap_or(u64::MAX), files.maximum.unwrap_or(u64::MAX)),
            processes: getrlimit(Resource::Nproc).current,
            cores: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            memory_total_bytes: meminfo(&memory, "MemTotal"),
            memory_available_bytes: meminfo(&memory, "MemAvailable"),
            cgroup_memory_bytes: cgroup_memory(),
            cgroup_cpu_permille: cgroup_cpu(),
            clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        }
    }
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// A line such as `MemTotal:  24 kB`.
fn meminfo(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

/// The files of this process's control group, the innermost first (version 2 only).
fn cgroup_files(name: &str) -> Vec<String> {
    let own = read("/proc/self/cgroup");
    let inside = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned();
    let mut texts = Vec::new();
    let mut at = Some(Path::new(&inside));
    while let Some(group) = at {
        let relative = group.strip_prefix("/").unwrap_or(group);
        texts.push(read(Path::new("/sys/fs/cgroup").join(relative).join(name)));
        at = group.parent();
    }
    texts
}

/// The least that any of the groups around this process leaves.
fn cgroup_memory() -> Option<u64> {
    let limits = cgroup_files("memory.max");
    let used = cgroup_files("memory.current");
    let left = limits.iter().zip(&used).filter_map(|(limit, used)| {
        let limit: u64 = limit.parse().ok()?;
        Some(limit.saturating_sub(used.parse().unwrap_or(0)))
    });
    left.min()
}

fn cgroup_cpu() -> Option<u64> {
    cgroup_files("cpu.max").iter().filter_map(|text| cpu_permille(text)).min()
}

/// `max 100000` or `150000 100000`: time and period in us.
fn cpu_permille(text: &str) -> Option<u64> {
    let (time, period) = text.split_once(' ')?;
    let (time, period): (u64, u64) = (time.parse().ok()?, period.trim().parse().ok()?);
    time.checked_mul(1_000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_system_are_read() {
        assert_eq!(
            meminfo("MemTotal:       24 kB\nMemAvailable: 7 kB\n", "MemAvailable"),
            7 * 1024
        );
        assert_eq!(meminfo("nothing", "MemTotal"), 0);
        assert_eq!(cpu_permille("max 100000"), None);
        assert_eq!(cpu_permille("150000 100000"), Some(1_500));
    }

    #[test]
    fn probing_finds_a_machine() {
        let facts = Facts::probe();
        assert!(facts.cores > 0 && facts.memory_total_bytes > 0 && facts.open_files.0 > 0);
    }
}
