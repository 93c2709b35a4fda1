//! The server through real HTTP on loopback, with the bundled model.

mod access;
mod chat;
mod client;
mod completions;
mod connections;
mod embeddings;
mod load;
mod logprobs;
mod messages;
mod models;
mod native;
mod openapi;
mod page;
mod responses;
mod tools;
mod usage;
