//! Notifications: who listens to which topic, and what came while nobody did (003 §2).

use super::beside::Notice;
use farside_protocol::call::{Call, Session};
use std::collections::{BTreeMap, VecDeque};

/// Notifications that are kept for a subscriber who is not listening; the oldest go first.
const KEPT_MAX: usize = 16;
/// Topics of one session.
const TOPICS_MAX: usize = 64;

/// A session that has listened to a topic.
#[derive(Debug, Default)]
struct Subscription {
    /// The request that waits for the next notification.
    listening: VecDeque<Call>,
    kept: VecDeque<Vec<u8>>,
    /// Notifications that were dropped since the last that was taken.
    lost: u64,
}

/// Subscriptions by session and topic.
#[derive(Debug, Default)]
pub(super) struct Topics {
    all: BTreeMap<(Session, u64), Subscription>,
}

impl Topics {
    /// A session listens: what was kept for it and how many were lost before, or it waits. The first
    /// listening subscribes.
    pub(super) fn listen(&mut self, call: Call, topic: u64) -> Option<(u64, Vec<u8>)> {
        let known = self.all.contains_key(&(call.session, topic));
        if !known && self.of(call.session) >= TOPICS_MAX {
            // The oldest subscription in numbers gives way: they are bounded, and this is told by what
            // is lost.
            let first = self.all.range((call.session, 0)..).next().map(|(key, _)| *key);
            first.map(|key| self.all.remove(&key));
        }
        let subscription = self.all.entry((call.session, topic)).or_default();
        match subscription.kept.pop_front() {
            Some(bytes) => Some((std::mem::take(&mut subscription.lost), bytes)),
            None => {
                subscription.listening.push_back(call);
                None
            }
        }
    }

    fn of(&self, session: Session) -> usize {
        self.all.range((session, 0)..=(session, u64::MAX)).count()
    }

    /// Somebody notifies a topic: the requests to be answered with it.
    pub(super) fn notify(&mut self, notice: &Notice) -> Vec<Call> {
        let mut calls = Vec::new();
        for ((_, topic), subscription) in &mut self.all {
            if *topic != notice.topic {
                continue;
            }
            if let Some(call) = subscription.listening.pop_front() {
                calls.push(call);
                continue;
            }
            if subscription.kept.len() == KEPT_MAX {
                subscription.kept.pop_front();
                subscription.lost += 1;
            }
            subscription.kept.push_back(notice.bytes.clone());
        }
        calls
    }

    /// A request waits no more.
    pub(super) fn forget(&mut self, call: Call) {
        for (_, subscription) in self.all.range_mut((call.session, 0)..=(call.session, u64::MAX)) {
            subscription.listening.retain(|other| *other != call);
        }
    }

    /// A session is over.
    pub(super) fn over(&mut self, session: Session) {
        self.all.retain(|(of, _), _| *of != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(session: u32, slot: u8) -> Call {
        Call { session: Session(session), slot }
    }

    fn notice(topic: u64, byte: u8) -> Notice {
        Notice { topic, bytes: vec![byte] }
    }

    #[test]
    fn each_subscriber_hears_of_its_topic_once_each_in_order() {
        let mut topics = Topics::default();
        assert!(topics.notify(&notice(1, 0)).is_empty());
        assert_eq!(topics.listen(call(0, 0), 1), None);
        assert_eq!(topics.listen(call(1, 0), 1), None);
        assert_eq!(topics.listen(call(1, 1), 2), None);
        assert_eq!(topics.notify(&notice(1, 1)), [call(0, 0), call(1, 0)]);
        assert!(topics.notify(&notice(1, 2)).is_empty());
        assert!(topics.notify(&notice(1, 3)).is_empty());
        assert_eq!(topics.listen(call(0, 0), 1), Some((0, vec![2])));
        assert_eq!(topics.listen(call(0, 0), 1), Some((0, vec![3])));
        topics.forget(call(1, 1));
        assert!(topics.notify(&notice(2, 1)).is_empty());
        topics.over(Session(1));
        assert_eq!(topics.all.len(), 1);
    }

    #[test]
    fn who_does_not_listen_loses_the_oldest_and_hears_how_many() {
        let mut topics = Topics::default();
        assert_eq!(topics.listen(call(0, 0), 1), None);
        topics.forget(call(0, 0));
        for byte in 0..20 {
            assert!(topics.notify(&notice(1, byte)).is_empty());
        }
        assert_eq!(topics.listen(call(0, 0), 1), Some((4, vec![4])));
        assert_eq!(topics.listen(call(0, 0), 1), Some((0, vec![5])));
    }

    #[test]
    fn topics_of_a_session_are_bounded() {
        let mut topics = Topics::default();
        for topic in 0..100 {
            topics.listen(call(0, 0), topic);
        }
        assert_eq!(topics.of(Session(0)), TOPICS_MAX);
    }
}
