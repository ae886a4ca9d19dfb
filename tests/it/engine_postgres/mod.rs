//! PostgreSQL as a store, held to its promises over real servers.

mod database;
