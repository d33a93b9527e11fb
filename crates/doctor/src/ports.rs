//! Checks of RDMA ports: state, GID table, MTU and counters.

use super::check::{Finding, Group, Rule, some};
use super::counters;
use super::host::word;
use super::rdma::{Gid, Port, Transport, is_up};
use super::software::NO_DEVICE;
use super::subject::Subject;
use farside_base::{GidChoice, GidReach, GidReason, GidRejection, NoGid, choose_gid, why_not_gid};

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "port_state",
        group: Group::RdmaPort,
        why: "only an ACTIVE port with its link up carries application packets",
        inspect: port_state,
    },
    Rule {
        name: "port_rate",
        group: Group::RdmaPort,
        why: "a link that lost lanes or trained at a lower speed still works, but slowly",
        inspect: port_rate,
    },
    Rule {
        name: "subnet_manager",
        group: Group::RdmaPort,
        why: "an InfiniBand port has no LID until a subnet manager assigns one",
        inspect: subnet_manager,
    },
    Rule {
        name: "gid_table",
        group: Group::RdmaPort,
        why: "a connection that uses the wrong GID times out without an error from the adapter",
        inspect: gid_table,
    },
    Rule {
        name: "port_netdev",
        group: Group::RdmaPort,
        why: "a RoCE or iWARP port takes its addresses, routes and MTU from its network device",
        inspect: port_netdev,
    },
    Rule {
        name: "roce_mtu",
        group: Group::RdmaPort,
        why: "large transfers are split into packets of this size, and adapters have a fixed cost per packet",
        inspect: roce_mtu,
    },
    Rule {
        name: "link_errors",
        group: Group::RdmaPort,
        why: "a bad cable or connector shows in these counters first",
        inspect: |subject| each_port(subject, |port| counters::link_errors(subject.host, port)),
    },
    Rule {
        name: "retransmissions",
        group: Group::RdmaPort,
        why: "each lost packet stalls its connection for the adapter's retransmission timeout, milliseconds or more",
        inspect: |subject| each_port(subject, |port| counters::retransmissions(subject.host, port)),
    },
    Rule {
        name: "flow_control",
        group: Group::RdmaPort,
        why: "without ECN or PFC a congested Ethernet drops packets, and RoCE recovers from loss slowly",
        inspect: |subject| each_port(subject, |port| counters::flow_control(subject.host, port)),
    },
];

/// Returns one finding for each port; [`NO_DEVICE`] if there is none.
fn each_port(subject: &Subject<'_>, inspect: impl Fn(&Port) -> Finding) -> Vec<Finding> {
    let ports = subject.devices.iter().flat_map(|device| &device.ports);
    let findings: Vec<_> = ports.map(|port| inspect(port).of(port.name.clone())).collect();
    if findings.is_empty() { Finding::skipped(NO_DEVICE).one() } else { findings }
}

/// Lowers a failure to a warning if another port of the machine works: adapters often have an unused port.
fn unless_another_works(subject: &Subject<'_>, port: &Port, finding: Finding) -> Finding {
    if another_works(subject, port) { finding.at_most_warning() } else { finding }
}

fn another_works(subject: &Subject<'_>, port: &Port) -> bool {
    let mut ports = subject.devices.iter().flat_map(|device| &device.ports);
    ports.any(|other| other.name != port.name && other.works_here())
}

fn port_state(subject: &Subject<'_>) -> Vec<Finding> {
    each_port(subject, |port| {
        let Some((number, state)) = &port.state else {
            return Finding::skipped("the device reports no state");
        };
        let (phys, phys_name) = match &port.phys_state {
            Some((number, name)) => (*number, name.as_str()),
            None => (0, "unknown"),
        };
        let found = format!("{state}, physical state {phys_name}");
        if port.is_active() {
            return Finding::ok(found);
        }
        unless_another_works(subject, port, Finding::failing(found, bring_up(port, *number, phys)))
    })
}

/// Returns the command that brings a port up, by its logical and physical state.
fn bring_up(port: &Port, state: u64, phys: u64) -> String {
    let Port { device, number, .. } = port;
    match (port.transport, state, phys) {
        (Transport::InfiniBand, 2 | 3, _) => {
            "sudo systemctl start opensm    # on one machine of the subnet, unless a switch runs it"
                .to_owned()
        }
        (Transport::InfiniBand, _, 3) => {
            format!("sudo ibportstate -C {} -D 0 {} enable", word(device), word(number))
        }
        (Transport::InfiniBand, _, 1 | 2) => {
            "plug in the cable, or enable the port at the other end (Polling: no answer from it)"
                .to_owned()
        }
        _ => match &port.netdev {
            Some(netdev) => {
                format!("sudo ip link set {} up    # and plug in the cable", word(netdev))
            }
            None => "sudo rdma link show    # names the network device to bring up".to_owned(),
        },
    }
}

/// Checks `rate`, active speed times active width: `100 Gb/sec (4X EDR)`.
fn port_rate(subject: &Subject<'_>) -> Vec<Finding> {
    each_port(subject, |port| {
        let Some(rate) = subject.host.value(&port.file("rate")) else {
            return Finding::skipped("the device reports no rate");
        };
        if !port.is_active() {
            return Finding::skipped("the port is not active");
        }
        if port.software {
            return Finding::skipped(format!(
                "{rate} is nominal: the network device determines the rate"
            ));
        }
        let lanes = rate.split_once('(').and_then(|(_, rest)| rest.split_once('X'));
        match (port.transport, lanes.map(|(lanes, _)| lanes), deci_gigabits(&rate)) {
            (Transport::InfiniBand, Some("1" | "2"), _) => Finding::warning(
                format!("{rate}: not all lanes are up"),
                format!(
                    "iblinkinfo -C {} -P {}    # then reseat or replace the cable",
                    word(&port.device),
                    word(&port.number)
                ),
            ),
            (_, _, Some(tenths)) if tenths < 100 => Finding::warning(
                format!("{rate}: no faster than TCP"),
                "check cable, module and the switch's port speed",
            ),
            (_, _, Some(_)) => Finding::ok(rate),
            (_, _, None) => Finding::skipped(format!("not understood: `{rate}`")),
        }
    })
}

/// Parses `2.5 Gb/sec (1X SDR)` into tenths of Gb/s.
pub(crate) fn deci_gigabits(rate: &str) -> Option<u64> {
    let (number, _) = rate.split_once(" Gb/sec")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, tenths): (u64, u64) = (whole.parse().ok()?, tenths.parse().ok()?);
    whole.checked_mul(10)?.checked_add(tenths.min(9))
}

fn subnet_manager(subject: &Subject<'_>) -> Vec<Finding> {
    each_port(subject, |port| {
        if port.transport != Transport::InfiniBand {
            return Finding::skipped("only InfiniBand has one");
        }
        // 5: LinkUp
        if port.phys_state.as_ref().is_none_or(|(number, _)| *number != 5) {
            return Finding::skipped("no link");
        }
        let lid = subject.host.number(&port.file("lid"));
        let sm_lid = subject.host.number(&port.file("sm_lid"));
        let (Some(lid), Some(sm_lid)) = (lid, sm_lid) else {
            return Finding::skipped("the device reports no LID");
        };
        let found = format!("LID {lid}, subnet manager at LID {sm_lid}");
        // 0 is no LID; a port that was never configured may report 0xffff, the permissive LID.
        if lid == 0 || lid == 0xffff || sm_lid == 0 {
            let fix = "sudo systemctl start opensm    # on one machine of the subnet, unless a switch runs it";
            return unless_another_works(subject, port, Finding::failing(found, fix));
        }
        Finding::ok(found)
    })
}

/// Maximum number of table entries that are printed.
const ENTRIES_SHOWN_MAX: usize = 32;

fn gid_table(subject: &Subject<'_>) -> Vec<Finding> {
    each_port(subject, |port| {
        let entries: Vec<_> = port.gids.iter().map(Gid::entry).collect();
        let choice = choose_gid(&entries, None);
        let finding = judged(port, choice);
        let chosen = choice.ok().and_then(|choice| {
            let entry = entries.iter().find(|entry| entry.index == choice.index)?;
            Some((entry, choice.reason))
        });
        let line = |gid: &Gid| {
            let entry = gid.entry();
            let netdev = gid.netdev.as_deref().unwrap_or("-");
            let kind = entry.kind.name();
            let verdict = match why_not_gid(&entry, chosen) {
                None => "chosen".to_owned(),
                Some(why) => format!("rejected: {why}"),
            };
            format!("index {}: {} {kind} {netdev}: {verdict}", gid.index, gid.address())
        };
        let more = port.gids.len().saturating_sub(ENTRIES_SHOWN_MAX);
        let more = (more > 0).then(|| format!("and {more} more"));
        finding.details(port.gids.iter().take(ENTRIES_SHOWN_MAX).map(line)).details(more)
    })
}

/// Returns the finding for the chosen GID, or for the reason why none is usable.
fn judged(port: &Port, choice: Result<GidChoice, NoGid>) -> Finding {
    let netdev = word(port.netdev.as_deref().unwrap_or("DEVICE"));
    let address = || format!("sudo ip addr add ADDRESS/PREFIX dev {netdev}");
    let GidChoice { index, reason } = match choice {
        Ok(choice) => choice,
        Err(NoGid::Empty) if port.transport == Transport::Iwarp => {
            return Finding::skipped("iWARP connects by IP address, without this table");
        }
        Err(why @ NoGid::NoneUsable(GidRejection::NetdevDown)) => {
            return Finding::failing(why.to_string(), format!("sudo ip link set {netdev} up"));
        }
        Err(why) if port.transport == Transport::InfiniBand => {
            let fix = "sudo systemctl restart opensm    # on the machine that runs it";
            return Finding::failing(why.to_string(), fix);
        }
        Err(why) => return Finding::failing(why.to_string(), address()),
    };
    let gid = port.gids.iter().find(|gid| gid.index == index);
    let shown = gid.map(Gid::address).unwrap_or_default();
    let others = match port.gids.len().saturating_sub(1) {
        0 => "the only one".to_owned(),
        others => format!("{} rejected", some(others, "other")),
    };
    let found = format!("index {index}, {shown}: {reason}; {others}");
    match reason {
        GidReason::Best(farside_base::GidKind::RoceV1, _) => {
            let fix = "update firmware and driver to ones with RoCE v2 (mstflint -d DEVICE query), or use such an adapter";
            Finding::warning(found, fix)
        }
        GidReason::Best(farside_base::GidKind::RoceV2, GidReach::LinkLocal) => {
            Finding::warning(found, address())
        }
        GidReason::Best(..) | GidReason::Asked => Finding::ok(found),
    }
}

fn port_netdev(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    each_port(subject, |port| {
        if !matches!(port.transport, Transport::Roce | Transport::Iwarp) {
            return Finding::skipped("only RoCE and iWARP ports have one");
        }
        let Some(netdev) = &port.netdev else {
            return Finding::failing(
                "no network device in this network namespace belongs to it",
                "run in the network namespace of the device: docker run --network=host ...",
            );
        };
        let folder = format!("/sys/class/net/{netdev}");
        if !port.here {
            let found = format!("{netdev} is in another network namespace");
            if another_works(subject, port) {
                return Finding::note(found);
            }
            return Finding::failing(
                found,
                "sudo nsenter --net=/proc/1/ns/net ...    # or: docker run --network=host ...",
            );
        }
        let mtu = host.number(&format!("{folder}/mtu"));
        let mtu = mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
        if is_up(host, netdev) != Some(false) {
            return Finding::ok(format!("{netdev} is up{mtu}"));
        }
        let wanted = host.number(&format!("{folder}/flags")).is_some_and(|flags| flags & 1 == 1);
        let finding = if wanted {
            Finding::failing(
                format!("{netdev} has no carrier{mtu}"),
                "plug in the cable, or enable the port at the switch",
            )
        } else {
            Finding::failing(
                format!("{netdev} is down{mtu}"),
                format!("sudo ip link set {} up", word(netdev)),
            )
        };
        unless_another_works(subject, port, finding)
    })
}

/// Bytes that RoCE v2 adds to a packet: GRH or IP, UDP, BTH, and the largest extension headers
/// (Linux, `iboe_get_mtu`).
const ROCE_HEADERS_BYTES: u64 = 40 + 8 + 12 + 4 + 28 + 4;
/// Netdev MTU recommended for a RoCE MTU of 4,096; a little above the minimum of 4,192.
const NETDEV_MTU_FOR_4096: u64 = 4_200;

/// Returns the RoCE MTU for a network device's MTU: a power of two from 256 to 4,096, or 0 if none fits.
pub(crate) fn roce_mtu_of(netdev_mtu: u64) -> u64 {
    let left = netdev_mtu.saturating_sub(ROCE_HEADERS_BYTES);
    [4_096, 2_048, 1_024, 512, 256].into_iter().find(|mtu| *mtu <= left).unwrap_or(0)
}

fn roce_mtu(subject: &Subject<'_>) -> Vec<Finding> {
    each_port(subject, |port| {
        if port.transport != Transport::Roce {
            return Finding::skipped("only RoCE derives its MTU from a network device");
        }
        let mtu = port.netdev.as_ref().and_then(|netdev| {
            subject.host.number(&format!("/sys/class/net/{netdev}/mtu")).map(|mtu| (netdev, mtu))
        });
        let Some((netdev, mtu)) = mtu else {
            return Finding::skipped("the MTU of its network device is not known");
        };
        let roce = roce_mtu_of(mtu);
        let found = format!("{roce} (network device {mtu})");
        let fix = |mtu: u64| {
            format!(
                "sudo ip link set {} mtu {mtu}    # and at the switch and the peers",
                word(netdev)
            )
        };
        match roce {
            4_096 => Finding::ok(found),
            1_024 | 2_048 => Finding::note(format!("{found}; 4096 needs {NETDEV_MTU_FOR_4096}"))
                .fix(fix(NETDEV_MTU_FOR_4096)),
            0 => Finding::failing(format!("none fits (network device {mtu})"), fix(1_500)),
            _ => Finding::warning(format!("{found}: below 1024"), fix(1_500)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roce_mtu_excludes_headers() {
        let cases = [
            (9_000, 4_096),
            (4_200, 4_096),
            (4_192, 4_096),
            (4_191, 2_048),
            (1_500, 1_024),
            (1_119, 512),
            (576, 256),
            (100, 0),
            (0, 0),
            (u64::MAX, 4_096),
        ];
        for (netdev, roce) in cases {
            assert_eq!(roce_mtu_of(netdev), roce, "{netdev}");
        }
    }

    #[test]
    fn rate_parses_to_tenths_of_gigabits() {
        assert_eq!(deci_gigabits("100 Gb/sec (4X EDR)"), Some(1_000));
        assert_eq!(deci_gigabits("2.5 Gb/sec (1X SDR)"), Some(25));
        assert_eq!(deci_gigabits("10 Gb/sec (4X)"), Some(100));
        for junk in ["", "fast", "1e9 Gb/sec", "-5 Gb/sec", "99999999999999999999 Gb/sec"] {
            assert_eq!(deci_gigabits(junk), None, "{junk}");
        }
    }
}
