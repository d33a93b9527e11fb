//! Calls of helpers, as both interpreters and compiled code carry them out.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::long::{Long, is_long};
use super::memory::{View, input, output};
use super::meter::Meter;
use super::{Buffers, FaultKind, Near, Reply, Request, Resource, Span};
use crate::cost::is_counted;
use crate::helpers::{
    Argument, Call, Extent, HELPERS, Helper, HelperEffect, PIECE_BYTES, compress, crc32c, status,
    xxhash64,
};
use crate::program::{Program, StateDeclaration};

/// Registers of the machine: eleven, one that is always zero, and room so that four bits name one.
pub(super) type Registers = [u64; 16];

/// The result of a helper call.
pub(super) enum Called {
    /// It has a result.
    Done(u64),
    /// The machine suspends with this request.
    Later,
    /// The machine pauses, and continues the helper in pieces.
    Long,
    /// The word may not be accessed.
    Refused,
    /// The executor's answer is out of range.
    BadReply,
    /// The budget is used up.
    Over(Resource),
}

/// The request that registers make of a call, with every argument checked against its row.
pub(super) fn request(
    helper: &Helper,
    registers: &Registers,
    states: &[StateDeclaration],
) -> Result<Request, FaultKind> {
    // The other registers are not part of the request.
    let mut arguments = [0; 5];
    for (argument, (_, value)) in
        arguments.iter_mut().zip(helper.arguments.iter().zip(&registers[1..]))
    {
        *argument = *value;
    }
    let mut request =
        Request { call: helper.call, arguments, inputs: [Span::default(); 2], output: None };
    let mut inputs = 0;
    for (at, argument) in helper.arguments.iter().enumerate() {
        let value = arguments[at];
        let bad = FaultKind::BadArgument { argument: at as u8 + 1 };
        match argument {
            Argument::Number | Argument::Region => {}
            Argument::Length(most) => {
                if value > u64::from(*most) {
                    return Err(bad);
                }
            }
            Argument::State(kind) => {
                let state = usize::try_from(value).ok().and_then(|at| states.get(at));
                state.filter(|state| state.kind == *kind).ok_or(bad)?;
            }
            Argument::Readable(extent) => {
                let length = length(*extent, &arguments, states).ok_or(bad)?;
                request.inputs[inputs] = Span { address: value, length };
                inputs += 1;
            }
            Argument::Writable(extent) => {
                let length = length(*extent, &arguments, states).ok_or(bad)?;
                request.output = Some(Span { address: value, length });
            }
        }
    }
    Ok(request)
}

/// [`request`] for a load of a word, the most frequent helper that suspends: both arguments are numbers and need no
/// check.
pub(super) fn word(registers: &Registers) -> Request {
    let arguments = [registers[1], registers[2], 0, 0, 0];
    Request { call: Call::LoadU64, arguments, inputs: [Span::default(); 2], output: None }
}

fn length(extent: Extent, arguments: &[u64; 5], states: &[StateDeclaration]) -> Option<u32> {
    let state = || states.get(usize::try_from(arguments[0]).ok()?);
    match extent {
        Extent::Argument { index, each, most } => {
            let count = arguments[usize::from(index)];
            (count <= u64::from(most)).then_some(count as u32 * each)
        }
        Extent::Key => Some(state()?.key_bytes),
        Extent::Value => Some(state()?.value_bytes),
    }
}

/// Bytes that a request moves or hashes.
fn bytes_moved(helper: &Helper, request: &Request) -> u64 {
    let spans: u64 =
        request.inputs.iter().chain(&request.output).map(|s| u64::from(s.length)).sum();
    let lengths = helper.arguments.iter().zip(request.arguments);
    let counted = lengths.filter(|(argument, _)| matches!(argument, Argument::Length(_)));
    spans + counted.map(|(_, value)| value).sum::<u64>()
}

fn charge(meter: &mut Meter, helper: &Helper, request: &Request) -> Result<(), Resource> {
    if !is_counted(helper.call) {
        return Ok(());
    }
    meter.helper_calls -= 1;
    meter.bytes = meter.bytes.saturating_sub_unsigned(bytes_moved(helper, request));
    if meter.helper_calls < 0 {
        Err(Resource::HelperCalls)
    } else if meter.bytes_over() {
        Err(Resource::Bytes)
    } else {
        Ok(())
    }
}

/// What a call may change besides registers and memory.
pub(super) struct Rest<'a> {
    pub(super) meter: &'a mut Meter,
    pub(super) output: &'a mut Vec<u8>,
    pub(super) output_max: usize,
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) long: &'a mut Option<Box<Long>>,
    pub(super) slice: Option<u64>,
}

/// Carries out a request, in place if possible. `said` is the executor's reply if it was asked already.
pub(super) fn perform(
    helper: &Helper,
    request: &Request,
    view: &mut View<'_>,
    rest: &mut Rest<'_>,
    near: &mut impl Near,
    said: Option<Reply>,
) -> Result<Called, FaultKind> {
    if let Err(resource) = charge(rest.meter, helper, request) {
        return Ok(Called::Over(resource));
    }
    if is_long(helper, bytes_moved(helper, request), rest.slice) {
        *rest.long = Some(Box::new(Long::new(*request, 0)));
        return Ok(Called::Long);
    }
    let scratch = &mut *rest.scratch;
    scratch.clear();
    let mut ranges = [(0, 0); 2];
    // Inputs may overlap the output, so they are copied if there is one.
    if request.output.is_some() {
        for (span, range) in request.inputs.iter().zip(&mut ranges) {
            *range = (scratch.len(), scratch.len() + span.length as usize);
            scratch.extend_from_slice(input(view, *span)?);
        }
    }
    let mut nothing = [];
    let (inputs, output): ([&[u8]; 2], &mut [u8]) = match request.output {
        None => ([input(view, request.inputs[0])?, input(view, request.inputs[1])?], &mut nothing),
        Some(span) => {
            let of = |at: usize| &scratch[ranges[at].0..ranges[at].1];
            let output = output(view, span)?;
            if !writes_all(request.call) {
                output.fill(0);
            }
            ([of(0), of(1)], output)
        }
    };
    Ok(match helper.effect {
        HelperEffect::Pure => {
            let result = pure(request, inputs[0], output);
            if (result as i64) < 0 && request.output.is_some() {
                clear(view, request);
            }
            Called::Done(result)
        }
        HelperEffect::Output => Called::Done(emit(rest.output, rest.output_max, inputs[0]) as u64),
        HelperEffect::Suspends | HelperEffect::Word => {
            if !pieces_fit(request, inputs[0]) {
                clear(view, request);
                return Ok(Called::Done(status::OUT_OF_RANGE as u64));
            }
            let reply = said.unwrap_or_else(|| ask(request, Buffers { inputs, output }, near));
            match reply {
                Reply::Later => Called::Later,
                Reply::Refused if helper.effect == HelperEffect::Word => Called::Refused,
                Reply::Now(result) if helper.returns(result) => {
                    if (result as i64) < 0 && helper.effect == HelperEffect::Suspends {
                        clear(view, request);
                    }
                    Called::Done(result)
                }
                Reply::Refused | Reply::Now(_) => Called::BadReply,
            }
        }
    })
}

fn ask(request: &Request, buffers: Buffers<'_>, near: &mut impl Near) -> Reply {
    let [region, offset, ..] = request.arguments;
    match request.call {
        Call::Read => near.read(region, offset, buffers.output),
        Call::LoadU64 => near.load_u64(region, offset),
        _ => near.perform(request, buffers),
    }
}

/// Whether all of the output is written with any result but a negative one, which clears it: it may be long, and
/// clearing it beforehand takes as long as reading.
fn writes_all(call: Call) -> bool {
    matches!(call, Call::Read | Call::ReadVector | Call::GlobalRead)
}

fn clear(view: &mut View<'_>, request: &Request) {
    if let Some(span) = request.output
        && let Some(bytes) = view.get_mut(span.address, span.length as usize)
    {
        bytes.fill(0);
    }
}

fn pure(request: &Request, bytes: &[u8], output: &mut [u8]) -> u64 {
    match request.call {
        Call::Crc32c => u64::from(crc32c(bytes, request.arguments[2] as u32)),
        Call::Xxhash64 => xxhash64(bytes, request.arguments[2]),
        _ => compress(bytes, output).map_or(status::FULL as u64, |length| length as u64),
    }
}

fn emit(output: &mut Vec<u8>, most: usize, bytes: &[u8]) -> i64 {
    if output.len() + bytes.len() > most {
        return status::FULL;
    }
    output.extend_from_slice(bytes);
    status::OK
}

/// Whether the pieces of a vectored access make exactly the buffer.
fn pieces_fit(request: &Request, pieces: &[u8]) -> bool {
    let room = match request.call {
        Call::ReadVector => request.output.map_or(0, |span| span.length),
        Call::WriteVector => request.inputs[1].length,
        _ => return true,
    };
    let mut sum = 0u64;
    for piece in pieces.chunks_exact(PIECE_BYTES as usize) {
        let length = u32::from_le_bytes([piece[8], piece[9], piece[10], piece[11]]);
        let zero = piece[12..] == [0; 4];
        if !zero {
            return false;
        }
        sum += u64::from(length);
    }
    sum == u64::from(room)
}

/// The row of a helper's number.
pub(super) fn helper(number: i32) -> Result<&'static Helper, FaultKind> {
    let number = number as u32;
    Helper::with_number(number).ok_or(FaultKind::UnknownHelper(number))
}

/// States of a program, by handle.
pub(super) fn states(program: &Program) -> &[StateDeclaration] {
    &program.states
}

const _: () = assert!(HELPERS.len() < 255, "a byte names a row");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_of_a_word_asks_for_what_its_row_says() {
        let mut registers = [7; 16];
        (registers[1], registers[2]) = (u64::MAX, 1 << 40);
        let helper = helper(Call::LoadU64 as i32).unwrap();
        assert_eq!(Ok(word(&registers)), request(helper, &registers, &[]));
    }
}
