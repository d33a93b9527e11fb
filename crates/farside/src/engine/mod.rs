//! The progress engine of a node: a small struct of owners, each of which drives one protocol machine or
//! owns one resource, with fields of its own. The thread that holds the engine's lock runs [`Engine::poll`];
//! nothing here blocks. Waiting threads poll it ([`wait`](crate::wait)).
//!
//! An owner's fields are private to its file. Where several owners work together, as when a member is
//! removed, the file of the owner that begins has the method of [`Engine`], which calls the others by their
//! methods. Machines are never re-entered: what an effect leaves for after the step is a [`FollowUp`].

mod allocation;
mod applicant;
mod away;
mod coherence;
mod contact;
mod durability;
mod leave;
mod links;
mod locks;
mod lookout;
mod membership;
mod requester;
mod requests;
mod sessions;
mod state;
mod unlogged;
mod watches;
mod write_back;

use crate::direct::DirectHomes;
use crate::hit::Lines;
use crate::lock_hit::LockCells;
use crate::progress::{EnginePort, Progress};
use crate::{Config, Error, ErrorCode, Stats};
use allocation::Homes;
use away::Away;
use coherence::CoherenceDriver;
use contact::ContactDriver;
use farside_base::{Completion, LineAddress, NodeId, OperationId};
use farside_protocol::member::{MemberEvent, Membership};
use farside_protocol::wire::{BODY, Family, MESSAGE, Violation};
use leave::LeaveProgress;
use links::{Arrival, Queued};
use locks::LockDriver;
use lookout::Lookout;
use membership::MembershipDriver;
use requests::Requests;
use sessions::Sessions;
use std::collections::VecDeque;
use std::sync::Arc;
use unlogged::Unlogged;
use watches::Watches;
use write_back::WriteBacks;

pub(crate) use allocation::{DIRECTORY_BYTES, DIRECTORY_LINE_SIZE};
pub(crate) use applicant::{Admission, Applicant, Keeps, occupancy_request, read_occupancy};
pub(crate) use links::{
    Inquiry, Links, MESSAGE_BYTES, Regions, Unanswered, fabric_error, rendezvous_name,
};
pub(crate) use locks::Grant;
pub(crate) use membership::member_name;
pub(crate) use sessions::GATE_TAKEN;
pub(crate) use state::StateDriver;
pub(crate) use watches::Watched;

/// Busy polls between checks of the links.
const LINKS_EVERY: u32 = 16;

/// Work that effects of a step leave for after the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FollowUp {
    /// Bytes placed at a removed peer count as landed.
    Placed(LineAddress),
    /// Unpins the line of an operation that its caller has abandoned.
    Unpin(LineAddress),
    /// Retries operations that wait for a frame.
    RetryFrames,
    /// Starts an operation that was held back.
    Start(OperationId),
    /// The bytes of a line of this home are as they were logged.
    Logged(LineAddress),
    /// A home has ended, and none of its lines is cached any more: what it had not logged is lost.
    HomeGone(NodeId),
    /// The link to a peer failed.
    Drop(NodeId),
    /// A peer broke the protocol.
    Accuse(NodeId),
    /// Judges members that accuse each other.
    Judge,
}

/// The state of a node that a poll drives.
pub(crate) struct Engine {
    lines: Arc<Lines>,
    /// The homes that sessions of this node read directly.
    direct_homes: Arc<DirectHomes>,
    links: Links,
    /// Requests of other processes that have no link yet.
    requests: Requests,
    membership: MembershipDriver,
    /// Reconnects broken links, on fabrics between hosts.
    contact: Option<ContactDriver>,
    /// Watches for stopped members.
    lookout: Lookout,
    /// The leave in progress, during which no operation starts.
    leaving: Option<LeaveProgress>,
    coherence: CoherenceDriver,
    /// Owned lines that are to be written back.
    write_backs: WriteBacks,
    locks: LockDriver,
    homes: Homes,
    /// The log of this node's memory, if it has state.
    state: Option<StateDriver>,
    unlogged: Unlogged,
    /// Operations that wait for a node with state.
    away: Away,
    sessions: Sessions,
    /// Threads that wait for a change of memory or of the membership.
    watches: Watches,
    follow_ups: VecDeque<FollowUp>,
    polls: u32,
    /// The reason why this node stopped serving, if it did.
    failure: Option<&'static str>,
    /// The error of every operation after this node has left or was removed.
    closed_with: Option<ErrorCode>,
}

impl Engine {
    /// A node that is no member yet; another process's request without a link expires after
    /// `request_patience_ns`.
    pub(crate) fn new(
        config: &Config,
        applicant: &Applicant,
        lines: Lines,
        links: Links,
        request_patience_ns: u64,
        state: Option<StateDriver>,
    ) -> Result<Self, Error> {
        let identity = applicant.identity();
        let (me, limits, leases) = (lines.me(), &config.limits, applicant.leases());
        let contact = |host| ContactDriver::new(me, host, leases, links.lease_ns(), lines.clock());
        let homes = Homes::new(me, config.memory_bytes, limits.allocation_bytes_max);
        let logs = state.is_some();
        let mut engine = Self {
            contact: identity.host.map(contact),
            requests: Requests::new(request_patience_ns),
            membership: MembershipDriver::new(identity.clone()),
            lookout: Lookout::new(leases.member_ns, config.remove_stopped),
            leaving: None,
            coherence: CoherenceDriver::new(me, limits, logs),
            write_backs: WriteBacks::new(config.write_back_ns, config.cache_size()),
            locks: LockDriver::new(me, limits),
            homes,
            state,
            unlogged: Unlogged::default(),
            away: Away::new(config.return_timeout_ns),
            sessions: Sessions::default(),
            watches: Watches::default(),
            follow_ups: VecDeque::with_capacity(64),
            polls: 0,
            failure: None,
            closed_with: None,
            lines: Arc::new(lines),
            direct_homes: Arc::default(),
            links,
        };
        engine.restore_memory()?;
        Ok(engine)
    }

    /// The homes that sessions of this node read directly.
    pub(crate) fn direct_homes(&self) -> Arc<DirectHomes> {
        Arc::clone(&self.direct_homes)
    }

    /// Polls the engine once, without blocking. True if there was work.
    pub(crate) fn poll(&mut self) -> bool {
        self.links.port().disarm();
        if self.lines.is_removed() && self.closed_with.is_none() {
            self.member_own(MemberEvent::Removed);
        }
        self.polls = self.polls.wrapping_add(1);
        let mut busy = self.commit_driven();
        busy |= self.poll_once();
        // After the posts: a home to which this node has just answered does not count as busy.
        if self.polls.is_multiple_of(LINKS_EVERY) && self.end_away() | self.write_back_due() {
            self.follow_up();
            self.post();
            busy = true;
        }
        busy |= self.homes.is_runnable();
        if self.leaving.is_some() {
            self.step_leave();
            return self.post() || busy;
        }
        busy
    }

    /// Processes all arrivals, unless a caller is already doing so.
    fn land_all(&mut self) {
        while self.land(usize::MAX) > 0 {}
    }

    /// Processes one message of a peer; `None` for one of a wrong length.
    fn message(&mut self, node: NodeId, bytes: Option<&[u8; MESSAGE]>) {
        let done = match self.links.unpack(node, bytes) {
            Ok(Some((family, body))) => self.dispatch(node, family, &body),
            Ok(None) => Ok(()),
            Err(violation) => Err(violation),
        };
        if let Err(violation) = done {
            self.accuse(node, violation);
        }
    }

    /// Passes a message to its machine.
    fn dispatch(
        &mut self,
        from: NodeId,
        family: Family,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        match family {
            Family::Coherence => self.coherence_message(from, body),
            Family::Lock => self.lock_message(from, body),
            Family::Member => self.member_message(from, body),
            Family::Allocate => self.allocate_message(from, body),
            Family::Credit => Ok(()),
        }
    }

    /// Records a peer that broke the protocol; nothing more of it is processed.
    fn accuse(&mut self, node: NodeId, violation: Violation) {
        self.links.peers_mut().accuse(node, violation);
        self.follow_ups.push_back(FollowUp::Accuse(node));
    }

    /// Carries out the follow-ups of earlier effects.
    #[inline]
    pub(crate) fn follow_up(&mut self) {
        if !self.follow_ups.is_empty() {
            self.follow_all();
        }
    }

    fn follow_all(&mut self) {
        while let Some(follow_up) = self.follow_ups.pop_front() {
            match follow_up {
                FollowUp::Placed(line) => self.placed(line),
                FollowUp::Unpin(line) => self.unpin(line),
                FollowUp::RetryFrames => self.start_frameless(),
                FollowUp::Start(operation) => self.start(operation),
                FollowUp::Logged(line) => self.line_logged(line),
                FollowUp::HomeGone(node) => self.unlogged_home_gone(node),
                FollowUp::Drop(node) => self.drop_peer(node),
                FollowUp::Accuse(node) => self.accuse_peer(node),
                FollowUp::Judge => self.member_own(MemberEvent::Judge),
            }
        }
    }

    fn post_all(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.links.post_queued() {
                Queued::Posted(posted) | Queued::Full(posted) => return any || posted,
                Queued::ToRemoved(node) => {
                    any = true;
                    let follow_ups = &mut self.follow_ups;
                    let landed = |line| follow_ups.push_back(FollowUp::Placed(line));
                    self.links.placed_at_removed(node, landed);
                    self.follow_up();
                }
                Queued::Invalid(node, what) => {
                    self.failure = Some(what);
                    self.follow_ups.push_back(FollowUp::Drop(node));
                    return true;
                }
            }
        }
    }

    /// Runs the checks that are done at intervals only.
    pub(crate) fn probe(&mut self) {
        self.bind_rendezvous();
        self.look_at_peers();
    }

    /// Arms the port before a sleep; true if there is work instead.
    pub(crate) fn arm(&mut self) -> bool {
        self.links.port().arm()
    }

    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.links.is_armed()
    }

    /// The time until this node has to check the time.
    pub(crate) fn wakes_in_ns(&self) -> u64 {
        let contact_ns = self.contact.as_ref().map_or(u64::MAX, ContactDriver::wakes_at_ns);
        let next_ns = contact_ns.min(self.write_backs.next_due_ns()).min(self.away.wakes_at_ns());
        match next_ns.min(self.lookout.wakes_at_ns()) {
            u64::MAX => u64::MAX,
            at_ns => at_ns.saturating_sub(self.links.now_ns()),
        }
    }

    /// This node's number.
    pub(crate) fn me(&self) -> NodeId {
        self.lines.me()
    }

    pub(crate) fn lines(&self) -> &Arc<Lines> {
        &self.lines
    }

    pub(crate) fn lock_cells(&self) -> &LockCells {
        self.locks.cells()
    }

    pub(crate) fn links(&mut self) -> &mut Links {
        &mut self.links
    }

    pub(crate) fn watches(&mut self) -> &mut Watches {
        &mut self.watches
    }

    /// The members, for queries.
    pub(crate) fn membership(&self) -> &Membership {
        self.membership.machine()
    }

    /// The number of nodes that were linked, including those with broken links.
    pub(crate) fn peers(&self) -> usize {
        self.links.peers().linked()
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// The error of every operation, if this node is no member any more.
    pub(crate) fn closed_with(&self) -> Option<ErrorCode> {
        self.closed_with
    }

    /// The error of every operation that would start now, if any.
    fn refusal(&self) -> Option<ErrorCode> {
        let removed = || self.lines.is_removed().then_some(ErrorCode::NodeClosed);
        self.closed_with.or_else(removed).or(self.failure.map(|_| ErrorCode::NodeFailed))
    }

    /// Closes this node, which is no member any more: all operations, pending and future, fail.
    pub(crate) fn close_with(&mut self, code: ErrorCode) {
        self.closed_with.get_or_insert(code);
        self.lines.trust_until(0);
        self.call_in_loans();
        self.homes.stop();
        self.write_backs.stop();
        self.coherence.forget_frameless();
        self.take_held();
        self.away.clear();
        self.forget_durability();
        self.sessions.fail_all(self.closed_with.unwrap_or(ErrorCode::NodeClosed));
        self.watches.wake_all();
    }

    /// Closes all links.
    pub(crate) fn disconnect(&mut self) {
        self.links.disconnect();
    }

    /// Counters of this node since its start.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.links.counters();
        self.coherence.count(&mut stats);
        self.sessions.count(&mut stats);
        stats.locks = self.locks.granted() + stats.lock_hits;
        stats.removals = self.lookout.removals();
        stats.quarantined_members = self.lookout.lingering_count();
        stats.quarantined_bytes = self.quarantined_bytes();
        stats.memory_free_bytes = self.homes.free_bytes();
        stats
    }

    /// Describes the state of this node in one line, for people.
    pub(crate) fn describe(&self) -> String {
        let peers = self.links.peers();
        format!(
            "node {} peers {} broken {} direct {} fenced {} clock {} held {} frameless {} placements {} quarantined {} B of {} members leaving {:?} failure {:?} accused {:?}",
            self.me(),
            peers.alive(),
            peers.iter().filter(|node| !peers.is_linked(*node)).count(),
            self.direct_homes.count(),
            !self.lines.is_trusted(),
            if self.links.resumes() { self.lines.clock().name() } else { "none" },
            self.held_count(),
            self.coherence.frameless(),
            self.links.placements(),
            self.quarantined_bytes(),
            self.lookout.lingering_count(),
            self.leaving,
            self.failure,
            peers.accused()
        )
    }
}

impl Progress for Engine {
    const LANDED_MAX: usize = 64;

    #[inline]
    fn port(&mut self) -> &mut EnginePort {
        self.links.port()
    }

    fn completed(&mut self, completion: &Completion) {
        match self.links.decode(completion) {
            Arrival::Message(node, bytes) => self.message(node, bytes.as_ref()),
            Arrival::Early(link, bytes) if self.is_connecting(link) => {
                self.links.keep_early(link, bytes);
            }
            Arrival::Placed(line) => self.follow_ups.push_back(FollowUp::Placed(line)),
            Arrival::Confirmed(node, question) => self.standing_answered(node, question),
            // An early message without a link is of an earlier link of a removed node.
            Arrival::Early(..) | Arrival::Nothing => {}
        }
        let failed = self.links.failed(completion);
        self.follow_ups.extend(failed.map(FollowUp::Drop));
        self.follow_up();
    }

    fn handle_links(&mut self, landed: bool) -> bool {
        self.count_poll();
        // Links change rarely: a busy node checks them in one poll of [`LINKS_EVERY`].
        (!landed || self.polls.is_multiple_of(LINKS_EVERY)) && self.poll_links()
    }

    fn step(&mut self, _landed: usize, _linked: bool) -> bool {
        let sliced = self.allocation_slice();
        self.follow_up();
        sliced
    }

    /// Posts first bytes of lines, then messages. On each link the bytes that a message announces thus precede it.
    #[inline]
    fn post(&mut self) -> bool {
        !self.links.is_idle() && self.post_all()
    }
}
