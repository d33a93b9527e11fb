//! CPU lists in the kernel's format: `0-3,8,10-11`.

/// Bound on CPU numbers; no kernel is built for more.
const PROCESSORS_MAX: u64 = 65_536;

/// Parses a list into ascending numbers; `None` if `text` is not a list.
pub(crate) fn parse(text: &str) -> Option<Vec<u64>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= PROCESSORS_MAX || first > last {
            return None;
        }
        numbers.extend(first..=last);
        if numbers.len() > 2 * usize::try_from(PROCESSORS_MAX).ok()? {
            return None;
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// Returns the numbers in both lists. `others` must be sorted.
pub(crate) fn overlap(some: &[u64], others: &[u64]) -> Vec<u64> {
    some.iter().copied().filter(|number| others.binary_search(number).is_ok()).collect()
}

/// Returns the first number, or 0 if the list is empty.
pub(crate) fn first_in(numbers: &[u64]) -> u64 {
    numbers.first().copied().unwrap_or(0)
}

/// Formats a sorted list as the kernel does.
pub(crate) fn shown(numbers: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let run = |(first, last): &(u64, u64)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_list_round_trips() {
        for text in ["0", "0-3", "0-3,8,10-11"] {
            assert_eq!(shown(&parse(text).unwrap()), text);
        }
        assert_eq!(parse("3,1-2,2").unwrap(), [1, 2, 3]);
        assert_eq!(parse(""), Some(Vec::new()));
        for junk in ["a", "1-", "-1", "5-3", "0-99999999999", "1,,x"] {
            assert_eq!(parse(junk), None, "{junk}");
        }
        assert_eq!(overlap(&[1, 2, 3], &[2, 3, 4]), [2, 3]);
    }
}
