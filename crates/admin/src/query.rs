//! The query of a request to the admin API. Each key may be present once, unknown keys are errors, and errors name the key.

use oncegate_core::clock::Timestamp;
use oncegate_web::fields::parsed;
use oncegate_web::problem::Problem;
use percent_encoding::percent_decode_str;

/// Largest ID that every JSON reader reads without loss.
pub(super) const ID_MAX: u64 = (1 << 53) - 1;

/// The keys of a query that were not read yet.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query such as `app=shop&limit=10`. No value of the admin API needs escapes, but clients that encode a comma or a colon
    /// are understood.
    pub(super) fn parse(query: Option<String>) -> Result<Self, Problem> {
        let query = query.unwrap_or_default();
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (decoded(key)?, decoded(value)?);
            if pairs.iter().any(|(known, _)| *known == key) {
                return Err(Problem::invalid(format!("The query has `{}` twice; send it once.", printable(&key))));
            }
            pairs.push((key, value));
        }
        Ok(Self(pairs))
    }

    /// Removes a key and returns its value.
    pub(super) fn take(&mut self, key: &str) -> Option<String> {
        let index = self.0.iter().position(|(known, _)| known == key)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Removes a key and returns its parsed value.
    pub(super) fn take_as<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        key: &str,
    ) -> Result<Option<T>, Problem> {
        self.take(key).map(|text| parsed(key, &text)).transpose()
    }

    /// Removes a key and returns its number from 1 to `most`.
    pub(super) fn number(&mut self, key: &str, most: u64, example: u64) -> Result<Option<u64>, Problem> {
        let read = |text: String| {
            // A sign or a leading zero would be a second form of the same number.
            let is_canonical = !text.starts_with(['+', '0']);
            let number = text.parse().ok().filter(|number| is_canonical && (1..=most).contains(number));
            number.ok_or_else(|| {
                Problem::invalid(format!("`{key}` is a whole number from 1 to {most}, such as {key}={example}."))
            })
        };
        self.take(key).map(read).transpose()
    }

    /// Removes a key and returns its count from 1 to `most`.
    pub(super) fn count(&mut self, key: &str, usual: usize, most: usize) -> Result<usize, Problem> {
        let count = self.number(key, most as u64, usual as u64)?;
        Ok(count.map_or(usual, |count| usize::try_from(count).unwrap_or(most)))
    }

    /// Removes a key and returns its value, `true` or `false`.
    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>, Problem> {
        let read = |text: String| {
            text.parse().map_err(|_| Problem::invalid(format!("`{key}` is true or false, such as {key}=false.")))
        };
        self.take(key).map(read).transpose()
    }

    /// Removes a key and returns its instant, in RFC 3339.
    pub(super) fn instant(&mut self, key: &str) -> Result<Option<Timestamp>, Problem> {
        let read = |text: String| {
            let micros = text.parse::<jiff::Timestamp>().ok().and_then(|at| u64::try_from(at.as_microsecond()).ok());
            let wrong = || {
                let example = "2026-10-20T09:00:00Z";
                Problem::invalid(format!("`{key}` is an instant from 1970 on in RFC 3339, such as {example}."))
            };
            micros.map(Timestamp::from_micros).ok_or_else(wrong)
        };
        self.take(key).map(read).transpose()
    }

    /// Returns an error if a key is left.
    pub(super) fn end(self) -> Result<(), Problem> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => {
                Err(Problem::invalid(format!("The query has no `{}` here; leave it out.", printable(key))))
            }
        }
    }
}

/// Returns a page of results, and the key of its last item if there is a next page. To know that, one more than `limit`
/// is looked for.
pub(super) fn page<T, Key>(mut found: Vec<T>, limit: usize, key: impl Fn(&T) -> Key) -> (Vec<T>, Option<Key>) {
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().map(key).filter(|_| more);
    (found, next)
}

fn decoded(text: &str) -> Result<String, Problem> {
    let decoded = percent_decode_str(text).decode_utf8().map(std::borrow::Cow::into_owned);
    decoded.map_err(|_| Problem::invalid("The escapes of the query are not UTF-8; send its values without escapes."))
}

/// Returns the part of a key that an error may repeat.
fn printable(key: &str) -> String {
    key.chars().filter(|char| !char.is_control()).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_repeated_keys_are_errors() {
        let parse = |text: &str| Query::parse(Some(text.to_owned()));
        let mut query = parse("limit=7&app=shop").unwrap();
        assert_eq!((query.count("limit", 5, 10).unwrap(), query.take("app").as_deref()), (7, Some("shop")));
        assert!(query.end().is_ok());
        let escaped = parse("kind=double%2Coverlap&%61pp=shop").unwrap().take("kind");
        assert_eq!(escaped.as_deref(), Some("double,overlap"));
        assert!(parse("a=1&%61=2").is_err() && parse("a=%ff").is_err());
        assert!(parse("a=1&a=2").is_err() && parse("limt=1").unwrap().end().is_err());
        for wrong in ["limit=0", "limit=11", "limit=", "limit=x", "limit", "limit=+1", "limit=01", "limit=1.0"] {
            assert!(parse(wrong).unwrap().count("limit", 5, 10).is_err(), "{wrong}");
        }
        assert_eq!(Query::parse(None).unwrap().count("limit", 5, 10).ok(), Some(5));
        let instant = |text: &str| parse(&format!("at={text}")).unwrap().instant("at").map(Option::unwrap);
        for text in ["1970-01-01T00:00:01.5Z", "1970-01-01T01:00:01.500000%2B01:00"] {
            assert_eq!(instant(text).unwrap(), Timestamp::from_micros(1_500_000), "{text}");
        }
        for wrong in ["", "now", "2026-10-20", "2026-10-20T09:00:00", "1969-12-31T23:59:59Z", "2026-13-01T00:00:00Z"] {
            assert!(instant(wrong).is_err(), "{wrong}");
        }
    }
}
