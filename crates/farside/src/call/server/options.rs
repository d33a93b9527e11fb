//! Options of an executor.

use crate::setters::setters;
use farside_protocol::call::Quota;
use farside_rmc::Limits;
use std::collections::BTreeMap;
use std::time::Duration;

/// Options for a [`CallServer`](crate::call::CallServer). Start from [`ServerOptions::default`].
///
/// *Cost.* Memory for `sessions` times `slots` calls: the parameters (`limits.context_bytes_max`), the output
/// and a reply of each.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Maximum number of callers at once.
    pub sessions: u32,
    /// Maximum number of calls of a caller in progress at once, at most 256.
    pub slots: u16,
    /// Maximum bytes of output of a call.
    pub output_bytes_max: u32,
    /// Limits on programs and on their use of resources.
    pub limits: Limits,
    /// How long the session of a disconnected caller is kept. `None`: the fabric's lease, which is zero on fabrics
    /// without disconnections.
    pub grace: Option<Duration>,
    /// Processor time of a caller before another caller is served.
    pub quantum_ns: u64,
    /// Quota of tenants that are not in `tenants`.
    pub quota: Quota,
    /// Quotas of tenants, by name.
    pub tenants: BTreeMap<String, Quota>,
    /// Maximum number of registrations of a tenant in progress: one is verified, the others are queued. A further one is refused
    /// with `OverQuota`.
    pub registrations: u32,
    /// Maximum number of objects verified at once, at least 1, each of another tenant. Each needs working memory of up to
    /// [`Verification::BYTES_MAX`](farside_rmc::Verification::BYTES_MAX).
    pub verifications: u32,
    /// Maximum bytes of objects being received or queued for verification, over all tenants. A further object is
    /// refused with `OverQuota`.
    pub registering_bytes_max: u64,
    /// Time without a further part after which an upload may be dropped. It is dropped when any caller begins the
    /// next upload.
    pub upload_timeout: Duration,
}

setters!(ServerOptions {
    sessions: u32,
    slots: u16,
    output_bytes_max: u32,
    limits: Limits,
    grace: Option<Duration>,
    quantum_ns: u64,
    quota: Quota,
    tenants: BTreeMap<String, Quota>,
    registrations: u32,
    verifications: u32,
    registering_bytes_max: u64,
    upload_timeout: Duration,
});

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            sessions: 64,
            slots: 32,
            output_bytes_max: 4096,
            limits: Limits::DEFAULT,
            grace: None,
            quantum_ns: 500,
            quota: Quota::DEFAULT,
            tenants: BTreeMap::new(),
            registrations: 64,
            verifications: 2,
            registering_bytes_max: 64 << 20,
            upload_timeout: Duration::from_secs(10),
        }
    }
}
