//! Hidden states and attention weights of `generate`, on the bundled hybrid model: those of one forward pass over the same
//! tokens.

use gruff::{
    AttnImplementation, AutoModelForCausalLM, Event, ForwardOptions, GenerateOutput, GenerationConfig,
    LogitRows, TokenDetails,
};

const DENSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/gruff-9m-Q4_K_M.gguf");

fn model() -> AutoModelForCausalLM {
    AutoModelForCausalLM::from_pretrained(DENSE).load().unwrap()
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 20 + (i * 37 + len as u32 * 101) % 3900).collect()
}

fn config(output_hidden_states: bool, output_attentions: bool) -> GenerationConfig {
    GenerationConfig {
        max_new_tokens: Some(5),
        temperature: Some(0.0),
        eos_token_id: Some(vec![]),
        output_hidden_states: Some(output_hidden_states),
        output_attentions: Some(output_attentions),
        ..GenerationConfig::default()
    }
}

/// Every token's states are the rows of a pass over the whole sequence.
fn check(model: &AutoModelForCausalLM, output: &GenerateOutput, row: usize, attention: AttnImplementation) {
    let sequence = &output.sequences[row];
    let (seen, details) = (&sequence[..sequence.len() - 1], &output.details[row]);
    assert_eq!(details.len(), output.new_tokens(row).len());
    let prompt_len = sequence.len() - details.len();
    let mut cache = model.new_cache(1, seen.len()).unwrap();
    let options = ForwardOptions {
        output_hidden_states: true,
        output_attentions: attention == AttnImplementation::Eager,
        attn_implementation: Some(attention),
        ..ForwardOptions::default()
    };
    let whole = model.forward_with(seen.to_vec(), &mut cache, LogitRows::Last, &options).unwrap();
    let states = whole.hidden_states.unwrap();
    for (layer, expected) in states.iter().enumerate() {
        let width = expected.shape()[1];
        let own = |details: &TokenDetails| details.hidden_states.as_ref().map(|all| all[layer].clone());
        let found: Vec<Vec<f32>> = details.iter().filter_map(own).collect();
        if found.is_empty() {
            continue;
        }
        assert_eq!(found[0].len(), prompt_len * width, "the prompt's tokens lead to the first");
        assert!(found[1..].iter().all(|one| one.len() == width));
        assert!(found.concat() == expected.to_vec_f32().unwrap(), "row {row}, layer {layer}");
    }
    for (place, layer) in whole.attentions.iter().flatten().enumerate() {
        let expected = layer.weights[0].to_vec_f32().unwrap();
        for (token, details) in details.iter().enumerate() {
            let found = &details.attentions.as_ref().unwrap()[place];
            let (first, end) =
                if token == 0 { (0, prompt_len) } else { (prompt_len + token - 1, prompt_len + token) };
            assert_eq!((found.layer, found.len, found.keys), (layer.layer, end - first, end));
            assert_eq!(found.values.len(), found.heads * found.len * found.keys);
            for (index, weights) in found.values.chunks_exact(found.keys).enumerate() {
                let (head, looks) = (index / found.len, first + index % found.len);
                let expected = &expected[(head * seen.len() + looks) * seen.len()..][..seen.len()];
                assert!(weights == &expected[..end], "layer {}, head {head}, token {looks}", layer.layer);
                assert!(expected[end..].iter().all(|weight| *weight == 0.0));
            }
        }
    }
}

#[test]
fn they_are_those_of_one_pass_over_the_same_tokens() {
    let model = model();
    // One alone, several together, and one whose prompt takes two steps.
    for lengths in [vec![7], vec![3, 40, 18], vec![600]] {
        let prompts: Vec<Vec<u32>> = lengths.iter().map(|len| prompt(*len)).collect();
        let plain = model.generate(prompts.clone(), &config(false, false)).unwrap();
        assert!(plain.details.iter().all(Vec::is_empty), "nobody asked");
        let states = model.generate(prompts.clone(), &config(true, false)).unwrap();
        assert_eq!(states.sequences, plain.sequences, "to look changes nothing");
        let both = model.generate(prompts.clone(), &config(true, true)).unwrap();
        for row in 0..lengths.len() {
            let layers = model.model().config().num_hidden_layers;
            let first = &states.details[row][0];
            assert_eq!(first.hidden_states.as_ref().unwrap().len(), layers + 1);
            assert!(first.attentions.is_none() && first.scores.is_none());
            check(&model, &states, row, AttnImplementation::Flash);
            assert!(!both.details[row][0].attentions.as_ref().unwrap().is_empty());
            check(&model, &both, row, AttnImplementation::Eager);
        }
    }
}

#[test]
fn answers_to_one_prompt_and_guided_ones_have_them_too() {
    let model = model();
    let drawn = GenerationConfig {
        num_return_sequences: Some(3),
        temperature: Some(1.5),
        output_scores: Some(true),
        ..config(true, true)
    };
    let output = model.generate(prompt(20), &drawn).unwrap();
    assert!(output.sequences[0] != output.sequences[1] || output.sequences[0] != output.sequences[2]);
    for row in 0..3 {
        assert!(output.details[row].iter().all(|details| details.scores.is_some()));
        check(&model, &output, row, AttnImplementation::Eager);
    }
    let guided = GenerationConfig { guidance_scale: Some(1.5), ..config(true, false) };
    let output = model.generate(prompt(20), &guided).unwrap();
    check(&model, &output, 0, AttnImplementation::Flash);
}

#[test]
fn requests_that_look_leave_others_alone() {
    let model = model();
    let kinds = [(false, false), (true, true), (true, false)];
    let prompts: Vec<Vec<u32>> = [30, 21, 30].map(prompt).into();
    let configs = kinds.map(|(states, attentions)| config(states, attentions));
    let alone: Vec<_> =
        prompts.iter().zip(&configs).map(|(p, c)| model.generate(p.clone(), c).unwrap()).collect();
    let mut manager = model.batching_manager(3).unwrap();
    let mut ids = Vec::new();
    for (prompt, config) in prompts.iter().zip(&configs) {
        ids.push(manager.add_request(prompt.clone(), config).unwrap());
    }
    let (mut tokens, mut details) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
    while manager.in_progress() > 0 {
        let event = manager.next_event(std::time::Duration::from_secs(60)).expect("an event");
        if let Event::Token { request, id, details: told, .. } = event {
            let place = ids.iter().position(|id| *id == request).unwrap();
            tokens[place].push(id);
            details[place].extend(told.map(|told| *told));
        }
    }
    for (place, alone) in alone.iter().enumerate() {
        assert_eq!(tokens[place], alone.new_tokens(0), "request {place}");
        assert_eq!(details[place], alone.details[0], "request {place}");
    }
}

#[test]
fn what_cannot_be_told_is_refused_by_name() {
    let model = model();
    let refused = |field: &str, config: GenerationConfig, part: &str| {
        let message = model.generate(prompt(5), &config).unwrap_err().to_string();
        assert!(message.starts_with(&format!("{field}: ")) && message.contains(part), "{message}");
    };
    let beams = |config| GenerationConfig { num_beams: Some(2), ..config };
    refused("output_hidden_states", beams(config(true, false)), "num_beams");
    refused("output_attentions", beams(config(false, true)), "num_beams");
    let drafts = GenerationConfig { prompt_lookup_num_tokens: Some(3), ..config(true, false) };
    refused("output_hidden_states", drafts, "drafts");
    model.model().set_attn_implementation(AttnImplementation::Flash);
    refused("output_attentions", config(true, true), "flash");
    model.generate(prompt(5), &config(true, false)).unwrap();
    model.model().set_attn_implementation(AttnImplementation::Eager);
    let output = model.generate(prompt(5), &config(true, true)).unwrap();
    check(&model, &output, 0, AttnImplementation::Eager);
}
