//! An OpenAI-compatible server on gruff's engine.
//!
//! For each model one thread owns the engine and steps as long as there is work; requests of any number of clients
//! share its steps. [`Server::new`] takes loaded models, [`Server::serve`] answers on a listener until it is told to stop.
//!
//! Requests are typed: a field that is unknown, or that this build or model cannot honour, is refused by name.

mod access;
mod answer;
mod anthropic;
mod api_error;
mod background;
mod body;
mod chat;
mod client;
mod connection;
mod endpoint;
mod engine_counters;
mod engine_thread;
mod error;
mod form;
mod ids;
mod intake;
mod library;
mod limits;
mod logprobs;
mod metrics;
mod native;
mod neutral;
mod on_demand;
mod openai;
mod openapi;
mod options;
mod page;
mod queue;
mod reasoning_budget;
mod registry;
mod request_log;
mod same_files;
mod sampling;
mod served_model;
mod server;
mod service;
mod sse;
mod tokens;
mod untold;

pub use error::Error;
pub use library::Library;
pub use options::ServerOptions;
pub use served_model::ServedModel;
pub use server::Server;
