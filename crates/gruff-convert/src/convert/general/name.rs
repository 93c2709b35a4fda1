//! What a model's name tells: `Qwen3.5-4B-Instruct` is Qwen3.5, of 4B, tuned to instructions.

/// The parts of a name, by the conventions of repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameParts {
    /// The whole name, without the organization.
    pub(super) full: Option<String>,
    pub(super) organization: Option<String>,
    pub(super) basename: Option<String>,
    pub(super) finetune: Option<String>,
    pub(super) version: Option<String>,
    pub(super) size_label: Option<String>,
}

#[derive(Default)]
struct Part {
    text: String,
    basename: bool,
    size_label: bool,
    finetune: bool,
    version: bool,
    quantization: bool,
}

impl Part {
    fn is_unknown(&self) -> bool {
        self.kinds() == 0
    }

    fn kinds(&self) -> usize {
        let kinds = [self.basename, self.size_label, self.finetune, self.version, self.quantization];
        kinds.into_iter().filter(|kind| *kind).count()
    }
}

impl NameParts {
    /// Takes `organization/name` or `name` apart; `parameters` of the model tell a size from a context length.
    pub(super) fn new(id: &str, parameters: u64) -> Self {
        let whole = |full: &str| NameParts { full: Some(full.to_owned()), ..NameParts::default() };
        // A sentence, not a name by the conventions.
        if id.contains(' ') {
            return whole(id);
        }
        let (organization, full) = match id.split_once('/') {
            Some((organization, full)) => (Some(organization), full),
            None => (None, id),
        };
        let mut parts: Vec<Part> = full
            .split('-')
            .filter(|text| !text.is_empty())
            .enumerate()
            .map(|(at, text)| annotate(at, text, parameters))
            .collect();
        settle(&mut parts);
        let joined = |wanted: fn(&Part) -> bool| {
            let texts: Vec<&str> =
                parts.iter().filter(|part| wanted(part)).map(|part| part.text.as_str()).collect();
            (!texts.is_empty()).then(|| texts.join("-"))
        };
        let mut sizes: Vec<&str> = Vec::new();
        for part in parts.iter().filter(|part| part.size_label) {
            if !sizes.contains(&part.text.as_str()) {
                sizes.push(&part.text);
            }
        }
        let size_label = (!sizes.is_empty()).then(|| sizes.join("-"));
        let finetune = joined(|part| part.finetune);
        let version = joined(|part| part.version && !part.basename);
        let known = size_label.is_some() || finetune.is_some() || version.is_some();
        NameParts {
            full: Some(full.to_owned()).filter(|full| !full.is_empty()),
            organization: organization
                .filter(|name| !name.starts_with('.') && !name.is_empty())
                .map(str::to_owned),
            basename: joined(|part| part.basename).filter(|_| known),
            finetune,
            version,
            size_label,
        }
    }
}

/// What one part of a name is by itself.
fn annotate(at: usize, text: &str, parameters: u64) -> Part {
    let mut part = Part { text: text.to_owned(), ..Part::default() };
    let lower = text.to_ascii_lowercase();
    if is_version(&lower) {
        part.version = true;
    } else if is_quantization(&lower) {
        part.quantization = true;
        part.text = text.to_uppercase();
    } else if at > 0 && is_size(&lower) {
        size(&mut part, parameters);
    } else if at > 0 && matches!(lower.as_str(), "chat" | "instruct" | "vision" | "lora") {
        part.finetune = true;
    }
    part
}

/// A size in one form (`7b1` is `7.1B`), or the length of a context.
fn size(part: &mut Part, parameters: u64) {
    let mut text: Vec<char> = part.text.replace('_', ".").chars().collect();
    if let [.., unit, digit] = text[..]
        && digit.is_ascii_digit()
    {
        text.truncate(text.len() - 2);
        text.extend(['.', digit, unit]);
    }
    if let [.., before, unit] = text[..]
        && before.is_ascii_digit()
        && "kmbt".contains(unit)
    {
        text.pop();
        text.push(unit.to_ascii_uppercase());
    }
    let unit = text.last().copied().unwrap_or(' ');
    let number: String = text.iter().take(text.len().saturating_sub(1)).collect();
    let power = [' ', 'K', 'M', 'B', 'T'].iter().position(|known| *known == unit);
    let stated = number.parse::<f64>().ok().zip(power).map(|(n, power)| n * 1000_f64.powi(power as i32));
    // Far from the model's own size, it is something else's.
    let is_other = |stated: f64| (stated - parameters as f64).abs() > (7 * parameters / 8) as f64;
    if stated.is_some_and(is_other) {
        part.finetune = true;
        text.pop();
        text.push(unit.to_ascii_lowercase());
    } else {
        part.size_label = true;
    }
    part.text = text.into_iter().collect();
}

/// What the parts are beside each other.
fn settle(parts: &mut [Part]) {
    let is_word = |part: &Part| part.text.chars().all(char::is_alphabetic);
    let numbered = |part: &Part| part.size_label && part.text.contains(|c: char| c.is_ascii_digit());
    if parts.iter().any(numbered) {
        parts
            .iter_mut()
            .filter(|part| part.size_label && is_word(part))
            .for_each(|part| part.size_label = false);
    }
    let mut at_start = true;
    for part in parts.iter_mut() {
        let begins_with_letter = part.text.starts_with(char::is_alphabetic);
        if at_start && ((part.is_unknown() && begins_with_letter) || part.version) {
            part.basename = true;
        } else {
            at_start = false;
            part.finetune |= part.is_unknown();
        }
    }
    // A version at the end of the base name is not part of it.
    for part in parts.iter_mut().rev() {
        if !(part.basename && part.kinds() > 1) {
            break;
        }
        part.basename = false;
    }
}

/// `v1`, `iter2.0`, `3`.
fn is_version(text: &str) -> bool {
    let text = text.strip_prefix("iter").or_else(|| text.strip_prefix('v')).unwrap_or(text);
    text.split('.').all(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// `q4_k_m`, `iq2_s`, `bf16`, `fp32`.
fn is_quantization(text: &str) -> bool {
    let rest = text.strip_prefix('i').unwrap_or(text);
    if let Some(rest) = rest.strip_prefix('q')
        && let Some(rest) = rest.strip_prefix(|c: char| c.is_ascii_digit())
    {
        return rest.is_empty() || rest.as_bytes().chunks(2).all(|pair| pair.len() == 2 && pair[0] == b'_');
    }
    let rest = text.strip_prefix('b').unwrap_or(text);
    rest.strip_prefix('f').is_some_and(|rest| matches!(rest.strip_prefix('p').unwrap_or(rest), "16" | "32"))
}

/// `7b`, `8x7b`, `1.5b`, `a3b`, `7b1`, or a size in words.
fn is_size(text: &str) -> bool {
    if matches!(text, "small" | "mini" | "medium" | "large" | "xl" | "xxl") {
        return true;
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut rest = text;
    if let Some(active) = rest.strip_prefix('a') {
        rest = active;
    } else if let Some(times) = rest.get(digits(rest)..).and_then(|rest| rest.strip_prefix('x'))
        && digits(rest) > 0
    {
        rest = times;
    }
    let whole = digits(rest);
    if whole == 0 {
        return false;
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(['.', '_'])
        && digits(fraction) > 0
    {
        rest = &fraction[digits(fraction)..];
    }
    let Some(rest) = rest.strip_prefix(['k', 'm', 'b', 't']) else { return false };
    rest.is_empty() || (rest.len() == 1 && digits(rest) == 1)
}

/// A name as a title: words with capitals, versions and acronyms as they are.
pub(super) fn title(id: &str) -> String {
    let word = |word: &str| {
        let is_version =
            word.starts_with(|c: char| c.is_ascii_digit()) || word.strip_prefix('v').is_some_and(is_version);
        let is_lower = word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
        if is_version || !is_lower {
            return word.to_owned();
        }
        let mut after_letter = false;
        word.chars()
            .flat_map(|c| {
                let capital = !std::mem::replace(&mut after_letter, c.is_alphabetic());
                if capital { c.to_uppercase().collect::<Vec<_>>() } else { vec![c] }
            })
            .collect()
    };
    id.replace('-', " ").split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let table = [
            ("Qwen/Qwen3.5-4B", 4_000_000_000, "Qwen Qwen3.5 - - 4B"),
            ("Mistral-7B-Instruct-v0.3", 7_200_000_000, "- Mistral Instruct v0.3 7B"),
            ("meta-llama/Llama-3.2-1B-Instruct", 1_200_000_000, "meta-llama Llama-3.2 Instruct - 1B"),
            ("SmolLM2-135M-Instruct", 135_000_000, "- SmolLM2 Instruct - 135M"),
            ("Mixtral-8x7B-v0.1", 46_000_000_000, "- Mixtral - v0.1 8x7B"),
            ("Qwen3-30B-A3B", 30_000_000_000, "- Qwen3 - - 30B-A3B"),
            ("Phi-3-mini-4k-instruct", 3_800_000_000, "- Phi-3 4k-instruct - mini"),
            ("bloom-7b1", 7_100_000_000, "- bloom - - 7.1B"),
            ("moe", 8_000_000, "- - - - -"),
        ];
        for (id, parameters, expected) in table {
            let parts = NameParts::new(id, parameters);
            let fields =
                [parts.organization, parts.basename, parts.finetune, parts.version, parts.size_label];
            let found: Vec<String> =
                fields.into_iter().map(|f| f.unwrap_or_else(|| "-".to_owned())).collect();
            assert_eq!(found.join(" "), expected, "{id}");
        }
        assert_eq!(NameParts::new("A model of mine", 1).full.as_deref(), Some("A model of mine"));
    }

    #[test]
    fn names_become_titles() {
        for (name, expected) in [
            ("tiny-random-qwen3.5", "Tiny Random Qwen3.5"),
            ("qwen3moe", "Qwen3Moe"),
            ("SmolLM2-135M-Instruct-v0.2", "SmolLM2 135M Instruct v0.2"),
            ("moe", "Moe"),
        ] {
            assert_eq!(title(name), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_name_panics(id in ".{0,40}", parameters: u64) {
            NameParts::new(&id, parameters / 16);
            title(&id);
        }
    }
}
