use crate::server::Fault;
use crate::*;

type Headers = &'static [(&'static str, &'static str)];

#[test]
fn a_broken_connection_resumes_where_it_broke() {
    let bench = Bench::new();
    let model = bytes(1, 2_000_000);
    bench.hub.commit(&[("m.gguf", &model)]);
    bench.hub.fault("signature", Fault::CutAfter(700_000));
    bench.hub.fault("signature", Fault::Status(503, &[]));
    bench.hub.fault("signature", Fault::CutAfter(300_000));
    bench.hub.fault("signature", Fault::Cut);
    let files = bench.resolve("org/model:m.gguf").unwrap();
    assert!(read(&files.parts[0]) == model);
    assert_eq!(bench.hub.faults_left(), 0);
    let ranges: Vec<_> = bench.hub.take_log().into_iter().filter(|r| r.storage).map(|r| r.range).collect();
    let (first, second) = (Some(700_000), Some(1_000_000));
    assert_eq!(ranges, [None, first, first, second, second]);
    assert_eq!(bench.blobs().1, Vec::<String>::new());
}

#[test]
fn a_download_that_fails_is_kept_for_the_next_run_and_is_never_a_blob() {
    let bench = Bench::new();
    let model = bytes(1, 2_000_000);
    bench.hub.commit(&[("m.gguf", &model)]);
    bench.hub.fault("signature", Fault::CutAfter(700_000));
    for _ in 0..2 {
        bench.hub.fault("signature", Fault::Cut);
    }
    let message = bench.failure("org/model:m.gguf");
    assert!(message.contains("the download of m.gguf broke off at 700000 of 2000000 bytes"), "{message}");
    assert!(message.contains(".incomplete") && message.contains("run the same command again"), "{message}");
    assert_eq!((bench.blobs().0.len(), bench.blobs().1.len()), (0, 1));
    assert!(bench.client().cache().list().unwrap().is_empty());
    assert!(!bench.folder().join("refs/main").exists());

    bench.hub.take_log();
    let files = bench.resolve("org/model:m.gguf").unwrap();
    assert!(read(&files.parts[0]) == model);
    let ranges: Vec<_> = bench.hub.take_log().into_iter().filter(|r| r.storage).map(|r| r.range).collect();
    assert_eq!(ranges, [Some(700_000)]);
    assert!(bench.record.lines().contains(&"start m.gguf 700000/2000000".to_string()));
}

#[test]
fn a_server_without_ranges_starts_over() {
    let bench = Bench::new();
    let model = bytes(1, 1_000_000);
    bench.hub.commit(&[("m.gguf", &model)]);
    bench.hub.fault("signature", Fault::CutAfter(400_000));
    bench.hub.fault("signature", Fault::IgnoreRange);
    assert!(read(&bench.resolve("org/model:m.gguf").unwrap().parts[0]) == model);
    let told = bench.record.lines();
    assert_eq!(told.iter().filter(|line| *line == "start m.gguf 0/1000000").count(), 2, "{told:?}");

    // One that cuts each time and never honours a range is not tried for ever.
    let bench = Bench::new();
    bench.hub.commit(&[("m.gguf", &model)]);
    for _ in 0..20 {
        bench.hub.fault("signature", Fault::IgnoreRangeAndCutAfter(400_000));
    }
    assert!(bench.failure("org/model:m.gguf").contains("broke off at 400000 of 1000000 bytes"));
    assert_eq!(bench.hub.faults_left(), 20 - 3);
}

#[test]
fn a_range_that_is_not_the_one_asked_for_is_not_believed() {
    let bench = Bench::new();
    let model = bytes(1, 1_000_000);
    bench.hub.commit(&[("m.gguf", &model)]);
    bench.hub.fault("signature", Fault::CutAfter(400_000));
    bench.hub.fault("signature", Fault::WrongRange);
    assert!(read(&bench.resolve("org/model:m.gguf").unwrap().parts[0]) == model);
    assert_eq!(bench.hub.faults_left(), 0);
}

#[test]
fn damaged_bytes_are_thrown_away() {
    let bench = Bench::new();
    let model = bytes(1, 500_000);
    bench.hub.commit(&[("m.gguf", &model), ("generation_config.json", b"{}")]);
    bench.hub.fault("signature", Fault::WrongBytes);
    let message = bench.failure("org/model:m.gguf");
    assert!(message.contains("m.gguf arrived damaged: its SHA-256 should be"), "{message}");
    assert_eq!(bench.blobs(), (vec![], vec![]));
    bench.hub.fault("signature", Fault::TooMuch);
    let message = bench.failure("org/model:m.gguf");
    assert!(message.contains("its size should be 500000 and is 500001"), "{message}");
    assert_eq!(bench.blobs(), (vec![], vec![]));
    bench.hub.fault("GET /org/model/resolve", Fault::WrongBytes);
    let message = bench.failure("org/model:m.gguf");
    assert!(message.contains("its git id should be"), "{message}");
    assert_eq!(bench.blobs().0.len(), 1, "the model itself is whole");
}

#[test]
fn what_an_earlier_try_left_damaged_is_fetched_again() {
    let bench = Bench::new();
    let model = bytes(1, 500_000);
    bench.hub.commit(&[("m.gguf", &model)]);
    let etag = server::File { path: String::new(), bytes: model.clone(), large: true }.etag();
    for left in [vec![7; 1000], vec![7; 500_000], vec![7; 600_000]] {
        let bench = Bench { hub: FakeHub::start(), ..Bench::new() };
        bench.hub.commit(&[("m.gguf", &model)]);
        fs::create_dir_all(bench.folder().join("blobs")).unwrap();
        fs::write(bench.folder().join("blobs").join(format!("{etag}.incomplete")), left).unwrap();
        assert!(read(&bench.resolve("org/model:m.gguf").unwrap().parts[0]) == model);
    }
    // A blob that something cut short is not taken for whole either.
    bench.resolve("org/model:m.gguf").unwrap();
    fs::write(bench.folder().join("blobs").join(&etag), b"short").unwrap();
    assert!(read(&bench.resolve("org/model:m.gguf").unwrap().parts[0]) == model);
}

#[test]
fn content_that_changes_between_tries_starts_over() {
    let bench = Bench::new();
    let (old, new) = (bytes(1, 500_000), bytes(2, 400_000));
    bench.hub.commit(&[("m.gguf", &old)]);
    bench.hub.fault("signature", Fault::CutAfter(100_000));
    let path = std::thread::scope(|scope| {
        let path = scope.spawn(|| {
            let patient = Retry { first_wait: Duration::from_millis(300), ..Retry::default() };
            let client = bench.builder().retry(patient).build().unwrap();
            client.resolve(&ModelId::parse("org/model:m.gguf").unwrap()).unwrap().parts[0].clone()
        });
        while bench.hub.faults_left() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        bench.hub.replace("m.gguf", &new);
        path.join().unwrap()
    });
    assert!(read(&path) == new);
    let (blobs, partial) = bench.blobs();
    assert_eq!((blobs.len(), partial.len()), (1, 0));
    assert!(bench.record.lines().iter().any(|line| line.contains("has changed on the server")));
}

#[test]
fn a_silent_server_is_not_waited_for_for_ever() {
    let bench = Bench::new();
    let model = bytes(1, 1000);
    bench.hub.commit(&[("m.gguf", &model)]);
    bench.hub.fault("signature", Fault::Stall(Duration::from_secs(20)));
    let begin = std::time::Instant::now();
    assert!(read(&bench.resolve("org/model:m.gguf").unwrap().parts[0]) == model);
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn statuses_say_what_to_do() {
    let table: [(u16, Headers, &[&str]); 8] = [
        (401, &[], &["has no repository org/model, or it is private", "HF_TOKEN"]),
        (
            403,
            &[("X-Error-Code", "GatedRepo")],
            &["org/model is gated", "/org/model in a browser", "HF_TOKEN"],
        ),
        (
            403,
            &[("X-Error-Message", "no fine-grained access")],
            &["forbids access to org/model: no fine-grained access"],
        ),
        (404, &[("X-Error-Code", "RepoNotFound")], &["has no repository org/model"]),
        (
            404,
            &[("X-Error-Code", "RevisionNotFound")],
            &["org/model has no revision \"main\"", "a branch, a tag"],
        ),
        (418, &[("X-Error-Message", "tea")], &["status 418: tea"]),
        (429, &[("Retry-After", "3600")], &["fewer requests; try again in 3600 s"]),
        (500, &[("Retry-After", "3600")], &["the server failed with status 500"]),
    ];
    for (status, headers, expected) in table {
        for request in ["HEAD", "GET /api"] {
            let bench = Bench::new();
            bench.hub.commit(&[("m.gguf", b"x")]);
            bench.hub.fault(request, Fault::Status(status, headers));
            let message = bench.failure(if request == "HEAD" { "org/model:m.gguf" } else { "org/model" });
            for words in expected {
                assert!(message.contains(words), "{status} {headers:?}: {message}");
            }
            assert_eq!(bench.hub.take_log().len(), 1, "a lasting error is not asked for again");
        }
    }
}

#[test]
fn what_a_server_says_cannot_reach_the_terminal_raw() {
    let bench = Bench::new();
    bench.hub.commit(&[("m.gguf", b"x")]);
    bench.hub.fault("GET /api", Fault::Json(418, "{\"error\": \"\\u001b[31mtea\\n\"}".to_string()));
    assert!(bench.failure("org/model").ends_with("status 418:  [31mtea "));
}

#[test]
fn a_bad_token_is_told_apart_from_a_private_repository() {
    let bench = Bench::new();
    bench.hub.require_token("hf_right");
    bench.hub.commit(&[("m.gguf", b"x")]);
    assert!(bench.failure("org/model").contains("or it is private"));
    let variables = [("HF_TOKEN", "hf_wrong")];
    let client = bench.builder().environment(Environment::from_variables(variables)).build().unwrap();
    let message = client.resolve(&ModelId::parse("org/model").unwrap()).unwrap_err().to_string();
    assert!(message.contains("does not accept the token in use (from HF_TOKEN)"), "{message}");
    assert!(!message.contains("hf_wrong"), "{message}");
    let other = client.resolve(&ModelId::parse("org/other").unwrap()).unwrap_err();
    assert!(matches!(other, Error::BadToken { .. }));
    let variables = [("HF_TOKEN", "hf right")];
    let client = bench.builder().environment(Environment::from_variables(variables)).build();
    let spaced = client.map(|_| ()).unwrap_err().to_string();
    assert!(spaced.starts_with("the token from HF_TOKEN has spaces"), "{spaced}");
    assert!(!spaced.contains("hf right"), "{spaced}");
    let client = bench.builder().token("hf_right").build().unwrap();
    let other = client.resolve(&ModelId::parse("org/other").unwrap()).unwrap_err().to_string();
    assert!(other.contains("the token in use may not see it"), "{other}");
    bench.hub.set_gated();
    let gated = client.resolve(&ModelId::parse("org/model:m.gguf").unwrap()).unwrap_err().to_string();
    assert!(gated.contains("with the account that the token belongs to"), "{gated}");
}

#[test]
fn passing_trouble_passes() {
    let bench = Bench::new();
    bench.hub.commit(&[("m.gguf", b"x")]);
    for fault in [Fault::Status(500, &[]), Fault::Status(429, &[("Retry-After", "1")])] {
        bench.hub.fault("GET /api", fault.clone());
        bench.hub.fault("HEAD", fault);
    }
    let begin = std::time::Instant::now();
    bench.resolve("org/model").unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(2), "Retry-After is respected");
    assert!(bench.record.lines().iter().any(|line| line.contains("trying again in 1.0 s")));
}

#[test]
fn a_file_that_is_not_there_brings_up_similar_ones() {
    let bench = Bench::new();
    bench.hub.commit(&[("m-Q4_K_M.gguf", b"x"), ("m-Q4_K_S.gguf", b"x"), ("README.md", b"x")]);
    let message = bench.failure("org/model:m-Q4_K_X.gguf");
    let expected = "org/model has no file \"m-Q4_K_X.gguf\" at revision main; did you mean m-Q4_K_M.gguf or m-Q4_K_S.gguf?";
    assert_eq!(message, expected);
    assert!(bench.failure("org/model@v9").contains("has no revision \"v9\""));
    assert!(bench.failure("org/model@v9:m-Q4_K_M.gguf").contains("has no revision \"v9\""));
    assert!(bench.failure("nobody/nothing:m.gguf").contains("has no repository nobody/nothing"));
}

#[test]
fn nothing_a_server_says_becomes_a_path_unchecked() {
    let hostile: [(&str, Headers, &str); 5] = [
        ("HEAD", &[("X-Repo-Commit", "../../../../evil")], "which is no commit"),
        ("HEAD", &[("X-Linked-Etag", "\"../../evil\"")], "cannot name a file"),
        ("HEAD", &[("X-Linked-Etag", "\"x.incomplete\"")], "cannot name a file"),
        ("HEAD", &[("Location", "file:///etc/passwd")], "which is no web address"),
        ("HEAD", &[("X-Repo-Commit", "")], "no X-Repo-Commit"),
    ];
    for (request, headers, expected) in hostile {
        let bench = Bench::new();
        bench.hub.commit(&[("m.gguf", b"x")]);
        bench.hub.fault(request, Fault::Headers(headers));
        let message = bench.failure("org/model:m.gguf");
        assert!(message.contains(expected) && message.contains("HF_ENDPOINT"), "{message}");
        assert_eq!(fs::read_dir(bench.cache.path()).unwrap().count(), 0);
    }
    for name in ["../../evil.gguf", "/etc/evil.gguf", "a\\\\..\\\\evil.gguf", "C:evil.gguf"] {
        let bench = Bench::new();
        bench.hub.commit(&[("m.gguf", b"x")]);
        bench.hub.list_also(&name.replace("\\\\", "\\"));
        let message = bench.failure("org/model");
        assert!(message.contains("not a plain relative path; gruff refuses it"), "{message}");
    }
    for body in ["{\"sha\": \"../x\", \"siblings\": []}", "<html>", "[1]", ""] {
        let bench = Bench::new();
        bench.hub.commit(&[("m.gguf", b"x")]);
        bench.hub.fault("GET /api", Fault::Json(200, body.to_string()));
        assert!(bench.failure("org/model").contains("check that it is the address of a Hub"));
    }
    let bench = Bench::new();
    let loop_back = format!("{}/org/model/resolve/main/m.gguf", bench.hub.url);
    for _ in 0..20 {
        bench.hub.fault("HEAD", Fault::Redirect(loop_back.clone()));
    }
    assert!(bench.failure("org/model:m.gguf").contains("more than 10 redirects"));
}

#[test]
fn an_unusable_cache_is_named() {
    let bench = Bench::new();
    bench.hub.commit(&[("m.gguf", b"x")]);
    let file = bench.cache.path().join("a file");
    fs::write(&file, b"").unwrap();
    let client = bench.builder().cache_dir(file.join("cache")).build().unwrap();
    let message = client.resolve(&ModelId::parse("org/model:m.gguf").unwrap()).unwrap_err().to_string();
    assert!(message.contains("cannot create") && message.contains("a file/cache"), "{message}");
    assert!(message.contains("set HF_HOME"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_read_only_cache_serves_what_it_has() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    bench.hub.commit(&[("m.gguf", b"x"), ("n.gguf", b"y")]);
    bench.resolve("org/model:m.gguf").unwrap();
    bench.hub.commit(&[("m.gguf", b"x"), ("n.gguf", b"y")]);
    let folders = ["", "models--org--model", "models--org--model/blobs", "models--org--model/refs"];
    let mode = |bits| {
        for folder in folders.iter().map(|name| bench.cache.path().join(name)) {
            fs::set_permissions(folder, fs::Permissions::from_mode(bits)).unwrap();
        }
    };
    mode(0o555);
    let superuser = fs::write(bench.cache.path().join("probe"), b"").is_ok();
    let known = bench.builder().local_files_only(true).build().unwrap();
    known.resolve(&ModelId::parse("org/model:m.gguf").unwrap()).unwrap();
    let new = bench.resolve("org/model:n.gguf");
    mode(0o755);
    // Permissions do not stop root; everyone else is told which folder it was.
    match new {
        Ok(_) => assert!(superuser),
        Err(error) => {
            let message = error.to_string();
            assert!(
                message.contains("Permission denied") && message.contains("models--org--model"),
                "{message}"
            );
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_from_other_trouble() {
    let bench = Bench::new();
    let model = bytes(1, 100_000);
    bench.hub.commit(&[("m.gguf", &model)]);
    let etag = server::File { path: String::new(), bytes: model, large: true }.etag();
    fs::create_dir_all(bench.folder().join("blobs")).unwrap();
    let partial = bench.folder().join("blobs").join(format!("{etag}.incomplete"));
    std::os::unix::fs::symlink("/dev/full", partial).unwrap();
    let message = bench.failure("org/model:m.gguf");
    assert!(
        message.contains("the disk is full") && message.contains("100000 bytes still to come"),
        "{message}"
    );
    assert_eq!(bench.blobs().0, Vec::<String>::new());
}
