//! A Hub on the loopback interface, with a storage host of its own and faults on demand.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// What goes wrong, once, with a request whose method and target contain certain words.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Answer with this status, these extra headers and no body.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// Send so many bytes of the body, then cut the connection.
    CutAfter(usize),
    /// Cut the connection instead of answering.
    Cut,
    /// Send all of the file whatever range was asked for.
    IgnoreRange,
    /// The same, and cut the connection after so many bytes.
    IgnoreRangeAndCutAfter(usize),
    /// Answer a range request with other bytes than those asked for.
    WrongRange,
    /// Send bytes of the right length and the wrong content.
    WrongBytes,
    /// Send headers, then nothing for a while.
    Stall(Duration),
    /// Send more bytes than the file has, without telling a length.
    TooMuch,
    /// Redirect there.
    Redirect(String),
    /// Replace these headers of the answer.
    Headers(&'static [(&'static str, &'static str)]),
    /// Send this status and this text as a JSON body.
    Json(u16, String),
}

#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
    /// Large files live on the storage host and are named by their SHA-256.
    pub(crate) large: bool,
}

impl File {
    pub(crate) fn etag(&self) -> String {
        if self.large { hex(&Sha256::digest(&self.bytes)) } else { git_id(&self.bytes) }
    }
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) storage: bool,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) token: Option<String>,
    pub(crate) range: Option<u64>,
    /// The last byte of the range, where one is named.
    pub(crate) until: Option<u64>,
    pub(crate) user_agent: String,
}

#[derive(Default)]
struct State {
    /// Commits of the one repository, newest last, with their files.
    commits: Vec<(String, Vec<File>)>,
    /// Names that the listing shows beyond the files.
    listed: Vec<String>,
    faults: VecDeque<(String, Fault)>,
    log: Vec<Request>,
    token: Option<String>,
    gated: bool,
}

/// The server. It has one repository, `org/model`, whose `main` is its newest commit.
pub(crate) struct FakeHub {
    state: Arc<Mutex<State>>,
    pub(crate) url: String,
}

impl FakeHub {
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let (hub, storage) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let (url, storage_url) = (address(&hub), address(&storage));
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let (state, storage_url) = (state.clone(), storage_url.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let (state, storage_url) = (state.clone(), storage_url.clone());
                    std::thread::spawn(move || serve(&stream.unwrap(), is_storage, &state, &storage_url));
                }
            });
        }
        FakeHub { state, url }
    }

    /// Makes a commit with these files the newest one. The names of large files end in `.gguf`.
    pub(crate) fn commit(&self, files: &[(&str, &[u8])]) -> String {
        let files: Vec<File> = files
            .iter()
            .map(|(path, bytes)| File {
                path: path.to_string(),
                bytes: bytes.to_vec(),
                large: path.ends_with("gguf"),
            })
            .collect();
        let mut state = self.state.lock().unwrap();
        let id = git_id(format!("{} {files:?}", state.commits.len()).as_bytes());
        state.commits.push((id.clone(), files));
        id
    }

    /// Makes the listing show a name that no file has.
    pub(crate) fn list_also(&self, name: &str) {
        self.state.lock().unwrap().listed.push(name.to_string());
    }

    /// Changes the content of a file without a new commit, as no honest Hub would.
    pub(crate) fn replace(&self, path: &str, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        let (_, files) = state.commits.last_mut().unwrap();
        files.iter_mut().find(|file| file.path == path).unwrap().bytes = bytes.to_vec();
    }

    pub(crate) fn require_token(&self, token: &str) {
        self.state.lock().unwrap().token = Some(token.to_string());
    }

    pub(crate) fn set_gated(&self) {
        self.state.lock().unwrap().gated = true;
    }

    /// Queues a fault for the next request whose `METHOD target` contains `which`.
    pub(crate) fn fault(&self, which: &str, fault: Fault) {
        self.state.lock().unwrap().faults.push_back((which.to_string(), fault));
    }

    /// How many queued faults have not happened.
    pub(crate) fn faults_left(&self) -> usize {
        self.state.lock().unwrap().faults.len()
    }

    /// The requests so far; forgets them.
    pub(crate) fn take_log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }
}

/// What is sent back.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn status(status: u16, headers: &[(&str, &str)]) -> Self {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Answer { status, headers, body: Vec::new() }
    }

    fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.retain(|(old, _)| !old.eq_ignore_ascii_case(name));
        self.headers.push((name.to_string(), value.to_string()));
        self
    }
}

fn serve(stream: &TcpStream, storage: bool, state: &Mutex<State>, storage_url: &str) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader, storage) {
        let fault = {
            let mut state = state.lock().unwrap();
            state.log.push(request.clone());
            let line = format!("{} {}", request.method, request.target);
            let at = state.faults.iter().position(|(which, _)| line.contains(which.as_str()));
            at.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault)
        };
        let ignore = matches!(fault, Some(Fault::IgnoreRange | Fault::IgnoreRangeAndCutAfter(_)));
        let range = request.range.filter(|_| !ignore);
        let mut answer = if storage {
            stored(&state.lock().unwrap(), &request, range)
        } else {
            hub(&state.lock().unwrap(), &request, range, storage_url)
        };
        let (mut sent, mut length, mut stall) = (usize::MAX, true, None);
        match fault {
            Some(Fault::Status(status, headers)) => answer = Answer::status(status, headers),
            Some(Fault::CutAfter(bytes) | Fault::IgnoreRangeAndCutAfter(bytes)) => sent = bytes,
            Some(Fault::Cut) => return,
            Some(Fault::WrongRange) => answer = answer.header("Content-Range", "bytes 1-2/3"),
            Some(Fault::WrongBytes) => answer.body.iter_mut().for_each(|byte| *byte ^= 1),
            Some(Fault::Stall(time)) => stall = Some(time),
            Some(Fault::TooMuch) => {
                answer.body.extend([0; 100_000]);
                length = false;
            }
            Some(Fault::Redirect(to)) => answer = Answer::status(302, &[("Location", &to)]),
            Some(Fault::Headers(headers)) => {
                for (name, value) in headers {
                    answer = answer.header(name, value);
                }
            }
            Some(Fault::Json(status, text)) => {
                answer = Answer { body: text.into_bytes(), ..Answer::status(status, &[]) };
            }
            Some(Fault::IgnoreRange) | None => {}
        }
        let head = request.method == "HEAD";
        let mut text = format!("HTTP/1.1 {} X\r\n", answer.status);
        if length && !answer.headers.iter().any(|(name, _)| name == "Content-Length") {
            text.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
        }
        for (name, value) in &answer.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(if length { "\r\n" } else { "Connection: close\r\n\r\n" });
        let mut stream = stream;
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
        if let Some(time) = stall {
            std::thread::sleep(time);
            return;
        }
        if !head && stream.write_all(&answer.body[..sent.min(answer.body.len())]).is_err() {
            return;
        }
        if sent < usize::MAX || !length {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead, storage: bool) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_string(), words.next()?.to_string());
    let mut request =
        Request { storage, method, target, token: None, range: None, until: None, user_agent: String::new() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { return Some(request) };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.token = value.strip_prefix("Bearer ").map(str::to_string),
            "range" => {
                let (from, until) = value.strip_prefix("bytes=")?.split_once('-')?;
                (request.range, request.until) = (from.parse().ok(), until.parse().ok());
            }
            "user-agent" => request.user_agent = value.to_string(),
            _ => {}
        }
    }
}

/// The Hub proper: the API, small files, and the way to large ones.
fn hub(state: &State, request: &Request, range: Option<u64>, storage_url: &str) -> Answer {
    let error = |status, code: &str| Answer::status(status, &[("X-Error-Code", code)]);
    if state.token.is_some() && state.token != request.token {
        return match &request.token {
            Some(_) => {
                Answer::status(401, &[("X-Error-Message", "Invalid credentials in Authorization header")])
            }
            None => error(401, "RepoNotFound"),
        };
    }
    let target = request.target.split('?').next().unwrap();
    let (api, rest) = match target.strip_prefix("/api/models/org/model/revision/") {
        Some(revision) => (true, revision.to_string()),
        None => match target.strip_prefix("/org/model/resolve/") {
            Some(rest) => (false, rest.to_string()),
            None => return error(404, "RepoNotFound"),
        },
    };
    let (revision, path) = rest.split_once('/').unwrap_or((&rest, ""));
    let found = match revision {
        "main" | "refs%2Fpr%2F1" => state.commits.last(),
        id => state.commits.iter().find(|(commit, _)| commit == id),
    };
    let Some((commit, files)) = found else { return error(404, "RevisionNotFound") };
    if state.gated && !api {
        return error(403, "GatedRepo").header("X-Error-Message", "Access to model org/model is restricted");
    }
    if api {
        let names = files.iter().map(|f| (f.path.clone(), f.bytes.len()));
        let siblings: Vec<String> = names
            .chain(state.listed.iter().map(|name| (name.clone(), 1)))
            .map(|(path, size)| format!("{{\"rfilename\": {path:?}, \"size\": {size}}}"))
            .collect();
        let body = format!(
            "{{\"id\": \"org/model\", \"sha\": {commit:?}, \"siblings\": [{}]}}",
            siblings.join(", ")
        );
        return Answer {
            body: body.into_bytes(),
            ..Answer::status(200, &[("Content-Type", "application/json")])
        };
    }
    let path = path.replace("%20", " ");
    let Some(file) = files.iter().find(|file| file.path == path) else {
        return error(404, "EntryNotFound").header("X-Repo-Commit", commit);
    };
    let quoted = format!("\"{}\"", file.etag());
    if !file.large {
        return content(&file.bytes, range, request.until)
            .header("X-Repo-Commit", commit)
            .header("ETag", quoted);
    }
    Answer::status(302, &[("ETag", "\"of-the-redirect\"")])
        .header("X-Repo-Commit", commit)
        .header("X-Linked-Etag", quoted)
        .header("X-Linked-Size", file.bytes.len())
        .header("Location", format!("{storage_url}/{}?signature=secret", file.etag()))
}

/// The storage host: content by its checksum.
fn stored(state: &State, request: &Request, range: Option<u64>) -> Answer {
    let wanted = request.target.trim_start_matches('/').split('?').next().unwrap();
    let found = state.commits.iter().flat_map(|(_, files)| files).find(|file| file.etag() == wanted);
    found.map_or(Answer::status(404, &[]), |file| {
        content(&file.bytes, range, request.until).header("ETag", "\"of-the-storage\"")
    })
}

fn content(bytes: &[u8], range: Option<u64>, until: Option<u64>) -> Answer {
    let total = bytes.len();
    let end = until.map_or(total, |until| total.min(until as usize + 1));
    match range.map(|from| from as usize) {
        None => Answer { body: bytes.to_vec(), ..Answer::status(200, &[]) },
        Some(from) if from >= total => {
            Answer::status(416, &[]).header("Content-Range", format!("bytes */{total}"))
        }
        Some(from) => Answer { body: bytes[from..end].to_vec(), ..Answer::status(206, &[]) }
            .header("Content-Range", format!("bytes {from}-{}/{total}", end - 1)),
    }
}

fn git_id(bytes: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
