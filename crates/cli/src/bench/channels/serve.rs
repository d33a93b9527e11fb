//! What a worker does at its end of a channel, until the other end is gone or it is told to stop.

use super::ends::{BATCH, Look, Reader, Writer, is_end, options, reaches_peers};
use crate::arguments::DeviceName;
use crate::failure::Failure;
use crate::worker::HostSpec;
use farside::ErrorCode;
use farside::channel::{DuplexOptions, Kind, Options, Receiver, Sender, Service};
use farside_fabric::Fabric;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a service sleeps before it looks whether it shall stop.
const DOZE: Duration = Duration::from_millis(200);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// What the worker's end does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Listens and sends a message back for each that comes, polling.
    Echo,
    /// The same, but looks at the first and last line of each where it lies, and hands over what it
    /// has written the first and last byte of.
    EchoUntouched,
    /// The same, but sends back bytes that it does not write again.
    EchoUnwritten,
    /// The same as an echo, but looks at the first and last line of each message alone.
    EchoSeen,
    /// The same, and copies each message into a log.
    EchoLogged,
    /// Listens and answers every request, sleeping between them.
    Answer,
    /// Connects and sends as fast as it can.
    Source,
    /// Connects and receives as fast as it can.
    Sink,
}

/// One end of a channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) role: Role,
    /// Where the channel is listened at: a name, with its host where that is another fabric's.
    pub(crate) name: String,
    /// Over TCP instead of shared memory.
    pub(crate) host: Option<HostSpec>,
    /// Its name in the table.
    pub(crate) channel: String,
    pub(crate) message_bytes: u32,
    /// What readers fetch beyond a bell.
    pub(crate) prefetch_bytes: u32,
    /// Which words are at the adapter.
    pub(crate) device_words: DeviceName,
    /// Most peers of the end that listens.
    pub(crate) peers: u16,
    pub(crate) processor: Option<usize>,
    /// Whether it has the processor to share, and so gives it away when there is nothing to do.
    pub(crate) shares: bool,
}

/// The name at which the way back of an echo is to be had.
pub(crate) fn back(name: &str) -> String {
    format!("{name}-back")
}

impl Role {
    /// Whether it is the one that listens.
    pub(crate) const fn listens(self) -> bool {
        match self {
            Self::Echo
            | Self::EchoUntouched
            | Self::EchoUnwritten
            | Self::EchoSeen
            | Self::EchoLogged
            | Self::Answer => true,
            Self::Source | Self::Sink => false,
        }
    }
}

impl Task {
    fn options(&self) -> Result<Options, Failure> {
        let usual = options(self.kind()?, self.message_bytes, self.peers);
        Ok(usual.prefetch_bytes(self.prefetch_bytes).device(self.device_words.words()))
    }

    fn kind(&self) -> Result<Kind, Failure> {
        self.channel.parse().map_err(|_| Failure::usage(format!("no channel `{}`", self.channel)))
    }

    /// Does it. Calls `ready` when the end listens or has asked to be connected.
    pub(crate) fn serve(
        &self,
        fabric: Arc<dyn Fabric>,
        ready: impl FnOnce(),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let served = match self.role {
            Role::Echo => self.echo(fabric, Look::All, ready, stop),
            Role::EchoUnwritten => self.echo(fabric, Look::Again, ready, stop),
            Role::EchoUntouched => self.echo(fabric, Look::Edges, ready, stop),
            Role::EchoSeen => self.echo(fabric, Look::Seen, ready, stop),
            Role::EchoLogged => self.echo(fabric, Look::Log, ready, stop),
            Role::Answer => self.answer(&fabric, ready, stop),
            Role::Source => self.source(fabric, ready, stop),
            Role::Sink => self.sink(fabric, ready, stop),
        };
        match served {
            Err(failure) if is_end(&failure) => Ok(()),
            other => other,
        }
    }

    fn echo(
        &self,
        fabric: Arc<dyn Fabric>,
        look: Look,
        ready: impl FnOnce(),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let options = self.options()?;
        let reaches = reaches_peers(&*fabric);
        let receiver = Receiver::listen(Arc::clone(&fabric), &self.name, &options)?;
        let sender = Sender::listen(fabric, &back(&self.name), &options)?;
        let mut reader = Reader::new(receiver, self.message_bytes, look, reaches);
        let mut writer = Writer::new(sender, self.message_bytes, 1, look)?;
        ready();
        while !stop.load(Ordering::Relaxed) {
            if reader.take(1)? == 0 {
                writer.idle()?;
                self.pause();
                continue;
            }
            while !writer.put()? {
                // What it waits for may come by the other direction.
                writer.idle()?;
                self.pause();
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn answer(
        &self,
        fabric: &Arc<dyn Fabric>,
        ready: impl FnOnce(),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let both = DuplexOptions::same(self.options()?);
        let mut service = Service::listen(fabric, &self.name, &both)?;
        let mut bytes = vec![0; usize::try_from(self.message_bytes).unwrap_or(usize::MAX)];
        ready();
        while !stop.load(Ordering::Relaxed) {
            match service.wait(DOZE) {
                Ok((message, client)) => {
                    message.read(0, &mut bytes)?;
                    service.release(message);
                    service.answer_wait(client, &bytes, ANSWER)?;
                }
                Err(error) if error.code == ErrorCode::TimedOut => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn source(
        &self,
        fabric: Arc<dyn Fabric>,
        ready: impl FnOnce(),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let options = self.options()?;
        let sender = Sender::connect(fabric, &self.name, &options)?;
        let mut writer = Writer::new(sender, self.message_bytes, BATCH, Look::All)?;
        ready();
        while !stop.load(Ordering::Relaxed) {
            let taken = writer.put_batch()?;
            if taken < BATCH {
                writer.idle()?;
                self.pause();
            }
        }
        Ok(())
    }

    fn sink(
        &self,
        fabric: Arc<dyn Fabric>,
        ready: impl FnOnce(),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let options = self.options()?;
        let reaches = reaches_peers(&*fabric);
        let receiver = Receiver::connect(fabric, &self.name, &options)?;
        let mut reader = Reader::new(receiver, self.message_bytes, Look::All, reaches);
        ready();
        while !stop.load(Ordering::Relaxed) {
            if reader.take(BATCH)? == 0 {
                self.pause();
            }
        }
        Ok(())
    }

    /// Nothing to do just now.
    #[inline]
    fn pause(&self) {
        if self.shares {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
