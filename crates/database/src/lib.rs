//! PostgreSQL as a server, whatever is kept in it: its URL, connections to its primary, its schema. What stands in the
//! tables is for those who use them.

pub mod address;
pub mod connect;
pub mod schema;

pub use self::address::{Address, InvalidUrl};
pub use self::connect::{DatabaseError, connect};
