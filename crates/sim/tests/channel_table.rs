//! Measures every cell of 001 Table 2 for every channel, from the requests on the simulated fabric, and compares with
//! the cells that the product prints and with those of the paper.

mod watch;

use farside::channel::table::{
    Count, DEVIATIONS, Feature, Growth, MEASURED, Order, PAPER, Requests, Row,
};
use farside::channel::{
    Acknowledge, Family, Kind, Message, Need, Options, Receiver, Requirements, Sender, Sent,
    Signal, advise,
};
use farside_base::{Capabilities, CompletionKind};
use farside_fabric::Fabric;
use farside_sim::fabric::{DelayRange, INFINIBAND, SimNet, SimOptions};
use std::sync::Arc;
use watch::{Posted, Record, RecordingFabric};

/// Time of one way; all other operations take no time.
const TRIP_NS: u64 = 1_000_000;
const MESSAGE: u32 = 1024;
const SLOTS: u32 = 16;
/// Number of messages over which requests are counted: too few to make a receiver acknowledge.
const MORE: u32 = 4;

fn net() -> SimNet {
    let trip = DelayRange::new(TRIP_NS, TRIP_NS);
    let options = SimOptions {
        issue_ns: DelayRange::ZERO,
        flight_ns: trip,
        place_ns: DelayRange::ZERO,
        response_ns: trip,
        control_ns: DelayRange::ZERO,
        straggler_per_mille: 0,
        ..SimOptions::new(INFINIBAND)
    };
    SimNet::new(1, options)
}

fn options(kind: Kind, signal: Option<Signal>) -> Options {
    Options::new(kind, MESSAGE).slots(SLOTS).signal(signal)
}

/// Two connected ends with a record of their posted requests and completions.
struct ConnectedEnds {
    net: SimNet,
    sender: Sender,
    receiver: Receiver,
    at_sender: RecordingFabric,
    at_receiver: RecordingFabric,
}

impl ConnectedEnds {
    fn new(options: &Options) -> Self {
        let net = net();
        let at_sender = RecordingFabric::new(net.fabric("sender"));
        let at_receiver = RecordingFabric::new(net.fabric("receiver"));
        let fabric = |watch: &RecordingFabric| -> Arc<dyn Fabric> { Arc::new(watch.clone()) };
        let (sender, receiver) = if options.kind.shares_sender() {
            let sender = Sender::listen(fabric(&at_sender), "table", options).unwrap();
            (sender, Receiver::connect(fabric(&at_receiver), "table", options).unwrap())
        } else {
            let receiver = Receiver::listen(fabric(&at_receiver), "table", options).unwrap();
            (Sender::connect(fabric(&at_sender), "table", options).unwrap(), receiver)
        };
        let mut scene = Self { net, sender, receiver, at_sender, at_receiver };
        scene.run(|scene| {
            scene.receiver.progress().unwrap();
            scene.sender.peers().min(scene.receiver.peers()) == 1
        });
        scene.settle();
        scene
    }

    /// Polls both ends and steps the network until a condition holds.
    fn run(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        for _ in 0..100_000 {
            if holds(self) {
                return;
            }
            self.sender.progress().unwrap();
            self.net.step();
        }
        panic!("the condition never holds");
    }

    fn settle(&mut self) {
        for _ in 0..8 {
            self.net.run_until_idle();
            self.sender.progress().unwrap();
            self.receiver.progress().unwrap();
        }
        self.at_sender.take();
        self.at_receiver.take();
    }

    fn send(&mut self, message: &[u8]) {
        let mut taken = false;
        self.run(|scene| {
            taken = taken || scene.sender.send(message).unwrap() != Sent::Full;
            taken
        });
    }

    fn receive(&mut self) -> Message {
        let mut received = None;
        self.run(|scene| {
            received = received.take().or_else(|| scene.receiver.poll().unwrap());
            received.is_some()
        });
        received.unwrap()
    }

    /// Sends while the receiver polls, as some senders require requests of the receiver.
    fn exchange(&mut self, message: &[u8]) -> Message {
        let (mut sent, mut received) = (false, None);
        self.run(|scene| {
            received = received.take().or_else(|| scene.receiver.poll().unwrap());
            sent = sent || scene.sender.send(message).unwrap() != Sent::Full;
            received.is_some()
        });
        received.unwrap()
    }

    fn message(&self) -> Vec<u8> {
        let bytes = if self.sender.kind() == Kind::SendBufferless { 4 } else { 64 };
        (0..bytes).collect()
    }
}

/// Measured cost of one message.
struct Cost {
    trips: u32,
    sender: u32,
    receiver: u32,
    requests: Requests,
    /// Whether the receiver had an event of the port without a prior request.
    event: bool,
}

fn cost(kind: Kind, signal: Option<Signal>) -> Cost {
    let mut scene = ConnectedEnds::new(&options(kind, signal));
    let message = scene.message();
    // A fetch without request is measured from the fetch; a receiver that must name a destination or is notified
    // polls from the beginning.
    let asks_first = kind == Kind::ReadSlotIndirect;
    if asks_first {
        assert!(scene.receiver.poll().unwrap().is_none());
    }
    let start = scene.net.now_ns();
    scene.send(&message);
    let pulls = matches!(
        kind,
        Kind::ReadSlotDetached
            | Kind::ReadSlotInlined
            | Kind::ReadRingDetached
            | Kind::ReadRingInlined
    );
    let start = if pulls { scene.net.now_ns() } else { start };
    let received = scene.receive();
    let trips = (scene.net.now_ns() - start) / TRIP_NS;
    assert_eq!(received.to_vec(), message, "{kind}");
    let asked = scene.at_receiver.take();
    let event = asked.arrived > 0;
    scene.receiver.release(received);
    // Requests of a receiver for later messages are counted with those messages.
    scene.settle();
    for _ in 0..MORE {
        let received = scene.exchange(&message);
        scene.receiver.release(received);
    }
    let (sent, asked) = (scene.at_sender.take(), scene.at_receiver.take());
    let crossed = |what: CompletionKind| {
        sent.posted.iter().chain(&asked.posted).any(|posted| posted.kind == what)
    };
    Cost {
        trips: trips as u32,
        sender: (sent.posted.len() as u32).div_ceil(MORE),
        receiver: (asked.posted.len() as u32).div_ceil(MORE),
        requests: Requests {
            send: crossed(CompletionKind::Send),
            write: crossed(CompletionKind::Write),
            read: crossed(CompletionKind::Read),
            atomic: crossed(CompletionKind::Atomic),
        },
        event,
    }
}

/// Whether the transfer read the memory in which the program had stored the message.
fn zero_copy_send(kind: Kind) -> Feature {
    if kind == Kind::SendBufferless {
        return Feature::NotApplicable;
    }
    let mut scene = ConnectedEnds::new(&options(kind, None));
    if let Some(loan) = scene.sender.loan(64).unwrap() {
        // The filled memory is the fetched memory.
        loan.write(0, &[7; 64]).unwrap();
        assert_ne!(scene.sender.send_loan(loan, 64).unwrap(), Sent::Full);
        let received = scene.receive();
        assert_eq!(received.to_vec(), [7; 64], "{kind}");
        scene.receiver.release(received);
        return Feature::Yes;
    }
    let buffer = scene.sender.register(4096).unwrap();
    buffer.write(128, &[9; 64]).unwrap();
    let slices = [buffer.slice(128, 64).unwrap()];
    let (mut taken, mut refused, mut early) = (false, false, None);
    scene.run(|scene| {
        // Some senders require a request of the receiver first.
        early = early.take().or_else(|| scene.receiver.poll().unwrap());
        match scene.sender.send_slices(&slices) {
            Ok(Sent::Taken(_)) => taken = true,
            Ok(Sent::Full) => {}
            Err(_) => refused = true,
        }
        taken || refused
    });
    if refused {
        return Feature::No;
    }
    let received = early.unwrap_or_else(|| scene.receive());
    assert_eq!(received.to_vec(), [9; 64], "{kind}");
    let sent = scene.at_sender.take();
    let from_there = |posted: &Posted| {
        posted.slices.iter().any(|(offset, bytes)| (*offset, *bytes) == (128, 64))
    };
    if sent.posted.iter().any(from_there) { Feature::Yes } else { Feature::No }
}

/// Whether the initiator of the transfer could choose the destination of the message.
fn zero_copy_receive(kind: Kind) -> Feature {
    if kind == Kind::SendBufferless {
        return Feature::NotApplicable;
    }
    let mut scene = ConnectedEnds::new(&options(kind, None));
    if kind.receiver_names_destination() {
        return receive_into(&mut scene);
    }
    // The sender chooses the fifth slot: twice as far from the first as the third.
    let mut places = Vec::new();
    for slot in [2, 4] {
        let message = [slot as u8; 64];
        let mut outcome = None;
        scene.run(|scene| {
            outcome = match scene.sender.send_to_slot(slot, &message) {
                Ok(Sent::Full) => None,
                other => Some(other),
            };
            outcome.is_some()
        });
        if outcome.unwrap().is_err() {
            return granted(kind, &mut scene);
        }
        let received = scene.receive();
        assert_eq!(received.to_vec(), message, "{kind}");
        places.push(received.place().unwrap());
        scene.receiver.release(received);
    }
    assert!(places[0] > 0 && places[1] > places[0], "{kind}: {places:?}");
    Feature::Yes
}

/// A reserved slot is known to the sender before it writes, though it did not choose it: its first WRITE goes
/// directly to the destination of the message.
fn granted(kind: Kind, scene: &mut ConnectedEnds) -> Feature {
    scene.settle();
    let message = scene.message();
    scene.send(&message);
    let received = scene.receive();
    let place = received.place().unwrap();
    let sent = scene.at_sender.take();
    let straight = sent.posted.iter().any(|posted| {
        posted.to.is_some_and(|to| to <= place && place < to + u64::from(MESSAGE) + 64)
    });
    let known = kind == Kind::WriteSlotReserved && straight;
    if known { Feature::Yes } else { Feature::No }
}

fn receive_into(scene: &mut ConnectedEnds) -> Feature {
    let buffer = scene.receiver.register(4096).unwrap();
    let message = scene.message();
    let mut offer = None;
    if scene.receiver.kind() == Kind::ReadSlotIndirect {
        return indirect(scene, &message);
    }
    let mut sent = false;
    scene.run(|scene| {
        offer = offer.take().or_else(|| scene.receiver.offer().unwrap());
        sent = sent || scene.sender.send(&message).unwrap() != Sent::Full;
        offer.is_some() && sent
    });
    let offer = offer.unwrap();
    scene.receiver.receive_into(offer, buffer.slice(256, offer.bytes_max()).unwrap()).unwrap();
    let mut bytes = None;
    scene.run(|scene| {
        bytes = scene.receiver.fetched(offer).unwrap();
        bytes.is_some()
    });
    let mut out = [0; 64];
    buffer.read(256, &mut out).unwrap();
    assert_eq!((bytes, out.as_slice()), (Some(64), message.as_slice()));
    let asked = scene.at_receiver.take();
    let to_there = |posted: &Posted| {
        posted.kind == CompletionKind::Read
            && posted.slices.iter().any(|(offset, bytes)| (*offset, *bytes) == (256, 64))
    };
    assert!(asked.posted.iter().any(to_there), "the READ places the bytes at the destination");
    Feature::Yes
}

/// The receiver names a destination in its buffer and the sender's WRITE goes there.
fn indirect(scene: &mut ConnectedEnds, message: &[u8]) -> Feature {
    let received = scene.exchange(message);
    let place = received.place().unwrap();
    let written = scene.at_sender.take();
    let there = written.posted.iter().any(|posted| posted.to == Some(place));
    if there { Feature::Yes } else { Feature::No }
}

/// Number of messages that fit into the channel.
fn capacity(kind: Kind, bytes: usize) -> usize {
    let ring = Some(u64::from(SLOTS) * 2048);
    let slots = if kind == Kind::RingImmediate || kind == Kind::SharedRingImmediate {
        512 // receives: the ring fills first
    } else {
        SLOTS
    };
    let options = options(kind, None).ring_bytes(ring).slots(slots);
    let mut scene = ConnectedEnds::new(&options);
    let message = vec![1; bytes];
    let mut count = 0;
    let mut idle = 0;
    while idle < 2_000 {
        if scene.sender.send(&message).unwrap() == Sent::Full {
            idle += 1;
        } else {
            (count, idle) = (count + 1, 0);
        }
        scene.sender.progress().unwrap();
        scene.net.step();
    }
    count
}

/// Whether a short message takes less memory than a long one: measured by the number of each that fit, or by the
/// bytes fetched for one if the memory is the sender's.
fn variable_size(kind: Kind) -> Feature {
    if kind == Kind::SendBufferless {
        return Feature::NotApplicable;
    }
    if kind.family() == farside::channel::Family::ReadSlot {
        let mut scene = ConnectedEnds::new(&options(kind, None));
        let received = scene.exchange(&[3; 64]);
        assert_eq!(received.len(), 64);
        let fetched = scene.at_receiver.take();
        let most = fetched.posted.iter().map(|posted| posted.bytes).max().unwrap_or(0);
        let named = kind == Kind::ReadSlotIndirect; // it named a destination for the longest message
        return if most >= u64::from(MESSAGE) || named { Feature::No } else { Feature::Yes };
    }
    let (short, long) = (capacity(kind, 64), capacity(kind, MESSAGE as usize));
    if short >= 4 * long { Feature::Yes } else { Feature::No }
}

/// Memory of the listening end with `peers` peers.
fn memory(options: &Options, peers: u16, many_senders: bool) -> u64 {
    let net = net();
    let (kind, options) = (options.kind, options.peers(peers));
    let hub: Arc<dyn Fabric> = net.fabric("hub");
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    if many_senders {
        let mut receiver = Receiver::listen(hub, "memory", &options).unwrap();
        for peer in 0..peers {
            let fabric = net.fabric(&format!("peer{peer}"));
            senders.push(Sender::connect(fabric, "memory", &options).unwrap());
        }
        while receiver.peers() < usize::from(peers) {
            assert!(net.step(), "{kind}");
            receiver.progress().unwrap();
        }
        return receiver.registered_bytes();
    }
    let mut sender = Sender::listen(hub, "memory", &options).unwrap();
    for peer in 0..peers {
        let fabric = net.fabric(&format!("peer{peer}"));
        receivers.push(Receiver::connect(fabric, "memory", &options).unwrap());
    }
    while sender.peers() < usize::from(peers) {
        assert!(net.step(), "{kind}");
        sender.progress().unwrap();
    }
    sender.registered_bytes()
}

/// A peer costs memory if it costs an eighth of the maximum size of its messages in flight.
fn growth(options: &Options, many_senders: bool) -> Growth {
    let (one, many) = (memory(options, 1, many_senders), memory(options, 64, many_senders));
    let each = many.saturating_sub(one) / 63;
    let slots = options.shape(&INFINIBAND).slots;
    if each >= u64::from(slots * MESSAGE) / 8 { Growth::Linear } else { Growth::Constant }
}

/// A fabric that declares stronger guarantees than it keeps.
struct WeakFabric {
    inner: Arc<dyn Fabric>,
    declared: Capabilities,
}

impl Fabric for WeakFabric {
    farside_fabric::forward!(
        name,
        host,
        lease_ns,
        time_ns,
        register,
        deregister,
        open,
        register_memory
    );

    fn capabilities(&self) -> Capabilities {
        self.declared
    }
}

/// Number of schedules per order.
const SEEDS: u64 = 24;
/// Number of messages of a schedule: several rounds of the ring and of the mailboxes.
const TRIED: u32 = 60;

/// Message number `number`, of a length that differs from the adjacent ones.
fn tried(kind: Kind, number: u32) -> Vec<u8> {
    let more = if kind == Kind::SendBufferless { 0 } else { number * 37 % 300 };
    (0..4 + more)
        .map(|at| if at < 4 { (number >> (8 * at)) as u8 } else { number as u8 | 1 })
        .collect()
}

/// Whether every message arrives whole and once if the fabric keeps only this order, whatever it declares. The order
/// of arrival is not checked: it is the fabric's if messages arrive by completions.
fn survives(options: &Options, (message_order, byte_order): (bool, bool), seed: u64) -> bool {
    // With placed completions, acknowledgements need no order.
    let declared = Capabilities { completion_means_placed: true, ..INFINIBAND };
    let keeps = Capabilities { message_order, byte_order, ..declared };
    let net = SimNet::new(seed, SimOptions::new(keeps));
    let fabric = |name: &str| -> Arc<dyn Fabric> {
        Arc::new(WeakFabric { inner: net.fabric(name), declared })
    };
    let kind = options.kind;
    let mut receiver = Receiver::listen(fabric("receiver"), "order", options).unwrap();
    let mut sender = Sender::connect(fabric("sender"), "order", options).unwrap();
    let (mut sent, mut idle) = (0, 0);
    let mut came = [false; TRIED as usize];
    while idle < 20_000 {
        if sent < TRIED {
            match sender.send(&tried(kind, sent)) {
                Ok(Sent::Full) => {}
                Ok(Sent::Taken(_)) => sent += 1,
                Err(_) => return false,
            }
        }
        if sender.progress().is_err() {
            return false;
        }
        match receiver.poll() {
            Ok(None) => idle += 1,
            Ok(Some(message)) => {
                idle = 0;
                let bytes = message.to_vec();
                let number =
                    bytes.iter().take(4).rev().fold(0, |all, byte| all << 8 | u32::from(*byte));
                let new = came
                    .get_mut(number as usize)
                    .is_some_and(|came| !std::mem::replace(came, true));
                if !new || bytes != tried(kind, number) {
                    return false;
                }
                receiver.release(message);
                if came.iter().all(|came| *came) {
                    return true;
                }
            }
            Err(_) => return false,
        }
        net.step();
    }
    false
}

/// The weakest order with which every schedule delivers all messages, found by removing guarantees from a fabric that
/// still declares them.
fn order(kind: Kind) -> Order {
    let least = |signal| {
        let options = Options::new(kind, 320).slots(8).ring_bytes(4096).signal(signal);
        let holds = |order| (0..SEEDS).all(|seed| survives(&options, order, seed));
        match [(false, false), (true, false), (false, true), (true, true)].map(holds) {
            [true, ..] => Order::Nothing,
            [_, true, false, _] => Order::Messages,
            [_, false, true, _] => Order::Bytes,
            [_, false, false, true] => Order::MessagesAndBytes,
            other => panic!("{kind}, {signal:?}: {other:?}"),
        }
    };
    let word = least(Signal::Word);
    if !kind.has_second_channel() || word == least(Signal::Message) {
        word
    } else {
        Order::SecondChannel
    }
}

fn measure(kind: Kind) -> Row {
    let main = cost(kind, None);
    let second = [Signal::Word, Signal::Message].map(|signal| cost(kind, Some(signal)).event);
    let blocking = match second {
        [true, true] => Feature::Yes,
        [false, false] => Feature::No,
        _ => Feature::SecondChannel,
    };
    let repeats = |count| match kind {
        // An unchanged bell is fetched again; a destination or free space may have to be requested again.
        Kind::ReadSlotDetached
        | Kind::ReadSlotInlined
        | Kind::ReadRingDetached
        | Kind::ReadRingInlined => Count::AtLeast(count),
        _ => Count::Exactly(count),
    };
    let asks = |count| match kind {
        Kind::WriteSlotReserved | Kind::SharedRingImmediate | Kind::SharedRingInlinedZeroing => {
            Count::AtLeast(count)
        }
        _ => Count::Exactly(count),
    };
    Row {
        kind,
        half_round_trips: repeats(main.trips),
        sender_requests: asks(main.sender),
        receiver_requests: repeats(main.receiver),
        blocking,
        zero_copy_send: zero_copy_send(kind),
        zero_copy_receive: zero_copy_receive(kind),
        variable_size: variable_size(kind),
        memory_one_to_many: growth(&Options::new(kind, MESSAGE), false),
        memory_many_to_one: growth(&Options::new(kind, MESSAGE), true),
        requests: main.requests,
        order: order(kind),
    }
}

/// Returns the columns in which two rows differ, with both cells.
fn differences(one: &Row, other: &Row) -> Vec<(&'static str, String, String)> {
    let mut all = Vec::new();
    macro_rules! compare {
        ($($column:ident)*) => {
            $(if one.$column != other.$column {
                all.push((stringify!($column), one.$column.to_string(), other.$column.to_string()));
            })*
        };
    }
    compare!(half_round_trips sender_requests receiver_requests blocking zero_copy_send
        zero_copy_receive variable_size memory_one_to_many memory_many_to_one requests order);
    all
}

#[test]
fn every_cell_is_what_is_printed() {
    let mut wrong = Vec::new();
    for (kind, printed) in Kind::ALL.into_iter().zip(&MEASURED) {
        for (column, printed, measured) in differences(printed, &measure(kind)) {
            wrong.push(format!("{kind} {column}: printed {printed}, measured {measured}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the requests and completions of both ends over several rounds of the memory.
fn traffic(options: &Options) -> (Record, Record) {
    let mut scene = ConnectedEnds::new(&options.slots(SLOTS));
    let message = scene.message();
    for _ in 0..8 * SLOTS {
        let received = scene.exchange(&message);
        scene.receiver.release(received);
    }
    (scene.at_sender.take(), scene.at_receiver.take())
}

fn is_passive(record: &Record) -> bool {
    record.posted.is_empty() && record.receives == 0 && record.arrived == 0
}

/// 001 §3: an end is passive if it submits no work request and consumes no completion.
#[test]
fn advisor_marks_passive_exactly_the_ends_that_post_nothing() {
    for (need, of_sender) in [(Need::PassiveSender, true), (Need::PassiveReceiver, false)] {
        let usual = Requirements::default().needs([need]).message_bytes_max(MESSAGE);
        let requirements = |kind| match kind {
            Kind::SendBufferless => usual.clone().message_bytes_max(4),
            _ => usual.clone(),
        };
        for kind in Kind::ALL {
            let advice = advise(&requirements(kind), &INFINIBAND);
            let advised = advice.candidates.iter().find(|candidate| candidate.kind == kind);
            // Otherwise the least that the channel can post.
            let receiver_reads = kind.family() != Family::SendReceive && !of_sender;
            let least = options(kind, Some(Signal::Word))
                .acknowledge(receiver_reads.then_some(Acknowledge::ReadTail));
            let (sender, receiver) =
                traffic(advised.map_or(&least, |candidate| &candidate.options));
            let passive = is_passive(if of_sender { &sender } else { &receiver });
            assert_eq!(passive, advised.is_some(), "{kind}, {need}: {sender:?} {receiver:?}");
        }
    }
}

/// As in the paper: a receiver that chooses the destinations of its fetches keeps no memory for each sender.
#[test]
fn receivers_of_offers_only_keep_no_memory_per_sender() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.shares_sender()) {
        let options = Options::new(kind, MESSAGE).offers_only(true);
        assert_eq!(growth(&options, true), Growth::Constant, "{kind}");
        assert_eq!(growth(&options.offers_only(false), true), Growth::Linear, "{kind}");
    }
}

#[test]
fn deviating_cells_have_reasons_and_others_none() {
    let mut without = Vec::new();
    let mut with = 0;
    for (printed, paper) in MEASURED.iter().zip(&PAPER) {
        assert_eq!(printed.kind, paper.kind);
        for (column, ours, papers) in differences(printed, paper) {
            match DEVIATIONS.iter().find(|(kind, of, _)| (*kind, *of) == (printed.kind, column)) {
                Some((_, _, reason)) => {
                    assert!(!reason.is_empty());
                    with += 1;
                }
                None => without.push(format!("{} {column}: {ours}, paper {papers}", printed.kind)),
            }
        }
    }
    assert!(without.is_empty(), "{}", without.join("\n"));
    assert_eq!(with, DEVIATIONS.len(), "a reason for a cell that is the paper's");
}
