//! An OpenAI-compatible server on gruff's engine.
//!
//! One thread owns the engine and steps as long as there is work; requests of any number of clients share its
//! steps. [`Server::new`] takes a loaded model, [`Server::serve`] answers on a listener until it is told to stop.
//!
//! Requests are typed: a field that is unknown, or that this build or model cannot honour, is refused by name.

mod access;
mod answer;
mod anthropic;
mod api_error;
mod background;
mod body;
mod chat;
mod engine_thread;
mod error;
mod ids;
mod limits;
mod metrics;
mod native;
mod openai;
mod options;
mod sampling;
mod server;
mod service;
mod sse;

pub use error::Error;
pub use options::ServerOptions;
pub use server::Server;
