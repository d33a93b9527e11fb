//! Exact costs of operations on lent memory over a simulated adapter: work requests, doorbells, round trips, bytes,
//! copies. Those of vector IO are those of paper 000, Algorithm 1 and Table I.

use farside::Error;
use farside::onesided::{
    BurstBuffer, BurstOptions, MemoryClient, Publication, QueueLock, RangeList, RecoverableWord,
    RemoteLock, RemoteMemory, Sequencer, TicketLock, TransferRange, VectorIo,
};
use farside_sim::lent::{Meter, OperationCounts, PATIENCE, Scene};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(1);

/// Runs a program that is measured.
fn measure(
    body: impl FnOnce(&Meter, &mut MemoryClient, RemoteMemory) -> Result<(), Error> + Send + 'static,
) {
    let scene = Scene::to_measure(1 << 20).unwrap();
    let meter = scene.meter("client");
    let body = move |client: &mut MemoryClient, memory| body(&meter, client, memory).unwrap();
    scene.client("client", body).unwrap();
    scene.run().unwrap();
}

/// Work requests, doorbells, round trips, bytes, copies.
const fn counts(of: [u64; 5]) -> OperationCounts {
    let [work_requests, doorbells, round_trips, bytes, copies] = of;
    OperationCounts { work_requests, doorbells, round_trips, bytes, copies }
}

#[test]
fn requests_take_one_round_trip() {
    measure(|meter, client, memory| {
        let buffer = client.register(4096)?;
        let at = memory.at(4096);
        for (name, bytes) in [("read", 32), ("write", 32), ("add", 8), ("swap", 8)] {
            let (cost, ended) = meter.measure(client, memory, |client| {
                let request = match name {
                    "read" => client.read(at, &buffer, 0..32)?,
                    "write" => client.write(at, &buffer, 0..32)?,
                    "add" => client.fetch_add(at, 1)?,
                    _ => client.compare_swap(at, 1, 2)?,
                };
                client.wait(request, PATIENCE)
            })?;
            ended?;
            assert_eq!((name, cost), (name, counts([1, 1, 1, bytes, 0])));
        }
        Ok(())
    });
}

/// 16 pieces of 32 B in the buffer, which are adjacent in the remote memory.
#[test]
fn vector_ways_keep_their_requests() {
    measure(|meter, client, memory| {
        let buffer = client.register(4096)?;
        let range = |at: u64| TransferRange { remote: at * 32, local: at * 128, bytes: 32 };
        let ranges: Vec<TransferRange> = (0..16).map(range).collect();
        for (way, expected) in [
            (VectorIo::Doorbell, [16, 1, 1, 512, 0]),
            (VectorIo::Gather, [1, 1, 1, 512, 0]),
            (VectorIo::Stage, [1, 1, 1, 512, 16]),
        ] {
            let list = RangeList::explicit(&ranges)?.by(way);
            for is_write in [true, false] {
                let (cost, ended) = meter.measure(client, memory, |client| {
                    let request = if is_write {
                        client.write_ranges(memory.at(4096), &buffer, 0, &list)?
                    } else {
                        client.read_ranges(memory.at(4096), &buffer, 0, &list)?
                    };
                    client.wait(request, PATIENCE)
                })?;
                ended?;
                assert_eq!((way, is_write, cost), (way, is_write, counts(expected)));
            }
        }
        Ok(())
    });
}

/// Writes of 32 B to one block of 1 KiB: one WRITE for theta of them, of the bytes that were written.
#[test]
fn consolidated_writes_keep_their_requests() {
    measure(|meter, client, memory| {
        for (theta, requests) in [(1, 32), (4, 8), (16, 2), (32, 1)] {
            let options = BurstOptions::default().theta(theta).time_out(Duration::MAX);
            let mut burst = BurstBuffer::new(client, memory.at(4096), 65_536, &options)?;
            let (cost, written) = meter.measure(client, memory, |client| {
                for at in 0..32 {
                    burst.write(client, at * 32, &[7; 32], PATIENCE)?;
                }
                burst.flush(client, PATIENCE)
            })?;
            written?;
            // The last request is the READ that tells that all are placed.
            assert_eq!((theta, cost.work_requests, cost.bytes), (theta, requests + 1, 1025));
        }
        Ok(())
    });
}

#[test]
fn structures_keep_their_round_trips() {
    measure(|meter, client, memory| {
        let mut word = RecoverableWord::open(client, memory.at(8192), (0, 4), PATIENCE)?;
        word.fetch_add(client, 1, PATIENCE)?;
        let (cost, _) =
            meter.measure(client, memory, |client| word.fetch_add(client, 1, PATIENCE))?;
        assert_eq!(cost, counts([1, 1, 1, 8, 0]), "addition");

        let sequencer = Sequencer::new(memory.at(12_288))?;
        let (cost, _) = meter.measure(client, memory, |client| sequencer.next(client, PATIENCE))?;
        assert_eq!(cost, counts([1, 1, 1, 8, 0]), "sequencer");

        let spin = RemoteLock::new(memory.at(16_384), LEASE)?;
        let ticket = TicketLock::new(memory.at(16_448), LEASE)?;
        let queue = QueueLock::new(memory.at(20_480), 8, LEASE)?;
        for (name, expected) in [("spin", [3, 3, 3]), ("ticket", [3, 2, 2]), ("queue", [4, 2, 2])] {
            let (cost, held) = meter.measure(client, memory, |client| {
                let guard = match name {
                    "spin" => spin.lock(client, PATIENCE),
                    "ticket" => ticket.lock(client, PATIENCE),
                    _ => queue.lock(client, PATIENCE),
                };
                guard?.unlock(client, PATIENCE)
            })?;
            held?;
            let found = [cost.work_requests, cost.doorbells, cost.round_trips];
            assert_eq!((name, found), (name, expected));
        }

        let mut table = Publication::new(memory.at(32_768), 1024)?;
        let buffer = client.register(1024)?;
        table.publish(client, &buffer, 0, PATIENCE)?;
        let (cost, published) =
            meter.measure(client, memory, |client| table.publish(client, &buffer, 0, PATIENCE))?;
        published?;
        assert_eq!([cost.work_requests, cost.doorbells, cost.round_trips], [3, 3, 3], "publish");
        let (cost, seen) =
            meter.measure(client, memory, |client| table.snapshot(client, &buffer, 0, PATIENCE))?;
        seen?;
        assert_eq!([cost.work_requests, cost.doorbells, cost.round_trips], [2, 2, 2], "snapshot");
        Ok(())
    });
}
