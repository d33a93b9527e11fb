//! Link events of an executor: sessions of clients, readers of its memory, and the host of its memory.

use super::links::{LinkRole, SessionState};
use super::upstream::Upstream;
use super::{CallServer, quota};
use crate::Error;
use crate::call::memory::lent_region::{LentRegion, RegionSite};
use crate::call::transport::handshake::{Purpose, SessionHello, Welcome};
use crate::progress::ConnectionEvent;
use farside_base::{LinkId, RemoteRegionId};
use farside_protocol::call::{Invocation, Opened, Session};

impl CallServer {
    pub(super) fn link_event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Requested(link, hello) => {
                if let Err(reason) = self.requested(link, &hello) {
                    self.links.messages.refuse(link, &reason);
                }
            }
            ConnectionEvent::Connected(link, reply) => self.upstream_connected(link, &reply),
            ConnectionEvent::Refused(link, reason) => {
                self.upstream_lost(link, String::from_utf8_lossy(&reason).into_owned());
                self.links.close(link);
            }
            ConnectionEvent::NotReached(link, error) => {
                self.upstream_lost(link, error.to_string());
                self.links.close(link);
            }
            ConnectionEvent::Lost(link) => self.lost(link),
        }
    }

    /// Returns the index of a tenant, which is added if it is new.
    pub(super) fn tenant(&mut self, name: &str) -> usize {
        if let Some(tenant) = self.tenants.get(name) {
            return *tenant;
        }
        // All tenants without a quota share one entry, so that names cost nothing.
        let (name, quota) = match self.options.tenants.get(name) {
            Some(quota) => (name, *quota),
            None => ("", self.options.quota),
        };
        if let Some(tenant) = self.tenants.get(name) {
            return *tenant;
        }
        let tenant = self.machine.add_tenant(quota);
        self.executor.resources.memory.add(tenant);
        self.tenants.insert(name.to_owned(), tenant);
        tenant
    }

    /// Handles a request to connect; an error is the reason of its refusal.
    fn requested(&mut self, link: LinkId, hello: &[u8]) -> Result<(), Vec<u8>> {
        let hello = SessionHello::decode(hello)?;
        let tenant = self.tenant(&hello.tenant);
        let memory = &self.executor.resources.memory;
        let regions = self.lent.tokens(|number| memory.is_lent(number, tenant));
        let mut welcome = Welcome {
            resumed: false,
            slots: hello.slots.min(self.options.slots).max(1),
            message_bytes: self.options.limits.context_bytes_max as u32 + Invocation::BYTES_MAX,
            regions,
        };
        if hello.purpose == Purpose::Memory {
            self.accept(link, &welcome).map_err(|error| error.to_string())?;
            self.links.set_role(link, LinkRole::MemoryReader);
            return Ok(());
        }
        let (session, resumed) = match self.machine.open(hello.session, tenant) {
            Ok(Opened::New(session)) => (session, false),
            Ok(Opened::Resumed(session)) => (session, true),
            Err(why) => {
                let taken = self.machine.taken(tenant);
                return Err(quota::no_place(why, self.options.sessions, taken).encode());
            }
        };
        welcome.resumed = resumed;
        let state = self.links.session_mut(session);
        let (old, upload) = state.map_or((None, None), |state| (state.link, state.upload.take()));
        if let Some(old) = old {
            self.links.close(old);
        }
        self.links.set_role(link, LinkRole::Client(session));
        let output_bytes = hello.room.map_or(0, |_| hello.output_bytes);
        let link_of = Some(link);
        let state =
            SessionState { link: link_of, tenant, output_region: None, output_bytes, upload };
        self.links.set_session(session, state);
        let accepted = self.accept(link, &welcome);
        match accepted.and_then(|()| self.import_outputs(link, &hello)) {
            Ok((region, bytes)) => {
                if let Some(state) = self.links.session_mut(session) {
                    (state.output_region, state.output_bytes) = (region, bytes);
                }
            }
            // The link has failed already.
            Err(_) => self.lost(link),
        }
        Ok(())
    }

    fn accept(&mut self, link: LinkId, welcome: &Welcome) -> Result<(), Error> {
        self.links.messages.accept(link, &welcome.encode())
    }

    /// Imports the region of a client for outputs; returns it with its bytes for each output.
    fn import_outputs(
        &mut self,
        link: LinkId,
        hello: &SessionHello,
    ) -> Result<(Option<RemoteRegionId>, u32), Error> {
        let Some(token) = hello.room else { return Ok((None, 0)) };
        let region = self.links.messages.port.import(link, &token)?;
        // A region smaller than announced is not used.
        let needs = u64::from(hello.output_bytes) * u64::from(hello.slots);
        match needs <= token.bytes {
            true => Ok((Some(region), hello.output_bytes)),
            false => Ok((None, 0)),
        }
    }

    /// Closes a link that failed. The session of a client stays for its grace.
    pub(super) fn lost(&mut self, link: LinkId) {
        let role = self.links.role(link);
        self.links.close(link);
        match role {
            Some(LinkRole::Client(session)) => self.client_lost(session),
            Some(LinkRole::Upstream) => {
                let text = "the executor that has the memory is out of reach";
                self.upstream_lost(link, text.to_owned());
            }
            Some(LinkRole::MemoryReader) | None => {}
        }
    }

    fn client_lost(&mut self, session: Session) {
        if let Some(state) = self.links.session_mut(session) {
            (state.link, state.output_region) = (None, None);
        }
        self.machine.lost(session, self.links.messages.time_ns(), &mut self.effects);
        self.apply_effects();
    }

    /// Dials the executor that hosts the memory.
    pub(super) fn dial_upstream(&mut self) -> Result<(), Error> {
        let Some(upstream) = &mut self.upstream else { return Ok(()) };
        let link = self.links.messages.connect(&upstream.name, &Upstream::hello().encode())?;
        upstream.dialled(link);
        self.links.set_role(link, LinkRole::Upstream);
        Ok(())
    }

    /// Dials a lost host again, once its backoff has passed.
    pub(super) fn redial_upstream(&mut self, now_ns: u64) {
        let redial_ns = self.upstream.as_ref().and_then(Upstream::redial_ns);
        if redial_ns.is_some_and(|at_ns| at_ns <= now_ns)
            && let Err(error) = self.dial_upstream()
            && let Some(upstream) = &mut self.upstream
        {
            upstream.lost(error.to_string(), now_ns);
        }
    }

    fn upstream_lost(&mut self, link: LinkId, why: String) {
        self.executor.resources.memory.lost(link);
        let now_ns = self.links.messages.time_ns();
        if let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.is_at(link)) {
            upstream.lost(why, now_ns);
        }
    }

    fn upstream_connected(&mut self, link: LinkId, reply: &[u8]) {
        let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.is_at(link)) else {
            return;
        };
        let Some(welcome) = Welcome::decode(reply) else {
            upstream.unfit("the peer is not an executor of calls".to_owned());
            self.links.close(link);
            return;
        };
        let mut trouble = None;
        for (number, token) in welcome.regions {
            match self.links.messages.port.import(link, &token) {
                Ok(region) => {
                    let site = RegionSite::Remote(link, region);
                    let lent = LentRegion { site, bytes: token.bytes, access: token.access };
                    self.executor.resources.memory.lend(number, lent, None);
                }
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        match (trouble, self.executor.resources.memory.has_any()) {
            (None, true) => upstream.connected(),
            (Some(trouble), _) => upstream.unfit(trouble),
            (None, false) => upstream.unfit("it lends no memory".to_owned()),
        }
    }
}
