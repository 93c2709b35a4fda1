//! String literals.

/// A string literal's text, with Python's escapes; unknown ones stay as they are.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let c = after.chars().next().unwrap_or('\\');
        let tail = after.get(c.len_utf8()..).unwrap_or_default();
        let simple = match c {
            '\n' => Some(""),
            '\\' => Some("\\"),
            '\'' => Some("'"),
            '"' => Some("\""),
            'a' => Some("\u{7}"),
            'b' => Some("\u{8}"),
            'f' => Some("\u{c}"),
            'n' => Some("\n"),
            'r' => Some("\r"),
            't' => Some("\t"),
            'v' => Some("\u{b}"),
            _ => None,
        };
        if let Some(text) = simple {
            out.push_str(text);
            rest = tail;
            continue;
        }
        let (digits, radix, most) = match c {
            'x' => (tail, 16, 2),
            'u' => (tail, 16, 4),
            'U' => (tail, 16, 8),
            '0'..='7' => (after, 8, 3),
            _ => ("", 16, 0),
        };
        let len = digits.chars().take(most).take_while(|c| c.is_digit(radix)).count();
        let code = digits.get(..len).filter(|_| len == most || (radix == 8 && len > 0));
        let decoded = code.and_then(|code| u32::from_str_radix(code, radix).ok()).and_then(char::from_u32);
        match decoded {
            Some(decoded) => {
                out.push(decoded);
                rest = digits.get(len..).unwrap_or_default();
            }
            None => {
                out.push('\\');
                rest = after;
                if c == '\\' {
                    break;
                }
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes_are_pythons() {
        for (text, expected) in [
            (r"a\nb\t\\\'", "a\nb\t\\'"),
            (r"\x41\u00e9\U0001F600\101\0", "A\u{e9}\u{1f600}A\0"),
            (r"\d\w\q", r"\d\w\q"),
            (r"\x4", r"\x4"),
            ("é\\", "é\\"),
        ] {
            assert_eq!(unescape(text), expected, "{text}");
        }
    }
}
