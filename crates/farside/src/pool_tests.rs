//! The pool against a reference: a map of what each unit is used for.

use super::*;
use farside_base::Random;
use std::collections::BTreeMap;

fn pool(units: u32) -> Pool {
    let len = Pool::table_len(units);
    Pool::new(units, vec![0; len].into(), vec![0; len].into())
}

/// Whether an aligned block of this order has no frame in it and overlaps no block being cleared.
fn has_room(frames: &BTreeMap<u32, u32>, cleared: &[Block], units: u32, order: u32) -> bool {
    let is_used = |block: Block| {
        frames.iter().any(|(start, order)| Block { start: *start, order: *order }.overlaps(block))
            || cleared.iter().any(|other| other.overlaps(block))
    };
    (0..units >> order).any(|number| !is_used(Block { start: number << order, order }))
}

#[test]
fn frames_of_one_size_fill_the_pool() {
    for order in 0..=ORDER_MAX {
        let mut pool = pool(5 << ORDER_MAX);
        let count = 5 << (ORDER_MAX - order);
        let mut starts: Vec<u32> = (0..count).filter_map(|at| pool.allocate(order, at)).collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), count as usize);
        assert_eq!(pool.allocate(order, 0), None);
        for start in starts {
            pool.free(start);
        }
        assert!((0..5).all(|at| pool.allocate(ORDER_MAX, at).is_some()), "all has merged");
    }
}

#[test]
fn block_being_cleared_is_withheld_until_its_last_frame_is_free() {
    let mut pool = pool(8);
    let starts: Vec<u32> = (0..8).filter_map(|at| pool.allocate(0, at)).collect();
    let block = Block::around(5, 2);
    pool.free(starts[6]);
    pool.clear(block);
    pool.free(starts[4]);
    assert_eq!(pool.allocate(0, 9), None, "its free parts are withheld");
    pool.free(starts[5]);
    assert!(pool.is_clearing(block));
    pool.free(starts[7]);
    assert!(!pool.is_clearing(block));
    assert_eq!(pool.allocate(2, 9), Some(4));
}

#[test]
fn agrees_with_reference_map() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let units = 1 + random.below(3_000) as u32;
        let mut pool = pool(units);
        let mut frames = BTreeMap::new();
        let mut cleared: Vec<Block> = Vec::new();
        for step in 0..1_500_u32 {
            let order = random.below(LineSize::CLASSES as u64) as u32;
            let nth = frames.keys().copied().nth(random.below(frames.len().max(1) as u64) as usize);
            match (random.below(8), nth) {
                (0..=3, _) => {
                    let room = has_room(&frames, &cleared, units, order);
                    let start = pool.allocate(order, step);
                    assert_eq!(start.is_some(), room, "seed {seed} step {step}");
                    if let Some(start) = start {
                        let block = Block { start, order };
                        assert_eq!(Block::around(start, order), block, "aligned");
                        assert!(block.end() <= units, "seed {seed}");
                        assert_eq!(pool.frame_in(block, 0), Some((start, block.end(), step)));
                        frames.insert(start, order);
                    }
                }
                (4 | 5, Some(start)) => {
                    frames.remove(&start);
                    pool.free(start);
                    cleared.retain(|block| {
                        frames.iter().any(|(start, order)| {
                            Block { start: *start, order: *order }.overlaps(*block)
                        })
                    });
                }
                (6, Some(_)) => {
                    if let Some(block) = pool.next_block(order)
                        && pool.frame_in(block, 0).is_some()
                    {
                        assert!(!cleared.iter().any(|other| other.overlaps(block)));
                        pool.clear(block);
                        cleared.push(block);
                    }
                }
                (7, _) if !cleared.is_empty() => pool.abandon(cleared.swap_remove(0)),
                _ => {}
            }
            assert!(cleared.iter().all(|block| pool.is_clearing(*block)), "seed {seed}");
            assert_eq!(cleared.len(), pool.clearing.len(), "seed {seed} step {step}");
        }
    }
}
