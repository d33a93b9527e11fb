//! What a conversation has in progress: imports of its peer, and its connection by rdma_cm.

use crate::ffi::Id;
use crate::token::Token;
use crate::wire::{Parting, SECRET_BYTES};
use farside_base::RegionToken;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// The imports of a link's peer.
#[derive(Default)]
pub(crate) struct PeerImports {
    /// A window is being bound for this request.
    pub(crate) binding: Option<(u32, RegionToken)>,
    /// Waiting after that one, oldest first.
    pub(crate) waiting: VecDeque<(u32, RegionToken)>,
}

/// The rdma_cm part of a conversation.
#[derive(Default)]
pub(crate) struct ManagerState {
    pub(crate) id: Option<OwnedId>,
    /// The secret by which the accepting side recognizes the dialling one.
    pub(crate) secret: [u8; SECRET_BYTES],
    /// When it must have connected.
    pub(crate) deadline: Option<Instant>,
    /// The local kernel has reported the connection as established.
    pub(crate) established: bool,
    /// When the local kernel reported its end.
    pub(crate) ended: Option<Instant>,
    /// The peer was notified of that.
    pub(crate) said: bool,
    /// The peer's notification of the end, and since when.
    pub(crate) heard: Option<(Parting, Instant)>,
    /// The port was notified.
    pub(crate) told: bool,
}

/// An identifier owned by a conversation. The kernel may take long to destroy it, so another thread does that.
pub(crate) struct OwnedId {
    pub(crate) id: Option<Arc<Id>>,
    pub(crate) destroyer: Sender<Arc<Id>>,
}

impl Drop for OwnedId {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // Fails without that thread; then the identifier is destroyed here.
            let _ = self.destroyer.send(id);
        }
    }
}

/// Connections that peers will dial by rdma_cm, by their secrets, and the thread that destroys identifiers.
pub(crate) struct PendingDials {
    pub(crate) secrets: HashMap<[u8; SECRET_BYTES], Token>,
    pub(crate) destroyer: Sender<Arc<Id>>,
}

impl PendingDials {
    pub(crate) fn new() -> io::Result<Self> {
        let (destroyer, unused) = std::sync::mpsc::channel::<Arc<Id>>();
        let thread = std::thread::Builder::new().name("farside-cm-ends".to_owned());
        thread.spawn(move || unused.into_iter().for_each(drop))?;
        Ok(Self { secrets: HashMap::new(), destroyer })
    }

    pub(crate) fn keep(&self, id: &Arc<Id>) -> OwnedId {
        OwnedId { id: Some(Arc::clone(id)), destroyer: self.destroyer.clone() }
    }
}
