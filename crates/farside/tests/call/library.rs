//! The library of calls over every fabric, run remotely and locally.

use super::{LONG, list};
use crate::over::{Ends, over};
use farside::call::rmc::helpers::{crc32c, status};
use farside::call::rmc::library::{
    Change, Checksum, HostWord, LibraryEntry, ListSearch, LogAppend, MultiCas, MultiRead,
    VersionedPiece,
};
use farside::call::{CallAnswer, CallOptions, Caller, CallerOptions, Program, ServerOptions, Site};

farside_testkit::on_each_fabric! { mem shm tcp => (
    library_works_at_every_site
)}

const WORDS: u64 = 8 << 10;
const LOG: u64 = 16 << 10;

fn program(caller: &mut Caller, name: &str) -> Program {
    let object = LibraryEntry::with_name(name).unwrap().object;
    let programs = caller.register(object).unwrap_or_else(|e| panic!("{name}: {e}"));
    programs.into_iter().find(|program| program.name == name).unwrap()
}

fn call(caller: &mut Caller, runs: Site, name: &str, parameters: &[u8]) -> CallAnswer {
    let program = program(caller, name);
    caller.call(&program, parameters, CallOptions::new().site(runs).timeout(LONG)).unwrap()
}

fn place(offset: u64) -> HostWord {
    HostWord::new(0, offset).unwrap()
}

fn put(ends: &Ends, offset: u64, words: &[u64]) {
    let bytes: Vec<_> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    ends.memory.write(offset, &bytes).unwrap();
}

fn all(ends: &Ends, caller: &mut Caller, runs: Site, round: u64) {
    let head = place(list(ends, 16));
    let search = ListSearch { head, key: 9 }.to_bytes();
    assert_eq!(call(caller, runs, "list_search", &search).result, 900);

    // Two words and their lock, then the same two as pieces with the lock as their version.
    put(ends, WORDS, &[0, 7, 8]);
    let changes = [7, 8].map(|word| Change {
        offset: WORDS + 8 * (word - 6),
        expected: word,
        desired: 10 * word,
    });
    let cas = MultiCas { region: 0, lock: WORDS, record: WORDS + 256, changes: &changes };
    let cas = cas.to_bytes().unwrap();
    let answer = call(caller, runs, "multi_cas", &cas);
    assert_eq!((answer.result, ends.word(WORDS)), (0, 0));
    let again = call(caller, runs, "multi_cas", &cas);
    let now = [70u64, 80].map(u64::to_le_bytes).concat();
    assert_eq!((again.result, &again.output), (1, &now));
    let pieces = [VersionedPiece { version: WORDS, offset: WORDS + 8, bytes: 16 }];
    let read = MultiRead { region: 0, pieces: &pieces }.to_bytes().unwrap();
    let answer = call(caller, runs, "multi_read", &read);
    assert_eq!((answer.result, &answer.output[8..]), (0, &now[..]));

    // Each round appends a record until the log is full.
    let log = LogAppend { log: place(LOG), slots: 3, slot_bytes: 16, record: b"record" };
    let answer = call(caller, runs, "log_append", &log.to_bytes().unwrap());
    let expected = if round < 3 { round } else { status::FULL.cast_unsigned() };
    assert_eq!(answer.result, expected);
    let sum = Checksum { buffer: place(LOG + 16), bytes: 6, start: 0 }.to_bytes();
    let answer = call(caller, runs, "checksum_crc32c", &sum);
    assert_eq!(answer.result, u64::from(crc32c(b"record", 0)));
}

fn library_works_at_every_site(fabric: &str) {
    over(fabric, &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        put(ends, LOG, &[0]);
        for (round, runs) in (0..).zip([Site::Remote, Site::Local, Site::Remote, Site::Local]) {
            all(ends, &mut caller, runs, round);
        }
    });
}
