//! Chat templates.

use std::path::Path;

use gruff_gguf::{Metadata, Strings};
use serde_json::Value;

use super::Files;
use crate::json::Document;
use crate::{Error, Result};

const KEY: &str = "tokenizer.chat_template";
const NAMES_KEY: &str = "tokenizer.chat_templates";

/// Writes the template that tokenizer_config.json holds, or `chat_template.jinja` and
/// `additional_chat_templates`, or `chat_template.json`.
pub(super) fn describe(folder: &Path, files: &Files, metadata: &mut Metadata) -> Result<()> {
    let mut templates = Vec::new();
    match files.config.as_ref().and_then(|config| config.get("chat_template")) {
        Some(Value::String(template)) => templates.push(("default".to_owned(), template.clone())),
        Some(Value::Array(several)) => {
            let text = |entry: &Value, key: &str| Some(entry.get(key)?.as_str()?.to_owned());
            templates.extend(several.iter().filter_map(|e| Some((text(e, "name")?, text(e, "template")?))));
        }
        _ => from_files(folder, &mut templates)?,
    }
    let mut names = Strings::new();
    for (name, template) in templates {
        if name == "default" {
            metadata.insert(KEY, template);
            continue;
        }
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        metadata.insert(&format!("{KEY}.{name}"), template);
        names.push(name);
    }
    if !names.is_empty() {
        metadata.insert(NAMES_KEY, names);
    }
    Ok(())
}

fn from_files(folder: &Path, templates: &mut Vec<(String, String)>) -> Result<()> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(Error::io("read", path));
    let jinja = folder.join("chat_template.jinja");
    if jinja.is_file() {
        templates.push(("default".to_owned(), read(&jinja)?));
        let others = folder.join("additional_chat_templates");
        if others.is_dir() {
            let mut paths: Vec<_> = std::fs::read_dir(&others)
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<Result<_, _>>())
                .map_err(Error::io("read", &others))?;
            paths.sort();
            for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "jinja")) {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                templates.push((name, read(path)?));
            }
        }
    } else if let Some(json) = Document::read_optional(&folder.join("chat_template.json"))?
        && let Some(template) = json.str("chat_template")?
    {
        templates.push(("default".to_owned(), template.to_owned()));
    }
    Ok(())
}
