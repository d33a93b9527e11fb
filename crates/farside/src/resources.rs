//! Checks of the memory that the machine, its control groups and the limits of this process leave for a
//! node.
//!
//! Pages of a region are allocated at the first touch, long after the start, and the kernel kills a process
//! that touches more than there is. So a node whose memory and cache do not fit is refused at its start.
//! Memory that other processes take later is not foreseen.

use crate::{Config, Error, ErrorCode};
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};

/// Nodes of up to this many bytes start without a check.
const SMALL: u64 = 16 << 20;
/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// The bytes that a limit leaves, and that limit.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Left {
    bytes: u64,
    of: String,
    remedy: &'static str,
}

/// Checks that a node's memory and cache fit.
///
/// # Errors
/// `BadConfiguration`, with the settings, what they need, what limits it, and what to do.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    let needed = needed(config);
    if needed <= SMALL {
        return Ok(());
    }
    check_memory(needed, &settings(config))?;
    // A tag of 8 B per 64 B of memory, and about five times as much per 64 B of cache.
    let tags = config.memory_bytes / 8 + config.cache_bytes / 8 * 5;
    let needed = needed.saturating_add(tags);
    of_address_space().map_or(Ok(()), |left| refuse(needed, &settings(config), &left))
}

impl Config {
    /// Checks that this machine has the memory for nodes that start together on it: at its own start, a
    /// node does not see what others will touch later. Reads files of the kernel.
    ///
    /// # Errors
    /// `BadConfiguration`, with the settings, what they need, what limits it, and what to do.
    pub fn check_together(nodes: &[Self]) -> Result<(), Error> {
        let most = nodes.iter().max_by_key(|config| needed(config));
        let all = nodes.iter().fold(0_u64, |sum, config| sum.saturating_add(needed(config)));
        most.map_or(Ok(()), |most| {
            check_memory(all, &format!("{} nodes of up to {}", nodes.len(), settings(most)))
        })
    }
}

const fn needed(config: &Config) -> u64 {
    let image = if config.has_state() { config.memory_bytes } else { 0 };
    config.memory_bytes.saturating_add(image).saturating_add(config.cache_size())
}

fn settings(config: &Config) -> String {
    let Config { memory_bytes, cache_bytes, .. } = config;
    format!("memory_bytes {memory_bytes} and cache_bytes {cache_bytes}")
}

/// Checks the machine's memory and the control groups.
fn check_memory(needed: u64, settings: &str) -> Result<(), Error> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = of_groups(Path::new(GROUPS), &own);
    memory.into_iter().chain(group).try_for_each(|left| refuse(needed, settings, &left))
}

fn refuse(needed: u64, settings: &str, left: &Left) -> Result<(), Error> {
    if needed <= left.bytes {
        return Ok(());
    }
    let Left { bytes, of, remedy } = left;
    let detail =
        format!("{settings} need {needed} B, and {of} leaves {bytes} B: lower them, or {remedy}");
    Err(Error::with(ErrorCode::BadConfiguration, detail))
}

/// The memory that programs can still get according to the kernel, swap included.
fn of_machine(meminfo: &str) -> Option<Left> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Left {
        bytes: field("MemAvailable:")?.saturating_add(field("SwapFree:").unwrap_or(0)),
        of: "the memory available on this machine".to_owned(),
        remedy: "free memory",
    })
}

/// The least that the memory limits of this process's control groups (version 1 or 2) leave.
fn of_groups(root: &Path, own: &str) -> Option<Left> {
    let left = own.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (kinds, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let version = match kinds {
            "" => Some((root.to_owned(), &SECOND)),
            kinds if kinds.split(',').any(|kind| kind == "memory") => {
                Some((root.join("memory"), &FIRST))
            }
            _ => None,
        };
        version.into_iter().flat_map(move |(mount, files)| of_group(&mount, path, files))
    });
    left.min_by_key(|left| left.bytes)
}

/// The files of a control group that describe its memory.
struct GroupFiles {
    most: &'static str,
    used: &'static str,
    /// Fields of `memory.stat` that count file pages, which the kernel drops when memory is short.
    droppable: [&'static str; 2],
}

const SECOND: GroupFiles = GroupFiles {
    most: "memory.max",
    used: "memory.current",
    droppable: ["inactive_file", "active_file"],
};

const FIRST: GroupFiles = GroupFiles {
    most: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    droppable: ["total_inactive_file", "total_active_file"],
};

/// What a group and its ancestors leave.
fn of_group(mount: &Path, path: &str, files: &GroupFiles) -> Vec<Left> {
    let own: PathBuf = mount.join(path.trim_start_matches('/'));
    let groups = own.ancestors().take_while(|group| group.starts_with(mount));
    groups.filter_map(|group| left_in(group, files)).collect()
}

fn left_in(group: &Path, files: &GroupFiles) -> Option<Left> {
    let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let most = number(files.most)?;
    let stat = read("memory.stat").unwrap_or_default();
    let droppable = stat.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        files.droppable.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    });
    let used = number(files.used).unwrap_or(0).saturating_sub(droppable.sum());
    Some(Left {
        bytes: most.saturating_sub(used),
        of: format!("{} ({most} B)", group.join(files.most).display()),
        remedy: "raise that limit",
    })
}

/// What RLIMIT_AS leaves of this process's address space, if set.
fn of_address_space() -> Option<Left> {
    let most = getrlimit(Resource::As).current?;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    Some(Left {
        bytes: most.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64)),
        of: format!("RLIMIT_AS ({most} B)"),
        remedy: "raise that limit (ulimit -v)",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_memory_counts_what_is_available_and_swap() {
        let text = "MemTotal: 900 kB\nMemAvailable:   100 kB\nSwapFree:  28 kB\n";
        assert_eq!(of_machine(text).unwrap().bytes, 128 << 10);
        assert_eq!(of_machine("MemTotal: 900 kB\n"), None);
    }

    #[test]
    fn smallest_group_limit_on_the_way_up_is_found() {
        let root = std::env::temp_dir().join(format!("farside-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(of_groups(&root, "0::/a/b\n"), None, "no group has a limit");
        write("a/memory.max", "1000\n");
        write("a/memory.current", "900\n");
        write("a/memory.stat", "anon 1\ninactive_file 300\nactive_file 50\n");
        write("a/b/memory.max", "max\n");
        let second = of_groups(&root, "1:name=systemd:/\n0::/a/b\n").unwrap();
        assert_eq!(second.bytes, 450);
        assert!(second.of.ends_with("a/memory.max (1000 B)"), "{}", second.of);
        write("memory/memory.limit_in_bytes", "500\n");
        write("memory/memory.usage_in_bytes", "100\n");
        let first = of_groups(&root, "5:cpu,memory:/c\n0::/a/b\n").unwrap();
        assert_eq!(first.bytes, 400);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn refusal_names_settings_need_limit_and_remedy() {
        let mut config = Config::new("x");
        (config.memory_bytes, config.cache_bytes) = (3 << 50, 8192);
        let error = check(&config).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadConfiguration);
        for part in ["memory_bytes 3377699720527872", "cache_bytes 8192", "leaves", "lower them"] {
            assert!(error.detail.contains(part), "{error}");
        }
    }

    #[test]
    fn nodes_that_start_together_share_what_there_is() {
        let of = |bytes| Config { memory_bytes: bytes, cache_bytes: 8192, ..Config::new("x") };
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let third = of_machine(&text).unwrap().bytes / 3;
        assert_eq!(Config::check_together(&[of(1 << 20), of(1 << 20)]), Ok(()));
        let error = Config::check_together(&[of(third), of(1 << 20), of(third), of(third * 2)]);
        let detail = error.unwrap_err().detail;
        assert!(detail.contains("4 nodes of up to memory_bytes"), "{detail}");
    }
}
