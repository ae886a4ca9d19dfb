//! Gateways over PostgreSQL, and the database below them. What concerns the engine alone is among its own tests.

mod database;
mod full;
mod rights;
