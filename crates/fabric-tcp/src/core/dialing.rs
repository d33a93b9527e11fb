//! Dials of a port: name lookups, connection attempts in order, and their results.

use super::PortCore;
use crate::dial::{Dial, DialStep};
use crate::link::{Phase, Rejection, TcpLink};
use farside_base::LinkId;
use farside_bootstrap::Endpoint;
use farside_fabric::{LinkEvent, NotReached};
use std::io;
use std::net::SocketAddr;
use std::sync::Weak;

impl PortCore {
    /// Starts or continues a dial.
    pub(crate) fn dial(&mut self, id: LinkId, mut dial: Box<Dial>) {
        let lease_ms = self.options.lease_ms();
        loop {
            let failure = match dial.next() {
                DialStep::Connect(to) => match dial.connect(to, &self.options) {
                    Ok(connection) => {
                        let Some(link) = self.link_mut(id) else {
                            return;
                        };
                        *link = TcpLink::dialing(id, link.queue, dial);
                        link.connection = Some(connection);
                        link.lease_ms = lease_ms;
                        self.serve(id, false);
                        return;
                    }
                    Err(failure) => failure,
                },
                DialStep::Resolve(endpoint) => {
                    if let Some(link) = self.link_mut(id) {
                        *link = TcpLink::dialing(id, link.queue, dial);
                    }
                    self.resolve(id, endpoint);
                    return;
                }
                DialStep::NoListener => return self.not_reached(id, dial.why, dial.trouble),
            };
            dial.failed(&failure);
        }
    }

    /// Resolves a name in a thread of its own, since that may take seconds.
    fn resolve(&mut self, id: LinkId, endpoint: Endpoint) {
        let shared = Weak::clone(&self.shared);
        let lookup = move || {
            let found = endpoint.resolve();
            if let Some(shared) = shared.upgrade() {
                shared.with_core(|core| core.resolved(id, found));
            }
        };
        let started = std::thread::Builder::new().name("farside-resolve".to_owned()).spawn(lookup);
        if let Err(reason) = started {
            self.resolved(id, Err(reason));
        }
    }

    fn resolved(&mut self, id: LinkId, found: io::Result<Vec<SocketAddr>>) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        match std::mem::replace(&mut link.phase, Phase::Requested) {
            Phase::Dialing(mut dial) if link.connection.is_none() => {
                dial.resolved(found);
                self.dial(id, dial);
            }
            phase => link.phase = phase,
        }
    }

    fn not_reached(&mut self, id: LinkId, why: NotReached, trouble: String) {
        self.queues.push_event(LinkEvent::NotReached { link: id, why });
        self.forget(id);
        if let Some(slot) = self.slots.get_mut(id.0 as usize) {
            slot.trouble = Some(trouble);
        }
    }

    /// Handles an answer that is not an acceptance.
    pub(super) fn rejected(&mut self, id: LinkId) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        match std::mem::replace(&mut link.phase, Phase::Requested) {
            Phase::Rejected(Rejection::Declined(reason)) => {
                self.queues.push_event(LinkEvent::Refused { link: id, reason });
                self.forget(id);
            }
            Phase::Rejected(Rejection::NoListener(mut dial)) => {
                dial.no_listener();
                self.dial(id, dial);
            }
            phase => link.phase = phase,
        }
    }
}
