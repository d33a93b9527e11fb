//! What both ends of a channel have in common.

/// Implements the methods that a sender and a receiver share. `$peers` are the peers of this end, `$peer` is one.
macro_rules! common_methods {
    ($end:ident, $peer:literal, $peers:literal) => {
        impl $end {
            /// Opens an end of a connection, or of a single channel.
            pub(super) fn open(
                fabric: Arc<dyn farside_fabric::Fabric>,
                name: &str,
                options: &Options,
                listens: bool,
                connection: u64,
            ) -> Result<Self, Error> {
                Self::driven(Drive::open(fabric, name, options, listens, connection)?)
            }

            #[doc = concat!("Listens at `name` for at most [`Options::peers`] ", $peers, ".")]
            ///
            /// # Errors
            /// `FabricLacks` with the capability that the fabric lacks; `BadConfiguration` with the limit that the
            /// options exceed; `AddressTaken`; `System`.
            pub fn listen(
                fabric: Arc<dyn farside_fabric::Fabric>,
                name: &str,
                options: &Options,
            ) -> Result<Self, Error> {
                Self::open(fabric, name, options, true, 0)
            }

            #[doc = concat!("Starts to connect to the ", $peer, " that listens at `name`.")]
            #[doc = concat!("[`Self::wait_for_peers`] waits until the ", $peer, " has accepted.")]
            ///
            /// # Errors
            /// As [`Self::listen`]; `NoListener`. A mismatch of the channels is reported by the first call
            /// afterwards, as `ChannelMismatch`.
            pub fn connect(
                fabric: Arc<dyn farside_fabric::Fabric>,
                name: &str,
                options: &Options,
            ) -> Result<Self, Error> {
                Self::open(fabric, name, options, false, 0)
            }

            /// Returns the address to which peers connect, with host and port if the fabric has hosts; `None` for an
            /// end that connects.
            pub fn address(&self) -> Option<String> {
                self.drive.port.address()
            }

            /// Registers memory for messages without copies.
            ///
            /// # Errors
            /// `System` if the memory is not available.
            pub fn register(&self, bytes: u64) -> Result<Buffer, Error> {
                Buffer::new(self.drive.fabric(), bytes)
            }

            #[doc = concat!("Returns the number of ", $peers, " that were connected at the last call.")]
            ///
            /// *Cost*: no poll; [`Self::progress`] and every waiting call update it.
            pub fn peers(&self) -> usize {
                self.drive.peers()
            }

            #[doc = concat!("Waits until this many ", $peers, " are connected, and accepts them.")]
            ///
            /// *Blocks*: spins at first, then sleeps until an event of the port.
            ///
            /// # Errors
            /// As [`Self::progress`]; `TimedOut`.
            pub fn wait_for_peers(&mut self, count: usize, timeout: Duration) -> Result<(), Error> {
                wait(self, Awaited::Peers, timeout, |end| {
                    end.drive.poll_for_peers(|peers| peers >= count)
                })
            }

            /// The same as [`Self::wait_for_peers`], for any executor and without a timeout.
            ///
            /// # Errors
            /// As [`Self::progress`]; `System` if the thread that wakes the task cannot be started.
            pub async fn wait_for_peers_async(&mut self, count: usize) -> Result<(), Error> {
                wait_async(self, Awaited::Peers, |end| {
                    end.drive.poll_for_peers(|peers| peers >= count)
                })
                .await
            }

            /// Returns the channel.
            pub const fn kind(&self) -> Kind {
                self.drive.kind
            }

            /// Returns the bytes of memory that this end has registered, for all its peers.
            pub fn registered_bytes(&self) -> u64 {
                self.drive.registered_bytes()
            }

            /// Returns the path of each link and the reason for it, for people.
            pub fn path(&self) -> Vec<String> {
                self.drive.path()
            }
        }

        impl Waits for $end {
            fn is_announced(&self, awaited: Awaited) -> bool {
                self.announces(awaited)
            }

            fn is_quiet(&self) -> bool {
                self.drive.is_quiet()
            }

            fn port(&mut self) -> &mut EnginePort {
                &mut self.drive.port
            }

            fn sleeper(&mut self) -> &mut Option<Sleeper> {
                &mut self.drive.sleeper
            }
        }

        impl std::fmt::Debug for $end {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(
                    f,
                    concat!(stringify!($end), "({}, {} peers)"),
                    self.drive.kind,
                    self.drive.peers()
                )
            }
        }
    };
}

pub(super) use common_methods;
