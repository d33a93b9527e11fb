//! The join of TPC-H tables, compared with DuckDB, which `cargo xtask ci --only data` installs from PyPI into a virtual
//! environment below the target folder before it runs these tests.

#[path = "../examples/tpch.rs"]
mod tpch;

use farside_testkit::Folder;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Compares a join with DuckDB's: rows that only one of them has, and the number of rows. The arguments are the output, the
/// left and the right file, the two keys, and the kind.
const COMPARE: &str = "
import duckdb, sys
ours, left, right, left_key, right_key, kind = sys.argv[1:]
columns = f'l.*, r.* exclude ({right_key})' if kind in ('inner', 'left') else 'l.*'
con = duckdb.connect()
con.sql(f\"create table ours as select * from '{ours}'\")
con.sql(f\"create table theirs as select {columns} from '{left}' l {kind} join '{right}' r on l.{left_key} = r.{right_key}\")
shape = lambda table: [(c[0], str(c[1])) for c in con.sql(f'select * from {table}').description]
assert shape('ours') == shape('theirs'), (shape('ours'), shape('theirs'))
differ = '(from ours except all from theirs) union all (from theirs except all from ours)'
print(con.sql(f'select count(*) from ({differ})').fetchone()[0], con.sql('select count(*) from theirs').fetchone()[0])
";

/// Joins and writes the result, with a number of threads; prints the seconds.
const TIMED: &str = "
import duckdb, sys, time
ours, left, right, threads = sys.argv[1:]
con = duckdb.connect()
con.sql(f'set threads = {threads}')
began = time.monotonic()
con.sql(f\"copy (select l.*, r.* exclude (o_orderkey) from '{left}' l join '{right}' r on l_orderkey = o_orderkey) to '{ours}' (format parquet)\")
print(time.monotonic() - began)
";

/// Runs a command, and returns the last line that it printed, which follows progress.
fn run(command: &mut Command, problem: &str) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{problem}: {command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{problem}: {}{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout).lines().last().unwrap_or_default().to_owned()
}

/// Returns the Python that has DuckDB.
fn python() -> PathBuf {
    let python = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("duckdb/bin/python");
    assert!(python.exists(), "no DuckDB at {python:?}: cargo xtask ci --only data installs it");
    python
}

fn join(left: &str, right: &str, on: &str, kind: &str, out: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farside-data"));
    command.args(["join", left, right, "--on", on, "--kind", kind, "--out", out]);
    let report = run(command.args(["--json", "--executors", "2"]), "farside-data");
    serde_json::from_str(&report).unwrap()
}

#[test]
#[ignore = "installs DuckDB from PyPI"]
fn joins_of_tpch_equal_those_of_duckdb() {
    let python = python();
    let folder = Folder::new();
    tpch::generate(folder.folder(), 30_000).unwrap();
    let [orders, lines, out] =
        ["orders.parquet", "lineitem.parquet", "out.parquet"].map(|name| folder.path(name));
    for (left, right, keys, kind) in [
        (&lines, &orders, ["l_orderkey", "o_orderkey"], "inner"),
        (&orders, &lines, ["o_orderkey", "l_orderkey"], "inner"),
        (&orders, &lines, ["o_orderkey", "l_orderkey"], "left"),
        (&orders, &lines, ["o_orderkey", "l_orderkey"], "semi"),
        (&orders, &lines, ["o_orderkey", "l_orderkey"], "anti"),
        // Repeated and null keys at the left, and repeated ones at the right.
        (&orders, &lines, ["o_custkey", "l_partkey"], "left"),
        (&orders, &lines, ["o_custkey", "l_partkey"], "anti"),
    ] {
        let report = join(left, right, &keys.join("="), kind, &out);
        let mut compare = Command::new(&python);
        compare.args(["-c", COMPARE, &out, left, right, keys[0], keys[1], kind]);
        let compared = run(&mut compare, "DuckDB");
        let expected = format!("0 {}", report["output_rows"]);
        assert_eq!(compared, expected, "{kind} join on {keys:?}: rows that differ, rows");
    }
}

/// Not a test of speed: it prints the ratio.
#[test]
#[ignore = "installs DuckDB from PyPI"]
fn join_of_a_million_lines_is_timed_beside_duckdb() {
    let python = python();
    let folder = Folder::new();
    tpch::generate(folder.folder(), 285_714).unwrap();
    let [orders, lines, ours, theirs] =
        ["orders.parquet", "lineitem.parquet", "ours.parquet", "theirs.parquet"]
            .map(|name| folder.path(name));
    let began = Instant::now();
    let report = join(&lines, &orders, "l_orderkey=o_orderkey", "inner", &ours);
    let our_seconds = began.elapsed().as_secs_f64();
    let mut timed = Command::new(&python);
    timed.args(["-c", TIMED, &theirs, &lines, &orders, "2"]);
    let their_seconds: f64 = run(&mut timed, "DuckDB").parse().unwrap();
    let rows = &report["output_rows"];
    let ratio = our_seconds / their_seconds;
    farside_testkit::say(&format!(
        "join of {rows} lines with their orders, Parquet to Parquet, 2 threads: farside-data {our_seconds:.2} s, DuckDB \
         {their_seconds:.2} s, ratio {ratio:.1}"
    ));
}
