use crate::*;

#[test]
fn a_file_lands_where_huggingface_hub_would_put_it() {
    let bench = Bench::new();
    let model = bytes(1, 1_000_000);
    let commit = bench.hub.commit(&[("sub dir/m-Q4_K_M.gguf", &model), ("generation_config.json", b"{}")]);
    let files = bench.resolve("org/model:sub dir/m-Q4_K_M.gguf").unwrap();

    let snapshot = bench.folder().join("snapshots").join(&commit);
    assert_eq!(files.parts, [snapshot.join("sub dir/m-Q4_K_M.gguf")]);
    assert_eq!(files.generation_config, Some(snapshot.join("generation_config.json")));
    assert_eq!(files.id, "org/model:sub dir/m-Q4_K_M.gguf");
    assert_eq!((files.repo.unwrap().as_str(), files.commit), ("org/model", Some(commit.clone())));
    assert_eq!(read(&snapshot.join("sub dir/m-Q4_K_M.gguf")), model);
    assert_eq!(read(&bench.folder().join("refs/main")), commit.as_bytes());
    let (blobs, partial) = bench.blobs();
    assert_eq!((blobs.len(), partial.len()), (2, 0));
    let link = |name: &str| fs::read_link(snapshot.join(name)).unwrap();
    assert!(link("sub dir/m-Q4_K_M.gguf").starts_with("../../../blobs"));
    assert!(link("generation_config.json").starts_with("../../blobs"));
    assert!(
        read(&bench.cache.path().join("CACHEDIR.TAG"))
            .starts_with(b"Signature: 8a477f597d28d172789f06886806bc55")
    );
    assert!(bench.cache.path().join(".locks/models--org--model").is_dir());
    let told = bench.record.lines();
    assert_eq!(told[..3], ["start sub dir/m-Q4_K_M.gguf 0/1000000", "+1000000", "finish"]);
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let bench = Bench::new();
    let commit = bench.hub.commit(&[("m-Q4_K_M.gguf", &bytes(1, 1000)), ("m-Q8_0.gguf", &bytes(2, 1000))]);
    let first = bench.resolve("org/model").unwrap();
    assert!(first.parts[0].ends_with("m-Q4_K_M.gguf"));
    bench.hub.take_log();

    assert_eq!(bench.resolve("org/model").unwrap(), first);
    let log = bench.hub.take_log();
    assert_eq!(log.len(), 1, "only the listing: {log:?}");
    assert!(log[0].user_agent.starts_with("gruff/"));
    assert_eq!(bench.resolve("org/model:m-Q4_K_M.gguf").unwrap(), first);
    assert_eq!(bench.hub.take_log().len(), 1, "only where main is now");
    let pinned = bench.resolve(&format!("org/model@{commit}:m-Q4_K_M.gguf")).unwrap();
    assert_eq!(pinned.parts, first.parts);
    assert_eq!(bench.hub.take_log().len(), 0, "a commit never changes");
}

#[test]
fn a_new_commit_shares_the_blobs_of_the_old_one() {
    let bench = Bench::new();
    let (a, b) = (bytes(1, 1000), bytes(2, 1000));
    let first = bench.hub.commit(&[("m.gguf", &a), ("n.gguf", &a)]);
    bench.resolve("org/model:m.gguf").unwrap();
    bench.resolve("org/model:n.gguf").unwrap();
    let second = bench.hub.commit(&[("m.gguf", &a), ("n.gguf", &b)]);
    bench.hub.take_log();
    bench.resolve("org/model:m.gguf").unwrap();
    assert!(bench.hub.take_log().iter().all(|request| !request.storage));
    bench.resolve("org/model:n.gguf").unwrap();
    assert_eq!(read(&bench.folder().join("refs/main")), second.as_bytes());
    assert_eq!(bench.blobs().0.len(), 2);

    let listed = bench.client().cache().list().unwrap();
    let mut ids: Vec<String> = listed.iter().map(gruff_hub::CachedFile::id).collect();
    ids.sort();
    let old = |name: &str| format!("org/model@{first}:{name}");
    assert_eq!(
        ids,
        ["org/model:m.gguf".to_string(), "org/model:n.gguf".into(), old("m.gguf"), old("n.gguf")]
    );
    let shared = listed.iter().filter(|file| file.blob == listed[0].blob).count();
    assert_eq!(shared, 3);
    assert!(listed.iter().all(|file| file.size == 1000));
    for file in &listed {
        assert_eq!(bench.resolve(&file.id()).unwrap().parts[0], file.path);
    }
}

#[test]
fn quantizations_and_split_models() {
    let bench = Bench::new();
    let parts = [bytes(1, 300), bytes(2, 200)];
    bench.hub.commit(&[
        ("BF16/m-BF16-00001-of-00002.gguf", &parts[0]),
        ("BF16/m-BF16-00002-of-00002.gguf", &parts[1]),
        ("m-Q8_0.gguf", b"q8"),
        ("mmproj-BF16.gguf", b"eyes"),
        ("README.md", b"hello"),
    ]);
    for id in ["org/model:bf16", "org/model:BF16/m-BF16-00002-of-00002.gguf", "org/model@main:BF16"] {
        let files = bench.resolve(id).unwrap();
        assert_eq!(files.parts.iter().map(|path| read(path)).collect::<Vec<_>>(), parts);
        assert_eq!(files.id, "org/model:BF16/m-BF16-00001-of-00002.gguf");
    }
    let by_name = ModelId::parse("org/model").unwrap().with_file("m-Q8_0.gguf").unwrap();
    assert_eq!(read(bench.client().resolve(&by_name).unwrap().path()), b"q8");
    let request = bench.resolve("org/model@refs/pr/1:q8_0").unwrap();
    assert_eq!(request.id, "org/model@refs/pr/1:m-Q8_0.gguf");
    assert!(bench.folder().join("refs/refs/pr/1").is_file());

    let message = bench.failure("org/model");
    assert!(message.contains("org/model:BF16 (0.00 GB), org/model:Q8_0"), "{message}");
    let message = bench.failure("org/model:Q4_K_M");
    assert!(message.contains("org/model has no Q4_K_M file; it has org/model:BF16"), "{message}");
}

#[test]
fn the_token_stays_at_home() {
    let bench = Bench::new();
    bench.hub.require_token("hf_secret");
    bench.hub.commit(&[("m.gguf", &bytes(1, 5000)), ("generation_config.json", b"{}")]);
    let client = bench.builder().token(" hf_secret\n").build().unwrap();
    client.resolve(&ModelId::parse("org/model").unwrap()).unwrap();
    let log = bench.hub.take_log();
    assert!(log.iter().any(|request| request.storage));
    for request in log {
        let expected = if request.storage { None } else { Some("hf_secret") };
        assert_eq!(request.token.as_deref(), expected, "{} {}", request.method, request.target);
    }
}

#[test]
fn a_repository_that_was_renamed_is_followed() {
    let bench = Bench::new();
    let model = bytes(1, 5000);
    bench.hub.commit(&[("m.gguf", &model)]);
    bench.hub.fault(
        "GET /api/models/org/old",
        server::Fault::Redirect("/api/models/org/model/revision/main".into()),
    );
    bench.hub.fault("HEAD /org/old", server::Fault::Redirect("/org/model/resolve/main/m.gguf".into()));
    let client = bench.builder().token("hf_secret").companions(false).build().unwrap();
    let files = client.resolve(&ModelId::parse("org/old").unwrap()).unwrap();
    assert!(read(files.path()) == model);
    for request in bench.hub.take_log() {
        assert_eq!(request.token.is_some(), !request.storage, "{} {}", request.method, request.target);
    }
}

#[test]
fn a_mirror_may_redirect_to_another_hub_without_the_token() {
    let bench = Bench::new();
    let mirror = FakeHub::start();
    mirror.commit(&[]);
    let commit = bench.hub.commit(&[("m.gguf", &bytes(1, 5000))]);
    let target = format!("{}/org/model/resolve/main/m.gguf", bench.hub.url);
    mirror.fault("HEAD", server::Fault::Redirect(target));
    let client = bench.builder().endpoint(&mirror.url).token("hf_secret").companions(false).build().unwrap();
    let files = client.resolve(&ModelId::parse("org/model:m.gguf").unwrap()).unwrap();
    assert_eq!(files.commit, Some(commit));
    assert_eq!(mirror.take_log()[0].token.as_deref(), Some("hf_secret"));
    assert!(bench.hub.take_log().iter().all(|request| request.token.is_none()));
}

#[test]
fn two_processes_at_one_file_download_it_once() {
    let bench = Bench::new();
    let model = bytes(1, 3_000_000);
    bench.hub.commit(&[("m.gguf", &model)]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let path = bench.resolve("org/model:m.gguf").unwrap().parts[0].clone();
                assert!(read(&path) == model);
            });
        }
    });
    assert_eq!(bench.hub.take_log().iter().filter(|request| request.storage).count(), 1);
    assert_eq!(bench.blobs(), (vec![bench.blobs().0[0].clone()], vec![]));
}

#[test]
fn the_absence_of_defaults_is_remembered() {
    let bench = Bench::new();
    bench.hub.commit(&[("m.gguf", b"x")]);
    let asked = |bench: &Bench| {
        bench.resolve("org/model").unwrap();
        bench.hub.take_log().iter().filter(|request| request.target.contains("generation_config")).count()
    };
    assert_eq!((asked(&bench), asked(&bench)), (1, 0));
}
