//! The client against a Hub on the loopback interface: what arrives, what is asked, and what every failure says.

mod failures;
mod offline;
mod parts;
mod server;
mod success;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gruff_hub::{Environment, Error, Hub, HubBuilder, ModelFiles, ModelId, Progress, Retry};
use tempfile::TempDir;

use server::FakeHub;

/// Enough bytes for several reads.
fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// What a client was told while it worked.
#[derive(Default)]
struct Record(Mutex<Vec<String>>);

impl Record {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Progress for Record {
    fn start(&self, name: &str, total: Option<u64>, done: u64) {
        self.0.lock().unwrap().push(format!("start {name} {done}/{}", total.unwrap_or_default()));
    }

    fn advance(&self, bytes: u64) {
        let mut lines = self.0.lock().unwrap();
        match lines.last().and_then(|line| line.strip_prefix("+")).and_then(|n| n.parse::<u64>().ok()) {
            Some(sum) => *lines.last_mut().unwrap() = format!("+{}", sum + bytes),
            None => lines.push(format!("+{bytes}")),
        }
    }

    fn finish(&self) {
        self.0.lock().unwrap().push("finish".to_string());
    }

    fn notice(&self, message: &str) {
        self.0.lock().unwrap().push(format!("! {message}"));
    }
}

/// A Hub, an empty cache and a record of progress.
struct Bench {
    hub: FakeHub,
    cache: TempDir,
    record: Arc<Record>,
}

impl Bench {
    fn new() -> Self {
        Bench { hub: FakeHub::start(), cache: tempfile::tempdir().unwrap(), record: Arc::default() }
    }

    /// A client that does not wait long and knows nothing of the machine's own environment.
    fn builder(&self) -> HubBuilder {
        Hub::builder()
            .environment(Environment::from_variables([
                ("HF_HUB_DOWNLOAD_TIMEOUT", "1"),
                ("HF_HUB_ETAG_TIMEOUT", "1"),
            ]))
            .endpoint(&self.hub.url)
            .cache_dir(self.cache.path())
            .retry(Retry {
                attempts: 3,
                first_wait: Duration::from_millis(1),
                longest_wait: Duration::from_secs(5),
            })
            .progress(self.record.clone())
    }

    fn client(&self) -> Hub {
        self.builder().build().unwrap()
    }

    fn resolve(&self, id: &str) -> Result<ModelFiles, Error> {
        self.client().resolve(&ModelId::parse(id).unwrap())
    }

    /// The message for a person.
    fn failure(&self, id: &str) -> String {
        self.resolve(id).expect_err(id).to_string()
    }

    fn folder(&self) -> std::path::PathBuf {
        self.cache.path().join("models--org--model")
    }

    /// Names in `blobs`: finished ones, and those still on their way.
    fn blobs(&self) -> (Vec<String>, Vec<String>) {
        let Ok(entries) = fs::read_dir(self.folder().join("blobs")) else { return Default::default() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.partition(|name| !name.contains("incomplete"))
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
