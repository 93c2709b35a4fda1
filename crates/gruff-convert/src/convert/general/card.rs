//! The front matter of a model card: the part of YAML that such cards use.

use std::path::Path;

/// A value of the front matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Text(String),
    List(Vec<String>),
}

/// The front matter of a README.md: keys of the outermost level with text or lists of text. Other values are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Card(Vec<(String, Entry)>);

/// The longest card that is read.
const MOST_BYTES: u64 = 4 << 20;

impl Card {
    /// Reads the card of a folder; one that is absent or odd says nothing.
    pub(super) fn read(folder: &Path) -> Self {
        let path = folder.join("README.md");
        let small = std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() <= MOST_BYTES);
        let text = if small { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim_end);
        let mut card = Card::default();
        if lines.next() != Some("---") {
            return card;
        }
        let mut list: Option<(String, Vec<String>)> = None;
        for line in lines.take_while(|line| *line != "---") {
            let trimmed = line.trim_start();
            if trimmed.is_empty() || trimmed.starts_with('#') {
                continue;
            }
            if let Some((_, items)) = &mut list
                && let Some(item) = trimmed.strip_prefix("- ")
            {
                // An item that is a mapping of its own is none of the kinds that are read.
                if !item.contains(": ") && !item.ends_with(':') {
                    items.push(scalar(item));
                }
                continue;
            }
            if line.starts_with(char::is_whitespace) {
                continue;
            }
            card.close(list.take());
            let Some((key, value)) = line.split_once(':') else { continue };
            let (key, value) = (key.trim().to_owned(), value.trim());
            match value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                Some(inside) => {
                    let items = inside.split(',').map(scalar).filter(|item| !item.is_empty());
                    card.0.push((key, Entry::List(items.collect())));
                }
                None if value.is_empty() => list = Some((key, Vec::new())),
                None if value.starts_with(['|', '>', '{', '&', '*']) => {}
                None => card.0.push((key, Entry::Text(scalar(value)))),
            }
        }
        card.close(list);
        card
    }

    fn close(&mut self, list: Option<(String, Vec<String>)>) {
        if let Some((key, items)) = list.filter(|(_, items)| !items.is_empty()) {
            self.0.push((key, Entry::List(items)));
        }
    }

    fn get(&self, key: &str) -> Option<&Entry> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, entry)| entry)
    }

    /// The first of several keys that is there and text.
    pub(super) fn text(&self, keys: &[&str]) -> Option<&str> {
        keys.iter().find_map(|key| match self.get(key)? {
            Entry::Text(text) if !text.is_empty() => Some(text.as_str()),
            _ => None,
        })
    }

    /// Everything under the keys that are there.
    pub(super) fn list(&self, keys: &[&str]) -> Vec<String> {
        let entries = keys.iter().filter_map(|key| self.get(key));
        entries
            .flat_map(|entry| match entry {
                Entry::Text(text) => vec![text.clone()],
                Entry::List(items) => items.clone(),
            })
            .collect()
    }

    /// What is under the first of several keys that is there.
    pub(super) fn first_list(&self, keys: &[&str]) -> Option<Vec<String>> {
        let key = keys.iter().find(|key| self.get(key).is_some())?;
        Some(self.list(&[key]))
    }
}

/// Text without its quotes, or without the comment behind it.
fn scalar(text: &str) -> String {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(inside) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inside.to_owned();
        }
    }
    text.split(" #").next().unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_read() {
        let card = Card::parse(
            "---\nlicense: apache-2.0 # free\nlanguage:\n- en\n- \"no\"\ntags: [chat, 'moe']\nbase_model: Qwen/Qwen3.5-4B\n\
             model-index:\n- name: x\n  results:\n  - task: y\nwidget:\n  text: hello\nurl: https://example.org/a\n---\n# Title\nkey: no\n",
        );
        assert_eq!(card.text(&["license"]), Some("apache-2.0"));
        assert_eq!(card.list(&["languages", "language"]), ["en", "no"]);
        assert_eq!(card.list(&["tags"]), ["chat", "moe"]);
        assert_eq!(card.first_list(&["base_model"]).unwrap(), ["Qwen/Qwen3.5-4B"]);
        assert_eq!(card.text(&["url"]), Some("https://example.org/a"));
        assert_eq!(card.text(&["key"]), None);
        assert!(card.get("model-index").is_none());
        assert_eq!(Card::parse("# no front matter\n---\na: b\n"), Card::default());
    }

    proptest::proptest! {
        #[test]
        fn no_card_panics(text in "(---\n)?[-a-z:'\"# \n\\[\\]]{0,200}") {
            Card::parse(&text);
        }
    }
}
