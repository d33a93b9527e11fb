//! The table over a memory that is as adversarial as its guarantees permit. `model` is that memory,
//! `history` checks the observations; a failure names its seed, and the same seed reproduces the run.

mod by_call;
mod cluster;
mod concurrent;
pub(crate) mod history;
mod model;
mod single;

use super::error::DhtError;
use super::hash::hash;
use super::layout::{TableShape, bucket_index};
use super::root::{create_root, read_root};
use super::space::Space;
use super::table::TableAccess;
use farside::{GlobalAddress, LineSize, NodeId};

/// The hash seed of all tables in these tests.
const HASH_SEED: u64 = 11;

fn shape(partition_bits: u32, record_line: usize) -> TableShape {
    TableShape {
        table: 0x7461_626c,
        seed: HASH_SEED,
        partition_bits,
        record_line: LineSize::from_bytes(record_line).unwrap(),
        logged: false,
    }
}

fn create<S: Space>(space: &mut S, shape: &TableShape, nodes: u16) -> TableAccess {
    let nodes: Vec<_> = (0..nodes).map(NodeId).collect();
    let (root, first) = create_root(space, shape, &nodes).unwrap();
    TableAccess::new(*shape, root, first, 1)
}

fn open<S: Space>(space: &mut S, root: GlobalAddress, nonce: u64) -> Result<TableAccess, DhtError> {
    let (shape, first) = read_root(space, root)?;
    Ok(TableAccess::new(shape, root, first, nonce))
}

/// Keys of the first partition that all belong to one of two bucket numbers. Few of them split it, and a
/// split of the one is known before the other's half has moved.
fn crowded_keys(count: usize, partition_bits: u32) -> Vec<Vec<u8>> {
    (0_u64..)
        .map(|number| format!("k{number}").into_bytes())
        .filter(|key| {
            let hash = hash(key, HASH_SEED);
            [3, 11].contains(&bucket_index(hash)) && hash >> (64 - partition_bits) == 0
        })
        .take(count)
        .collect()
}
