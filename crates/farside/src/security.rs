//! Identity and protection of hosts: what nodes, channels and calls between hosts are given.
//!
//! ```no_run
//! use farside::security::{ClusterKey, Identity, Protect, Security};
//!
//! # fn main() -> Result<(), farside::Error> {
//! let key = ClusterKey::load("cluster.key".as_ref())?; // of `farside key new cluster.key`
//! let security = Security::new(Identity::cluster_key(&key)?, Protect::Everything)?;
//! # Ok(())
//! # }
//! ```

pub use farside_bootstrap::{
    BootstrapError, ClusterKey, Identity, KeyFileProblem, Protect, Security,
};

use crate::{Error, ErrorCode};
use farside_bootstrap::AddressError;

impl From<BootstrapError> for Error {
    fn from(error: BootstrapError) -> Self {
        let code = match &error {
            BootstrapError::KeyFile { problem: KeyFileProblem::Io(_), .. }
            | BootstrapError::Random => ErrorCode::System,
            _ => ErrorCode::BadConfiguration,
        };
        Self::with(code, error.to_string())
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Self::with(ErrorCode::BadConfiguration, error.to_string())
    }
}
