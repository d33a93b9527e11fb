//! A log with copies on a simulated disk and in memory of two other machines. A loss of power takes this machine, or all of
//! them.

use crate::durable::SimDisk;
use crate::medium::SimMedium;
use farside::durable::{LogDevice, ReplicaOptions, ReplicatedDevice};
use farside::fabrics::Fabric;
use farside::onesided::{LendOptions, MemoryServer};
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_fabric::MemFabric;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NAMES: [&str; 2] = ["one", "other"];
/// Of each copy: its headers and table, and segments of a log in a test.
const BYTES: u64 = (64 << 10) + (64 << 12);

struct Machines {
    random: Random,
    servers: Vec<MemoryServer>,
    /// The memory of the others was lost, and the log was not opened since.
    are_empty: bool,
}

/// The copies of a log.
pub struct SimCopies {
    disk: SimDisk,
    fabric: Arc<dyn Fabric>,
    machines: Mutex<Machines>,
}

impl SimCopies {
    /// Empty ones.
    ///
    /// # Errors
    /// Those of lending memory.
    pub fn new(seed: u64) -> Result<Self, Error> {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let servers = lend(&fabric)?;
        let random = Random::new(seed ^ 1 << 40);
        let machines = Mutex::new(Machines { random, servers, are_empty: false });
        Ok(Self { disk: SimDisk::new(seed), fabric, machines })
    }

    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lend(fabric: &Arc<dyn Fabric>) -> Result<Vec<MemoryServer>, Error> {
    let options = LendOptions::default().exclusive(true);
    NAMES.iter().map(|name| MemoryServer::lend(fabric, name, BYTES, &options)).collect()
}

impl SimMedium for SimCopies {
    fn device(&self) -> Result<Box<dyn LogDevice>, Error> {
        // The one on the disk is enough only where the others are known to have lost theirs.
        let least = if self.machines().are_empty { 1 } else { 3 };
        let options = ReplicaOptions::default().copies_min(Some(least));
        loop {
            let local = vec![self.disk.copy(BYTES)];
            match ReplicatedDevice::open_with(&self.fabric, &NAMES, local, &options) {
                // A server may not have seen the end of the client before.
                Err(error) if error.code == ErrorCode::StateInUse => std::thread::yield_now(),
                Err(error) => return Err(error),
                Ok(device) => {
                    self.machines().are_empty = false;
                    return Ok(Box::new(device));
                }
            }
        }
    }

    fn cut_power_within(&self, calls: u64) {
        self.disk.cut_power_within(calls);
    }

    fn fail_sync_within(&self, syncs: u64) {
        self.disk.fail_sync_within(syncs);
    }

    fn set_space(&self, has_space: bool) {
        self.disk.set_space(has_space);
    }

    fn is_cut(&self) -> bool {
        self.disk.is_cut()
    }

    fn restart(&self) {
        self.disk.restart();
        let mut machines = self.machines();
        if machines.random.one_in(2) {
            machines.servers.clear();
            let lent = lend(&self.fabric);
            assert!(lent.is_ok(), "the names of the servers before are free");
            machines.servers = lent.unwrap_or_default();
            machines.are_empty = true;
        }
    }

    fn calm(&self) {
        self.disk.calm();
    }
}
