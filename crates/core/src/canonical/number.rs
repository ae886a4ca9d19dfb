//! Number literals: the grammar, whether a double can represent them, and the canonical form.

/// A number literal before rounding: `mantissa * 10^exponent`, if it has no further digits.
#[derive(Debug, Default)]
pub(super) struct Decimal {
    negative: bool,
    /// The first 17 digits, without leading zeros.
    mantissa: u64,
    exponent: i64,
    /// Number of digits, without leading zeros.
    digits: i64,
    /// Number of digits, without leading and trailing zeros.
    significant: i64,
}

/// Reason why a double cannot represent a number literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumberFault {
    /// 2^53 ≤ |x| < 10^21, where JSON libraries keep different digits of an integer.
    #[error("the number is beyond 2^53 - 1, where digits get lost")]
    TooLarge,
    /// More than 17 significant digits.
    #[error("the number has more than 17 significant digits")]
    TooPrecise,
    /// Not zero, but zero as a double.
    #[error("the number is so small that it would become 0")]
    TooSmall,
    /// Larger than any double.
    #[error("the number is larger than any double")]
    NotFinite,
}

impl Decimal {
    const DIGITS_MAX: i64 = 17;
    const TWO_TO_53: f64 = 9_007_199_254_740_992.0;
    const INTEGERS_END: u64 = 1 << 53;

    /// Reads the literal at the start of `bytes`. Returns it with its length, or the position of a missing digit.
    pub(super) fn scan(bytes: &[u8]) -> Result<(Self, usize), usize> {
        let negative = bytes.first() == Some(&b'-');
        let mut number = Self { negative, ..Self::default() };
        let mut at = usize::from(negative);

        // After a leading zero the integer ends: in `01` the number is `0`.
        let integer = match bytes.get(at) {
            Some(b'0') => &bytes[at..=at],
            _ => digits(bytes, at)?,
        };
        for digit in integer {
            number.push(*digit);
        }
        at += integer.len();

        if bytes.get(at) == Some(&b'.') {
            let fraction = digits(bytes, at + 1)?;
            for digit in fraction {
                number.push(*digit);
                number.exponent -= 1;
            }
            at += 1 + fraction.len();
        }
        if let Some(b'e' | b'E') = bytes.get(at) {
            let sign = bytes.get(at + 1).filter(|byte| matches!(byte, b'+' | b'-'));
            at += 1 + usize::from(sign.is_some());
            let digits = digits(bytes, at)?;
            // Saturating is exact enough: no literal has the 10^18 digits that could compensate it.
            let size = digits
                .iter()
                .fold(0_i64, |size, digit| size.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
            let shift = if sign == Some(&b'-') { -size } else { size };
            number.exponent = number.exponent.saturating_add(shift);
            at += digits.len();
        }
        Ok((number, at))
    }

    fn push(&mut self, digit: u8) {
        if digit == b'0' && self.digits == 0 {
            return;
        }
        self.digits += 1;
        if digit != b'0' {
            self.significant = self.digits;
        }
        if self.digits <= Self::DIGITS_MAX {
            self.mantissa = self.mantissa * 10 + u64::from(digit - b'0');
        } else {
            self.exponent += 1;
        }
    }

    /// Writes the number as ECMAScript does, if that has the literal's value.
    pub(super) fn write(&self, out: &mut String) -> Result<(), NumberFault> {
        if self.mantissa == 0 {
            out.push('0');
            return Ok(());
        }
        // ECMAScript writes such an integer in digits; nearly all numbers of contents are one.
        if self.exponent == 0 && self.mantissa < Self::INTEGERS_END {
            if self.negative {
                out.push('-');
            }
            out.push_str(itoa::Buffer::new().format(self.mantissa));
            return Ok(());
        }
        // 10^(magnitude - 1) ≤ |x| < 10^magnitude.
        let magnitude = self.digits.min(Self::DIGITS_MAX).saturating_add(self.exponent);
        // Checked on the literal, not the double: some just below 10^21 round up to it, and would pass.
        if (17..=21).contains(&magnitude) {
            return Err(NumberFault::TooLarge);
        }
        if self.significant > Self::DIGITS_MAX {
            return Err(NumberFault::TooPrecise);
        }
        // Not the literal itself: `parse` misreads long exponents, even if as many zeros compensate them.
        let double: f64 = format!("{}e{}", self.mantissa, self.exponent).parse().map_err(|_| NumberFault::NotFinite)?;
        if !double.is_finite() {
            return Err(NumberFault::NotFinite);
        }
        if double == 0.0 {
            return Err(NumberFault::TooSmall);
        }
        // Checked on the double, not the literal: some just below 2^53 round up to it.
        if magnitude == 16 && double >= Self::TWO_TO_53 {
            return Err(NumberFault::TooLarge);
        }
        if self.negative {
            out.push('-');
        }
        out.push_str(ryu_js::Buffer::new().format_finite(double));
        Ok(())
    }
}

/// Returns the digits at `at`, or the position if there is none.
fn digits(bytes: &[u8], at: usize) -> Result<&[u8], usize> {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.iter().take_while(|byte| byte.is_ascii_digit()).count() {
        0 => Err(at),
        count => Ok(&rest[..count]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::NumberFault::{self, NotFinite, TooLarge, TooPrecise, TooSmall};
    use super::*;

    fn canonical(literal: &str) -> Result<String, NumberFault> {
        let (number, length) = Decimal::scan(literal.as_bytes()).expect("a number literal");
        assert_eq!(length, literal.len(), "{literal}");
        let mut out = String::new();
        number.write(&mut out).map(|()| out)
    }

    /// RFC 8785, appendix B, without NaN and Infinity, and without numbers beyond 2^53 - 1.
    #[test]
    fn the_samples_of_the_rfc_have_their_canonical_form() {
        let samples = [
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ];
        for (bits, expected) in samples {
            let literal = format!("{:e}", f64::from_bits(bits));
            assert_eq!(canonical(&literal).as_deref(), Ok(expected), "{literal}");
            assert_eq!(canonical(expected).as_deref(), Ok(expected));
        }
        for refused in ["9007199254740992", "295147905179352830000", "999999999999999700000", "-9007199254740992"] {
            assert_eq!(canonical(refused), Err(TooLarge), "{refused}");
        }
    }

    #[test]
    fn numbers_that_a_double_cannot_represent_are_rejected_in_any_notation() {
        let refused = [
            ("9007199254740992", TooLarge),
            ("-9007199254740993", TooLarge),
            ("9007199254740993.0", TooLarge),
            ("9007199254740991.5", TooLarge),
            ("9.007199254740992E15", TooLarge),
            ("90071992547409920000e-4", TooLarge),
            ("1e16", TooLarge),
            ("0.000001e26", TooLarge),
            ("123456789012345678", TooLarge),
            ("999999999999999999999", TooLarge),
            ("999999999999999990000", TooLarge),
            ("9.9999999999999999e20", TooLarge),
            ("0.12345678901234567891", TooPrecise),
            ("1000000000000000010000", TooPrecise),
            ("9007199254740991.50000000000000000001", TooPrecise),
            ("1e-400", TooSmall),
            ("-2e-324", TooSmall),
            ("1e-99999999999999999999999", TooSmall),
            ("1e309", NotFinite),
            ("-1e99999999999999999999999", NotFinite),
        ];
        for (literal, fault) in refused {
            assert_eq!(canonical(literal), Err(fault), "{literal}");
        }
    }

    #[test]
    fn numbers_that_a_double_represents_are_accepted_in_any_notation() {
        let zeros = "0".repeat(70_000);
        let long_way_up = format!("0.{zeros}1e70001");
        let long_way_down = format!("-1{zeros}e-70000");
        let accepted = [
            ("-0", "0"),
            ("-0.000e+10", "0"),
            ("0e99999999999999999999999", "0"),
            ("9007199254740991", "9007199254740991"),
            ("-9007199254740991.0000000000", "-9007199254740991"),
            ("0.000000000000000000012345678901234567", "1.2345678901234567e-20"),
            ("1000000000000000000000", "1e+21"),
            ("1000000000000000100000", "1.0000000000000001e+21"),
            ("3e-324", "5e-324"),
            (&long_way_up, "1"),
            (&long_way_down, "-1"),
        ];
        for (literal, expected) in accepted {
            assert_eq!(canonical(literal).as_deref(), Ok(expected), "{literal:.40}");
        }
    }

    #[test]
    fn a_missing_digit_is_reported_with_its_position() {
        for (literal, missing_at) in [("-", 1), ("-a", 1), (".5", 0), ("1.", 2), ("1.e5", 2), ("1e", 2), ("1e+", 3)] {
            let refused = Decimal::scan(literal.as_bytes()).map(|(_, length)| length);
            assert_eq!(refused, Err(missing_at), "{literal}");
        }
        for (literal, length) in [("01", 1), ("-00", 2), ("1.2.3", 3), ("1e5e", 3), ("1-", 1)] {
            let read = Decimal::scan(literal.as_bytes()).map(|(_, length)| length);
            assert_eq!(read, Ok(length), "{literal}");
        }
    }

    /// The rule of the contract in another form: with the standard library on the whole literal.
    fn by_the_rule(literal: &str) -> Option<String> {
        let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
        let fraction = mantissa.split_once('.').map_or("", |(_, fraction)| fraction);
        let digits = mantissa.replace(['-', '.'], "");
        let significant = digits.trim_matches('0');
        let double: f64 = literal.parse().ok()?;
        if significant.is_empty() {
            return Some("0".to_owned());
        }
        let between = |size: f64| (Decimal::TWO_TO_53..1e21).contains(&size);
        if significant.len() > 17 || double == 0.0 || !double.is_finite() || between(double.abs()) {
            return None;
        }
        // Exact, as integers, where the double may have been rounded up.
        if (1e21..1.1e21).contains(&double.abs()) {
            let zeros = digits.len() - digits.trim_end_matches('0').len();
            let places =
                exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()? + i32::try_from(zeros).ok()?;
            let value = significant.parse::<u128>().ok()? * 10_u128.pow(places.try_into().ok()?);
            if value < 10_u128.pow(21) {
                return None;
            }
        }
        Some(ryu_js::Buffer::new().format_finite(double).to_owned())
    }

    fn literals() -> impl Strategy<Value = String> {
        let any_shape = "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?";
        let around_two_to_53 = "-?90071992547409(89|9[0-5])(\\.[0-9]{1,3})?(e[01])?";
        let around_ten_to_21 = "-?(9\\.9{14,17}[0-9]?e20|9{15,18}[0-9]0{3,5}|1\\.0{14,17}[0-9]e21|10{18,21})";
        prop_oneof![any_shape, around_two_to_53, around_ten_to_21]
    }

    proptest! {
        #[test]
        fn literals_are_accepted_by_the_rule_and_written_as_ecmascript_does(literal in literals()) {
            prop_assert_eq!(canonical(&literal).ok(), by_the_rule(&literal));
        }

        #[test]
        fn a_canonical_number_is_its_own_canonical_form(bits: u64) {
            let double = f64::from_bits(bits);
            prop_assume!(double.is_finite());
            if let Ok(once) = canonical(&format!("{double:e}")) {
                prop_assert_eq!(once.parse(), Ok(double));
                prop_assert_eq!(canonical(&once), Ok(once));
            } else {
                prop_assert!((Decimal::TWO_TO_53..1e21).contains(&double.abs()));
            }
        }
    }
}
