//! Outstanding calls of a caller: tickets, requests in flight, and outcomes that were not polled yet.
//!
//! At-most-once invocation: after a reconnect, requests without an answer are sent again with the same slot and
//! sequence number, by which the executor suppresses duplicates (as in NFS sessions, RFC 8881 §2.10.6).

use super::connection::{CallerConnection, SessionLink};
use super::outcome::reply_outcome;
use super::{CallAnswer, Ticket};
use crate::Error;
use farside_base::LinkId;
use farside_protocol::call::{Header, Invocation, Verb, Window, decode_reply};
use std::collections::VecDeque;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct OutstandingRequest {
    /// `None` if the caller has forgotten the call.
    ticket: Option<Ticket>,
    header: Header,
    /// Bytes of its body.
    bytes: u32,
}

/// The calls of one session.
pub(super) struct OutstandingCalls {
    window: Window,
    /// By slot.
    requests: Vec<Option<OutstandingRequest>>,
    /// Outcomes not polled yet.
    ended: VecDeque<(Ticket, Result<CallAnswer, Error>)>,
    tickets: u64,
}

impl OutstandingCalls {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            window: Window::new(slots),
            requests: vec![None; slots],
            ended: VecDeque::new(),
            tickets: 0,
        }
    }

    /// Limits the slots to those that the executor allows.
    pub(super) fn open(&mut self, slots: u16) {
        self.window = Window::new(usize::from(slots).min(self.requests.len()));
    }

    /// Returns the number of free slots.
    pub(super) fn room(&self) -> usize {
        self.window.room()
    }

    pub(super) fn new_ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Queues the invocation of a program with parameters.
    pub(super) fn invoke(
        &mut self,
        connection: &mut CallerConnection,
        (program, parameters): (u64, &[u8]),
        timeout_ns: Option<u64>,
    ) -> Result<Option<Ticket>, Error> {
        let (verb, head, length) = Invocation { program, timeout_ns }.encode();
        self.request(connection, verb, [&head[..length], parameters])
    }

    /// Queues a request to unregister a program.
    pub(super) fn unregister(
        &mut self,
        connection: &mut CallerConnection,
        program: u64,
    ) -> Result<Option<Ticket>, Error> {
        self.request(connection, Verb::Unregister, [&program.to_le_bytes(), &[]])
    }

    /// Queues a request for the next notification of a topic.
    pub(super) fn listen(
        &mut self,
        connection: &mut CallerConnection,
        topic: u64,
    ) -> Result<Option<Ticket>, Error> {
        self.request(connection, Verb::Listen, [&topic.to_le_bytes(), &[]])
    }

    /// Queues a request to stop a call, if it is in flight.
    pub(super) fn cancel(
        &mut self,
        connection: &mut CallerConnection,
        ticket: Ticket,
    ) -> Result<Option<Ticket>, Error> {
        let mut requests = self.requests.iter().flatten();
        match requests.find(|request| request.ticket == Some(ticket)) {
            Some(target) => {
                let body = Window::cancellation(target.header);
                self.request(connection, Verb::Cancel, [&body, &[]])
            }
            None => Ok(None),
        }
    }

    /// Queues a request whose body is `head` and `rest`; `None` if the session is not open or all slots are in use.
    pub(super) fn request(
        &mut self,
        connection: &mut CallerConnection,
        verb: Verb,
        [head, rest]: [&[u8]; 2],
    ) -> Result<Option<Ticket>, Error> {
        connection.check()?;
        if !connection.is_open {
            return Ok(None);
        }
        let Some(header) = self.window.begin(verb) else {
            return Ok(None);
        };
        let ticket = self.new_ticket();
        let bytes = u32::try_from(head.len() + rest.len()).unwrap_or(u32::MAX);
        let slot = usize::from(header.slot);
        self.requests[slot] = Some(OutstandingRequest { ticket: Some(ticket), header, bytes });
        // Without a link it is sent when the session resumes.
        match connection.link {
            SessionLink::Connected(link) => {
                connection.messages.send(link, header, slot, [head, rest], None);
            }
            _ => connection.messages.put(header, slot, [head, rest]),
        }
        Ok(Some(ticket))
    }

    /// Sends all requests again that have no reply, over the link of a resumed session.
    pub(super) fn resend(&self, connection: &mut CallerConnection, link: LinkId) {
        let mut headers = self.window.again().collect::<Vec<_>>();
        // The parts of an object are sent in order.
        let slot = |header: &Header| usize::from(header.slot);
        headers.sort_by_key(|header| self.requests[slot(header)].map(|request| request.ticket));
        for header in headers {
            if let Some(request) = self.requests[slot(&header)] {
                connection.messages.send_again(link, header, slot(&header), request.bytes);
            }
        }
    }

    /// Handles the reply whose header was received; an error closes the session.
    pub(super) fn reply(
        &mut self,
        connection: &CallerConnection,
        header: u32,
    ) -> Result<(), &'static str> {
        let header = Header::decode(header).map_err(|violation| violation.0)?;
        let reply = decode_reply(header.verb, &connection.messages.body);
        let reply = reply.map_err(|violation| violation.0)?;
        let bytes_max = connection.options.output_bytes_max;
        if reply.output_bytes > bytes_max {
            return Err("more output than its region has space for");
        }
        let answered = self.window.reply(header).map_err(|violation| violation.0)?;
        let mut output = vec![0; reply.output_bytes as usize];
        let offset = u64::from(answered.slot) * u64::from(bytes_max);
        let read = connection.outputs.region.arena.read(offset, &mut output);
        read.map_err(|_| "output outside of its region")?;
        let request = self.requests[usize::from(answered.slot)].take();
        if let Some(ticket) = request.and_then(|request| request.ticket) {
            self.end(ticket, reply_outcome(&reply, output));
        }
        Ok(())
    }

    /// Records the outcome of a call.
    pub(super) fn end(&mut self, ticket: Ticket, outcome: Result<CallAnswer, Error>) {
        self.ended.push_back((ticket, outcome));
    }

    /// Ends all requests with the session.
    pub(super) fn close(&mut self, error: &Error) {
        for request in self.requests.iter_mut().filter_map(Option::take) {
            let ended = request.ticket.map(|ticket| (ticket, Err(error.clone())));
            self.ended.extend(ended);
        }
        self.window.over();
    }

    /// Returns the outcome of a call, once.
    pub(super) fn poll(&mut self, ticket: Ticket) -> Option<Result<CallAnswer, Error>> {
        let at = self.ended.iter().position(|(of, _)| *of == ticket)?;
        self.ended.remove(at).map(|(_, end)| end)
    }

    /// Returns the earliest outcome that was not polled, of a call that satisfies `is_wanted`.
    pub(super) fn poll_any(
        &mut self,
        is_wanted: impl Fn(Ticket) -> bool,
    ) -> Option<(Ticket, Result<CallAnswer, Error>)> {
        let at = self.ended.iter().position(|(ticket, _)| is_wanted(*ticket))?;
        self.ended.remove(at)
    }

    /// Drops the outcome of a call, present or future.
    pub(super) fn forget(&mut self, ticket: Ticket) {
        self.ended.retain(|(of, _)| *of != ticket);
        for request in self.requests.iter_mut().flatten() {
            if request.ticket == Some(ticket) {
                request.ticket = None;
            }
        }
    }
}
