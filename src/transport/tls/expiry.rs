//! Reads the end of a certificate's validity from its DER, for a metric and a warning. Nothing is trusted because of it: the
//! TLS library verifies certificates.

use crate::domain::clock::Timestamp;

/// DER tags on the way to the validity of a certificate (RFC 5280, 4.1).
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the last instant at which a certificate is valid. `None` if this is no certificate.
pub(super) fn ends_at(certificate: &[u8]) -> Option<Timestamp> {
    let (certificate, _) = inner(certificate)?;
    let (signed, _) = inner(certificate)?;
    // Certificates of version 1 have no version field.
    let mut fields = if signed.first() == Some(&VERSION) { inner(signed)?.1 } else { signed };
    for _serial_algorithm_issuer in 0..3 {
        fields = inner(fields)?.1;
    }
    let (validity, _) = inner(fields)?;
    let (_from, until) = inner(validity)?;
    let tag = *until.first()?;
    instant(tag, str::from_utf8(inner(until)?.0).ok()?)
}

/// Returns the contents of the first element, and the bytes after it.
fn inner(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // The length of the length. Four bytes are more than any certificate needs.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// Reads `YYMMDDHHMMSSZ`, of the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn instant(tag: u8, text: &str) -> Option<Timestamp> {
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let century = if year < "50" { "20" } else { "19" };
            (format!("{century}{year}"), rest)
        }
        GENERALIZED_TIME => text.split_at_checked(4).map(|(year, rest)| (year.to_owned(), rest))?,
        _ => return None,
    };
    let digits = rest.strip_suffix('Z').filter(|digits| digits.len() == 10 && digits.is_ascii())?;
    let part = |place: usize| &digits[place..place + 2];
    let text = format!("{year}-{}-{}T{}:{}:{}Z", part(0), part(2), part(4), part(6), part(8));
    let instant: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(instant.as_microsecond()).ok().map(Timestamp::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_of_a_certificate_is_read_in_both_forms() {
        for (year, shown) in
            [(2031, "2031-02-03T00:00:00Z"), (2049, "2049-02-03T00:00:00Z"), (2077, "2077-02-03T00:00:00Z")]
        {
            assert_eq!(ends_at(&until(year, 2, 3)).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_end_and_cause_no_panic() {
        let good = until(2031, 2, 3);
        for length in 0..good.len().min(300) {
            let _either = ends_at(&good[..length]);
            let mut other = good.clone();
            other[length] ^= 0xff;
            let _either = ends_at(&other);
        }
        assert_eq!(ends_at(b""), None);
        assert_eq!(ends_at(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(instant(UTC_TIME, "31\u{e9}20300000Z"), None);
    }
}
