//! Words whose atomics are executed exactly once, over connections that are cut.

mod fabrics;
mod lent;
#[path = "hosts/proxy.rs"]
mod proxy;

use fabrics::Make;
use farside::ErrorCode;
use farside::fabrics::Fabric;
use farside::onesided::{
    MemoryClient, MemoryClientOptions, MemoryServer, RecoverableWord, RemoteMemory,
};
use farside_testkit::{Random, WATCHDOG, unique_name};
use lent::{BYTES, client_of, cut_pair, server, tcp};
use std::sync::Arc;

farside_testkit::on_each_fabric! { mem shm tcp => (
    clients_change_a_word_in_turn
    numbers_are_taken_again
    wrong_words_are_refused
) with crate::fabrics::named }

const CLIENTS: u32 = 3;

fn client(fabric: &Arc<dyn Fabric>, server: &MemoryServer) -> (MemoryClient, RemoteMemory) {
    client_of(fabric, server, &MemoryClientOptions::default().reconnect(WATCHDOG))
}

/// Any sequence of operations of several clients is that of one variable.
fn clients_change_a_word_in_turn(make: &Make) {
    let server = server(&make(), &unique_name("word"));
    let mut words: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (mut client, memory) = client(&make(), &server);
            let word =
                RecoverableWord::open(&mut client, memory.at(0), (number, CLIENTS), WATCHDOG);
            (client, word.unwrap())
        })
        .collect();
    let (mut random, mut value) = (Random::new(5), 0);
    for _ in 0..400 {
        let (client, word) = &mut words[random.below(u64::from(CLIENTS)) as usize];
        let (operand, before) = (random.below(1 << 40), value);
        let returned = match random.below(5) {
            0 => word.load(client, WATCHDOG),
            1 => {
                value = operand;
                word.swap(client, operand, WATCHDOG)
            }
            2 => word.compare_swap(client, before ^ 1, operand, WATCHDOG),
            3 => {
                value = operand;
                word.compare_swap(client, before, operand, WATCHDOG)
            }
            _ => {
                value = (value + operand) % (1 << 40);
                word.fetch_add(client, operand, WATCHDOG)
            }
        };
        assert_eq!(returned, Ok(before));
    }
}

/// A client that has started again continues with its number.
fn numbers_are_taken_again(make: &Make) {
    let server = server(&make(), &unique_name("word"));
    let (mut client, memory) = client(&make(), &server);
    let mut sum = 0;
    for _ in 0..4 {
        for number in 0..2 {
            let mut word =
                RecoverableWord::open(&mut client, memory.at(0), (number, CLIENTS), WATCHDOG)
                    .unwrap();
            for _ in 0..10 {
                assert_eq!(word.fetch_add(&mut client, 3, WATCHDOG), Ok(sum));
                sum += 3;
            }
        }
    }
}

fn wrong_words_are_refused(make: &Make) {
    let server = server(&make(), &unique_name("word"));
    let (mut client, memory) = client(&make(), &server);
    let mut open = |offset, number, clients| {
        RecoverableWord::open(&mut client, memory.at(offset), (number, clients), WATCHDOG)
            .map(drop)
            .map_err(|error| error.code)
    };
    assert_eq!(open(0, 3, 3), Err(ErrorCode::BadConfiguration));
    assert_eq!(open(0, 0, 257), Err(ErrorCode::BadConfiguration));
    assert_eq!(open(4, 0, 2), Err(ErrorCode::Misaligned));
    assert_eq!(open(BYTES - 16, 0, CLIENTS), Err(ErrorCode::OutOfBounds));
    let mut word =
        RecoverableWord::open(&mut client, memory.at(0), (0, CLIENTS), WATCHDOG).unwrap();
    let large = word.swap(&mut client, 1 << 40, WATCHDOG).map_err(|error| error.code);
    assert_eq!(large, Err(ErrorCode::TooLarge));
    assert_eq!(word.fetch_add(&mut client, 1, WATCHDOG), Ok(0));
}

/// 100,000 additions of clients whose connections are cut all the time sum exactly; each previous value is returned once.
#[test]
fn sum_over_cut_connections_is_exact() {
    const ADDITIONS: u64 = 100_000 / CLIENTS as u64;
    let (way, server, _) = cut_pair("word");
    let adds = |number: u32| {
        let fabric: Arc<dyn Fabric> = Arc::new(tcp(vec![way.at().into()], None));
        let (mut client, memory) = client(&fabric, &server);
        let mut word =
            RecoverableWord::open(&mut client, memory.at(0), (number, CLIENTS), WATCHDOG).unwrap();
        let mut returned = Vec::new();
        for addition in 0..ADDITIONS {
            returned.push(word.fetch_add(&mut client, 1, WATCHDOG).unwrap());
            if number == 0 && addition % 500 == 499 {
                way.cut();
            }
        }
        (returned, client.reconnections(memory).unwrap())
    };
    let all = std::thread::scope(|scope| {
        let adders: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || adds(number))).collect();
        adders.into_iter().map(|adder| adder.join().unwrap()).collect::<Vec<_>>()
    });
    let mut returned: Vec<u64> = all.iter().flat_map(|(returned, _)| returned.clone()).collect();
    returned.sort_unstable();
    assert!(returned.iter().copied().eq(0..ADDITIONS * u64::from(CLIENTS)));
    assert!(all.iter().map(|(_, reconnections)| *reconnections).sum::<u64>() >= 20);
}
