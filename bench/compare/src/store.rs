//! Peers of the hash table: Redis behind a Unix socket, one client with its requests pipelined, and DashMap in this
//! process. Keys, values and their numbers are those of `farside bench hashtable`.

use crate::figure::{Spread, measure};
use serde::Serialize;
use std::io::{Error, Read, Result, Write};
use std::os::unix::net::UnixStream;

const KEYS: u64 = 8192;
const VALUE: [u8; 64] = [7; 64];
/// Requests that are sent together.
const TOGETHER: usize = 64;
/// An answer to GET: `$64`, the value, each with a line end.
const ANSWER: usize = 5 + VALUE.len() + 2;

/// One line of the output: the time of an operation on one key.
#[derive(Serialize)]
struct Entry<'a> {
    party: &'a str,
    operation: &'a str,
    best_ns: f64,
    median_ns: f64,
}

fn print(party: &str, operation: &str, Spread { best, median }: Spread, keys: usize) -> Result<()> {
    let per = |ns: f64| ns / keys as f64;
    let entry = Entry { party, operation, best_ns: per(best), median_ns: per(median) };
    writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(&entry)?)
}

/// Keys without an order.
fn keys() -> impl FnMut() -> u64 {
    let mut next = 0_u64;
    move || {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (next >> 33) % KEYS
    }
}

/// A command in Redis' protocol.
fn encode(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", words.len()).into_bytes());
    for word in words {
        out.extend(format!("${}\r\n", word.len()).into_bytes());
        out.extend_from_slice(word);
        out.extend(b"\r\n");
    }
}

/// Measures the Redis server behind this socket: GETs one by one, and 64 at a time.
pub(crate) fn redis(socket: &str, windows: usize) -> Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let (mut request, mut answer) = (Vec::new(), vec![0; ANSWER * TOGETHER]);
    for key in 0..KEYS {
        request.clear();
        encode(&[b"SET", &key.to_le_bytes(), &VALUE], &mut request);
        stream.write_all(&request)?;
        stream.read_exact(&mut answer[..5])?;
        if &answer[..5] != b"+OK\r\n" {
            return Err(Error::other("the server has refused a SET"));
        }
    }
    for together in [1, TOGETHER] {
        // Encoded before: the client's time is that of its system calls.
        let mut key = keys();
        let batches: Vec<Vec<u8>> = (0..64)
            .map(|_| {
                let mut batch = Vec::new();
                (0..together).for_each(|_| encode(&[b"GET", &key().to_le_bytes()], &mut batch));
                batch
            })
            .collect();
        let mut at = 0;
        let spread = measure(windows, 1, |count| {
            for _ in 0..count {
                at = (at + 1) % batches.len();
                stream.write_all(&batches[at])?;
                let answers = &mut answer[..ANSWER * together];
                stream.read_exact(answers)?;
                if answers.chunks(ANSWER).any(|one| one[0] != b'$' || one[5] != VALUE[0]) {
                    return Err(Error::other("the server has lost a value"));
                }
            }
            Ok(())
        })?;
        let operation = if together == 1 { "get" } else { "get, 64 together" };
        print("redis", operation, spread, together)?;
    }
    Ok(())
}

/// Measures DashMap, whose values are copied out.
pub(crate) fn dashmap(windows: usize) -> Result<()> {
    let map = dashmap::DashMap::<u64, Vec<u8>>::new();
    for key in 0..KEYS {
        map.insert(key, VALUE.to_vec());
    }
    let mut key = keys();
    let spread = measure(windows, 64, |count| {
        for _ in 0..count {
            let value = map.get(&key()).map(|value| value.to_vec());
            std::hint::black_box(value).ok_or_else(|| Error::other("the map has lost a value"))?;
        }
        Ok(())
    })?;
    print("dashmap", "get", spread, 1)
}
