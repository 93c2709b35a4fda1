//! Whose turn it is: clients that wait begin one request each in turns, however many they have.
//!
//! This is start-time fair queueing (Goyal, Vin, Cheng 1996) with requests of equal weight: each gets a round, one behind
//! its client's last, and no earlier than that of the request that began last. What was promised to a request that went
//! away before it began is not held against its client.

use std::collections::HashMap;

/// Rounds of the clients that were served lately.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Of the request that began last.
    now: u64,
    /// Of each client's last request that began, where that is not before now.
    last: HashMap<u64, u64>,
}

impl Rounds {
    /// The round of a client's next request, of whose requests those that wait have rounds up to `waiting`.
    pub(crate) fn next(&self, client: u64, waiting: Option<u64>) -> u64 {
        let last = self.last.get(&client).copied().max(waiting);
        last.map_or(self.now, |last| last.saturating_add(1).max(self.now))
    }

    /// A client's request of that round begins.
    pub(crate) fn begun(&mut self, client: u64, round: u64) {
        self.now = self.now.max(round);
        let now = self.now;
        self.last.retain(|_, round| *round >= now);
        if round == now {
            self.last.insert(client, round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that wait: client, round, name.
    type Waiting = Vec<(u64, u64, char)>;

    fn ask(waiting: &mut Waiting, rounds: &Rounds, client: u64, name: char) {
        let own = waiting.iter().filter(|(other, ..)| *other == client).map(|(_, round, _)| *round);
        waiting.push((client, rounds.next(client, own.max()), name));
    }

    /// The order in which requests begin that wait.
    fn order(mut waiting: Waiting, rounds: &mut Rounds) -> String {
        waiting.sort_by_key(|(_, round, _)| *round);
        waiting
            .iter()
            .map(|(client, round, name)| {
                rounds.begun(*client, *round);
                *name
            })
            .collect()
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let (mut rounds, mut waiting) = (Rounds::default(), Waiting::new());
        for (client, name) in [(1, 'a'), (1, 'b'), (1, 'c'), (2, 'x'), (3, 'p'), (3, 'q')] {
            ask(&mut waiting, &rounds, client, name);
        }
        assert_eq!(order(waiting, &mut rounds), "axpbqc");
        // What was served before gives nobody an advantage over one who comes now.
        let mut waiting = Waiting::new();
        for (client, name) in [(9, 'n'), (3, 'r'), (9, 'o')] {
            ask(&mut waiting, &rounds, client, name);
        }
        assert_eq!(order(waiting, &mut rounds), "nro");
    }

    #[test]
    fn who_asks_one_thing_at_a_time_does_not_keep_others_waiting() {
        let mut rounds = Rounds::default();
        let [first, other] = [rounds.next(1, None), rounds.next(2, None)];
        rounds.begun(1, first);
        // Again, while the other still waits.
        assert!(rounds.next(1, None) > other);
    }

    #[test]
    fn what_never_began_is_not_held_against_its_client() {
        let mut rounds = Rounds::default();
        rounds.begun(2, 0);
        for _ in 0..50 {
            assert_eq!(rounds.next(1, None), 0);
        }
        rounds.begun(2, 7);
        assert_eq!(rounds.next(1, None), 7);
        assert_eq!(rounds.next(2, None), 8);
    }

    #[test]
    fn clients_that_were_served_are_forgotten() {
        let mut rounds = Rounds::default();
        for client in 0..1000 {
            for _ in 0..2 {
                let round = rounds.next(client, None);
                rounds.begun(client, round);
            }
        }
        assert!(rounds.last.len() <= 2, "{} are remembered", rounds.last.len());
    }
}
