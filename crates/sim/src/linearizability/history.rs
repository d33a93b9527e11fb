//! Histories as JSON lines:
//!
//! ```json
//! {"process":3,"operation":"put","key":"user1","value":"a9","invoke_ns":10,"return_ns":17,"outcome":"ok"}
//! ```
//! `operation` is `get` or `read`, `put` or `insert`, `delete`, `update` or `scan`; `outcome` is `ok`, `not_found`,
//! `error` or `failed`, or `unknown`. A `read` with `ok` and without a value found none. `process`, `key` and `value`
//! are strings or numbers; `value` and `return_ns` may be null or absent, and the value is optional for an `update`
//! that was not found or failed. Other fields are ignored. A `scan` with a key states that the scan saw that key with
//! that value while it ran; one without a key is not checked.

use super::check::{HistoryCall, Verdict, check_each};
use super::specification::{KeyValue, KeyValueAnswer, KeyValueOperation};
use std::collections::BTreeMap;
use std::fmt;

/// The meaning of the outcome `error` of a modifying operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ErrorMeans {
    /// It was refused and had no effect.
    #[default]
    NoEffect,
    /// It may have taken effect, like `unknown`.
    MaybeEffect,
}

/// The reason why a line is not an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Number of the line, from 1.
    pub line: usize,
    /// The reason.
    pub reason: &'static str,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for Error {}

/// A history of a map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// Key and operation. Equal values have equal numbers.
    pub calls: Vec<(String, HistoryCall<KeyValueOperation, KeyValueAnswer>)>,
    /// Number of operations without checkable content: reads without an answer, scans without a key, refused
    /// operations.
    pub unchecked: usize,
}

impl History {
    /// Checks every key separately. `initial` is [`KeyValue::Absent`] for a map that starts empty, and
    /// [`KeyValue::Unknown`] for a history that begins in the middle.
    pub fn check(&self, initial: KeyValue) -> Verdict {
        check_each(&initial, self.calls.iter().cloned())
    }
}

/// Reads a history; empty lines are skipped.
///
/// # Errors
/// The first line that is not an operation, and the reason.
pub fn read_history(text: &str, errors: ErrorMeans) -> Result<History, Error> {
    let mut history = History::default();
    let mut names = Names::default();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let failed = |reason| Error { line: at + 1, reason };
        let fields = parse_object(line).map_err(failed)?;
        match call_of(&fields, errors, &mut names).map_err(failed)? {
            Some(call) => history.calls.push(call),
            None => history.unchecked += 1,
        }
    }
    Ok(history)
}

/// Numbers that represent texts.
#[derive(Default)]
struct Names {
    values: BTreeMap<String, u64>,
    processes: BTreeMap<String, u64>,
}

fn number_of(names: &mut BTreeMap<String, u64>, text: &str) -> u64 {
    if let Some(number) = names.get(text) {
        return *number;
    }
    // 0 is reserved: `KeyValue::Unknown` uses it for a value that was replaced before it was read.
    let number = names.len() as u64 + 1;
    names.insert(text.to_owned(), number);
    number
}

type KeyCall = (String, HistoryCall<KeyValueOperation, KeyValueAnswer>);

fn call_of(
    fields: &BTreeMap<String, Scalar>,
    errors: ErrorMeans,
    names: &mut Names,
) -> Result<Option<KeyCall>, &'static str> {
    let text = |name: &str| fields.get(name).and_then(Scalar::text);
    let process = text("process").ok_or("no `process`")?;
    let name = text("operation").ok_or("no `operation`")?;
    let outcome = text("outcome").ok_or("no `outcome`")?;
    let time = |name: &str| text(name).and_then(|text| text.parse::<u64>().ok());
    let invoke_ns = time("invoke_ns").ok_or("no `invoke_ns`, or it is no number")?;
    let value = text("value").map(|text| number_of(&mut names.values, text));
    let operation = match name {
        "get" | "read" | "scan" => KeyValueOperation::Get,
        "put" | "insert" => KeyValueOperation::Put(value.ok_or("a put without `value`")?),
        // It failed before it had a value to store.
        "update" if value.is_none() && outcome == "failed" => return Ok(None),
        "update" if value.is_none() && outcome == "not_found" => KeyValueOperation::Update(0),
        "update" => KeyValueOperation::Update(value.ok_or("an update without `value`")?),
        "delete" => KeyValueOperation::Delete,
        _ => return Err("`operation` is none of get, read, put, insert, delete, update, scan"),
    };
    let key = match (text("key"), name) {
        (Some(key), _) => key.to_owned(),
        (None, "scan") => return Ok(None),
        (None, _) => return Err("no `key`"),
    };
    let reads = operation == KeyValueOperation::Get;
    let answer = match (outcome, value) {
        ("ok", Some(value)) if reads => Some(KeyValueAnswer::Value(value)),
        ("ok", None) if name == "read" => Some(KeyValueAnswer::NotFound),
        ("ok", None) if reads => return Err("a get with outcome ok without `value`"),
        ("ok", _) => Some(KeyValueAnswer::Done),
        ("not_found", _) => Some(KeyValueAnswer::NotFound),
        ("error" | "failed", _) if reads || errors == ErrorMeans::NoEffect => return Ok(None),
        ("unknown", _) if reads => return Ok(None),
        ("unknown" | "error" | "failed", _) => None,
        _ => return Err("`outcome` is none of ok, not_found, error, failed, unknown"),
    };
    let returned = match answer {
        None => None,
        Some(answer) => {
            let return_ns = time("return_ns").ok_or("no `return_ns`, or it is no number")?;
            if return_ns < invoke_ns {
                return Err("it returns before it is invoked");
            }
            Some((return_ns, answer))
        }
    };
    let call = HistoryCall {
        process: number_of(&mut names.processes, process),
        operation,
        invoke_ns,
        returned,
    };
    Ok(Some((key, call)))
}

/// A value of a JSON object that is neither object nor array.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Scalar {
    Text(String),
    /// Numbers, true and false as they are written.
    Bare(String),
    Null,
}

impl Scalar {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Bare(text) => Some(text),
            Self::Null => None,
        }
    }
}

/// Parses one flat JSON object.
fn parse_object(line: &str) -> Result<BTreeMap<String, Scalar>, &'static str> {
    let mut rest = Characters(line.trim().chars().peekable());
    let mut fields = BTreeMap::new();
    rest.expect('{')?;
    if rest.takes('}') {
        return rest.end(fields);
    }
    loop {
        let name = rest.string()?;
        rest.expect(':')?;
        let value = rest.scalar()?;
        fields.insert(name, value);
        if rest.takes('}') {
            return rest.end(fields);
        }
        rest.expect(',')?;
    }
}

struct Characters<'a>(std::iter::Peekable<std::str::Chars<'a>>);

impl Characters<'_> {
    fn skip_space(&mut self) {
        while self.0.next_if(|next| next.is_ascii_whitespace()).is_some() {}
    }

    fn takes(&mut self, wanted: char) -> bool {
        self.skip_space();
        self.0.next_if_eq(&wanted).is_some()
    }

    fn expect(&mut self, wanted: char) -> Result<(), &'static str> {
        if self.takes(wanted) { Ok(()) } else { Err("no flat JSON object") }
    }

    fn end<T>(&mut self, value: T) -> Result<T, &'static str> {
        self.skip_space();
        match self.0.next() {
            None => Ok(value),
            Some(_) => Err("more than one JSON object on a line"),
        }
    }

    fn scalar(&mut self) -> Result<Scalar, &'static str> {
        self.skip_space();
        if self.0.peek() == Some(&'"') {
            return Ok(Scalar::Text(self.string()?));
        }
        let mut bare = String::new();
        let plain = |next: &char| next.is_ascii_alphanumeric() || "+-.".contains(*next);
        while let Some(next) = self.0.next_if(plain) {
            bare.push(next);
        }
        match bare.as_str() {
            "" => Err("a value is neither text nor number"),
            "null" => Ok(Scalar::Null),
            _ => Ok(Scalar::Bare(bare)),
        }
    }

    fn string(&mut self) -> Result<String, &'static str> {
        self.expect('"')?;
        let mut text = String::new();
        loop {
            match self.0.next().ok_or("an open string")? {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                plain => text.push(plain),
            }
        }
    }

    fn escape(&mut self) -> Result<char, &'static str> {
        let wrong = "a wrong escape in a string";
        Ok(match self.0.next().ok_or(wrong)? {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            plain @ ('"' | '\\' | '/') => plain,
            'u' => {
                let high = self.hexadecimal()?;
                let code = if (0xd800..0xdc00).contains(&high) {
                    if self.0.next() != Some('\\') || self.0.next() != Some('u') {
                        return Err(wrong);
                    }
                    let low = self.hexadecimal()?.checked_sub(0xdc00).ok_or(wrong)?;
                    0x1_0000 + ((high - 0xd800) << 10) + low
                } else {
                    high
                };
                char::from_u32(code).ok_or(wrong)?
            }
            _ => return Err(wrong),
        })
    }

    fn hexadecimal(&mut self) -> Result<u32, &'static str> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.0.next().and_then(|digit| digit.to_digit(16));
            code = code << 4 | digit.ok_or("a wrong escape in a string")?;
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(operation: &str, value: &str, times: (u64, u64), outcome: &str) -> String {
        format!(
            "{{\"process\":1,\"operation\":\"{operation}\",\"key\":\"k\",\"value\":{value},\
             \"invoke_ns\":{},\"return_ns\":{},\"outcome\":\"{outcome}\"}}\n",
            times.0, times.1
        )
    }

    fn verdict(lines: &[String], initial: KeyValue) -> Verdict {
        let history = read_history(&lines.concat(), ErrorMeans::NoEffect);
        history.expect("well-formed").check(initial)
    }

    #[test]
    fn every_operation_and_outcome_is_parsed() {
        let lines = [
            line("get", "null", (0, 1), "not_found"),
            line("put", "\"a\"", (2, 3), "ok"),
            line("get", "\"a\"", (4, 5), "ok"),
            line("update", "\"b\"", (6, 7), "ok"),
            line("scan", "\"b\"", (8, 9), "ok"),
            line("delete", "null", (10, 11), "ok"),
            line("delete", "null", (12, 13), "not_found"),
            line("update", "\"c\"", (14, 15), "not_found"),
            line("put", "\"never\"", (16, 17), "error"),
            line("put", "\"maybe\"", (18, 19), "unknown"),
            line("get", "\"maybe\"", (30, 31), "ok"),
        ];
        assert_eq!(verdict(&lines, KeyValue::Absent), Verdict::Linearizable);
    }

    #[test]
    fn ycsb_names_are_accepted() {
        let lines = [
            line("read", "null", (0, 1), "ok"),
            line("insert", "\"a\"", (2, 3), "ok"),
            line("update", "\"b\"", (4, 5), "ok"),
            line("read", "\"b\"", (6, 7), "ok"),
            line("read", "null", (8, 9), "failed"),
            line("update", "null", (10, 11), "failed"),
            line("update", "\"c\"", (12, 12), "unknown"),
        ];
        let history = read_history(&lines.concat(), ErrorMeans::MaybeEffect).unwrap();
        assert_eq!((history.calls.len(), history.unchecked), (5, 2));
        history.check(KeyValue::Absent).holds().unwrap();
        let stale = [lines.concat(), line("read", "\"a\"", (10, 11), "ok")].concat();
        let history = read_history(&stale, ErrorMeans::MaybeEffect).unwrap();
        history.check(KeyValue::Absent).holds().unwrap_err();
    }

    #[test]
    fn impossible_history_is_detected() {
        let refused = [line("put", "1", (0, 1), "error"), line("get", "1", (2, 3), "ok")];
        assert!(verdict(&refused, KeyValue::Absent).holds().is_err());
        let maybe = read_history(&refused.concat(), ErrorMeans::MaybeEffect).unwrap();
        assert_eq!(maybe.check(KeyValue::Absent), Verdict::Linearizable);
        let stale = [
            line("put", "1", (0, 1), "ok"),
            line("put", "2", (2, 3), "ok"),
            line("get", "1", (4, 5), "ok"),
        ];
        assert!(verdict(&stale, KeyValue::Unknown).holds().is_err());
    }

    #[test]
    fn a_history_may_begin_in_the_middle() {
        let lines = [line("get", "7", (0, 1), "ok"), line("update", "8", (2, 3), "ok")];
        assert_eq!(verdict(&lines, KeyValue::Unknown), Verdict::Linearizable);
        assert!(verdict(&lines, KeyValue::Absent).holds().is_err());
    }

    #[test]
    fn bad_lines_are_named_with_their_reason() {
        let bad = [
            ("[]", "no flat JSON object"),
            ("{\"process\":1", "no flat JSON object"),
            ("{\"process\":{}}", "a value is neither text nor number"),
            ("{} {}", "more than one JSON object on a line"),
            ("{\"a\":\"\\q\"}", "a wrong escape in a string"),
            ("{\"a", "an open string"),
            ("{}", "no `process`"),
        ];
        for (text, reason) in bad {
            let error = read_history(&format!("\n{text}"), ErrorMeans::NoEffect).unwrap_err();
            assert_eq!((error.line, error.reason), (2, reason), "{text}");
        }
        let backwards = line("put", "1", (9, 1), "ok");
        assert!(read_history(&backwards, ErrorMeans::NoEffect).is_err());
    }

    #[test]
    fn escapes_are_read() {
        let fields = parse_object(r#"{"a":"\u0041\n\ud83d\ude00\"","b":-1.5e3,"c":true}"#).unwrap();
        assert_eq!(fields["a"], Scalar::Text("A\n\u{1f600}\"".to_owned()));
        assert_eq!(fields["b"], Scalar::Bare("-1.5e3".to_owned()));
        assert_eq!(fields["c"], Scalar::Bare("true".to_owned()));
    }
}
