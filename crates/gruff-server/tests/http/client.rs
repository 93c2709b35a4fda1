//! A server with the bundled model on a free port, and a client that sends exactly what it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use gruff::{AutoModelForCausalLM, AutoTokenizer, BUNDLED, Context};
use gruff_server::{ServedModel, Server, ServerOptions};
use serde_json::Value;
use tokio::sync::oneshot;

/// A running server.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A response, read to its end.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

pub(crate) fn model() -> Arc<AutoModelForCausalLM> {
    static MODEL: OnceLock<Arc<AutoModelForCausalLM>> = OnceLock::new();
    let load = || {
        let from = AutoModelForCausalLM::from_pretrained(BUNDLED);
        Arc::new(from.context(Context::Tokens(1024)).threads(1).load().unwrap())
    };
    MODEL.get_or_init(load).clone()
}

pub(crate) fn tokenizer() -> AutoTokenizer {
    AutoTokenizer::from_pretrained(BUNDLED).load().unwrap()
}

impl Running {
    pub(crate) fn start(options: ServerOptions) -> Self {
        Self::with(vec![ServedModel::new(BUNDLED, model(), tokenizer())], options)
    }

    pub(crate) fn with(models: Vec<ServedModel>, options: ServerOptions) -> Self {
        let server = Server::new(models, options).unwrap();
        let (stop, stopped) = oneshot::channel();
        let (sender, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                server.serve(listener, async { drop(stopped.await) }).await.unwrap();
            });
        });
        Self { address: address.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    /// The server that most tests share.
    pub(crate) fn shared() -> &'static Running {
        static SHARED: OnceLock<Running> = OnceLock::new();
        SHARED.get_or_init(|| Running::start(ServerOptions::default()))
    }

    /// Tells it to stop, without waiting for that.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Waits until it has stopped.
    pub(crate) fn wait(mut self) {
        self.stop();
        self.thread.take().unwrap().join().unwrap();
    }

    /// Opens a connection and sends a request.
    pub(crate) fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request += "Host: localhost\r\n";
        }
        if !body.is_empty() {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
        stream
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        Response::read(self.open(method, path, headers, body))
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }
}

impl Response {
    pub(crate) fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut response = Self { status, headers, body: String::new() };
        let mut bytes = Vec::new();
        match response.header("transfer-encoding") {
            Some("chunked") => loop {
                let mut size = String::new();
                reader.read_line(&mut size).unwrap();
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk).unwrap();
                bytes.extend_from_slice(&chunk[..size]);
                if size == 0 {
                    break;
                }
            },
            _ => drop(reader.read_to_end(&mut bytes).unwrap()),
        }
        response.body = String::from_utf8(bytes).unwrap();
        response
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body of a success.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    /// The error's object, of a response with that status.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        let body: Value = serde_json::from_str(&self.body).unwrap();
        assert!(body["error"]["message"].is_string(), "{body}");
        body["error"].clone()
    }

    /// The objects of a stream of events, and whether `[DONE]` ended it.
    pub(crate) fn events(&self) -> (Vec<Value>, bool) {
        assert_eq!(self.status, 200, "{}", self.body);
        assert!(self.header("content-type").unwrap().starts_with("text/event-stream"));
        let data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let done = data.last() == Some(&"[DONE]");
        let events =
            data.iter().filter(|data| **data != "[DONE]").map(|data| serde_json::from_str(data).unwrap());
        (events.collect(), done)
    }
}
