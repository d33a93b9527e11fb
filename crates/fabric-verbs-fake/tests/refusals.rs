//! Requests that the peer's adapter refuses while the answer is late or lost: each must complete with
//! the refusal's status, and not as an unreachable peer.

mod node;

use farside_base::{
    CompletionKind, CompletionStatus, LinkId, LocalSlice, Operation, Receive, RemoteRegionId,
    RemoteSlice, Source, WorkId,
};
use farside_fabric::Fabric;
use node::{FakeNode, LEASE, alone, completion, connect, until, works};
use std::time::Instant;

impl FakeNode {
    /// Posts a WRITE past the region's end.
    fn trespass(&mut self, id: u64, link: LinkId, region: RemoteRegionId) {
        let slices = [LocalSlice { region: self.region.id, offset: 0, bytes: 8 }];
        let to = RemoteSlice { region, offset: 4089 };
        let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
        self.post(id, link, operation);
    }

    fn send(&mut self, id: u64, link: LinkId, bytes: u32) {
        let slices = [LocalSlice { region: self.region.id, offset: 0, bytes }];
        let source = Source::Gather(&slices);
        self.post(id, link, Operation::Send { source, immediate: None });
    }

    fn receive(&mut self, id: u64, bytes: u32) {
        let into = LocalSlice { region: self.region.id, offset: 0, bytes };
        let posted =
            self.port.post_receives(&[Receive { id: WorkId(id), queue: self.queue, into }]);
        assert_eq!((posted.accepted, posted.stop), (1, None));
    }
}

/// Waits until a node knows something bad of a link.
fn troubled(nodes: [&mut FakeNode; 2], link: LinkId) {
    until("trouble", nodes, |one, _| one.port.trouble(link).map(|_| ()));
}

#[test]
fn an_answer_is_not_cut_off_by_the_side_that_refused() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (other, _, other_region) = connect(&mut near, &mut far);
    let (link, there, region) = connect(&mut near, &mut far);
    fake.hold_refusals();
    near.trespass(1, link, region);
    near.write(2, link, region);
    // As on soft-RoCE, the refusing side learns of it first.
    troubled([&mut far, &mut near], there);
    fake.answer();
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::RemoteAccess));
    let words = near.port.trouble(link).expect("words");
    assert!(words.contains("IBV_WC_REM_ACCESS_ERR"), "the adapter's own: {words}");
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(2), CompletionStatus::Flushed));
    works(&mut near, &mut far, other, other_region);
}

#[test]
fn an_answer_to_a_message_is_not_cut_off_either() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, there, _) = connect(&mut near, &mut far);
    fake.hold_refusals();
    far.receive(9, 4);
    near.send(1, link, 8);
    let done = completion([&mut far, &mut near]);
    assert_eq!((done.id, done.status), (WorkId(9), CompletionStatus::LengthExceeded));
    assert_eq!((done.kind, done.link), (CompletionKind::Receive, there));
    fake.answer();
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::LengthExceeded));
    assert!(near.port.trouble(link).is_some_and(|words| words.contains("IBV_WC_REM_INV_REQ_ERR")));
}

#[test]
fn an_answer_that_is_lost_comes_by_the_control_stream() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, _, region) = connect(&mut near, &mut far);
    fake.lose_refusals();
    near.trespass(1, link, region);
    near.write(2, link, region);
    troubled([&mut near, &mut far], link);
    fake.give_up();
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::RemoteAccess));
    let words = near.port.trouble(link).expect("words");
    assert!(words.contains("refused") && words.contains("IBV_WC_RETRY_EXC_ERR"), "{words}");
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(2), CompletionStatus::Flushed));
}

#[test]
fn what_was_refused_follows_from_the_request() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    fake.lose_refusals();
    let (link, _, region) = connect(&mut near, &mut far);
    let start = Instant::now();
    let at = RemoteSlice { region, offset: 4 };
    let into = LocalSlice { region: near.region.id, offset: 0, bytes: 8 };
    near.post(1, link, Operation::FetchAdd { at, add: 1, into });
    // This adapter never stops retrying, so the lease ends the request.
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::RemoteAlignment));
    assert!(start.elapsed() >= LEASE, "not before the lease");
    let (link, _, _) = connect_again(&mut near, &mut far);
    far.receive(9, 4);
    near.send(2, link, 8);
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(2), CompletionStatus::LengthExceeded));
}

fn connect_again(near: &mut FakeNode, far: &mut FakeNode) -> (LinkId, LinkId, RemoteRegionId) {
    near.events.clear();
    far.events.clear();
    connect(near, far)
}

#[test]
fn requests_of_the_side_that_refused_are_flushed() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, there, region) = connect(&mut near, &mut far);
    let back = import(&mut far, there, &near);
    fake.hang_next();
    far.write(5, there, back);
    near.trespass(1, link, region);
    let done = completion([&mut far, &mut near]);
    assert_eq!((done.id, done.status), (WorkId(5), CompletionStatus::Flushed));
    assert!(far.port.trouble(there).is_some_and(|words| words.contains("QP_ACCESS_ERR")));
    far.write(6, there, back);
    let done = completion([&mut far, &mut near]);
    assert_eq!((done.id, done.status), (WorkId(6), CompletionStatus::Flushed));
    assert_eq!(completion([&mut near, &mut far]).status, CompletionStatus::RemoteAccess);
}

fn import(of: &mut FakeNode, link: LinkId, from: &FakeNode) -> RemoteRegionId {
    assert!(from.fabric.capabilities().write);
    of.port.import(link, &from.region.token).expect("a region")
}
