//! The protection of a target's memory: key, bounds, permission, alignment, on every request.

use super::Subject;
use super::scene::{
    REGION_BYTES, Scene, TestNode, Wire, atomics, register, send, silent, slice, succeeded,
    together, write,
};
use crate::{Arena, FabricError, Region};
use farside_base::{
    Access, CompletionKind, CompletionStatus, LocalSlice, Operation, RegionId, RegionToken,
    RemoteKey, RemoteRegionId, RemoteSlice, Source, WorkId,
};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

const REFUSED: CompletionStatus = CompletionStatus::RemoteAccess;

/// Two nodes with a link that must not be affected, and fresh links to break.
struct Trespass<'s> {
    scene: Scene<'s>,
    other: Wire,
    /// Further memory that must not change.
    watched: Vec<Arena>,
}

/// Returns the same request on another remote region.
fn at_region<'a>(mut operation: Operation<'a>, region: RemoteRegionId) -> Operation<'a> {
    match &mut operation {
        Operation::Write { to: at, .. }
        | Operation::AtomicWrite { to: at, .. }
        | Operation::Flush { from: at, .. }
        | Operation::Read { from: at, .. }
        | Operation::FetchAdd { at, .. }
        | Operation::CompareSwap { at, .. }
        | Operation::Swap { at, .. }
        | Operation::MaskedCompareSwap { at, .. }
        | Operation::MaskedFetchAdd { at, .. } => at.region = region,
        Operation::Send { .. } => {}
    }
    operation
}

fn contents(arena: &Arena) -> Vec<u8> {
    let mut out = vec![0; arena.len()];
    arena.read(0, &mut out).expect("all of an arena");
    out
}

impl<'s> Trespass<'s> {
    fn new(subject: &'s dyn Subject) -> Self {
        let (scene, other) = Scene::pair(subject);
        Self { scene, other, watched: Vec::new() }
    }

    fn target(&mut self) -> &mut TestNode {
        &mut self.scene.nodes[1]
    }

    /// Returns a further region of the target.
    fn region(&mut self, bytes: u64, access: Access) -> Region {
        let region = register(&*self.target().fabric, bytes, access);
        self.watched.push(region.arena.clone());
        region
    }

    /// Returns one request of each kind, on a word at `offset` of a region yet to be named, with the
    /// permission that it needs.
    fn kinds<'a>(&self, slices: &'a [LocalSlice], offset: u64) -> Vec<(Access, Operation<'a>)> {
        let has = &self.scene.capabilities;
        let region = RemoteRegionId(0);
        let to = RemoteSlice { region, offset };
        let announced = Operation::Write { source: Source::Gather(slices), to, immediate: Some(7) };
        let read = Operation::Read { into: slices, from: to };
        let mut list = Vec::new();
        list.extend(has.write.then(|| (Access::WRITE, write(slices, to))));
        list.extend((has.write && has.immediate).then_some((Access::WRITE, announced)));
        list.extend(has.read.then_some((Access::READ, read)));
        let word = Operation::AtomicWrite { to, value: 1 };
        list.extend(has.atomic_write.then_some((Access::WRITE, word)));
        let atomics = atomics(has, to, slices[0]).into_iter();
        list.extend(atomics.map(|operation| (Access::ATOMIC, operation)));
        list
    }

    /// Asserts that every kind of request that `which` picks, on a word at `offset`, fails with
    /// `status`.
    #[track_caller]
    fn fails(
        &mut self,
        token: &RegionToken,
        offset: u64,
        status: CompletionStatus,
        which: impl Fn(Access) -> bool,
    ) {
        let slices = [self.scene.nodes[0].slice(40, 8)];
        for (_, operation) in
            self.kinds(&slices, offset).into_iter().filter(|(access, _)| which(*access))
        {
            let wire = self.scene.wire(0, 1);
            match self.scene.nodes[0].port().import(wire.here, token) {
                Ok(region) => self.one_fails(&wire, at_region(operation, region), status),
                Err(FabricError::Unknown(_)) => {}
                Err(other) => panic!("import of a bad token: {other}"),
            }
            self.hang_up(&wire);
        }
    }

    /// Runs `bad` unsignaled, followed by a good request: it completes with `status`, the rest is
    /// flushed, no byte changes at either side, the other link continues to work.
    #[track_caller]
    fn one_fails(&mut self, wire: &Wire, bad: Operation<'_>, status: CompletionStatus) {
        let announced = matches!(bad, Operation::Write { immediate: Some(_), .. });
        if announced {
            self.scene.receive_in(1, wire.queues[1], 99, 0, 8);
        }
        let before = self.images();
        let scene = &mut self.scene;
        let slices = [scene.nodes[0].slice(40, 8)];
        let good = match (scene.capabilities.write, scene.capabilities.read) {
            (true, _) => write(&slices, wire.at(2048)),
            _ => Operation::Read { into: &slices, from: wire.at(2048) },
        };
        let list = [silent(1, wire.here, bad), silent(2, wire.here, good)];
        scene.post(0, &list);
        let done = scene.completions(0, 2);
        let ends: Vec<_> = done.iter().map(|done| (done.id.0, done.status)).collect();
        let flushed = CompletionStatus::Flushed;
        assert_eq!(ends, [(1, status), (2, flushed)], "{bad:?}");
        assert!(done.iter().all(|done| done.link == wire.here));
        assert!(self.images() == before, "a refused request changes no byte: {bad:?}");
        assert_eq!(self.target().completions, [], "the target's receives are untouched");
        if announced && self.scene.capabilities.shared_receive_queue {
            self.receive_is_left();
        }
        let other = self.other;
        self.scene.works(&other);
    }

    /// Takes the receive that a refused immediate must have left.
    fn receive_is_left(&mut self) {
        if self.scene.capabilities.send {
            let slices = [self.scene.nodes[0].slice(0, 8)];
            let other = self.other;
            let done = self.scene.perform(&other, send(&slices));
            succeeded(&done, CompletionKind::Send, 8);
            assert_eq!(self.scene.completion(1).id, WorkId(99));
        }
    }

    fn hang_up(&mut self, wire: &Wire) {
        self.scene.nodes[0].port().close(wire.here);
        self.scene.lost(1, wire.there);
        self.target().port().close(wire.there);
    }

    fn images(&self) -> Vec<Vec<u8>> {
        let nodes = self.scene.nodes.iter().map(|node| &node.region.arena);
        nodes.chain(&self.watched).map(contents).collect()
    }
}

pub(super) fn forged_keys_are_refused(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let token = trespass.target().region.token;
    let key = token.key.0;
    let near = [key ^ 1, key ^ (1 << 63), key.wrapping_add(1), key.rotate_left(32)];
    for key in [0, 1, !key].into_iter().chain(near) {
        let key = RemoteKey(key);
        trespass.fails(&RegionToken { key, ..token }, 32, REFUSED, |_| true);
    }
}

pub(super) fn forged_region_numbers_are_refused(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let token = trespass.target().region.token;
    let second = trespass.region(4096, Access::ALL);
    for region in [second.id, RegionId(u32::MAX), RegionId(token.region.0 + 100)] {
        trespass.fails(&RegionToken { region, ..token }, 32, REFUSED, |_| true);
    }
}

pub(super) fn keys_differ_between_regions_and_registrations(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2);
    let mut keys = HashSet::new();
    for at in 0..64 {
        let fabric = &scene.nodes[at % 2].fabric;
        let region = register(&**fabric, 4096, Access::ALL);
        assert!(keys.insert(region.token.key), "a key twice");
        fabric.deregister(region.id).expect("a region to be ended");
    }
    // Each bit of 64 random keys is set in some and clear in others, except once in 2^57 runs.
    let words = || keys.iter().map(|key| key.0);
    assert_eq!(words().fold(0, |all, key| all | key), u64::MAX, "a bit is always clear");
    assert_eq!(words().fold(u64::MAX, |all, key| all & key), 0, "a bit is always set");
}

pub(super) fn stale_keys_are_refused(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let slices = [trespass.scene.nodes[0].slice(40, 8)];
    for (_, operation) in trespass.kinds(&slices, 8) {
        let region = trespass.region(4096, Access::ALL);
        let wire = trespass.scene.wire(0, 1);
        let imported = trespass.scene.nodes[0].port().import(wire.here, &region.token);
        let operation = at_region(operation, imported.expect("a valid token"));
        let announced = matches!(operation, Operation::Write { immediate: Some(_), .. });
        if announced {
            trespass.scene.receive_in(1, wire.queues[1], 3, 0, 8);
        }
        let done = trespass.scene.perform(&wire, operation);
        assert_eq!(done.status, CompletionStatus::Success, "while it is valid: {done:?}");
        if announced {
            assert_eq!(trespass.scene.completion(1).id, WorkId(3));
        }
        trespass.target().fabric.deregister(region.id).expect("a region to be ended");
        let again = trespass.target().fabric.deregister(region.id);
        assert!(matches!(again, Err(FabricError::Unknown(_))), "{again:?}");
        trespass.one_fails(&wire, operation, REFUSED);
        trespass.hang_up(&wire);
        trespass.fails(&region.token, 8, REFUSED, |_| true);
    }
}

pub(super) fn remote_bounds_are_held_to_the_byte(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let token = trespass.target().region.token;
    for offset in [token.bytes - 7, token.bytes + 1, u64::MAX - 6, u64::MAX] {
        trespass.fails(&token, offset, REFUSED, |access| access != Access::ATOMIC);
    }
    for offset in [token.bytes, token.bytes + 8, u64::MAX - 7, 1 << 63] {
        trespass.fails(&token, offset, REFUSED, |_| true);
    }
}

pub(super) fn long_requests_do_not_reach_over_the_end(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let token = trespass.target().region.token;
    let has = trespass.scene.capabilities;
    let bytes = (REGION_BYTES / 2).min(has.transfer_bytes_max) as usize;
    let slices = [trespass.scene.nodes[0].slice(0, bytes)];
    let to = RemoteSlice { region: RemoteRegionId(0), offset: token.bytes - bytes as u64 + 1 };
    let read = Operation::Read { into: &slices, from: to };
    let mut list = Vec::new();
    list.extend(has.write.then(|| write(&slices, to)));
    list.extend(has.read.then_some(read));
    for operation in list {
        let wire = trespass.scene.wire(0, 1);
        trespass.one_fails(&wire, at_region(operation, wire.target), REFUSED);
        trespass.hang_up(&wire);
    }
}

pub(super) fn claims_of_a_token_grant_nothing(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let region = trespass.target().region.clone();
    let larger = RegionToken { bytes: u64::MAX, ..region.token };
    trespass.fails(&larger, region.arena.len() as u64, REFUSED, |_| true);
    let region = trespass.region(4096, Access::NONE);
    let freer = RegionToken { access: Access::ALL, ..region.token };
    trespass.fails(&freer, 512, REFUSED, |_| true);
}

pub(super) fn each_permission_is_needed(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let all = [Access::READ, Access::WRITE, Access::ATOMIC];
    for missing in all {
        let rest = all.into_iter().filter(|access| *access != missing);
        let access = rest.fold(Access::NONE, Access::with);
        // Less order is no more permission.
        for access in [access, access.with(Access::RELAXED_ORDERING)] {
            let region = trespass.region(4096, access);
            trespass.fails(&region.token, 64, REFUSED, |access| access == missing);
        }
    }
}

pub(super) fn each_permission_is_enough(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let slices = [trespass.scene.nodes[0].slice(40, 8)];
    let wire = trespass.other;
    for (access, operation) in trespass.kinds(&slices, 64) {
        let region = trespass.region(4096, access);
        let imported = trespass.scene.nodes[0].port().import(wire.here, &region.token);
        let operation = at_region(operation, imported.expect("a valid token"));
        if let Operation::Write { immediate: Some(_), .. } = operation {
            trespass.scene.receive(1, 5, 0, 8);
        }
        let done = trespass.scene.perform(&wire, operation);
        assert_eq!(done.status, CompletionStatus::Success, "{access:?}: {done:?}");
    }
}

pub(super) fn misaligned_atomics_are_refused(subject: &dyn Subject) {
    let mut trespass = Trespass::new(subject);
    let token = trespass.target().region.token;
    for offset in [1, 4, 63, 4092] {
        let status = CompletionStatus::RemoteAlignment;
        trespass.fails(&token, offset, status, |access| access == Access::ATOMIC);
    }
}

pub(super) fn owner_needs_no_permission(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let own = register(&*scene.nodes[0].fabric, 4096, Access::NONE);
    let slices = [slice(&own, 0, 64)];
    let read = Operation::Read { into: &slices, from: wire.at(64) };
    if scene.capabilities.write {
        let done = scene.perform(&wire, write(&slices, wire.at(64)));
        succeeded(&done, CompletionKind::Write, 64);
    }
    if scene.capabilities.read {
        succeeded(&scene.perform(&wire, read), CompletionKind::Read, 64);
    }
}

pub(super) fn nothing_reaches_memory_after_its_deregistration(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    if !scene.capabilities.write {
        return;
    }
    for access in [Access::ALL, Access::ALL.with(Access::RELAXED_ORDERING)].repeat(10) {
        let region = register(&*scene.nodes[1].fabric, 4096, access);
        let wire = scene.wire(0, 1);
        let imported = scene.nodes[0].port().import(wire.here, &region.token);
        let place = RemoteSlice { region: imported.expect("a valid token"), offset: 0 };
        together(
            &mut scene,
            |near| write_until(near, &wire, place, REFUSED),
            |far| {
                wait_for_writes(far, &region.arena);
                let ended = far.nodes[0].fabric.deregister(region.id);
                ended.expect("a region to be ended");
                stays_as_it_is(far, &region.arena);
            },
        );
        scene.nodes[0].port().close(wire.here);
        scene.lost(1, wire.there);
        scene.nodes[1].port().close(wire.there);
    }
}

pub(super) fn nothing_of_a_link_reaches_memory_after_its_close(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    if !scene.capabilities.write {
        return;
    }
    let region = register(&*scene.nodes[1].fabric, 4096, Access::ALL);
    for _ in 0..20 {
        region.arena.zero(0, 4096).expect("all of an arena");
        let wire = scene.wire(0, 1);
        let imported = scene.nodes[0].port().import(wire.here, &region.token);
        let place = RemoteSlice { region: imported.expect("a valid token"), offset: 0 };
        together(
            &mut scene,
            |near| write_until(near, &wire, place, CompletionStatus::PeerLost),
            |far| {
                wait_for_writes(far, &region.arena);
                far.nodes[0].port().close(wire.there);
                far.until("requests that began before to end", |side| {
                    (!side.nodes[0].port().may_land(wire.there)).then_some(())
                });
                stays_as_it_is(far, &region.arena);
                assert!(!far.nodes[0].port().may_land(wire.there), "for good");
            },
        );
        scene.lost(0, wire.here);
        scene.nodes[0].port().close(wire.here);
    }
}

fn wait_for_writes(side: &mut Scene<'_>, arena: &Arena) {
    side.until("a first WRITE to arrive", |_| {
        arena.load(0, Ordering::Acquire).ok().filter(|word| *word > 20)
    });
}

/// Asserts that the memory does not change any more.
fn stays_as_it_is(side: &mut Scene<'_>, arena: &Arena) {
    let then = contents(arena);
    for _ in 0..100 {
        side.poll();
        side.subject.settle();
        assert!(contents(arena) == then, "changed after its end");
    }
}

/// Writes 1 KiB of increasing numbers, without waiting for completions, until one fails with `status`;
/// then everything after that is flushed.
fn write_until(side: &mut Scene<'_>, wire: &Wire, place: RemoteSlice, status: CompletionStatus) {
    let slices = [side.nodes[0].slice(0, 1024)];
    let mut taken = 0;
    let failed = side.until("a WRITE to fail", |side| {
        side.nodes[0].put(0, &u64::to_ne_bytes(taken + 1).repeat(128));
        side.post(0, &[silent(taken, wire.here, write(&slices, place))]);
        taken += 1;
        side.nodes[0].completions.pop_front()
    });
    assert_eq!(failed.status, status, "{failed:?}");
    for id in failed.id.0 + 1..taken {
        let done = side.completion(0);
        let expected = (WorkId(id), CompletionStatus::Flushed);
        assert_eq!((done.id, done.status), expected, "after {failed:?}");
    }
}
