//! Clients of a table in one-sided memory that are killed: each operation is done or not done, and the others continue.
//!
//! The test executable starts itself again as a client, which works until it is killed.

use farside::fabrics;
use farside::onesided::{
    HeapOptions, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteAddress,
};
use farside_apps::hashtable::{HotOptions, RemoteTable, TableOptions};
use farside_testkit::{Process, Random, WATCHDOG, role, say, unique_name};
use std::time::Duration;

const KEYS: u64 = 2000;
const ROUNDS: u64 = 6;
/// In two blocks.
const HOT_KEYS: u64 = 20;

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
    if role.len() > 2 {
        return hold_puts(&mut client, &mut table, &mut random);
    }
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

/// Counts in hot keys until killed; says what is flushed.
fn hold_puts(client: &mut MemoryClient, table: &mut RemoteTable, random: &mut Random) {
    table.hold_hot_puts(&HotOptions { blocks: 2, puts: 2, ..HotOptions::default() }).unwrap();
    for count in 1_u64.. {
        for key in 0..HOT_KEYS {
            table.put(client, &key.to_le_bytes(), &count.to_le_bytes(), WATCHDOG).unwrap();
        }
        if random.below(50) == 0 {
            table.flush(client, WATCHDOG).unwrap();
            say(&format!("flushed {count} {}", table.hot_keys()));
        }
    }
}

/// Memory for a table, a client of it, and the table.
fn table() -> (MemoryServer, MemoryClient, RemoteTable) {
    let fabric = fabrics::shared_memory().unwrap();
    let lend = LendOptions::default();
    let server = MemoryServer::lend(&fabric, &unique_name("table-kill"), 32 << 20, &lend).unwrap();
    let (mut client, place) = open(server.address());
    let (lease, grace) = (Duration::from_millis(200), Duration::from_millis(50));
    let heap = HeapOptions::default().clients(4).lease(lease).grace(grace);
    let options = TableOptions { heap };
    let table = RemoteTable::create(&mut client, &[place], &options, WATCHDOG).unwrap();
    (server, client, table)
}

#[test]
fn killed_owners_of_blocks_lose_what_they_held() {
    let (server, mut client, mut table) = table();
    for round in 0..ROUNDS {
        let mut child = Process::child(&format!("{} {round} hot", server.address()));
        let (mut flushed, mut hot) = (0, 0);
        for _ in 0..20 {
            let said = child.hear("flushed ");
            let (count, keys) = said.split_once(' ').unwrap();
            flushed = count.parse().unwrap();
            hot = hot.max(keys.parse::<u64>().unwrap());
            // What another client sees of a block that is written is whole, and as new as what was flushed.
            for key in 0..HOT_KEYS {
                assert!(count_of(&mut client, &mut table, key) >= flushed, "of {key}");
            }
        }
        assert_eq!(hot, HOT_KEYS, "too few hot keys");
        drop(child); // killed
        for key in 0..HOT_KEYS {
            let count = count_of(&mut client, &mut table, key);
            assert!(count >= flushed, "of {key}: {count}, {flushed} were flushed");
            assert_eq!(count_of(&mut client, &mut table, key), count, "nothing follows");
            table.put(&mut client, &key.to_le_bytes(), &0_u64.to_le_bytes(), WATCHDOG).unwrap();
            assert_eq!(count_of(&mut client, &mut table, key), 0);
        }
    }
}

fn count_of(client: &mut MemoryClient, table: &mut RemoteTable, key: u64) -> u64 {
    let found = table.get(client, &key.to_le_bytes(), WATCHDOG).unwrap().unwrap();
    u64::from_le_bytes(found.try_into().unwrap())
}

#[test]
fn table_survives_killed_clients() {
    let (server, mut client, mut table) = table();
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
