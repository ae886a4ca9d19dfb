//! Locks: named leases within an app, held by one owner or shared by several.

mod name;

pub use self::name::{InvalidLockName, LockName};
