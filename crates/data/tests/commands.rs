//! The command `farside-data`, as a process.

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array,
    Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use farside_data::{FileFormat, InputFile, OutputFile};
use farside_testkit::Folder;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farside-data")).args(arguments).output().unwrap()
}

fn report(arguments: &[&str]) -> Value {
    let done = run(&[arguments, &["--json"]].concat());
    assert!(done.status.success(), "{done:?}");
    serde_json::from_slice(&done.stdout).unwrap()
}

/// The exit code and the text of a command that must fail.
fn failure(arguments: &[&str]) -> (i32, String) {
    let done = run(arguments);
    assert!(!done.status.success(), "{done:?}");
    (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
}

/// The lines of a CSV file after its header, sorted.
fn lines(path: impl AsRef<Path>) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines: Vec<_> = text.lines().skip(1).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.folder()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const ORDERS: &[u8] = b"id,customer,note\n1,10,first\n2,20,\"a, b\"\n3,,none\n4,10,last\n";
const CUSTOMERS: &[u8] = b"id,name\n10,Ann\n30,Eve\n";

#[test]
fn join_of_all_kinds_is_written() {
    let folder = Folder::new();
    let (orders, customers) = (folder.file("o.csv", ORDERS), folder.file("c.csv", CUSTOMERS));
    for (kind, expected) in [
        ("inner", &["1,10,first,Ann", "4,10,last,Ann"][..]),
        ("left", &["1,10,first,Ann", "2,20,\"a, b\",", "3,,none,", "4,10,last,Ann"]),
        ("semi", &["1,10,first", "4,10,last"]),
        ("anti", &["2,20,\"a, b\"", "3,,none"]),
    ] {
        let out = folder.path("out.csv");
        let report = report(&[
            "join",
            &orders,
            &customers,
            "--on",
            "customer=id",
            "--kind",
            kind,
            "--out",
            &out,
            "--executors",
            "2",
        ]);
        assert_eq!(report["output_rows"], expected.len());
        assert_eq!((&report["left_rows"], &report["right_rows"]), (&4.into(), &2.into()));
        assert_eq!(lines(&out), expected, "{kind}");
    }
    assert_eq!(names(&folder), ["c.csv", "o.csv", "out.csv"]);
}

#[test]
fn shuffle_divides_all_rows_by_key() {
    let folder = Folder::new();
    let row = |at: u32| format!("{},{at}\n", at % 97);
    let text: String = ["key,row\n".to_owned()].into_iter().chain((0..5_000).map(row)).collect();
    let (input, empty) =
        (folder.file("in.csv", text.as_bytes()), folder.file("no.csv", b"key,row\n"));
    let out = folder.path("parts");
    let report = report(&[
        "shuffle",
        &input,
        &empty,
        "--by",
        "key",
        "--into",
        "4",
        "--out",
        &out,
        "--executors",
        "2",
    ]);
    assert_eq!(report["rows"], 5_000);
    let mut all = Vec::new();
    for part in report["partitions"].as_array().unwrap() {
        let found = lines(Path::new(&out).join(part["file"].as_str().unwrap()));
        assert_eq!(part["rows"], found.len());
        all.push(found);
    }
    let keys = |part: &Vec<String>| -> std::collections::HashSet<String> {
        part.iter().map(|line| line.split(',').next().unwrap().to_owned()).collect()
    };
    assert_eq!(all.iter().map(|part| keys(part).len()).sum::<usize>(), 97);
    let mut all = all.concat();
    all.sort();
    assert!(all == lines(&input));
    let (code, text) = failure(&["shuffle", &input, "--by", "key", "--into", "2", "--out", &out]);
    assert!(code == 1 && text.contains("is not empty"), "{text}");
}

/// A batch of the usual types, with nulls.
fn all_types() -> RecordBatch {
    let columns: [(_, ArrayRef, _); 9] = [
        ("small", Arc::new(Int32Array::from(vec![Some(1), None, Some(-3)])), true),
        ("large", Arc::new(Int64Array::from(vec![Some(1 << 60), Some(0), None])), true),
        ("float", Arc::new(Float64Array::from(vec![Some(0.1), None, Some(-2.5e300)])), true),
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])), true),
        ("text", Arc::new(StringArray::from(vec![Some("a,\"b\"\n"), None, Some("ü")])), true),
        ("day", Arc::new(Date32Array::from(vec![Some(19_000), None, Some(-1)])), true),
        (
            "time",
            Arc::new(TimestampMicrosecondArray::from(vec![
                Some(1_700_000_000_000_001),
                None,
                Some(0),
            ])),
            true,
        ),
        (
            "price",
            Arc::new(
                Decimal128Array::from(vec![Some(12_345), None, Some(-1)])
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
            true,
        ),
        (
            "bytes",
            Arc::new(BinaryArray::from_opt_vec(vec![Some(&[0, 255]), None, Some(&[])])),
            true,
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn write(path: &str, batch: &RecordBatch) {
    let format = FileFormat::of(path.as_ref()).unwrap();
    let file = fs::File::create(path).unwrap();
    let mut output = OutputFile::new(format, &batch.schema(), file).unwrap();
    output.write(batch).unwrap();
    output.finish().unwrap();
}

fn read(path: impl AsRef<Path>) -> Vec<RecordBatch> {
    let mut file = InputFile::open(path.as_ref()).unwrap();
    file.settle(|_| None);
    (0..file.parts()).flat_map(|part| file.read(part).unwrap()).map(Result::unwrap).collect()
}

/// A file passes the shuffle and keeps its values and types.
#[test]
fn values_of_all_types_return_from_parquet() {
    let folder = Folder::new();
    let (input, out) = (folder.path("in.parquet"), folder.path("parts"));
    write(&input, &all_types());
    report(&["shuffle", &input, "--by", "text,day", "--into", "1", "--out", &out]);
    assert_eq!(read(Path::new(&out).join("part-000.parquet")), [all_types()]);
}

/// Other programs compress as they like.
#[test]
fn parquet_of_all_codecs_is_read() {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ];
    let folder = Folder::new();
    let rows = all_types();
    for (number, codec) in codecs.into_iter().enumerate() {
        let (input, out) = (folder.path("in.parquet"), folder.path(&format!("parts-{number}")));
        let options = WriterProperties::builder().set_compression(codec).build();
        let file = File::create(&input).unwrap();
        let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(options)).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
        report(&["shuffle", &input, "--by", "text,day", "--into", "1", "--out", &out]);
        let read = read(Path::new(&out).join("part-000.parquet"));
        assert_eq!(read, std::slice::from_ref(&rows), "{codec:?}");
    }
}

#[test]
fn values_of_csv_types_return_from_csv() {
    let folder = Folder::new();
    let (input, out) = (folder.path("in.csv"), folder.path("parts"));
    let columns: Vec<_> = (1..6).collect();
    write(&input, &all_types().project(&columns).unwrap());
    report(&["shuffle", &input, "--by", "large", "--into", "1", "--out", &out]);
    assert_eq!(
        read(Path::new(&out).join("part-000.csv")),
        [all_types().project(&columns).unwrap()]
    );
}

/// Each failure names the file and what is wrong with it, and leaves nothing behind.
#[test]
fn bad_input_is_named_and_leaves_nothing() {
    let folder = Folder::new();
    let good = folder.file("good.csv", CUSTOMERS);
    let out = folder.path("out.csv");
    let mut late = String::from("id,name\n");
    (0..20_000).for_each(|at| late.push_str(&format!("{at},x\n")));
    let wrong_type = format!("{late}word,x\n");
    late.push_str("7,x,y\n");
    let parquet = folder.path("typed.parquet");
    write(
        &parquet,
        &RecordBatch::try_from_iter([("id", Arc::new(Int32Array::from(vec![1])) as _)]).unwrap(),
    );
    let cases: [(&str, Vec<u8>, i32, &[&str]); 9] = [
        ("ragged.csv", b"id,name\n1,a\n2\n".to_vec(), 1, &["line 3", "found 1 record"]),
        ("late.csv", late.into_bytes(), 1, &["line 20002", "fields"]),
        ("word.csv", wrong_type.into_bytes(), 1, &["'word'", "Int64", "row 20001"]),
        ("empty.csv", Vec::new(), 1, &["empty"]),
        ("text.parquet", b"not Parquet at all".to_vec(), 1, &["Parquet"]),
        ("empty.parquet", Vec::new(), 1, &["Parquet"]),
        ("utf8.csv", b"id,name\n1,\xff\n".to_vec(), 1, &["UTF-8"]),
        ("twice.csv", b"id,id\n1,2\n".to_vec(), 1, &["`id`", "Two columns"]),
        ("other.csv", b"key,name\n1,a\n".to_vec(), 2, &["`id`", "key, name"]),
    ];
    let before = names(&folder).len();
    for (name, content, expected, words) in cases {
        let input = folder.file(name, &content);
        let (code, text) =
            failure(&["join", &input, &good, "--on", "id", "--out", &out, "--executors", "2"]);
        assert_eq!(code, expected, "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{name}: {text}"));
        assert!(expected == 2 || text.contains(name), "{name}: {text}");
        let parts = folder.path("parts");
        let (_, text) = failure(&["shuffle", &input, "--by", "id", "--into", "3", "--out", &parts]);
        assert!(text.contains(name) || expected == 2, "{name}: {text}");
        fs::remove_file(&input).unwrap();
        assert_eq!(names(&folder).len(), before, "{name}: {:?}", names(&folder));
    }
    let (code, text) = failure(&["join", &parquet, &good, "--on", "id=name", "--out", &out]);
    assert!(code == 1 && text.contains("Int32") && text.contains("Utf8"), "{text}");
    let (code, text) =
        failure(&["join", &good, &folder.path("none.csv"), "--on", "id", "--out", &out]);
    assert!(code == 1 && text.contains("none.csv"), "{text}");
    let (code, text) = failure(&["join", &good, &good, "--on", "id", "--out", "out.txt"]);
    assert!(code == 2 && text.contains(".parquet"), "{text}");
}

#[test]
fn output_that_cannot_be_written_fails_the_command() {
    let folder = Folder::new();
    let good = folder.file("good.csv", CUSTOMERS);
    let out = folder.path("none/out.csv");
    let (code, text) = failure(&["join", &good, &good, "--on", "id", "--out", &out]);
    assert!(code == 1 && text.contains("out.csv"), "{text}");
    let link = folder.path("full.csv");
    std::os::unix::fs::symlink("/dev/full", &link).unwrap();
    let (code, text) = failure(&["join", &good, &good, "--on", "id", "--out", &link]);
    assert!(code == 1 && text.contains("full.csv"), "{text}");
    assert_eq!(names(&folder), ["full.csv", "good.csv"]);
}

#[test]
fn files_without_rows_are_joined() {
    let folder = Folder::new();
    let (orders, none) = (folder.file("o.csv", ORDERS), folder.file("none.csv", b"id,name\n"));
    let out = folder.path("out.parquet");
    let report =
        report(&["join", &orders, &none, "--on", "customer=id", "--kind", "left", "--out", &out]);
    assert_eq!((&report["output_rows"], &report["right_rows"]), (&4.into(), &0.into()));
    assert_eq!(read(&out)[0].num_columns(), 4);
}

#[test]
fn help_has_examples_and_wrong_usage_is_exit_code_2() {
    for command in [&["--help"][..], &["shuffle", "--help"], &["join", "--help"]] {
        let done = run(command);
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success() && text.contains("Examples:\n  farside-data "), "{text}");
    }
    assert_eq!(failure(&["join", "a.csv"]).0, 2);
    assert_eq!(failure(&["shuffle", "a.csv", "--by", "x", "--into", "0", "--out", "y"]).0, 2);
}
