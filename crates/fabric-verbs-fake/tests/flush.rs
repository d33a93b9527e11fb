//! A device without FLUSH: requests that need it are refused with a text, and the replacement is
//! reported.

mod node;

use farside_base::{
    Access, Capabilities, CompletionKind, CompletionStatus, FlushScope, FlushWay, LocalSlice,
    Operation, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Arena, Fabric, FabricError, Stop};
use node::{FakeNode, alone, completion, connect};

#[test]
fn a_read_behind_a_write_does_in_the_place_of_a_flush() {
    let (_one, _fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let has = near.fabric.capabilities();
    assert_eq!(has.flush, FlushScope::None);
    assert_eq!(has.flush_way(FlushScope::Visible), FlushWay::Read);
    assert_eq!(has.flush_way(FlushScope::Persistent), FlushWay::Target);
    let (link, _, region) = connect(&mut near, &mut far);
    let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
    let at = RemoteSlice { region, offset: 0 };
    for scope in [FlushScope::Visible, FlushScope::Persistent] {
        let operation = Operation::Flush { from: at, bytes: 8, scope };
        let posted = near.port.post(&[Work { id: WorkId(1), link, flags, operation }]);
        assert_eq!((posted.accepted, posted.stop), (0, Some(Stop::Invalid("lacks flush"))));
    }
    near.region.arena.write(0, b"written.").expect("within it");
    let slice = |offset| [LocalSlice { region: near.region.id, offset, bytes: 8 }];
    let (from, into) = (slice(0), slice(64));
    let source = Source::Gather(&from);
    let silent = WorkFlags::default();
    let write = Operation::Write { source, to: at, immediate: None };
    let read = Operation::Read { into: &into, from: at };
    let list = [
        Work { id: WorkId(2), link, flags: silent, operation: write },
        Work { id: WorkId(3), link, flags, operation: read },
    ];
    assert_eq!(near.port.post(&list).accepted, 2);
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.kind, done.status), (CompletionKind::Read, CompletionStatus::Success));
    let mut found = [0; 8];
    far.region.arena.read(0, &mut found).expect("within it");
    assert_eq!(&found, b"written.");
}

#[test]
fn regions_that_cannot_be_flushed_are_refused_with_what_to_do() {
    let (_one, _fake) = alone();
    let node = FakeNode::new("node");
    for (access, name) in [(Access::FLUSH, "flush"), (Access::FLUSH_PERSISTENT, "persistent flush")]
    {
        let refused = node.fabric.register_memory(Arena::heap(4096), Access::WRITE.with(access));
        let Err(error @ FabricError::Lacks(lacking)) = refused else { panic!("{refused:?}") };
        assert_eq!(lacking, name);
        assert!(error.to_string().contains("flush_way"), "{error}");
    }
}

#[test]
fn the_way_follows_from_the_capabilities() {
    let (_one, _fake) = alone();
    let bare = FakeNode::new("node").fabric.capabilities();
    let ways = |has: Capabilities| {
        let way = |scope| has.flush_way(scope);
        (way(FlushScope::Visible), way(FlushScope::Persistent))
    };
    let (flush, target) = (FlushWay::Flush, FlushWay::Target);
    assert_eq!(ways(Capabilities { flush: FlushScope::Visible, ..bare }), (flush, target));
    assert_eq!(ways(Capabilities { flush: FlushScope::Persistent, ..bare }), (flush, flush));
    let placed = Capabilities { completion_means_placed: true, ..bare };
    assert_eq!(ways(placed), (FlushWay::Completion, target));
    assert_eq!(ways(Capabilities { read: false, ..bare }), (target, target));
    assert_eq!(ways(Capabilities { message_order: false, ..bare }), (target, target));
    assert_eq!(bare.flush_way(FlushScope::None), FlushWay::Completion);
}
