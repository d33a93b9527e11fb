//! The model of membership: a few processes, ordered links, deaths at any step. The last messages of a dead process may
//! be truncated at a different point on each link, so that a broadcast in progress reaches some processes only.
//!
//! Node numbers are reused if there are fewer than processes. A process settles each removal that it learns of at any
//! later time; `burial.rs` models how.

mod parts;

pub use parts::{LifePlan, LinkKind, MemberAction};

use crate::explorer::{CopyOnWrite, Model, Violation};
use farside_base::{
    Access, ErrorCode, Incarnation, MemberRegions, MemoryId, NodeId, RegionId, RegionToken,
    RemoteKey, ViewNumber,
};
use farside_protocol::member::{
    Death, Effects, FounderSettings, Identity, Join, JoinRefusal, Keeps, Leases, MemberEffect,
    MemberEvent, MemberMessage, MemberRole, Membership, PROTOCOL_VERSION, PeerRequest, RequestId,
};
use parts::{Item, MemberEnd, MemberLink};
use std::collections::VecDeque;

/// The role of a process; `programs` and `witnesses` are bits.
fn role_of(number: usize, programs: u8, witnesses: u8) -> MemberRole {
    match (programs >> number & 1, witnesses >> number & 1) {
        (0, _) => MemberRole::Lender,
        (_, 0) => MemberRole::Program,
        (_, _) => MemberRole::Witness,
    }
}

const CLUSTER: &str = "model";
const LIMITS: u64 = 7;

/// The request of a `PeerRequest` is its process plus this; of a `Join`, its process.
const PEER_REQUEST: u64 = 100;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    machine: CopyOnWrite<Membership>,
    /// What it has sent in its `Join`.
    keeps: Keeps,
    started: bool,
    running: bool,
    ready: bool,
    /// It has begun to leave with its memory saved.
    saved: bool,
    /// It has left.
    left: bool,
    /// Nodes that it declared dead, by number and admission.
    buried: Vec<(NodeId, ViewNumber)>,
    /// It has to judge accusations.
    judges: bool,
    /// Those of them whose removal is not settled here.
    unsettled: Vec<(NodeId, ViewNumber)>,
    /// Its links, by other process and purpose.
    links: Vec<[CopyOnWrite<MemberLink>; 2]>,
}

/// The processes and the messages in flight between them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemberCluster {
    processes: Vec<CopyOnWrite<Process>>,
    /// The process that has bound the cluster's name.
    rendezvous: Option<usize>,
    /// Processes that lend no memory, as bits.
    programs: u8,
    /// Those of them that are witnesses.
    witnesses: u8,
    /// Number of processes that may still be partitioned from all others.
    isolations: u8,
    /// Deaths and partitions of clusters with witnesses, in order.
    faults: Vec<MemberAction>,
    /// What the first processes keep; all others are ordinary.
    plans: Vec<LifePlan>,
    /// Number of deaths and leaves left.
    deaths: u8,
    /// No process has died or left.
    peace: bool,
    /// Whether processes also leave.
    leavings: bool,
    /// Number of pairs that the network may still partition.
    partings: u8,
    /// Partitioned pairs, the lower number first.
    parted: Vec<(usize, usize)>,
    /// A loss does not prove a death; removals need a quorum.
    quorum: bool,
    /// Processes settle removals; only the reuse of numbers depends on that.
    settles: bool,
    /// Memories of nodes that have been ready.
    memories: Vec<MemoryId>,
    broken: Option<&'static str>,
}

impl MemberCluster {
    /// Creates `processes` processes, the first being the founder, with at most `deaths` deaths. `change` may plant a
    /// mutant.
    pub fn new(
        processes: usize,
        deaths: u8,
        leavings: bool,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        Self::with_programs(processes, 0, deaths, leavings, change)
    }

    /// As above; some processes, as bits, lend no memory.
    fn with_programs(
        processes: usize,
        programs: u8,
        deaths: u8,
        leavings: bool,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        let numbers = processes as u16 + 1;
        Self::with_numbers(processes, numbers, programs, deaths, leavings, change)
    }

    fn with_numbers(
        processes: usize,
        numbers: u16,
        programs: u8,
        deaths: u8,
        leavings: bool,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        let process = |number| Process {
            machine: CopyOnWrite::new(change(Membership::new(Identity {
                cluster: CLUSTER.into(),
                incarnation: Incarnation(number as u64),
                limits: LIMITS,
                host: None,
                role: role_of(number, programs, 0),
                keeps: Keeps::Nothing,
                quorum: false,
                settings: FounderSettings {
                    nodes_max: numbers,
                    leases: Leases { fabric_ns: 0, member_ns: 0 },
                },
            }))),
            keeps: Keeps::Nothing,
            started: number == 0,
            running: number == 0,
            ready: false,
            saved: false,
            left: false,
            buried: Vec::new(),
            judges: false,
            unsettled: Vec::new(),
            links: vec![
                [MemberLink::default(), MemberLink::default()].map(CopyOnWrite::new);
                processes
            ],
        };
        let mut cluster = Self {
            processes: (0..processes).map(process).map(CopyOnWrite::new).collect(),
            rendezvous: Some(0),
            programs,
            witnesses: 0,
            isolations: 0,
            faults: Vec::new(),
            plans: Vec::new(),
            deaths,
            peace: true,
            leavings,
            partings: 0,
            parted: Vec::new(),
            quorum: false,
            settles: false,
            memories: Vec::new(),
            broken: None,
        };
        cluster.step(0, MemberEvent::Found);
        cluster
    }

    /// As `new`, on a network that permanently partitions up to `partings` pairs, with machines that know that
    /// unreachable members may be alive.
    pub fn parting(
        processes: usize,
        deaths: u8,
        partings: u8,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        Self::parting_programs(processes, 0, deaths, partings, change)
    }

    /// As above; some processes, as bits, lend no memory.
    pub fn parting_programs(
        processes: usize,
        programs: u8,
        deaths: u8,
        partings: u8,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        let change = |machine: Membership| change(machine.in_a_quorum());
        let cluster = Self::with_programs(processes, programs, deaths, false, change);
        Self { partings, quorum: true, ..cluster }
    }

    /// As `parting_programs`; the programs are witnesses. The network partitions also up to `isolations` processes from
    /// all others, and members are checked for losses that no fault explains.
    pub fn witnessed(
        processes: usize,
        witnesses: u8,
        [deaths, partings, isolations]: [u8; 3],
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        let change = |machine: Membership| {
            let role = role_of(machine.incarnation().0 as usize, witnesses, witnesses);
            change(machine.with_role(role))
        };
        let cluster = Self::parting_programs(processes, witnesses, deaths, partings, change);
        Self { witnesses, isolations, ..cluster }
    }

    /// As `new`, with so few numbers that they are reused.
    pub fn reusing(
        processes: usize,
        numbers: u16,
        deaths: u8,
        leavings: bool,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        let cluster = Self::with_numbers(processes, numbers, 0, deaths, leavings, change);
        Self { settles: true, ..cluster }
    }

    /// As `reusing`, with nodes with state that return.
    pub fn returning(
        plans: &[LifePlan],
        numbers: u16,
        deaths: u8,
        leavings: bool,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        let change = |machine: Membership| {
            let number = machine.incarnation().0 as usize;
            change(match plans[number] {
                LifePlan::NewState => machine.with_keeps(Keeps::New),
                LifePlan::Ordinary | LifePlan::Saves | LifePlan::ReturnOf(_) => machine,
            })
        };
        let cluster = Self::reusing(plans.len(), numbers, deaths, leavings, change);
        Self { plans: plans.to_vec(), ..cluster }
    }

    fn plan(&self, at: usize) -> LifePlan {
        self.plans.get(at).copied().unwrap_or(LifePlan::Ordinary)
    }

    /// Whether the process has the state directory of an earlier one.
    fn returns_as(&self, at: usize, earlier: usize) -> bool {
        match self.plan(at) {
            LifePlan::Ordinary | LifePlan::Saves | LifePlan::NewState => false,
            LifePlan::ReturnOf(of) => of == earlier || self.returns_as(of, earlier),
        }
    }

    /// What the state directory of a process says, if it has one.
    fn directory(&self, at: usize) -> Keeps {
        match (self.plan(at), self.processes[at].ready.then(|| self.machine(at).memory())) {
            (LifePlan::Ordinary, _) => Keeps::Nothing,
            (LifePlan::Saves, _) if !self.processes[at].saved => Keeps::Nothing,
            (_, Some(Some(memory))) => {
                let (node, generation) = (memory.node(), memory.generation());
                Keeps::Known { node, generation, names: true }
            }
            // Written when it is ready.
            (LifePlan::NewState | LifePlan::Saves, _) => Keeps::New,
            (LifePlan::ReturnOf(of), _) => self.directory(of),
        }
    }

    /// Whether the memory of a process will return under its number.
    fn is_kept(&self, at: usize) -> bool {
        match self.plan(at) {
            LifePlan::Ordinary => false,
            LifePlan::Saves => self.processes[at].saved && self.processes[at].left,
            LifePlan::NewState => true,
            LifePlan::ReturnOf(of) => self.is_kept(of) || self.plan(of) != LifePlan::Saves,
        }
    }

    /// Whether the process has the state directory of one that ended while it left.
    fn has_unheard_save(&self, at: usize) -> bool {
        let LifePlan::ReturnOf(of) = self.plan(at) else {
            return false;
        };
        match self.plan(of) {
            LifePlan::Saves => !self.processes[of].left,
            _ => self.has_unheard_save(of),
        }
    }

    /// Whether a process may start: no process uses its state directory.
    fn may_start(&self, at: usize) -> bool {
        (0..at).all(|other| !self.returns_as(at, other) || !self.processes[other].running)
    }

    /// As `new`, with the first `processes` processes joined, in one order, and nothing in flight: the other orders are
    /// covered by searches with fewer processes.
    pub fn settled(mut self, processes: usize) -> Self {
        for at in 1..processes {
            self.join(at);
            let mut actions = Vec::new();
            self.deliveries(&mut actions);
            while let Some(action) = actions.first() {
                self.apply(*action);
                actions.clear();
                self.deliveries(&mut actions);
            }
        }
        self
    }

    /// The machines, in the order of processes.
    pub(super) fn machines(&self) -> impl Iterator<Item = &Membership> {
        self.processes.iter().map(|process| &*process.machine)
    }

    fn link(&mut self, at: usize, other: usize, kind: LinkKind) -> &mut MemberLink {
        &mut self.processes[at].links[other][kind as usize]
    }

    fn machine(&self, at: usize) -> &Membership {
        &self.processes[at].machine
    }

    fn are_parted(&self, one: usize, other: usize) -> bool {
        self.parted.contains(&(one.min(other), one.max(other)))
    }

    /// Drops the messages in flight between the two; each detects the loss at an independent time.
    fn part(&mut self, one: usize, other: usize) {
        self.peace = false;
        for (at, from) in [(one, other), (other, one)] {
            for kind in [LinkKind::Join, LinkKind::Peer] {
                let link = self.link(at, from, kind);
                link.arriving.clear();
                if link.end != MemberEnd::Closed {
                    link.arriving.push_back(Item::OutOfReach);
                }
            }
        }
        self.parted.push((one, other));
    }

    fn send(&mut self, from: usize, to: usize, kind: LinkKind, item: Item) {
        if self.processes[to].running && !self.are_parted(from, to) {
            self.link(to, from, kind).arriving.push_back(item);
        }
    }

    /// One process closes its end; the other detects the loss after the messages that were sent before.
    fn close(&mut self, at: usize, other: usize, kind: LinkKind) {
        let end = |at: usize, other: usize| self.processes[at].links[other][kind as usize].end;
        let was_open = end(at, other) != MemberEnd::Closed || end(other, at) != MemberEnd::Closed;
        // Only changed links are copied.
        if *self.processes[at].links[other][kind as usize] != MemberLink::default() {
            *self.link(at, other, kind) = MemberLink::default();
        }
        if was_open {
            self.send(at, other, kind, Item::Lost);
        }
    }

    fn kill(&mut self, at: usize) {
        for other in 0..self.processes.len() {
            self.close(at, other, LinkKind::Join);
            self.close(at, other, LinkKind::Peer);
        }
        self.processes[at].running = false;
        self.processes[at].judges = false;
        if self.rendezvous == Some(at) {
            // Between hosts each coordinator has a distinct name, and keeps it.
            let coordinates = |other: &usize| {
                self.quorum
                    && self.processes[*other].running
                    && self.machine(*other).is_coordinator()
            };
            self.rendezvous = (0..self.processes.len()).find(coordinates);
        }
    }

    fn step(&mut self, at: usize, event: MemberEvent) {
        let mut effects = Effects::new();
        if let Err(violation) = self.processes[at].machine.step(event, &mut effects) {
            self.broken = Some(violation.0);
            return;
        }
        for effect in effects {
            self.perform(at, effect);
        }
    }

    fn perform(&mut self, at: usize, effect: MemberEffect) {
        match effect {
            MemberEffect::Connect { incarnation, .. } => self.connect(at, incarnation.0 as usize),
            MemberEffect::Admit { request, welcome } => {
                self.send(at, request.0 as usize, LinkKind::Join, Item::Welcome(welcome));
            }
            MemberEffect::Deny { request, refusal } => self.deny(at, request, refusal),
            MemberEffect::AcceptPeer { request, .. } => {
                let other = (request.0 - PEER_REQUEST) as usize;
                self.link(at, other, LinkKind::Peer).end = MemberEnd::Up;
                self.send(at, other, LinkKind::Peer, Item::Accepted);
            }
            MemberEffect::Send { to, message } => match self.linked(at, to) {
                Some(other) => self.send(at, other, LinkKind::Peer, Item::Message(message)),
                None => self.broken = Some("a message without a link"),
            },
            MemberEffect::Cut { node } => self.cut_off(at, node),
            MemberEffect::JudgeLater => self.processes[at].judges = true,
            MemberEffect::Admitted { node } => {
                if self.processes[at].unsettled.iter().any(|(other, _)| *other == node) {
                    self.broken = Some("a number is given again before it is settled");
                }
            }
            MemberEffect::Dead { node, born, death } => self.bury(at, node, born, death),
            MemberEffect::Ready => self.make_ready(at),
            MemberEffect::BecomeCoordinator => self.rendezvous = Some(at),
            MemberEffect::Failed(_) if self.peace => self.broken = Some("a joiner failed in peace"),
            MemberEffect::Failed(_) => self.kill(at),
            MemberEffect::Closed => {
                self.processes[at].left = true;
                self.kill(at);
            }
        }
    }

    fn connect(&mut self, at: usize, other: usize) {
        self.link(at, other, LinkKind::Peer).end = MemberEnd::Asking;
        if self.are_parted(at, other) {
            return self.link(at, other, LinkKind::Peer).arriving.push_back(Item::OutOfReach);
        }
        if !self.processes[other].running {
            return self.send(other, at, LinkKind::Peer, Item::Lost);
        }
        let token =
            RegionToken { region: RegionId(0), key: RemoteKey(0), bytes: 0, access: Access::NONE };
        let machine = self.machine(at);
        let peer = PeerRequest {
            version: PROTOCOL_VERSION,
            cluster: CLUSTER.into(),
            node: machine.node().expect("a joiner that connects has a number"),
            incarnation: Incarnation(at as u64),
            view: machine.born(),
            regions: MemberRegions { home: token, cache: token, fence: token, tags: None },
        };
        self.send(at, other, LinkKind::Peer, Item::Peer(Box::new(peer)));
    }

    fn deny(&mut self, at: usize, request: RequestId, refusal: JoinRefusal) {
        let (kind, other) = match request.0.checked_sub(PEER_REQUEST) {
            Some(other) => (LinkKind::Peer, other as usize),
            None => (LinkKind::Join, request.0 as usize),
        };
        self.link(at, other, kind).end = MemberEnd::Closed;
        self.send(at, other, kind, Item::Refused(refusal));
    }

    fn linked(&self, at: usize, node: NodeId) -> Option<usize> {
        (0..self.processes.len()).find(|other| {
            let link = &self.processes[at].links[*other][LinkKind::Peer as usize];
            link.end == MemberEnd::Up && self.machine(*other).node() == Some(node)
        })
    }

    fn cut_off(&mut self, at: usize, node: NodeId) {
        for other in 0..self.processes.len() {
            if other != at && self.machine(other).node() == Some(node) {
                for kind in [LinkKind::Peer, LinkKind::Join] {
                    if self.link(at, other, kind).end != MemberEnd::Closed {
                        self.close(at, other, kind);
                    }
                }
            }
        }
    }

    /// Whether two serving processes have declared each other dead.
    fn is_split(&self) -> bool {
        let serves = |at: usize| self.processes[at].running && self.processes[at].ready;
        let buries = |at: usize, other: usize| {
            let life = self.life(other);
            life.is_some_and(|life| self.processes[at].buried.contains(&life))
        };
        let all = 0..self.processes.len();
        all.clone().any(|one| {
            let mut others = all.clone().filter(|other| *other != one);
            serves(one)
                && others.any(|other| serves(other) && buries(one, other) && buries(other, one))
        })
    }

    /// The number of a process and the view that admitted it, once it knows them.
    fn life(&self, at: usize) -> Option<(NodeId, ViewNumber)> {
        Some((self.machine(at).node()?, self.machine(at).born()))
    }

    fn bury(&mut self, at: usize, node: NodeId, born: ViewNumber, death: Death) {
        let dead = (node, born);
        if self.processes[at].buried.contains(&dead) {
            self.broken = Some("declared dead twice");
        }
        self.processes[at].buried.push(dead);
        if self.witnesses != 0 && death == Death::Removed && self.is_without_memory(at, dead) {
            self.broken = Some("witnesses continue without the memory of a member that lived");
        }
        if self.settles {
            self.processes[at].unsettled.push(dead);
        }
        for other in 0..self.processes.len() {
            if other == at || self.life(other) != Some(dead) {
                continue;
            }
            let serves = self.processes[other].running && self.processes[other].ready;
            if serves && !self.quorum {
                self.broken = Some("declared dead alive");
            }
            if serves && death == Death::Ended {
                self.broken = Some("the process of a member that lives counts as ended");
            }
            for kind in [LinkKind::Peer, LinkKind::Join] {
                // A request that has not arrived yet cannot be closed; it will be refused.
                if self.link(at, other, kind).end != MemberEnd::Closed {
                    self.close(at, other, kind);
                }
            }
        }
    }

    fn make_ready(&mut self, at: usize) {
        self.processes[at].ready = true;
        let node = self.machine(at).node();
        for other in 0..self.processes.len() {
            let serves = self.processes[other].running && self.processes[other].ready;
            if other != at && serves && self.machine(other).node() == node {
                self.broken = Some("two nodes of one number");
            }
        }
        for other in 0..self.processes.len() {
            let kept = self.processes[other].ready && self.is_kept(other);
            let same = self.machine(other).node() == node;
            if other != at && kept && same && !self.returns_as(at, other) {
                self.broken = Some("the number of a node with state is given to another");
            }
        }
        if let Some(memory) = self.machine(at).memory() {
            let (node, generation) = (memory.node(), memory.generation());
            let own = Keeps::Known { node, generation, names: true };
            match self.processes[at].keeps {
                known @ Keeps::Known { .. } if known != own => {
                    self.broken = Some("a node with state returns with other memory");
                }
                Keeps::Known { .. } => return,
                Keeps::Nothing | Keeps::New => {}
            }
            if self.memories.contains(&memory) {
                self.broken = Some("two memories of one generation");
            }
            self.memories.push(memory);
        }
    }

    fn join(&mut self, at: usize) {
        let Some(coordinator) = self.rendezvous else {
            return;
        };
        let keeps = self.directory(at);
        let process = &mut *self.processes[at];
        if process.keeps != keeps {
            process.keeps = keeps;
            let machine = Membership::clone(&process.machine);
            process.machine = CopyOnWrite::new(machine.with_keeps(keeps));
        }
        process.started = true;
        process.running = true;
        self.link(at, coordinator, LinkKind::Join).end = MemberEnd::Asking;
        self.send(at, coordinator, LinkKind::Join, Item::Join);
    }

    fn deliver(&mut self, from: usize, at: usize, kind: LinkKind) {
        let Some(item) = self.link(at, from, kind).arriving.pop_front() else {
            return;
        };
        match item {
            Item::Join => {
                self.link(at, from, kind).end = MemberEnd::Up;
                let join = Join {
                    version: PROTOCOL_VERSION,
                    cluster: CLUSTER.into(),
                    limits: LIMITS,
                    incarnation: Incarnation(from as u64),
                    home_bytes: u64::from(self.lends(from)),
                    witness: self.witnesses >> from & 1 == 1,
                    keeps: self.processes[from].keeps,
                    host: None,
                };
                let request = RequestId(from as u64);
                self.step(at, MemberEvent::JoinAsked { request, join });
            }
            Item::Welcome(welcome) => {
                self.link(at, from, kind).end = MemberEnd::Up;
                self.step(at, MemberEvent::Joined(welcome));
            }
            Item::Peer(peer) => {
                self.link(at, from, kind).end = MemberEnd::Asked;
                let request = RequestId(from as u64 + PEER_REQUEST);
                self.step(at, MemberEvent::PeerAsked { request, peer: *peer });
            }
            Item::Accepted => self.accepted(from, at),
            Item::Refused(refusal) if kind == LinkKind::Join => {
                // What was saved is refused if its node ended before its coordinator knew of the leave.
                if refusal.code == ErrorCode::StateForeign && !self.has_unheard_save(at) {
                    self.broken = Some("a node with state cannot return");
                }
                self.kill(at);
            }
            Item::Refused(refusal) => {
                self.link(at, from, kind).end = MemberEnd::Closed;
                let node = self.machine(from).node().expect("who refuses a peer has a number");
                self.step(at, MemberEvent::Refused { node, refusal });
            }
            Item::Message(message) => {
                let node = self.machine(from).node().expect("who sends has a number");
                self.step(at, MemberEvent::Message { from: node, message });
            }
            Item::Lost => self.lost(from, at, kind),
            Item::OutOfReach => self.out_of_reach(from, at, kind),
        }
    }

    fn accepted(&mut self, from: usize, at: usize) {
        self.link(at, from, LinkKind::Peer).end = MemberEnd::Up;
        let node = self.machine(from).node().expect("who accepts has a number");
        self.step(at, MemberEvent::LinkUp { node });
        self.close(at, from, LinkKind::Join);
    }

    fn out_of_reach(&mut self, from: usize, at: usize, kind: LinkKind) {
        let end = std::mem::take(&mut self.link(at, from, kind).end);
        // By the number that this process knows it by; it may not know its number itself yet.
        let life = Incarnation(from as u64);
        let known = self.machine(at).alive().find(|(_, of)| *of == life).map(|(node, _)| node);
        match (kind, end, known) {
            (LinkKind::Peer, MemberEnd::Asking | MemberEnd::Up, Some(node)) => {
                self.step(at, MemberEvent::OutOfReach { node });
            }
            // For requests, and for members that request a link, any kind of loss counts.
            (_, end, _) => {
                self.link(at, from, kind).end = end;
                self.lost(from, at, kind);
            }
        }
    }

    fn lost(&mut self, from: usize, at: usize, kind: LinkKind) {
        let end = std::mem::take(&mut self.link(at, from, kind).end);
        let node = self.machine(from).node();
        let welcomed = self.machine(at).node().is_some();
        let linked = self.processes[at].links[from][LinkKind::Peer as usize].end == MemberEnd::Up;
        match (kind, end, node) {
            (_, MemberEnd::Closed, _) => {}
            (LinkKind::Peer, MemberEnd::Asked, _) => {
                let request = RequestId(from as u64 + PEER_REQUEST);
                self.step(at, MemberEvent::RequestLost { request });
            }
            // It is alive, so it has closed the link to this process.
            (LinkKind::Peer, MemberEnd::Up, Some(node))
                if self.quorum && self.processes[from].running =>
            {
                self.step(at, MemberEvent::Expelled { by: node });
            }
            (LinkKind::Peer, MemberEnd::Asking | MemberEnd::Up, Some(node)) => {
                self.step(at, MemberEvent::LinkLost { node });
            }
            (LinkKind::Join, _, _) if self.machine(at).is_ready() => {
                let request = RequestId(from as u64);
                self.step(at, MemberEvent::RequestLost { request });
            }
            (LinkKind::Join, _, Some(node)) if welcomed && !linked => {
                self.step(at, MemberEvent::LinkLost { node });
            }
            (LinkKind::Join, _, _) if !welcomed => self.kill(at),
            (LinkKind::Join | LinkKind::Peer, _, _) => {}
        }
    }

    fn cut(&mut self, from: usize, at: usize, kind: LinkKind) {
        let arriving = &mut self.link(at, from, kind).arriving;
        let last = arriving.pop_back();
        arriving.pop_back();
        arriving.extend(last);
    }

    fn at_rest(&self) -> bool {
        let quiet =
            |process: &Process| process.links.iter().flatten().all(|link| link.arriving.is_empty());
        self.processes.iter().all(|process| quiet(process) && !process.judges)
    }

    /// Checks the properties of states with nothing in flight.
    fn discord(&self) -> Option<&'static str> {
        let running = || (0..self.processes.len()).filter(|at| self.processes[*at].running);
        if running().any(|at| !self.processes[at].ready) {
            return Some("a joiner waits for ever");
        }
        let mut lives: Vec<_> = running().filter_map(|at| self.life(at)).collect();
        lives.sort_unstable_by_key(|(_, born)| *born);
        let first = running().next()?;
        let (view, kept) = (self.machine(first).view(), self.machine(first).kept());
        let kept: Vec<NodeId> = kept.collect();
        for at in running() {
            let machine = self.machine(at);
            let is_first = self.life(at) == lives.first().copied();
            if machine.view() != view {
                return Some("views differ");
            }
            if !machine.kept().eq(kept.iter().copied()) {
                return Some("members know other nodes with state");
            }
            if machine.directory_home() != self.machine(first).directory_home() {
                return Some("members know other homes of names");
            }
            if !machine.alive().map(|(node, _)| node).eq(lives.iter().map(|(node, _)| *node)) {
                return Some("the living are not those who live");
            }
            if machine.is_coordinator() != is_first || (self.rendezvous == Some(at)) != is_first {
                return Some("not exactly the earliest is coordinator");
            }
        }
        None
    }

    fn lends(&self, at: usize) -> bool {
        self.programs >> at & 1 == 0
    }

    fn note_fault(&mut self, fault: MemberAction) {
        if self.witnesses != 0 {
            self.faults.push(fault);
        }
    }

    /// Whether a lender that may live was removed, and a process continues that knows of no other: witnesses alone.
    fn is_without_memory(&self, at: usize, removed: (NodeId, ViewNumber)) -> bool {
        let lends = |of: usize| self.lends(of);
        let was_ready = |of: usize| self.processes[of].ready && self.life(of) == Some(removed);
        let was_lender = (0..self.processes.len()).any(|of| lends(of) && was_ready(of));
        let mut alive = self.machine(at).alive();
        was_lender && !alive.any(|(_, incarnation)| lends(incarnation.0 as usize))
    }

    /// Whether all members that the last fault has not cut off have noticed it, and the judge `at` has their accusations:
    /// the judgement time has passed.
    fn is_noticed(&self, at: usize) -> bool {
        let isolated = |of: usize| self.faults.contains(&MemberAction::Isolate(of));
        let pending = |of: usize, item: fn(&Item) -> bool| {
            self.processes[of].links.iter().flatten().flat_map(|link| &link.arriving).any(item)
        };
        let accuses = |item: &Item| matches!(item, Item::Message(MemberMessage::Suspect { .. }));
        let unaware = |of: usize| pending(of, |item| matches!(item, Item::OutOfReach | Item::Lost));
        let mut others = (0..self.processes.len()).filter(|of| !isolated(*of));
        !pending(at, accuses) && !others.any(unaware)
    }

    /// Checks that a cluster with witnesses loses no memory without need: after one fault at most that of the member at
    /// fault, or of one end of a broken link. A witness that founded the cluster is coordinator, and removes the other end of its own broken link.
    fn undue_loss(&self) -> Option<&'static str> {
        let [fault] = self.faults[..] else {
            return None;
        };
        let lenders = (0..self.processes.len()).filter(|at| self.lends(*at));
        let own = |at: usize| [MemberAction::Kill(at), MemberAction::Isolate(at)].contains(&fault);
        let ended = |at: &usize| self.processes[*at].ready && !self.processes[*at].running;
        let lost = lenders.filter(ended).filter(|at| !own(*at));
        let lost_max = match fault {
            MemberAction::Kill(_) | MemberAction::Isolate(_) => 0,
            MemberAction::Part(one, other) => {
                let both = self.lends(one) && self.lends(other);
                usize::from(both || one == 0 && !self.lends(0))
            }
            _ => 0,
        };
        (lost.count() > lost_max).then_some("memory is lost without need")
    }

    /// Whether a process may learn from others of the death of a process that it does not reach. No member notifies
    /// a process that the dead one has removed: a quorum has removed it before. Nor does that process detect it: the
    /// machine of contacts treats the end of a member that may have removed it as unreachability.
    fn can_learn(&self, of: usize, at: usize) -> bool {
        let link = &self.processes[at].links[of][LinkKind::Peer as usize];
        let lost = link.arriving.front() == Some(&Item::OutOfReach);
        let life = self.life(at);
        let removed = life.is_some_and(|life| self.processes[of].buried.contains(&life));
        self.processes[at].running && !self.processes[of].running && lost && !removed
    }

    fn deliveries(&self, actions: &mut Vec<MemberAction>) {
        for (to, process) in self.processes.iter().enumerate() {
            for (from, links) in process.links.iter().enumerate() {
                for (kind, link) in [LinkKind::Join, LinkKind::Peer].into_iter().zip(links) {
                    if link.arriving.is_empty() {
                        continue;
                    }
                    actions.push(MemberAction::Deliver { from, to, kind });
                    let last_words = link.arriving.len() > 1;
                    if last_words && !self.processes[from].running {
                        actions.push(MemberAction::Cut { from, to, kind });
                    }
                }
            }
        }
    }
}

impl Model for MemberCluster {
    type Action = MemberAction;

    fn enabled(&self) -> Vec<MemberAction> {
        let mut actions = Vec::new();
        self.deliveries(&mut actions);
        // Processes that have not started are symmetric, so they start in order.
        let next = self.processes.iter().position(|process| !process.started);
        if let (Some(next), Some(_)) = (next, self.rendezvous)
            && self.may_start(next)
        {
            actions.push(MemberAction::Join(next));
        }
        for (at, process) in self.processes.iter().enumerate() {
            if process.judges && (self.witnesses == 0 || self.is_noticed(at)) {
                actions.push(MemberAction::Judge(at));
            }
            if process.running && !process.unsettled.is_empty() {
                actions.push(MemberAction::Settle(at));
            }
        }
        if self.partings > 0 {
            for other in 0..self.processes.len() {
                let ones = 0..other;
                let running = |at: &usize| self.processes[*at].running;
                let pairs = ones.filter(|one| running(one) && running(&other));
                let whole = pairs.filter(|one| !self.are_parted(*one, other));
                actions.extend(whole.map(|one| MemberAction::Part(one, other)));
            }
        }
        if self.isolations > 0 {
            let running = (0..self.processes.len()).filter(|at| self.processes[*at].running);
            actions.extend(running.map(MemberAction::Isolate));
        }
        for at in 0..self.processes.len() {
            let dead = (0..self.processes.len()).filter(|of| self.can_learn(*of, at));
            actions.extend(dead.map(|of| MemberAction::Learn { of, at }));
        }
        if self.deaths > 0 {
            for (at, process) in self.processes.iter().enumerate() {
                if process.running {
                    actions.push(MemberAction::Kill(at));
                }
                // One that saves its memory waits for the answers of the others.
                if process.running && process.ready && self.leavings && !process.saved {
                    actions.push(MemberAction::Leave(at));
                }
            }
        }
        actions
    }

    fn apply(&mut self, action: MemberAction) {
        match action {
            MemberAction::Join(at) => self.join(at),
            MemberAction::Part(one, other) => {
                self.partings -= 1;
                self.note_fault(action);
                self.part(one, other);
            }
            MemberAction::Isolate(at) => {
                self.isolations -= 1;
                self.note_fault(action);
                for other in (0..self.processes.len()).filter(|other| *other != at) {
                    if self.processes[other].running && !self.are_parted(at, other) {
                        self.part(at.min(other), at.max(other));
                    }
                }
            }
            MemberAction::Learn { of, at } => {
                let arriving = &mut self.link(at, of, LinkKind::Peer).arriving;
                *arriving = VecDeque::from([Item::Lost]);
            }
            MemberAction::Judge(at) => {
                self.processes[at].judges = false;
                self.step(at, MemberEvent::Judge);
            }
            MemberAction::Settle(at) => {
                let (node, born) = self.processes[at].unsettled.remove(0);
                self.step(at, MemberEvent::Settled { node, born });
            }
            MemberAction::Deliver { from, to, kind } => self.deliver(from, to, kind),
            MemberAction::Cut { from, to, kind } => self.cut(from, to, kind),
            MemberAction::Kill(at) => {
                self.deaths -= 1;
                self.note_fault(action);
                self.peace = false;
                self.kill(at);
            }
            MemberAction::Leave(at) => {
                self.deaths -= 1;
                self.peace = false;
                let saved = self.plan(at) == LifePlan::Saves;
                self.processes[at].saved |= saved;
                self.step(at, MemberEvent::Leave { saved, names: saved });
            }
        }
    }

    fn violation(&self) -> Option<Violation> {
        let broken = self.broken.or_else(|| {
            if self.is_split() {
                return Some("two sides go on");
            }
            let quiet = self.at_rest();
            quiet.then(|| self.discord().or_else(|| self.undue_loss())).flatten()
        });
        broken.map(Violation::new)
    }
}

#[cfg(test)]
mod tests;
