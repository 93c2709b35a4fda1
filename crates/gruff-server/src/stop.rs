//! Stop strings: an answer ends before the first of them.

/// Looks for stop strings in text that arrives piece by piece; what may become one is held back.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopStrings {
    stops: Vec<String>,
    pending: String,
    found: Option<usize>,
}

impl StopStrings {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, pending: String::new(), found: None }
    }

    /// Takes text in; gives what is certainly before any stop string.
    pub(crate) fn feed(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.pending.push_str(text);
        let first =
            self.stops.iter().enumerate().filter_map(|(index, stop)| Some((self.pending.find(stop)?, index)));
        if let Some((at, index)) = first.min() {
            self.found = Some(index);
            self.pending.truncate(at);
            return std::mem::take(&mut self.pending);
        }
        let begins = |at: &usize| {
            let tail = self.pending.get(*at..).unwrap_or_default();
            self.stops.iter().any(|stop| stop.starts_with(tail))
        };
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.pending.len().saturating_sub(longest.saturating_sub(1));
        let boundary = |at: &usize| self.pending.is_char_boundary(*at);
        let held = (from..self.pending.len()).filter(boundary).find(begins).unwrap_or(self.pending.len());
        let rest = self.pending.get(held..).unwrap_or_default().to_owned();
        self.pending.truncate(held);
        std::mem::replace(&mut self.pending, rest)
    }

    /// What was held back, at the end of the answer.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// The stop string that ended the answer.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.and_then(|index| self.stops.get(index)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<'a>(stops: &[&str], parts: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
        let mut stop = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut text: String = parts.into_iter().map(|part| stop.feed(part)).collect();
        text.push_str(&stop.finish());
        (text, stop.found().map(str::to_owned))
    }

    #[test]
    fn answers_end_before_the_first_stop_string_however_they_are_cut() {
        for (stops, text, expected, found) in [
            (&["END"][..], "one END two", "one ", Some("END")),
            (&["END", "ne"], "one END", "o", Some("ne")),
            (&["END"], "one EN", "one EN", None),
            (&["aab"], "aaab", "a", Some("aab")),
            (&["é!"], "café!", "caf", Some("é!")),
            (&[], "all", "all", None),
        ] {
            let expected = (expected.to_owned(), found.map(str::to_owned));
            assert_eq!(run(stops, [text]), expected);
            let chars: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(run(stops, chars.iter().map(String::as_str)), expected);
        }
    }
}
