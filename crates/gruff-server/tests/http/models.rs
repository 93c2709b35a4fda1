use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gruff::floors::engine::EngineOptions;
use gruff::{AutoModelForCausalLM, BUNDLED, Context, LoadOptions, MemoryPlan, ModelFiles};
use gruff_server::{Library, ServedModel, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Response, Running, model, tokenizer};

const PATH: &str = "/v1/chat/completions";
const KIND: (&str, &str) = ("Content-Type", "application/json");
const ONE: &str = "tiny/one-GGUF:one-Q4_K_M.gguf";
const TWO: &str = "tiny/two-GGUF:two-Q8_0.gguf";
const BROKEN: &str = "tiny/broken-GGUF:broken.gguf";

/// Where the bundled model's file is.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gruff/models/gruff-9m-Q4_K_M.gguf")
}

/// A cache as huggingface_hub lays it out.
fn cache() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let put = |id: &str, bytes: &[u8]| {
        let (repo, name) = id.split_once(':').unwrap();
        let folder = root.path().join(format!("models--{}", repo.replace('/', "--")));
        let snapshot = folder.join("snapshots").join(commit);
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::write(folder.join("refs/main"), commit).unwrap();
        fs::write(snapshot.join(name), bytes).unwrap();
    };
    let bytes = fs::read(file()).unwrap();
    put(ONE, &bytes);
    put(TWO, &bytes);
    put(BROKEN, &bytes[..5000]);
    put("tiny/one-GGUF:mmproj-F16.gguf", b"GGUF");
    root
}

fn load_options() -> LoadOptions {
    // More than the model was trained for: cut to that.
    LoadOptions { context: Context::Tokens(1 << 20), threads: Some(1), ..LoadOptions::default() }
}

/// A server of the bundled model with a library, where `memory` has room for so many more models.
fn server(cache: &tempfile::TempDir, more: f64, model_timeout: Option<Duration>) -> Running {
    let plan = |model: &AutoModelForCausalLM, context| {
        let options = EngineOptions { context, max_sequences: 2, ..EngineOptions::default() };
        MemoryPlan::new(&**model.model(), &options).unwrap().total()
    };
    let pinned = model();
    let each = plan(&pinned, Context::Tokens(pinned.model().config().max_position_embeddings));
    let first = plan(&pinned, pinned.engine_options().context);
    let library = Library::new(Some(cache.path().to_owned()), load_options()).unwrap();
    let options = ServerOptions {
        memory: Some(first + (each as f64 * more) as u64),
        max_sequences: 2,
        library: Some(Arc::new(library)),
        model_timeout,
        ..ServerOptions::default()
    };
    Running::with(vec![ServedModel::new(BUNDLED, pinned, tokenizer())], options)
}

fn request(model: Option<&str>) -> Value {
    let mut request = json!({
        "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 8,
    });
    if let Some(model) = model {
        request["model"] = json!(model);
    }
    request
}

fn ask(server: &Running, model: Option<&str>) -> Value {
    server.post(PATH, &request(model)).ok()
}

fn status(server: &Running, id: &str) -> String {
    let listed = server.get(&format!("/v1/models/{id}")).ok();
    assert_eq!((&listed["id"], &listed["object"]), (&json!(id), &json!("model")));
    listed["status"]["value"].as_str().unwrap().to_owned()
}

fn metric(server: &Running, name: &str) -> u64 {
    let text = server.get("/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Waits until something holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come true");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn several_models_answer_to_their_names() {
    let models = vec![
        ServedModel::new("owner/first:Q4_K_M", model(), tokenizer()).also_called("owner/first:first.gguf"),
        ServedModel::new("second", model(), tokenizer()),
    ];
    let server = Running::with(models, ServerOptions::default());
    let listed = server.get("/v1/models").ok();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["owner/first:Q4_K_M", "second"]);
    for (asked, answered) in [
        (None, "owner/first:Q4_K_M"),
        (Some("owner/first:Q4_K_M"), "owner/first:Q4_K_M"),
        (Some("owner/first:first.gguf"), "owner/first:Q4_K_M"),
        (Some("second"), "second"),
    ] {
        assert_eq!(ask(&server, asked)["model"], answered);
    }
    for other in ["owner/first", "Second", "", "second ", ONE] {
        let error = server.post(PATH, &request(Some(other))).error(404);
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("model_not_found"), &json!("model")),
            "{other}"
        );
    }
    server.get("/v1/models/third").error(404);
    server.wait();
    let twice = ["a", "a"].map(|id| ServedModel::new(id, model(), tokenizer()));
    let refused = gruff_server::Server::new(twice.into(), ServerOptions::default()).err().unwrap();
    assert!(refused.to_string().contains("\"a\""), "{refused}");
    assert!(gruff_server::Server::new(Vec::new(), ServerOptions::default()).is_err());
}

#[test]
fn models_of_the_cache_are_loaded_when_they_are_named() {
    let cache = cache();
    let server = server(&cache, 1.5, None);
    let listed = server.get("/v1/models").ok();
    let all: Vec<_> =
        listed["data"].as_array().unwrap().iter().map(|m| (&m["id"], &m["status"]["value"])).collect();
    let expected = [(BUNDLED, "loaded"), (BROKEN, "unloaded"), (ONE, "unloaded"), (TWO, "unloaded")];
    assert_eq!(all, expected.map(|(id, status)| (json!(id), json!(status))).each_ref().map(|(a, b)| (a, b)));
    assert_eq!(status(&server, ONE), "unloaded");
    assert_eq!(metric(&server, "gruff_model_loads_total"), 0, "to look is not to load");

    // Whoever comes while it is loaded waits for the same load, under whatever name.
    let text = ask(&server, None)["choices"].clone();
    let names = [ONE, "tiny/one-GGUF", "tiny/one-GGUF:Q4_K_M", "tiny/one-GGUF@main:one-Q4_K_M.gguf"];
    std::thread::scope(|scope| {
        for name in names.iter().chain(&names) {
            let (server, text) = (&server, &text);
            scope.spawn(move || {
                let answer = ask(server, Some(name));
                assert_eq!((&answer["model"], &answer["choices"]), (&json!(ONE), text), "{name}");
            });
        }
    });
    assert_eq!(metric(&server, "gruff_model_loads_total"), 1);
    assert_eq!(status(&server, ONE), "loaded");

    // There is room for one of them: the other goes.
    assert_eq!(ask(&server, Some(TWO))["choices"], text);
    assert_eq!((status(&server, ONE).as_str(), status(&server, TWO).as_str()), ("unloaded", "loaded"));
    assert_eq!(metric(&server, "gruff_model_unloads_total"), 1);
    assert_eq!(metric(&server, "gruff_models_loaded"), 2);

    // But not while it is in use.
    let mut long = request(Some(TWO));
    long["stream"] = json!(true);
    long["max_tokens"] = json!(300);
    long["logit_bias"] = json!({});
    let stream = server.open("POST", PATH, &[KIND], &long.to_string());
    wait_until("an answer in progress", || metric(&server, "gruff_answers_in_progress") == 1);
    let refused = server.post(PATH, &request(Some(ONE)));
    // Unless the answer was quicker than the question.
    if metric(&server, "gruff_answers_in_progress") == 1 {
        assert_eq!(refused.error(503)["code"], "not_enough_memory");
        assert!(refused.header("retry-after").is_some());
    }
    let (_, done) = Response::read(stream).events();
    assert!(done);
    assert_eq!(ask(&server, Some(ONE))["choices"], text);

    // A file that is no model is said to be one that cannot be loaded, and nothing else is harmed.
    let error = server.post(PATH, &request(Some(BROKEN))).error(500);
    assert_eq!(error["code"], "model_not_loadable");
    assert!(!error["message"].as_str().unwrap().contains(cache.path().to_str().unwrap()), "{error}");
    assert_eq!(ask(&server, Some(ONE))["choices"], text);
    server.wait();
}

#[test]
fn nothing_but_the_cache_is_opened_for_a_request() {
    let cache = cache();
    let server = server(&cache, 1.5, None);
    let path = file();
    let inside = cache.path().join("models--tiny--one-GGUF");
    for name in [
        path.to_str().unwrap(),
        inside.to_str().unwrap(),
        "/etc/passwd",
        "../gruff/models/gruff-9m-Q4_K_M.gguf",
        "./models",
        "tiny/one-GGUF:../../../x.gguf",
        "tiny/../one-GGUF",
        "tiny/three-GGUF",
        "tiny/one-GGUF:Q8_0",
        "tiny/one-GGUF@other",
        "https://huggingface.co/tiny/one-GGUF",
        "",
        "\u{0}",
        &"a/b".repeat(10_000),
    ] {
        let error = server.post(PATH, &request(Some(name))).error(404);
        assert_eq!(error["code"], "model_not_found", "{name}");
        assert!(!error["message"].as_str().unwrap().contains('\\'), "{error}");
    }
    assert_eq!(metric(&server, "gruff_model_loads_total"), 0);
    server.wait();
}

#[test]
fn models_that_nobody_uses_are_unloaded_and_come_back() {
    let cache = cache();
    let server = server(&cache, 2.5, Some(Duration::from_millis(300)));
    ask(&server, Some(ONE));
    let mut long = request(Some(TWO));
    long["stream"] = json!(true);
    long["max_tokens"] = json!(400);
    long["temperature"] = json!(2.0);
    let stream = server.open("POST", PATH, &[KIND], &long.to_string());
    wait_until("unloading", || status(&server, ONE) == "unloaded");
    drop(stream);
    wait_until("unloading", || status(&server, TWO) == "unloaded");
    assert_eq!(metric(&server, "gruff_models_loaded"), 1, "the one that was named at the start stays");
    let text = ask(&server, None)["choices"].clone();
    assert_eq!(ask(&server, Some(ONE))["choices"], text);
    assert_eq!(metric(&server, "gruff_model_loads_total"), 3);
    server.wait();
}

#[test]
#[cfg(unix)]
fn one_file_is_loaded_once_whatever_it_is_called() {
    use std::os::unix::fs::symlink;

    // Two revisions of a repository that have the same file, as huggingface_hub keeps them.
    let cache = tempfile::tempdir().unwrap();
    let repo = cache.path().join("models--tiny--linked");
    fs::create_dir_all(repo.join("blobs")).unwrap();
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::copy(file(), repo.join("blobs/abc")).unwrap();
    for (branch, digit) in [("main", "1"), ("old", "2")] {
        let commit = digit.repeat(40);
        let snapshot = repo.join("snapshots").join(&commit);
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(repo.join("refs").join(branch), commit).unwrap();
        symlink("../../blobs/abc", snapshot.join("m.gguf")).unwrap();
    }
    let [main, old] = ["tiny/linked:m.gguf", "tiny/linked@old:m.gguf"];
    let loads = |server: &Running| metric(server, "gruff_model_loads_total");

    let on_demand = server(&cache, 3.5, None);
    for name in [old, main, "tiny/linked", &format!("tiny/linked@{}", "1".repeat(40))] {
        assert_eq!(ask(&on_demand, Some(name))["model"], old, "{name}");
        assert_eq!(loads(&on_demand), 1, "{name}");
    }
    assert_eq!((status(&on_demand, main), status(&on_demand, old)), ("loaded".into(), "loaded".into()));
    assert_eq!(metric(&on_demand, "gruff_models_loaded"), 2);
    on_demand.wait();

    // One that stays answers for the cache's file, however its own path leads there.
    let path = cache.path().join("elsewhere.gguf");
    symlink(repo.join("blobs/abc"), &path).unwrap();
    let id = path.display().to_string();
    let files = ModelFiles { id, parts: vec![path], generation_config: None, repo: None, commit: None };
    let library = Library::new(Some(cache.path().to_owned()), load_options()).unwrap();
    let options = ServerOptions { library: Some(Arc::new(library)), ..ServerOptions::default() };
    let pinned = ServedModel::new("mine", model(), tokenizer()).read_from(&files);
    let server = Running::with(vec![pinned], options);
    for name in [main, old, "tiny/linked:m.gguf"] {
        assert_eq!((&ask(&server, Some(name))["model"], loads(&server)), (&json!("mine"), 0), "{name}");
        assert_eq!(status(&server, name), "loaded");
    }
    server.wait();
}
