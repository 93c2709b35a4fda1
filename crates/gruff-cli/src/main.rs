//! The gruff command line.
fn main() {}
