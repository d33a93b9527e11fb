//! Every channel between two ends, on every fabric.

use farside::ErrorCode;
use farside::channel::{
    Connection, DuplexOptions, Family, Kind, Options, Receiver, Sender, Sent, Service,
};
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_testkit::until;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Creates the fabric of an end; both ends can reach each other over the fabrics it creates.
type Make = dyn Fn() -> Arc<dyn Fabric>;

fn mem() -> Box<Make> {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    Box::new(move || Arc::clone(&fabric))
}

fn shm() -> Box<Make> {
    Box::new(|| Arc::new(ShmFabric::new().unwrap()))
}

fn name(what: &str, kind: Kind) -> String {
    format!("channels-{}-{what}-{kind}", std::process::id())
}

/// Returns a message whose length and content are derived from its number.
fn message(number: u32, options: &Options) -> Vec<u8> {
    if options.kind == Kind::SendBufferless {
        return number.to_le_bytes().to_vec();
    }
    let bytes = 4 + (number.wrapping_mul(2_654_435_761) >> 8) % (options.message_bytes_max - 3);
    let mut out = number.to_le_bytes().to_vec();
    out.extend((4..bytes).map(|at| (number.wrapping_add(at) % 251) as u8));
    out
}

fn options(kind: Kind) -> Options {
    Options::new(kind, 500).slots(8).ring_bytes(4096)
}

/// Polls a sender; returns the number of its receivers. Errors persist, or are those of another peer.
fn receivers_of(sender: &mut Sender) -> usize {
    let _ = sender.progress();
    sender.peers()
}

/// The same for a receiver.
fn senders_of(receiver: &mut Receiver) -> usize {
    let _ = receiver.progress();
    receiver.peers()
}

/// Connects both ends on one thread.
fn pair(make: &Make, what: &str, options: &Options) -> (Sender, Receiver) {
    let name = name(what, options.kind);
    let mut receiver = Receiver::listen(make(), &name, options).unwrap();
    let mut sender = Sender::connect(make(), &name, options).unwrap();
    receiver.wait_for_peers(1, PATIENCE).unwrap();
    sender.wait_for_peers(1, PATIENCE).unwrap();
    (sender, receiver)
}

fn stream(make: &Make, what: &str, options: &Options, count: u32) {
    let (mut sender, mut receiver) = pair(make, what, options);
    let (mut sent, mut received) = (0, 0);
    let end = Instant::now() + PATIENCE;
    while received < count {
        assert!(Instant::now() < end, "{}: {received} of {sent}", options.kind);
        while sent < count {
            match sender.send(&message(sent, options)).unwrap() {
                Sent::Taken(_) => sent += 1,
                Sent::Full => break,
            }
        }
        sender.progress().unwrap();
        while let Some(message_in) = receiver.poll().unwrap() {
            let expected = message(received, options);
            assert_eq!(message_in.to_vec(), expected, "{} message {received}", options.kind);
            receiver.release(message_in);
            received += 1;
        }
    }
    receiver.acknowledge();
    while !sender.try_flush().unwrap() {
        assert!(Instant::now() < end, "{}: never drained", options.kind);
        let _ = receiver.poll().unwrap();
        receiver.acknowledge();
    }
}

const KINDS: [Kind; 20] = Kind::ALL;

fn everywhere(test: impl Fn(&Make, &str, Kind)) {
    for (kind, on) in KINDS.into_iter().flat_map(|kind| [(kind, "mem"), (kind, "shm")]) {
        let make = if on == "mem" { mem() } else { shm() };
        let run = std::panic::AssertUnwindSafe(|| test(&*make, on, kind));
        assert!(std::panic::catch_unwind(run).is_ok(), "{kind} on {on}");
    }
}

#[test]
fn messages_of_every_channel_arrive_once_whole_and_in_order() {
    everywhere(|make, what, kind| {
        for mirrored in [false, true] {
            let options = options(kind).mirrored(mirrored);
            stream(make, &format!("stream-{what}"), &options, 5_000);
        }
    });
}

/// Polls a condition until it holds.
fn code<T: std::fmt::Debug>(result: Result<T, farside::Error>) -> ErrorCode {
    result.unwrap_err().code
}

#[test]
fn receiver_serves_many_senders_and_outlives_each() {
    everywhere(|make, what, kind| {
        let options = options(kind).peers(4);
        let name = name(&format!("fan-in-{what}"), kind);
        let mut receiver = Receiver::listen(make(), &name, &options).unwrap();
        let mut senders: Vec<Sender> =
            (0..4).map(|_| Sender::connect(make(), &name, &options).unwrap()).collect();
        until("all connect", || {
            senders_of(&mut receiver);
            senders.iter_mut().all(|sender| receivers_of(sender) == 1)
        });
        let mut counts = [0; 4];
        let mut sent = [0; 4];
        until("all come", || {
            for (at, sender) in senders.iter_mut().enumerate() {
                if sent[at] < 500
                    && sender.send(&(sent[at] as u32).to_le_bytes()).unwrap() != Sent::Full
                {
                    sent[at] += 1;
                }
                sender.progress().unwrap();
            }
            while let Some(message) = receiver.poll().unwrap() {
                let number = u32::from_le_bytes(message.to_vec().try_into().unwrap());
                assert_eq!(number, counts[message.from()], "{kind}");
                counts[message.from()] += 1;
                receiver.release(message);
            }
            counts.iter().all(|count| *count == 500)
        });
        // One sender disconnects; its slot is free for the next.
        assert_eq!(
            code(Sender::connect(make(), &name, &options).and_then(|mut fifth| {
                until("it hears", || {
                    senders_of(&mut receiver);
                    fifth.progress().is_err()
                });
                fifth.progress()
            })),
            ErrorCode::ChannelFull
        );
        drop(senders.pop());
        until("it is missed", || senders_of(&mut receiver) == 3 && receiver.poll().is_ok());
        let mut next = Sender::connect(make(), &name, &options).unwrap();
        until("the next one connects", || {
            senders_of(&mut receiver) == 4 && receivers_of(&mut next) == 1
        });
        let mut sent = false;
        until("it comes", || {
            sent = sent || next.send(&7_u32.to_le_bytes()).unwrap() != Sent::Full;
            next.progress().unwrap();
            receiver.poll().unwrap().is_some_and(|message| {
                assert_eq!(message.to_vec(), 7_u32.to_le_bytes());
                receiver.release(message);
                true
            })
        });
    });
}

#[test]
fn sender_serves_many_receivers() {
    everywhere(|make, what, kind| {
        let options = options(kind).peers(3);
        let name = name(&format!("fan-out-{what}"), kind);
        let mut sender = Sender::listen(make(), &name, &options).unwrap();
        let mut receivers: Vec<Receiver> =
            (0..3).map(|_| Receiver::connect(make(), &name, &options).unwrap()).collect();
        until("all connect", || {
            receivers_of(&mut sender);
            receivers.iter_mut().all(|receiver| senders_of(receiver) == 1)
        });
        let (mut sent, mut counts) = (0_u32, [0_u32; 3]);
        until("all come", || {
            if sent < 300 && sender.send(&sent.to_le_bytes()).unwrap() != Sent::Full {
                sent += 1;
            }
            sender.progress().unwrap();
            for (receiver, count) in receivers.iter_mut().zip(&mut counts) {
                while let Some(message) = receiver.poll().unwrap() {
                    assert_eq!(message.to_vec(), count.to_le_bytes(), "{kind}");
                    receiver.release(message);
                    *count += 1;
                }
            }
            counts == [300; 3]
        });
    });
}

#[test]
fn service_answers_each_client_individually() {
    everywhere(|make, what, kind| {
        // A client can be answered individually unless all receivers of the channel read one memory.
        let back = if kind.shares_sender() { Kind::RingInlined } else { kind };
        let both = DuplexOptions::new(options(kind).peers(3), options(back).peers(3));
        let name = name(&format!("service-{what}"), kind);
        let fabric = make();
        let mut service = Service::listen(&fabric, &name, &both).unwrap();
        std::thread::scope(|threads| {
            let clients: Vec<_> = (0..3_u32)
                .map(|number| {
                    let (fabric, name) = (make(), name.clone());
                    threads.spawn(move || {
                        let mut client = Connection::connect(&fabric, &name, &both).unwrap();
                        client.wait(PATIENCE).unwrap();
                        for round in 0..50_u8 {
                            let request = [number as u8, round, 1, 2];
                            let answer = client.call(&request, PATIENCE).unwrap();
                            let expected: Vec<u8> = request.iter().rev().copied().collect();
                            assert_eq!(answer.to_vec(), expected);
                            client.receiver.release(answer);
                        }
                    })
                })
                .collect();
            for _ in 0..150 {
                let (message, client) = service.wait(PATIENCE).unwrap();
                let answer: Vec<u8> = message.to_vec().iter().rev().copied().collect();
                service.release(message);
                service.answer_wait(client, &answer, PATIENCE).unwrap();
            }
            until("all clients are done", || {
                assert!(service.poll().unwrap().is_none());
                let _ = service.sender.progress();
                clients.iter().all(|client| client.is_finished())
            });
            for client in clients {
                client.join().unwrap();
            }
        });
    });
}

#[test]
fn bad_input_is_a_typed_error_without_side_effects() {
    everywhere(|make, what, kind| {
        let good = options(kind);
        let name = name(&format!("bad-{what}"), kind);
        assert_eq!(code(Sender::connect(make(), &name, &good)), ErrorCode::NoListener);
        let mut receiver = Receiver::listen(make(), &name, &good).unwrap();
        assert_eq!(code(Receiver::listen(make(), &name, &good)), ErrorCode::AddressTaken);
        let odd = good.ring_bytes(5000);
        assert_eq!(code(Sender::connect(make(), &name, &odd)), ErrorCode::BadConfiguration);
        let empty = good.message_bytes_max(0);
        assert_eq!(code(Sender::connect(make(), &name, &empty)), ErrorCode::BadConfiguration);
        let other = good.message_bytes_max(100);
        let mut stranger = Sender::connect(make(), &name, &other).unwrap();
        let mut told = None;
        until("it is refused", || {
            senders_of(&mut receiver);
            told = told.take().or(stranger.progress().err());
            told.is_some()
        });
        let told = told.unwrap();
        assert_eq!(told.code, ErrorCode::ChannelMismatch);
        assert!(told.detail.contains("message_bytes_max (500 there, 100 here)"), "{told}");
        assert_eq!(stranger.progress().unwrap_err(), told, "it stays refused");
        assert_eq!(code(stranger.send(&[0; 101])), ErrorCode::TooLarge);
        let mut backwards = Receiver::connect(make(), &name, &good).unwrap();
        until("it is refused", || {
            senders_of(&mut receiver);
            backwards.poll().is_err_and(|error| error.code == ErrorCode::ChannelMismatch)
        });
        let mut sender = Sender::connect(make(), &name, &good).unwrap();
        until("they connect", || receivers_of(&mut sender).min(senders_of(&mut receiver)) == 1);
        let integer = kind == Kind::SendBufferless;
        let long = sender.send(&[0; 501]).unwrap_err();
        assert_eq!(long.code, ErrorCode::TooLarge);
        assert!(long.detail.contains("501") && long.detail.contains("500"), "{long}");
        let mut further = Sender::connect(make(), &name, &good).unwrap();
        let mut told = None;
        until("it is refused", || {
            senders_of(&mut receiver);
            told = told.take().or(further.progress().err());
            told.is_some()
        });
        let told = told.unwrap();
        assert_eq!(told.code, ErrorCode::ChannelFull);
        assert!(told.detail.contains("peers is 1"), "{told}");
        assert_eq!(further.progress().unwrap_err(), told, "no peer was lost");
        let longest = vec![1; if integer { 4 } else { 500 }];
        let mut sent = false;
        until("it comes", || {
            sent = sent || sender.send(&longest).unwrap() != Sent::Full;
            sender.progress().unwrap();
            receiver.poll().unwrap().is_some_and(|message| {
                assert_eq!(code(message.read(1, &mut [0; 500])), ErrorCode::OutOfBounds);
                assert_eq!(message.to_vec(), longest);
                receiver.release(message);
                true
            })
        });
        drop(receiver);
        until("the loss is reported", || sender.progress().is_err());
        assert_eq!(code(sender.send(&[1; 4])), ErrorCode::PeerLost);
    });
}

#[test]
fn messages_over_the_limit_are_refused_before_any_peer_connects() {
    everywhere(|make, what, kind| {
        let mut sender =
            Sender::listen(make(), &name(&format!("long-{what}"), kind), &options(kind)).unwrap();
        let long = sender.send(&[0; 501]).unwrap_err();
        assert_eq!(long.code, ErrorCode::TooLarge);
        assert!(long.detail.contains("501") && long.detail.contains("500"), "{long}");
        assert_eq!(sender.send(&[0; 4]), Ok(Sent::Full));
    });
}

/// An error about a limit of the fabric names the limit, its value, and the value requested.
#[test]
fn fabric_limit_is_reported_with_its_value() {
    let shm = || farside::fabrics::shared_memory().unwrap();
    let options = Options::new(Kind::Send, 100_000);
    let refused = Sender::listen(shm(), "limit-of-the-fabric", &options).unwrap_err();
    assert_eq!(refused.code, ErrorCode::FabricLacks);
    for part in ["100000 bytes", "`send_bytes_max`", "shm has 8192", "message_bytes_max"] {
        assert!(refused.detail.contains(part), "{part}: {refused}");
    }
    let options = Options::new(Kind::WriteSlotInlined, 100).slots(5000);
    let refused = Sender::listen(shm(), "limit-of-the-fabric", &options).unwrap_err();
    assert_eq!(refused.code, ErrorCode::BadConfiguration);
    assert!(refused.detail.contains("1 to 4096") && refused.detail.contains("5000"), "{refused}");
}

#[test]
fn messages_sent_before_a_loss_are_received() {
    everywhere(|make, what, kind| {
        let (mut sender, mut receiver) = pair(make, &format!("death-{what}"), &options(kind));
        // Messages that the receiver fetches, or that need a request first, are lost with their sender.
        let pushes = !kind.receiver_names_destination()
            && !matches!(kind.family(), Family::SharedRing)
            && kind != Kind::WriteSlotReserved;
        for number in 0..3_u32 {
            let sent = sender.send(&number.to_le_bytes()).unwrap();
            assert!(sent != Sent::Full || !pushes, "{kind}");
        }
        drop(sender);
        until("the loss is reported", || senders_of(&mut receiver) == 0);
        for number in 0..if pushes { 3_u32 } else { 0 } {
            let message = receiver.poll().unwrap().expect("it had arrived");
            assert_eq!(message.to_vec(), number.to_le_bytes());
            receiver.release(message);
        }
        until("the end is reported", || match receiver.poll() {
            Ok(None) => false,
            Ok(Some(message)) => {
                assert!(!pushes && message.len() == 4, "{kind}");
                receiver.release(message);
                false
            }
            Err(error) => error.code == ErrorCode::PeerLost,
        });
    });
}

#[test]
fn slices_are_sent_in_place() {
    everywhere(|make, what, kind| {
        let (mut sender, mut receiver) = pair(make, &format!("slices-{what}"), &options(kind));
        let buffer = sender.register(4096).unwrap();
        buffer.write(100, &[3; 300]).unwrap();
        let slices = [buffer.slice(100, 50).unwrap(), buffer.slice(150, 101).unwrap()];
        let mut sent = Ok(Sent::Full);
        let mut early = None;
        until("there is space", || {
            early = early.take().or_else(|| receiver.poll().unwrap());
            sent = sender.send_slices(&slices);
            !matches!(sent, Ok(Sent::Full))
        });
        let ticket = match sent {
            Ok(Sent::Taken(ticket)) => ticket,
            other => {
                assert!(kind.stages(), "{kind}");
                assert!(matches!(code(other), ErrorCode::BadForm | ErrorCode::TooLarge));
                return;
            }
        };
        until("its source is free", || {
            early = early.take().or_else(|| receiver.poll().unwrap());
            sender.progress().unwrap();
            sender.is_done(ticket)
        });
        buffer.write(100, &[9; 300]).unwrap();
        until("it comes", || {
            sender.progress().unwrap();
            early = early.take().or_else(|| receiver.poll().unwrap());
            early.is_some()
        });
        let message = early.unwrap();
        assert_eq!(message.to_vec(), [3; 151], "{kind}");
        receiver.release(message);
        assert_eq!(code(buffer.slice(4000, 100)), ErrorCode::OutOfBounds);
    });
}

#[test]
fn messages_are_handed_over_in_place() {
    let kinds = [
        Kind::ReadSlotDetached,
        Kind::ReadSlotInlined,
        Kind::ReadSlotNotify,
        Kind::ReadRingInlined,
    ];
    for (kind, on) in kinds.into_iter().flat_map(|kind| [(kind, "mem"), (kind, "shm")]) {
        let make = if on == "mem" { mem() } else { shm() };
        let options = options(kind);
        let (mut sender, mut receiver) = pair(&*make, &format!("in-place-{on}"), &options);
        let end = Instant::now() + PATIENCE;
        // Several rounds of the memory, so that each slot has been released.
        for round in 0..100_u8 {
            let loan = loop {
                assert!(Instant::now() < end, "{kind} on {on}: no loan in round {round}");
                receiver.acknowledge();
                if let Some(loan) = sender.loan(300).unwrap() {
                    break loan;
                }
            };
            loan.write(0, &[round; 300]).unwrap();
            assert!(matches!(sender.send_loan(loan, 300).unwrap(), Sent::Taken(_)));
            let offer = loop {
                assert!(Instant::now() < end, "{kind} on {on}: no offer in round {round}");
                sender.progress().unwrap();
                if let Some(offer) = receiver.offer().unwrap() {
                    break offer;
                }
            };
            let message = receiver.look_at(&offer).expect("both fabrics reach each other's memory");
            let mut out = [0; 300];
            message.read(0, &mut out).unwrap();
            assert_eq!((message.len(), out), (300, [round; 300]), "{kind} on {on}");
            assert_eq!(message.read(1, &mut out).unwrap_err().code, ErrorCode::OutOfBounds);
            receiver.decline(offer).unwrap();
            assert_eq!(receiver.decline(offer).unwrap_err().code, ErrorCode::NotHeld);
        }
    }
}
