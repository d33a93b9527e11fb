//! Options of callers and of single calls.

use crate::setters::setters;
use std::time::Duration;

/// Options for a [`Caller`](crate::call::Caller). Start from [`CallerOptions::default`].
///
/// ```
/// use farside::call::CallerOptions;
///
/// let options = CallerOptions::default().slots(8).tenant("analytics".into());
/// assert_eq!((options.slots, options.tenant.as_str()), (8, "analytics"));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallerOptions {
    /// Maximum number of calls in progress at once, at most 256; an executor may allow fewer.
    pub slots: u16,
    /// Maximum bytes of parameters.
    pub parameter_bytes_max: u32,
    /// Maximum bytes of output of a call.
    pub output_bytes_max: u32,
    /// The tenant whose quota it counts towards, at most 32 bytes.
    pub tenant: String,
    /// Timeout for connecting, registering and calls without a timeout of their own.
    pub timeout: Duration,
    /// How long a disconnected executor is redialled before the session counts as closed. `None`: twice the
    /// fabric's lease, which is zero on fabrics without disconnections.
    pub patience: Option<Duration>,
}

setters!(CallerOptions {
    slots: u16,
    parameter_bytes_max: u32,
    output_bytes_max: u32,
    tenant: String,
    timeout: Duration,
    patience: Option<Duration>,
});

impl Default for CallerOptions {
    fn default() -> Self {
        Self {
            slots: 32,
            parameter_bytes_max: 4096,
            output_bytes_max: 4096,
            tenant: String::new(),
            timeout: Duration::from_secs(5),
            patience: None,
        }
    }
}

/// The site where a call runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Site {
    /// At the executor that the caller is connected to: one round trip.
    #[default]
    Remote,
    /// At the caller, by one-sided requests to the executor's memory: a round trip for each access.
    Local,
}

/// Options for one call. Start from [`CallOptions::new`].
///
/// ```
/// use farside::call::{CallOptions, Site};
/// use std::time::Duration;
///
/// let options = CallOptions::new().site(Site::Local).deadline(Duration::from_millis(5));
/// assert_eq!((options.site, options.timeout), (Site::Local, None));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// Where it runs. A [`Placed`](crate::call::Placed) chooses the site itself.
    pub site: Site,
    /// Stops the call after this time, counted from its arrival at its site. `None`: it runs until its budget of
    /// instructions is used.
    pub deadline: Option<Duration>,
    /// How long the caller waits for the answer, if it waits. `None`: [`CallerOptions::timeout`].
    pub timeout: Option<Duration>,
    /// Approximate number of memory accesses, by which a [`Placed`](crate::call::Placed) chooses the place.
    pub accesses: Option<u64>,
}

impl CallOptions {
    /// Returns the options of a remote call without a deadline.
    pub const fn new() -> Self {
        Self { site: Site::Remote, deadline: None, timeout: None, accesses: None }
    }

    /// Sets the site where it runs.
    #[must_use]
    pub const fn site(mut self, site: Site) -> Self {
        self.site = site;
        self
    }

    /// Sets the time after which it is stopped.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how long the caller waits for the answer.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the approximate number of memory accesses.
    #[must_use]
    pub const fn accesses(mut self, accesses: u64) -> Self {
        self.accesses = Some(accesses);
        self
    }

    /// Returns the deadline in nanoseconds.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.deadline.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}
