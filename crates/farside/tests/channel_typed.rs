//! Typed channels: values of every channel, and everything that is not a value of the type.

use farside::ErrorCode;
use farside::channel::{Kind, Options, Receiver, TypedReceiver, TypedSender};
use farside::zerocopy::{FromBytes, Immutable, IntoBytes};
use farside_fabric::{Fabric, MemFabric};
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
#[zerocopy(crate = "farside::zerocopy")]
struct Sample {
    number: u64,
    parts: [u32; 2],
}

impl Sample {
    fn new(number: u64) -> Self {
        Self { number, parts: [number as u32 * 3, !(number as u32)] }
    }
}

fn fabric() -> Arc<dyn Fabric> {
    Arc::new(MemFabric::new())
}

fn code<T: std::fmt::Debug>(result: Result<T, farside::Error>) -> ErrorCode {
    result.unwrap_err().code
}

#[test]
fn values_and_slices_of_every_channel_arrive_in_order() {
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::SendBufferless) {
        let (fabric, options) = (fabric(), Options::typed::<Sample>(kind, 8).slots(4));
        let mut receiver =
            TypedReceiver::<Sample>::listen(Arc::clone(&fabric), "values", &options).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut sender = TypedSender::connect(fabric, "values", &options).unwrap();
                sender.wait_for_peers(1, PATIENCE).unwrap();
                for number in 0..100 {
                    sender.send_wait(&Sample::new(number), PATIENCE).unwrap();
                    let count = 1 + number % 8;
                    let values: Vec<Sample> = (number..number + count).map(Sample::new).collect();
                    sender.send_slice_wait(&values, PATIENCE).unwrap();
                }
                sender.close(PATIENCE).unwrap();
            });
            for number in 0..100 {
                assert_eq!(receiver.receive(PATIENCE).unwrap(), Sample::new(number), "{kind}");
                let values = receiver.receive_slice(PATIENCE).unwrap();
                let expected = (number..number + 1 + number % 8).map(Sample::new);
                assert!(values.iter().copied().eq(expected), "{kind}: {values:?}");
            }
            receiver.close(PATIENCE).unwrap();
        });
    }
}

#[test]
fn integers_of_the_channel_without_memory_are_values() {
    let (fabric, options) = (fabric(), Options::typed::<u32>(Kind::SendBufferless, 1));
    let mut receiver = TypedReceiver::listen(Arc::clone(&fabric), "u32", &options).unwrap();
    let mut sender = TypedSender::<u32>::connect(fabric, "u32", &options).unwrap();
    receiver.wait_for_peers(1, PATIENCE).unwrap();
    sender.send_wait(&0xdead_beef, PATIENCE).unwrap();
    assert_eq!(receiver.receive(PATIENCE), Ok(0xdead_beef_u32));
}

#[test]
fn types_of_other_sizes_and_untyped_ends_are_refused_when_connecting() {
    let fabric = fabric();
    let options = Options::new(Kind::RingInlined, 64);
    let mut receiver =
        TypedReceiver::<Sample>::listen(Arc::clone(&fabric), "sizes", &options).unwrap();
    let mut other = TypedSender::<u64>::connect(Arc::clone(&fabric), "sizes", &options).unwrap();
    receiver.untyped().progress().unwrap();
    let refused = other.wait_for_peers(1, PATIENCE).unwrap_err();
    assert_eq!(refused.code, ErrorCode::ChannelMismatch);
    assert!(refused.detail.contains("16 there, 8 here"), "{refused}");

    let mut untyped = Receiver::listen(Arc::clone(&fabric), "untyped", &options).unwrap();
    let mut typed = TypedSender::<Sample>::connect(fabric, "untyped", &options).unwrap();
    untyped.progress().unwrap();
    let refused = typed.wait_for_peers(1, PATIENCE).unwrap_err();
    assert_eq!(refused.code, ErrorCode::ChannelMismatch);
    assert!(refused.detail.contains("0 there, 16 here"), "{refused}");
}

#[test]
fn types_that_no_message_holds_are_refused_when_opening() {
    let (fabric, options) = (fabric(), Options::new(Kind::RingInlined, 15));
    let long = TypedSender::<Sample>::listen(Arc::clone(&fabric), "none", &options).unwrap_err();
    assert_eq!(long.code, ErrorCode::BadConfiguration);
    assert!(long.detail.contains("Sample has 16 bytes"), "{long}");
    assert!(long.detail.contains("message_bytes_max is 15"), "{long}");
    let empty = TypedReceiver::<()>::listen(Arc::clone(&fabric), "none", &options);
    assert_eq!(code(empty), ErrorCode::BadConfiguration);
    let huge = Options::typed::<[u64; 1 << 20]>(Kind::RingInlined, u32::MAX);
    assert_eq!(huge.message_bytes_max, u32::MAX);
    let huge = TypedReceiver::<[u64; 1 << 20]>::listen(fabric, "none", &huge);
    assert_eq!(code(huge), ErrorCode::FabricLacks, "over the longest transfer of the fabric");
}

#[test]
fn messages_of_other_lengths_are_errors_and_are_released() {
    let (fabric, options) =
        (fabric(), Options::typed::<Sample>(Kind::WriteSlotInlined, 2).slots(2));
    let mut receiver =
        TypedReceiver::<Sample>::listen(Arc::clone(&fabric), "lengths", &options).unwrap();
    let mut sender = TypedSender::<Sample>::connect(fabric, "lengths", &options).unwrap();
    receiver.wait_for_peers(1, PATIENCE).unwrap();
    // More often than there are mailboxes, so that each message must have been released.
    for _ in 0..6 {
        sender.untyped().send_wait(&[1; 17], PATIENCE).unwrap();
        let error = receiver.receive(PATIENCE).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadForm);
        assert!(error.detail.contains("the message has 17 bytes"), "{error}");
        sender.untyped().send_wait(&[1; 17], PATIENCE).unwrap();
        assert_eq!(code(receiver.receive_slice(PATIENCE)), ErrorCode::BadForm);
        sender.send_slice_wait(&[Sample::new(1); 2], PATIENCE).unwrap();
        let several = receiver.receive(PATIENCE).unwrap_err();
        assert!(several.detail.contains("receive_slice"), "{several}");
        receiver.untyped().acknowledge();
    }
    sender.send_wait(&Sample::new(9), PATIENCE).unwrap();
    let message = receiver.untyped().receive(PATIENCE).unwrap();
    assert_eq!((message.from(), receiver.value(message)), (0, Ok(Sample::new(9))));
}
