//! Relocatable ELF objects as stock clang makes them with `-target bpf`.
//!
//! Each global function outside of `.text` is a program (the header's `FARSIDE_PROGRAM` puts each into a
//! separate section); if there is none, each global function in `.text` is. A program is linked with
//! the functions that it calls, and with all data of its file: `.rodata*` is constant, `.data*` and
//! `.bss*` are variables of each queue pair, and shared ones where the name ends in `.shared`, and
//! `.farside.state` holds declarations. All programs of a file see the same layout of data, so that an
//! executor can let them share it.
//!
//! Files are hostile: sizes are bounded before anything is made of them, offsets are checked, and what is
//! not understood is refused.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use object::elf::{EM_BPF, R_BPF_64_32, R_BPF_64_64};
use object::read::elf::{ElfFile64, FileHeader};
use object::{
    LittleEndian, Object, ObjectKind, ObjectSection, ObjectSymbol, RelocationFlags,
    RelocationTarget, SectionIndex, SectionKind, SymbolIndex, SymbolKind,
};

use super::btf::{self, SourceLine, SourceMap};
use super::refusal::{LoadError, LoadProblem, StateProblem, Within};
use super::{Function, Program, Scope, SourcePosition, StateDeclaration, Variables};
use crate::helpers::StateKind;
use crate::isa::{Instruction, Wide, decode_all};
use crate::limits::Limits;

/// The section of state declarations.
const STATES: &str = ".farside.state";
/// Bytes of a declaration: kind, bytes of key and value, entries, scope.
const STATE_BYTES: usize = 20;
/// Data of each section starts at a multiple of this.
const ALIGN: usize = 16;

type Result<T> = core::result::Result<T, Box<LoadError>>;

fn error(section: &str, problem: LoadProblem) -> Box<LoadError> {
    LoadError::of_section(section, problem)
}

/// Its function and line are determined only when the file is refused.
fn error_at(section: &str, slot: usize, problem: LoadProblem) -> Box<LoadError> {
    let mut error = LoadError::of_section(section, problem);
    error.slot = Some(slot);
    error
}

/// An error in data, for which no section read here has lines.
fn error_in_data(section: &str, byte: u64, problem: LoadProblem) -> Box<LoadError> {
    let mut error = LoadError::of_section(section, problem);
    error.byte = Some(byte);
    error
}

fn not_an_object(why: &dyn fmt::Display) -> Box<LoadError> {
    error("", LoadProblem::NotAnObject(why.to_string()))
}

fn bounded(what: &'static str, found: usize, most: usize) -> Result<()> {
    if found <= most {
        return Ok(());
    }
    Err(error("", LoadProblem::TooLarge { what, found: found as u64, most: most as u64 }))
}

/// All programs of a file.
///
/// # Errors
/// The problem, its program or other function, and its source line if the object has lines (`clang -g`).
pub fn load(bytes: &[u8], limits: &Limits) -> Result<Vec<Program>> {
    bounded("bytes of the file", bytes.len(), limits.file_bytes_max)?;
    let file = parse(bytes)?;
    bounded("sections", file.sections().count(), limits.entries_max)?;
    bounded("symbols", file.symbols().count(), limits.entries_max)?;
    let data = Data::gather(&file, limits)?;
    let mut code = Code::gather(&file, limits)?;
    code.relocate(&file, &data).map_err(|error| code.located(error))?;
    let entries = code.entries();
    if entries.is_empty() {
        return Err(error("", LoadProblem::NoProgram));
    }
    bounded("programs", entries.len(), limits.programs_max)?;
    let linked = entries.into_iter().map(|entry| code.link(entry, &data, limits));
    linked.collect::<Result<_>>().map_err(|error| code.located(error))
}

type File<'a> = ElfFile64<'a, LittleEndian>;

fn parse(bytes: &[u8]) -> Result<File<'_>> {
    let file = File::parse(bytes).map_err(|why| not_an_object(&why))?;
    if file.elf_header().e_machine(LittleEndian) != EM_BPF {
        return Err(not_an_object(&"it is for another machine"));
    }
    if file.kind() != ObjectKind::Relocatable {
        return Err(not_an_object(&"it is linked"));
    }
    Ok(file)
}

/// The destination of a section's bytes.
#[derive(Clone, Copy)]
enum SectionTarget {
    Constants(u32),
    Variables { shared: bool, from: u32 },
    States,
}

/// Data of a file.
struct Data {
    constants: Vec<u8>,
    variables: Variables,
    states: Vec<StateDeclaration>,
    homes: BTreeMap<usize, SectionTarget>,
}

impl Data {
    fn gather(file: &File<'_>, limits: &Limits) -> Result<Self> {
        let mut data = Self {
            constants: Vec::new(),
            variables: Variables::default(),
            states: Vec::new(),
            homes: BTreeMap::new(),
        };
        for section in file.sections() {
            let name = section.name().map_err(|why| not_an_object(&why))?;
            let constant = name == ".rodata" || name.starts_with(".rodata.");
            let variable = [".data", ".bss"].iter().any(|kind| {
                name.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            });
            if name != STATES && !constant && !variable {
                continue;
            }
            let shared = name.ends_with(".shared");
            if let Some((offset, _)) = section.relocations().next() {
                let of = symbol_at(file, section.index(), offset).to_string();
                let problem = LoadProblem::DataHasAddresses { name: of };
                return Err(error_in_data(name, offset, problem));
            }
            let zero = section.kind() == SectionKind::UninitializedData;
            let size = usize::try_from(section.size()).unwrap_or(usize::MAX);
            let most =
                if constant { limits.constants_bytes_max } else { limits.variables_bytes_max };
            bounded("bytes of one data section", size, most)?;
            let bytes = if zero {
                alloc::vec![0; size]
            } else {
                section.data().map_err(|why| not_an_object(&why))?.to_vec()
            };
            let home = if name == STATES {
                data.states = declarations(file, section.index(), &bytes, limits)?;
                SectionTarget::States
            } else if constant {
                SectionTarget::Constants(append(
                    &mut data.constants,
                    &bytes,
                    limits.constants_bytes_max,
                )?)
            } else {
                let variables = &mut data.variables;
                let place = if shared { &mut variables.shared } else { &mut variables.own };
                let from = append(place, &bytes, limits.variables_bytes_max)?;
                SectionTarget::Variables { shared, from }
            };
            data.homes.insert(section.index().0, home);
        }
        Ok(data)
    }

    /// Relocates the address of a byte of a section.
    fn wide(&self, section: SectionIndex, offset: u64) -> Option<Wide> {
        let offset = u32::try_from(offset).ok()?;
        Some(match *self.homes.get(&section.0)? {
            SectionTarget::Constants(from) => Wide::Constant(from.checked_add(offset)?),
            SectionTarget::Variables { shared, from } => {
                Wide::Variable { shared, offset: from.checked_add(offset)? }
            }
            SectionTarget::States => {
                let bytes = STATE_BYTES as u32;
                (offset % bytes == 0).then_some(Wide::StateHandle(offset / bytes))?
            }
        })
    }
}

/// The name of the data that a byte of a section belongs to; empty where it has none.
fn symbol_at<'a>(file: &File<'a>, section: SectionIndex, offset: u64) -> &'a str {
    let mut data = file.symbols().filter(|symbol| {
        let within = offset.wrapping_sub(symbol.address()) < symbol.size();
        symbol.kind() == SymbolKind::Data && symbol.section_index() == Some(section) && within
    });
    data.next().and_then(|symbol| symbol.name().ok()).unwrap_or_default()
}

fn append(place: &mut Vec<u8>, bytes: &[u8], most: usize) -> Result<u32> {
    let from = place.len().next_multiple_of(ALIGN);
    bounded("bytes of data", from + bytes.len(), most)?;
    place.resize(from, 0);
    place.extend_from_slice(bytes);
    Ok(from as u32)
}

fn declarations(
    file: &File<'_>,
    section: SectionIndex,
    bytes: &[u8],
    limits: &Limits,
) -> Result<Vec<StateDeclaration>> {
    bounded("declared states", bytes.len() / STATE_BYTES, limits.states_max)?;
    let mut names = BTreeMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.section_index() == Some(section)) {
        if symbol.kind() == SymbolKind::Data {
            names.insert(symbol.address(), symbol.name().unwrap_or_default());
        }
    }
    let rows = bytes.chunks(STATE_BYTES).enumerate().map(|(index, row)| {
        let at = (index * STATE_BYTES) as u64;
        let name = names.get(&at).map_or_else(|| format!("state {index}"), |n| (*n).to_string());
        let bad =
            |why| error_in_data(STATES, at, LoadProblem::BadState { name: name.clone(), why });
        declaration(&name, row).map_err(bad)
    });
    rows.collect()
}

/// Parses the bytes of a declaration.
fn declaration(name: &str, row: &[u8]) -> core::result::Result<StateDeclaration, StateProblem> {
    let (&[kind, key_bytes, value_bytes, entries, scope], []) = row.as_chunks() else {
        return Err(StateProblem::CutOff(row.len()));
    };
    let numbers = [kind, key_bytes, value_bytes, entries, scope];
    let [kind, key_bytes, value_bytes, entries, scope] = numbers.map(u32::from_le_bytes);
    let kind = match kind {
        1 => StateKind::Array,
        2 => StateKind::Counters,
        3 => StateKind::Map,
        4 => StateKind::Locks,
        other => return Err(StateProblem::Kind(other)),
    };
    let scope = match scope {
        0 => Scope::QueuePair,
        1 => Scope::Shared,
        other => return Err(StateProblem::Scope(other)),
    };
    Ok(StateDeclaration { name: name.into(), kind, key_bytes, value_bytes, entries, scope })
}

/// A function of the file, with its position in slots of its section.
struct SectionFunction {
    name: String,
    section: usize,
    start: usize,
    end: usize,
    entry: bool,
}

/// A section with code.
struct Text {
    name: String,
    index: SectionIndex,
    slots: Vec<u64>,
    code: Vec<Instruction>,
}

/// Code of a file.
struct Code {
    texts: Vec<Text>,
    pieces: Vec<SectionFunction>,
    /// The called piece, by section and slot of the call.
    calls: BTreeMap<(usize, usize), usize>,
    /// Pieces by section and start.
    starts: BTreeMap<(usize, usize), usize>,
    /// Lines by section and slot, in that order.
    lines: Vec<((usize, usize), SourceLine)>,
    /// Their files.
    files: Vec<Arc<str>>,
}

impl Code {
    fn gather(file: &File<'_>, limits: &Limits) -> Result<Self> {
        let mut texts = Vec::new();
        let mut slots_total = 0;
        for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
            let name = section.name().map_err(|why| not_an_object(&why))?.to_string();
            let bytes = section.data().map_err(|why| not_an_object(&why))?;
            if bytes.len() % 8 != 0 {
                return Err(error(&name, LoadProblem::NotSlots));
            }
            slots_total += bytes.len() / 8;
            bounded("slots of code", slots_total, limits.slots_max * 4)?;
            let (slots, _) = bytes.as_chunks();
            let slots = slots.iter().map(|slot| u64::from_le_bytes(*slot)).collect();
            texts.push(Text { name, index: section.index(), slots, code: Vec::new() });
        }
        let pieces = pieces(file, &texts)?;
        let section = |name| file.section_by_name(name).and_then(|section| section.data().ok());
        let found = match (section(".BTF"), section(".BTF.ext")) {
            (Some(btf), Some(ext)) => btf::lines(btf, ext, limits.slots_max * 4),
            _ => SourceMap::default(),
        };
        let lines = placed(&found, &texts);
        let starts = pieces.iter().enumerate();
        let starts = starts.map(|(at, piece)| ((piece.section, piece.start), at)).collect();
        Ok(Self { texts, pieces, calls: BTreeMap::new(), starts, lines, files: found.files })
    }

    /// Relocates wide loads, resolves calls, and decodes.
    fn relocate(&mut self, file: &File<'_>, data: &Data) -> Result<()> {
        for at in 0..self.texts.len() {
            let (name, index) = (self.texts[at].name.clone(), self.texts[at].index);
            let section = file.section_by_index(index).map_err(|why| not_an_object(&why))?;
            let mut wides = Vec::new();
            for (offset, relocation) in section.relocations() {
                let slot = usize::try_from(offset / 8).unwrap_or(usize::MAX);
                let problem = |why| error_at(&name, slot, LoadProblem::Relocation { offset, why });
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    return Err(problem("it names no symbol"));
                };
                let RelocationFlags::Elf { r_type } = relocation.flags() else {
                    return Err(problem("its kind is unknown"));
                };
                let whole = offset % 8 == 0 && slot < self.texts[at].slots.len();
                if !whole {
                    return Err(problem("it applies to no instruction"));
                }
                let target = self.target(file, symbol).map_err(|why| error_at(&name, slot, why))?;
                if r_type == R_BPF_64_64 {
                    let wide = self.wide(data, self.texts[at].slots[slot], target);
                    wides.push((slot, wide.map_err(|why| error_at(&name, slot, why))?));
                } else if r_type == R_BPF_64_32 {
                    let word = self.texts[at].slots[slot];
                    let is_call = word as u8 == 0x85;
                    let by = i64::from((word >> 32) as i32) + 1;
                    let to = i64::try_from(target.1 / 8).ok().and_then(|at| at.checked_add(by));
                    let to = to.and_then(|to| usize::try_from(to).ok()).filter(|_| is_call);
                    let piece = to.and_then(|to| self.piece(target.0, to));
                    let missing = || error_at(&name, slot, LoadProblem::NoFunction);
                    self.calls.insert((at, slot), piece.ok_or_else(missing)?);
                } else {
                    return Err(problem("its kind is not supported"));
                }
            }
            self.decode(at, &wides)?;
        }
        Ok(())
    }

    /// The section and offset of a symbol.
    fn target(
        &self,
        file: &File<'_>,
        symbol: SymbolIndex,
    ) -> core::result::Result<(SectionIndex, u64), LoadProblem> {
        let symbol = file.symbol_by_index(symbol);
        let symbol = symbol.map_err(|why| LoadProblem::NotAnObject(why.to_string()))?;
        let undefined = || {
            let name = symbol.name().unwrap_or_default().to_string();
            LoadProblem::Undefined { name }
        };
        Ok((symbol.section_index().ok_or_else(undefined)?, symbol.address()))
    }

    /// Relocates the first slot of a wide load: its immediate is added to the address of a symbol.
    fn wide(
        &self,
        data: &Data,
        word: u64,
        (section, value): (SectionIndex, u64),
    ) -> core::result::Result<Wide, LoadProblem> {
        let value = value.wrapping_add(word >> 32);
        let is_wide = word as u8 == 0x18;
        data.wide(section, value).filter(|_| is_wide).ok_or_else(|| {
            let slot = usize::try_from(value / 8).unwrap_or(usize::MAX);
            let piece = self.piece(section, slot).map(|piece| self.pieces[piece].name.clone());
            LoadProblem::NoAddress { function: piece }
        })
    }

    /// The function that starts at a slot of a section.
    fn piece(&self, section: SectionIndex, slot: usize) -> Option<usize> {
        let text = self.texts.iter().position(|text| text.index == section)?;
        self.starts.get(&(text, slot)).copied()
    }

    fn decode(&mut self, at: usize, wides: &[(usize, Wide)]) -> Result<()> {
        let text = &mut self.texts[at];
        text.code = decode_all(&text.slots)
            .map_err(|(slot, error)| error_at(&text.name, slot, LoadProblem::Decode(error)))?;
        for (slot, wide) in wides {
            if let Instruction::LoadWide { value, .. } = &mut text.code[*slot] {
                *value = *wide;
            }
        }
        // Calls within a section are resolved by the assembler.
        let text = &self.texts[at];
        for (slot, instruction) in text.code.iter().enumerate() {
            if let Instruction::CallFunction { offset } = *instruction
                && !self.calls.contains_key(&(at, slot))
            {
                let to = usize::try_from(slot as i64 + 1 + i64::from(offset)).ok();
                let piece = to.and_then(|to| self.piece(text.index, to));
                let missing = || error_at(&text.name, slot, LoadProblem::NoFunction);
                self.calls.insert((at, slot), piece.ok_or_else(missing)?);
            }
        }
        Ok(())
    }

    /// The functions that are programs.
    fn entries(&self) -> Vec<usize> {
        let all = || self.pieces.iter().enumerate().filter(|(_, piece)| piece.entry);
        let apart = all().filter(|(_, piece)| self.texts[piece.section].name != ".text");
        let apart: Vec<_> = apart.map(|(at, _)| at).collect();
        if apart.is_empty() { all().map(|(at, _)| at).collect() } else { apart }
    }

    /// The program that starts with a function.
    fn link(&self, entry: usize, data: &Data, limits: &Limits) -> Result<Program> {
        let mut order = alloc::vec![entry];
        let mut seen = BTreeSet::from([entry]);
        let mut starts = BTreeMap::from([(entry, 0)]);
        let mut length = 0;
        let mut next = 0;
        while let Some(piece) = order.get(next).map(|at| &self.pieces[*at]) {
            length += piece.end - piece.start;
            bounded("slots of a program", length, limits.slots_max)?;
            let calls = self.calls.range((piece.section, piece.start)..(piece.section, piece.end));
            for callee in calls.map(|(_, callee)| *callee) {
                if seen.insert(callee) {
                    order.push(callee);
                }
            }
            next += 1;
            if let Some(following) = order.get(next) {
                starts.insert(*following, length);
            }
        }
        let mut program = Program {
            name: self.pieces[entry].name.clone(),
            code: Vec::with_capacity(length),
            constants: data.constants.clone(),
            variables: data.variables.clone(),
            states: data.states.clone(),
            ..Program::default()
        };
        for at in &order {
            self.place(&self.pieces[*at], &starts, &mut program)?;
        }
        Ok(program)
    }

    /// Appends a function to a program.
    fn place(
        &self,
        piece: &SectionFunction,
        starts: &BTreeMap<usize, usize>,
        program: &mut Program,
    ) -> Result<()> {
        let text = &self.texts[piece.section];
        let start = program.code.len();
        for slot in piece.start..piece.end {
            let mut instruction = text.code[slot];
            if let Some(target) = instruction.jump_target(slot) {
                let inside = target >= piece.start as i64 && target < piece.end as i64;
                if !inside {
                    return Err(error_at(&text.name, slot, LoadProblem::JumpOutside));
                }
            }
            if let Instruction::CallFunction { offset } = &mut instruction {
                let to = self.calls.get(&(piece.section, slot)).and_then(|to| starts.get(to));
                let missing = || error_at(&text.name, slot, LoadProblem::NoFunction);
                let to = *to.ok_or_else(missing)? as i64;
                let from = program.code.len() as i64 + 1;
                *offset = i32::try_from(to - from).map_err(|_| missing())?;
            }
            program.code.push(instruction);
        }
        let end = program.code.len();
        program.functions.push(Function { name: piece.name.clone(), start, end });
        let before = |end| self.lines.partition_point(|(at, _)| *at < (piece.section, end));
        let lines = &self.lines[before(piece.start)..before(piece.end)];
        program.lines.reserve(lines.len());
        for ((_, slot), line) in lines {
            let slot = start + slot - piece.start;
            let file = Arc::clone(&self.files[line.file]);
            program.lines.push(SourcePosition { slot, file, line: line.line });
        }
        Ok(())
    }
}

impl Code {
    /// An error with the function and the line that its slot belongs to.
    fn located(&self, mut error: Box<LoadError>) -> Box<LoadError> {
        let text = self.texts.iter().position(|text| text.name == error.section);
        let Some(at) = text.zip(error.slot) else {
            return error;
        };
        let before = self.pieces.partition_point(|piece| (piece.section, piece.start) <= at);
        let piece = before.checked_sub(1).map(|piece| (piece, &self.pieces[piece]));
        let within = |piece: &SectionFunction| piece.section == at.0 && at.1 < piece.end;
        let Some((number, piece)) = piece.filter(|(_, piece)| within(piece)) else {
            return error;
        };
        let name = piece.name.clone();
        let is_program = self.entries().contains(&number);
        error.within =
            Some(if is_program { Within::Program(name) } else { Within::Function(name) });
        let before = self.lines.partition_point(|(place, _)| *place <= at);
        let line = before.checked_sub(1).map(|line| &self.lines[line]);
        let line = line.filter(|(place, _)| *place >= (piece.section, piece.start));
        error.line = line.map(|((_, slot), line)| {
            let file = Arc::clone(&self.files[line.file]);
            SourcePosition { slot: *slot, file, line: line.line }
        });
        error
    }
}

/// Lines by section and slot; of several for one slot, the last.
fn placed(source: &SourceMap<'_>, texts: &[Text]) -> Vec<((usize, usize), SourceLine)> {
    // Of texts of one name, the last is meant.
    let text = |name: &&str| texts.iter().rposition(|text| text.name == **name);
    let of_section: Vec<_> = source.sections.iter().map(text).collect();
    let place = |line: &SourceLine| Some(((of_section[line.section]?, line.slot), *line));
    let mut placed: Vec<_> = source.lines.iter().filter_map(place).collect();
    placed.sort_by_key(|(at, _)| *at);
    placed.dedup_by(|after, kept| {
        let same = after.0 == kept.0;
        if same {
            core::mem::swap(after, kept);
        }
        same
    });
    placed
}

/// The functions of a file, in the order of their places.
fn pieces(file: &File<'_>, texts: &[Text]) -> Result<Vec<SectionFunction>> {
    let mut pieces: Vec<SectionFunction> = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let text = texts.iter().position(|text| Some(text.index) == symbol.section_index());
        let Some(section) = text else {
            continue;
        };
        let name = symbol.name().unwrap_or_default().to_string();
        let (start, size) = (symbol.address(), symbol.size());
        let end = start.checked_add(size).filter(|_| start % 8 == 0 && size % 8 == 0 && size > 0);
        let within = end.filter(|end| *end / 8 <= texts[section].slots.len() as u64);
        let bad = || error(&texts[section].name, LoadProblem::BadFunction { name: name.clone() });
        let end = usize::try_from(within.ok_or_else(bad)? / 8).map_err(|_| bad())?;
        let start = usize::try_from(start / 8).map_err(|_| bad())?;
        pieces.push(SectionFunction { name, section, start, end, entry: symbol.is_global() });
    }
    pieces.sort_by_key(|piece| (piece.section, piece.start));
    for pair in pieces.windows(2) {
        if pair[0].section == pair[1].section && pair[1].start < pair[0].end {
            let name = pair[1].name.clone();
            return Err(error(&texts[pair[1].section].name, LoadProblem::BadFunction { name }));
        }
    }
    Ok(pieces)
}
