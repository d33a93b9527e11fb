//! The root, by which users find the table.

use super::error::DhtError;
use super::layout::{
    Bucket, BucketState, ROOT_HEADER, SegmentHeader, TableShape, decode_address, encode_address,
};
use super::space::Space;
use super::split::new_segment;
use super::table::is_freed;
use farside::{AllocationHint, GlobalAddress, NodeId};

/// Allocates an empty table with partitions wrapped over `nodes` by the highest bits of the hash (004
/// §6.2); returns the root and the partitions' first segments.
pub(super) fn create_root<S: Space>(
    space: &mut S,
    shape: &TableShape,
    nodes: &[NodeId],
) -> Result<(GlobalAddress, Vec<GlobalAddress>), DhtError> {
    // What was lost before is reported before anything is allocated.
    space.fence()?;
    let partitions = 1_usize << shape.partition_bits;
    let mut bytes = shape.encode().to_vec();
    let mut first = Vec::with_capacity(partitions);
    for number in 0..partitions {
        let header = SegmentHeader::new(shape.table, number as u16, 0, 0, None);
        let bucket = Bucket::new(shape.table, 0, 0, BucketState::Normal);
        let node = nodes.get((number * nodes.len()) >> shape.partition_bits);
        let hint = node.map_or(AllocationHint::Default, |node| AllocationHint::On(*node));
        let segment = new_segment(space, shape, hint, &header, &bucket)?;
        bytes.extend_from_slice(&encode_address(segment));
        first.push(segment);
    }
    let root = space.alloc(bytes.len() as u64, shape.allocation(AllocationHint::Default, None))?;
    space.write(root, &bytes)?;
    space.fence()?;
    Ok((root, first))
}

/// Reads the root that `create_root` wrote.
pub(super) fn read_root<S: Space>(
    space: &mut S,
    root: GlobalAddress,
) -> Result<(TableShape, Vec<GlobalAddress>), DhtError> {
    let absent = DhtError::NotATable(root);
    let mut header = [0; ROOT_HEADER];
    match space.read(root, &mut header) {
        Err(error) if is_freed(&error) => return Err(absent),
        other => other?,
    }
    let shape = TableShape::decode(&header).ok_or(absent.clone())?;
    let mut bytes = vec![0; 8 << shape.partition_bits];
    let list = root.checked_add(ROOT_HEADER as u64).ok_or(absent.clone())?;
    space.read(list, &mut bytes)?;
    let addresses = bytes.as_chunks::<8>().0.iter().map(|bytes| decode_address(*bytes));
    let first = addresses.collect::<Option<Vec<_>>>().ok_or(absent)?;
    Ok((shape, first))
}
