//! The templates of real models, where they are at hand: `../shared/data/templates` beside the
//! workspace. (`tools/checks/templates.py` compares what they render with transformers.)

use std::path::Path;

use gruff_text::chat::{ChatTemplate, Message, ReasoningFormat, ReasoningMode, RenderInput, ToolCallFormat};

const THINK: Option<ReasoningFormat> = Some(ReasoningFormat::Tags { start: "<think>", end: "</think>" });

#[test]
fn reasoning_and_tool_formats_are_recognised() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/templates");
    if !folder.is_dir() {
        eprintln!("{} is absent: nothing compared", folder.display());
        return;
    }
    let prompt = |template: &ChatTemplate, mode: ReasoningMode| {
        let messages = [Message::user("Hi")];
        let input = RenderInput {
            messages: &messages,
            add_generation_prompt: true,
            bos_token: Some("<s>"),
            eos_token: Some("</s>"),
            variables: mode.variables(),
            ..RenderInput::default()
        };
        template.render(&input).unwrap().text
    };
    // Name, reasoning format, switchable, whether the prompt opens reasoning (auto, on, off), tool calls.
    let channels = Some(ReasoningFormat::Channels);
    let cohere = Some(ReasoningFormat::Tags { start: "<|START_THINKING|>", end: "<|END_THINKING|>" });
    let seed = Some(ReasoningFormat::Tags { start: "<seed:think>", end: "</seed:think>" });
    let hermes = Some(ToolCallFormat::Hermes);
    let deep_seek = Some(ToolCallFormat::DeepSeek);
    let xml = Some(ToolCallFormat::Xml);
    let mistral = Some(ToolCallFormat::Mistral);
    let llama = Some(ToolCallFormat::Llama);
    for (name, format, switchable, opened, calls) in [
        ("Qwen3.5-4B", THINK, true, [true, true, false], xml),
        ("Qwen-Qwen3-0.6B", THINK, true, [false, false, false], hermes),
        ("Qwen-Qwen2.5-7B-Instruct", None, false, [false; 3], hermes),
        ("HuggingFaceTB-SmolLM3-3B", THINK, true, [false, false, false], None),
        ("llama-cpp-deepseek-r1", THINK, false, [true, true, true], deep_seek),
        ("deepseek-ai-DeepSeek-V3.1", THINK, true, [false, true, false], deep_seek),
        ("GLM-4.6", THINK, true, [false, false, false], Some(ToolCallFormat::ArgumentTags)),
        ("ByteDance-Seed-OSS", seed, false, [false; 3], Some(ToolCallFormat::Seed)),
        (
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
            cohere,
            true,
            [false; 3],
            Some(ToolCallFormat::Cohere),
        ),
        ("openai-gpt-oss-120b", channels, false, [false; 3], Some(ToolCallFormat::Channels)),
        ("mistralai-Mistral-Nemo-Instruct-2407", None, false, [false; 3], mistral),
        ("Mistral-Small-3.2-24B-Instruct-2506", None, false, [false; 3], mistral),
        ("meta-llama-Llama-3.1-8B-Instruct", None, false, [false; 3], llama),
        ("meta-llama-Llama-3.2-3B-Instruct", None, false, [false; 3], llama),
        ("google-gemma-2-2b-it", None, false, [false; 3], None),
        ("Kimi-K2-Instruct", None, false, [false; 3], Some(ToolCallFormat::Kimi)),
        ("LFM2-8B-A1B", None, false, [false; 3], Some(ToolCallFormat::Lfm)),
        ("ibm-granite-granite-3.3-2B-Instruct", THINK, true, [false; 3], Some(ToolCallFormat::Granite)),
    ] {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::named(name, &source).unwrap();
        let support = template.reasoning();
        assert_eq!((support.format, support.switchable), (format, switchable), "{name}");
        let modes = [ReasoningMode::Auto, ReasoningMode::On, ReasoningMode::Off];
        let found = modes
            .map(|mode| support.format.is_some_and(|format| format.is_opened_by(&prompt(&template, mode))));
        assert_eq!(found, opened, "{name}");
        assert_eq!(ToolCallFormat::of(&template), calls, "{name}");
    }
}
