//! A worker's end of a measured channel, which runs until the other end closes or the parent stops it.

use super::channel::{BATCH, Inspection, Reader, Writer, is_peer_lost, options, reaches_peers};
use farside::ErrorCode;
use farside::channel::{DeviceWords, DuplexOptions, Kind, Options, Receiver, Sender, Service};
use farside_command::failure::Failure;
use farside_command::host_fabric::HostSpec;
use farside_fabric::Fabric;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a sleeping service checks its stop flag.
const STOP_CHECK_PERIOD: Duration = Duration::from_millis(200);
/// How long sending an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What the worker's end does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Listens and sends a message for each that it receives, polling.
    Echo,
    /// As `Echo`, but reads only the first and last cache line of each message, in the sender's memory, and
    /// writes only the first and last byte of its own.
    EchoUntouched,
    /// As `Echo`, but sends bytes that it does not write again.
    EchoUnwritten,
    /// As `Echo`, but reads only the first and last cache line of each message.
    EchoSeen,
    /// As `EchoSeen`, and copies each message into a log.
    EchoLogged,
    /// Listens and answers every request, sleeping between them.
    Answer,
    /// Connects and sends as fast as it can.
    Source,
    /// Connects and receives as fast as it can.
    Sink,
}

/// Words of a channel in device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceWordsName {
    /// All words are in main memory.
    Nothing,
    /// The head of a shared ring, the target of FETCH_ADDs; bells that readers READ.
    Head,
    /// The tail of a shared ring, which its senders READ.
    Tail,
    /// Both.
    All,
}

impl DeviceWordsName {
    /// Returns the name of these words.
    pub const fn of(words: DeviceWords) -> Self {
        match words {
            DeviceWords::Nothing => Self::Nothing,
            DeviceWords::Head => Self::Head,
            DeviceWords::Tail => Self::Tail,
            DeviceWords::All => Self::All,
        }
    }

    /// Returns the words.
    pub const fn words(self) -> DeviceWords {
        match self {
            Self::Nothing => DeviceWords::Nothing,
            Self::Head => DeviceWords::Head,
            Self::Tail => DeviceWords::Tail,
            Self::All => DeviceWords::All,
        }
    }
}

/// One end of a channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Task {
    /// What it does.
    pub role: Role,
    /// The channel's name if this end listens, otherwise its address.
    pub name: String,
    /// The fabric between hosts; `None` for shared memory.
    pub host: Option<HostSpec>,
    /// The channel's kind, by its name.
    pub channel: String,
    /// Maximum message size.
    pub message_bytes: u32,
    /// Bytes that readers prefetch beyond a bell.
    pub prefetch_bytes: u32,
    /// Which words are in memory of the adapter.
    pub device_words: DeviceWordsName,
    /// Most peers of the end that listens.
    pub peers: u16,
    /// The processor that its thread is bound to, if any.
    pub processor: Option<usize>,
    /// Whether ends share a processor, so that this one yields it after an empty poll.
    pub shares: bool,
}

/// Returns the name of the channel that an echo replies on.
pub fn reply_name(name: &str) -> String {
    format!("{name}-back")
}

impl Role {
    /// Returns whether the worker's end listens; otherwise it connects.
    pub const fn listens(self) -> bool {
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

    /// Runs the end until the other closes or `stop` is set. Calls `ready` when the end listens or has sent its
    /// connection request.
    pub fn serve(
        &self,
        fabric: Arc<dyn Fabric>,
        ready: impl FnOnce(),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let served = match self.role {
            Role::Echo => self.echo(fabric, Inspection::Copied, ready, stop),
            Role::EchoUnwritten => self.echo(fabric, Inspection::Unwritten, ready, stop),
            Role::EchoUntouched => self.echo(fabric, Inspection::Untouched, ready, stop),
            Role::EchoSeen => self.echo(fabric, Inspection::Seen, ready, stop),
            Role::EchoLogged => self.echo(fabric, Inspection::Logged, ready, stop),
            Role::Answer => self.answer(&fabric, ready, stop),
            Role::Source => self.source(fabric, ready, stop),
            Role::Sink => self.sink(fabric, ready, stop),
        };
        match served {
            Err(failure) if is_peer_lost(&failure) => Ok(()),
            other => other,
        }
    }

    fn echo(
        &self,
        fabric: Arc<dyn Fabric>,
        inspection: Inspection,
        ready: impl FnOnce(),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let options = self.options()?;
        let reaches = reaches_peers(&*fabric);
        let receiver = Receiver::listen(Arc::clone(&fabric), &self.name, &options)?;
        let sender = Sender::listen(fabric, &reply_name(&self.name), &options)?;
        let mut reader = Reader::new(receiver, self.message_bytes, inspection, reaches);
        let mut writer = Writer::new(sender, self.message_bytes, 1, inspection)?;
        ready();
        while !stop.load(Ordering::Relaxed) {
            if reader.take(1)? == 0 {
                writer.idle()?;
                self.pause();
                continue;
            }
            while !writer.put()? {
                // Progress frees room: an acknowledgement may arrive.
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
            match service.wait(STOP_CHECK_PERIOD) {
                Ok((message, client)) => {
                    message.read(0, &mut bytes)?;
                    service.release(message);
                    service.answer_wait(client, &bytes, ANSWER_TIMEOUT)?;
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
        let mut writer = Writer::new(sender, self.message_bytes, BATCH, Inspection::Copied)?;
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
        let mut reader = Reader::new(receiver, self.message_bytes, Inspection::Copied, reaches);
        ready();
        while !stop.load(Ordering::Relaxed) {
            if reader.take(BATCH)? == 0 {
                self.pause();
            }
        }
        Ok(())
    }

    /// Yields or pauses after an empty poll.
    #[inline]
    fn pause(&self) {
        if self.shares {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}
