//! The names of the tasks and steps, by which documents are checked.

/// The tasks of `cargo xtask`.
pub(crate) const TASKS: &[&str] = &["ci", "docs", "list", "rdma-guest", "tidy"];

/// The steps of `cargo xtask ci`, in order.
pub(crate) const STEPS: &[&str] = &[
    "fmt",
    "tidy",
    "clippy",
    "docs",
    "readme",
    "conformance",
    "explorer",
    "litmus",
    "simulation",
    "loom",
    "shuttle",
    "canary",
    "sanitizer",
    "process",
    "instructions",
    "data",
    "demo",
    "rdma",
];
