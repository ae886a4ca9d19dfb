//! Instants as text: RFC 3339 in UTC, always with six digits of the fraction, so that texts sort as the instants do. Every answer has
//! two instants, and a calendar library takes longer for them than the rest of the answer takes. The tests compare this code with
//! the library.

/// Length of each text.
pub(super) const LENGTH: usize = "9999-12-31T23:59:59.999999Z".len();

/// The last instant whose year has four digits; later ones are written as this one.
const MICROS_MAX: u64 = 253_402_300_799_999_999;

const SECONDS_PER_DAY: u64 = 86_400;

/// The digits of each number below a hundred.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number: u8 = 0;
    while number < 100 {
        pairs[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    pairs
};

/// Writes the instant this many microseconds after the epoch.
pub(super) fn write(micros: u64, text: &mut [u8; LENGTH]) -> &[u8] {
    let micros = micros.min(MICROS_MAX);
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (year, month, day) = date(seconds / SECONDS_PER_DAY);
    let second_of_day = seconds % SECONDS_PER_DAY;
    text.copy_from_slice(b"0000-00-00T00:00:00.000000Z");
    digits(&mut text[0..4], year);
    digits(&mut text[5..7], month);
    digits(&mut text[8..10], day);
    digits(&mut text[11..13], second_of_day / 3600);
    digits(&mut text[14..16], second_of_day / 60 % 60);
    digits(&mut text[17..19], second_of_day % 60);
    digits(&mut text[20..26], fraction);
    text
}

/// Fills two, four or six bytes with the last digits of a number, two at a time.
fn digits(text: &mut [u8], mut number: u64) {
    for pair in text.as_chunks_mut::<2>().0.iter_mut().rev() {
        let [.., two] = (number % 100).to_be_bytes();
        *pair = PAIRS[usize::from(two)];
        number /= 100;
    }
}

/// Returns year, month and day of a day after the epoch, by the Gregorian calendar. Years are counted from March, so that a
/// leap day is the last day of its year (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // Days from 1 March of the year 0 to the epoch.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(micros: u64) -> String {
        String::from_utf8(write(micros, &mut [0; LENGTH]).to_vec()).unwrap()
    }

    fn by_the_library(micros: u64) -> String {
        format!("{:.6}", jiff::Timestamp::from_microsecond(micros.try_into().unwrap()).unwrap())
    }

    #[test]
    fn every_day_is_written_as_the_library_does() {
        // A whole cycle of the calendar.
        for day in 0..146_097 {
            let micros = day * SECONDS_PER_DAY * 1_000_000;
            let last = micros + SECONDS_PER_DAY * 1_000_000 - 1;
            assert_eq!((written(micros), written(last)), (by_the_library(micros), by_the_library(last)));
        }
    }

    #[test]
    fn later_instants_are_written_as_the_last_one_of_year_9999() {
        for micros in [MICROS_MAX, MICROS_MAX + 1, u64::MAX] {
            assert_eq!(written(micros), "9999-12-31T23:59:59.999999Z");
        }
    }

    proptest! {
        #[test]
        fn every_instant_is_written_as_the_library_does(micros in 0_u64..253_000_000_000_000_000, zeros in 0_u32..7) {
            // Fractions that end in zeros are rare.
            let micros = micros / 10_u64.pow(zeros) * 10_u64.pow(zeros);
            prop_assert_eq!(written(micros), by_the_library(micros));
        }
    }
}
