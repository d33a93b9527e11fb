//! Numbers with units, as the command line and settings files write them.

/// Parses a number of bytes: digits, optionally followed by K, M, G or T (powers of 1,024).
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim().trim_end_matches(['B', 'b']).trim_end_matches('i');
    let (digits, shift) = match text.chars().last().map(|c| c.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        Some('T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number, optionally with K, M, G or T".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Parses a time in seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    if (0.01..=3600.0).contains(&number) { Ok(number) } else { Err("0.01 to 3600".to_owned()) }
}

/// Parses a message size.
pub fn message_bytes(text: &str) -> Result<u32, String> {
    const BYTES_MAX: u32 = (1 << 24) - 1;
    let number = bytes(text)?;
    match u32::try_from(number) {
        Ok(bytes @ 1..=BYTES_MAX) => Ok(bytes),
        _ => Err(format!("a message has 1 to {BYTES_MAX} bytes")),
    }
}
