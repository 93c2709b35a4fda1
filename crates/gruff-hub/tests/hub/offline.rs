use crate::*;

fn offline(bench: &Bench) -> Hub {
    let variables = [("HF_HUB_OFFLINE", "1")];
    bench.builder().environment(Environment::from_variables(variables)).build().unwrap()
}

fn message(hub: &Hub, id: &str) -> String {
    hub.resolve(&ModelId::parse(id).unwrap()).expect_err(id).to_string()
}

#[test]
fn the_cache_alone_answers() {
    let bench = Bench::new();
    let split = ["s-Q8_0-00001-of-00002.gguf", "s-Q8_0-00002-of-00002.gguf"];
    let commit = bench.hub.commit(&[
        ("m-Q4_K_M.gguf", b"model"),
        ("generation_config.json", b"{}"),
        (split[0], b"one"),
        (split[1], b"two"),
    ]);
    let online = bench.resolve("org/model").unwrap();
    bench.resolve("org/model:Q8_0").unwrap();
    bench.hub.take_log();
    let hub = offline(&bench);
    for id in ["org/model", "org/model:q4_k_m", "org/model:m-Q4_K_M.gguf", "org/model@main:Q4_K_M"] {
        assert_eq!(hub.resolve(&ModelId::parse(id).unwrap()).unwrap(), online, "{id}");
    }
    let pinned = hub.resolve(&ModelId::parse(&format!("org/model@{commit}:Q8_0")).unwrap()).unwrap();
    assert_eq!(pinned.parts.len(), 2);
    assert_eq!(bench.hub.take_log().len(), 0, "nobody was called");

    fs::remove_file(&pinned.parts[1]).unwrap();
    let text = message(&hub, "org/model:Q8_0");
    assert!(text.contains(&format!("org/model:{} is not in the cache", split[1])), "{text}");
}

#[test]
fn what_is_missing_is_told_with_what_is_there() {
    let bench = Bench::new();
    bench.hub.commit(&[("m-Q4_K_M.gguf", b"model"), ("m-Q8_0.gguf", b"other")]);
    bench.resolve("org/model:Q4_K_M").unwrap();
    let hub = offline(&bench);
    for id in ["org/model:Q8_0", "org/model:m-Q8_0.gguf", "org/model@v2:Q4_K_M"] {
        let text = message(&hub, id);
        assert!(text.starts_with(&format!("{id} is not in the cache")), "{text}");
        assert!(text.contains("(HF_HUB_OFFLINE is set); the cache has org/model:m-Q4_K_M.gguf"), "{text}");
    }
    let text = message(&hub, "org/other");
    assert!(text.contains("org/other is not in the cache") && !text.contains("the cache has"), "{text}");
    let local = bench.builder().local_files_only(true).build().unwrap();
    assert!(message(&local, "org/other").contains("gruff is offline (local files only)"));
}

#[test]
fn a_hub_that_cannot_be_reached_is_not_missed_when_the_cache_has_the_model() {
    let bench = Bench::new();
    bench.hub.commit(&[("m-Q4_K_M.gguf", b"model")]);
    let online = bench.resolve("org/model").unwrap();
    // A port that was free a moment ago: connections are refused.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = bench.builder().endpoint(format!("http://{nowhere}")).build().unwrap();
    for id in ["org/model", "org/model:Q4_K_M", "org/model:m-Q4_K_M.gguf"] {
        assert_eq!(hub.resolve(&ModelId::parse(id).unwrap()).unwrap(), online);
        let told = bench.record.lines();
        assert!(told.last().unwrap().contains("using the copy in the cache"));
        assert!(!told.iter().any(|line| line.contains("trying again")), "no waiting with a copy at hand");
    }
    for id in ["org/model:Q8_0", "org/model:m-Q8_0.gguf"] {
        let text = message(&hub, id);
        assert!(
            text.contains(&format!("cannot reach {nowhere}")) && text.contains("HF_HUB_OFFLINE"),
            "{text}"
        );
    }
}

#[test]
fn an_empty_cache_lists_nothing() {
    let bench = Bench::new();
    assert_eq!(bench.client().cache().list().unwrap(), []);
    let nowhere = bench.builder().cache_dir(bench.cache.path().join("none")).build().unwrap();
    assert_eq!(nowhere.cache().list().unwrap(), []);
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let bench = Bench::new();
    let build = |builder: HubBuilder| builder.build().err().unwrap().to_string();
    for endpoint in ["huggingface.co", "ftp://x", "https://a@b", "http://x?y"] {
        assert!(build(bench.builder().endpoint(endpoint)).contains("HF_ENDPOINT"), "{endpoint}");
    }
    let text = build(bench.builder().token("hf_a b"));
    assert!(text.contains("the token given by the caller") && !text.contains("hf_a b"), "{text}");
    assert!(build(bench.builder().revision("../x")).contains("revision"));
    let no_file = Environment::from_variables([("SSL_CERT_FILE", "/no/such.pem")]);
    assert!(build(bench.builder().environment(no_file)).contains("SSL_CERT_FILE"));
    assert!(matches!(Hub::builder().environment(Environment::default()).build(), Err(Error::NoHome)));
}
