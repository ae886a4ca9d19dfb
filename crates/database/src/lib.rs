//! PostgreSQL as a server, whatever is stored in it: its URL, connections to its primary, its schema. The users of the tables
//! read and write them.

pub mod address;
pub mod connect;
pub mod error;
pub mod listen;
mod primary;
pub mod schema;

pub use self::address::{Address, InvalidUrl};
pub use self::connect::connect;
pub use self::error::DatabaseError;
