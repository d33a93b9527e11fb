//! Notifications: subscriptions of sessions to topics, and the backlog of each (003 §2).

use crate::call::executor::Notification;
use farside_protocol::call::{CallId, Session};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Notifications kept for a subscriber without a waiting request; the oldest are dropped first.
const KEPT_MAX: usize = 16;
/// Most topics of one session.
const TOPICS_MAX: usize = 64;

/// The subscription of one session to one topic.
#[derive(Debug, Default)]
struct Subscription {
    /// The requests that wait for the next notifications.
    listening: VecDeque<CallId>,
    kept: VecDeque<Arc<[u8]>>,
    /// Notifications dropped since the last one that was delivered.
    lost: u64,
    /// The number of the last listen request.
    listened: u64,
}

/// A session that has subscriptions.
#[derive(Debug, Default)]
struct Subscriber {
    topics: BTreeSet<u64>,
    /// Its topics without a waiting request, least recently listened to first.
    idle: BTreeSet<(u64, u64)>,
}

/// Subscriptions by topic, so that a notification costs only its subscribers.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    subscriptions: BTreeMap<u64, BTreeMap<Session, Subscription>>,
    subscribers: BTreeMap<Session, Subscriber>,
    /// The topic on which each request waits.
    waiting: BTreeMap<CallId, u64>,
    /// Number of listen requests so far.
    listenings: u64,
}

/// Outcome of a listen request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ListenOutcome {
    /// A kept notification, after this many that were dropped.
    Notification(u64, Arc<[u8]>),
    /// None yet: the request waits.
    Nothing,
    /// Requests wait on as many topics as a session may have.
    TooMany,
}

impl Subscriptions {
    /// Handles a listen request. The first one for a topic subscribes. At the topic limit it replaces the least
    /// recently used topic on which no request waits.
    pub(super) fn listen(&mut self, call: CallId, topic: u64) -> ListenOutcome {
        let subscriber = self.subscribers.entry(call.session).or_default();
        if subscriber.topics.len() >= TOPICS_MAX && !subscriber.topics.contains(&topic) {
            let Some((_, oldest)) = subscriber.idle.pop_first() else {
                return ListenOutcome::TooMany;
            };
            subscriber.topics.remove(&oldest);
            unsubscribe(&mut self.subscriptions, call.session, oldest);
        }
        subscriber.topics.insert(topic);
        let subscription = self.subscriptions.entry(topic).or_default();
        let subscription = subscription.entry(call.session).or_default();
        subscriber.idle.remove(&(subscription.listened, topic));
        self.listenings += 1;
        subscription.listened = self.listenings;
        match subscription.kept.pop_front() {
            Some(bytes) => {
                subscriber.idle.insert((subscription.listened, topic));
                ListenOutcome::Notification(std::mem::take(&mut subscription.lost), bytes)
            }
            None => {
                subscription.listening.push_back(call);
                self.waiting.insert(call, topic);
                ListenOutcome::Nothing
            }
        }
    }

    /// Publishes a notification; returns the waiting requests to be answered with it.
    pub(super) fn notify(&mut self, notification: Notification) -> (Vec<CallId>, Arc<[u8]>) {
        let (topic, bytes) = (notification.topic, Arc::from(notification.bytes));
        let mut calls = Vec::new();
        for (session, subscription) in self.subscriptions.get_mut(&topic).into_iter().flatten() {
            if let Some(call) = subscription.listening.pop_front() {
                self.waiting.remove(&call);
                mark_idle(&mut self.subscribers, *session, topic, subscription);
                calls.push(call);
                continue;
            }
            if subscription.kept.len() == KEPT_MAX {
                subscription.kept.pop_front();
                subscription.lost += 1;
            }
            subscription.kept.push_back(Arc::clone(&bytes));
        }
        (calls, bytes)
    }

    /// Removes a waiting request.
    pub(super) fn forget(&mut self, call: CallId) {
        let Some(topic) = self.waiting.remove(&call) else { return };
        let subscriptions = self.subscriptions.get_mut(&topic);
        let subscription = subscriptions.and_then(|all| all.get_mut(&call.session));
        if let Some(subscription) = subscription {
            subscription.listening.retain(|other| *other != call);
            mark_idle(&mut self.subscribers, call.session, topic, subscription);
        }
    }

    /// Removes a session.
    pub(super) fn over(&mut self, session: Session) {
        let Some(subscriber) = self.subscribers.remove(&session) else { return };
        for topic in subscriber.topics {
            unsubscribe(&mut self.subscriptions, session, topic);
        }
        let (first, last) = (CallId { session, slot: 0 }, CallId { session, slot: u8::MAX });
        while let Some(call) = self.waiting.range(first..=last).next().map(|(call, _)| *call) {
            self.waiting.remove(&call);
        }
    }
}

fn unsubscribe(
    subscriptions: &mut BTreeMap<u64, BTreeMap<Session, Subscription>>,
    session: Session,
    topic: u64,
) {
    if let Some(all) = subscriptions.get_mut(&topic) {
        all.remove(&session);
        if all.is_empty() {
            subscriptions.remove(&topic);
        }
    }
}

/// Marks a topic as replaceable once no request waits on it.
fn mark_idle(
    subscribers: &mut BTreeMap<Session, Subscriber>,
    session: Session,
    topic: u64,
    subscription: &Subscription,
) {
    if let Some(subscriber) = subscribers.get_mut(&session)
        && subscription.listening.is_empty()
    {
        subscriber.idle.insert((subscription.listened, topic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(session: u32, slot: u8) -> CallId {
        CallId { session: Session(session), slot }
    }

    /// Publishes one byte; returns the requests that are answered with it.
    fn notify(topics: &mut Subscriptions, topic: u64, byte: u8) -> Vec<CallId> {
        let (calls, bytes) = topics.notify(Notification { topic, bytes: vec![byte] });
        assert_eq!(&*bytes, [byte]);
        calls
    }

    fn outcome(lost: u64, byte: u8) -> ListenOutcome {
        ListenOutcome::Notification(lost, [byte].into())
    }

    #[test]
    fn each_subscriber_receives_each_notification_once_in_order() {
        let mut topics = Subscriptions::default();
        assert!(notify(&mut topics, 1, 0).is_empty());
        assert_eq!(topics.listen(call(0, 0), 1), ListenOutcome::Nothing);
        assert_eq!(topics.listen(call(1, 0), 1), ListenOutcome::Nothing);
        assert_eq!(topics.listen(call(1, 1), 2), ListenOutcome::Nothing);
        assert_eq!(notify(&mut topics, 1, 1), [call(0, 0), call(1, 0)]);
        assert!(notify(&mut topics, 1, 2).is_empty());
        assert!(notify(&mut topics, 1, 3).is_empty());
        assert_eq!(topics.listen(call(0, 0), 1), outcome(0, 2));
        assert_eq!(topics.listen(call(0, 0), 1), outcome(0, 3));
        topics.forget(call(1, 1));
        assert!(notify(&mut topics, 2, 1).is_empty());
        topics.over(Session(1));
        assert_eq!((topics.subscriptions.len(), topics.subscribers.len()), (1, 1));
        topics.over(Session(0));
        assert!(topics.subscriptions.is_empty() && topics.waiting.is_empty());
    }

    #[test]
    fn idle_subscriber_loses_the_oldest_and_learns_how_many() {
        let mut topics = Subscriptions::default();
        assert_eq!(topics.listen(call(0, 0), 1), ListenOutcome::Nothing);
        topics.forget(call(0, 0));
        for byte in 0..20 {
            assert!(notify(&mut topics, 1, byte).is_empty());
        }
        assert_eq!(topics.listen(call(0, 0), 1), outcome(4, 4));
        assert_eq!(topics.listen(call(0, 0), 1), outcome(0, 5));
    }

    #[test]
    fn topic_with_waiting_request_is_not_replaced() {
        let mut topics = Subscriptions::default();
        for topic in 0..64 {
            assert_eq!(topics.listen(call(0, topic as u8), topic), ListenOutcome::Nothing);
        }
        assert_eq!(topics.listen(call(0, 64), 64), ListenOutcome::TooMany);
        assert_eq!(
            topics.listen(call(1, 0), 64),
            ListenOutcome::Nothing,
            "the limit is per session"
        );
        assert_eq!(topics.listen(call(0, 64), 63), ListenOutcome::Nothing, "an existing topic");
        for topic in 0..64 {
            assert_eq!(notify(&mut topics, topic, 1), [call(0, topic as u8)]);
        }
        assert_eq!(notify(&mut topics, 63, 1), [call(0, 64)]);
    }

    #[test]
    fn least_recently_used_topic_is_replaced() {
        let mut topics = Subscriptions::default();
        for topic in 0..64 {
            assert_eq!(topics.listen(call(0, 0), topic), ListenOutcome::Nothing);
            assert_eq!(notify(&mut topics, topic, 1), [call(0, 0)]);
        }
        assert_eq!(topics.listen(call(0, 1), 0), ListenOutcome::Nothing, "the first, again");
        assert_eq!(topics.listen(call(0, 2), 64), ListenOutcome::Nothing);
        assert_eq!(topics.subscribers[&Session(0)].topics.len(), TOPICS_MAX);
        assert!(!topics.subscriptions.contains_key(&1), "the second was replaced");
        for (topic, slot) in [(0, 1), (64, 2)] {
            assert_eq!(notify(&mut topics, topic, 1), [call(0, slot)]);
        }
        for topic in 100..300 {
            topics.listen(call(0, 3), topic);
            topics.forget(call(0, 3));
        }
        let subscriber = &topics.subscribers[&Session(0)];
        assert_eq!((subscriber.topics.len(), subscriber.idle.len()), (TOPICS_MAX, TOPICS_MAX));
        assert_eq!((topics.subscriptions.len(), topics.waiting.len()), (TOPICS_MAX, 0));
    }
}
