//! Sizes in bytes, as people read and write them.

use std::fmt;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let text = match self.0 {
            0..=1023 => format!("{} B", self.0),
            1024..=1_048_575 => format!("{:.1} KiB", bytes / 1024.0),
            1_048_576..=1_073_741_823 => format!("{:.2} MiB", bytes / 1_048_576.0),
            _ => format!("{:.2} GiB", bytes / 1_073_741_824.0),
        };
        f.pad(&text)
    }
}

/// Reads `500M`, `2GiB`, `1.5g` or a plain number of bytes; letters count in powers of 1024.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(split);
    let shift = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{unit:?} is no unit of size; write for example 512M or 4G")),
    };
    match number.parse::<f64>() {
        Ok(number) if number >= 0.0 => Ok((number * (1_u64 << shift) as f64) as u64),
        _ => Err("write a size such as 512M or 4G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("10", 10), ("10k", 10_240), ("1.5G", 1_610_612_736), (" 2 MiB ", 2_097_152)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "3 parsecs", "nan"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        for (bytes, text) in [(0, "0 B"), (1536, "1.5 KiB"), (98_362_432, "93.81 MiB"), (1 << 31, "2.00 GiB")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
