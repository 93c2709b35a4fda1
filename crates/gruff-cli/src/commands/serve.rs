use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use gruff::floors::text::chat::ChatTemplate;
use gruff::{AutoModelForCausalLM, BUNDLED, FromCheckpoint as _};
use gruff_server::{Server, ServerOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::run::Reasoning;
use crate::args::{ComputeArgs, SourceArgs, read_file};
use crate::console::Console;
use crate::failure::usage;
use crate::signals;

/// Serve a model to OpenAI's clients
///
/// Answers of any number of clients are generated together. Ctrl-C takes no more requests and leaves when those in
/// progress are answered; a second one leaves at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff serve unsloth/Qwen3.5-4B-GGUF:Q4_K_M\n  \
                  gruff serve model.gguf --host 0.0.0.0 --port 8080 --api-key-file keys.txt\n  \
                  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n    \
                  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'")]
pub(crate) struct Serve {
    /// The model
    #[arg(default_value = BUNDLED)]
    model: String,
    /// Address to listen on; 0.0.0.0 for every one of this machine
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", value_parser = parse_host)]
    host: IpAddr,
    /// Port to listen on; 0 for any free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The model's id in requests and answers [default: MODEL, without the folder of a path]
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,
    /// Key of which a request must show one; may be given several times
    #[arg(long, env = "GRUFF_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with keys, one a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Answers generated together; more wait
    #[arg(long, default_value = "8", value_name = "N")]
    max_sequences: NonZeroUsize,
    /// Answers that may wait; further requests are refused with status 429
    #[arg(long, default_value_t = 64, value_name = "N")]
    queue: usize,
    /// Seconds that a request may take [default: as long as it does]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<NonZeroUsize>,
    /// Origin whose pages may use the server from a browser, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Let the model think before it answers, where a request does not say
    #[arg(long, value_enum, default_value_t, hide_possible_values = true, value_name = "on|off|auto")]
    reasoning: Reasoning,
    /// Chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Variables of the chat template, as a JSON object, where a request does not set them
    #[arg(long, value_name = "JSON")]
    chat_template_kwargs: Option<String>,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    source: SourceArgs,
}

impl Serve {
    pub(crate) fn run(self, console: &Console) -> anyhow::Result<()> {
        let options = self.options()?;
        let checkpoint = self.source.open(&self.model, console)?;
        let mut tokenizer = self.source.tokenizer(&checkpoint, console)?;
        if let Some(path) = &self.chat_template {
            // Errors that clients see name no path of this machine.
            let source = read_file(path)?;
            tokenizer = tokenizer.with_chat_template(ChatTemplate::named("--chat-template", &source)?);
        }
        if let Err(error) = tokenizer.chat_template() {
            console.warn(format_args!("{error}; chat requests will be refused"));
        }
        let model = AutoModelForCausalLM::from_checkpoint(&checkpoint, &self.compute.options(&self.source))?;
        if !self.host.is_loopback() && options.api_keys.is_empty() {
            console
                .warn("everybody who reaches this address can use the server; --api-key wants a key of them");
        }
        let id = options.model_id.clone();
        let server = Server::new(Arc::new(model), tokenizer, options)?;
        console.detail(format_args!("memory: {}", server.memory()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.listen(&server, &id, console))
    }

    async fn listen(&self, server: &Server, id: &str, console: &Console) -> anyhow::Result<()> {
        let address = std::net::SocketAddr::new(self.host, self.port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("{address} cannot be listened on; is it in use? --port takes another")
        })?;
        let address = listener.local_addr()?;
        console.note(format_args!("{id} is served at http://{address}/v1. Ctrl-C ends it."));
        signals::hand_over();
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let console = *console;
        let stop = async move {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
            console.note("Answers in progress are finished; Ctrl-C leaves at once.");
            tokio::spawn(async move {
                tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                std::process::exit(130);
            });
        };
        Ok(server.serve(listener, stop).await?)
    }

    fn options(&self) -> anyhow::Result<ServerOptions> {
        let template_variables = match &self.chat_template_kwargs {
            None => serde_json::Map::new(),
            Some(json) => match serde_json::from_str(json) {
                Ok(variables) => variables,
                Err(error) => return usage(format!("--chat-template-kwargs wants a JSON object: {error}")),
            },
        };
        let mut api_keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let keys = read_file(path)?;
            api_keys.extend(keys.lines().map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned));
            if api_keys.is_empty() {
                bail!("{} has no keys; write one a line", path.display());
            }
        }
        if api_keys.iter().any(String::is_empty) {
            return usage("an empty key keeps nobody out; give another");
        }
        Ok(ServerOptions {
            model_id: self.alias.clone().unwrap_or_else(|| model_id(&self.model)),
            api_keys,
            max_sequences: self.max_sequences.get(),
            queue: self.queue,
            timeout: self.timeout.map(|seconds| Duration::from_secs(seconds.get() as u64)),
            cors: self.cors.clone(),
            reasoning: self.reasoning.mode(),
            template_variables,
        })
    }
}

/// What a model is called in requests: its id on the Hub, or a path's last part, so that no folder of this machine is
/// told.
fn model_id(model: &str) -> String {
    match gruff::ModelId::parse(model) {
        Ok(gruff::ModelId::Local { path, .. }) if model != BUNDLED => {
            path.file_name().map_or_else(|| model.to_owned(), |name| name.to_string_lossy().into_owned())
        }
        _ => model.to_owned(),
    }
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        address => address.parse().map_err(|_| "give an IP address, or localhost".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_tell_nothing_of_folders() {
        for (model, id) in [
            ("bundled", "bundled"),
            ("owner/repo:file.gguf", "owner/repo:file.gguf"),
            ("./folder/model.gguf", "model.gguf"),
            ("/home/somebody/models/model.gguf", "model.gguf"),
        ] {
            assert_eq!(model_id(model), id);
        }
    }
}
