//! `--bench`: compares `farside bench fabric --fabric verbs` with perftest in one guest, and a smoke test of it.
//!
//! Only ratios are meaningful in the guest, not absolute figures: its devices are software, and under User Mode Linux
//! reading the clock or yielding takes some 8 us, a part of a round trip. The kernel's workers need the processors on
//! which both programs poll, and either program occasionally starves them for some rounds. So both programs are pinned
//! to the same processors and alternate, and the result is the median of the ratios of paired runs, on an idle machine.

use super::boot::GuestExit;
use super::image::Images;
use super::options::{Job, Options};
use super::run::{GuestOutcome, run};
use super::test_programs;
use std::collections::BTreeMap;

const SCRIPT: &str = include_str!("../../guest/bench.sh");
/// Number of rounds for the medians.
const ROUNDS: usize = 7;
/// Factor of perftest's time, or of its bandwidth, beyond which farside is too slow.
const RATIO_MAX: f64 = 1.25;
/// The heads of each of a table's two column groups.
const HEAD: &str = "  perftest    farside  ratio";
/// Time limit of all runs of both programs, even on a busy machine.
const TIME_S: u64 = 3600;

/// Runs server and client in separate nodes, and prints the client's output. `$1` is the command.
const SMOKE: &str = "
    on 2 $1 bench fabric --fabric verbs --listen 0.0.0.0:7000 --once > /run/listening & server=$!
    tries=0
    until grep -qs listening /run/listening; do
      tries=$((tries + 1))
      [ $tries -lt 300 ] || exit 1
      sleep 0.1
    done
    cat /run/listening
    on 1 $1 info | grep 'would use'
    on 1 $1 bench fabric --fabric verbs 10.77.0.2:7000 --measure all --bytes 8,4096 -n 200
    wait $server
";

/// Runs the command between two nodes, once for each operation.
pub(super) fn smoke(images: &Images, options: &Options) -> Result<(), String> {
    let mut options = with_command(options, SMOKE)?;
    options.timeout_s = 120;
    let outcome = run(images, &options, true)?;
    let missing =
        ["write latency", "read latency", "atomic latency", "send bandwidth", "RoCE rxe1"];
    let missing = missing.iter().find(|part| !outcome.stdout.contains(**part));
    match (&outcome.end, missing) {
        (GuestExit::Code(0), None) => Ok(()),
        (end, missing) => Err(format!(
            "farside bench fabric in the guest: {end:?}, {missing:?} is missing\n{}",
            outcome.stderr
        )),
    }
}

/// Compares both programs, prints a table, and returns whether every line is within the limit.
pub(super) fn compare(images: &Images, options: &Options) -> Result<bool, String> {
    let mut options = with_command(options, SCRIPT)?;
    if let Job::Command(words) = &mut options.job {
        words.push(ROUNDS.to_string());
    }
    options.tools = true;
    options.timeout_s = TIME_S;
    let outcome = run(images, &options, false)?;
    let GuestOutcome { end: GuestExit::Code(0), stdout, .. } = outcome else {
        return Err(format!("{:?}\n{}", outcome.end, outcome.stderr));
    };
    let lines = lines(&stdout);
    println!("{:<12} {:>8} {HEAD} {HEAD}", "test", "bytes");
    for line in &lines {
        println!("{}", line.text());
    }
    let slow = lines.iter().filter(|line| line.is_slow()).count();
    println!(
        "medians of {ROUNDS}: typical and least latency in us, average and peak bandwidth in MiB/s, and \
         the ratios of neighbouring runs: above 1 is slower; {slow} of {} above {RATIO_MAX}",
        lines.len()
    );
    Ok(slow == 0 && !lines.is_empty())
}

/// Returns the options of a guest with two nodes that runs a script, with the command as `$1`.
fn with_command(options: &Options, script: &str) -> Result<Options, String> {
    let farside = test_programs::command()?;
    let mut options = options.clone();
    let words = ["sh", "-e", "-c", script, "bench"].map(str::to_owned).to_vec();
    options.job = Job::Command([words, vec![farside.display().to_string()]].concat());
    options.with.push(farside);
    options.nodes = 2;
    Ok(options)
}

/// Both programs' medians of one figure, and the median ratio of paired runs.
#[derive(Clone, Copy, PartialEq, Debug)]
struct MedianPair {
    perftest: f64,
    farside: f64,
    /// Above 1 if perftest is better.
    ratio: f64,
}

impl MedianPair {
    /// Returns the medians of the output of both programs, by round.
    fn of(test: &str, [perftest, farside]: &[Vec<f64>; 2]) -> Option<Self> {
        let ratio = |(perftest, farside): (&f64, &f64)| match test.ends_with("_bw") {
            true => perftest / farside,
            false => farside / perftest,
        };
        let ratios = perftest.iter().zip(farside).map(ratio).collect();
        let (perftest, farside) = (median(perftest.clone())?, median(farside.clone())?);
        Some(Self { perftest, farside, ratio: median(ratios)? })
    }
}

/// The medians of one test.
#[derive(Clone, PartialEq, Debug)]
struct BenchLine {
    test: String,
    bytes: u64,
    /// Median time or average bandwidth.
    usual: MedianPair,
    /// Minimum time or peak bandwidth, with least disturbance of the processors.
    best: MedianPair,
}

impl BenchLine {
    fn is_slow(&self) -> bool {
        self.usual.ratio > RATIO_MAX
    }

    fn text(&self) -> String {
        let shown = |pair: MedianPair| {
            let MedianPair { perftest, farside, ratio } = pair;
            format!("{perftest:>10.2} {farside:>10.2} {ratio:>6.2}")
        };
        let mark = if self.is_slow() { " *" } else { "" };
        let (usual, best) = (shown(self.usual), shown(self.best));
        format!("{:<12} {:>8} {usual} {best}{mark}", self.test, self.bytes)
    }
}

/// Returns the medians of the script's output.
fn lines(stdout: &str) -> Vec<BenchLine> {
    let mut found: BTreeMap<(String, u64), [[Vec<f64>; 2]; 2]> = BTreeMap::new();
    let mut of = None;
    for line in stdout.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match (words.as_slice(), &of) {
            (["perftest", test, bytes], _) => of = Some((0, *test, bytes.parse().unwrap_or(0))),
            (["farside", test, bytes], _) => of = Some((1, *test, bytes.parse().unwrap_or(0))),
            (figures, Some((program, test, bytes))) => {
                // Bytes, count, then minimum, maximum and median time, or peak and average bandwidth.
                let usual = if test.ends_with("_bw") { 3 } else { 4 };
                let entry = found.entry(((*test).to_owned(), *bytes)).or_default();
                for (place, column) in [usual, 2].into_iter().enumerate() {
                    let figure = figures.get(column).and_then(|text| text.parse::<f64>().ok());
                    entry[place][*program].extend(figure);
                }
                of = None;
            }
            _ => {}
        }
    }
    let line = |((test, bytes), [usual, best]): ((String, u64), [[Vec<f64>; 2]; 2])| {
        let (usual, best) = (MedianPair::of(&test, &usual)?, MedianPair::of(&test, &best)?);
        Some(BenchLine { test, bytes, usual, best })
    };
    found.into_iter().filter_map(line).collect()
}

fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_per_program_and_test() {
        let text = "\
perftest write_lat 8
 8       1000          20.00          900.00       25.00     \t       30.00   1.0 2.0 3.0
farside write_lat 8
       8        1000        20.00       900.00            30.00        31.00 1.0 2.0 3.0
perftest write_lat 8
 8       1000          20.00          900.00       40.00     \t       30.00   1.0 2.0 3.0
farside write_lat 8
       8        1000        20.00       900.00            50.00        31.00 1.0 2.0 3.0
perftest write_lat 8
 8       1000          20.00          900.00       10.00     \t       30.00   1.0 2.0 3.0
farside write_lat 8
       8        1000        20.00       900.00            40.00        31.00 1.0 2.0 3.0
perftest write_bw 65536
 65536      1200             220.00             200.00           0.003
farside write_bw 65536
   65536        1200            300.00               250.00       0.004
";
        let found = lines(text);
        let pair = |perftest, farside, ratio| MedianPair { perftest, farside, ratio };
        let line = |test: &str, bytes, usual, best| BenchLine {
            test: test.to_owned(),
            bytes,
            usual,
            best,
        };
        let expected = [
            line("write_bw", 65536, pair(200.0, 250.0, 0.8), pair(220.0, 300.0, 220.0 / 300.0)),
            // The ratios are 30 / 25, 50 / 40 and 40 / 10.
            line("write_lat", 8, pair(25.0, 40.0, 1.25), pair(20.0, 20.0, 1.0)),
        ];
        assert_eq!(found, expected);
        assert!(found.iter().all(|line| !line.is_slow() && !line.text().ends_with('*')));
        let slow = line("read_lat", 8, pair(20.0, 26.0, 1.3), pair(20.0, 20.0, 1.0));
        assert!(slow.is_slow() && slow.text().ends_with("1.00 *"), "{}", slow.text());
    }
}
