//! `strftime_now`: the local time in a format of C's `strftime`.

use std::fmt::Write;

use chrono::NaiveDateTime;
use chrono::format::{Item, StrftimeItems};
use minijinja::Error;

use super::value::type_error;

/// `datetime.strftime(format)` of a time without a zone, in the C locale.
pub(crate) fn strftime(time: NaiveDateTime, format: &str) -> Result<String, Error> {
    let mut adjusted = String::with_capacity(format.len());
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            adjusted.push(c);
            continue;
        }
        match rest.next() {
            // Python's %f is microseconds; a time without a zone prints none.
            Some('f') => adjusted.push_str("%6f"),
            Some('z' | 'Z') => {}
            Some(directive) => adjusted.extend(['%', directive]),
            None => adjusted.push_str("%%"),
        }
    }
    if StrftimeItems::new(&adjusted).any(|item| matches!(item, Item::Error)) {
        return Err(type_error(format!(
            "strftime_now: the format {format:?} has a directive that is not known"
        )));
    }
    let mut out = String::new();
    match write!(out, "{}", time.format(&adjusted)) {
        Ok(()) => Ok(out),
        Err(_) => Err(type_error(format!(
            "strftime_now: the format {format:?} cannot be used for a time without a zone"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_like_c() {
        let time = chrono::NaiveDate::from_ymd_opt(2026, 3, 7)
            .and_then(|day| day.and_hms_micro_opt(9, 5, 3, 42))
            .unwrap();
        for (format, expected) in [
            ("%d %b %Y", "07 Mar 2026"),
            ("%-d %B %y, %A", "7 March 26, Saturday"),
            ("%Y-%m-%d %H:%M:%S.%f", "2026-03-07 09:05:03.000042"),
            ("%I:%M %p|%j|%U|%w|%a|%e", "09:05 AM|066|09|6|Sat| 7"),
            ("%c|%x|%X", "Sat Mar  7 09:05:03 2026|03/07/26|09:05:03"),
            ("100%%|%Z|%z|", "100%|||"),
        ] {
            assert_eq!(strftime(time, format).unwrap(), expected, "{format}");
        }
        assert!(strftime(time, "%Q!").is_err());
    }
}
