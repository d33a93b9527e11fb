//! Steps of the network: effects of the requests in flight.

use super::network::{Origin, PostedVerb as Work, region, words};
use super::{DataChannel, DataChannelAction, Half};
use farside_base::{Memory, RemoteSlice};
use farside_protocol::channel::{Arrival, Completed, Half as _};

impl DataChannel {
    /// Whether a request may take effect now.
    pub(super) fn may_run(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        let before = self.flights[..at].iter().filter(|other| {
            (other.from, other.to) == (flight.from, flight.to) && !other.action.is_done()
        });
        let order = self.setup.guarantees.message_order;
        let blocked = before
            .into_iter()
            .any(|other| if other.action.fetches() { flight.fence } else { order });
        !blocked && !self.buried[flight.to]
    }

    /// The receive that the next message of a link takes.
    fn receive_for(&self, from: usize, to: usize) -> Option<usize> {
        let peer = self.peer(from);
        let shared = self.shares_receives(to);
        self.sides[to].receives.iter().position(|posting| shared || posting.peer == peer)
    }

    /// Whether all peers of a half share its receives.
    fn shares_receives(&self, side: usize) -> bool {
        if side < self.setup.senders {
            self.setup.kind.shares_sender()
        } else {
            self.setup.kind.shares_receiver()
        }
    }

    /// Whether the receive that a request's next step takes, if any, is posted.
    fn finds_receive(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        let takes = match &flight.action {
            Work::Send { .. } => true,
            Work::Write { left, immediate, .. } => {
                immediate.is_some() && left.as_ref().is_some_and(Vec::is_empty)
            }
            Work::Read { .. } | Work::FetchAdd { .. } => false,
        };
        let dead = self.sides[flight.to].dead;
        !takes || dead || self.receive_for(flight.from, flight.to).is_some()
    }

    pub(super) fn network_actions(&self, actions: &mut Vec<DataChannelAction>) {
        for (at, flight) in self.flights.iter().enumerate() {
            let done = flight.action.is_done();
            let placed = self.setup.guarantees.completion_means_placed;
            let early = matches!(flight.action, Work::Write { immediate: None, .. }) && !placed;
            if flight.told && (done || early) && !self.sides[flight.from].dead {
                actions.push(DataChannelAction::Complete(at));
            }
            if done || !self.may_run(at) || (self.setup.waits && !self.finds_receive(at)) {
                continue;
            }
            match &flight.action {
                Work::Write { left: None, .. } => actions.push(DataChannelAction::Effect(at)),
                Work::Write { left: Some(left), .. } if left.is_empty() => {
                    actions.push(DataChannelAction::Effect(at));
                }
                Work::Write { left: Some(left), .. } => {
                    let any = if self.setup.guarantees.byte_order { 1 } else { left.len() };
                    actions.extend((0..any).map(|word| DataChannelAction::Word(at, word)));
                }
                Work::Read { sampled, .. } => {
                    for (word, sample) in sampled.iter().enumerate() {
                        if sample.is_none() {
                            actions.push(DataChannelAction::Word(at, word));
                        }
                    }
                }
                Work::FetchAdd { .. } | Work::Send { .. } => {
                    actions.push(DataChannelAction::Effect(at))
                }
            }
        }
    }

    pub(super) fn word(&mut self, at: usize, word: usize) {
        let flight = &mut self.flights[at];
        let target = &self.sides[flight.to].regions;
        let of = |slice: &RemoteSlice| &target[slice.region.0 as usize];
        match &mut flight.action {
            Work::Write { at, left: Some(left), .. } => {
                let (offset, bytes) = left.remove(word);
                if of(at).write(offset, &bytes).is_err() {
                    self.broken = Some("a WRITE out of bounds");
                }
            }
            Work::Read { into, from, sampled } => {
                let all: u32 = into.iter().map(|slice| slice.bytes).sum();
                let (start, bytes) = words(from.offset, all as usize)[word];
                let mut sample = vec![0; bytes];
                if of(from).read(from.offset + start as u64, &mut sample).is_err() {
                    self.broken = Some("a READ out of bounds");
                }
                sampled[word] = Some(sample);
            }
            _ => {}
        }
    }

    pub(super) fn effect(&mut self, at: usize) {
        let (from, to) = (self.flights[at].from, self.flights[at].to);
        let mut arrival = None;
        match &mut self.flights[at].action {
            Work::Write { source, at, left: left @ None, bytes, .. } => {
                // The source is read here, as late as permitted.
                let all = source.sample(&self.sides[from].regions);
                *bytes = all.len() as u32;
                let word =
                    |(start, bytes)| (at.offset + start as u64, all[start..start + bytes].to_vec());
                *left = Some(words(at.offset, all.len()).into_iter().map(word).collect());
            }
            Work::Write { immediate, bytes, .. } => {
                arrival = Some((immediate.take(), *bytes, Vec::new()));
            }
            Work::FetchAdd { at, add, before, .. } => {
                let region = &self.sides[to].regions[at.region.0 as usize];
                match region.load_word(at.offset) {
                    Ok(word) => {
                        *before = Some(word);
                        let stored = region.store_word(at.offset, word.wrapping_add(*add));
                        stored.expect("it was just read");
                    }
                    Err(_) => self.broken = Some("an atomic out of bounds"),
                }
            }
            Work::Send { source, immediate, arrived } => {
                let bytes = source.sample(&self.sides[from].regions);
                *arrived = true;
                arrival = Some((*immediate, bytes.len() as u32, bytes));
            }
            Work::Read { .. } => {}
        }
        if let Some((immediate, bytes, content)) = arrival {
            self.arrive(from, to, immediate, bytes, &content);
        }
        self.tidy();
    }

    pub(super) fn arrive(
        &mut self,
        from: usize,
        to: usize,
        immediate: Option<u32>,
        bytes: u32,
        content: &[u8],
    ) {
        if self.sides[to].dead {
            return;
        }
        let peer = self.peer(from);
        let place = self.receive_for(from, to);
        let receives = &mut self.sides[to].receives;
        let Some(posting) = place.and_then(|place| receives.remove(place)) else {
            self.broken = Some("a message found no receive");
            return;
        };
        if content.len() > posting.into.bytes as usize {
            self.broken = Some("a message longer than its receive");
            return;
        }
        let into = region(&self.sides[to].regions, posting.into.region);
        into.write(posting.into.offset, content).expect("a receive in the own memory");
        let arrival = Arrival { peer, name: posting.name, bytes, immediate };
        if self.setup.late {
            self.sides[to].arrivals.push_back(arrival);
        } else {
            self.arrived(to, arrival);
        }
    }

    pub(super) fn complete(&mut self, at: usize) {
        let flight = &mut self.flights[at];
        flight.told = false;
        let (side, name, to) = (flight.from, flight.name, flight.to);
        match &flight.action {
            Work::Write { source: source @ Origin::Gather(_), left: None, .. } => {
                // The source may be reused from now on: copy its current bytes.
                let bytes = source.sample(&self.sides[side].regions);
                if let Work::Write { source, .. } = &mut self.flights[at].action {
                    *source = Origin::Copied(bytes);
                }
            }
            Work::Read { into, sampled, .. } => {
                let bytes: Vec<u8> = sampled.iter().flatten().flatten().copied().collect();
                let mut rest = &bytes[..];
                for slice in into {
                    let (part, behind) = rest.split_at(slice.bytes as usize);
                    let own = region(&self.sides[side].regions, slice.region);
                    own.write(slice.offset, part).expect("a READ into the own memory");
                    rest = behind;
                }
            }
            Work::FetchAdd { into, before: Some(before), .. } => {
                let own = region(&self.sides[side].regions, into.region);
                own.store_word(into.offset, *before).expect("an atomic into the own memory");
            }
            _ => {}
        }
        let completed = Completed { peer: self.peer(to), name };
        self.with(side, |half, own, effects| match half {
            Half::Sender(half) => half.completed(completed, own, effects),
            Half::Receiver(half) => half.completed(completed, own, effects),
        });
        self.tidy();
    }

    /// Drops completed requests.
    pub(super) fn tidy(&mut self) {
        let sides = &self.sides;
        self.flights
            .retain(|flight| !flight.action.is_done() || (flight.told && !sides[flight.from].dead));
    }

    /// Ends a dead half's requests and notifies its peers.
    pub(super) fn bury(&mut self, side: usize) {
        self.buried[side] = true;
        self.flights.retain(|flight| flight.from != side && flight.to != side);
        let peer = self.peer(side);
        for other in self.others(side) {
            if !self.shares_receives(other) {
                // The receive queue of the link ends with it.
                self.sides[other].receives.retain(|posting| posting.peer != peer);
            }
            match &mut self.sides[other].half {
                Half::Sender(half) => half.lost(peer),
                Half::Receiver(half) => half.lost(peer),
            }
        }
    }
}
