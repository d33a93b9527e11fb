//! Requests on rings: transfers that are cut where a ring ends.

use super::error::LogError;
use super::layout::LogRing;
use farside::onesided::{Buffer, Deadline, MemoryClient, RequestId, TransferRange};

/// Requests that were queued and are waited for together: at most the two parts of each of two transfers, and a word.
#[derive(Default)]
pub(super) struct Requests {
    ids: [Option<RequestId>; 5],
    count: usize,
}

impl Requests {
    pub(super) fn push(&mut self, id: RequestId) {
        self.ids[self.count] = Some(id);
        self.count += 1;
    }

    /// Waits for all; returns the outcome of the last.
    pub(super) fn wait(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<u64, LogError> {
        let mut last = Ok(0);
        for id in std::mem::take(&mut self.ids).into_iter().flatten() {
            match last {
                Ok(_) => last = deadline.wait(client, id),
                Err(_) => client.forget(id),
            }
        }
        self.count = 0;
        Ok(last?)
    }
}

impl LogRing {
    /// Queues the WRITE of a part of a buffer to a position.
    pub(super) fn write(
        &self,
        client: &mut MemoryClient,
        position: u64,
        from: &Buffer,
        (begins, bytes): (u64, u64),
        requests: &mut Requests,
    ) -> Result<(), LogError> {
        for (_, at, bytes) in self.pieces(position, bytes) {
            let part = begins + at..begins + at + bytes;
            requests.push(client.write(self.at(position + at), from, part)?);
        }
        Ok(())
    }

    /// Reads bytes from a position into the beginning of a buffer.
    pub(super) fn read(
        &self,
        client: &mut MemoryClient,
        position: u64,
        into: &Buffer,
        bytes: u64,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let mut requests = Requests::default();
        for (_, at, bytes) in self.pieces(position, bytes) {
            requests.push(client.read(self.at(position + at), into, at..at + bytes)?);
        }
        requests.wait(client, deadline).map(drop)
    }

    /// Appends ranges of a buffer to a list: from a position of this ring on, one behind the other.
    pub(super) fn ranges(
        &self,
        mut position: u64,
        parts: &[(u64, u32)],
        out: &mut Vec<TransferRange>,
    ) {
        for (local, bytes) in parts {
            for (remote, at, bytes) in self.pieces(position, u64::from(*bytes)) {
                out.push(TransferRange { local: local + at, remote, bytes: bytes as u32 });
            }
            position += u64::from(*bytes);
        }
    }
}
