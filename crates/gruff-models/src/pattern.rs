//! Patterns over names, and the names that come close to one.

/// Names that are told when nothing matches.
const MOST_NEAR: usize = 3;

/// Whether `name` matches `pattern`, in which `*` stands for any characters.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(tail)
}

/// The names that differ least from `pattern`; a pattern with stars is compared with names whose layer is one.
pub(crate) fn near<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let starred = pattern.contains('*');
    let mut ranked: Vec<(usize, String)> = Vec::new();
    for name in names {
        let name = if starred { starred_layer(name) } else { name.to_owned() };
        if ranked.iter().all(|(_, known)| *known != name) {
            ranked.push((distance(pattern, &name), name));
        }
    }
    ranked.sort();
    ranked.into_iter().take(MOST_NEAR).map(|(_, name)| name).collect()
}

/// `model.layers.3.mlp` as `model.layers.*.mlp`.
fn starred_layer(name: &str) -> String {
    let part =
        |part: &'_ str| if part.bytes().all(|b| b.is_ascii_digit()) { "*".into() } else { part.to_owned() };
    name.split('.').map(part).collect::<Vec<String>>().join(".")
}

/// Characters to insert, delete or replace (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("model.layers.3.mlp", "model.layers.3.mlp", true),
            ("model.layers.3.mlp", "model.layers.3.mlp.up_proj", false),
            ("model.layers.*.mlp", "model.layers.31.mlp", true),
            ("model.layers.*.mlp", "model.layers.31.mlp.up_proj", false),
            ("*", "lm_head", true),
            ("*norm", "model.norm", true),
            ("*.self_attn.*_proj", "model.layers.0.self_attn.q_proj", true),
            ("*.self_attn.*_proj", "model.layers.0.self_attn", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn near_names_differ_little() {
        let names = ["model.layers.3.mlp", "model.layers.3.self_attn", "model.layers.4.mlp", "lm_head"];
        assert_eq!(near("model.layers.3.mpl", names.into_iter())[0], "model.layers.3.mlp");
        assert_eq!(
            near("model.layer.*.mlp", names.into_iter())[..2],
            ["model.layers.*.mlp", "model.layers.*.self_attn"]
        );
        assert_eq!((distance("kitten", "sitting"), distance("", "ab"), distance("é", "e")), (3, 2, 1));
    }
}
