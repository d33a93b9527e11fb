//! Binding threads to processors, so that two spinning threads do not share one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread, and the threads and processes that it starts later, to a processor.
/// Ignores a refusal by the system: unbound figures are noisier, not wrong.
pub fn bind(processor: Option<usize>) {
    if let Some(processor) = processor {
        let mut set = CpuSet::new();
        set.set(processor);
        let _ = sched_setaffinity(None, &set);
    }
}

/// The processors that a thread may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed(Vec<usize>);

impl Allowed {
    /// Returns processor `number` modulo the count.
    pub fn processor(&self, number: usize) -> Option<usize> {
        self.0.get(number % self.0.len().max(1)).copied()
    }

    /// Returns the number of processors; 1 if the system does not report them.
    pub fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// Lets the calling thread, and the threads that it starts later, use all of them, after a [`bind`].
    pub fn allow(&self) {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|processor| set.set(*processor));
        let _ = sched_setaffinity(None, &set);
    }

    /// Returns the processors that the calling thread may use. Call it before the first `bind`.
    pub fn now() -> Self {
        let Ok(set) = sched_getaffinity(None) else {
            return Self(Vec::new());
        };
        Self((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_bound_to_one_processor() {
        let allowed = Allowed::now();
        let bound = std::thread::spawn(move || {
            bind(allowed.processor(1));
            let bound = Allowed::now();
            allowed.allow();
            assert_eq!(Allowed::now(), allowed);
            (bound, allowed)
        });
        let (bound, allowed) = bound.join().unwrap();
        assert_eq!(bound.0.len(), 1);
        assert!(allowed.0.contains(&bound.0[0]));
        assert_eq!(bound.0[0], allowed.0[1 % allowed.0.len()]);
    }
}
