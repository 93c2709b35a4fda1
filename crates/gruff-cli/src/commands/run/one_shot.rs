//! One prompt, one answer.

use std::io::Write;
use std::ops::ControlFlow;

use gruff::{Conversation, Message};
use serde_json::json;

use super::Runner;
use super::answer::{Answer, AnswerPrompt};
use crate::console::stdout;
use crate::conversation::OneShot;

/// Answers `prompt`: text to standard output as it comes, or one JSON object at the end.
pub(super) fn run(runner: &Runner, prompt: &str, json: bool) -> anyhow::Result<()> {
    let prompt = render(runner, prompt)?;
    if json {
        let answer = runner.answer(&prompt, |_| ControlFlow::Continue(()))?;
        return Ok(writeln!(stdout(), "{:#}", as_json(runner, &prompt.ids, &answer))?);
    }
    let (mut shown, mut failed) = (OneShot::new(&runner.console), None);
    let answer = runner.answer(&prompt, |part| match shown.part(part) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    shown.finish()?;
    runner.console.note(answer.speed());
    Ok(())
}

fn render(runner: &Runner, prompt: &str) -> anyhow::Result<AnswerPrompt> {
    if runner.raw {
        return Ok(AnswerPrompt { text: prompt.to_owned(), ids: runner.tokenizer.encode(prompt)? });
    }
    let mut conversation = Conversation::new(runner.opening());
    conversation.push(Message::user(prompt));
    let ids = conversation.prompt(&runner.tokenizer, &runner.chat)?;
    Ok(AnswerPrompt { text: conversation.text().to_owned(), ids })
}

fn as_json(runner: &Runner, prompt: &[u32], answer: &Answer) -> serde_json::Value {
    let milliseconds = |seconds: f64| (seconds * 1e6).round() / 1e3;
    let usage = &answer.usage;
    json!({
        "model": runner.name,
        "text": answer.text,
        "reasoning": answer.reasoning,
        "prompt_ids": prompt,
        "ids": answer.ids,
        "finish_reason": answer.finish_reason(),
        "seed": runner.config.seed,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.new_tokens,
            "total_tokens": usage.prompt_tokens + usage.new_tokens,
            "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        },
        "timings": {
            "load_ms": milliseconds(runner.load_seconds),
            "prompt_n": usage.prompt_tokens - usage.cached_tokens,
            "prompt_ms": milliseconds(usage.prompt_time.as_secs_f64()),
            "prompt_per_second": usage.prompt_per_second(),
            "predicted_n": usage.new_tokens,
            "predicted_ms": milliseconds(usage.decode_time.as_secs_f64()),
            "predicted_per_second": usage.decode_per_second(),
            "draft_n": usage.drafted_tokens,
            "draft_n_accepted": usage.accepted_tokens,
        },
    })
}
