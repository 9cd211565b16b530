//! The search for an order.

use std::collections::{BTreeMap, BTreeSet};

use super::requests::{ABSENT, Choice, State, Step};

/// What the search found.
pub(super) enum Verdict {
    /// There is an order.
    Legal,
    /// There is none. The furthest it got: how many were placed, what the register held, and the first
    /// request that did not fit.
    Illegal { placed: usize, state: State, next: Option<usize> },
    /// It took too long to say.
    GaveUp,
}

/// A search over the requests of one register.
pub(super) struct Search {
    /// By time of asking.
    steps: Vec<Step>,
    done: Vec<u64>,
    /// For each value, how many answered requests that saw it are still to be placed.
    seen_by: BTreeMap<State, usize>,
    /// What was tried already: what is placed, and what the register holds.
    tried: BTreeSet<(Vec<u64>, State)>,
    to_place: usize,
    taken: u64,
    furthest: (usize, State, Option<usize>),
}

impl Search {
    pub(super) fn new(mut steps: Vec<Step>) -> Search {
        drop_what_nobody_needs(&mut steps);
        steps.sort_by_key(|step| step.called);
        let mut seen_by = BTreeMap::new();
        for step in steps.iter().filter(|step| step.returned.is_some()) {
            step.choices.iter().flat_map(|choice| &choice.needs).for_each(|state| {
                *seen_by.entry(*state).or_default() += 1;
            });
        }
        Search {
            done: vec![0; steps.len().div_ceil(64)],
            to_place: steps.iter().filter(|step| step.returned.is_some()).count(),
            steps,
            seen_by,
            tried: BTreeSet::new(),
            taken: 0,
            furthest: (0, ABSENT, None),
        }
    }

    pub(super) fn run(&mut self, steps_max: u64) -> Verdict {
        match self.place(0, ABSENT, 0, steps_max) {
            _ if self.taken > steps_max => Verdict::GaveUp,
            true => Verdict::Legal,
            false => {
                let (placed, state, next) = self.furthest;
                Verdict::Illegal { placed, state, next }
            }
        }
    }

    /// Places everything that is left, if that can be done. All before `first` is placed.
    fn place(&mut self, placed: usize, state: State, first: usize, steps_max: u64) -> bool {
        self.taken += 1;
        if placed == self.to_place || self.taken > steps_max {
            return placed == self.to_place;
        }
        let first = (first..self.steps.len()).find(|place| !self.is_done(*place)).unwrap_or(first);
        let candidates = self.candidates(first);
        if placed >= self.furthest.0 {
            let next = candidates.iter().find(|place| self.steps[**place].returned.is_some());
            self.furthest = (placed, state, next.map(|place| self.steps[*place].index));
        }
        if !self.tried.insert((self.done.clone(), state)) {
            return false;
        }
        // A read that fits now fits in the same place of every order that is still possible.
        let read = candidates.iter().find(|place| {
            let step = &self.steps[**place];
            step.returned.is_some() && step.choices.iter().all(|choice| choice.becomes.is_none() && fits(choice, state))
        });
        if let Some(read) = read {
            return self.try_step(*read, 0, placed, state, first, steps_max);
        }
        // Answered ones first: those of unknown outcome are only taken where nothing else helps.
        let mut tried = BTreeSet::new();
        for answered in [true, false] {
            for place in candidates.iter().copied() {
                if self.steps[place].returned.is_some() != answered {
                    continue;
                }
                for choice in 0..self.steps[place].choices.len() {
                    // Of those of unknown outcome that would do the same, the earliest stands for all.
                    let Choice { needs, becomes, .. } = self.steps[place].choices[choice].clone();
                    if self.may_take(place, choice, state)
                        && (answered || tried.insert((needs, becomes)))
                        && self.try_step(place, choice, placed, state, first, steps_max)
                    {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// What may come next: asked for before anything that is left was answered.
    fn candidates(&self, first: usize) -> Vec<usize> {
        let (mut candidates, mut first_return) = (Vec::new(), u64::MAX);
        for (place, step) in self.steps.iter().enumerate().skip(first) {
            if step.called > first_return {
                break;
            }
            if !self.is_done(place) {
                first_return = first_return.min(step.returned.unwrap_or(u64::MAX));
                candidates.push(place);
            }
        }
        candidates
    }

    fn may_take(&self, place: usize, choice: usize, state: State) -> bool {
        let step = &self.steps[place];
        let choice = &step.choices[choice];
        if !fits(choice, state) {
            return false;
        }
        // Values are unique: once this one is gone, whoever saw it can be placed nowhere.
        let itself = usize::from(step.returned.is_some() && choice.needs.contains(&state));
        let waiting = self.seen_by.get(&state).copied().unwrap_or(0);
        state == ABSENT || choice.becomes.is_none_or(|becomes| becomes == state) || waiting == itself
    }

    fn try_step(
        &mut self,
        place: usize,
        choice: usize,
        placed: usize,
        state: State,
        first: usize,
        steps_max: u64,
    ) -> bool {
        let answered = self.steps[place].returned.is_some();
        let choice = self.steps[place].choices[choice].clone();
        self.done[place / 64] |= 1 << (place % 64);
        if answered {
            self.count_seen(&choice, false);
        }
        let after = choice.becomes.unwrap_or(state);
        let found = self.place(placed + usize::from(answered), after, first, steps_max);
        if !found {
            self.done[place / 64] &= !(1 << (place % 64));
            if answered {
                self.count_seen(&choice, true);
            }
        }
        found
    }

    fn count_seen(&mut self, choice: &Choice, more: bool) {
        for state in &choice.needs {
            let seen_by = self.seen_by.entry(*state).or_default();
            *seen_by = if more { *seen_by + 1 } else { *seen_by - 1 };
        }
    }

    fn is_done(&self, place: usize) -> bool {
        self.done[place / 64] & (1 << (place % 64)) != 0
    }
}

fn fits(choice: &Choice, state: State) -> bool {
    choice.needs.iter().all(|needed| *needed == state) && !choice.unlike.contains(&state)
}

/// Leaves out what requests of unknown outcome may have done if nobody needs the value they would have
/// left; what they needed in turn may then be needed by nobody either.
fn drop_what_nobody_needs(steps: &mut Vec<Step>) {
    loop {
        let needs = steps.iter().flat_map(|step| &step.choices).flat_map(|choice| &choice.needs);
        let needed: BTreeSet<State> = needs.copied().collect();
        let choices = |steps: &[Step]| steps.iter().map(|step| step.choices.len()).sum::<usize>();
        let before = choices(steps);
        for step in steps.iter_mut().filter(|step| step.returned.is_none()) {
            step.choices.retain(|choice| choice.becomes.is_some_and(|state| needed.contains(&state)));
        }
        if choices(steps) == before {
            break;
        }
    }
    steps.retain(|step| !step.choices.is_empty());
}
