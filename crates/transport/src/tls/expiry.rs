//! End of a certificate's validity, for metrics and warnings. The TLS library decides about trust.

use oncegate_core::clock::Timestamp;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// Returns the last instant at which a certificate is valid; nothing if it cannot be parsed.
pub(super) fn ends_at(certificate: &[u8]) -> Option<Timestamp> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let ends_at = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    u64::try_from(ends_at.as_micros()).ok().map(Timestamp::from_micros)
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
    fn the_end_of_a_certificate_is_read_in_both_time_formats() {
        for (year, shown) in [
            (2031, "2031-02-03T00:00:00.000000Z"),
            (2049, "2049-02-03T00:00:00.000000Z"),
            (2077, "2077-02-03T00:00:00.000000Z"),
        ] {
            assert_eq!(ends_at(&until(year, 2, 3)).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn malformed_certificates_have_no_end_and_cause_no_panic() {
        let good = until(2031, 2, 3);
        for length in 0..good.len().min(300) {
            let _either = ends_at(&good[..length]);
            let mut other = good.clone();
            other[length] ^= 0xff;
            let _either = ends_at(&other);
        }
        assert_eq!(ends_at(b""), None);
        assert_eq!(ends_at(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
