use std::sync::Arc;

use gruff_kernels::{Activations, Device};
use gruff_models::{ModelBase, ModelConfig, Names, Snapshot};

use crate::paper_tests::{Paper, recurrent};
use crate::{Context, Engine, EngineOptions, Request};

fn engine() -> Engine {
    let config = ModelConfig {
        architecture: "paper".to_owned(),
        name: None,
        num_hidden_layers: 1,
        hidden_size: 8,
        vocab_size: 16,
        max_position_embeddings: 4096,
        num_parameters: 0,
        weight_bytes: 0,
        caches: recurrent(1),
    };
    let base = ModelBase::new(config, Device::reference(Activations::F32), Names(&[]));
    let options = EngineOptions { context: Context::Tokens(512), ..EngineOptions::default() };
    Engine::new(Arc::new(Paper(base)), options).unwrap()
}

#[test]
fn a_state_that_cannot_be_put_back_is_computed_anew() {
    let prompt: Vec<u32> = (0..100).map(|at| at % 16).collect();
    let known = &prompt[..90];
    // One of these caches, and one that they do not take.
    for (layers, past) in [(1, known.len()), (2, 0)] {
        let mut engine = engine();
        let plan = recurrent(layers);
        let values = vec![1.0; plan.bytes_per_snapshot(known.len()) / 4];
        let state = Snapshot::from_values(&plan, known.len(), values).unwrap();
        let mut pages = engine.pages.take(3).unwrap();
        engine.prefix.insert(&mut engine.pages, None, known, &mut pages, Some(state));
        engine.pages.give_back(pages);
        assert!(engine.prefix.has_snapshot(None, known));
        for _ in 0..2 {
            engine.submit(Request::new(prompt.clone())).unwrap();
        }
        engine.admit().unwrap();
        assert_eq!((engine.running.len(), engine.waiting.len()), (1, 1), "nobody is lost");
        assert_eq!(engine.running[0].members[0].past, past);
        assert_eq!(engine.prefix.has_snapshot(None, known), past > 0);
        assert_eq!(engine.stats().prefix_cache.hits, u64::from(past > 0));
        engine.audit().unwrap();
    }
}
