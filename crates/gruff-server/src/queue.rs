//! How many answers a model may have in progress or waiting, and whose they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;

use crate::api_error::ApiError;
use crate::client::Client;

/// The part of the places that a client may have beyond them, so that one who takes them all does not keep others out.
const SHARE: usize = 8;

/// Places of a model's answers.
#[derive(Clone, Debug)]
pub(crate) struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    places: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Of whoever has any.
    by: HashMap<Client, usize>,
}

impl Inner {
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// With so many places; as many again are for clients that have few.
    pub(crate) fn new(places: usize) -> Self {
        Self(Arc::new(Inner { places, taken: Mutex::default() }))
    }

    /// Answers in progress or waiting.
    pub(crate) fn taken(&self) -> usize {
        self.0.taken().all
    }

    /// Places for `count` answers of a client, each given back when it is dropped.
    ///
    /// # Errors
    /// Status 429 where there are not so many.
    pub(crate) fn take(&self, client: Client, count: usize) -> Result<Vec<Place>, ApiError> {
        let places = self.0.places;
        let mut taken = self.0.taken();
        let all = taken.all.saturating_add(count);
        let own = taken.by.get(&client).copied().unwrap_or(0).saturating_add(count);
        let is_small = own <= (places / SHARE).max(1) && all <= places.saturating_mul(2);
        if all > places && !is_small {
            return Err(ApiError::status(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                "the server has as many requests as it can hold; come again",
            ));
        }
        taken.all = all;
        taken.by.insert(client, own);
        drop(taken);
        Ok((0..count).map(|_| Place { queue: self.0.clone(), client }).collect())
    }
}

/// The place of one answer.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Inner>,
    client: Client,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.queue.taken();
        taken.all -= 1;
        if let Some(own) = taken.by.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_places_keeps_nobody_out() {
        let queue = Queue::new(16);
        let [busy, other] = [1, 2].map(Client);
        let mut taken = queue.take(busy, 15).unwrap();
        assert!(queue.take(busy, 2).is_err(), "not even in part");
        taken.extend(queue.take(busy, 1).unwrap());
        assert_eq!(queue.take(busy, 1).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        let few = queue.take(other, 2).unwrap();
        assert!(queue.take(other, 1).is_err(), "an eighth of the places, beyond them");
        assert_eq!(queue.taken(), 18);
        drop(few);
        assert!(queue.take(other, 3).is_err());
        drop(taken.split_off(13));
        assert_eq!(queue.take(other, 3).unwrap().len(), 3);
        drop(taken);
        assert_eq!((queue.taken(), queue.0.taken().by.len()), (0, 0));
    }

    #[test]
    fn however_many_clients_there_are_the_places_have_an_end() {
        let queue = Queue::new(4);
        let taken: Vec<_> = (0..100).filter_map(|client| queue.take(Client(client), 1).ok()).collect();
        assert_eq!((taken.len(), queue.taken()), (8, 8));
        assert!(queue.take(Client(200), usize::MAX).is_err());
    }
}
