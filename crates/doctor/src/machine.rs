//! Checks of the machine itself, which every fabric depends on.

use super::check::{Finding, Group, Rule};
use super::host::{Amount, word};
use super::lists::{first_in, overlap, parse, shown};
use super::subject::Subject;
use farside_command::output::bytes;

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "system",
        group: Group::Machine,
        why: "memory is mapped and shared by system calls that only 64-bit Linux has",
        inspect: system,
    },
    Rule {
        name: "memory",
        group: Group::Machine,
        why: "a node allocates its global memory at start and keeps it",
        inspect: memory,
    },
    Rule {
        name: "overcommit",
        group: Group::Machine,
        why: "with strict accounting the kernel refuses allocations although memory is free",
        inspect: overcommit,
    },
    Rule {
        name: "cores",
        group: Group::Machine,
        why: "a thread that waits for a peer on the same core also waits for the scheduler",
        inspect: cores,
    },
    Rule {
        name: "cpu_isolation",
        group: Group::Machine,
        why: "the scheduler does not balance threads over isolated processors: all share the first",
        inspect: cpu_isolation,
    },
    Rule {
        name: "frequency_governor",
        group: Group::Machine,
        why: "a processor in a low-power state between messages answers late",
        inspect: governor,
    },
    Rule {
        name: "clock",
        group: Group::Machine,
        why: "every poll of the engine reads the clock; a slow source costs a system call or a bus access",
        inspect: clock,
    },
    Rule {
        name: "processes",
        group: Group::Machine,
        why: "each node is a process with some threads",
        inspect: processes,
    },
    Rule {
        name: "open_files",
        group: Group::Machine,
        why: "a node keeps file descriptors for each peer: sockets, shared memory, event channels",
        inspect: open_files,
    },
    Rule {
        name: "transparent_huge_pages",
        group: Group::Machine,
        why: "large regions in small pages miss the TLB and the adapter's translation cache",
        inspect: transparent_huge_pages,
    },
    Rule {
        name: "reserved_huge_pages",
        group: Group::Machine,
        why: "only reserved huge pages are guaranteed to be available when a node starts",
        inspect: reserved_huge_pages,
    },
    Rule {
        name: "persistent_memory",
        group: Group::Machine,
        why: "only devdax memory can stay registered with an adapter: file systems move fsdax pages",
        inspect: persistent_memory,
    },
    Rule {
        name: "container",
        group: Group::Machine,
        why: "a container sees the host's adapters in sysfs, but may lack access to them",
        inspect: container,
    },
];

/// File descriptors that a node needs for each peer (sockets and shared memory), and independent of peers.
const FILES_PER_PEER: u64 = 8;
const FILES_OF_NODE: u64 = 64;
/// Generous estimate of the threads of one node process.
const THREADS_OF_NODE: u64 = 16;

fn system(subject: &Subject<'_>) -> Vec<Finding> {
    let kernel = |name: &str| subject.host.value(&format!("/proc/sys/kernel/{name}"));
    let system = kernel("ostype").unwrap_or_else(|| std::env::consts::OS.to_owned());
    let release = kernel("osrelease").unwrap_or_else(|| "of an unknown release".to_owned());
    // Older kernels do not report the architecture: assume that of this build.
    let machine = kernel("arch").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let found = format!("{system} {release}, {machine}");
    let linux = system.eq_ignore_ascii_case("linux");
    if linux && matches!(machine.as_str(), "x86_64" | "aarch64") {
        return Finding::ok(found).one();
    }
    Finding::failing(found, "run on 64-bit Linux").one()
}

fn memory(subject: &Subject<'_>) -> Vec<Finding> {
    let plan = &subject.plan;
    let need = plan.nodes.saturating_mul(plan.memory_bytes);
    let Some(available) = subject.host.meminfo_bytes("MemAvailable") else {
        return Finding::skipped("/proc/meminfo does not report available memory").one();
    };
    let group = cgroup_memory_left(subject);
    let left = available.min(group.unwrap_or(u64::MAX));
    let by =
        if group.is_some_and(|group| group <= available) { " (by the control group)" } else { "" };
    let total = subject.host.meminfo_bytes("MemTotal").unwrap_or(available);
    let found = format!("{} of {} left{by}, {} planned", bytes(left), bytes(total), bytes(need));
    if left >= need {
        return Finding::ok(found).one();
    }
    let each = (left / 2 / plan.nodes.max(1)) >> 20;
    let fix = if each == 0 {
        "end other programs, or use a machine with more memory".to_owned()
    } else {
        format!("farside up --nodes {} --memory-bytes {each}M", plan.nodes)
    };
    Finding::failing(found, fix).one()
}

/// Returns the folders of this process's control group and its ancestors, innermost first: version 2, mounted
/// alone or together with version 1 controllers.
fn cgroups(subject: &Subject<'_>) -> Vec<String> {
    let own = subject.host.text("/proc/self/cgroup").unwrap_or_default();
    let inside = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    folders(&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], inside)
}

/// Like [`cgroups`], for the memory controller of version 1.
fn memory_cgroups(subject: &Subject<'_>) -> Vec<String> {
    let own = subject.host.text("/proc/self/cgroup").unwrap_or_default();
    let inside = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, at)| at);
    folders(&["/sys/fs/cgroup/memory"], inside)
}

fn folders(mounts: &[&str], inside: &str) -> Vec<String> {
    let mut folders = Vec::new();
    let mut at = if inside.contains("..") { "/" } else { inside }.trim_end_matches('/');
    loop {
        folders.extend(mounts.iter().map(|mount| format!("{mount}{at}")));
        match at.rsplit_once('/') {
            Some((above, _)) => at = above,
            None => return folders,
        }
    }
}

/// Returns the content of a file in this process's control group and in each ancestor that has the file.
pub(crate) fn cgroup_files(subject: &Subject<'_>, name: &str) -> Vec<String> {
    let texts = cgroups(subject).into_iter();
    texts.filter_map(|folder| subject.host.text(&format!("{folder}/{name}"))).collect()
}

/// Returns the minimum memory left in this process's control group and its ancestors. The inactive page cache
/// does not count as used: the kernel reclaims it on demand.
fn cgroup_memory_left(subject: &Subject<'_>) -> Option<u64> {
    let left = |folder: &str, limit: &str, used: &str, cached: &str| {
        let limit = subject.host.number(&format!("{folder}/{limit}"))?;
        let used = subject.host.number(&format!("{folder}/{used}")).unwrap_or(0);
        let stat = subject.host.text(&format!("{folder}/memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(cached)?.trim().parse().ok());
        Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
    };
    let newer = cgroups(subject).into_iter();
    let newer = newer.filter_map(|at| left(&at, "memory.max", "memory.current", "inactive_file "));
    let older = memory_cgroups(subject).into_iter();
    let older = older.filter_map(|at| {
        left(&at, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    });
    newer.chain(older).min()
}

fn overcommit(subject: &Subject<'_>) -> Vec<Finding> {
    let mode = subject.host.number("/proc/sys/vm/overcommit_memory");
    let left = subject
        .host
        .meminfo_bytes("CommitLimit")
        .map(|limit| limit.saturating_sub(subject.host.meminfo_bytes("Committed_AS").unwrap_or(0)));
    let need = subject.plan.nodes.saturating_mul(subject.plan.memory_bytes);
    let finding = match (mode, left) {
        (Some(2), Some(left)) if left < need => Finding::failing(
            format!("strict, {} left to commit, {} planned", bytes(left), bytes(need)),
            "sudo sysctl vm.overcommit_memory=0",
        ),
        (Some(2), Some(left)) => Finding::ok(format!("strict, {} left to commit", bytes(left))),
        (Some(0 | 1), _) => Finding::ok("not strict"),
        _ => Finding::skipped("the kernel does not report its mode"),
    };
    finding.one()
}

fn cores(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(allowed) = subject.host.status("Cpus_allowed_list").and_then(|list| parse(&list))
    else {
        return Finding::skipped("/proc/self/status does not report processors").one();
    };
    let nodes = subject.plan.nodes;
    let group = cgroup_files(subject, "cpu.max").iter().filter_map(|text| permille(text)).min();
    let count = u64::try_from(allowed.len()).unwrap_or(u64::MAX);
    let permille = count.saturating_mul(1_000).min(group.unwrap_or(u64::MAX));
    let found = format!("{}.{} for {nodes} nodes", permille / 1_000, permille % 1_000 / 100);
    if permille >= nodes.saturating_mul(1_000) {
        return Finding::ok(found).one();
    }
    let fits = (permille / 1_000).max(1);
    let fix = format!(
        "farside up --nodes {fits}    # more nodes share cores: correct, but misses take longer"
    );
    Finding::warning(found, fix).one()
}

/// Parses `cpu.max` (`max 100000` or `150000 100000`: quota and period in us) into thousandths of a processor.
fn permille(text: &str) -> Option<u64> {
    let (time, period) = text.split_once(' ')?;
    let (time, period): (u64, u64) = (time.parse().ok()?, period.trim().parse().ok()?);
    time.checked_mul(1_000)?.checked_div(period)
}

fn cpu_isolation(subject: &Subject<'_>) -> Vec<Finding> {
    let isolated = subject.host.value("/sys/devices/system/cpu/isolated");
    let isolated = isolated.as_deref().and_then(parse).unwrap_or_default();
    if isolated.is_empty() {
        return Finding::ok("no processor is isolated").one();
    }
    let allowed = subject.host.status("Cpus_allowed_list").and_then(|list| parse(&list));
    let allowed = allowed.unwrap_or_default();
    let shared = overlap(&allowed, &isolated);
    let found = format!("{} isolated", shown(&isolated));
    if shared.len() < allowed.len() || allowed.len() < 2 {
        return Finding::ok(format!("{found}; this process may run on other processors")).one();
    }
    let fix = format!("taskset -c {} farside ...    # each node on one", first_in(&allowed));
    Finding::warning(format!("{found}, and this process may run on no others"), fix).one()
}

fn governor(subject: &Subject<'_>) -> Vec<Finding> {
    let folder = "/sys/devices/system/cpu";
    let mut governors: Vec<String> = Vec::new();
    for cpu in subject.host.names(folder).iter().filter(|name| name.starts_with("cpu")) {
        let file = format!("{folder}/{cpu}/cpufreq/scaling_governor");
        match subject.host.value(&file) {
            Some(governor) if !governors.contains(&governor) => governors.push(governor),
            Some(_) | None => {}
        }
    }
    if governors.is_empty() {
        return Finding::skipped("no cpufreq: the firmware or a hypervisor decides").one();
    }
    let found = governors.join(", ");
    if governors.iter().all(|governor| governor == "performance") {
        return Finding::ok(found).one();
    }
    Finding::note(found).fix("sudo cpupower frequency-set -g performance").one()
}

fn clock(subject: &Subject<'_>) -> Vec<Finding> {
    let folder = "/sys/devices/system/clocksource/clocksource0";
    let Some(source) = subject.host.value(&format!("{folder}/current_clocksource")) else {
        return Finding::skipped("the kernel does not report its source").one();
    };
    let slow =
        matches!(source.as_str(), "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "xen");
    if !slow {
        return Finding::ok(source).one();
    }
    let others = subject.host.value(&format!("{folder}/available_clocksource")).unwrap_or_default();
    if !others.split_whitespace().any(|other| other == "tsc") {
        let finding = Finding::warning(source, "add tsc=reliable to the kernel's command line");
        return finding.detail("the kernel found the TSC unstable").one();
    }
    Finding::warning(source, format!("echo tsc | sudo tee {folder}/current_clocksource")).one()
}

fn processes(subject: &Subject<'_>) -> Vec<Finding> {
    let need = THREADS_OF_NODE.saturating_mul(subject.plan.nodes);
    let Some((soft, _)) = subject.host.limit("Max processes") else {
        return Finding::skipped("/proc/self/limits does not report processes").one();
    };
    let groups = cgroup_files(subject, "pids.max");
    let group = groups.iter().filter_map(|text| text.parse::<u64>().ok()).min();
    let group = group.filter(|most| Amount::Of(*most) < soft);
    let most = group.map_or(soft, Amount::Of);
    let Amount::Of(most) = most else {
        return Finding::ok("no limit").one();
    };
    let found = format!("{most}, {need} needed");
    if most >= need {
        return Finding::ok(found).one();
    }
    match group {
        None => Finding::failing(found, format!("ulimit -u {}", need.max(1_024))).one(),
        Some(_) => Finding::failing(
            format!("{found} (by the control group)"),
            "sudo systemctl set-property user.slice TasksMax=infinity    # or: docker run --pids-limit=-1",
        )
        .one(),
    }
}

fn open_files(subject: &Subject<'_>) -> Vec<Finding> {
    let Some((soft, hard)) = subject.host.limit("Max open files") else {
        return Finding::skipped("/proc/self/limits does not report open files").one();
    };
    let nodes = subject.plan.nodes;
    let need = FILES_OF_NODE.saturating_add(FILES_PER_PEER.saturating_mul(nodes));
    let Amount::Of(now) = soft else {
        return Finding::ok("no limit").one();
    };
    let most = match hard {
        Amount::Of(most) => most.to_string(),
        Amount::Unlimited => "any number".to_owned(),
    };
    let found = format!("{now} of at most {most}, {need} needed for {nodes} nodes");
    if now >= need {
        return Finding::ok(found).one();
    }
    let fix = if hard >= Amount::Of(need) {
        format!("ulimit -n {need}")
    } else {
        format!("echo \"$USER hard nofile {need}\" | sudo tee -a /etc/security/limits.conf")
    };
    Finding::failing(found, fix).one()
}

fn transparent_huge_pages(subject: &Subject<'_>) -> Vec<Finding> {
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Some(text) = subject.host.value(file) else {
        return Finding::skipped("the kernel has no huge pages").one();
    };
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match chosen.map(|(chosen, _)| chosen) {
        Some(chosen @ ("always" | "madvise")) => Finding::ok(chosen).one(),
        Some("never") => Finding::warning("never", format!("echo madvise | sudo tee {file}")).one(),
        Some(_) | None => Finding::skipped(format!("not understood: {text}")).one(),
    }
}

fn reserved_huge_pages(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    let (Some(total), Some(size)) =
        (host.meminfo_bytes("HugePages_Total"), host.meminfo_bytes("Hugepagesize"))
    else {
        return Finding::skipped("the kernel has no huge pages").one();
    };
    let free = host.meminfo_bytes("HugePages_Free").unwrap_or(0);
    if total == 0 {
        let found = format!("none of {}; not needed", bytes(size));
        return Finding::ok(found).one();
    }
    let found = format!("{free} of {total} free, {} each", bytes(size));
    let held = total.saturating_mul(size);
    let available = host.meminfo_bytes("MemAvailable").unwrap_or(u64::MAX);
    if free > 0 && held > available {
        let fix = "sudo sysctl vm.nr_hugepages=0    # unless another program needs them";
        let finding = Finding::note(format!("{found}: more than all other available memory"));
        return finding.fix(fix).one();
    }
    Finding::ok(found).one()
}

/// Checks the namespaces of `/sys/bus/nd`, whose modes have other names in sysfs than in ndctl, and dax devices.
fn persistent_memory(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    let folder = "/sys/bus/nd/devices";
    let mut findings = Vec::new();
    for name in host.names(folder).into_iter().filter(|name| name.starts_with("namespace")) {
        let size = host.number(&format!("{folder}/{name}/size")).unwrap_or(0);
        // Each region keeps an empty namespace as the seed for the next one.
        if size == 0 {
            continue;
        }
        let mode = host.value(&format!("{folder}/{name}/mode")).unwrap_or_default();
        let reconfigure = format!(
            "sudo ndctl create-namespace -f -e {} --mode=devdax    # destroys its content",
            word(&name)
        );
        let size = bytes(size);
        let finding = match mode.as_str() {
            "dax" => Finding::ok(format!("devdax, {size}")),
            "memory" => Finding::note(format!("fsdax, {size}: for files, not for adapters"))
                .detail("long-term pins of fsdax pages are not permitted: ibv_reg_mr fails with EOPNOTSUPP")
                .fix(reconfigure),
            "safe" => Finding::note(format!("sector, {size}: a disk")).fix(reconfigure),
            "raw" => Finding::note(format!("raw, {size}: cannot be mapped")).fix(reconfigure),
            other => Finding::skipped(format!("mode not understood: `{other}`")),
        };
        findings.push(finding.of(name));
    }
    let dax = host.names("/dev").into_iter().filter(|name| name.starts_with("dax"));
    findings.extend(dax.map(|name| {
        let path = format!("/dev/{name}");
        match host.open(&path) {
            Ok(()) => Finding::ok("may be opened").of(name),
            Err(_) => Finding::note("may not be opened by this user")
                .fix(format!("sudo setfacl -m u:$USER:rw {}", word(&path)))
                .of(name),
        }
    }));
    if findings.is_empty() {
        return Finding::skipped("no persistent memory").one();
    }
    findings
}

fn container(subject: &Subject<'_>) -> Vec<Finding> {
    match subject.container() {
        None => Finding::ok("none detected").one(),
        Some(kind) => {
            Finding::note(format!("{kind}: it determines limits and visible devices")).one()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_quota_parses_to_thousandths_of_a_processor() {
        assert_eq!(permille("max 100000"), None);
        assert_eq!(permille("150000 100000"), Some(1_500));
        assert_eq!(permille("1 0"), None);
        assert_eq!(permille(""), None);
    }
}
