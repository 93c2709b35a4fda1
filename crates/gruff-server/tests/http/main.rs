//! The server through real HTTP on loopback, with the bundled model.

mod access;
mod chat;
mod client;
mod completions;
mod connections;
mod load;
mod messages;
mod models;
mod native;
mod page;
mod responses;
