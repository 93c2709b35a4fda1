//! Pipelines and embeddings, on the bundled model.
#![cfg(feature = "bundled-model")]

use gruff::{
    AutoModelForCausalLM, AutoTokenizer, BUNDLED, ChatOptions, EmbeddingOptions, GeneratedText,
    GenerationConfig, Message, PipelineInput, PipelineOptions, Pooling, pipeline,
};

fn config() -> GenerationConfig {
    GenerationConfig { max_new_tokens: Some(12), do_sample: Some(false), ..GenerationConfig::default() }
}

#[test]
fn texts_are_gone_on_with() {
    let generator = pipeline("text-generation", BUNDLED).unwrap();
    let texts = ["The capital of France is", "The sun"];
    let full = generator.generate(texts.to_vec(), &config()).unwrap();
    assert_eq!((full.len(), full[0].len()), (2, 1));
    let only =
        generator.clone().options(PipelineOptions { return_full_text: false, ..PipelineOptions::default() });
    for (text, full) in texts.iter().zip(&full) {
        let answer = &only.generate(*text, &config()).unwrap()[0][0];
        assert_eq!(full[0].generated_text.text(), format!("{text}{}", answer.generated_text.text()));
        assert_eq!(
            (&full[0].token_ids, full[0].usage.new_tokens),
            (&answer.token_ids, answer.token_ids.len())
        );
        assert!(!answer.generated_text.text().is_empty());
    }
    assert!(generator.generate(Vec::<String>::new(), &config()).unwrap().is_empty());
    let error = pipeline("text-classification", BUNDLED).err().unwrap().to_string();
    assert!(error.contains("text-generation"), "{error}");
}

#[test]
fn conversations_are_answered() {
    let generator = pipeline("text-generation", BUNDLED).unwrap();
    let messages = vec![Message::user("What is the capital of France?")];
    let output = generator.generate(messages.clone(), &config()).unwrap();
    let GeneratedText::Chat(answered) = &output[0][0].generated_text else {
        panic!("a conversation comes back")
    };
    assert_eq!((answered.len(), &answered[0], answered[1].role()), (2, &messages[0], Some("assistant")));
    // The same as the template and generate.
    let prompt = generator.tokenizer().apply_chat_template(&messages, &ChatOptions::prompt()).unwrap();
    let ids = generator.model().generate(prompt, &config()).unwrap().new_tokens(0).to_vec();
    assert_eq!(output[0][0].token_ids, ids);
    assert_eq!(answered[1].text(), generator.tokenizer().decode(&ids, true));

    let only =
        generator.clone().options(PipelineOptions { return_full_text: false, ..PipelineOptions::default() });
    let mixed = vec![PipelineInput::Chat(messages.clone()), PipelineInput::Text("The sun".into())];
    let mixed = only.generate(mixed, &config()).unwrap();
    assert_eq!(mixed[0][0].generated_text, GeneratedText::Text(answered[1].text()));

    // An assistant's message at the end is gone on with, without another header.
    let begun = vec![messages[0].clone(), Message::assistant("The capital")];
    let output = generator.generate(begun, &config()).unwrap();
    let GeneratedText::Chat(answered) = &output[0][0].generated_text else {
        panic!("a conversation comes back")
    };
    assert_eq!(answered.len(), 2);
    assert!(answered[1].text().starts_with("The capital"), "{}", answered[1].text());
    assert_eq!(output[0][0].usage.prompt_tokens, {
        let chat = ChatOptions { continue_final_message: true, ..ChatOptions::default() };
        let begun = [messages[0].clone(), Message::assistant("The capital")];
        generator.tokenizer().apply_chat_template(&begun, &chat).unwrap().len()
    });
}

#[test]
fn embeddings_do_not_depend_on_the_batch() {
    let tokenizer = AutoTokenizer::from_pretrained(BUNDLED).load().unwrap();
    let model = AutoModelForCausalLM::from_pretrained(BUNDLED).load().unwrap();
    let long = "A long text about the sun. ".repeat(40);
    let texts = ["The sun rises.", "A", &long, "Kings and queens of old"];
    let ids: Vec<Vec<u32>> = texts.iter().map(|text| tokenizer.encode(text).unwrap()).collect();
    for pooling in [Pooling::Last, Pooling::Mean, Pooling::Cls] {
        for normalize in [true, false] {
            let options = EmbeddingOptions { pooling, normalize };
            let together = model.embed(ids.clone(), &options).unwrap();
            for (ids, own) in ids.iter().zip(&together) {
                assert!(model.embed(ids.clone(), &options).unwrap()[0] == *own, "{pooling:?}");
                let length = own.iter().map(|value| value * value).sum::<f32>().sqrt();
                assert_eq!(own.len(), 256);
                assert_eq!((length - 1.0).abs() < 1e-5, normalize, "{pooling:?}: {length}");
            }
        }
    }
    // Of one token, all poolings are alike.
    let of = |pooling| model.embed(vec![ids[1][0]], &EmbeddingOptions { pooling, normalize: false }).unwrap();
    assert!(of(Pooling::Last) == of(Pooling::Mean) && of(Pooling::Mean) == of(Pooling::Cls));
    let error = model.embed(vec![vec![1], Vec::new()], &EmbeddingOptions::default()).unwrap_err().to_string();
    assert!(error.contains("text 1"), "{error}");
}

#[test]
fn an_embedding_is_the_last_hidden_state() {
    let model = AutoModelForCausalLM::from_pretrained(BUNDLED).load().unwrap();
    let ids = vec![7_u32, 300, 1200, 15];
    let mut cache = model.new_cache(1, 4).unwrap();
    let options = gruff::ForwardOptions { output_hidden_states: true, ..Default::default() };
    let output = model.forward_with(ids.clone(), &mut cache, gruff::LogitRows::Last, &options).unwrap();
    let states = output.hidden_states.unwrap();
    let last = states.last().unwrap().to_vec_f32().unwrap();
    let options = EmbeddingOptions { pooling: Pooling::Last, normalize: false };
    assert!(model.embed(ids, &options).unwrap()[0] == last[3 * 256..]);
}
