//! The README's example of data channels: which of the twenty it is, is a string.
//!
//! `cargo run -p farside --example channels -- read-ring-inlined`

use farside::channel::{Kind, Options, Receiver, Sender};
use farside::{Error, ErrorCode, fabrics};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

fn send(kind: Kind, address: &str) -> Result<(), Error> {
    let options = Options::new(kind, 1024); // messages of up to 1 KiB; equal at both ends
    let mut sender = Sender::connect(fabrics::shared_memory()?, address, &options)?;
    for number in 0..5_u32 {
        sender.send_wait(&number.to_le_bytes(), PATIENCE)?; // waits while the channel is full
    }
    while !sender.is_drained()? {} // until all of them have been received and released
    Ok(())
}

fn receive(receiver: &mut Receiver) -> Result<(), Error> {
    for number in 0..5_u32 {
        let message = receiver.receive(PATIENCE)?; // sleeps, where the channel has events
        assert_eq!(message.to_vec(), number.to_le_bytes());
        receiver.release(message); // its memory may serve again
        receiver.acknowledge(); // tell the sender now, instead of when it is much
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "ring-inlined".to_owned());
    let kind: Kind = name
        .parse()
        .map_err(|error| Error::with(ErrorCode::BadConfiguration, format!("{name}: {error}")))?;
    let address = format!("example-{}", std::process::id());
    let options = Options::new(kind, 1024);
    let mut receiver = Receiver::listen(fabrics::shared_memory()?, &address, &options)?;
    let sender = std::thread::spawn(move || send(kind, &address));
    receive(&mut receiver)?;
    while !sender.is_finished() {
        let _ = receiver.poll(); // the last acknowledgements are on their way
        receiver.acknowledge();
    }
    sender.join().unwrap_or_else(|_| Err(ErrorCode::PeerLost.into()))
}
