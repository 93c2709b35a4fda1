//! Pre-tokenizers as tokenizer.json describes them, and the names that GGUF files have for them.

use serde_json::{Value, json};

use super::pre::{GPT2_PATTERN, Pre, THOUSANDS_BEFORE_BORDER};
use super::split::Stage;

/// Spellings of a pattern that mean the same as the one in the table.
const SPELLINGS: &[(&str, &str)] = &[
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", GPT2_PATTERN),
    (r"\p{N}{1}", r"\p{N}"),
    (r"\d{1,3}(?=(?:\d{3})*\b)", THOUSANDS_BEFORE_BORDER),
];

/// The name (`tokenizer.ggml.pre`) for the `pre_tokenizer` of a byte-level tokenizer.json, if it cuts text as one
/// of the named ones does. `ignore_merges` is that of its `model`.
pub fn pre_tokenizer_name(pre_tokenizer: &Value, ignore_merges: bool) -> Option<&'static str> {
    let mut patterns = Vec::new();
    collect(pre_tokenizer, &mut patterns)?;
    Pre::table().find_map(|(name, pre)| {
        let same =
            pre.ignore_merges == ignore_merges
                && pre.is_byte_level()
                && pre.stages.len() == patterns.len()
                && pre.stages.iter().zip(&patterns).all(|(stage, pattern)| {
                    pattern_of(stage).is_some_and(|own| spelled_out(own) == *pattern)
                });
        same.then_some(name)
    })
}

/// What stands under `pre_tokenizer` in the tokenizer.json of a model whose file names this pre-tokenizer, and
/// `ignore_merges` of its `model`; `None` for a name that is unknown or not byte-level.
pub fn pre_tokenizer_json(name: &str) -> Option<(Value, bool)> {
    let pre = Pre::named(name).filter(Pre::is_byte_level)?;
    let mut steps: Vec<Value> = pre
        .stages
        .iter()
        .map(|stage| {
            let pattern = spelled_out(pattern_of(stage)?);
            Some(json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}))
        })
        .collect::<Option<_>>()?;
    steps.push(
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}),
    );
    Some((json!({"type": "Sequence", "pretokenizers": steps}), pre.ignore_merges))
}

/// Appends the patterns that a step cuts text by; `None` if it does something that no pattern tells.
fn collect(step: &Value, patterns: &mut Vec<String>) -> Option<()> {
    match step.get("type")?.as_str()? {
        "Sequence" => step.get("pretokenizers")?.as_array()?.iter().try_for_each(|s| collect(s, patterns)),
        "Split" => {
            let behavior = step.get("behavior")?.as_str()?;
            let invert = step.get("invert").and_then(Value::as_bool).unwrap_or(false);
            // "Removed" and inverted: what matches stays, and the patterns match everything.
            if !matches!((behavior, invert), ("Isolated", false) | ("Removed", true)) {
                return None;
            }
            let pattern = step.get("pattern")?;
            patterns.push(spelled_out(pattern.get("Regex")?.as_str()?));
            Some(())
        }
        "Digits" => {
            let each = step.get("individual_digits").and_then(Value::as_bool).unwrap_or(false);
            patterns.push(if each { r"\p{N}" } else { r"\p{N}+" }.to_owned());
            Some(())
        }
        "ByteLevel" => {
            let flag = |key: &str, default| step.get(key).and_then(Value::as_bool).unwrap_or(default);
            if flag("add_prefix_space", true) {
                return None;
            }
            if flag("use_regex", true) {
                patterns.push(GPT2_PATTERN.to_owned());
            }
            Some(())
        }
        _ => None,
    }
}

fn pattern_of(stage: &Stage) -> Option<&'static str> {
    match stage {
        Stage::Regex(pattern) => Some(pattern),
        Stage::ThousandsBeforeBorder => Some(THOUSANDS_BEFORE_BORDER),
        Stage::Thousands => None,
    }
}

/// A pattern with characters written out where it gives their numbers, in the table's spelling.
fn spelled_out(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find(r"\u{") {
        text.push_str(&rest[..at]);
        let digits = &rest[at + 3..];
        let number = digits
            .find('}')
            .and_then(|end| Some((end, char::from_u32(u32::from_str_radix(&digits[..end], 16).ok()?)?)));
        match number {
            Some((end, character)) => {
                text.push(character);
                rest = &digits[end + 1..];
            }
            None => {
                text.push_str(r"\u{");
                rest = digits;
            }
        }
    }
    text.push_str(rest);
    match SPELLINGS.iter().find(|(spelling, _)| *spelling == text) {
        Some((_, own)) => (*own).to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_pre_tokenizers_have_names() {
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": regex});
        let sequence = |steps: &[Value]| json!({"type": "Sequence", "pretokenizers": steps});
        let qwen2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let qwen35 = qwen2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}");
        let llama3 = qwen2.replace(r"\p{N}|", r"\p{N}{1,3}|");
        let digits = json!({"type": "Digits", "individual_digits": true});
        let table = [
            (sequence(&[split(qwen2), level(false)]), false, Some("qwen2")),
            (sequence(&[split(&qwen35), level(false)]), false, Some("qwen35")),
            (sequence(&[split(&llama3), level(false)]), true, Some("llama-bpe")),
            (sequence(&[digits, level(true)]), false, Some("smollm")),
            (level(true), false, Some("gpt-2")),
            (sequence(&[split("x+"), level(false)]), false, None),
            (json!({"type": "Metaspace", "replacement": "_"}), false, None),
            (json!({"type": "ByteLevel", "add_prefix_space": true}), false, None),
            (Value::Null, false, None),
        ];
        for (pre_tokenizer, ignore_merges, name) in table {
            assert_eq!(pre_tokenizer_name(&pre_tokenizer, ignore_merges), name, "{pre_tokenizer}");
        }
    }

    #[test]
    fn names_lead_to_json_and_back() {
        let mut found = 0;
        for name in Pre::names() {
            let Some((json, ignore_merges)) = pre_tokenizer_json(name) else { continue };
            let back = pre_tokenizer_name(&json, ignore_merges).unwrap_or_else(|| panic!("{name}: {json}"));
            let stages = |name| format!("{:?}", Pre::named(name).unwrap().stages);
            assert_eq!(stages(back), stages(name), "{name}");
            found += 1;
        }
        assert!(found > 75, "{found}");
    }
}
