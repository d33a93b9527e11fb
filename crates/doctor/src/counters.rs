//! Checks of port counters. The counters are totals since the port came up, without a time, and are therefore
//! judged relative to the packets received; a second run shows whether they grow.

use super::check::Finding;
use super::host::{Host, word};
use super::rdma::{Port, Transport};

/// Link errors, in `counters/`.
const LINK: &[&str] = &[
    "symbol_error",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
];
/// Link errors of a network device, in its `statistics/`.
const NETDEV_LINK: &[&str] = &["rx_crc_errors", "rx_frame_errors"];

/// Packets lost or retransmitted, in `hw_counters/` of mlx5, rxe, bnxt_re, irdma and efa, in this order.
const LOSS: &[&str] = &[
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
    "rx_icrc_encapsulated",
    "out_of_seq_request",
    "rcvd_seq_err",
    "completer_retry_err",
    "retry_exceeded_err",
    "to_retransmits",
    "seq_err_naks_rcvd",
    "rnr_naks_rcvd",
    "tcpRetransSegs",
    "ip4InDiscards",
    "rx_drops",
    "retrans_pkts",
    "retrans_timeout_events",
];
/// Packets discarded, in `counters/` and in the network device's `statistics/`.
const DISCARDS: &[&str] = &["port_xmit_discards"];
const NETDEV_DISCARDS: &[&str] = &["rx_missed_errors", "rx_over_errors", "rx_fifo_errors"];

/// Congestion notifications, in `hw_counters/` of mlx5, bnxt_re and irdma.
const NOTIFIED: &[&str] = &[
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rx_ecn_marked_pkts",
    "tx_cnp_pkts",
    "rx_cnp_pkts",
    "RxECNMrkd",
    "cnpSent",
    "cnpHandled",
];

/// More than one error in this number of packets is a warning.
const PACKETS_PER_ERROR: u64 = 100_000;

/// Returns the counters that exist in a folder, with their values.
fn read(host: &dyn Host, folder: &str, names: &[&'static str]) -> Vec<(&'static str, u64)> {
    let value = |name: &&'static str| Some((*name, host.number(&format!("{folder}/{name}"))?));
    names.iter().filter_map(value).collect()
}

fn statistics(host: &dyn Host, port: &Port, names: &[&'static str]) -> Vec<(&'static str, u64)> {
    let folder = port.netdev.as_ref().map(|netdev| format!("/sys/class/net/{netdev}/statistics"));
    folder.map(|folder| read(host, &folder, names)).unwrap_or_default()
}

/// Returns the packets that the port has received, from the first counter available.
fn received(host: &dyn Host, port: &Port) -> u64 {
    let folders = ["counters/port_rcv_packets", "hw_counters/rcvd_pkts", "hw_counters/rx_pkts"];
    let own = folders.iter().find_map(|file| host.number(&port.file(file)).filter(|n| *n > 0));
    let of_netdev = || statistics(host, port, &["rx_packets"]).first().map(|(_, count)| *count);
    own.or_else(of_netdev).unwrap_or(0)
}

fn judged(
    counters: Vec<(&'static str, u64)>,
    packets: u64,
    fix: impl FnOnce() -> String,
) -> Finding {
    if counters.is_empty() {
        return Finding::skipped("the driver has no such counters");
    }
    let total = counters.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    if total == 0 {
        return Finding::ok(format!("none, {packets} packets received"));
    }
    let shown: Vec<_> = counters
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let found = format!("{} of {packets} packets received", shown.join(", "));
    if total.saturating_mul(PACKETS_PER_ERROR) > packets {
        return Finding::warning(found, fix());
    }
    Finding::note(found)
}

pub(crate) fn link_errors(host: &dyn Host, port: &Port) -> Finding {
    let mut counters = read(host, &port.file("counters"), LINK);
    counters.extend(statistics(host, port, NETDEV_LINK));
    let downed = host.number(&port.file("counters/link_downed")).unwrap_or(0);
    let fix = || match port.transport {
        Transport::InfiniBand => format!(
            "ibqueryerrors -C {} -P {}    # run twice: if it grows, reseat or replace the cable",
            word(&port.device),
            word(&port.number)
        ),
        _ => match &port.netdev {
            Some(netdev) => {
                let netdev = word(netdev);
                format!(
                    "ethtool -S {netdev} | grep -i err    # run twice: if it grows, replace the cable"
                )
            }
            None => "reseat or replace the cable".to_owned(),
        },
    };
    let finding = judged(counters, received(host, port), fix);
    match downed {
        0 => finding,
        1 => finding.detail("the link went down once"),
        _ => finding.detail(format!("the link went down {downed} times")),
    }
}

pub(crate) fn retransmissions(host: &dyn Host, port: &Port) -> Finding {
    let mut counters = read(host, &port.file("hw_counters"), LOSS);
    counters.extend(read(host, &port.file("counters"), DISCARDS));
    counters.extend(statistics(host, port, NETDEV_DISCARDS));
    judged(counters, received(host, port), || match (port.transport, &port.netdev) {
        (Transport::Roce, Some(netdev)) => {
            format!(
                "sudo mlnx_qos -i {} --pfc 0,0,0,1,0,0,0,0 --trust dscp    # or ECN; also at the switch",
                word(netdev)
            )
        }
        _ => "run this again under load: if it grows, check the switch for discards".to_owned(),
    })
}

pub(crate) fn flow_control(host: &dyn Host, port: &Port) -> Finding {
    if port.transport != Transport::Roce {
        return Finding::skipped("only RoCE needs it configured");
    }
    if port.software {
        return Finding::skipped("soft-RoCE tolerates packet loss");
    }
    let Some(netdev) = &port.netdev else {
        return Finding::skipped("its network device is not known");
    };
    let counters = read(host, &port.file("hw_counters"), NOTIFIED);
    let notified: Vec<_> = counters.iter().filter(|(_, count)| *count > 0).collect();
    let shown: Vec<_> = notified.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let enabled = ecn_priorities(host, netdev);
    match enabled.as_deref() {
        Some([]) => Finding::warning(
            "ECN is off for all priorities",
            format!(
                "echo 1 | sudo tee /sys/class/net/{}/ecn/roce_{{np,rp}}/enable/3",
                word(netdev)
            ),
        ),
        Some(priorities) => {
            let list: Vec<_> = priorities.iter().map(u64::to_string).collect();
            Finding::ok(format!("ECN on for priorities {}", list.join(","))).details(shown)
        }
        None if !shown.is_empty() => Finding::ok(format!("ECN works: {}", shown.join(", "))),
        None => {
            let finding = Finding::skipped("the driver does not report it in sysfs");
            finding.detail(format!("see dcb pfc show dev {}, and the switch", word(netdev)))
        }
    }
}

/// Returns the priorities with both notification point and reaction point enabled; `None` if the driver lacks these
/// files (NVIDIA's out-of-tree driver has them).
fn ecn_priorities(host: &dyn Host, netdev: &str) -> Option<Vec<u64>> {
    let folder = format!("/sys/class/net/{netdev}/ecn");
    if !host.exists(&format!("{folder}/roce_np")) {
        return None;
    }
    let on = |priority: &u64| {
        ["roce_np", "roce_rp"]
            .iter()
            .all(|side| host.number(&format!("{folder}/{side}/enable/{priority}")) == Some(1))
    };
    Some((0..8).filter(on).collect())
}
