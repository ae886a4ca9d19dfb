//! Nodes of a ZooKeeper, read and written by a test: a blocking connection with the few messages that this takes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// A session that a test has.
pub struct Nodes {
    stream: TcpStream,
    id: i32,
}

impl Nodes {
    /// Opens a session at a server; as a user, written `name:password`, if there is one.
    pub fn connect(address: &str, user: Option<&str>) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        let mut nodes = Self { stream, id: 0 };
        let mut hello = vec![0; 12];
        hello.extend(10_000_i32.to_be_bytes());
        hello.extend([0; 8]);
        hello.extend(bytes(&[0; 16]));
        hello.push(0);
        nodes.write(&hello);
        nodes.read();
        if let Some(user) = user {
            let mut message = (-4_i32).to_be_bytes().to_vec();
            message.extend(100_i32.to_be_bytes());
            message.extend(0_i32.to_be_bytes());
            message.extend(bytes(b"digest"));
            message.extend(bytes(user.as_bytes()));
            nodes.write(&message);
            nodes.read();
        }
        nodes
    }

    /// Creates a node. Its owner, written `user:password`, has all rights alone; without one everybody has them.
    pub fn create(&mut self, path: &str, value: &[u8], is_own: bool) {
        let (scheme, id): (&[u8], &[u8]) = if is_own { (b"auth", b"") } else { (b"world", b"anyone") };
        let mut fields = [bytes(path.as_bytes()), bytes(value)].concat();
        fields.extend(1_i32.to_be_bytes());
        fields.extend(31_i32.to_be_bytes());
        fields.extend([bytes(scheme), bytes(id)].concat());
        fields.extend(0_i32.to_be_bytes());
        let (code, _) = self.call(1, &fields);
        assert_eq!(code, 0, "create {path}");
    }

    /// Returns the value of a node, and the transaction that wrote it; `None` if there is none.
    pub fn get(&mut self, path: &str) -> Option<(Vec<u8>, i64)> {
        let (code, reply) = self.call(4, &[&bytes(path.as_bytes())[..], &[0]].concat());
        if code != 0 {
            assert_eq!(code, -101, "get {path}");
            return None;
        }
        let length = usize::try_from(number(&reply[..4])).unwrap_or_default();
        let stat = &reply[4 + length..];
        Some((reply[4..4 + length].to_vec(), i64::from_be_bytes(stat[8..16].try_into().expect("8 bytes"))))
    }

    /// Replaces the value of a node.
    pub fn set(&mut self, path: &str, value: &[u8]) {
        let fields = [bytes(path.as_bytes()), bytes(value), (-1_i32).to_be_bytes().to_vec()].concat();
        assert_eq!(self.call(5, &fields).0, 0, "set {path}");
    }

    /// Deletes a node and all that is below.
    pub fn delete(&mut self, path: &str) {
        for child in self.children(path) {
            self.delete(&format!("{path}/{child}"));
        }
        let (code, _) = self.call(2, &[bytes(path.as_bytes()), (-1_i32).to_be_bytes().to_vec()].concat());
        // It may be gone, or have a new child: the gateway runs.
        assert!([0, -101, -111].contains(&code), "delete {path}: {code}");
    }

    /// Deletes nodes without children in one transaction.
    pub fn delete_together(&mut self, paths: &[&str]) {
        let header = |kind: i32, is_last: u8| [&kind.to_be_bytes()[..], &[is_last], &(-1_i32).to_be_bytes()].concat();
        let delete = |path: &&str| [header(2, 0), bytes(path.as_bytes()), (-1_i32).to_be_bytes().to_vec()].concat();
        let mut fields: Vec<u8> = paths.iter().flat_map(delete).collect();
        fields.extend(header(-1, 1));
        assert_eq!(self.call(14, &fields).0, 0, "delete {paths:?}");
    }

    /// Returns the names of a node's children.
    pub fn children(&mut self, path: &str) -> Vec<String> {
        let (code, reply) = self.call(8, &[&bytes(path.as_bytes())[..], &[0]].concat());
        let (mut names, mut at) = (Vec::new(), 4);
        if code != 0 {
            return names;
        }
        for _ in 0..number(&reply[..4]) {
            let length = usize::try_from(number(&reply[at..at + 4])).unwrap_or_default();
            names.push(String::from_utf8_lossy(&reply[at + 4..at + 4 + length]).into_owned());
            at += 4 + length;
        }
        names
    }

    /// Sends a request. Returns the code and the rest of its reply.
    fn call(&mut self, number_of_type: i32, fields: &[u8]) -> (i32, Vec<u8>) {
        self.id += 1;
        let mut message = self.id.to_be_bytes().to_vec();
        message.extend(number_of_type.to_be_bytes());
        message.extend(fields);
        self.write(&message);
        let reply = self.read();
        (number(&reply[12..16]), reply[16..].to_vec())
    }

    fn write(&mut self, message: &[u8]) {
        self.stream.write_all(&bytes(message)).expect("it is written");
    }

    fn read(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).expect("a reply");
        let mut message = vec![0; usize::try_from(number(&length)).unwrap_or_default()];
        self.stream.read_exact(&mut message).expect("a reply");
        message
    }
}

fn bytes(value: &[u8]) -> Vec<u8> {
    let length = i32::try_from(value.len()).expect("a short value");
    [&length.to_be_bytes()[..], value].concat()
}

fn number(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes.try_into().expect("4 bytes"))
}
