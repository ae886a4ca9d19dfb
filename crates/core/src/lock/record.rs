//! Record of a lock in a store, and its compact stored form: holds, queue, withdrawn nonces, and the last fence.

use sha2::{Digest, Sha256};

use super::{Permits, TICKET_LEASE};
use crate::attempt::{Attempt, Nonce};
use crate::caller::Caller;
use crate::clock::Timestamp;
use crate::engine::EngineError;
use crate::hex;

/// Maximum number of holds of a lock.
pub const HOLDS_MAX: usize = 1000;

/// Number of holds up to which a new one keeps the name of its caller, so that a full record fits into a shared record.
pub const CALLERS_MAX: usize = 500;

/// Maximum number of tickets of a lock.
pub const TICKETS_MAX: usize = 1000;

/// Maximum number of withdrawn nonces of a lock.
pub const WITHDRAWN_MAX: usize = 1000;

/// First byte of the stored form. Raised only when an older release could not read what a newer one writes.
const FORMAT: u8 = 1;

/// Mode of a hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockMode {
    /// By several owners at once, and none is exclusive.
    Shared,
    /// By one owner.
    Exclusive,
}

/// 16 bytes of a SHA-256, which represent a nonce or an owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortHash([u8; 16]);

/// One acquisition of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Its nonce.
    pub nonce: ShortHash,
    /// Its owner; the nonce itself if the caller named none.
    pub owner: ShortHash,
    /// Its mode.
    pub mode: LockMode,
    /// The name of its caller, if it sent one.
    pub caller: Option<Caller>,
    /// The timestamp of its attempt.
    pub attempted_at: Timestamp,
    /// Time of the grant, by the store's clock.
    pub claimed_at: Timestamp,
    /// End of its lease, by the store's clock.
    pub ends_at: Timestamp,
}

/// The place of a fair request in the queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The nonce of the request.
    pub nonce: ShortHash,
    /// Its owner.
    pub owner: ShortHash,
    /// The mode that it asks for.
    pub mode: LockMode,
    /// The limit that it names.
    pub limit: Option<Permits>,
    /// Time at which it entered the queue, by the store's clock.
    pub queued_at: Timestamp,
    /// Its end, unless its request is repeated before.
    pub ends_at: Timestamp,
    /// Until then it counts as waiting: to the end of the wait of its request.
    pub waits_until: Timestamp,
}

/// A nonce that is not granted any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Withdrawn {
    /// The nonce.
    pub nonce: ShortHash,
    /// Until then.
    pub ends_at: Timestamp,
}

/// A lock. Its lists may contain ended entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LockRecord {
    /// The last fence.
    pub fence: u64,
    /// The mode that the last fence is for; `None` if the lock was free since.
    pub mode: Option<LockMode>,
    /// The limit that all holds have named; nothing if the lock is free.
    pub limit: Option<Permits>,
    /// Time since which the head of the queue could be granted, if it could. The grace of all absent heads together
    /// begins here.
    pub turn_at: Timestamp,
    /// Time until which callers wait for the lock. Until then their gateways need a notification of its release.
    pub watched_until: Timestamp,
    /// The holds.
    pub holds: Vec<Hold>,
    /// The queue, in the order in which its requests first asked.
    pub tickets: Vec<Ticket>,
    /// The nonces that were withdrawn.
    pub withdrawn: Vec<Withdrawn>,
}

impl ShortHash {
    /// Returns the hash of a nonce.
    pub fn of_nonce(nonce: &Nonce) -> Self {
        Self::of(nonce.as_str())
    }

    /// Returns the hash of an owner. It differs from that of a nonce with the same text.
    pub fn of_owner(owner: &Nonce) -> Self {
        Self::of(&format!("owner\n{}", owner.as_str()))
    }

    fn of(text: &str) -> Self {
        let mut short = [0; 16];
        short.copy_from_slice(&Sha256::digest(text)[..16]);
        Self(short)
    }

    /// Returns the first 8 hex digits, which may be shown to others.
    pub fn shown(&self) -> String {
        hex::write(&self.0[..4], &mut [0; 8]).to_owned()
    }
}

impl std::fmt::Debug for ShortHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Hold {
    /// Returns whether this attempt holds it.
    pub fn is_of(&self, attempt: &Attempt) -> bool {
        self.nonce == ShortHash::of_nonce(attempt.nonce()) && self.attempted_at == attempt.timestamp()
    }
}

impl Ticket {
    /// Reports whether its request still waits. Otherwise it only keeps its place until the ticket ends.
    pub fn waits(&self, now: Timestamp) -> bool {
        now < self.ends_at.min(self.waits_until)
    }

    /// Returns when its request is known to have asked. It may have asked since.
    pub(super) fn asked_at(&self) -> Timestamp {
        self.ends_at.minus(TICKET_LEASE)
    }
}

impl LockRecord {
    /// Returns the number of requests in the queue that still wait. The others keep their places until their tickets end.
    pub fn waiting(&self, now: Timestamp) -> usize {
        self.tickets.iter().filter(|ticket| ticket.waits(now)).count()
    }

    /// Returns the stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, mode_byte(self.mode)];
        bytes.extend(Permits::stored(self.limit).to_be_bytes());
        for number in [self.fence, self.turn_at.as_micros(), self.watched_until.as_micros()] {
            bytes.extend(number.to_be_bytes());
        }
        for count in [self.holds.len(), self.tickets.len(), self.withdrawn.len()] {
            bytes.extend(u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes());
        }
        for hold in &self.holds {
            bytes.extend(hold.nonce.0);
            bytes.extend(hold.owner.0);
            bytes.push(mode_byte(Some(hold.mode)));
            for instant in [hold.attempted_at, hold.claimed_at, hold.ends_at] {
                bytes.extend(instant.as_micros().to_be_bytes());
            }
            let caller = hold.caller.as_ref().map_or("", AsRef::as_ref);
            bytes.push(u8::try_from(caller.len()).unwrap_or_default());
            bytes.extend(caller.as_bytes());
        }
        for ticket in &self.tickets {
            bytes.extend(ticket.nonce.0);
            bytes.extend(ticket.owner.0);
            bytes.push(mode_byte(Some(ticket.mode)));
            bytes.extend(Permits::stored(ticket.limit).to_be_bytes());
            for instant in [ticket.queued_at, ticket.ends_at, ticket.waits_until] {
                bytes.extend(instant.as_micros().to_be_bytes());
            }
        }
        for withdrawn in &self.withdrawn {
            bytes.extend(withdrawn.nonce.0);
            bytes.extend(withdrawn.ends_at.as_micros().to_be_bytes());
        }
        bytes
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// It is incompatible: this release did not write it in this form.
    pub fn decode(bytes: &[u8]) -> Result<Self, EngineError> {
        let mut reader = Reader(bytes);
        let record = reader.record().filter(|_| reader.0.is_empty());
        record.ok_or_else(|| EngineError::incompatible("a lock's record cannot be read by this release"))
    }
}

fn mode_byte(mode: Option<LockMode>) -> u8 {
    match mode {
        None => 0,
        Some(LockMode::Shared) => 1,
        Some(LockMode::Exclusive) => 2,
    }
}

/// The rest of a stored form.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn record(&mut self) -> Option<LockRecord> {
        if self.bytes()? != [FORMAT] {
            return None;
        }
        let (mode, limit) = (self.mode()?, self.limit()?);
        let (fence, turn_at, watched_until) = (self.number()?, self.instant()?, self.instant()?);
        let (holds, tickets, withdrawn) = (self.count()?, self.count()?, self.count()?);
        let holds = (0..holds).map(|_| {
            let (nonce, owner, mode) = (self.hash()?, self.hash()?, self.mode()??);
            let (attempted_at, claimed_at, ends_at) = (self.instant()?, self.instant()?, self.instant()?);
            let caller = self.caller()?;
            Some(Hold { nonce, owner, mode, caller, attempted_at, claimed_at, ends_at })
        });
        let holds = holds.collect::<Option<_>>()?;
        let tickets = (0..tickets).map(|_| {
            let (nonce, owner, mode, limit) = (self.hash()?, self.hash()?, self.mode()??, self.limit()?);
            let (queued_at, ends_at, waits_until) = (self.instant()?, self.instant()?, self.instant()?);
            Some(Ticket { nonce, owner, mode, limit, queued_at, ends_at, waits_until })
        });
        let tickets = tickets.collect::<Option<_>>()?;
        let withdrawn = (0..withdrawn).map(|_| Some(Withdrawn { nonce: self.hash()?, ends_at: self.instant()? }));
        let withdrawn = withdrawn.collect::<Option<_>>()?;
        Some(LockRecord { fence, mode, limit, turn_at, watched_until, holds, tickets, withdrawn })
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn hash(&mut self) -> Option<ShortHash> {
        self.bytes().map(ShortHash)
    }

    fn number(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn instant(&mut self) -> Option<Timestamp> {
        self.number().map(Timestamp::from_micros)
    }

    #[expect(clippy::option_option, reason = "a hold may have no caller; other text is none of a record")]
    fn caller(&mut self) -> Option<Option<Caller>> {
        let [length] = self.bytes()?;
        let (name, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        if name.is_empty() {
            return Some(None);
        }
        std::str::from_utf8(name).ok()?.parse().ok().map(Some)
    }

    fn count(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    #[expect(clippy::option_option, reason = "most locks have no limit; other numbers are none of a record")]
    fn limit(&mut self) -> Option<Option<Permits>> {
        match self.count()? {
            0 => Some(None),
            holds => Permits::try_from(u64::from(holds)).ok().map(Some),
        }
    }

    #[expect(clippy::option_option, reason = "a lock that is not held has no mode; other bytes are none of a record")]
    fn mode(&mut self) -> Option<Option<LockMode>> {
        match self.bytes()? {
            [0] => Some(None),
            [1] => Some(Some(LockMode::Shared)),
            [2] => Some(Some(LockMode::Exclusive)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::shared_record::RECORD_BYTES_MAX;

    fn full(count: usize) -> LockRecord {
        let hash = |number: usize| ShortHash::of(&number.to_string());
        let at = Timestamp::from_micros;
        let hold = |number| Hold {
            nonce: hash(number),
            owner: hash(number / 2),
            mode: LockMode::Shared,
            caller: (number < CALLERS_MAX && number % 2 == 1).then(|| "c".repeat(64).parse().unwrap()),
            attempted_at: at(1),
            claimed_at: at(2),
            ends_at: at(3),
        };
        let ticket = |number| Ticket {
            nonce: hash(number),
            owner: hash(0),
            mode: LockMode::Exclusive,
            limit: Permits::try_from(2).ok(),
            queued_at: at(4),
            ends_at: at(u64::MAX),
            waits_until: at(8),
        };
        LockRecord {
            fence: 7,
            mode: Some(LockMode::Shared),
            limit: Permits::try_from(1000).ok(),
            turn_at: at(5),
            watched_until: at(6),
            holds: (0..count).map(hold).collect(),
            tickets: (0..count).map(ticket).collect(),
            withdrawn: (0..count).map(|number| Withdrawn { nonce: hash(number), ends_at: at(9) }).collect(),
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for record in [LockRecord::default(), full(1), full(3)] {
            assert_eq!(LockRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_full_record_fits_into_a_shared_record() {
        let mut full = full(HOLDS_MAX);
        for hold in &mut full.holds[..CALLERS_MAX] {
            hold.caller = "c".repeat(Caller::BYTES_MAX).parse().ok();
        }
        assert!(full.encode().len() <= RECORD_BYTES_MAX);
        assert_eq!(LockRecord::decode(&full.encode()), Ok(full));
    }

    #[test]
    fn another_format_or_a_truncated_record_is_refused() {
        let good = full(1).encode();
        for length in 0..good.len() {
            assert!(LockRecord::decode(&good[..length]).is_err(), "{length}");
        }
        assert!(LockRecord::decode(&[&good[..], &[0]].concat()).is_err());
        assert!(LockRecord::decode(&[&[2], &good[1..]].concat()).is_err());
    }

    #[test]
    fn a_hash_is_shown_by_its_first_eight_digits() {
        assert_eq!(ShortHash([0xab; 16]).shown(), "abababab");
    }

    #[test]
    fn an_owner_is_not_the_nonce_of_the_same_text() {
        let text: Nonce = "0123456789abcdef".parse().unwrap();
        assert_ne!(ShortHash::of_nonce(&text), ShortHash::of_owner(&text));
    }
}
