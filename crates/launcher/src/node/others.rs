//! Detection of two clusters with one name.
//!
//! With `--found-alone` a node may found a cluster while another one of the same name runs on the other side of a
//! partition. The two never merge. So a member periodically queries the hosts of `--join` that are not members of
//! its cluster whether they belong to another one, and answers such queries.
//!
//! Answers are not trusted: a query has a deadline, only a refusal is an answer, each link is closed after its first
//! event, and a host is reported once until it has been a member of this cluster.

use super::founding::{FoundingAnswer, waiting_name};
use super::life::Life;
use super::plan::Plan;
use farside_base::{LinkId, ReceiveQueueId};
use farside_bootstrap::Endpoint;
use farside_command::failure::Failure;
use farside_fabric::{FabricError, LinkEvent, Port, PortSpec};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Interval between queries of other hosts.
const PERIOD: Duration = Duration::from_secs(2);
/// Deadline of a query.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A host that belongs to another cluster of the name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Other {
    pub(super) host: String,
    pub(super) cluster_id: u64,
}

/// The queries of a member to hosts that are not members of its cluster.
pub(super) struct Others {
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    /// Its answer to queries of other hosts.
    answer: FoundingAnswer,
    cluster_id: u64,
    /// Queries in flight, at most one to each host of `--join`.
    asked: Vec<Query>,
    ask_at: Instant,
    /// Hosts of `--join` that were reported, each at most once.
    reported: Vec<Endpoint>,
}

/// A query in flight.
struct Query {
    link: LinkId,
    host: Endpoint,
    deadline: Instant,
}

impl Others {
    /// Opens the port for queries and answers.
    ///
    /// # Errors
    /// The name of the port is in use.
    pub(super) fn open(plan: &Plan, life: &Life) -> Result<Self, Failure> {
        let spec = PortSpec { listen: Some(waiting_name(plan)) };
        let opened = life
            .fabric
            .open(&spec)
            .and_then(|port| Self::at(port, life.node.cluster_id(), life.address, Instant::now()));
        opened.map_err(|error| Failure::system(error.to_string()))
    }

    fn at(
        mut port: Box<dyn Port>,
        cluster_id: u64,
        address: SocketAddr,
        now: Instant,
    ) -> Result<Self, FabricError> {
        let queue = port.create_receive_queue(1)?;
        let answer = FoundingAnswer::Member { cluster_id, address };
        let (asked, reported) = (Vec::new(), Vec::new());
        Ok(Self { port, queue, answer, cluster_id, asked, ask_at: now, reported })
    }

    /// Answers queries, sends queries when they are due, and returns newly found hosts of other clusters.
    pub(super) fn poll(&mut self, plan: &Plan, life: &Life) -> Vec<Other> {
        let now = Instant::now();
        let found = self.take_events(now);
        if now >= self.ask_at {
            let members = life.node.members().into_iter().filter(|member| member.alive);
            let members: Vec<Endpoint> =
                members.filter_map(|member| member.host).map(Endpoint::from).collect();
            let hosts = plan.options.hosts.iter().filter(|host| !plan.is_own(host, life.address));
            self.ask(hosts, &members, &waiting_name(plan), now);
        }
        found
    }

    /// Answers queries, takes answers, and closes links of finished and expired queries.
    fn take_events(&mut self, now: Instant) -> Vec<Other> {
        let (mut events, mut found) = (Vec::new(), Vec::new());
        self.port.link_events(&mut events);
        for event in events {
            if let LinkEvent::Requested { link, .. } = event {
                // The requester may be gone already; then the answer is not needed.
                let _ = self.port.refuse(link, self.answer.to_string().as_bytes());
                continue;
            }
            // A host that accepts the link does not answer. Closing a lost link has no effect.
            self.port.close(event.link());
            let is_of_link = |query: &Query| query.link == event.link();
            let Some(at) = self.asked.iter().position(is_of_link) else {
                continue;
            };
            let Query { host, .. } = self.asked.swap_remove(at);
            if let LinkEvent::Refused { reason, .. } = event
                && let Some(FoundingAnswer::Member { cluster_id, .. }) =
                    FoundingAnswer::read(&reason)
                && cluster_id != self.cluster_id
                && !self.reported.contains(&host)
            {
                found.push(Other { host: host.to_string(), cluster_id });
                self.reported.push(host);
            }
        }
        for query in self.asked.extract_if(.., |query| now >= query.deadline) {
            self.port.close(query.link);
        }
        found
    }

    /// Queries the hosts that are not members and have no query in flight.
    fn ask<'a>(
        &mut self,
        hosts: impl Iterator<Item = &'a Endpoint>,
        members: &[Endpoint],
        name: &str,
        now: Instant,
    ) {
        self.ask_at = now + PERIOD;
        // A host that leaves this cluster for another one is reported again.
        self.reported.retain(|host| !members.contains(host));
        for host in hosts.filter(|host| !members.contains(host)) {
            if self.asked.iter().any(|query| query.host == *host) {
                continue;
            }
            if let Ok(link) = self.port.connect(&format!("{host}/{name}"), &[], self.queue) {
                let deadline = now + ANSWER_TIMEOUT;
                self.asked.push(Query { link, host: host.clone(), deadline });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_fabric::Fabric;
    use farside_fabric_tcp::{TcpFabric, TcpOptions};

    const WATCHDOG: Duration = Duration::from_secs(60);
    const NAME: &str = "farside.test.waiting";

    /// A host with a port for queries.
    struct Host {
        _fabric: TcpFabric,
        address: SocketAddr,
        port: Box<dyn Port>,
        queue: ReceiveQueueId,
        requested: Vec<LinkId>,
        lost: Vec<LinkId>,
    }

    impl Host {
        fn new() -> Self {
            let listen = Some("127.0.0.1:0".parse().unwrap());
            let fabric = TcpFabric::new(TcpOptions { listen, ..TcpOptions::default() }).unwrap();
            let mut port = fabric.open(&PortSpec { listen: Some(NAME.to_owned()) }).unwrap();
            let queue = port.create_receive_queue(1).unwrap();
            let (address, lost) = (fabric.host().unwrap(), Vec::new());
            Self { _fabric: fabric, address, port, queue, requested: Vec::new(), lost }
        }

        fn endpoint(&self) -> Endpoint {
            self.address.into()
        }

        /// Takes link events; accepts requests if `accepts`.
        fn poll(&mut self, accepts: bool) {
            let mut events = Vec::new();
            self.port.link_events(&mut events);
            for event in events {
                match event {
                    LinkEvent::Requested { link, .. } => {
                        self.requested.push(link);
                        if accepts {
                            self.port.accept(link, b"", self.queue).unwrap();
                        }
                    }
                    other => self.lost.push(other.link()),
                }
            }
        }
    }

    /// A member that sends queries, with a simulated clock.
    struct Member {
        _fabric: TcpFabric,
        others: Others,
        now: Instant,
    }

    impl Member {
        fn new() -> Self {
            let fabric = TcpFabric::new(TcpOptions::default()).unwrap();
            let port = fabric.open(&PortSpec::default()).unwrap();
            let now = Instant::now();
            let address = "127.0.0.1:1".parse().unwrap();
            Self { _fabric: fabric, others: Others::at(port, 1, address, now).unwrap(), now }
        }

        fn poll(&mut self, hosts: &[Endpoint], members: &[Endpoint]) -> Vec<Other> {
            let found = self.others.take_events(self.now);
            if self.now >= self.others.ask_at {
                self.others.ask(hosts.iter(), members, NAME, self.now);
            }
            found
        }
    }

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < WATCHDOG, "not in time: {what}");
            std::thread::yield_now();
        }
    }

    /// After each link that the host accepts, it is queried again.
    #[test]
    fn links_accepted_by_a_hostile_host_are_closed() {
        let (mut host, mut member) = (Host::new(), Member::new());
        for round in 1..=3 {
            until("a link that is accepted and closed", || {
                host.poll(true);
                assert_eq!(member.poll(&[host.endpoint()], &[]), []);
                host.lost.len() == round
            });
            assert_eq!(host.requested.len(), round);
            member.now += PERIOD;
        }
    }

    /// A silent host has one link at a time, until the deadline of the query.
    #[test]
    fn unanswered_queries_end_at_their_deadline() {
        let (mut silent, mut other, mut member) = (Host::new(), Host::new(), Member::new());
        let hosts = [silent.endpoint(), other.endpoint()];
        for round in 1..=3 {
            until("both are asked", || {
                silent.poll(false);
                other.poll(false);
                assert_eq!(member.poll(&hosts, &[]), []);
                (silent.requested.len(), other.requested.len()) == (round, round)
            });
            let link = other.requested[round - 1];
            let answer = FoundingAnswer::Member { cluster_id: 1, address: other.address };
            other.port.refuse(link, answer.to_string().as_bytes()).unwrap();
            until("the answer is taken", || {
                assert_eq!(member.poll(&hosts, &[]), []);
                member.others.asked.len() == 1
            });
            member.now += ANSWER_TIMEOUT;
            until("the link to the silent host is closed", || {
                silent.poll(false);
                assert_eq!(member.others.take_events(member.now), []);
                silent.lost.len() == round
            });
        }
    }

    /// With changing answers, until it is a member.
    #[test]
    fn a_host_of_another_cluster_is_reported_once() {
        let (mut host, mut member) = (Host::new(), Member::new());
        let mut reports = Vec::new();
        for cluster_id in 2..6 {
            let answer = FoundingAnswer::Member { cluster_id, address: host.address }.to_string();
            until("an answer is taken", || {
                host.poll(false);
                for link in host.requested.drain(..) {
                    host.port.refuse(link, answer.as_bytes()).unwrap();
                }
                let asked = member.others.asked.len();
                let members = if cluster_id == 4 { vec![host.endpoint()] } else { Vec::new() };
                reports.extend(member.poll(&[host.endpoint()], &members));
                cluster_id == 4 || asked > member.others.asked.len()
            });
            assert!(member.others.reported.len() <= 1);
            member.now += PERIOD;
        }
        let ids: Vec<u64> = reports.iter().map(|other| other.cluster_id).collect();
        assert_eq!(ids, [2, 5]);
    }
}
