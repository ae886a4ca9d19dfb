//! Migrations are built into the program; a new file there is a new program.

fn main() {
    println!("cargo::rerun-if-changed=migrations");
}
