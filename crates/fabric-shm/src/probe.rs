//! Checks whether this machine has what the fabric needs or prefers, for `info` and `doctor`.

use crate::barrier;
use crate::bell::{Bell, SharedBell};
use crate::mapping::{self, HUGE_PAGE, PeerMappings, RegionMemory, SharedMapping};
use crate::names;
use crate::socket::{self, Accepted};
use farside_base::RegionKind;
use farside_fabric::FabricError;
use std::time::Duration;

/// One thing that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// What is checked, by the system's name.
    pub name: &'static str,
    /// Whether the fabric works at all without it.
    pub needed: bool,
    /// Whether it works here.
    pub works: bool,
    /// The result, or why it does not work.
    pub finding: String,
    /// The command that would fix it, if there is one.
    pub remedy: Option<&'static str>,
}

/// Tests everything that the fabric depends on. Takes some 10 ms and leaves nothing behind. Every check
/// that is `needed` and does not work prevents [`ShmFabric`](crate::ShmFabric) from working.
pub fn probe() -> Vec<Check> {
    vec![memfd(), huge_pages(), futex(), sockets(), membarrier(), descriptors()]
}

fn check(
    name: &'static str,
    needed: bool,
    outcome: Result<String, String>,
    remedy: &'static str,
) -> Check {
    let works = outcome.is_ok();
    Check {
        name,
        needed,
        works,
        finding: outcome.unwrap_or_else(|reason| reason),
        remedy: (!works).then_some(remedy),
    }
}

fn memfd() -> Check {
    let outcome = SharedMapping::new("farside-probe", 4096, PeerMappings::Read)
        .map(|_| "memfd with seals, kept read-only for peers".to_owned())
        .map_err(|reason| reason.to_string());
    check(
        "memfd",
        true,
        outcome,
        "run Linux 5.1 or later, without a sandbox that forbids memfd_create",
    )
}

fn huge_pages() -> Check {
    let mut pages = None;
    let fill = |arena: &farside_fabric::Arena| {
        pages = Some(mapping::prefault(arena, HUGE_PAGE, true));
    };
    let memory = RegionMemory::new(HUGE_PAGE, RegionKind::Memory, PeerMappings::Write, fill);
    let outcome = match (memory, pages) {
        (Err(reason), _) => Err(reason.to_string()),
        (Ok(_), Some(pages)) if pages.huge == HUGE_PAGE => {
            Ok("MADV_COLLAPSE makes pages of 2 MiB".to_owned())
        }
        (Ok(_), pages) => {
            let reason = pages.and_then(|pages| pages.reason);
            Err(reason.unwrap_or_else(|| "none were made".to_owned()))
        }
    };
    // A kernel without them has no such file to write to.
    let remedy = match std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        true => {
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled  # and Linux 6.1 or later"
        }
        false => "run a kernel with CONFIG_TRANSPARENT_HUGEPAGE, Linux 6.1 or later",
    };
    check("huge pages", false, outcome, remedy)
}

fn futex() -> Check {
    let outcome = SharedMapping::new("farside-probe", 4096, PeerMappings::Write)
        .map_err(|reason| reason.to_string())
        .and_then(|memory| SharedBell::new(&memory.arena, 0).ok_or("no bell".to_owned()))
        .and_then(|bell| {
            let word = bell.load();
            let in_time = bell.sleep(word, Some(Duration::from_micros(1)));
            match in_time {
                false => Ok("futex on shared memory sleeps and ends in time".to_owned()),
                true => Err("futex on shared memory does not sleep".to_owned()),
            }
        });
    check("futex", true, outcome, "run without a sandbox that forbids futex")
}

fn sockets() -> Check {
    let name = format!("probe/{}", std::process::id());
    let tried = || -> Result<bool, FabricError> {
        let listener = socket::listen(None, &name)?;
        let _client = socket::connect(None, &name)?;
        let accepted = socket::accept(rustix::fd::AsFd::as_fd(&listener));
        Ok(matches!(accepted, Ok(Accepted::Connection(..))))
    };
    let outcome = match tried() {
        Ok(true) => Ok(format!("seqpacket sockets in {} know the peer's user", names::folder())),
        Ok(false) => Err("a connection did not arrive".to_owned()),
        Err(reason) => Err(reason.to_string()),
    };
    let remedy = "set FARSIDE_RUNTIME_DIR to a folder of this user with mode 700, and run without a \
                  sandbox that forbids Unix sockets";
    check("name folder", true, outcome, remedy)
}

fn membarrier() -> Check {
    let outcome = if barrier::register() {
        Ok("membarrier: senders to an awake port need no fence".to_owned())
    } else {
        Err("membarrier is missing: each post pays for a full fence".to_owned())
    };
    check(
        "membarrier",
        false,
        outcome,
        "run Linux 4.16 or later, without a sandbox that forbids membarrier",
    )
}

fn descriptors() -> Check {
    const ENOUGH: u64 = 1024;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let outcome = match limit {
        Some(most) if most < ENOUGH => {
            Err(format!("only {most} descriptors; a link and a region take one each"))
        }
        Some(most) => Ok(format!("{most} descriptors")),
        None => Ok("no limit on descriptors".to_owned()),
    };
    check("descriptors", false, outcome, "ulimit -n 65536")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_works_has_no_remedy_and_what_does_not_has_one() {
        for check in probe() {
            assert_eq!(check.works, check.remedy.is_none(), "{check:?}");
            assert!(check.works || !check.needed, "{check:?}");
        }
    }
}
