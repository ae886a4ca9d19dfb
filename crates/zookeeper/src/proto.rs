//! Requests and replies of ZooKeeper, as far as the engine uses them. The numbers are a public contract of ZooKeeper (`ZooDefs.OpCode`,
//! `KeeperException.Code`).

use bytes::Bytes;

use super::jute::{Reader, Writer};

/// Identifier of replies that belong to no request, but to a watch.
pub(super) const EVENT: i32 = -1;
/// Identifier of the request that authenticates.
pub(super) const AUTH: i32 = -4;

/// Types of requests.
mod op {
    pub(super) const DELETE: i32 = 2;
    pub(super) const GET_DATA: i32 = 4;
    pub(super) const SET_DATA: i32 = 5;
    pub(super) const GET_CHILDREN: i32 = 8;
    pub(super) const CHECK: i32 = 13;
    pub(super) const MULTI: i32 = 14;
    pub(super) const CREATE2: i32 = 15;
    pub(super) const REMOVE_WATCHES: i32 = 18;
    pub(super) const AUTH: i32 = 100;
    pub(super) const ADD_WATCH: i32 = 106;
    pub(super) const CLOSE: i32 = -11;
    /// In the reply to a multi: an operation that was not executed.
    pub(super) const ERROR: i32 = -1;
}

/// Codes of failures.
pub(super) mod code {
    pub(crate) const OK: i32 = 0;
    pub(crate) const ROLLED_BACK: i32 = -2;
    pub(crate) const NO_NODE: i32 = -101;
    pub(crate) const NO_AUTH: i32 = -102;
    pub(crate) const BAD_VERSION: i32 = -103;
    pub(crate) const NODE_EXISTS: i32 = -110;
    pub(crate) const SESSION_EXPIRED: i32 = -112;
    pub(crate) const AUTH_FAILED: i32 = -115;
    pub(crate) const SESSION_MOVED: i32 = -118;
    /// A server with `enforce.auth.enabled` has no user of a scheme that it wants.
    pub(crate) const USER_WANTED: i32 = -124;
    /// A server with `enforceQuota` refuses a node that is beyond the quota of a node above.
    pub(crate) const QUOTA_EXCEEDED: i32 = -125;
    pub(crate) const THROTTLED: i32 = -127;
}

/// Represents a reply that does not have the form of its request.
pub(super) const UNFIT: i32 = i32::MIN;

/// All rights.
const ALL: i32 = 31;
/// A watch stays until it is removed.
const PERSISTENT: i32 = 0;
/// All kinds of watches.
const ANY: i32 = 3;

/// Access rights to the nodes that are created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The user of the session.
    User,
    /// Everybody.
    Anyone,
}

/// A request to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// One change, or several that are all made or none.
    Change(Vec<Change>),
    /// Reads a node.
    Get(String),
    /// Reads the names of a node's children.
    Children(String),
    /// Watches a node.
    Watch(String),
    /// Watches a node no more.
    Unwatch(String),
    /// Ends the session.
    Close,
}

impl Request {
    /// Returns the bytes of its values.
    pub(super) fn value_bytes(&self) -> usize {
        let Self::Change(changes) = self else { return 0 };
        let of = |change: &Change| match change {
            Change::Create(_, value) | Change::Set(_, value, _) => value.len(),
            Change::Delete(..) | Change::Check(..) => 0,
        };
        changes.iter().map(of).sum()
    }
}

/// A change of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Creates it.
    Create(String, Bytes),
    /// Replaces its value, if it has this version; -1: with any version.
    Set(String, Bytes, i32),
    /// Deletes it, if it has this version.
    Delete(String, i32),
    /// Changes nothing, and fails if it has another version.
    Check(String, i32),
}

/// Known state of a node that was read or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Stat {
    /// The transaction that wrote it.
    pub(super) mzxid: i64,
    /// Counts its writes since it was created.
    pub(super) version: i32,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    /// A transaction that the member had seen when it replied. That of a change is not greater.
    pub(super) zxid: i64,
    /// Contents of the reply, or the code of the failure.
    pub(super) body: Result<Body, i32>,
}

/// Contents of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// Of all changes, in order. That of a check is empty.
    Changed(Vec<Stat>),
    /// The changes were not made: the position of the failed one, and its code.
    Refused(usize, i32),
    Data(Bytes, Stat),
    Children(Vec<String>),
    Done,
}

impl Request {
    /// Returns the type and the fields.
    pub(super) fn encode(&self, owner: Owner) -> (i32, Bytes) {
        let mut fields = Writer::default();
        let number = match self {
            Self::Change(changes) => match &changes[..] {
                [change] if !matches!(change, Change::Check(..)) => change.encode(owner, &mut fields),
                changes => {
                    for change in changes {
                        let mut own = Writer::default();
                        let number = change.encode(owner, &mut own);
                        fields.int(number).bool(false).int(-1).raw(&own.finish());
                    }
                    fields.int(-1).bool(true).int(-1);
                    op::MULTI
                }
            },
            Self::Get(path) => {
                fields.text(path).bool(false);
                op::GET_DATA
            }
            Self::Children(path) => {
                fields.text(path).bool(false);
                op::GET_CHILDREN
            }
            Self::Watch(path) => {
                fields.text(path).int(PERSISTENT);
                op::ADD_WATCH
            }
            Self::Unwatch(path) => {
                fields.text(path).int(ANY);
                op::REMOVE_WATCHES
            }
            Self::Close => op::CLOSE,
        };
        (number, fields.finish())
    }

    /// Reads the body of a successful reply; `None`: it does not fit.
    fn decode(&self, reader: &mut Reader) -> Option<Body> {
        match self {
            Self::Change(changes) => match &changes[..] {
                [Change::Create(..)] => {
                    reader.text()?;
                    Some(Body::Changed(vec![Stat::decode(reader)?]))
                }
                [Change::Set(..)] => Some(Body::Changed(vec![Stat::decode(reader)?])),
                [Change::Delete(..)] => Some(Body::Changed(vec![Stat::default()])),
                changes => decode_multi(changes.len(), reader),
            },
            Self::Get(_) => Some(Body::Data(reader.bytes()?, Stat::decode(reader)?)),
            Self::Children(_) => reader.texts().map(Body::Children),
            Self::Watch(_) | Self::Unwatch(_) | Self::Close => Some(Body::Done),
        }
    }

    /// Reads the reply to this request, after its identifier; `None`: it does not fit.
    pub(super) fn reply(&self, mut reader: Reader) -> Option<Reply> {
        let (zxid, code) = (reader.long()?, reader.int()?);
        let body = if code == code::OK {
            Ok(self.decode(&mut reader)?)
        } else {
            // Where one change is refused, that is its code.
            match self {
                Self::Change(changes) if changes.len() == 1 && is_refusal(code) => Ok(Body::Refused(0, code)),
                _ => Err(code),
            }
        };
        Some(Reply { zxid, body })
    }
}

/// Returns whether this code means that a change does not fit the present state.
pub(super) fn is_refusal(code: i32) -> bool {
    [code::NO_NODE, code::BAD_VERSION, code::NODE_EXISTS].contains(&code)
}

fn decode_multi(count: usize, reader: &mut Reader) -> Option<Body> {
    let mut changed = Vec::with_capacity(count);
    let mut refused = None;
    for position in 0..count {
        let (number, is_done, _) = (reader.int()?, reader.bool()?, reader.int()?);
        if is_done {
            return None;
        }
        match number {
            op::ERROR => {
                let code = reader.int()?;
                // Those before it were rolled back, those after it were not tried.
                if ![code::OK, code::ROLLED_BACK].contains(&code) && refused.is_none() {
                    refused = Some(Body::Refused(position, code));
                }
            }
            op::CREATE2 => {
                reader.text()?;
                changed.push(Stat::decode(reader)?);
            }
            op::SET_DATA => changed.push(Stat::decode(reader)?),
            op::DELETE | op::CHECK => changed.push(Stat::default()),
            _ => return None,
        }
    }
    refused.or_else(|| (changed.len() == count).then_some(Body::Changed(changed)))
}

impl Change {
    fn encode(&self, owner: Owner, fields: &mut Writer) -> i32 {
        match self {
            Self::Create(path, value) => {
                let (scheme, id) = match owner {
                    Owner::User => ("auth", ""),
                    Owner::Anyone => ("world", "anyone"),
                };
                fields.text(path).bytes(value).int(1).int(ALL).text(scheme).text(id).int(0);
                op::CREATE2
            }
            Self::Set(path, value, version) => {
                fields.text(path).bytes(value).int(*version);
                op::SET_DATA
            }
            Self::Delete(path, version) => {
                fields.text(path).int(*version);
                op::DELETE
            }
            Self::Check(path, version) => {
                fields.text(path).int(*version);
                op::CHECK
            }
        }
    }
}

impl Stat {
    fn decode(reader: &mut Reader) -> Option<Self> {
        let _created_by = reader.long()?;
        let mzxid = reader.long()?;
        let _times = (reader.long()?, reader.long()?);
        let version = reader.int()?;
        let _versions = (reader.int()?, reader.int()?);
        let _owner = reader.long()?;
        let _sizes = (reader.int()?, reader.int()?);
        let _children_changed_by = reader.long()?;
        Some(Self { mzxid, version })
    }
}

/// Returns the first message of a connection, which asks for a new session.
pub(super) fn connect(session_ms: i32) -> Bytes {
    Writer::default().int(0).long(0).int(session_ms).long(0).bytes(&[0; 16]).bool(false).finish()
}

/// Terms that a member grants for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Connected {
    /// Time without a request after which the session ends; zero: there is none.
    pub(super) session_ms: i32,
    pub(super) is_read_only: bool,
}

impl Connected {
    pub(super) fn decode(message: Bytes) -> Option<Self> {
        let mut reader = Reader::new(message);
        reader.int()?;
        let session_ms = reader.int()?;
        reader.long()?;
        reader.bytes()?;
        // Not there in replies of old servers.
        Some(Self { session_ms, is_read_only: reader.bool().unwrap_or(false) })
    }
}

/// Returns the request that authenticates with the scheme `digest`.
pub(super) fn digest(user: &str, password: &str) -> (i32, Bytes) {
    let fields = Writer::default().int(0).text("digest").bytes(format!("{user}:{password}").as_bytes()).finish();
    (op::AUTH, fields)
}

/// Returns the path of a watch's event, after its identifier and the rest of its head.
pub(super) fn event_path(mut reader: Reader) -> Option<String> {
    let _head = (reader.long()?, reader.int()?);
    let _type_and_state = (reader.int()?, reader.int()?);
    reader.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(code: i32) -> Writer {
        let mut writer = Writer::default();
        writer.long(77).int(code);
        writer
    }

    fn stat(writer: &mut Writer, mzxid: i64, version: i32) {
        writer.long(1).long(mzxid).long(2).long(3).int(version).int(0).int(0).long(0).int(5).int(0).long(9);
    }

    fn changes() -> Request {
        Request::Change(vec![Change::Check("/c".into(), 3), Change::Create("/a".into(), Bytes::new())])
    }

    #[test]
    fn all_changes_are_made_or_the_first_that_failed_is_named() {
        let mut writer = head(0);
        writer.int(13).bool(false).int(0).int(15).bool(false).int(0).text("/a");
        stat(&mut writer, 77, 0);
        writer.int(-1).bool(true).int(-1);
        let made = changes().reply(Reader::new(writer.finish())).unwrap();
        let stats = vec![Stat::default(), Stat { mzxid: 77, version: 0 }];
        assert_eq!(made, Reply { zxid: 77, body: Ok(Body::Changed(stats)) });
        for (codes, refused) in [([0, -110], (1, -110)), ([-103, -2], (0, -103))] {
            let mut writer = head(0);
            for code in codes {
                writer.int(-1).bool(false).int(code).int(code);
            }
            writer.int(-1).bool(true).int(-1);
            let reply = changes().reply(Reader::new(writer.finish())).unwrap();
            assert_eq!(reply.body, Ok(Body::Refused(refused.0, refused.1)));
        }
    }

    #[test]
    fn a_reply_that_is_cut_off_or_of_another_request_is_none() {
        let mut writer = head(0);
        writer.bytes(b"value");
        stat(&mut writer, 4, 2);
        let whole = writer.finish();
        let get = Request::Get("/a".into());
        let reply = get.reply(Reader::new(whole.clone())).unwrap();
        assert_eq!(reply.body, Ok(Body::Data("value".into(), Stat { mzxid: 4, version: 2 })));
        for length in 0..whole.len() {
            assert_eq!(get.reply(Reader::new(whole.slice(..length))), None, "{length}");
        }
        assert_eq!(changes().reply(Reader::new(whole)), None);
    }

    #[test]
    fn a_single_change_is_no_multi_and_its_refusal_is_no_failure() {
        let create = Request::Change(vec![Change::Create("/a".into(), Bytes::new())]);
        assert_eq!(create.encode(Owner::Anyone).0, 15);
        assert_eq!(changes().encode(Owner::Anyone).0, 14);
        assert_eq!(Request::Change(vec![Change::Check("/c".into(), 1)]).encode(Owner::Anyone).0, 14);
        let code = |code| create.reply(Reader::new(head(code).finish())).unwrap().body;
        assert_eq!((code(-110), code(-112)), (Ok(Body::Refused(0, -110)), Err(-112)));
    }
}
