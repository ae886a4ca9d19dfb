//! PostgreSQL as a server, without knowledge of the tables: its URL, connections to its primary, its schema. Other
//! crates read and write the tables.

pub mod address;
pub mod connect;
pub mod error;
pub mod listen;
mod primary;
pub mod schema;

pub use self::address::{Address, InvalidUrl};
pub use self::connect::connect;
pub use self::error::DatabaseError;
