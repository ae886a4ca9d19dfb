//! Commands in the form in which they are sent: written once, and moved from their caller to the stream.

use redis::Cmd;

/// Room behind the first command, for the ECHO that closes a batch.
const ROOM_BYTES: usize = 64;

/// Commands that are sent together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Commands {
    bytes: Vec<u8>,
    count: usize,
}

impl Commands {
    /// Returns one command.
    pub(super) fn of<'a>(words: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut commands = Self::default();
        commands.push(words);
        commands
    }

    /// Adds a command.
    pub(super) fn push<'a>(&mut self, words: impl Iterator<Item = &'a [u8]> + Clone) {
        // A length of up to nine digits, with what is around it.
        let (count, length) = words.clone().fold((0, 0), |(count, length), word| (count + 1, length + word.len() + 14));
        self.bytes.reserve(length + ROOM_BYTES);
        self.write_header(b'*', count);
        for word in words {
            self.write_header(b'$', word.len());
            self.bytes.extend_from_slice(word);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.count += 1;
    }

    fn write_header(&mut self, kind: u8, number: usize) {
        self.bytes.push(kind);
        match u8::try_from(number) {
            // Most lengths. A formatter would cost more than all the rest.
            Ok(digit @ 0..10) => self.bytes.push(b'0' + digit),
            Ok(digits @ 10..100) => self.bytes.extend_from_slice(&[b'0' + digits / 10, b'0' + digits % 10]),
            _ => self.bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds the commands of another caller.
    pub(super) fn append(&mut self, others: Self) {
        if self.bytes.is_empty() {
            self.bytes = others.bytes;
        } else {
            self.bytes.extend_from_slice(&others.bytes);
        }
        self.count += others.count;
    }

    /// Returns their number.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bytes to send.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl Extend<Cmd> for Commands {
    fn extend<I: IntoIterator<Item = Cmd>>(&mut self, commands: I) {
        for command in commands {
            command.write_packed_command(&mut self.bytes);
            self.count += 1;
        }
    }
}

impl FromIterator<Cmd> for Commands {
    fn from_iter<I: IntoIterator<Item = Cmd>>(commands: I) -> Self {
        let mut all = Self::default();
        all.extend(commands);
        all
    }
}

impl From<Cmd> for Commands {
    fn from(command: Cmd) -> Self {
        Self::from_iter([command])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_written_as_the_library_writes_it() {
        for length in [0, 1, 9, 10, 99, 100, 255, 256, 70_000] {
            let words = ["SET".to_owned(), "x".repeat(length), "NX\r\n".to_owned()];
            let ours = Commands::of(words.iter().map(String::as_bytes));
            let mut library = redis::cmd("SET");
            library.arg(&words[1]).arg(&words[2]);
            assert_eq!(ours, Commands::from(library));
            assert_eq!(ours.len(), 1);
        }
    }

    #[test]
    fn commands_of_several_callers_are_sent_in_order() {
        let one = |word: &str| Commands::of([word.as_bytes()].into_iter());
        let mut all = Commands::default();
        assert!(all.is_empty());
        all.append(one("A"));
        all.append(one("B"));
        all.extend([redis::cmd("C")]);
        assert_eq!(all, ["A", "B", "C"].into_iter().map(redis::cmd).collect());
        assert_eq!(all.len(), 3);
        assert_eq!(all.into_bytes(), b"*1\r\n$1\r\nA\r\n*1\r\n$1\r\nB\r\n*1\r\n$1\r\nC\r\n");
    }
}
