use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use gruff::BUNDLED;
use gruff::floors::engine::PrefixCacheFolder;
use gruff::floors::text::chat::ChatTemplate;
use gruff_server::{Library, ServedModel, Server, ServerOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::run::Reasoning;
use crate::args::{ComputeArgs, SourceArgs, read_file};
use crate::console::{Console, LogFormat};
use crate::failure::usage;
use crate::signals;

/// Serve models to OpenAI's clients
///
/// Answers of any number of clients are generated together. Ctrl-C takes no more requests and leaves when those in
/// progress are answered; a second one leaves at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gruff serve unsloth/Qwen3.5-4B-GGUF:Q4_K_M\n  \
                  gruff serve small.gguf large.gguf --memory 12G\n  \
                  gruff serve model.gguf --host 0.0.0.0 --port 8080 --api-key-file keys.txt\n  \
                  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n    \
                  -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'")]
pub(crate) struct Serve {
    /// The models; requests that name none get the first [default: bundled, and --cached]
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// Also serve the models of the cache, each loaded when a request names it; nothing is downloaded for a request
    #[arg(long)]
    cached: bool,
    /// Seconds after which a model of the cache that nobody uses is unloaded; -1 for never
    #[arg(long, default_value = "300", value_name = "SECONDS", value_parser = parse_timeout, allow_negative_numbers = true)]
    model_timeout: ModelTimeout,
    /// Address to listen on; 0.0.0.0 for every one of this machine
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS", value_parser = parse_host)]
    host: IpAddr,
    /// Port to listen on; 0 for any free one
    #[arg(long, default_value_t = 8000, allow_negative_numbers = true)]
    port: u16,
    /// A model's id in requests and answers [default: MODEL, without the folder of a path]; may be given once for each
    /// model, in their order
    #[arg(long, value_name = "NAME")]
    alias: Vec<String>,
    /// Key of which a request must show one; may be given several times
    #[arg(long, env = "GRUFF_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with keys, one a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Answers of a model generated together; more wait
    #[arg(long, default_value = "8", value_name = "N", allow_negative_numbers = true)]
    max_sequences: NonZeroUsize,
    /// MiB of each model for what was computed for earlier requests, beside what answers in progress leave free; 0 keeps
    /// nothing [default: none; for models with recurrent state as much as keys and values take]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    prefix_cache_mb: Option<u64>,
    /// Answers that may wait; further requests are refused with status 429
    #[arg(long, default_value_t = 64, value_name = "N", allow_negative_numbers = true)]
    queue: usize,
    /// Seconds that a request may take [default: as long as it does]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    timeout: Option<NonZeroUsize>,
    /// Folder that what was computed is written to, when there is nothing else to do, every half minute while there
    /// is, and at the end, so that it survives a restart; who may read it may read the tokens of requests
    #[arg(long, value_name = "DIR")]
    prefix_cache_dir: Option<PathBuf>,
    /// MiB that all files in that folder may take
    #[arg(long, default_value = "4096", value_name = "N")]
    prefix_cache_dir_mb: u64,
    /// Origin whose pages may use the server from a browser, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Write a line for each request to standard error, as text or as JSON: its id, route, status, tokens and times
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Let the model think before it answers, where a request does not say
    #[arg(long, value_enum, default_value_t, hide_possible_values = true, value_name = "on|off|auto")]
    reasoning: Reasoning,
    /// Tokens that an answer may think with, where a request does not say; then the thinking is ended for it
    #[arg(long, value_name = "N")]
    reasoning_budget: Option<usize>,
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
    /// How requests are logged.
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        self.log_format
    }

    pub(crate) fn run(mut self, console: &Console) -> anyhow::Result<()> {
        if self.models.is_empty() {
            self.models.push(BUNDLED.to_owned());
            self.cached = true;
        }
        self.check_models()?;
        let options = self.options()?;
        let models = self.load(console)?;
        if !self.host.is_loopback() && options.api_keys.is_empty() {
            console
                .warn("everybody who reaches this address can use the server; --api-key wants a key of them");
        }
        let server = Server::new(models, options)?;
        for (id, memory) in server.memory() {
            console.detail(format_args!("memory of {id}: {memory}"));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(self.listen(&server, console))
    }

    /// Refuses arguments that are about one model where there are several.
    fn check_models(&self) -> anyhow::Result<()> {
        if self.alias.len() > self.models.len() {
            return usage(format!(
                "--alias is given {} times for {} models",
                self.alias.len(),
                self.models.len()
            ));
        }
        let about_one = [
            ("--file", self.source.file().is_some()),
            ("--revision", self.source.revision().is_some()),
            ("--chat-template", self.chat_template.is_some()),
        ];
        match about_one.into_iter().find(|(_, given)| *given && self.models.len() > 1) {
            Some((flag, _)) => usage(format!("{flag} is about one model; serve one, or leave it out")),
            None => Ok(()),
        }
    }

    /// Loads the models.
    fn load(&self, console: &Console) -> anyhow::Result<Vec<ServedModel>> {
        let template = match &self.chat_template {
            // Errors that clients see name no path of this machine.
            Some(path) => Some(ChatTemplate::named("--chat-template", &read_file(path)?)?),
            None => None,
        };
        let load = |(index, name): (usize, &String)| -> anyhow::Result<ServedModel> {
            let checkpoint = self.source.open(name, console)?;
            let mut tokenizer = self.source.tokenizer(&checkpoint, console)?;
            if let Some(template) = &template {
                tokenizer = tokenizer.with_chat_template(template.clone());
            }
            if let Err(error) = tokenizer.chat_template() {
                console.warn(format_args!("{error}; chat requests will be refused"));
            }
            let model = self.compute.load(&self.source, &checkpoint, console)?;
            let id = self.alias.get(index).cloned().unwrap_or_else(|| model_id(name));
            let served =
                ServedModel::new(id.clone(), Arc::new(model), tokenizer).read_from(checkpoint.files());
            // Also under the name of the file that was chosen, where that names no folder of this machine.
            let files = checkpoint.files();
            Ok(match files.repo.is_some() && files.id != id {
                true => served.also_called(files.id.clone()),
                false => served,
            })
        };
        self.models.iter().enumerate().map(load).collect()
    }

    async fn listen(&self, server: &Server, console: &Console) -> anyhow::Result<()> {
        let address = std::net::SocketAddr::new(self.host, self.port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("{address} cannot be listened on; is it in use? --port takes another")
        })?;
        let address = listener.local_addr()?;
        let ids: Vec<String> = server.memory().into_iter().map(|(id, _)| id).collect();
        let (ids, are) = (ids.join(", "), if ids.len() > 1 { "are" } else { "is" });
        console.note(format_args!("{ids} {are} served at http://{address}/v1. Ctrl-C ends it."));
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

    /// The models of the cache, where they are to be served.
    fn library(&self) -> anyhow::Result<Option<Arc<Library>>> {
        if !self.cached {
            return Ok(None);
        }
        let options = self.compute.options(&self.source);
        Ok(Some(Arc::new(Library::new(self.source.cache_dir.clone(), options)?)))
    }

    fn prefix_cache_folder(&self) -> Option<PrefixCacheFolder> {
        let bytes = self.prefix_cache_dir_mb.saturating_mul(1 << 20);
        self.prefix_cache_dir.clone().map(|path| PrefixCacheFolder { path, bytes })
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
            api_keys.extend(keys(&read_file(path)?));
            if api_keys.is_empty() {
                return usage(format!("{} has no keys; write one a line", path.display()));
            }
        }
        if let Some(origin) = self.cors.iter().find(|origin| !is_origin(origin)) {
            return usage(format!(
                "--cors {origin:?} is no origin: give one as https://app.example or http://localhost:3000, or *"
            ));
        }
        if api_keys.iter().any(String::is_empty) {
            return usage("an empty key keeps nobody out; give another");
        }
        Ok(ServerOptions {
            api_keys,
            memory: self.compute.memory(),
            library: self.library()?,
            model_timeout: self.model_timeout.0,
            max_sequences: self.max_sequences.get(),
            prefix_cache: self.prefix_cache_mb.map(|mib| mib.saturating_mul(1 << 20)),
            queue: self.queue,
            timeout: self.timeout.map(|seconds| Duration::from_secs(seconds.get() as u64)),
            prefix_cache_folder: self.prefix_cache_folder(),
            cors: self.cors.clone(),
            reasoning: self.reasoning.mode(),
            reasoning_budget: self.reasoning_budget,
            template_variables,
            ..ServerOptions::default()
        })
    }
}

/// The keys of a file, one a line. Some editors begin a file with a mark of its encoding and end lines in two characters;
/// neither is part of a key.
fn keys(file: &str) -> impl Iterator<Item = String> {
    let lines = file.trim_start_matches('\u{feff}').lines();
    lines.map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned)
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

/// Whether a browser could send this as the origin of a page: a scheme, a host, perhaps a port, and nothing else.
fn is_origin(text: &str) -> bool {
    let host = |rest: &str| {
        !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || ".-:[]_".contains(c))
    };
    let scheme =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    matches!(text, "*" | "null")
        || text.split_once("://").is_some_and(|(name, rest)| scheme(name) && host(rest))
}

/// How long nobody may use a model; `None` for ever.
#[derive(Clone, Copy, Debug)]
struct ModelTimeout(Option<Duration>);

fn parse_timeout(text: &str) -> Result<ModelTimeout, String> {
    match text {
        "-1" => Ok(ModelTimeout(None)),
        seconds => match seconds.parse() {
            Ok(seconds) => Ok(ModelTimeout(Some(Duration::from_secs(seconds)))),
            Err(_) => Err("give a number of seconds, or -1 for never".to_owned()),
        },
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
    fn origins_are_what_browsers_send() {
        for origin in
            ["*", "null", "https://app.example", "http://localhost:3000", "http://[::1]:80", "app://x"]
        {
            assert!(is_origin(origin), "{origin}");
        }
        for other in ["", "app.example", "https://", "https://app.example/", "https://a, https://b", "://x"] {
            assert!(!is_origin(other), "{other}");
        }
    }

    #[test]
    fn keys_are_the_lines_of_a_file_whatever_editor_wrote_it() {
        for file in ["one\ntwo", "one\r\ntwo\r\n", "\u{feff}one\r\n\r\n  two \r\n", "\u{feff}\n one\ntwo\n\n"]
        {
            assert_eq!(keys(file).collect::<Vec<_>>(), ["one", "two"], "{file:?}");
        }
        assert_eq!(keys("\u{feff}\r\n").count(), 0);
    }

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
