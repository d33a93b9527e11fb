//! Five numbers over a data channel between two threads; the kind of channel is an argument.
//!
//! `cargo run -p farside --example channels -- read-ring-inlined`

use farside::channel::{Kind, Options, Receiver, Sender};
use farside::{Error, ErrorCode, fabrics};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

fn send(address: &str, options: &Options) -> Result<(), Error> {
    let mut sender = Sender::connect(fabrics::shared_memory()?, address, options)?;
    for number in 0..5_u32 {
        sender.send_wait(&number.to_le_bytes(), TIMEOUT)?; // waits while the channel is full
    }
    sender.close(TIMEOUT) // once all of them have been received and released
}

fn receive(mut receiver: Receiver) -> Result<(), Error> {
    for number in 0..5_u32 {
        let message = receiver.receive(TIMEOUT)?; // spins at first, then sleeps
        assert_eq!(message.to_vec(), number.to_le_bytes());
        receiver.release(message); // its memory may be used again
    }
    receiver.close(TIMEOUT) // acknowledges them, and waits until the sender has closed too
}

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "ring-inlined".to_owned());
    let kind: Kind = name
        .parse()
        .map_err(|error| Error::with(ErrorCode::BadConfiguration, format!("{name}: {error}")))?;
    let address = format!("example-{}", std::process::id());
    let options = Options::new(kind, 1024); // messages of up to 1 KiB; equal at both ends
    let receiver = Receiver::listen(fabrics::shared_memory()?, &address, &options)?;
    let sender = std::thread::spawn(move || send(&address, &options));
    receive(receiver)?;
    sender.join().unwrap_or_else(|_| Err(ErrorCode::PeerLost.into()))
}
