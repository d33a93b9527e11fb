//! Values of a type over a data channel.
//!
//! `cargo run -p farside --example channel_typed`

use farside::channel::{Kind, Options, TypedReceiver, TypedSender};
use farside::fabrics;
use farside::zerocopy::{FromBytes, Immutable, IntoBytes};
use std::time::Duration;

#[derive(FromBytes, IntoBytes, Immutable, PartialEq, Debug)]
#[repr(C)]
#[zerocopy(crate = "farside::zerocopy")] // for a program that does not depend on zerocopy itself
struct Sample {
    time_ns: u64,
    value: f64,
}

fn main() -> Result<(), farside::Error> {
    let timeout = Duration::from_secs(10);
    let name = format!("samples-{}", std::process::id());
    let options = Options::typed::<Sample>(Kind::RingInlined, 16); // up to 16 of them in a message
    let mut receiver = TypedReceiver::<Sample>::listen(fabrics::shared_memory()?, &name, &options)?;
    let mut sender = TypedSender::<Sample>::connect(fabrics::shared_memory()?, &name, &options)?;
    receiver.wait_for_peers(1, timeout)?; // both ends on one thread: accept before sending

    sender.send_wait(&Sample { time_ns: 1, value: 0.5 }, timeout)?;
    assert_eq!(receiver.receive(timeout)?, Sample { time_ns: 1, value: 0.5 });
    Ok(())
}
