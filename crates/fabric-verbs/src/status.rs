//! Texts for the numbers of libibverbs and librdmacm: for each completion status, asynchronous event
//! and connection event its cause, which side is at fault, and the remedy.
//!
//! `IBV_WC_WR_FLUSH_ERR` is never a cause: the first failed completion of a link tells what happened.

use farside_base::CompletionStatus;

/// Which side is at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// No side: a success, or a consequence of another failure.
    NoFault,
    /// The program at this end, or Farside.
    Here,
    /// The program at the other end.
    Peer,
    /// The network between the ends: cables, switches, configuration.
    Network,
    /// The adapter, its firmware or driver.
    Adapter,
}

impl Blame {
    /// Returns it in a word or two.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoFault => "no fault",
            Self::Here => "fault of this side",
            Self::Peer => "fault of the peer",
            Self::Network => "fault of the network",
            Self::Adapter => "fault of the adapter",
        }
    }
}

/// One meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusRow {
    /// Its number in the header.
    pub number: u32,
    /// Its name in the header.
    pub name: &'static str,
    /// The cause.
    pub cause: &'static str,
    /// Which side is at fault.
    pub blame: Blame,
    /// The remedy.
    pub remedy: &'static str,
    /// How a request that it ends completes, or the first one of a link that it ends.
    pub status: CompletionStatus,
}

impl std::fmt::Display for StatusRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({}); {}", self.name, self.cause, self.blame.name(), self.remedy)
    }
}

const fn row(
    number: u32,
    name: &'static str,
    blame: Blame,
    status: CompletionStatus,
    [cause, remedy]: [&'static str; 2],
) -> StatusRow {
    StatusRow { number, name, cause, blame, remedy, status }
}

use Blame::{Adapter, Here, Network, NoFault, Peer};
use CompletionStatus::{
    Broken, Flushed, LengthExceeded, PeerLost, ReceiverNotReady, RemoteAccess, Success, Unreachable,
};

const REPORT: &str = "report it with the device's name and firmware";

/// `enum ibv_wc_status`, in its order.
#[rustfmt::skip]
pub const COMPLETIONS: &[StatusRow] = &[
    row(0, "IBV_WC_SUCCESS", NoFault, Success, ["done", "nothing"]),
    row(1, "IBV_WC_LOC_LEN_ERR", Peer, LengthExceeded, ["a message is longer than its receive, or a request longer than the device's maximum", "post longer receives, or send shorter messages"]),
    row(2, "IBV_WC_LOC_QP_OP_ERR", Adapter, Broken, ["the adapter found the request or the queue pair inconsistent; a device without an operation that its driver declares says so too", REPORT]),
    row(3, "IBV_WC_LOC_EEC_OP_ERR", Adapter, Broken, ["the end-to-end context is inconsistent, which reliable connections do not have", REPORT]),
    row(4, "IBV_WC_LOC_PROT_ERR", Here, Broken, ["a local slice is not, or no longer, registered for the access of the request", "deregister a region only after the requests that use it"]),
    row(5, "IBV_WC_WR_FLUSH_ERR", NoFault, Flushed, ["an earlier request of the link failed, or the link ended", "check the first failure of the link"]),
    row(6, "IBV_WC_MW_BIND_ERR", Here, Broken, ["a memory window could not be bound", REPORT]),
    row(7, "IBV_WC_BAD_RESP_ERR", Network, Broken, ["the peer's adapter answered with something unexpected", "check both adapters' firmware, and devices on the path that change packets"]),
    row(8, "IBV_WC_LOC_ACCESS_ERR", Here, Broken, ["a WRITE with immediate reached local memory that it may not change", REPORT]),
    row(9, "IBV_WC_REM_INV_REQ_ERR", Here, RemoteAccess, ["the peer's adapter found the request invalid: a message longer than its receive, a misaligned word, or an operation that it lacks", "compare the request with the peer's receives and capabilities"]),
    row(10, "IBV_WC_REM_ACCESS_ERR", Here, RemoteAccess, ["the remote region, its bounds, its permission or its key did not allow the request", "check the access that the region was registered with, and whether it was deregistered"]),
    row(11, "IBV_WC_REM_OP_ERR", Peer, Broken, ["the peer's adapter could not execute the request; for a message, some adapters report this if it is longer than its receive", "compare messages with the peer's receives; check the peer's kernel log; reconnect"]),
    row(12, "IBV_WC_RETRY_EXC_ERR", Network, Unreachable, ["the peer's adapter did not answer any retry", "check that the peer runs, its port, the GID and MTU of the path, and firewalls for UDP port 4791"]),
    row(13, "IBV_WC_RNR_RETRY_EXC_ERR", Peer, ReceiverNotReady, ["the peer had posted no receive in time", "post more receives at the peer, or send less"]),
    row(14, "IBV_WC_LOC_RDD_VIOL_ERR", Adapter, Broken, ["a reliable datagram domain does not fit, which reliable connections do not have", REPORT]),
    row(15, "IBV_WC_REM_INV_RD_REQ_ERR", Adapter, Broken, ["the peer refused a reliable datagram, which reliable connections do not send", REPORT]),
    row(16, "IBV_WC_REM_ABORT_ERR", Peer, PeerLost, ["the peer aborted the operation", "reconnect"]),
    row(17, "IBV_WC_INV_EECN_ERR", Adapter, Broken, ["an end-to-end context has an impossible number, which reliable connections do not have", REPORT]),
    row(18, "IBV_WC_INV_EEC_STATE_ERR", Adapter, Broken, ["an end-to-end context is in the wrong state, which reliable connections do not have", REPORT]),
    row(19, "IBV_WC_FATAL_ERR", Adapter, Broken, ["the adapter had a fatal error", "check the kernel log; reset the device"]),
    row(20, "IBV_WC_RESP_TIMEOUT_ERR", Network, Unreachable, ["the peer did not answer in time", "as for retries that are used up"]),
    row(21, "IBV_WC_GENERAL_ERR", Adapter, Broken, ["the transport failed for a reason of its own", "check the vendor error and the kernel log"]),
    row(22, "IBV_WC_TM_ERR", Adapter, Broken, ["matching of tags failed, which Farside does not use", REPORT]),
    row(23, "IBV_WC_TM_RNDV_INCOMPLETE", Adapter, Broken, ["a rendezvous of matched tags is incomplete, which Farside does not use", REPORT]),
];

/// `enum ibv_event_type`, in its order.
#[rustfmt::skip]
pub const EVENTS: &[StatusRow] = &[
    row(0, "IBV_EVENT_CQ_ERR", Here, Broken, ["a completion queue has overrun", REPORT]),
    row(1, "IBV_EVENT_QP_FATAL", Adapter, Broken, ["a queue pair failed in the adapter", "check the kernel log; reconnect"]),
    row(2, "IBV_EVENT_QP_REQ_ERR", Peer, Flushed, ["the peer sent a request that is invalid on this connection", "check the peer's first failure; reconnect"]),
    row(3, "IBV_EVENT_QP_ACCESS_ERR", Peer, Flushed, ["the peer tried to access memory without permission", "check the peer's first failure; reconnect"]),
    row(4, "IBV_EVENT_COMM_EST", NoFault, Success, ["a first packet arrived before this side learned that the peer is ready", "nothing"]),
    row(5, "IBV_EVENT_SQ_DRAINED", NoFault, Success, ["the send queue has run empty", "nothing"]),
    row(6, "IBV_EVENT_PATH_MIG", NoFault, Success, ["the connection migrated to its alternate path", "check the primary path"]),
    row(7, "IBV_EVENT_PATH_MIG_ERR", Network, Unreachable, ["the connection could not migrate to its alternate path", "check both paths"]),
    row(8, "IBV_EVENT_DEVICE_FATAL", Adapter, Broken, ["the device failed or was removed", "check the kernel log; reset the device and reopen the fabric"]),
    row(9, "IBV_EVENT_PORT_ACTIVE", NoFault, Success, ["the port is up", "nothing"]),
    row(10, "IBV_EVENT_PORT_ERR", Network, Unreachable, ["the port is down", "check the cable, the switch's port and the network device"]),
    row(11, "IBV_EVENT_LID_CHANGE", Network, Unreachable, ["the subnet manager changed the port's LID", "reconnect"]),
    row(12, "IBV_EVENT_PKEY_CHANGE", Network, Unreachable, ["the subnet manager changed the port's partitions", "check that the port is still in the peer's partition"]),
    row(13, "IBV_EVENT_SM_CHANGE", NoFault, Success, ["another subnet manager has taken over", "nothing"]),
    row(14, "IBV_EVENT_SRQ_ERR", Adapter, Broken, ["a shared receive queue failed in the adapter", "check the kernel log; reopen the port"]),
    row(15, "IBV_EVENT_SRQ_LIMIT_REACHED", NoFault, Success, ["a shared receive queue runs low", "post more receives"]),
    row(16, "IBV_EVENT_QP_LAST_WQE_REACHED", NoFault, Success, ["a failed queue pair takes no more receives from its shared queue", "nothing"]),
    row(17, "IBV_EVENT_CLIENT_REREGISTER", NoFault, Success, ["the subnet manager asks for new registrations", "nothing"]),
    row(18, "IBV_EVENT_GID_CHANGE", Network, Unreachable, ["the port's addresses changed", "reconnect, which resolves the address again"]),
    row(19, "IBV_EVENT_WQ_FATAL", Adapter, Broken, ["a work queue failed in the adapter, which Farside does not use", REPORT]),
    row(20, "IBV_EVENT_DEVICE_SPEED_CHANGE", NoFault, Success, ["the port's speed changed", "check the cable if it became slower"]),
];

/// `enum rdma_cm_event_type`, in its order.
#[rustfmt::skip]
pub const CONNECTIONS: &[StatusRow] = &[
    row(0, "RDMA_CM_EVENT_ADDR_RESOLVED", NoFault, Success, ["the address resolves to a device", "nothing"]),
    row(1, "RDMA_CM_EVENT_ADDR_ERROR", Network, Unreachable, ["the address resolves to no RDMA device", "check routes, and that the address is on an RDMA port's network device"]),
    row(2, "RDMA_CM_EVENT_ROUTE_RESOLVED", NoFault, Success, ["the route is resolved", "nothing"]),
    row(3, "RDMA_CM_EVENT_ROUTE_ERROR", Network, Unreachable, ["there is no route to the address", "check the subnet manager, or the routes"]),
    row(4, "RDMA_CM_EVENT_CONNECT_REQUEST", NoFault, Success, ["a peer wants to connect", "nothing"]),
    row(5, "RDMA_CM_EVENT_CONNECT_RESPONSE", NoFault, Success, ["the peer has answered", "nothing"]),
    row(6, "RDMA_CM_EVENT_CONNECT_ERROR", Network, Unreachable, ["the connection could not be made", "try again; check both sides' kernel logs"]),
    row(7, "RDMA_CM_EVENT_UNREACHABLE", Network, Unreachable, ["the peer did not answer", "check that the peer runs, and firewalls"]),
    row(8, "RDMA_CM_EVENT_REJECTED", Peer, PeerLost, ["the peer refused, or does not listen", "check the peer"]),
    row(9, "RDMA_CM_EVENT_ESTABLISHED", NoFault, Success, ["connected", "nothing"]),
    row(10, "RDMA_CM_EVENT_DISCONNECTED", Peer, PeerLost, ["the peer has disconnected", "nothing, or reconnect"]),
    row(11, "RDMA_CM_EVENT_DEVICE_REMOVAL", Adapter, Broken, ["the device was removed", "reopen the fabric when it is back"]),
    row(12, "RDMA_CM_EVENT_MULTICAST_JOIN", NoFault, Success, ["joined a group, which Farside does not", "nothing"]),
    row(13, "RDMA_CM_EVENT_MULTICAST_ERROR", Network, Unreachable, ["a group could not be joined, which Farside does not", REPORT]),
    row(14, "RDMA_CM_EVENT_ADDR_CHANGE", Network, Unreachable, ["the network device below the connection has another hardware address", "reconnect"]),
    row(15, "RDMA_CM_EVENT_TIMEWAIT_EXIT", NoFault, Success, ["the connection's numbers may be used again", "nothing"]),
    row(16, "RDMA_CM_EVENT_ADDRINFO_RESOLVED", NoFault, Success, ["the name was looked up", "nothing"]),
    row(17, "RDMA_CM_EVENT_ADDRINFO_ERROR", Network, Unreachable, ["the name could not be looked up", "check its spelling, and the name service"]),
    row(18, "RDMA_CM_EVENT_USER", NoFault, Success, ["an event of the program's own, which Farside does not send", "nothing"]),
    row(19, "RDMA_CM_EVENT_INTERNAL", NoFault, Success, ["an event of the library's own", "nothing"]),
];

/// The row for numbers of a newer library.
const UNKNOWN: StatusRow = row(
    u32::MAX,
    "unknown",
    Adapter,
    Broken,
    ["a number that this version of Farside does not know", "use a newer Farside"],
);

fn find(table: &[StatusRow], number: u32) -> StatusRow {
    usize::try_from(number).ok().and_then(|at| table.get(at)).copied().unwrap_or(UNKNOWN)
}

/// Returns the meaning of an `ibv_wc_status`.
pub fn completion(number: u32) -> StatusRow {
    find(COMPLETIONS, number)
}

/// Returns the meaning of an `ibv_event_type`.
pub fn event(number: u32) -> StatusRow {
    find(EVENTS, number)
}

/// Returns the meaning of an `rdma_cm_event_type`.
pub fn connection(number: u32) -> StatusRow {
    find(CONNECTIONS, number)
}

/// Numbers that the data path compares with.
pub(crate) mod numbers {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const LOC_LEN_ERR: u32 = 1;
    pub(crate) const LOC_QP_OP_ERR: u32 = 2;
    pub(crate) const LOC_PROT_ERR: u32 = 4;
    pub(crate) const WR_FLUSH_ERR: u32 = 5;
    pub(crate) const LOC_ACCESS_ERR: u32 = 8;
    pub(crate) const REM_INV_REQ_ERR: u32 = 9;
    pub(crate) const REM_ACCESS_ERR: u32 = 10;
    pub(crate) const REM_OP_ERR: u32 = 11;
    pub(crate) const RNR_RETRY_EXC_ERR: u32 = 13;
    pub(crate) const EVENT_CQ_ERR: u32 = 0;
    pub(crate) const EVENT_QP_FATAL: u32 = 1;
    pub(crate) const EVENT_QP_REQ_ERR: u32 = 2;
    pub(crate) const EVENT_QP_ACCESS_ERR: u32 = 3;
    pub(crate) const EVENT_PATH_MIG_ERR: u32 = 7;
    pub(crate) const EVENT_DEVICE_FATAL: u32 = 8;
    pub(crate) const EVENT_PORT_ACTIVE: u32 = 9;
    pub(crate) const EVENT_PORT_ERR: u32 = 10;
    pub(crate) const EVENT_LID_CHANGE: u32 = 11;
    pub(crate) const EVENT_SRQ_ERR: u32 = 14;
    pub(crate) const EVENT_GID_CHANGE: u32 = 18;
    pub(crate) const CM_ADDR_RESOLVED: u32 = 0;
    pub(crate) const CM_ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CM_CONNECT_RESPONSE: u32 = 5;
    pub(crate) const CM_ESTABLISHED: u32 = 9;
    pub(crate) const CM_DISCONNECTED: u32 = 10;
    pub(crate) const CM_DEVICE_REMOVAL: u32 = 11;
    pub(crate) const CM_ADDR_CHANGE: u32 = 14;
    pub(crate) const CM_TIMEWAIT_EXIT: u32 = 15;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;

    #[test]
    fn rows_stand_at_their_numbers_and_say_everything() {
        for table in [COMPLETIONS, EVENTS, CONNECTIONS] {
            for (at, row) in table.iter().enumerate() {
                assert_eq!(usize::try_from(row.number), Ok(at), "{}", row.name);
                assert!(!row.cause.is_empty() && !row.remedy.is_empty(), "{}", row.name);
                assert_eq!(
                    row.blame == NoFault,
                    matches!(row.status, Success | Flushed) && row.blame == NoFault
                );
                assert!(!row.to_string().is_empty());
            }
        }
        assert_eq!(completion(12).status, Unreachable);
        assert_eq!(completion(99).name, "unknown");
        assert_eq!(event(3).name, "IBV_EVENT_QP_ACCESS_ERR");
        assert_eq!(connection(8).name, "RDMA_CM_EVENT_REJECTED");
    }

    /// The names of an enumeration in a header, in their order.
    fn names(header: &str, list: &str) -> Vec<String> {
        let text = header.split(&format!("enum {list} {{")).nth(1).unwrap_or("");
        let text = text.split('}').next().unwrap_or("");
        let words = text.split([',', '\n']).map(str::trim);
        words
            .filter(|word| word.starts_with("IBV_") || word.starts_with("RDMA_"))
            .map(|word| word.split([' ', '=']).next().unwrap_or("").to_owned())
            .collect()
    }

    /// The tables hold every number of the installed headers, by the same name.
    #[test]
    fn tables_hold_what_the_headers_have() {
        let lists = [
            ("/usr/include/infiniband/verbs.h", "ibv_wc_status", COMPLETIONS),
            ("/usr/include/infiniband/verbs.h", "ibv_event_type", EVENTS),
            ("/usr/include/rdma/rdma_cma.h", "rdma_cm_event_type", CONNECTIONS),
        ];
        for (path, list, table) in lists {
            let Ok(header) = std::fs::read_to_string(Path::new(path)) else {
                // Past the test harness, which shows nothing of tests that pass.
                let _ = writeln!(std::io::stdout(), "skipped: no {path} to compare with");
                continue;
            };
            let names = names(&header, list);
            assert!(!names.is_empty(), "{list} in {path}");
            for (at, name) in names.iter().enumerate() {
                assert_eq!(table.get(at).map(|row| row.name), Some(name.as_str()), "{list}");
            }
        }
    }
}
