use std::path::{Path, PathBuf};

use gruff::LoadOptions;

use super::*;
use crate::ServerOptions;

/// A library of the bundled model's file under two names, with memory for `budget` bytes of models.
fn on_demand(folder: &Path, budget: Option<u64>) -> Arc<OnDemand> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gruff/models/gruff-9m-Q4_K_M.gguf");
    let repo = folder.join("models--tiny--both");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = repo.join("snapshots").join(commit);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::write(repo.join("refs/main"), commit).unwrap();
    for name in ["one.gguf", "two.gguf"] {
        std::fs::copy(&file, snapshot.join(name)).unwrap();
    }
    let load = LoadOptions { context: Context::Tokens(256), threads: Some(1), ..LoadOptions::default() };
    let library = Arc::new(Library::new(Some(PathBuf::from(folder)), load).unwrap());
    let options = ServerOptions { max_sequences: 1, ..ServerOptions::default() };
    let shared = Shared { options: Arc::new(options), metrics: Arc::default(), responses: Arc::default() };
    Arc::new(OnDemand::new(library, shared, Vec::new(), budget))
}

fn files(on_demand: &OnDemand, name: &str) -> (SameFiles, ModelFiles) {
    let files = on_demand.library.find(&format!("tiny/both:{name}.gguf")).unwrap();
    (SameFiles::of(&files).unwrap(), files)
}

/// Puts an entry in that is being loaded, and loads it as the task does that `begin` starts.
fn load(on_demand: &OnDemand, name: &str) -> Arc<Service> {
    let (same, files) = files(on_demand, name);
    let (_, loading) = watch::channel(None);
    let (id, state) = (files.id.clone(), State::Loading(loading));
    let entry = Entry { id, files: same.clone(), names: Vec::new(), state, last_use: Instant::now() };
    on_demand.entries().push(entry);
    on_demand.load(&same, files).unwrap()
}

#[test]
fn the_next_load_sees_the_memory_of_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let on_demand = on_demand(folder.path(), None);
    let service = load(&on_demand, "one");
    // The turn is free, so another load may look.
    assert_eq!(on_demand.used(), service.memory.total());
    assert!(on_demand.used() > 0);
}

#[test]
fn nothing_is_unloaded_while_another_model_is_being_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let on_demand = on_demand(folder.path(), None);
    drop(load(&on_demand, "one"));
    let loading = on_demand.turn.lock().unwrap();
    // What leaves the entries while its memory is still held would be given out twice.
    on_demand.unload_unused(Duration::ZERO);
    assert_eq!(on_demand.entries().len(), 1);
    drop(loading);
    on_demand.unload_unused(Duration::ZERO);
    assert_eq!(on_demand.used(), 0);
    assert!(on_demand.entries().is_empty());
}

#[test]
fn what_is_in_use_is_not_unloaded() {
    let folder = tempfile::tempdir().unwrap();
    let on_demand = on_demand(folder.path(), None);
    let service = load(&on_demand, "one");
    on_demand.unload_unused(Duration::ZERO);
    assert!(!on_demand.unload_oldest());
    assert_eq!(on_demand.entries().len(), 1);
    drop(service);
    on_demand.unload_unused(Duration::from_secs(600));
    assert_eq!(on_demand.entries().len(), 1, "it was in use until now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_loads_and_unloads_keep_to_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let each = load(&on_demand(folder.path(), None), "one").memory.total();
    // One fits, two do not.
    let on_demand = on_demand(folder.path(), Some(each + each / 2));
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let on_demand = on_demand.clone();
            tokio::spawn(async move {
                for round in 0..6 {
                    let name = ["tiny/both:one.gguf", "tiny/both:two.gguf"][(task + round) % 2];
                    match on_demand.get(name).await {
                        Ok(service) => assert!(service.unwrap().engine.is_running(), "{name}"),
                        // The other one was in use.
                        Err(error) => assert_eq!(error.code, Some("not_enough_memory"), "{error:?}"),
                    }
                    assert!(on_demand.used() <= each, "{} bytes are in use", on_demand.used());
                    let idle = on_demand.clone();
                    tokio::task::spawn_blocking(move || idle.unload_unused(Duration::ZERO)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_whose_engine_has_stopped_is_loaded_anew() {
    let folder = tempfile::tempdir().unwrap();
    let on_demand = on_demand(folder.path(), None);
    let name = "tiny/both:one.gguf";
    let stopped = on_demand.get(name).await.unwrap().unwrap();
    stopped.engine.stop();
    let anew = on_demand.get(name).await.unwrap().unwrap();
    assert!(anew.engine.is_running() && !Arc::ptr_eq(&anew, &stopped));
    // Its memory counts as long as a request holds it.
    assert_eq!(on_demand.used(), 2 * anew.memory.total());
    drop(stopped);
    // Whoever loaded it may hold it a moment longer.
    let start = Instant::now();
    while on_demand.used() > anew.memory.total() {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never unloaded");
        on_demand.unload_unused(Duration::from_secs(600));
    }
    assert_eq!(on_demand.used(), anew.memory.total());
    assert!(Arc::ptr_eq(&anew, &on_demand.get(name).await.unwrap().unwrap()));
}
