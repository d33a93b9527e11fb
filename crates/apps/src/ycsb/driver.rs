//! Runs a workload against a store: the operations of each client, and their measurement.

use super::counter::AcknowledgedCounter;
use super::generator::{Discrete, Exponential, Hotspot, ScrambledZipfian, SkewedLatest, Uniform};
use super::history::{HistoryLog, OperationOutcome};
use super::operation::Operation;
use super::random::WorkloadRandom;
use super::record::{Records, digest};
use super::report::WorkloadReport;
use super::store::Store;
use super::workload::{RequestDistribution, Workload};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations between two calls of the progress callback.
const PROGRESS_OPERATIONS: u64 = 1_024;

/// The part of this process in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// The seed of all random numbers of the run; the same for all processes.
    pub seed: u64,
    /// This process's number, from 0.
    pub process: u32,
    /// The number of processes in the run.
    pub processes: u32,
    /// Whether every record read is checked against its key.
    pub verify: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { seed: 0, process: 0, processes: 1, verify: true }
    }
}

/// A workload in progress, shared by the clients of one process.
#[derive(Debug)]
pub struct WorkloadRun {
    workload: Workload,
    options: RunOptions,
    /// Numbers of records as counted by this process: the loaded ones, then those it inserts.
    inserted: AcknowledgedCounter,
    /// Requests so far, for the sequential distribution.
    sequence: AtomicU64,
}

impl WorkloadRun {
    /// A run of `workload`. With several processes, each inserts its own records during the run and
    /// requests loaded ones and its own.
    pub fn new(workload: Workload, options: RunOptions) -> Self {
        let inserted = AcknowledgedCounter::new(workload.records);
        Self {
            workload,
            options: RunOptions { processes: options.processes.max(1), ..options },
            inserted,
            sequence: AtomicU64::new(0),
        }
    }

    /// The workload.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Creates client `number` of this process, below `Workload::threads`. The same client of the same run
    /// is deterministic: same operations, same keys, same bytes (except for dependencies on concurrent
    /// inserts of other clients).
    pub fn client<'a>(&'a self, number: u32, history: Option<HistoryLog<'a>>) -> Client<'a> {
        let threads = u64::from(self.workload.threads.max(1));
        let clients = threads * u64::from(self.options.processes);
        let client = u64::from(self.options.process) * threads + u64::from(number);
        Client {
            run: self,
            client,
            clients,
            random: WorkloadRandom::stream(self.options.seed, client),
            records: Records::new(&self.workload),
            report: WorkloadReport::default(),
            history,
            key: Vec::new(),
            record: Vec::new(),
        }
    }

    /// The share of client `client` in `total`.
    fn share(total: u64, client: u64, clients: u64) -> u64 {
        total / clients + u64::from(client < total % clients)
    }

    /// The record with this process's number `number`.
    fn record_number(&self, number: u64) -> u64 {
        match number.checked_sub(self.workload.records) {
            None => number,
            Some(own) => {
                let RunOptions { process, processes, .. } = self.options;
                self.workload.records + own * u64::from(processes) + u64::from(process)
            }
        }
    }
}

/// Chooses the records to request.
enum Chooser {
    Uniform(Uniform),
    Zipfian(ScrambledZipfian),
    Latest(SkewedLatest),
    Hotspot(Hotspot),
    Exponential(Exponential),
    Sequential,
}

impl Chooser {
    fn new(workload: &Workload) -> Self {
        let Workload { insert_start: first, insert_count: count, zipfian_constant, .. } = *workload;
        let last = first + count.saturating_sub(1);
        match workload.requests {
            RequestDistribution::Uniform => Self::Uniform(Uniform::new(first, last)),
            RequestDistribution::Zipfian => {
                // Room for twice the expected inserts, so that the popular keys stay the same.
                let inserts = workload.operations as f64 * workload.insert_share() * 2.0;
                let max = first + count + inserts as u64;
                Self::Zipfian(ScrambledZipfian::new(first, max, zipfian_constant))
            }
            RequestDistribution::Latest => Self::Latest(SkewedLatest::new(
                workload.records.saturating_sub(1),
                zipfian_constant,
            )),
            RequestDistribution::Hotspot { data, operations } => {
                Self::Hotspot(Hotspot::new(first, last, data, operations))
            }
            RequestDistribution::Exponential { percentile, share } => {
                Self::Exponential(Exponential::new(percentile, workload.records as f64 * share))
            }
            RequestDistribution::Sequential => Self::Sequential,
        }
    }

    /// The next record to request: numbers beyond the newest are drawn again.
    fn next(&mut self, run: &WorkloadRun, random: &mut WorkloadRandom) -> u64 {
        let newest = run.inserted.newest();
        loop {
            let number = match self {
                Self::Uniform(uniform) => uniform.next(random),
                Self::Zipfian(zipfian) => zipfian.next(random),
                Self::Latest(latest) => latest.next(random, newest),
                Self::Hotspot(hotspot) => hotspot.next(random),
                Self::Exponential(exponential) => {
                    match newest.checked_sub(exponential.next(random)) {
                        Some(number) => number,
                        None => continue,
                    }
                }
                Self::Sequential => {
                    let turn = run.sequence.fetch_add(1, Ordering::Relaxed);
                    run.workload.insert_start + turn % run.workload.insert_count.max(1)
                }
            };
            if number <= newest {
                return number;
            }
        }
    }
}

/// One client: a thread or task with its own access to the store.
#[derive(Debug)]
pub struct Client<'a> {
    run: &'a WorkloadRun,
    client: u64,
    clients: u64,
    random: WorkloadRandom,
    records: Records,
    report: WorkloadReport,
    history: Option<HistoryLog<'a>>,
    key: Vec<u8>,
    record: Vec<u8>,
}

impl Client<'_> {
    /// Loads this client's share of the records. `progress` gets the number of operations completed since
    /// its last call, and may end the work.
    ///
    /// A failed insert is counted and the load continues.
    pub fn load<S: Store>(
        mut self,
        store: &mut S,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> WorkloadReport {
        let Workload { insert_start, insert_count, .. } = self.run.workload;
        let share = WorkloadRun::share(insert_count, self.client, self.clients);
        let start = Instant::now();
        let mut now = start;
        for index in 0..share {
            let number = insert_start + index * self.clients + self.client;
            now = self.insert_record(store, number, now);
            if (index + 1) % PROGRESS_OPERATIONS == 0 && progress(PROGRESS_OPERATIONS).is_break() {
                break;
            }
        }
        let _ = progress(share % PROGRESS_OPERATIONS);
        self.report.elapsed_ns = (now - start).as_nanos() as u64;
        self.report
    }

    /// Runs this client's share of the operations, or as many as fit the workload's time. `progress` as in
    /// [`Client::load`].
    ///
    /// A failed operation is counted, and the run continues.
    pub fn run<S: Store>(
        mut self,
        store: &mut S,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> WorkloadReport {
        let workload = &self.run.workload;
        let proportions = workload.proportions;
        let Some(mut operations) = Discrete::new([
            (proportions.read, Operation::Read),
            (proportions.update, Operation::Update),
            (proportions.insert, Operation::Insert),
            (proportions.read_modify_write, Operation::ReadModifyWrite),
        ]) else {
            return self.report;
        };
        let mut chooser = Chooser::new(workload);
        let share = WorkloadRun::share(workload.operations, self.client, self.clients);
        let start = Instant::now();
        let longest = Duration::from_secs(workload.execution_seconds_max);
        let deadline = (!longest.is_zero()).then(|| start + longest);
        let (mut now, mut done) = (start, 0);
        while done < share && deadline.is_none_or(|deadline| now < deadline) {
            let operation = operations.next(&mut self.random);
            now = self.operate(store, operation, &mut chooser, now);
            done += 1;
            if done % PROGRESS_OPERATIONS == 0 && progress(PROGRESS_OPERATIONS).is_break() {
                break;
            }
        }
        let _ = progress(done % PROGRESS_OPERATIONS);
        self.report.elapsed_ns = (now - start).as_nanos() as u64;
        self.report
    }

    /// Runs one operation that started at `called`; returns its end.
    fn operate<S: Store>(
        &mut self,
        store: &mut S,
        operation: Operation,
        chooser: &mut Chooser,
        called: Instant,
    ) -> Instant {
        if operation == Operation::Insert {
            let number = self.run.inserted.next();
            let end = self.insert_record(store, self.run.record_number(number), called);
            self.run.inserted.acknowledge(number);
            return end;
        }
        let number = self.run.record_number(chooser.next(self.run, &mut self.random));
        self.run.workload.key(number, &mut self.key);
        let mut steps = Steps { called, end: called, failed: false };
        if matches!(operation, Operation::Read | Operation::ReadModifyWrite) {
            self.read(store, operation, &mut steps);
        }
        if matches!(operation, Operation::Update | Operation::ReadModifyWrite) && !steps.failed {
            self.update(store, operation, &mut steps);
        }
        if !steps.failed {
            let latency = steps.end - called;
            self.report.operation_mut(operation).succeeded(latency.as_nanos() as u64);
        }
        steps.end
    }

    fn read<S: Store>(&mut self, store: &mut S, operation: Operation, steps: &mut Steps) {
        if let Some(history) = &mut self.history {
            history.begin("read", &self.key, None, steps.end);
        }
        let result = store.read(&self.key, &mut self.record);
        let times = steps.next();
        let report = self.report.operation_mut(operation);
        let (value, outcome) = match result {
            Ok(true) => {
                if self.run.options.verify {
                    let one = !self.run.workload.read_all_fields;
                    let field = one.then(|| self.random.bits() as usize % self.records.fields());
                    report.wrong += u64::from(!self.records.verify(&self.key, &self.record, field));
                }
                (self.history.is_some().then(|| digest(&self.record)), OperationOutcome::Ok)
            }
            Ok(false) => {
                report.absent += 1;
                (None, OperationOutcome::Ok)
            }
            Err(error) => {
                report.failed(&error);
                steps.failed = true;
                (None, OperationOutcome::Failed)
            }
        };
        if let Some(history) = &mut self.history {
            history.end("read", &self.key, value, times, outcome);
        }
    }

    fn update<S: Store>(&mut self, store: &mut S, operation: Operation, steps: &mut Steps) {
        let seed = self.random.bits();
        let field = self.random.bits() as usize % self.records.fields();
        let (key, records, all) =
            (&self.key, &mut self.records, self.run.workload.write_all_fields);
        let mut history = self.history.as_mut();
        let began = steps.end;
        if let Some(history) = &mut history {
            history.begin("update", key, None, began);
        }
        let (mut right, mut value) = (true, None);
        let result = store.update(key, &mut |record| {
            let mut random = WorkloadRandom::new(seed);
            if all {
                records.fill(key, &mut random, record);
            } else {
                right = records.change(key, field, &mut random, record);
            }
            if let Some(history) = &mut history {
                value = Some(digest(record));
                history.begin("update", key, value, began);
            }
        });
        let times = steps.next();
        let report = self.report.operation_mut(operation);
        let outcome = match result {
            Ok(found) => {
                report.wrong += u64::from(found && !right);
                report.absent += u64::from(!found && operation == Operation::Update);
                if found { OperationOutcome::Ok } else { OperationOutcome::NotFound }
            }
            Err(error) => {
                report.failed(&error);
                steps.failed = true;
                // Before it had a value it changed nothing.
                if value.is_some() { OperationOutcome::Unknown } else { OperationOutcome::Failed }
            }
        };
        if let Some(history) = &mut self.history {
            history.end("update", &self.key, value, times, outcome);
        }
    }

    fn insert_record<S: Store>(&mut self, store: &mut S, number: u64, called: Instant) -> Instant {
        self.run.workload.key(number, &mut self.key);
        self.records.fill(&self.key, &mut self.random, &mut self.record);
        let value = self.history.is_some().then(|| digest(&self.record));
        if let Some(history) = &mut self.history {
            history.begin("insert", &self.key, value, called);
        }
        let result = store.insert(&self.key, &self.record);
        let end = Instant::now();
        let report = self.report.operation_mut(Operation::Insert);
        let outcome = match result {
            Ok(()) => {
                report.succeeded((end - called).as_nanos() as u64);
                OperationOutcome::Ok
            }
            Err(error) => {
                report.failed(&error);
                OperationOutcome::Unknown
            }
        };
        if let Some(history) = &mut self.history {
            history.end("insert", &self.key, value, (called, end), outcome);
        }
        end
    }
}

/// The steps of one operation.
struct Steps {
    called: Instant,
    end: Instant,
    failed: bool,
}

impl Steps {
    /// Ends a step; returns its start and end.
    fn next(&mut self) -> (Instant, Instant) {
        let began = self.end;
        self.end = Instant::now();
        debug_assert!(self.called <= began);
        (began, self.end)
    }
}
