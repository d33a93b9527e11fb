//! A log with copies on a simulated disk and in memory of two other machines. A loss of power takes this machine, all of them,
//! or one of the others besides, in whose place another one comes.

use crate::durable::SimDisk;
use crate::medium::SimMedium;
use farside::durable::{LogDevice, ReplicaOptions, ReplicatedDevice};
use farside::fabrics::Fabric;
use farside::onesided::{LendOptions, MemoryServer};
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_fabric::MemFabric;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of each copy: its headers and table, and segments of a log in a test.
const BYTES: u64 = (64 << 10) + (64 << 12);

struct Machines {
    random: Random,
    servers: Vec<MemoryServer>,
    /// Of the memory that was lent last.
    number: u64,
    /// Copies that have the log.
    whole: usize,
}

impl Machines {
    /// Lends memory until two machines do.
    fn lend(&mut self, fabric: &Arc<dyn Fabric>) -> Result<(), Error> {
        let options = LendOptions::default().exclusive(true);
        while self.servers.len() < 2 {
            self.number += 1;
            let name = format!("copy-{}", self.number);
            self.servers.push(MemoryServer::lend(fabric, &name, BYTES, &options)?);
        }
        Ok(())
    }
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
        let random = Random::new(seed ^ 1 << 40);
        let mut machines = Machines { random, servers: Vec::new(), number: 0, whole: 3 };
        machines.lend(&fabric)?;
        Ok(Self { disk: SimDisk::new(seed), fabric, machines: Mutex::new(machines) })
    }

    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimMedium for SimCopies {
    fn device(&self) -> Result<Box<dyn LogDevice>, Error> {
        let (mut least, names) = {
            let machines = self.machines();
            let names = machines.servers.iter().map(|server| server.address().to_owned());
            (machines.whole, names.collect::<Vec<_>>())
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        loop {
            let options = ReplicaOptions::default().copies_min(Some(least));
            let local = vec![self.disk.copy(BYTES)];
            match ReplicatedDevice::open_with(&self.fabric, &names, local, &options) {
                // A server may not have seen the end of the client before.
                Err(error) if error.code == ErrorCode::StateInUse => std::thread::yield_now(),
                Err(error) => return Err(error),
                // With two of three it would go on without the disk.
                Ok(_) if least == 2 => least = 3,
                Ok(device) => {
                    self.machines().whole = 3;
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
        match machines.random.below(3) {
            0 => {
                machines.servers.clear();
                machines.whole = 1;
            }
            1 if machines.whole == 3 => {
                let lost = machines.random.index(2);
                machines.servers.remove(lost);
                machines.whole = 2;
            }
            _ => {}
        }
        let lent = machines.lend(&self.fabric);
        assert!(lent.is_ok(), "memory is lent under a new name");
    }

    fn calm(&self) {
        self.disk.calm();
    }
}
