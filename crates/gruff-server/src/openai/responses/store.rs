//! Conversations that the next request may continue by an answer's id.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use gruff::Message;

/// Bytes that are kept, about; the oldest conversations go first.
const MAX_BYTES: usize = 64 << 20;

/// A bounded store in memory.
#[derive(Debug, Default)]
pub(crate) struct Store {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    conversations: VecDeque<Conversation>,
    bytes: usize,
}

#[derive(Debug)]
struct Conversation {
    id: String,
    messages: Vec<Message>,
    bytes: usize,
}

impl Store {
    /// The conversation up to that answer.
    pub(crate) fn get(&self, id: &str) -> Option<Vec<Message>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.conversations
            .iter()
            .find(|conversation| conversation.id == id)
            .map(|found| found.messages.clone())
    }

    /// Keeps a conversation.
    pub(crate) fn put(&self, id: String, messages: Vec<Message>) {
        self.put_within(id, messages, MAX_BYTES);
    }

    fn put_within(&self, id: String, messages: Vec<Message>, most: usize) {
        let size = |message: &Message| serde_json::to_string(message).map_or(0, |text| text.len() + 256);
        let bytes = messages.iter().map(size).sum::<usize>() + id.len();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += bytes;
        kept.conversations.push_back(Conversation { id, messages, bytes });
        while kept.bytes > most
            && let Some(oldest) = kept.conversations.pop_front()
        {
            kept.bytes -= oldest.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first() {
        let store = Store::default();
        for id in ["a", "b", "c"] {
            store.put_within(id.to_owned(), vec![Message::user("x".repeat(1000))], 3000);
        }
        assert_eq!(store.get("a"), None);
        assert_eq!(store.get("c"), Some(vec![Message::user("x".repeat(1000))]));
        store.put_within("large".to_owned(), vec![Message::user("x".repeat(5000))], 3000);
        assert_eq!((store.get("large"), store.get("c")), (None, None), "what is too large is not kept");
    }
}
