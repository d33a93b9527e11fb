//! The tag's rules: unit tests on the lines of a node, and (under `cfg(loom)`) every interleaving of
//! a reader, a writer and a change of level, or (under `cfg(shuttle)`) many random ones. Run them with
//! `cargo xtask ci --only loom` and `--only shuttle`.

use super::*;

#[cfg(any(loom, shuttle))]
mod programs {
    use super::*;
    #[cfg(loom)]
    use loom as engine;
    #[cfg(shuttle)]
    use shuttle as engine;

    use engine::sync::Arc;
    use engine::sync::atomic::{AtomicU64 as Word, fence};
    use engine::thread;

    const WHOLE: Extent = Extent { first: true, bytes: 64 };

    struct TestLine {
        tag: Tag,
        words: [Word; 2],
    }

    impl TestLine {
        fn new(level: Level) -> Arc<Self> {
            let line = Self { tag: Tag::new(), words: [Word::new(0), Word::new(0)] };
            line.tag.set(level, Some((LineSize::MIN, Some(WHOLE))));
            Arc::new(line)
        }

        fn write(&self, value: u64) -> bool {
            let seen = self.tag.observe();
            if !seen.allows(2, 0, 16, false) || !self.tag.claim(seen) {
                return false;
            }
            for word in &self.words {
                word.store(value, Ordering::Relaxed);
            }
            self.tag.release(seen);
            true
        }

        /// A read by another process, for an address of this line size.
        fn read_direct(&self, size: LineSize) -> Option<[u64; 2]> {
            let seen = TagValue::from_bits(self.tag.0.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if !seen.allows_read(size, 0, 16, false) {
                return None;
            }
            let words = [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            (self.tag.0.load(Ordering::Relaxed) == seen.0).then_some(words)
        }

        fn read(&self) -> Option<[u64; 2]> {
            let seen = self.tag.observe();
            if !seen.allows(1, 0, 16, false) {
                return None;
            }
            let words = [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed));
            self.tag.unchanged(seen).then_some(words)
        }
    }

    pub(super) fn a_reader_never_sees_half_a_write() {
        let line = TestLine::new(Level::Dirty);
        let writer = Arc::clone(&line);
        let thread = thread::spawn(move || writer.write(1));
        if let Some([a, b]) = line.read() {
            assert_eq!(a, b);
        }
        thread.join().unwrap();
    }

    pub(super) fn two_writers_do_not_mix() {
        let line = TestLine::new(Level::Dirty);
        let other = Arc::clone(&line);
        let thread = thread::spawn(move || other.write(1));
        line.write(2);
        thread.join().unwrap();
        let [a, b] = line.read().expect("no thread writes any more");
        assert_eq!(a, b);
    }

    pub(super) fn nothing_is_read_or_written_after_the_level_fell() {
        let line = TestLine::new(Level::Dirty);
        let (reader, writer) = (Arc::clone(&line), Arc::clone(&line));
        let threads = [
            thread::spawn(move || {
                if let Some([a, b]) = reader.read() {
                    assert_eq!(a, b);
                    assert!(a != 9, "bytes that a peer placed at `Invalid` are not read");
                }
            }),
            thread::spawn(move || {
                writer.write(1);
            }),
        ];
        line.tag.set(Level::Invalid, None);
        // The writes of a peer to the frame from now on, in pieces:
        for word in &line.words {
            word.store(9, Ordering::Relaxed);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(line.words[0].load(Ordering::Relaxed), 9, "no late local write");
        assert_eq!(line.words[1].load(Ordering::Relaxed), 9, "no late local write");
    }

    /// Another member removes this one, and then changes the line elsewhere: a thread that has seen the new
    /// bytes there reads no old ones at this node.
    pub(super) fn removed_member_that_learnt_the_new_value_reads_no_old_one() {
        let line = TestLine::new(Level::Shared);
        let fence_word = Arc::new(Word::new(0));
        let elsewhere = Arc::new(Word::new(0));
        let (word, home) = (Arc::clone(&fence_word), Arc::clone(&elsewhere));
        let thread = thread::spawn(move || {
            remove_member(|value, order| word.store(value, order));
            home.store(1, Ordering::Release);
        });
        let learnt = elsewhere.load(Ordering::Acquire) == 1;
        let old = line.read().filter(|_| is_member(|order| fence_word.load(order)));
        assert!(!(learnt && old.is_some()), "an old value was read");
        thread.join().unwrap();
    }

    /// A change that is acknowledged took effect while this node was a member: before another member,
    /// which removes it, takes the line over.
    pub(super) fn acknowledged_change_comes_before_the_removal() {
        let line = TestLine::new(Level::Dirty);
        let fence_word = Arc::new(Word::new(0));
        let elsewhere = Arc::new(Word::new(0));
        let (word, home) = (Arc::clone(&fence_word), Arc::clone(&elsewhere));
        let thread = thread::spawn(move || {
            remove_member(|value, order| word.store(value, order));
            home.store(1, Ordering::Release);
        });
        let reclaimed = elsewhere.load(Ordering::Acquire) == 1;
        let seen = line.tag.observe();
        assert!(line.tag.claim(seen));
        let acknowledged = is_member(|order| fence_word.load(order));
        line.tag.release(seen);
        assert!(!(reclaimed && acknowledged), "acknowledged after the line was taken over");
        thread.join().unwrap();
    }

    pub(super) fn a_direct_reader_never_sees_half_a_write() {
        let line = TestLine::new(Level::Dirty);
        let writer = Arc::clone(&line);
        let thread = thread::spawn(move || writer.write(1));
        if let Some([a, b]) = line.read_direct(LineSize::MIN) {
            assert_eq!(a, b);
        }
        thread.join().unwrap();
    }

    /// The line is owned elsewhere for a while: its owner's bytes land in pieces.
    pub(super) fn a_direct_reader_sees_no_bytes_that_land() {
        let line = TestLine::new(Level::Dirty);
        let home = Arc::clone(&line);
        let thread = thread::spawn(move || {
            home.tag.set(Level::Invalid, None);
            for word in &home.words {
                word.store(9, Ordering::Relaxed);
            }
            home.tag.set(Level::Dirty, None);
        });
        if let Some([a, b]) = line.read_direct(LineSize::MIN) {
            assert_eq!(a, b);
        }
        thread.join().unwrap();
    }

    /// The memory is freed and allocated with lines of another size: nothing of that is read.
    pub(super) fn a_direct_reader_of_freed_memory_sees_no_later_allocation() {
        let line = TestLine::new(Level::Dirty);
        line.write(1);
        let home = Arc::clone(&line);
        let thread = thread::spawn(move || {
            let other = LineSize::from_class(1).unwrap();
            home.tag.set(Level::Invalid, Some((LineSize::MIN, None)));
            for word in &home.words {
                word.store(0, Ordering::Relaxed);
            }
            home.tag.set(Level::Dirty, Some((other, Some(WHOLE))));
            home.write(3);
        });
        assert!(matches!(line.read_direct(LineSize::MIN), None | Some([1, 1])));
        thread.join().unwrap();
    }

    /// Another member removes this one, reclaims what it has cached, and then changes a line of its own
    /// memory: this node reads no such change.
    pub(super) fn removed_member_reads_no_later_change_directly() {
        let line = TestLine::new(Level::Dirty);
        let fence_word = Arc::new(Word::new(0));
        let (word, home) = (Arc::clone(&fence_word), Arc::clone(&line));
        let thread = thread::spawn(move || {
            remove_member(|value, order| word.store(value, order));
            home.write(1);
        });
        let read = line.read_direct(LineSize::MIN);
        let returned = read.filter(|_| is_member(|order| fence_word.load(order)));
        assert!(matches!(returned, None | Some([0, 0])), "a later value was read");
        thread.join().unwrap();
    }

    /// A line leaves its frame, which another line gets, and returns to another frame.
    pub(super) fn a_reader_of_a_line_that_moves_sees_only_its_bytes() {
        let line = TestLine::new(Level::Shared);
        let frame = Arc::new(Word::new(0));
        let (reader, frame_of_reader) = (Arc::clone(&line), Arc::clone(&frame));
        let thread = thread::spawn(move || {
            let seen = reader.tag.observe();
            if !seen.allows(1, 0, 8, false) {
                return;
            }
            let at = frame_of_reader.load(Ordering::Relaxed) as usize;
            let word = reader.words[at].load(Ordering::Relaxed);
            assert!(!reader.tag.unchanged(seen) || word == at as u64 * 5, "bytes of another line");
        });
        line.tag.set(Level::Invalid, None);
        line.words[0].store(9, Ordering::Relaxed);
        frame.store(1, Ordering::Relaxed);
        line.words[1].store(5, Ordering::Relaxed);
        line.tag.set(Level::Shared, None);
        thread.join().unwrap();
    }

    pub(super) fn granted_bytes_are_seen_with_the_grant() {
        let line = TestLine::new(Level::Invalid);
        let reader = Arc::clone(&line);
        let thread = thread::spawn(move || {
            if let Some(words) = reader.read() {
                assert_eq!(words, [5, 5]);
            }
        });
        for word in &line.words {
            word.store(5, Ordering::Relaxed);
        }
        line.tag.set(Level::Shared, Some((LineSize::MIN, Some(WHOLE))));
        thread.join().unwrap();
    }
}

#[cfg(any(loom, shuttle))]
macro_rules! searched {
    ($($name:ident)*) => {
        #[cfg(loom)]
        mod loom_tests {
            $(#[test] fn $name() {
                // Three preemptions show every bug of two or three threads of this size; without a bound
                // the largest program takes minutes.
                let mut search = loom::model::Builder::new();
                search.preemption_bound = Some(3);
                search.check(super::programs::$name);
            })*
        }

        #[cfg(shuttle)]
        mod shuttle_tests {
            $(#[test] fn $name() { shuttle::check_random(super::programs::$name, 20_000) })*
        }
    };
}

#[cfg(any(loom, shuttle))]
searched! {
    a_reader_never_sees_half_a_write
    two_writers_do_not_mix
    nothing_is_read_or_written_after_the_level_fell
    granted_bytes_are_seen_with_the_grant
    a_reader_of_a_line_that_moves_sees_only_its_bytes
    a_direct_reader_never_sees_half_a_write
    a_direct_reader_sees_no_bytes_that_land
    a_direct_reader_of_freed_memory_sees_no_later_allocation
    removed_member_reads_no_later_change_directly
    removed_member_that_learnt_the_new_value_reads_no_old_one
    acknowledged_change_comes_before_the_removal
}

#[cfg(not(any(loom, shuttle)))]
mod unit {
    use super::*;

    const CACHE_BYTES: usize = 1 << 20;

    fn lines() -> Lines {
        let cache = Arena::heap(CACHE_BYTES);
        let word = SharedWord::new(&Arena::heap(64), 0).unwrap();
        let memory = MemoryId::new(NodeId(1), farside_base::Generation(0));
        let (me, home) = ((NodeId(1), memory), Arena::heap(2 << 20));
        let home = (home, Arena::heap(tag_bytes(2 << 20) as usize));
        Lines::new(me, home, cache, word, Clock::of_processor()).unwrap()
    }

    fn line(node: u16, number: u64) -> LineAddress {
        let offset = number * 512;
        GlobalAddress::new(NodeId(node), LineSize::DEFAULT, offset).unwrap().line()
    }

    const WHOLE: Extent = Extent { first: true, bytes: 512 };

    fn held(level: Level) -> HeldLine {
        HeldLine { level, grant: Grant(7) }
    }

    #[test]
    fn own_lines_obey_level_extent_and_class() {
        let lines = lines();
        let (own, mut out) = (line(1, 3), [0; 8]);
        assert!(!lines.read(own.address(), &mut out, false), "unallocated");
        lines.set_own(own, Level::Dirty, Some(Extent { first: true, bytes: 40 }));
        assert!(lines.write(own.address(), &[1; 8], false));
        assert!(lines.read(own.address(), &mut out, false));
        assert!(!lines.read(own.address(), &mut out, true), "first of its allocation");
        assert!(lines.read(own.address().checked_add(32).unwrap(), &mut out, false));
        assert!(
            !lines.read(own.address().checked_add(33).unwrap(), &mut out, false),
            "past the end"
        );
        let forged = GlobalAddress::new(NodeId(1), LineSize::MIN, own.offset()).unwrap();
        assert!(!lines.read(forged, &mut out, false), "another line size");
        lines.set_level(own, held(Level::Shared), None);
        assert!(lines.read(own.address(), &mut out, false) && out == [1; 8]);
        assert!(!lines.write(own.address(), &[2; 8], false));
        lines.set_level(own, held(Level::Invalid), None);
        assert!(!lines.read(own.address(), &mut out, false));
    }

    #[test]
    fn frames_are_reserved_used_and_freed() {
        let lines = lines();
        let far = line(0, 9);
        assert_eq!(lines.frame(far), None);
        let frame = lines.reserve(far).unwrap();
        assert_eq!(lines.frame(far), Some(frame));
        let mut out = [0; 8];
        assert!(!lines.read(far.address(), &mut out, false), "on its way");
        lines.set_level(far, held(Level::Dirty), Some(WHOLE));
        assert_eq!(lines.here(far), (held(Level::Dirty), Some(WHOLE)));
        assert!(lines.write(far.address(), &[3; 8], false));
        assert!(lines.read(far.address(), &mut out, false) && out == [3; 8]);
        assert_eq!(lines.cached().collect::<Vec<_>>(), [far]);
        lines.set_level(far, held(Level::Invalid), None);
        lines.release(far);
        assert_eq!(lines.frame(far), None);
        assert_eq!(lines.cached().count(), 0);
    }

    fn cache_shared(lines: &Lines, line: LineAddress) -> Result<Frame, Lack> {
        let frame = lines.reserve(line)?;
        let extent = Extent { first: true, bytes: line.line_size().bytes() as u32 };
        lines.set_level(line, held(Level::Shared), Some(extent));
        Ok(frame)
    }

    /// The only line of a block.
    fn only(lines: &Lines, block: Block) -> LineAddress {
        let (line, end) = lines.next_in(block, block.start).unwrap();
        assert_eq!(end, block.end());
        line
    }

    #[test]
    fn least_recently_used_line_of_a_full_set_is_the_first_candidate() {
        let lines = lines();
        let target = line(0, 1);
        let set = lines.cache.set_of(target);
        let same: Vec<LineAddress> = (2..)
            .map(|number| line(0, number))
            .filter(|line| lines.cache.set_of(*line) == set)
            .take(WAYS)
            .collect();
        for other in &same {
            cache_shared(&lines, *other).unwrap();
        }
        assert_eq!(lines.reserve(target), Err(Lack::Way));
        lines.cache.age.store(5, Ordering::Relaxed);
        let mut out = [0; 8];
        for used in same.iter().filter(|line| **line != same[3]) {
            assert!(lines.read(used.address(), &mut out, false));
        }
        let candidates = || lines.candidates(target, Lack::Way).map(|block| only(&lines, block));
        assert_eq!(candidates().next(), Some(same[3]));
        assert_eq!(candidates().count(), WAYS);
        lines.set_level(same[3], held(Level::Invalid), None);
        lines.cache.age.store(6, Ordering::Relaxed);
        assert_ne!(candidates().next(), Some(same[3]), "a line on its way is the youngest");
    }

    #[test]
    fn lines_of_each_size_alone_fill_the_cache() {
        for size in LineSize::all() {
            let lines = lines();
            let count = CACHE_BYTES / size.bytes();
            let of = |number: usize| {
                let offset = (number * size.bytes()) as u64;
                GlobalAddress::new(NodeId(0), size, offset).unwrap().line()
            };
            let cached = (0..count).take_while(|number| lines.reserve(of(*number)).is_ok()).count();
            assert!(cached * 10 >= count * 9, "{cached} of {count} lines of {size:?}");
            assert_eq!(lines.frames(size), count);
            for number in 0..cached {
                lines.release(of(number));
            }
            let largest = GlobalAddress::new(NodeId(0), LineSize::MAX, 0).unwrap().line();
            assert!(lines.reserve(largest).is_ok(), "the memory has moved to another size");
        }
    }

    #[test]
    fn candidates_for_a_larger_line_are_blocks_of_its_size() {
        let lines = lines();
        let small = |number| line(0, number);
        let count = (0..).take_while(|number| cache_shared(&lines, small(*number)).is_ok()).count();
        assert!(count * 512 > CACHE_BYTES * 9 / 10);
        let large = GlobalAddress::new(NodeId(0), LineSize::MAX, 0).unwrap().line();
        assert_eq!(lines.reserve(large), Err(Lack::Frame));
        let block = lines.candidates(large, Lack::Frame).next().unwrap();
        assert_eq!(block.units(), 1024);
        lines.clear(block);
        let mut from = block.start;
        while let Some((line, end)) = lines.next_in(block, from) {
            assert!(lines.is_clearing(block));
            lines.set_level(line, held(Level::Invalid), None);
            lines.release(line);
            from = end;
        }
        assert!(!lines.is_clearing(block));
        assert_eq!(lines.reserve(large), Ok(Frame(block.start)));
    }

    #[test]
    fn grants_of_any_length_are_kept_whole() {
        let lines = lines();
        let (one, other) = (line(0, 9), line(0, 10));
        lines.reserve(one).unwrap();
        lines.reserve(other).unwrap();
        let beyond = FAR << 32;
        for grant in [1, u64::MAX, 2, 1 << 32, beyond - 1, beyond, beyond + 1, u64::MAX - 1, 7] {
            let held = |grant| HeldLine { level: Level::Shared, grant: Grant(grant) };
            lines.set_level(one, held(grant), Some(WHOLE));
            lines.set_level(other, held(!grant), Some(WHOLE));
            assert_eq!(lines.here(one).0, held(grant));
            assert_eq!(lines.here(other).0, held(!grant));
        }
        lines.set_level(one, held(Level::Invalid), None);
        lines.set_level(other, held(Level::Invalid), None);
        assert!(locked(&lines.cache.far_grants).is_empty(), "nothing is left apart");
    }

    #[test]
    fn copy_between_checks_survives_a_frame_that_changes() {
        let (lines, line) = (lines(), line(0, 9));
        lines.reserve(line).unwrap();
        lines.set_level(line, held(Level::Shared), Some(WHOLE));
        let spot = lines.spot(line).unwrap();
        let seen = spot.look(0, 512, false).unwrap();
        // The way gets a smaller line, whose frame is the last one.
        let way = spot.cached.unwrap();
        way.cache.ways[way.set].0[way.way].tag.set(Level::Invalid, None);
        way.frame.store(lines.cache.units - 1, Ordering::Relaxed);
        spot.copy_out(0, &mut [0; 512]);
        assert!(!spot.tag.unchanged(seen));
    }

    #[test]
    fn metadata_is_at_most_40_bytes_a_cached_line() {
        let per_set = size_of::<KeySet>() + size_of::<WaySet>() + size_of::<GrantSet>();
        let in_pool = size_of::<u32>() + size_of::<u8>();
        assert!(per_set / WAYS * 5 / 4 + in_pool <= 40);
        assert_eq!(size_of::<Tag>(), 8, "and 8 of an own line");
    }
}
