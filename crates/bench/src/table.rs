//! GET of the distributed hash table, compared with DashMap and, if `redis-server` is installed, pipelined Redis,
//! on the same keys and values.

use super::baseline::Baseline;
use super::report::{Report, Target};
use super::window::{Figure, measure};
use dashmap::DashMap;
use farside::{Node, NodeId};
use farside_apps::dht::{Dht, DhtOptions};
use farside_command::failure::Failure;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Records; their lines fit in the measured node's cache.
const RECORDS: u64 = 10_000;
const VALUE: [u8; 100] = [b'v'; 100];
/// Requests in flight on the Redis connection.
const PIPELINE: usize = 64;

const DASHMAP_GET: &str = "GET, DashMap";
const REDIS_GET: &str = "GET, Redis, 64 pipelined";

/// Measures GET on a table whose home is `home`, with all lines cached at `node`.
pub(crate) fn measure_get(node: &Node, home: NodeId, report: &mut Report) -> Result<(), Failure> {
    if !report.wants("GET") {
        return Ok(());
    }
    let keys = keys();
    let map: DashMap<Vec<u8>, Vec<u8>> =
        keys.iter().map(|key| (key.clone(), VALUE.to_vec())).collect();
    report.add(DASHMAP_GET, Baseline::Copy(100), Target::None, |windows| {
        each_key(windows, &keys, |key, out| {
            let found = map.get(key).ok_or_else(|| Failure::check("DashMap lost a key"))?;
            out.clear();
            out.extend_from_slice(&found);
            Ok(())
        })
    })?;
    match Redis::start() {
        Ok(mut redis) => redis.measure(&keys, report)?,
        Err(reason) => report.remark(format!("pipelined Redis was not measured: {reason}")),
    }
    let mut session = node.session()?;
    let options = DhtOptions { nodes: vec![home], ..DhtOptions::default() };
    let mut table = Dht::create(&mut session, &options)?;
    let mut table = table.with(&mut session);
    for key in &keys {
        table.put(key, &VALUE)?;
    }
    for (name, target) in [
        ("GET, cached, against DashMap", Target::TimesFaster(0.4, DASHMAP_GET)),
        ("GET, cached, against Redis", Target::TimesFaster(5.0, REDIS_GET)),
    ] {
        report.add(name, Baseline::Copy(100), target, |windows| {
            each_key(windows, &keys, |key, out| match table.get(key, out)? {
                true => Ok(()),
                false => Err(Failure::check("the hash table lost a key")),
            })
        })?;
    }
    Ok(table.destroy()?)
}

fn keys() -> Vec<Vec<u8>> {
    (0..RECORDS).map(|number| format!("user{number:012}").into_bytes()).collect()
}

/// Measures `get` on keys in a scattered order.
fn each_key(
    windows: u32,
    keys: &[Vec<u8>],
    mut get: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), Failure>,
) -> Result<Figure, Failure> {
    let mut out = Vec::with_capacity(VALUE.len());
    let mut at = 0;
    measure(windows, |count| {
        for _ in 0..count {
            // The step is coprime to the number of keys, so all of them are visited.
            at = (at + 7_919) % keys.len();
            get(black_box(&keys[at]), &mut out)?;
        }
        Ok(())
    })
}

/// A private Redis server on a Unix socket, killed when this value is dropped.
struct Redis {
    server: Child,
    stream: UnixStream,
    folder: PathBuf,
}

impl Redis {
    fn start() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("farside-redis-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let socket = folder.join("socket");
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket);
        let started = command
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut server = match started {
            Ok(server) => server,
            Err(reason) => {
                let _ = std::fs::remove_dir_all(&folder);
                return Err(format!("redis-server: {reason}"));
            }
        };
        for _ in 0..100 {
            if let Ok(stream) = UnixStream::connect(&socket) {
                return Ok(Self { server, stream, folder });
            }
            super::idle::pause(std::time::Duration::from_millis(50));
        }
        let _ = server.kill();
        let _ = server.wait();
        Err("redis-server did not listen within 5 s".to_owned())
    }

    fn measure(&mut self, keys: &[Vec<u8>], report: &mut Report) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::system(format!("redis: {e}"));
        for key in keys {
            let request = request(&[b"SET", key, &VALUE]);
            self.exchange(&request, b"+OK\r\n".len()).map_err(failed)?;
        }
        let reply = format!("${}\r\n", VALUE.len()).len() + VALUE.len() + 2;
        let mut batches = keys
            .chunks_exact(PIPELINE)
            .map(|keys| keys.iter().flat_map(|key| request(&[b"GET", key])).collect::<Vec<u8>>());
        let batches: Vec<_> = batches.by_ref().collect();
        let mut next = batches.iter().cycle();
        report.add(REDIS_GET, Baseline::Copy(100), Target::None, |windows| {
            let figure = measure(windows, |count| {
                for _ in 0..count {
                    let batch = next.next().map_or(&[][..], Vec::as_slice);
                    self.exchange(batch, PIPELINE * reply).map_err(failed)?;
                }
                Ok::<_, Failure>(())
            })?;
            Ok::<_, Failure>(figure.per(PIPELINE as f64))
        })
    }

    /// Writes requests and reads replies of `reply_bytes` bytes in total.
    fn exchange(&mut self, requests: &[u8], reply_bytes: usize) -> std::io::Result<()> {
        self.stream.write_all(requests)?;
        let mut replies = [0; 64 * 128];
        let replies = replies.get_mut(..reply_bytes).ok_or(std::io::ErrorKind::InvalidInput)?;
        self.stream.read_exact(replies)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Encodes a request of the Redis protocol: an array of strings.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend_from_slice(word);
        out.extend(b"\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_an_array_of_strings() {
        assert_eq!(request(&[b"GET", b"ab"]), b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n");
    }

    #[test]
    fn every_key_is_visited() {
        let keys = keys();
        let mut seen = std::collections::HashSet::new();
        // A stalled machine may visit only some of the keys in one measurement.
        for _ in 0..50 {
            each_key(40, &keys, |key, _| {
                seen.insert(key.to_vec());
                Ok(())
            })
            .unwrap();
            if seen.len() == keys.len() {
                break;
            }
        }
        assert_eq!(seen.len(), keys.len());
    }
}
