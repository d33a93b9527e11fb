//! Text to instructions: words, then one form per line.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::builder::{Builder, Label};
use crate::helpers::{Helper, StateKind};
use crate::isa::{
    AluOp, AtomicOp, Condition, Instruction, Operand, Order, Register, Size, Wide, Width,
};
use crate::program::{Program, Scope, StateDeclaration};

/// Why a text is no program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssembleError {
    /// Counted from one; zero for the whole text.
    pub line: u32,
    /// What is wrong, and what was expected.
    pub text: String,
}

impl fmt::Display for AssembleError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}: {}", self.line, self.text)
    }
}

impl core::error::Error for AssembleError {}

/// Assembles a program called `program`.
pub fn assemble(text: &str) -> Result<Program, AssembleError> {
    assemble_named("program", text)
}

/// Assembles a program with a name, which is also its file's in messages.
pub fn assemble_named(name: &str, text: &str) -> Result<Program, AssembleError> {
    let mut parser = Parser {
        builder: Builder::new(name),
        variables: 0,
        labels: BTreeMap::new(),
        file: name.into(),
    };
    for (at, line) in text.lines().enumerate() {
        let number = at as u32 + 1;
        parser.line(number, line).map_err(|text| AssembleError { line: number, text })?;
    }
    let unplaced = parser.labels.iter().find(|(_, label)| !label.placed);
    if let Some((name, label)) = unplaced {
        let text = format!("no label or helper is called `{name}`");
        return Err(AssembleError { line: label.first_use, text });
    }
    parser.builder.build().map_err(|error| AssembleError { line: 0, text: error.to_string() })
}

struct Named {
    label: Label,
    placed: bool,
    first_use: u32,
}

/// Most bytes of variables that a text may ask for, so that a short one asks for no more memory than
/// that. What a program may have is said by [`crate::Limits`].
const VARIABLES_MAX: usize = 1 << 24;

struct Parser {
    builder: Builder,
    /// Bytes of them so far.
    variables: usize,
    labels: BTreeMap<String, Named>,
    file: Arc<str>,
}

/// The target of a jump or call.
enum JumpTarget {
    Offset(i32),
    Label(Label),
}

impl Parser {
    fn line(&mut self, number: u32, line: &str) -> Result<(), String> {
        let code = line.split(['#', ';']).next().unwrap_or_default();
        let code = code.split("//").next().unwrap_or_default().trim();
        if code.is_empty() {
            return Ok(());
        }
        if let Some(directive) = code.strip_prefix('.') {
            return self.directive(number, directive);
        }
        if let Some(name) = code.strip_suffix(':') {
            return self.place(number, name.trim()).map(|_| ());
        }
        let file = self.file.clone();
        self.builder.line(&file, number);
        let words = words(code)?;
        let mut cursor = Cursor { words: &words, at: 0 };
        self.instruction(number, &mut cursor)?;
        match cursor.words.get(cursor.at) {
            Some(word) => Err(format!("`{word}` is too much")),
            None => Ok(()),
        }
    }

    fn named(&mut self, number: u32, name: &str) -> Label {
        if let Some(named) = self.labels.get(name) {
            return named.label;
        }
        let label = self.builder.label();
        let named = Named { label, placed: false, first_use: number };
        self.labels.insert(name.to_string(), named);
        label
    }

    fn place(&mut self, number: u32, name: &str) -> Result<Label, String> {
        let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("`{name}` is no name for a label"));
        }
        let label = self.named(number, name);
        if let Some(named) = self.labels.get_mut(name) {
            if named.placed {
                return Err(format!("label `{name}` is defined twice"));
            }
            named.placed = true;
        }
        self.builder.place(label);
        Ok(label)
    }

    fn directive(&mut self, number: u32, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["function", name] => {
                let label = self.named(number, name);
                let named = self.labels.get_mut(*name).filter(|named| !named.placed);
                named.ok_or_else(|| format!("label `{name}` is defined twice"))?.placed = true;
                self.builder.function(name, label);
                Ok(())
            }
            ["constants", bytes @ ..] => {
                for byte in bytes {
                    let byte = u8::from_str_radix(byte, 16);
                    let byte = byte.map_err(|_| "expected bytes such as `0f`".to_string())?;
                    self.builder.constants(&[byte]);
                }
                Ok(())
            }
            ["program", name] => {
                self.builder.name(name);
                Ok(())
            }
            [kind @ ("own" | "shared"), count] => {
                let count = number_of(count).and_then(|count| usize::try_from(count).ok());
                let count = count.ok_or("expected a number of bytes")?;
                self.variables = self.variables.saturating_add(count);
                if self.variables > VARIABLES_MAX {
                    return Err(format!("more than {VARIABLES_MAX} B of variables"));
                }
                self.builder.variables(*kind == "shared", &alloc::vec![0; count]);
                Ok(())
            }
            ["state", name, kind, key, value, entries, scope] => {
                self.state(name, kind, [key, value, entries], scope)
            }
            _ => Err(format!("no directive `.{text}`")),
        }
    }

    fn state(
        &mut self,
        name: &str,
        kind: &str,
        sizes: [&str; 3],
        scope: &str,
    ) -> Result<(), String> {
        let kind = match kind {
            "array" => StateKind::Array,
            "counters" => StateKind::Counters,
            "map" => StateKind::Map,
            "locks" => StateKind::Locks,
            _ => return Err("expected array, counters, map or locks".to_string()),
        };
        let scope = match scope {
            "own" => Scope::QueuePair,
            "shared" => Scope::Shared,
            _ => return Err("expected own or shared".to_string()),
        };
        let mut parsed = [0; 3];
        for (place, text) in parsed.iter_mut().zip(sizes) {
            let size = number_of(text).and_then(|size| u32::try_from(size).ok());
            *place = size.ok_or_else(|| format!("`{text}` is no size"))?;
        }
        let [key_bytes, value_bytes, entries] = parsed;
        let name = name.to_string();
        self.builder.state(StateDeclaration { name, kind, key_bytes, value_bytes, entries, scope });
        Ok(())
    }

    fn instruction(&mut self, number: u32, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let instruction = match cursor.peek() {
            "exit" => {
                cursor.next();
                Instruction::Exit
            }
            "goto" | "gotol" => {
                cursor.next();
                let target = self.target(number, cursor)?;
                return self.push_to(Instruction::Jump { offset: 0 }, target);
            }
            "call" => {
                cursor.next();
                return self.call(number, cursor);
            }
            "if" => {
                cursor.next();
                let (width, dst) = cursor.register()?;
                let sign = cursor.next();
                let condition = condition(sign)
                    .ok_or_else(|| format!("expected a comparison, found `{sign}`"))?;
                let src = cursor.operand(width)?;
                cursor.expect("goto")?;
                let target = self.target(number, cursor)?;
                let jump = Instruction::JumpIf { width, condition, dst, src, offset: 0 };
                return self.push_to(jump, target);
            }
            "lock" => {
                cursor.next();
                locked(cursor)?
            }
            "*" => store(cursor)?,
            _ => self.assignment(cursor)?,
        };
        self.builder.push(instruction);
        Ok(())
    }

    fn target(&mut self, number: u32, cursor: &mut Cursor<'_>) -> Result<JumpTarget, String> {
        let word = cursor.next();
        match word {
            "+" | "-" => {
                let value = number_of(cursor.next()).ok_or("expected a number of slots")?;
                let value = if word == "-" { -value } else { value };
                let offset = i32::try_from(value).map_err(|_| "this is too far".to_string())?;
                Ok(JumpTarget::Offset(offset))
            }
            "" => Err("expected a label or an offset".to_string()),
            name => Ok(JumpTarget::Label(self.named(number, name))),
        }
    }

    fn push_to(&mut self, mut instruction: Instruction, target: JumpTarget) -> Result<(), String> {
        let distance = match target {
            JumpTarget::Label(label) => {
                self.builder.push_to(instruction, label);
                return Ok(());
            }
            JumpTarget::Offset(distance) => distance,
        };
        match &mut instruction {
            Instruction::Jump { offset } | Instruction::CallFunction { offset } => {
                *offset = distance;
            }
            Instruction::JumpIf { offset, .. } => {
                *offset = i16::try_from(distance).map_err(|_| "this is too far".to_string())?;
            }
            _ => {}
        }
        self.builder.push(instruction);
        Ok(())
    }

    fn call(&mut self, line: u32, cursor: &mut Cursor<'_>) -> Result<(), String> {
        let word = cursor.peek();
        if let Some(number) = number_of(word) {
            cursor.next();
            let number = u32::try_from(number).map_err(|_| format!("no helper {number}"))?;
            self.builder.push(Instruction::CallHelper { number });
            return Ok(());
        }
        // A function of the program comes before a helper of the same name.
        let helper = if self.labels.contains_key(word) { None } else { Helper::with_name(word) };
        if let Some(helper) = helper {
            cursor.next();
            self.builder.call(helper.call);
            return Ok(());
        }
        let target = self.target(line, cursor)?;
        self.push_to(Instruction::CallFunction { offset: 0 }, target)
    }

    /// `rN = ...` and `rN op= ...`.
    fn assignment(&mut self, cursor: &mut Cursor<'_>) -> Result<Instruction, String> {
        let (width, dst) = cursor.register()?;
        let sign = cursor.next();
        if sign != "=" {
            let op = alu_op(sign).ok_or_else(|| format!("no operation `{sign}`"))?;
            let src = cursor.operand(width)?;
            return Ok(Instruction::Alu { width, op, dst, src });
        }
        match cursor.peek() {
            "*" => load(cursor, dst),
            "(" => signed_move(cursor, width, dst),
            "-" if cursor.is_register(1) => {
                cursor.next();
                let (_, of) = cursor.register()?;
                if of != dst {
                    return Err("only a register itself is negated".to_string());
                }
                let src = Operand::Immediate(0);
                Ok(Instruction::Alu { width, op: AluOp::Neg, dst, src })
            }
            kind @ ("constant" | "own" | "shared" | "state") => {
                cursor.next();
                self.wide(cursor, dst, kind)
            }
            word => {
                if let Some((order, size)) = byte_order(word) {
                    cursor.next();
                    let (_, of) = cursor.register()?;
                    if of != dst {
                        return Err("only a register itself is swapped".to_string());
                    }
                    return Ok(Instruction::Bytes { order, size, dst });
                }
                if word.starts_with("atomic_fetch_")
                    || word.starts_with("xchg")
                    || word.starts_with("cmpxchg")
                {
                    return fetching(cursor, width, dst);
                }
                plain_move(cursor, width, dst)
            }
        }
    }

    fn wide(
        &self,
        cursor: &mut Cursor<'_>,
        dst: Register,
        kind: &str,
    ) -> Result<Instruction, String> {
        let word = cursor.next();
        let named = if kind == "state" { self.builder.state_named(word) } else { None };
        let offset = match named {
            Some(handle) => handle,
            None => number_of(word)
                .and_then(|value| u32::try_from(value).ok())
                .ok_or_else(|| format!("`{word}` is no offset or declared state"))?,
        };
        let value = match kind {
            "constant" => Wide::Constant(offset),
            "state" => Wide::StateHandle(offset),
            _ => Wide::Variable { shared: kind == "shared", offset },
        };
        Ok(Instruction::LoadWide { dst, value })
    }
}

/// `r1 = 5`, `r1 = r2`, `r1 = 5 ll`.
fn plain_move(cursor: &mut Cursor<'_>, width: Width, dst: Register) -> Result<Instruction, String> {
    if cursor.is_register(0) {
        let src = cursor.operand(width)?;
        return Ok(Instruction::Alu { width, op: AluOp::Move, dst, src });
    }
    let value = cursor.number()?;
    if cursor.peek() == "ll" {
        cursor.next();
        let fits = i64::try_from(value).map(|value| value as u64).or(u64::try_from(value));
        let value = fits.map_err(|_| format!("{value} has more than 64 bits"))?;
        return Ok(Instruction::LoadWide { dst, value: Wide::Value(value) });
    }
    let src = Operand::Immediate(immediate(value)?);
    Ok(Instruction::Alu { width, op: AluOp::Move, dst, src })
}

fn signed_move(
    cursor: &mut Cursor<'_>,
    width: Width,
    dst: Register,
) -> Result<Instruction, String> {
    cursor.expect("(")?;
    let op = match cursor.next() {
        "s8" => AluOp::MoveSigned8,
        "s16" => AluOp::MoveSigned16,
        "s32" => AluOp::MoveSigned32,
        other => return Err(format!("expected s8, s16 or s32, found `{other}`")),
    };
    cursor.expect(")")?;
    let (_, src) = cursor.register()?;
    Ok(Instruction::Alu { width, op, dst, src: Operand::Register(src) })
}

/// `(r1 + 8)`.
fn address(cursor: &mut Cursor<'_>) -> Result<(Register, i16), String> {
    cursor.expect("(")?;
    let place = open_address(cursor)?;
    cursor.expect(")")?;
    Ok(place)
}

fn open_address(cursor: &mut Cursor<'_>) -> Result<(Register, i16), String> {
    let (_, base) = cursor.register()?;
    let sign = cursor.next();
    let value = number_of(cursor.next()).ok_or("expected an offset")?;
    let value = match sign {
        "+" => value,
        "-" => -value,
        _ => return Err(format!("expected + or - and an offset, found `{sign}`")),
    };
    let offset = i16::try_from(value).map_err(|_| format!("offset {value} has over 16 bits"))?;
    Ok((base, offset))
}

/// `*(u64 *)(r1 + 8)`.
fn place(cursor: &mut Cursor<'_>) -> Result<(Size, bool, Register, i16), String> {
    cursor.expect("*")?;
    let (size, signed) = pointer_type(cursor)?;
    let (base, offset) = address(cursor)?;
    Ok((size, signed, base, offset))
}

fn pointer_type(cursor: &mut Cursor<'_>) -> Result<(Size, bool), String> {
    cursor.expect("(")?;
    let word = cursor.next();
    let (signed, bits) = word.split_at_checked(1).unwrap_or_default();
    let size = Size::ALL.into_iter().find(|size| (size.bytes() * 8).to_string() == bits);
    let size = size.filter(|_| matches!(signed, "u" | "s"));
    let size = size.ok_or_else(|| format!("expected a type such as u64, found `{word}`"))?;
    cursor.expect("*")?;
    cursor.expect(")")?;
    Ok((size, signed == "s"))
}

fn load(cursor: &mut Cursor<'_>, dst: Register) -> Result<Instruction, String> {
    let (size, signed, base, offset) = place(cursor)?;
    if signed && size == Size::Double {
        return Err("eight bytes have no sign to extend".to_string());
    }
    Ok(Instruction::Load { size, signed, dst, base, offset })
}

fn store(cursor: &mut Cursor<'_>) -> Result<Instruction, String> {
    let (size, _, base, offset) = place(cursor)?;
    cursor.expect("=")?;
    let src = cursor.operand(Width::Double)?;
    Ok(Instruction::Store { size, base, offset, src })
}

fn atomic_width(size: Size) -> Result<Width, String> {
    match size {
        Size::Word => Ok(Width::Word),
        Size::Double => Ok(Width::Double),
        Size::Byte | Size::Half => Err("atomics have four or eight bytes".to_string()),
    }
}

/// `*(u64 *)(r1 + 8) += r2` after `lock`.
fn locked(cursor: &mut Cursor<'_>) -> Result<Instruction, String> {
    let (size, _, base, offset) = place(cursor)?;
    let width = atomic_width(size)?;
    let op = match cursor.next() {
        "+=" => AtomicOp::Add,
        "|=" => AtomicOp::Or,
        "&=" => AtomicOp::And,
        "^=" => AtomicOp::Xor,
        other => return Err(format!("no atomic `{other}`")),
    };
    let (_, src) = cursor.register()?;
    Ok(Instruction::Atomic { width, op, fetch: false, base, offset, src })
}

/// The atomics that return the old value; `dst` has been read.
fn fetching(cursor: &mut Cursor<'_>, width: Width, dst: Register) -> Result<Instruction, String> {
    let name = cursor.next().to_string();
    cursor.expect("(")?;
    let (op, typed) = match name.as_str() {
        "atomic_fetch_add" => (AtomicOp::Add, true),
        "atomic_fetch_or" => (AtomicOp::Or, true),
        "atomic_fetch_and" => (AtomicOp::And, true),
        "atomic_fetch_xor" => (AtomicOp::Xor, true),
        "xchg_64" | "xchg32_32" => (AtomicOp::Exchange, false),
        "cmpxchg_64" | "cmpxchg32_32" => (AtomicOp::CompareExchange, false),
        _ => return Err(format!("no atomic `{name}`")),
    };
    let (base, offset) = if typed {
        atomic_width(pointer_type(cursor)?.0)?;
        address(cursor)?
    } else {
        open_address(cursor)?
    };
    cursor.expect(",")?;
    if op == AtomicOp::CompareExchange {
        let (_, expected) = cursor.register()?;
        if expected != Register::R0 || dst != Register::R0 {
            return Err("a compare-exchange works on r0".to_string());
        }
        cursor.expect(",")?;
    }
    let (_, src) = cursor.register()?;
    cursor.expect(")")?;
    if op != AtomicOp::CompareExchange && src != dst {
        return Err("the old value comes into the register of the operand".to_string());
    }
    Ok(Instruction::Atomic { width, op, fetch: true, base, offset, src })
}

fn byte_order(word: &str) -> Option<(Order, Size)> {
    let (order, bits) = ["bswap", "be", "le"].iter().find_map(|name| {
        let bits = word.strip_prefix(name)?;
        let order = match *name {
            "bswap" => Order::Swapped,
            "be" => Order::Big,
            _ => Order::Little,
        };
        Some((order, bits))
    })?;
    match bits {
        "16" => Some((order, Size::Half)),
        "32" => Some((order, Size::Word)),
        "64" => Some((order, Size::Double)),
        _ => None,
    }
}

fn alu_op(sign: &str) -> Option<AluOp> {
    Some(match sign {
        "+=" => AluOp::Add,
        "-=" => AluOp::Sub,
        "*=" => AluOp::Mul,
        "/=" => AluOp::Div,
        "s/=" => AluOp::SignedDiv,
        "|=" => AluOp::Or,
        "&=" => AluOp::And,
        "<<=" => AluOp::ShiftLeft,
        ">>=" => AluOp::ShiftRight,
        "%=" => AluOp::Mod,
        "s%=" => AluOp::SignedMod,
        "^=" => AluOp::Xor,
        "s>>=" => AluOp::ShiftRightSigned,
        _ => return None,
    })
}

fn condition(sign: &str) -> Option<Condition> {
    Some(match sign {
        "==" => Condition::Equal,
        "!=" => Condition::NotEqual,
        ">" => Condition::Greater,
        ">=" => Condition::GreaterEqual,
        "<" => Condition::Less,
        "<=" => Condition::LessEqual,
        "s>" => Condition::SignedGreater,
        "s>=" => Condition::SignedGreaterEqual,
        "s<" => Condition::SignedLess,
        "s<=" => Condition::SignedLessEqual,
        "&" => Condition::Set,
        _ => return None,
    })
}

/// Unsigned numbers in decimal or, after `0x`, hexadecimal.
fn number_of(word: &str) -> Option<i128> {
    let digits = word.starts_with(|c: char| c.is_ascii_digit());
    let value = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    value.ok().filter(|_| digits).map(i128::from)
}

/// A number of 32 bits; negative ones also in their unsigned form.
fn immediate(value: i128) -> Result<i32, String> {
    let fits = i32::try_from(value).or(u32::try_from(value).map(|value| value as i32));
    fits.map_err(|_| format!("{value} has more than 32 bits: write it with `ll`"))
}

struct Cursor<'a> {
    words: &'a [&'a str],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> &'a str {
        self.words.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let word = self.peek();
        self.at += 1;
        word
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let word = self.next();
        if word == wanted { Ok(()) } else { Err(format!("expected `{wanted}`, found `{word}`")) }
    }

    fn is_register(&self, ahead: usize) -> bool {
        register(self.words.get(self.at + ahead).copied().unwrap_or_default()).is_some()
    }

    fn register(&mut self) -> Result<(Width, Register), String> {
        let word = self.next();
        register(word).ok_or_else(|| format!("expected a register, found `{word}`"))
    }

    fn number(&mut self) -> Result<i128, String> {
        let negative = self.peek() == "-";
        if negative {
            self.next();
        }
        let word = self.next();
        let value = number_of(word).ok_or_else(|| format!("expected a number, found `{word}`"))?;
        Ok(if negative { -value } else { value })
    }

    fn operand(&mut self, width: Width) -> Result<Operand, String> {
        if self.is_register(0) {
            let (of, register) = self.register()?;
            if of != width {
                return Err("both operands have the same width: r with r, w with w".to_string());
            }
            return Ok(Operand::Register(register));
        }
        self.number().and_then(immediate).map(Operand::Immediate)
    }
}

fn register(word: &str) -> Option<(Width, Register)> {
    let (letter, digits) = word.split_at_checked(1)?;
    let width = match letter {
        "r" => Width::Double,
        "w" => Width::Word,
        _ => return None,
    };
    let number = digits.parse().ok().filter(|_| digits.len() <= 2)?;
    Some((width, Register::new(number)?))
}

/// Signs of several letters, longest first.
const SIGNS: &[&str] = &[
    "s>>=", "s/=", "s%=", "s>=", "s<=", "<<=", ">>=", "s>", "s<", "==", "!=", "+=", "-=", "*=",
    "/=", "|=", "&=", "%=", "^=", ">=", "<=",
];

fn words(line: &str) -> Result<Vec<&str>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let letters = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let letters = letters.unwrap_or(rest.len());
        let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign)).map_or(0, |sign| sign.len());
        let length = match (sign, letters) {
            (0, 0) => match rest.as_bytes()[0] {
                b'+' | b'-' | b'*' | b'(' | b')' | b',' | b'=' | b'<' | b'>' | b'&' => 1,
                _ => return Err(format!("`{rest}` is not understood")),
            },
            (0, letters) => letters,
            (sign, _) => sign,
        };
        let (word, after) = rest.split_at(length);
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}
