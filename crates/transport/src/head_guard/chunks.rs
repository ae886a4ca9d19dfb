//! The chunked coding of a body (RFC 9112, 7.1), read only to find its end. At least as strict as the library, which must not find
//! another end. Lines end in CRLF alone: readers that also take a line feed would see other messages.

/// Position in a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunks(Position);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    /// In the size of a chunk. Holds the size so far, and the number of its digits.
    Size(u64, u8),
    /// In an extension after the size.
    Extension(u64),
    /// Before the line feed after a size.
    SizeEnd(u64),
    /// In the data, with this number of bytes left.
    Data(u64),
    /// Before the line end after the data.
    DataEnd,
    /// Within that line end.
    DataLineFeed,
    /// At the beginning of a line after the last chunk.
    Trailer,
    /// In a field of the trailer.
    TrailerField,
    /// Before the line feed after a field.
    TrailerFieldEnd,
    /// Before the last line feed.
    End,
}

impl Default for Chunks {
    fn default() -> Self {
        Self(START)
    }
}

const START: Position = Position::Size(0, 0);

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
                (Position::Size(size, 1..) | Position::Extension(size), b'\r') => Position::SizeEnd(size),
                (Position::Size(size, 1..), b';' | b' ' | b'\t') => Position::Extension(size),
                (Position::Size(size, digits), digit) => {
                    let value = char::from(digit).to_digit(16).filter(|_| digits < DIGITS_MAX).ok_or(Invalid)?;
                    Position::Size(size << 4 | u64::from(value), digits + 1)
                }
                (Position::SizeEnd(0) | Position::TrailerFieldEnd, b'\n') => Position::Trailer,
                (Position::SizeEnd(size), b'\n') => Position::Data(size),
                (Position::DataEnd, b'\r') => Position::DataLineFeed,
                (Position::DataLineFeed, b'\n') => START,
                (Position::Trailer, b'\r') => Position::End,
                (Position::TrailerField, b'\r') => Position::TrailerFieldEnd,
                (Position::End, b'\n') => return Ok((read + 1, true)),
                (Position::Extension(size), byte) if byte != b'\n' => Position::Extension(size),
                (Position::Trailer | Position::TrailerField, byte) if byte != b'\n' => Position::TrailerField,
                _ => return Err(Invalid),
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
        for body in [
            "x",
            "\r\n",
            ";a",
            " 5\r\n",
            "5\r\nhellox",
            "00000000000000000\r\n",
            "-1\r\n",
            "5\nhello",
            "5\r5\r\n",
            "5;a\nhello",
            "5;a\rb\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhello\r0\r\n\r\n",
            "0\r\n\n",
            "0\r\n\r\r\n",
            "0\r\nx: 0\n\r\n",
            "0\r\nx: 0\ry: 1\r\n",
        ] {
            assert_eq!(Chunks::default().read(body.as_bytes()), Err(Invalid), "{body:?}");
        }
    }
}
