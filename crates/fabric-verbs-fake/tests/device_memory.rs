//! Memory at the adapter: as a region, and with the words of channels in it. The fake library copies
//! words of four bytes, as mlx5's provider does, so that a peer may see the halves of a word apart.

mod node;

use farside::channel::{DeviceWords, Kind, Options, Receiver, Sender, Sent};
use farside::{Error, ErrorCode};
use farside_base::{Access, OutOfBounds, RegionKind};
use farside_fabric::{Fabric, FabricError, Region, RegionSpec};
use farside_fabric_verbs::VerbsFabric;
use farside_fabric_verbs_fake::Odd;
use node::{FakeNode, WATCHDOG, alone, options};
use std::sync::Arc;
use std::time::Instant;

fn device(fabric: &VerbsFabric, bytes: u64) -> Result<Region, FabricError> {
    fabric.register(&RegionSpec { bytes, access: Access::ALL, kind: RegionKind::Device })
}

#[test]
fn words_at_the_adapter_are_whole_for_their_owner_and_end_with_the_region() {
    let (_one, fake) = alone();
    let node = FakeNode::new("near");
    let region = device(&node.fabric, 100).expect("a region");
    assert_eq!((region.token.bytes, region.arena.len(), fake.allocations()), (104, 0, 1));
    let words = region.memory();
    for word in [u64::from(u32::MAX), 1 << 32, 0x0102_0304_0506_0708, 0] {
        words.store_word(96, word).expect("a word");
        assert_eq!(words.load_word(96), Ok(word));
    }
    assert_eq!(words.load_word(88), Ok(0), "zeroed, which the adapter's memory is not");
    words.write(8, &[7; 24]).expect("whole words of four bytes");
    words.clear(12, 8).expect("the same");
    let mut out = [1; 24];
    words.read(8, &mut out).expect("the same");
    assert_eq!((out[3], out[4], out[11], out[12]), (7, 0, 0, 7));
    for wrong in [words.store_word(4, 1), words.store_word(104, 1), words.write(100, &[0; 8])] {
        assert_eq!(wrong, Err(OutOfBounds));
    }
    assert_eq!(words.read(9, &mut out[..4]), Err(OutOfBounds), "no whole words");
    node.fabric.deregister(region.id).expect("its end");
    assert_eq!(region.memory().load_word(0), Err(OutOfBounds));
    assert_eq!((fake.allocations(), fake.violations()), (0, 0));
}

#[test]
fn a_device_without_memory_of_its_own_is_refused_by_name() {
    let (_one, fake) = alone();
    fake.say(Odd::DeviceBytes, 0);
    let node = FakeNode::new("near");
    assert!(matches!(device(&node.fabric, 8), Err(FabricError::Lacks("device_memory"))));
    let refused = receiver(&node.fabric, "ring", DeviceWords::Head, Kind::SharedRingImmediate);
    let error = refused.expect_err("a refusal");
    assert_eq!(error.code, ErrorCode::FabricLacks);
    assert!(error.detail.contains("`device_bytes_max`"), "{error}");
}

fn shape(kind: Kind, device: DeviceWords) -> Options {
    Options::new(kind, 100).peers(3).slots(8).ring_bytes(4096).device(device)
}

fn receiver(
    fabric: &VerbsFabric,
    name: &str,
    device: DeviceWords,
    kind: Kind,
) -> Result<Receiver, Error> {
    Receiver::listen(Arc::new(fabric.clone()), name, &shape(kind, device))
}

fn sender(to: &VerbsFabric, name: &str, options: &Options) -> Sender {
    let fabric = VerbsFabric::open(node::options()).expect("the fake device");
    let address = format!("{}/{name}", to.listening().expect("a listener"));
    Sender::connect(Arc::new(fabric), &address, options).expect("a sender")
}

/// A message that its sender may not live to write.
const LEFT: [u8; 8] = [0xff; 8];

/// Sends numbers in rotation and receives until `each` have arrived from each sender.
fn exchange(receiver: &mut Receiver, senders: &mut [Sender], each: u32) {
    let mut sent = vec![0_u32; senders.len()];
    let mut came = vec![0_u32; senders.len()];
    let start = Instant::now();
    while came.iter().any(|count| *count < each) {
        assert!(start.elapsed() < WATCHDOG, "{came:?} of {each}");
        for (at, sender) in senders.iter_mut().enumerate() {
            let message = [(at as u32).to_le_bytes(), sent[at].to_le_bytes()].concat();
            if sent[at] < each && sender.send(&message).expect("a sender") != Sent::Full {
                sent[at] += 1;
            }
            sender.progress().expect("a sender");
        }
        while let Some(message) = receiver.poll().expect("a receiver") {
            let bytes = message.to_vec();
            if bytes == LEFT {
                receiver.release(message);
                continue;
            }
            let word = |at| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
            assert_eq!(word(4), came[word(0) as usize], "in the order of sending");
            came[word(0) as usize] += 1;
            receiver.release(message);
        }
    }
}

#[test]
fn shared_rings_run_with_any_of_their_words_at_the_adapter() {
    let (_one, fake) = alone();
    for kind in [Kind::SharedRingInlinedZeroing, Kind::SharedRingImmediate] {
        for device in DeviceWords::ALL {
            let node = VerbsFabric::open(options()).expect("the fake device");
            let mut receiver = receiver(&node, "ring", device, kind).expect("a receiver");
            assert_eq!(fake.allocations(), u64::from(device != DeviceWords::Nothing), "{device:?}");
            let mut senders: Vec<Sender> =
                (0..2).map(|_| sender(&node, "ring", &shape(kind, device))).collect();
            exchange(&mut receiver, &mut senders, 200);
            // A closed sender leaves its reservation: the other one finds that by the head and
            // continues.
            assert_ne!(senders[1].send(&LEFT).expect("a sender"), Sent::Full);
            drop(senders.pop());
            exchange(&mut receiver, &mut senders, 100);
            drop((receiver, senders));
            assert_eq!((fake.allocations(), fake.violations()), (0, 0), "{kind} {device:?}");
        }
    }
}

#[test]
fn bells_that_readers_must_see_whole_are_refused_by_name() {
    let (_one, _fake) = alone();
    let node = VerbsFabric::open(options()).expect("the fake device");
    for kind in [Kind::ReadSlotDetached, Kind::ReadRingDetached] {
        let listen = |device| Sender::listen(Arc::new(node.clone()), "bells", &shape(kind, device));
        let error = listen(DeviceWords::Head).expect_err("a refusal");
        assert_eq!(error.code, ErrorCode::FabricLacks);
        assert!(error.detail.contains("`device_words`"), "{error}");
        // Without bells in device memory no word is needed there.
        listen(DeviceWords::Tail).expect("a sender");
    }
}
