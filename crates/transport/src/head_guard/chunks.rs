//! The chunked coding of a body (RFC 9112, 7.1), read only to find its end.

/// Position in a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Chunks(Position);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    /// In the size of a chunk. Holds the size so far, and the number of its digits.
    Size(u64, u8),
    /// In an extension after the size.
    Extension(u64),
    /// In the data, with this number of bytes left.
    Data(u64),
    /// In the line end after the data.
    DataEnd,
    /// At the beginning of a line after the last chunk.
    Trailer,
    /// In a field of the trailer.
    TrailerField,
}

impl Default for Position {
    fn default() -> Self {
        Self::Size(0, 0)
    }
}

/// Error for bytes that are no chunked body.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Invalid;

/// Most digits of a size.
const DIGITS_MAX: u8 = 16;

impl Chunks {
    /// Reads on. Returns the number of bytes of the body, and whether the body ends there.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<(usize, bool), Invalid> {
        let mut read = 0;
        while let Some(byte) = bytes.get(read).copied() {
            let mut step = 1;
            self.0 = match (self.0, byte) {
                (Position::Data(left), _) => {
                    step = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - read);
                    let left = left - step as u64;
                    if left == 0 { Position::DataEnd } else { Position::Data(left) }
                }
                (Position::Size(_, 0), b'\r' | b'\n' | b';') => return Err(Invalid),
                (Position::Size(size, _) | Position::Extension(size), b'\n') => {
                    if size == 0 {
                        Position::Trailer
                    } else {
                        Position::Data(size)
                    }
                }
                (Position::Size(size, digits), b'\r') => Position::Size(size, digits),
                (Position::Size(size, _), b';' | b' ' | b'\t') | (Position::Extension(size), _) => {
                    Position::Extension(size)
                }
                (Position::Size(size, digits), digit) => {
                    let value = char::from(digit).to_digit(16).filter(|_| digits < DIGITS_MAX).ok_or(Invalid)?;
                    Position::Size(size << 4 | u64::from(value), digits + 1)
                }
                (Position::DataEnd, b'\r') => Position::DataEnd,
                (Position::DataEnd, b'\n') => Position::default(),
                (Position::DataEnd, _) => return Err(Invalid),
                (Position::Trailer, b'\n') => return Ok((read + 1, true)),
                (Position::Trailer, b'\r') | (Position::TrailerField, b'\n') => Position::Trailer,
                (Position::Trailer | Position::TrailerField, _) => Position::TrailerField,
            };
            read += step;
        }
        Ok((read, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_body_is_found_wherever_its_pieces_end() {
        let body = b"5;a=b\r\nhello\r\n00A \r\n0123456789\r\n0\r\nx: 0\r\ny: 1\r\n\r\n";
        let text = [body, &b"GET / HTTP/1.1"[..]].concat();
        assert_eq!(Chunks::default().read(&text), Ok((body.len(), true)));
        for split in 0..body.len() {
            let mut chunks = Chunks::default();
            assert_eq!(chunks.read(&text[..split]), Ok((split, false)), "{split}");
            assert_eq!(chunks.read(&text[split..]), Ok((body.len() - split, true)), "{split}");
        }
        assert_eq!(Chunks::default().read(b"0\r\n\r\n"), Ok((5, true)));
    }

    #[test]
    fn what_is_no_chunk_is_invalid() {
        for body in ["x", "\r\n", ";a", "5\r\nhellox", "00000000000000000\r\n", "-1\r\n"] {
            assert_eq!(Chunks::default().read(body.as_bytes()), Err(Invalid), "{body:?}");
        }
    }
}
