//! Multiple choice: which of several endings a model finds likeliest.

use std::ops::ControlFlow;

use gruff_kernels::{CHUNK, PAGE_LEN, Step, StepSequence};
use gruff_models::Caches;
use gruff_text::EncodeOptions;
use serde::{Deserialize, Serialize};

use crate::softmax::{LogSoftmax, map_rows};
use crate::statistics::share;
use crate::windows::most_rows;
use crate::{Error, Estimate, Evaluator, Result};

/// Tasks that go through the model together at most.
const MOST_TASKS: usize = 16;
/// Tokens of contexts that go through the model together, unless one context is longer.
const STEP_TOKENS: usize = 512;
/// The two-sided 95 % point of the normal distribution.
const Z95: f64 = 1.959_963_984_54;

/// A context with endings, one of which is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What comes before each ending.
    pub context: String,
    /// The endings, at least two; a space is put before each.
    pub endings: Vec<String>,
    /// Which one is right.
    pub label: usize,
}

/// A line of HellaSwag's files.
#[derive(Deserialize)]
struct Line {
    ctx: String,
    #[serde(default)]
    activity_label: Option<String>,
    endings: Vec<String>,
    label: Label,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Label {
    Number(usize),
    Text(String),
}

/// Reads tasks as HellaSwag writes them: a JSON object a line with `ctx`, `endings` and `label` (a number or a
/// text with one). With `activity_label` the context begins with it and a colon. Other fields and empty lines
/// do not matter.
///
/// # Errors
/// [`Error::Task`] names the line.
pub fn read_tasks(text: &str) -> Result<Vec<Task>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let tasks: Vec<Task> = lines.map(|(index, line)| read_task(index + 1, line)).collect::<Result<_>>()?;
    if tasks.is_empty() {
        return Err(Error::Task {
            line: 1,
            fault: "there are none; write one JSON object a line".to_owned(),
        });
    }
    Ok(tasks)
}

fn read_task(line: usize, text: &str) -> Result<Task> {
    let fail = |fault: String| Error::Task { line, fault };
    let Line { ctx, activity_label, endings, label } = serde_json::from_str(text).map_err(|error| {
        fail(format!("{error}; a task is {{\"ctx\": …, \"endings\": […], \"label\": …}}"))
    })?;
    let label = match label {
        Label::Number(label) => label,
        Label::Text(text) => match text.trim().parse() {
            Ok(label) => label,
            Err(_) => return Err(fail(format!("the label {text:?} is no number"))),
        },
    };
    if endings.len() < 2 || label >= endings.len() {
        return Err(fail(format!(
            "the label {label} is none of {} endings, counted from 0; there must be two or more",
            endings.len()
        )));
    }
    let context = match activity_label {
        Some(activity) => format!("{activity}: {ctx}"),
        None => ctx,
    };
    Ok(Task { context, endings, label })
}

/// What a model makes of one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskScore {
    /// Which ending is right.
    pub label: usize,
    /// ln p of each ending.
    pub log_probs: Vec<f64>,
    /// ln p a character of each ending.
    pub by_character: Vec<f64>,
    /// ln p a token of each ending, from the first token on in which endings differ.
    pub by_token: Vec<f64>,
}

impl TaskScore {
    /// Whether each of the three measures is highest for the right ending.
    fn hits(&self) -> [bool; 3] {
        [&self.log_probs, &self.by_character, &self.by_token].map(|scores| best(scores) == self.label)
    }
}

/// The first of the highest.
fn best(scores: &[f64]) -> usize {
    (1..scores.len()).fold(0, |best, index| if scores[index] > scores[best] { index } else { best })
}

/// A share of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// The share with its standard error.
    pub share: Estimate,
    /// Lower end of Wilson's 95 % interval.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Accuracy {
    fn new(hits: u64, count: u64) -> Self {
        let n = count.max(1) as f64;
        let p = hits as f64 / n;
        let z = Z95 * Z95 / n;
        let half = (z * (p * (1.0 - p) + z / 4.0)).sqrt();
        let (low, high) = ((p + z / 2.0 - half) / (1.0 + z), (p + z / 2.0 + half) / (1.0 + z));
        Self { share: share(hits, count), low, high }
    }
}

/// How often a model finds the right ending.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultipleChoice {
    /// Tasks scored.
    pub tasks: u64,
    /// By the probability of the ending.
    pub acc: Accuracy,
    /// By the probability a character: lm-evaluation-harness's `acc_norm`.
    pub acc_norm: Accuracy,
    /// By the probability a token: llama-perplexity's `acc_norm` of `--hellaswag`.
    pub acc_token: Accuracy,
    /// Every task's scores.
    pub scores: Vec<TaskScore>,
}

/// Scores `tasks`; `on_tasks` hears how many are done and may end it there.
///
/// The context of a task goes through the model once; each ending then continues from there. Tasks share steps,
/// which changes no result.
///
/// # Errors
/// [`Error::Task`] for a task without a token of context, [`Error::Engine`] when memory does not suffice,
/// [`Error::Logits`] when the model gives no numbers.
pub fn multiple_choice(
    evaluator: &Evaluator,
    tasks: &[Task],
    mut on_tasks: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<MultipleChoice> {
    let prepared = tasks.iter().enumerate().map(|(index, task)| Prepared::new(evaluator, task, index + 1));
    let prepared: Vec<Prepared> = prepared.collect::<Result<_>>()?;
    let longest = prepared.iter().map(Prepared::longest).max().unwrap_or(1);
    let ending = prepared.iter().map(Prepared::longest_ending).max().unwrap_or(0);
    let slots = MOST_TASKS.min(prepared.len()).max(1);
    let mut runner = Batch {
        evaluator,
        caches: evaluator.caches(slots, longest, ending.min(CHUNK))?,
        pages_each: longest.div_ceil(PAGE_LEN),
        first_task: 0,
    };
    let mut scores = Vec::with_capacity(tasks.len());
    while scores.len() < tasks.len() {
        let rest = &prepared[scores.len()..];
        let count = together(rest, most_rows(evaluator));
        runner.first_task = scores.len();
        let totals = runner.run(&rest[..count])?;
        for ((prepared, task), totals) in rest.iter().zip(&tasks[scores.len()..]).zip(totals) {
            scores.push(prepared.score(task, &totals));
        }
        if on_tasks(scores.len()).is_break() {
            break;
        }
    }
    let count = scores.len() as u64;
    let hits = |measure: usize| scores.iter().filter(|score| score.hits()[measure]).count() as u64;
    let [acc, acc_norm, acc_token] = [0, 1, 2].map(|measure| Accuracy::new(hits(measure), count));
    Ok(MultipleChoice { tasks: count, acc, acc_norm, acc_token, scores })
}

/// How many of `tasks` go together, by their longest endings and contexts.
fn together(tasks: &[Prepared], most_rows: usize) -> usize {
    let (mut rows, mut tokens) = (0, 0);
    let fits = tasks.iter().take(MOST_TASKS).take_while(|task| {
        rows += task.longest_ending().max(task.shared - task.context + 1);
        tokens += task.longest();
        rows <= most_rows && tokens <= STEP_TOKENS
    });
    fits.count().max(1)
}

/// A task as tokens.
struct Prepared {
    /// Context and ending, for each ending.
    sequences: Vec<Vec<u32>>,
    /// Tokens at the beginning that are the context's own; at least one.
    context: usize,
    /// Tokens at the beginning that all sequences have in common; each has at least one more.
    shared: usize,
}

impl Prepared {
    fn new(evaluator: &Evaluator, task: &Task, number: usize) -> Result<Self> {
        let encode = |text: &str| {
            evaluator.tokenizer().encode(text, EncodeOptions { add_special: true, parse_special: false })
        };
        let context = encode(&task.context)?;
        let endings = task.endings.iter().map(|ending| encode(&format!("{} {ending}", task.context)));
        let sequences: Vec<Vec<u32>> = endings.collect::<Result<_, _>>()?;
        let first = &sequences[0];
        let common = sequences.iter().map(|sequence| common_prefix(first, sequence)).min().unwrap_or(0);
        let shortest = sequences.iter().map(Vec::len).min().unwrap_or(0);
        let shared = common.min(shortest.saturating_sub(1));
        if shared == 0 {
            let fault = "no token of context comes before the endings; give one".to_owned();
            return Err(Error::Task { line: number, fault });
        }
        let context = common_prefix(first, &context).clamp(1, shared);
        Ok(Self { sequences, context, shared })
    }

    fn longest(&self) -> usize {
        self.sequences.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Tokens that an ending puts through the model at most: the last one is only predicted.
    fn longest_ending(&self) -> usize {
        self.longest() - self.shared - 1
    }

    fn score(&self, task: &Task, totals: &[EndingScore]) -> TaskScore {
        let own = |score: &EndingScore| score.own / score.tokens.max(1) as f64;
        let characters = task.endings.iter().map(|ending| ending.chars().count().max(1) as f64);
        TaskScore {
            label: task.label,
            log_probs: totals.iter().map(|score| score.total).collect(),
            by_character: totals.iter().zip(characters).map(|(score, chars)| score.total / chars).collect(),
            by_token: totals.iter().map(own).collect(),
        }
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Sums of ln p.
#[derive(Clone, Copy, Default)]
struct EndingScore {
    /// Over everything behind the context.
    total: f64,
    /// Over what the endings do not have in common.
    own: f64,
    /// Tokens of that.
    tokens: usize,
}

/// Tasks on their way through the model, one a slot.
struct Batch<'a> {
    evaluator: &'a Evaluator,
    caches: Caches,
    pages_each: usize,
    first_task: usize,
}

/// What a step does for one task.
struct Part<'p> {
    task: usize,
    past: usize,
    tokens: &'p [u32],
    /// Tokens, as indices into the sequence, whose successors are predicted.
    first_row: usize,
}

impl Batch<'_> {
    /// Scores of every ending of every task.
    fn run(&mut self, tasks: &[Prepared]) -> Result<Vec<Vec<EndingScore>>> {
        let mut scores: Vec<Vec<EndingScore>> =
            tasks.iter().map(|task| vec![EndingScore::default(); task.sequences.len()]).collect();
        let contexts = tasks.iter().enumerate().map(|(task, prepared)| {
            let tokens = &prepared.sequences[0][..prepared.shared];
            Part { task, past: 0, tokens, first_row: prepared.context - 1 }
        });
        // Of the shared part, every ending has the same score but for the token behind it.
        self.step(&contexts.collect::<Vec<_>>(), |task, position, logits, softmax| {
            let prepared = &tasks[task];
            for (score, sequence) in scores[task].iter_mut().zip(&prepared.sequences) {
                score.add(prepared, sequence, position, logits, softmax);
            }
        })?;
        // What each slot holds, to know what can be dropped again.
        let mut held: Vec<usize> = tasks.iter().map(|task| task.shared).collect();
        let most = tasks.iter().map(|task| task.sequences.len()).max().unwrap_or(0);
        (0..most).try_for_each(|ending| self.run_ending(tasks, ending, &mut held, &mut scores))?;
        Ok(scores)
    }

    /// Adds to the scores of ending `ending` of every task.
    fn run_ending(
        &mut self,
        tasks: &[Prepared],
        ending: usize,
        held: &mut [usize],
        scores: &mut [Vec<EndingScore>],
    ) -> Result<()> {
        let mut parts = Vec::new();
        for (task, prepared) in tasks.iter().enumerate() {
            let Some(sequence) = prepared.sequences.get(ending) else { continue };
            let end = sequence.len() - 1;
            if end == prepared.shared {
                continue;
            }
            let past = if self.can_return(held[task], prepared.shared) { prepared.shared } else { 0 };
            parts.push(Part { task, past, tokens: &sequence[past..end], first_row: prepared.shared });
            held[task] = end;
        }
        if parts.is_empty() {
            return Ok(());
        }
        self.step(&parts, |task, position, logits, softmax| {
            let prepared = &tasks[task];
            scores[task][ending].add(prepared, &prepared.sequences[ending], position, logits, softmax);
        })
    }

    /// Whether a slot that holds `held` tokens can go on from `to` of them.
    fn can_return(&self, held: usize, to: usize) -> bool {
        !self.evaluator.model().config().caches.is_recurrent() || held - to <= self.caches.options().rollback
    }

    /// Puts the parts through and hands out each wanted row with its task and its token's index.
    fn step(
        &mut self,
        parts: &[Part],
        mut on_row: impl FnMut(usize, usize, &[f32], &LogSoftmax),
    ) -> Result<()> {
        let (mut tokens, mut sequences, mut rows, mut places) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let first_page = part.task * self.pages_each;
            let pages = (first_page..first_page + self.pages_each).map(|page| page as u32).collect();
            sequences.push(StepSequence { len: part.tokens.len(), past: part.past, slot: part.task, pages });
            for position in part.first_row..part.past + part.tokens.len() {
                rows.push((tokens.len() + position - part.past) as u32);
                places.push((part.task, position));
            }
            tokens.extend_from_slice(part.tokens);
        }
        let step = Step::text(tokens, sequences)?.with_output_rows(rows)?;
        let model = self.evaluator.model();
        let logits = model.forward(&step, &mut self.caches)?.to_vec_f32()?;
        let width = model.config().vocab_size;
        let softmaxes = map_rows(&logits, width, |_, row| LogSoftmax::new(row));
        for ((row, softmax), (task, position)) in logits.chunks_exact(width).zip(softmaxes).zip(places) {
            let fault = Error::Logits { window: self.first_task + task + 1, position };
            on_row(task, position, row, &softmax.ok_or(fault)?);
        }
        Ok(())
    }
}

impl EndingScore {
    /// Adds what the token behind `position` costs.
    fn add(
        &mut self,
        task: &Prepared,
        sequence: &[u32],
        position: usize,
        logits: &[f32],
        softmax: &LogSoftmax,
    ) {
        let next = position + 1;
        let Some(logit) = sequence.get(next).and_then(|token| logits.get(*token as usize)) else { return };
        let log_prob = softmax.log_prob(*logit);
        self.total += log_prob;
        if next >= task.shared {
            self.own += log_prob;
            self.tokens += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read_as_hellaswag_writes_them() {
        let text = r#"{"ctx": "A man", "endings": ["sits.", "flies."], "label": 0, "ind": 3}

{"activity_label": "Baking", "ctx": "She stirs.", "endings": ["a", "b", "c"], "label": "2"}"#;
        let tasks = read_tasks(text).unwrap();
        assert_eq!(tasks[0].context, "A man");
        assert_eq!((tasks[1].context.as_str(), tasks[1].label), ("Baking: She stirs.", 2));
        for (text, part) in [
            ("", "there are none"),
            ("{\"ctx\": \"a\"}", "line 1 of the tasks: missing field"),
            (
                "\n{\"ctx\": \"a\", \"endings\": [\"x\", \"y\"], \"label\": 2}",
                "line 2 of the tasks: the label 2",
            ),
            ("{\"ctx\": \"a\", \"endings\": [\"x\"], \"label\": 0}", "two or more"),
            ("{\"ctx\": \"a\", \"endings\": [\"x\", \"y\"], \"label\": \"x\"}", "is no number"),
        ] {
            let message = read_tasks(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn intervals_are_wilsons() {
        let accuracy = Accuracy::new(8, 10);
        assert!(
            (accuracy.low - 0.490_162).abs() < 1e-6 && (accuracy.high - 0.943_318).abs() < 1e-6,
            "{accuracy:?}"
        );
        assert_eq!(best(&[1.0, 3.0, 3.0]), 1);
    }
}
