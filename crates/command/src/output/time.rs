//! Timestamps of events.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds per day, without leap seconds (POSIX.1 4.16).
const DAY_SECONDS: u64 = 86_400;

/// Returns the current UTC time in the form of RFC 3339, with milliseconds.
pub(super) fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Formats a time since 1970 as in RFC 3339.
fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / DAY_SECONDS);
    let of_day = seconds % DAY_SECONDS;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let millis = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns year, month and day of a number of days since 1970, in the proleptic Gregorian calendar. *Source:* H.
/// Hinnant, chrono-compatible low-level date algorithms, `civil_from_days`: years begin in March and end with the
/// leap day.
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_agree_with_the_calendar() {
        let at = |seconds, millis: u32| rfc3339(Duration::new(seconds, millis * 1_000_000));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399, 999), "2000-02-28T23:59:59.999Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_709_251_200, 7), "2024-03-01T00:00:00.007Z");
        assert_eq!(at(4_107_542_399, 0), "2100-02-28T23:59:59.000Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn dates_follow_each_other() {
        let mut before = date(0);
        for day in 1..200_000 {
            let next = date(day);
            let (year, month, of_month) = before;
            let expected = [(year, month, of_month + 1), (year, month + 1, 1), (year + 1, 1, 1)];
            assert!(expected.contains(&next), "{before:?} {next:?}");
            before = next;
        }
    }
}
