//! Requests of peers that began before this end closed their links. A peer's thread that is stopped
//! within a copy cannot be interrupted, and its mapping cannot be removed: the only available knowledge
//! is whether such a copy may still write.
//!
//! A requester marks itself at work, then checks whether its link is closed; this end has closed it,
//! and then checks whether the other port is at work. By the heavy barrier a port that is not at work
//! now sees that the link is closed; one that is at work is done when its count of work has changed, or
//! when its process has ended.

use super::ShmPort;
use crate::barrier;
use crate::connection::{Connection, KnownPeer};
use crate::control::Inner;
use crate::mapping::PeerMemory;
use crate::message::{ControlMessage, Grant};
use crate::socket;
use farside_base::{LinkId, RegionToken, RemoteRegionId};
use farside_fabric::FabricError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request that was in progress when its link was closed.
pub(super) struct Landing {
    pub(super) link: LinkId,
    peer: KnownPeer,
    /// The count of work of the peer's port then.
    count: u64,
    /// The peer's process; `None` when it is in another namespace of processes.
    process: Option<OwnedFd>,
}

impl Landing {
    /// Returns the request that the other end of a link may be executing now, right after this end has
    /// closed the link; `None` if there is none.
    pub(super) fn of(connection: &Connection) -> Option<Self> {
        let peer = connection.peer.get()?;
        barrier::heavy();
        let count = peer.in_flight();
        if count.is_multiple_of(2) {
            return None;
        }
        let number = socket::peer_process(connection.socket.as_fd());
        let number = number.and_then(|number| Pid::from_raw(i32::try_from(number).ok()?));
        let process = match number.map(|number| pidfd_open(number, PidfdFlags::empty())) {
            Some(Ok(process)) => Some(process),
            // No such process any more.
            Some(Err(rustix::io::Errno::SRCH)) => return None,
            // A link that was ended from outside was ended by the end of the peer's process.
            Some(Err(_)) | None if connection.has_ended() => return None,
            Some(Err(_)) | None => None,
        };
        Some(Self { link: connection.link, peer: peer.clone(), count, process })
    }

    /// Returns whether it may still write.
    pub(super) fn may_land(&self) -> bool {
        self.peer.in_flight() == self.count && !self.process.as_ref().is_some_and(has_ended)
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    // Refused only for lack of kernel memory; then it is retried.
    poll(&mut ends, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// A pending import.
pub(super) struct AskedImport {
    link: LinkId,
    token: RegionToken,
    question: u64,
    until: Instant,
}

/// The longest wait for an answer, whatever the options say.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

impl AskedImport {
    fn new(
        inner: &Inner,
        connection: &Connection,
        token: &RegionToken,
    ) -> Result<Self, FabricError> {
        let question = connection.begin(|question| ask_for(inner, connection, token, question))?;
        let until = Instant::now() + inner.options.control_timeout.min(WAIT_MAX);
        Ok(Self { link: connection.link, token: *token, question, until })
    }

    pub(super) fn is_on(&self, link: LinkId) -> bool {
        self.link == link
    }
}

impl ShmPort {
    /// Imports a region without waiting for the answer.
    pub(super) fn import_begun(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<Option<RemoteRegionId>, FabricError> {
        let connection = Arc::clone(&self.importing(link)?.connection);
        let Some(at) =
            self.asked.iter().position(|asked| asked.is_on(link) && asked.token == *token)
        else {
            let asked = AskedImport::new(self.inner(), &connection, token)?;
            self.asked.push(asked);
            return Ok(None);
        };
        let answer = match connection.take_answer(self.asked[at].question) {
            Ok(Some(answer)) => answer,
            Ok(None) if Instant::now() < self.asked[at].until => return Ok(None),
            Ok(None) => {
                self.asked.swap_remove(at);
                return Err(Connection::no_answer());
            }
            Err(reason) => {
                self.asked.swap_remove(at);
                return Err(reason);
            }
        };
        self.asked.swap_remove(at);
        let (grant, memory) = self.map(answer)?;
        self.add_import(link, token, &grant, memory).map(Some)
    }

    fn add_import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
        grant: &Grant,
        memory: PeerMemory,
    ) -> Result<RemoteRegionId, FabricError> {
        let open = self.importing(link)?;
        let peer = open.connection.peer.get().ok_or(FabricError::PeerLost)?;
        let (board, other_end) = (peer.board.clone(), peer.memory.clone());
        self.imports.add(link, token, grant, memory, [&board, &other_end])
    }

    /// Imports a region and waits for the answer.
    pub(super) fn import_and_wait(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<RemoteRegionId, FabricError> {
        let (grant, memory) = self.fetch(self.importing(link)?, token)?;
        self.add_import(link, token, &grant, memory)
    }
}

/// Requests a region from its owner.
pub(super) fn ask_for(
    inner: &Inner,
    connection: &Connection,
    token: &RegionToken,
    question: u64,
) -> Result<(), FabricError> {
    let (region, key) = (token.region, token.key);
    inner.send(connection, &ControlMessage::Import { question, region, key }, &[])
}
