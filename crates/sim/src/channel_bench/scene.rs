//! The connected ends of a study, and the actors that drive them.

use super::actors::{BenchSource, Echo, Inbox, Outbox, Pinger, Scores, Sink, Trip};
use super::charges::Charges;
use super::{BenchRequest, ChannelCluster, Pattern};
use crate::fabric::{ProgramCounts, SimNet, SimOptions};
use crate::random::Random;
use crate::stage::{Actor, ActorNetwork};
use farside::channel::{Family, Kind, Options, Receiver, Sender};
use farside::{Error, ErrorCode};
use farside_fabric::Fabric;
use std::sync::Arc;

/// The node of the senders, or of the end that sends first; and the node of the receivers.
const SENDERS: &str = "senders";
const RECEIVERS: &str = "receivers";

/// Number of steps after which connecting fails.
const STEPS_MAX: u32 = 1_000_000;

/// Returns and resets the counts of both nodes: senders, receivers.
pub(super) fn take_counts(net: &SimNet) -> [ProgramCounts; 2] {
    [SENDERS, RECEIVERS].map(|node| net.take_counts(node))
}

/// Connected senders and receivers.
pub(super) struct ChannelScene {
    pub(super) net: SimNet,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    /// The reverse direction of a ping-pong between two ends.
    back: Option<(Sender, Receiver)>,
}

impl ChannelScene {
    pub(super) fn new(request: &BenchRequest, cluster: &ChannelCluster) -> Result<Self, Error> {
        let options = SimOptions::on_hardware(cluster.capabilities, cluster.hardware);
        let net = SimNet::new(request.seed, options);
        let fabrics = [SENDERS, RECEIVERS].map(|node| -> Arc<dyn Fabric> { net.fabric(node) });
        let [at_senders, at_receivers] = &fabrics;
        let (senders, receivers) = ends(request, "there", at_senders, at_receivers)?;
        let mut scene = Self { net: net.clone(), senders, receivers, back: None };
        if request.pattern == Pattern::PingPong && answers(request.kind) {
            let (back, front) = ends(request, "back", at_receivers, at_senders)?;
            scene.back = back.into_iter().zip(front).next();
        }
        scene.connect()?;
        Ok(scene)
    }

    /// Polls all ends until they are connected and nothing is in flight.
    fn connect(&mut self) -> Result<(), Error> {
        let mut settled = 0;
        for _ in 0..STEPS_MAX {
            let (senders, receivers) = (self.senders.len(), self.receivers.len());
            let mut open = true;
            for sender in &mut self.senders {
                let _ = sender.progress(); // a loss is reported when the sender is used
                open &= sender.peers() == receivers;
            }
            for receiver in &mut self.receivers {
                receiver.progress()?;
                open &= receiver.peers() == senders;
            }
            if let Some((sender, receiver)) = &mut self.back {
                let _ = sender.progress();
                receiver.progress()?;
                open &= sender.peers() + receiver.peers() == 2;
            }
            let moved = self.net.step();
            // A poll may post further messages, several times.
            settled = if open && !moved { settled + 1 } else { 0 };
            if settled > 8 {
                take_counts(&self.net);
                return Ok(());
            }
        }
        Err(Error::with(ErrorCode::TimedOut, "the ends do not connect"))
    }

    /// Adds an actor for each end to the simulation.
    pub(super) fn play(
        self,
        request: &BenchRequest,
        cluster: &ChannelCluster,
        scores: &Scores,
        stage: &mut ActorNetwork<Box<dyn Actor>>,
    ) -> Result<(), Error> {
        let net = &self.net;
        let outbox = |sender| outbox(request, cluster, net, sender);
        let inbox = |receiver| inbox(request, cluster, net, scores, receiver);
        if request.pattern != Pattern::PingPong {
            for receiver in self.receivers {
                stage.add(RECEIVERS, Box::new(Sink { inbox: inbox(receiver) }));
            }
            for sender in self.senders {
                let source = BenchSource { outbox: outbox(sender)?, scores: scores.clone() };
                stage.add(SENDERS, Box::new(source));
            }
            return Ok(());
        }
        let mut ends = self.senders.into_iter().zip(self.receivers);
        let Some((sender, receiver)) = ends.next() else {
            return Ok(());
        };
        let there = inbox(receiver);
        let front = match self.back {
            Some((back, receiver)) => {
                let echo = Echo { inbox: there, outbox: outbox(back)?, due: 0 };
                stage.add(RECEIVERS, Box::new(echo));
                let request = BenchRequest { copies_out: false, ..*request };
                Some(self::inbox(&request, cluster, net, scores, receiver))
            }
            None => {
                stage.add(RECEIVERS, Box::new(Sink { inbox: Inbox { prompt: true, ..there } }));
                None
            }
        };
        let pinger = Pinger {
            outbox: outbox(sender)?,
            inbox: front,
            scores: scores.clone(),
            random: Random::new(request.seed),
            trip: Trip::Pause,
        };
        stage.add(SENDERS, Box::new(pinger));
        Ok(())
    }
}

/// Whether a round trip has a message in both directions.
fn answers(kind: Kind) -> bool {
    !matches!(kind.family(), Family::SharedRing | Family::ReadRing)
}

fn options(request: &BenchRequest) -> Options {
    let (senders, receivers) = request.pattern.ends();
    let peers = senders.max(receivers);
    let outstanding = request.outstanding();
    let shared = match request.kind.family() {
        Family::SharedRing | Family::SendReceive | Family::WriteSlot => {
            request.kind.shares_receiver()
        }
        Family::Ring | Family::ReadSlot | Family::ReadRing => false,
    };
    let all = if shared { outstanding * u32::from(senders) } else { outstanding };
    let record = u64::from(request.bytes()).next_multiple_of(8) + 24;
    let slots = if request.kind == Kind::SharedRingInlinedZeroing { outstanding } else { all };
    Options::new(request.kind, request.bytes())
        .peers(peers)
        .slots(slots)
        .ring_bytes((record * u64::from(all)).next_power_of_two().max(4_096))
        .prefetch_bytes(request.prefetch_bytes)
        .device(request.device)
}

/// Creates the ends of one direction.
fn ends(
    request: &BenchRequest,
    name: &str,
    at_senders: &Arc<dyn Fabric>,
    at_receivers: &Arc<dyn Fabric>,
) -> Result<(Vec<Sender>, Vec<Receiver>), Error> {
    let options = &options(request);
    let (senders, receivers) = request.pattern.ends();
    // A receiver with several senders has one half for each of them, for every channel.
    let listens = receivers > 1 || (request.kind.shares_sender() && senders == 1);
    let sender = || match listens {
        true => Sender::listen(Arc::clone(at_senders), name, options),
        false => Sender::connect(Arc::clone(at_senders), name, options),
    };
    let receiver = || match listens {
        true => Receiver::connect(Arc::clone(at_receivers), name, options),
        false => Receiver::listen(Arc::clone(at_receivers), name, options),
    };
    if listens {
        let senders = (0..senders).map(|_| sender()).collect::<Result<_, _>>()?;
        Ok((senders, (0..receivers).map(|_| receiver()).collect::<Result<_, _>>()?))
    } else {
        let receivers = (0..receivers).map(|_| receiver()).collect::<Result<_, _>>()?;
        Ok(((0..senders).map(|_| sender()).collect::<Result<_, _>>()?, receivers))
    }
}

fn outbox(
    request: &BenchRequest,
    cluster: &ChannelCluster,
    net: &SimNet,
    sender: Sender,
) -> Result<Outbox, Error> {
    let (kind, bytes) = (request.kind, request.bytes());
    let inline = bytes + 24 <= cluster.capabilities.inline_bytes_max;
    let copies = kind.receiver_names_destination() && kind != Kind::ReadSlotIndirect;
    let by_slices = !inline && !copies;
    let buffer = if by_slices { Some(sender.register(u64::from(bytes))?) } else { None };
    let slice = buffer.as_ref().map(|buffer| buffer.slice(0, bytes)).transpose()?;
    Ok(Outbox {
        net: net.clone(),
        sender,
        charges: Charges::new(request, cluster, by_slices),
        message: vec![0x5a; bytes as usize],
        slice,
        _buffer: buffer,
        needs_polls: matches!(kind.family(), Family::SharedRing | Family::ReadSlot)
            || kind == Kind::WriteSlotReserved,
        stores: kind.receiver_names_destination(),
        copy_charged: false,
        full: false,
        again: false,
    })
}

fn inbox(
    request: &BenchRequest,
    cluster: &ChannelCluster,
    net: &SimNet,
    scores: &Scores,
    receiver: Receiver,
) -> Inbox {
    let log = if request.copies_out { request.bytes() as usize } else { 0 };
    Inbox {
        net: net.clone(),
        receiver,
        charges: Charges::new(request, cluster, false),
        scores: scores.clone(),
        prompt: false,
        log: vec![0; log],
        unsuccessful: 0,
        checked_ns: 0,
    }
}
