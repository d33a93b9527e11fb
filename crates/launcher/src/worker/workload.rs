//! One share of a YCSB workload on the shared table.

use super::calls::Calls;
use super::threads::ThreadContext;
use super::wire::{Answer, LookupStats, Ran, Share, Verified, WirePath};
use farside_apps::dht::Lookups;
use farside_apps::ycsb::{
    History, Operation, Records, RunOptions, Workload, WorkloadReport, WorkloadRun,
};
use farside_command::failure::Failure;
use std::fs::File;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// A share that is being executed; the threads of this process have it in common.
pub(super) struct Work {
    share: Share,
    run: WorkloadRun,
    history: Option<History>,
    /// The executor's callers, if reads are done by calls.
    calls: Option<Arc<Calls>>,
}

impl Work {
    pub(super) fn new(share: Share, calls: Option<Arc<Calls>>) -> Result<Self, Failure> {
        let number =
            |number: u64| u32::try_from(number).map_err(|_| Failure::usage("too many shares"));
        let options = RunOptions {
            seed: share.seed,
            process: number(share.part)?,
            processes: number(share.parts)?,
            verify: true,
        };
        let workload =
            Workload { threads: u32::from(share.threads), ..workload(&share.properties)? };
        let create = |WirePath(path): &WirePath| {
            File::create(path).map_err(|e| Failure::system(format!("{}: {e}", path.display())))
        };
        let file = share.history.as_ref().map(create).transpose()?;
        Ok(Self {
            share,
            run: WorkloadRun::new(workload, options),
            history: file.map(|file| History::new(Box::new(file))),
            calls,
        })
    }

    /// Inserts this thread's part of the records.
    pub(super) fn load(&self, context: ThreadContext<'_>) -> Result<Answer, Failure> {
        let progress = context.progress;
        self.client(context, None, |client, store| {
            client.load(store, |more| {
                progress.add(more);
                ControlFlow::Continue(())
            })
        })
    }

    /// Executes this thread's part of the operations.
    pub(super) fn run(&self, context: ThreadContext<'_>) -> Result<Answer, Failure> {
        let progress = context.progress;
        let executors = &self.share.executors;
        let lookups = match self.calls.as_ref().filter(|_| !executors.is_empty()) {
            Some(calls) => Some(calls.lookups(executors)?),
            None => None,
        };
        self.client(context, lookups, |client, store| {
            client.run(store, |more| {
                progress.add(more);
                ControlFlow::Continue(())
            })
        })
    }

    fn client(
        &self,
        mut context: ThreadContext<'_>,
        mut lookups: Option<Lookups>,
        work: impl FnOnce(
            farside_apps::ycsb::Client<'_>,
            &mut farside_apps::dht::Handle<'_>,
        ) -> WorkloadReport,
    ) -> Result<Answer, Failure> {
        let process = self.share.part * u64::from(self.share.threads) + u64::from(context.number);
        let history = self.history.as_ref().map(|history| history.log(process));
        let client = self.run.client(context.number, history);
        let (table, session) = (&mut context.table, &mut context.session);
        let mut report = match &mut lookups {
            Some(lookups) => work(client, &mut table.with_calls(session, lookups)),
            None => work(client, &mut table.with(session)),
        };
        // What the share reports as done is durable, in memory of nodes with state.
        let fence = Instant::now();
        session.fence()?;
        report.elapsed_ns += fence.elapsed().as_nanos() as u64;
        Ok(Answer::Ran(Ran { lookups: lookups.as_ref().map(LookupStats::from), ..ran(&report) }))
    }

    /// Reads and checks this thread's part of all records, including records that runs have inserted.
    pub(super) fn verify(&self, mut context: ThreadContext<'_>) -> Result<Answer, Failure> {
        let workload = self.run.workload();
        let records = Records::new(workload);
        let clients = self.share.parts * u64::from(self.share.threads);
        let client = self.share.part * u64::from(self.share.threads) + u64::from(context.number);
        let mut found = Verified::default();
        let mut table = context.table.with(&mut context.session);
        let (mut key, mut record) = (Vec::new(), Vec::new());
        for (at, number) in numbers(workload, &self.share.inserted).enumerate() {
            if at as u64 % clients != client {
                continue;
            }
            workload.key(number, &mut key);
            let read = table.get(&key, &mut record);
            if matches!(read, Ok(true)) {
                found.digest(&key, &record);
            }
            match read {
                Ok(true) if records.verify(&key, &record, None) => found.right += 1,
                Ok(true) => found.wrong += 1,
                Ok(false) => found.missing += 1,
                Err(error) => {
                    let name = error.code().entry().name.to_owned();
                    *found.errors.entry(name).or_default() += 1;
                }
            }
            context.progress.add(1);
        }
        Ok(Answer::Verified(found))
    }

    /// Completes the history.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let written = self.history.map_or(Ok(()), History::finish);
        written.map_err(|e| Failure::system(format!("history: {e}")))
    }
}

/// Parses the property lines of a workload.
pub fn workload(properties: &str) -> Result<Workload, Failure> {
    let parsed =
        Workload::from_properties(properties).map_err(|e| Failure::usage(e.to_string()))?;
    Ok(parsed.workload)
}

/// Returns the numbers of all records: the loaded ones, then the inserted ones. Processes number inserted records
/// round-robin.
fn numbers(workload: &Workload, inserted: &[u64]) -> impl Iterator<Item = u64> {
    let processes = inserted.len() as u64;
    let records = workload.records;
    let loaded = workload.insert_start..workload.insert_start + workload.insert_count;
    let more = (0..processes).zip(inserted.to_vec()).flat_map(move |(process, count)| {
        (0..count).map(move |own| records + own * processes + process)
    });
    loaded.chain(more)
}

fn ran(report: &WorkloadReport) -> Ran {
    let mut ran = Ran { elapsed_ns: report.elapsed_ns, ..Ran::default() };
    for kind in Operation::ALL {
        let of_kind = report.operation(kind);
        let counted = of_kind.latency_ns.iter_recorded();
        let counted: Vec<_> =
            counted.map(|one| (one.value_iterated_to(), one.count_at_value())).collect();
        if !counted.is_empty() {
            ran.latencies.insert(kind.name().to_owned(), counted);
        }
        ran.absent += of_kind.absent;
        ran.wrong += of_kind.wrong;
        ran.errors += of_kind.errors;
        if ran.first_error.is_none() {
            ran.first_error.clone_from(&of_kind.first_error);
        }
    }
    ran
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_inserted_records_agree_with_the_driver() {
        let workload = workload("recordcount=3").unwrap();
        let all: Vec<_> = numbers(&workload, &[2, 0, 1]).collect();
        assert_eq!(all, [0, 1, 2, 3, 6, 5]);
        assert_eq!(numbers(&workload, &[]).count(), 3);
    }

    #[test]
    fn invalid_properties_are_usage_errors() {
        let refused = workload("recordcount=many").unwrap_err();
        assert!(matches!(refused, Failure::Usage { text } if text.contains("recordcount")));
    }
}
