//! Lists of numbers in llama-bench's notation.

/// The longest list.
const MOST: usize = 1000;

/// Reads `128,512`, `1-4`, `128-512+128`, `1-8*2` and lists of those.
pub(super) fn parse_list(text: &str) -> Result<Vec<usize>, String> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        range(part, &mut numbers).ok_or_else(|| {
            format!("{part:?} is neither a number nor a range such as 1-4, 128-512+128 or 1-8*2")
        })?;
    }
    Ok(numbers)
}

fn range(part: &str, numbers: &mut Vec<usize>) -> Option<()> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let Some((first, rest)) = part.split_once('-') else {
        numbers.push(number(part)?);
        return Some(());
    };
    let (last, step) = match (rest.split_once('+'), rest.split_once('*')) {
        (Some((last, step)), _) => (last, Step::Add(number(step).filter(|step| *step > 0)?)),
        (_, Some((last, step))) => (last, Step::Times(number(step).filter(|step| *step > 1)?)),
        _ => (rest, Step::Add(1)),
    };
    let (mut at, last) = (number(first)?, number(last)?);
    while at <= last {
        numbers.push(at);
        at = match step {
            Step::Add(step) => at.checked_add(step)?,
            Step::Times(factor) => at.max(1).checked_mul(factor)?,
        };
        if numbers.len() > MOST {
            return None;
        }
    }
    Some(())
}

enum Step {
    Add(usize),
    Times(usize),
}

/// Reads `PP,TG`.
pub(super) fn parse_pair(text: &str) -> Result<(usize, usize), String> {
    match parse_list(text)?.as_slice() {
        [prompt, generated] => Ok((*prompt, *generated)),
        _ => Err("give two numbers, such as 512,128".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        for (text, numbers) in [
            ("512", vec![512]),
            ("1,2,8", vec![1, 2, 8]),
            ("1-3", vec![1, 2, 3]),
            ("128-512+128", vec![128, 256, 384, 512]),
            ("1-9*2", vec![1, 2, 4, 8]),
            ("0,4-5", vec![0, 4, 5]),
        ] {
            assert_eq!(parse_list(text), Ok(numbers), "{text}");
        }
        for text in ["", "x", "1-", "-1", "1-4+0", "1-4*1", "1,,2", "0-99999999999"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
        assert_eq!(parse_pair("8,2"), Ok((8, 2)));
        assert!(parse_pair("8").is_err());
    }
}
