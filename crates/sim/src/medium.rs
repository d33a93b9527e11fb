//! The simulated media of logs: a [disk](SimDisk) and [persistent memory](SimPersistent).

use crate::durable::SimDisk;
use crate::persistent::SimPersistent;
use farside::Error;
use farside::durable::LogDevice;

/// What tests do to a medium of a log.
pub trait SimMedium {
    /// Returns a device of it, for a process that starts.
    ///
    /// # Errors
    /// Those of opening the device.
    fn device(&self) -> Result<Box<dyn LogDevice>, Error>;
    /// Cuts the power during one of the next calls.
    fn cut_power_within(&self, calls: u64);
    /// Fails one of the next syncs, if syncs of the medium can fail.
    fn fail_sync_within(&self, syncs: u64);
    /// Gives it space for further segments or none, if it can be full.
    fn set_space(&self, has_space: bool);
    /// Whether the power was cut since the last start.
    fn is_cut(&self) -> bool;
    /// Starts the machine again after a power cut.
    fn restart(&self);
    /// Takes back what was to fail.
    fn calm(&self);
}

impl SimMedium for SimDisk {
    fn device(&self) -> Result<Box<dyn LogDevice>, Error> {
        Ok(Self::device(self))
    }

    fn cut_power_within(&self, calls: u64) {
        Self::cut_power_within(self, calls);
    }

    fn fail_sync_within(&self, syncs: u64) {
        Self::fail_sync_within(self, syncs);
    }

    fn set_space(&self, has_space: bool) {
        Self::set_space(self, has_space);
    }

    fn is_cut(&self) -> bool {
        Self::is_cut(self)
    }

    fn restart(&self) {
        Self::restart(self);
    }

    fn calm(&self) {
        Self::calm(self);
    }
}

impl SimMedium for SimPersistent {
    fn device(&self) -> Result<Box<dyn LogDevice>, Error> {
        Self::device(self)
    }

    fn cut_power_within(&self, calls: u64) {
        Self::cut_power_within(self, calls);
    }

    fn fail_sync_within(&self, _: u64) {}

    fn set_space(&self, _: bool) {}

    fn is_cut(&self) -> bool {
        Self::is_cut(self)
    }

    fn restart(&self) {
        assert!(Self::restart(self).is_ok(), "the files of simulated persistent memory");
    }

    fn calm(&self) {
        Self::calm(self);
    }
}
