//! Whose turn it is: clients that wait begin one request each in turns, however many they have.
//!
//! This is start-time fair queueing (Goyal, Vin, Cheng 1996) with requests of equal weight: each gets a round, one behind
//! its client's last, and no earlier than that of the request that began last.

use std::collections::HashMap;

/// Rounds of the clients that wait or were served lately.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Of the request that began last.
    now: u64,
    /// Of each client's last request, where that is not before now.
    last: HashMap<u64, u64>,
}

impl Rounds {
    /// The round of a client's next request.
    pub(crate) fn next(&mut self, client: u64) -> u64 {
        let now = self.now;
        self.last.retain(|_, round| *round >= now);
        let round = self.last.get(&client).map_or(now, |last| last.saturating_add(1));
        self.last.insert(client, round);
        round
    }

    /// A request of that round begins.
    pub(crate) fn begun(&mut self, round: u64) {
        self.now = self.now.max(round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which requests begin that wait.
    fn order(mut waiting: Vec<(u64, char)>, rounds: &mut Rounds) -> String {
        waiting.sort_by_key(|(round, _)| *round);
        waiting
            .iter()
            .map(|(round, name)| {
                rounds.begun(*round);
                *name
            })
            .collect()
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let mut rounds = Rounds::default();
        let waiting = [(1, 'a'), (1, 'b'), (1, 'c'), (2, 'x'), (3, 'p'), (3, 'q')];
        let waiting = waiting.map(|(client, name)| (rounds.next(client), name));
        assert_eq!(order(waiting.into(), &mut rounds), "axpbqc");
        // What was served before gives nobody an advantage over one who comes now.
        let waiting = [(9, 'n'), (3, 'r'), (9, 'o')].map(|(client, name)| (rounds.next(client), name));
        assert_eq!(order(waiting.into(), &mut rounds), "nro");
    }

    #[test]
    fn who_asks_one_thing_at_a_time_does_not_keep_others_waiting() {
        let mut rounds = Rounds::default();
        let [first, other] = [rounds.next(1), rounds.next(2)];
        rounds.begun(first);
        // Again, while the other still waits.
        assert!(rounds.next(1) > other);
    }

    #[test]
    fn clients_that_were_served_are_forgotten() {
        let mut rounds = Rounds::default();
        for client in 0..1000 {
            let round = rounds.next(client);
            rounds.begun(round);
            let round = rounds.next(client);
            rounds.begun(round);
        }
        assert!(rounds.last.len() <= 2, "{} are remembered", rounds.last.len());
    }
}
