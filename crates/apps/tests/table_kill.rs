//! Clients of a table in one-sided memory that are killed: each operation is done or not done, and the others continue.
//!
//! The test executable starts itself again as a client, which works until it is killed.

use farside::fabrics;
use farside::onesided::{
    HeapOptions, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteAddress,
};
use farside_apps::hashtable::{RemoteTable, TableOptions};
use farside_testkit::{Process, Random, WATCHDOG, role, say, unique_name};
use std::time::Duration;

const KEYS: u64 = 2000;
const ROUNDS: u64 = 6;

fn open(address: &str) -> (MemoryClient, RemoteAddress) {
    let fabric = fabrics::shared_memory().unwrap();
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default()).unwrap();
    let memory = client.open(address, WATCHDOG).unwrap();
    (client, memory.at(0))
}

/// A value of a key: any of those is whole.
fn value(key: u64, repeats: u64) -> Vec<u8> {
    key.to_le_bytes().repeat(1 + repeats as usize)
}

/// Puts and deletes until killed.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let (mut client, place) = open(&role[0]);
    let mut table = RemoteTable::open(&mut client, &[place], WATCHDOG).unwrap();
    let mut random = Random::new(role[1].parse().unwrap());
    for operation in 0.. {
        let key = random.below(KEYS);
        match random.below(4) {
            0 => drop(table.delete(&mut client, &key.to_le_bytes(), WATCHDOG).unwrap()),
            _ => {
                let value = value(key, random.below(20));
                table.put(&mut client, &key.to_le_bytes(), &value, WATCHDOG).unwrap();
            }
        }
        if operation == 500 {
            say("working");
        }
    }
}

#[test]
fn table_survives_killed_clients() {
    let fabric = fabrics::shared_memory().unwrap();
    let lend = LendOptions::default();
    let server = MemoryServer::lend(&fabric, &unique_name("table-kill"), 32 << 20, &lend).unwrap();
    let (mut client, place) = open(server.address());
    let (lease, grace) = (Duration::from_millis(200), Duration::from_millis(50));
    let heap = HeapOptions::default().clients(4).lease(lease).grace(grace);
    let options = TableOptions { heap };
    let mut table = RemoteTable::create(&mut client, &[place], &options, WATCHDOG).unwrap();
    for round in 0..ROUNDS {
        let mut child = Process::child(&format!("{} {round}", server.address()));
        child.hear("working");
        drop(child); // killed
        for key in 0..KEYS {
            let name = key.to_le_bytes();
            if let Some(found) = table.get(&mut client, &name, WATCHDOG).unwrap() {
                assert!(found == value(key, found.len() as u64 / 8 - 1), "of {key}");
            }
            if key % 7 == round {
                table.put(&mut client, &name, &value(key, 3), WATCHDOG).unwrap();
                assert_eq!(table.get(&mut client, &name, WATCHDOG), Ok(Some(value(key, 3))));
                assert_eq!(table.delete(&mut client, &name, WATCHDOG), Ok(true));
                assert_eq!(table.get(&mut client, &name, WATCHDOG), Ok(None));
            }
        }
    }
}
