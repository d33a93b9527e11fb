//! Steps of the programs at both ends: send, receive, fetch, release.

use super::network::region;
use super::{BUFFER, DataChannel, Half, Holding, USER, USER_STEP, message};
use farside_base::{LocalSlice, Memory, RegionId};
use farside_protocol::channel::{
    Arrival, Content, Half as _, HalfRefusal, Kind, Payload, Receiver,
};

impl DataChannel {
    pub(super) fn send(&mut self, side: usize) {
        let number = self.sides[side].sent;
        let bytes = self.setup.messages[usize::from(number)];
        let content = message(self.voice(side), number, bytes);
        let (gather, lent) = (self.setup.gather, self.setup.kind.shares_sender());
        let offset = u64::from(number) * USER_STEP;
        let mut slice = [LocalSlice { region: USER, offset, bytes }];
        let mut taken = false;
        self.with(side, |half, own, effects| {
            let Half::Sender(half) = half else { return Ok(()) };
            let mut room = true;
            if gather && lent {
                let loan = half.loan(bytes, own);
                room = loan.is_some();
                if let Some(loan) = loan {
                    own.buffer.write(loan.offset, &content).expect("it is lent");
                    slice = [loan];
                }
            }
            let payload =
                if gather && room { Payload::Gather(&slice) } else { Payload::Bytes(&content) };
            match half.send(payload, own, effects) {
                Ok(_) => taken = true,
                Err(HalfRefusal::Full | HalfRefusal::Lost | HalfRefusal::NotConnected) => {}
                Err(other) => panic!("{other}"),
            }
            half.flush(own, effects);
            Ok(())
        });
        self.sides[side].sent += u8::from(taken);
    }

    pub(super) fn receive(&mut self, side: usize) {
        let mut received = None;
        self.with(side, |half, own, effects| {
            let Half::Receiver(half) = half else { return Ok(()) };
            received = half.receive(own, effects)?;
            Ok(())
        });
        if let Some(received) = received {
            let from = usize::from(received.peer.0);
            let content = self.content(side, BUFFER, received.content);
            if let Some((voice, number)) = self.came(side, from, &content, None) {
                let holding =
                    Holding { held: received.held, voice, number, content: received.content };
                self.sides[side].holding.push(holding);
            }
        }
    }

    fn content(&self, side: usize, of: RegionId, content: Content) -> Vec<u8> {
        match content {
            Content::Integer(integer) => integer.to_le_bytes().to_vec(),
            Content::Buffer { offset, bytes } => {
                let mut out = vec![0; bytes as usize];
                let read = region(&self.sides[side].regions, of).read(offset, &mut out);
                if read.is_err() {
                    return Vec::new();
                }
                out
            }
        }
    }

    /// Records an arrived message, which was the `offered`th offer if any. Returns its sender and number, unless it is
    /// invalid.
    fn came(
        &mut self,
        side: usize,
        from: usize,
        content: &[u8],
        offered: Option<u8>,
    ) -> Option<(usize, u8)> {
        let (messages, senders) = (&self.setup.messages, self.setup.senders);
        let voices = (from..self.sides[side].came.len()).step_by(senders);
        let all = voices.flat_map(|voice| (0..messages.len()).map(move |number| (voice, number)));
        let same = |(voice, number): &(usize, usize)| {
            message(*voice, *number as u8, messages[*number]) == content
        };
        let Some((voice, number)) = { all }.find(same) else {
            self.broken = Some("a message that was never sent");
            return None;
        };
        let came = &mut self.sides[side].came[voice];
        if *came & (1 << number) != 0 {
            self.broken = Some("a message came twice");
        }
        let in_turn = match offered {
            Some(offered) => usize::from(offered) == number,
            None => *came == (1 << number) - 1,
        };
        if self.setup.in_order() && !in_turn {
            self.broken = Some("out of order");
        }
        *came |= 1 << number;
        Some((voice, number as u8))
    }

    pub(super) fn release(&mut self, side: usize, place: usize) {
        let holding = self.sides[side].holding.remove(place);
        let content = self.content(side, BUFFER, holding.content);
        let bytes = self.setup.messages[usize::from(holding.number)];
        if content != message(holding.voice, holding.number, bytes) {
            self.broken = Some("a message changed while it was held");
        }
        let lazy = self.setup.lazy;
        self.with(side, |half, own, effects| {
            let Half::Receiver(half) = half else { return Ok(()) };
            half.release(holding.held, own, effects).expect("it is held");
            if !lazy {
                half.acknowledge(own, effects);
            }
            Ok(())
        });
    }

    /// The destination of a fetched message: a region of the user, or, if senders WRITE it, the
    /// half of the receiver's buffer that the receiver does not use itself.
    fn destinations(&self, side: usize) -> (RegionId, u64) {
        if self.setup.kind == Kind::ReadSlotIndirect {
            let plan = Receiver::plan(self.setup.kind, &self.setup.shape);
            return (BUFFER, plan.buffer_bytes / 2);
        }
        debug_assert!(side >= self.setup.senders, "receivers fetch");
        (USER, 0)
    }

    /// Takes a fetched message, and fetches the next offer.
    pub(super) fn offer(&mut self, side: usize) {
        let (mut done, mut offered) = (Vec::new(), None);
        let fetching = self.sides[side].fetching.clone();
        let (region, first) = self.destinations(side);
        let room = fetching.len() < self.setup.held_max;
        let offset = (0..).map(|place| first + place * USER_STEP);
        let free = |offset: &u64| fetching.iter().all(|(_, taken, _)| taken != offset);
        let offset = { offset }.find(free).unwrap_or(first);
        let lazy = self.setup.lazy;
        self.with(side, |half, own, effects| {
            let Half::Receiver(half) = half else { return Ok(()) };
            for (offer, offset, number) in &fetching {
                if let Some(bytes) = half.fetched(offer.held, own, effects) {
                    done.push((*offer, *offset, *number, bytes));
                }
            }
            if room && done.is_empty() {
                offered = half.offer(own, effects)?;
                if let Some(offer) = offered {
                    let into = LocalSlice { region, offset, bytes: offer.bytes_max };
                    half.receive_into(offer.held, into, own, effects).expect("it was offered");
                }
            }
            if !lazy {
                half.acknowledge(own, effects);
            }
            Ok(())
        });
        let side_now = &mut self.sides[side];
        if let Some(offer) = offered {
            side_now.fetching.push((offer, offset, side_now.offered));
            side_now.offered += 1;
        }
        for (offer, offset, number, bytes) in done {
            self.sides[side].fetching.retain(|(other, ..)| *other != offer);
            let content = self.content(side, region, Content::Buffer { offset, bytes });
            self.came(side, usize::from(offer.peer.0), &content, Some(number));
        }
    }

    /// Handles the oldest arrival.
    pub(super) fn poll(&mut self, side: usize) {
        if let Some(arrival) = self.sides[side].arrivals.pop_front() {
            self.arrived(side, arrival);
        }
    }

    pub(super) fn arrived(&mut self, side: usize, arrival: Arrival) {
        self.with(side, |half, own, effects| match half {
            Half::Sender(half) => half.arrived(arrival, own, effects),
            Half::Receiver(half) => half.arrived(arrival, own, effects),
        });
    }
}
