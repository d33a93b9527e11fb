//! Chooses the place (client, NIC or host) where a call runs: a cost model corrected by measurements (003 §5.2).
//!
//! A bandit with a bounded exploration budget, without a clock: the same inputs give the same choices. A
//! [`PlaceModel`] predicts the latency of a call with a given number of accesses. An exponentially weighted moving
//! average of measured over predicted latency corrects it, for each program, place and size class (accesses by powers
//! of two). The place with the least expected cost is chosen. Another place whose measurement is old is explored once
//! a share of the cost of all calls covers its expected extra cost, for which its average decays towards the model's;
//! only a measurement makes a place the best.
//!
//! Compared with the model alone, a static rule, on the workload of `sim/CALLS.md` (load and links change): 146 ms
//! instead of 399 ms; while nothing changes, exploration costs 3 %.

use super::place_model::{PlaceModel, Prices};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Parameters of the learner in [`Placement`]. Start from [`LearningOptions::default`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LearningOptions {
    /// Weight of the newest measurement, 0 to 1.
    pub weight: f64,
    /// Share of the cost of all calls that exploration may cost, 0 to 1; zero disables exploration.
    pub explore_share: f64,
    /// Calls of the same class after which a measurement is old. The next measurement replaces an old one.
    pub old_calls: u32,
}

impl Default for LearningOptions {
    fn default() -> Self {
        Self { weight: 0.25, explore_share: 0.03, old_calls: 24 }
    }
}

/// The reason for a choice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChoiceReason {
    /// The user pinned it.
    Pinned,
    /// The program keeps state between calls, which is at this place.
    StateThere,
    /// No other place in reach can run it.
    Only,
    /// Least cost according to the model alone.
    Model,
    /// Least cost according to measurements at this place.
    Measured,
    /// Explored to refresh an old measurement.
    Explored,
}

/// The place chosen for a call and the reason; `Display` prints one line.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Index of the place, in the order of [`Placement::add`].
    pub place: usize,
    /// Name of the place.
    pub name: Arc<str>,
    /// The reason.
    pub why: ChoiceReason,
    /// Expected latency.
    pub expected_ns: f64,
    /// Expected cost.
    pub expected_cost: f64,
    /// The cheapest other place in reach that could run it, and its cost. If the choice was forced by state, this
    /// compares a placement of that state.
    pub other: Option<(Arc<str>, f64)>,
    key: Key,
    accesses: u64,
    /// Expected cost of the best place, which may be another one.
    best_cost: f64,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            ChoiceReason::Pinned => "it is pinned",
            ChoiceReason::StateThere => "its state is there",
            ChoiceReason::Only => "no other place in reach can run it",
            ChoiceReason::Model => "cheapest by the model",
            ChoiceReason::Measured => "cheapest by what was measured",
            ChoiceReason::Explored => "its measurement is old",
        };
        write!(f, "{}: {why}; {:.1} us expected", self.name, self.expected_ns / 1e3)?;
        write!(f, " for {} accesses, cost {:.2}", self.accesses, self.expected_cost)?;
        match &self.other {
            Some((name, cost)) => write!(f, ", versus {cost:.2} at {name}"),
            None => Ok(()),
        }
    }
}

/// A program and a size class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key(u64, u32);

impl Key {
    const fn new(program: u64, accesses: Option<u64>) -> Self {
        match accesses {
            None => Self(program, u32::MAX),
            Some(accesses) => Self(program, u64::BITS - accesses.leading_zeros()),
        }
    }
}

/// The measurements of a class at a place.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Learned {
    /// Measured latency divided by the model's; `None` before the first measurement.
    factor: Option<f64>,
    /// Calls of the class since the last measurement.
    age: u32,
}

impl Learned {
    fn factor(&self) -> f64 {
        self.factor.unwrap_or(1.0)
    }

    /// Returns the factor for exploration: its distance from the model's halves every `old_calls`.
    fn relaxed(&self, old_calls: u32) -> f64 {
        let halvings = f64::from(self.age) / f64::from(old_calls.max(1));
        1.0 + (self.factor() - 1.0) * (-halvings).exp2()
    }
}

#[derive(Clone, PartialEq, Debug)]
struct Class {
    places: Vec<Learned>,
    /// What exploration may cost.
    budget: f64,
}

/// Chooses the place of each call.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    models: Vec<PlaceModel>,
    in_reach: Vec<bool>,
    prices: Prices,
    options: LearningOptions,
    pinned: Option<usize>,
    classes: BTreeMap<Key, Class>,
}

impl Placement {
    /// Returns a [`Placement`] without places.
    pub const fn new(prices: Prices, options: LearningOptions) -> Self {
        Self {
            models: Vec::new(),
            in_reach: Vec::new(),
            prices,
            options,
            pinned: None,
            classes: BTreeMap::new(),
        }
    }

    /// Adds a place; returns its number.
    pub fn add(&mut self, model: PlaceModel) -> usize {
        self.models.push(model);
        self.in_reach.push(true);
        self.classes.values_mut().for_each(|class| class.places.push(Learned::default()));
        self.models.len() - 1
    }

    /// Returns the places, in the order of their numbers.
    pub fn places(&self) -> &[PlaceModel] {
        &self.models
    }

    /// Sets the prices for all further choices.
    pub const fn set_prices(&mut self, prices: Prices) {
        self.prices = prices;
    }

    /// Pins every further call to a place, or removes the pin. Programs with state at a place still run there.
    pub const fn pin(&mut self, place: Option<usize>) {
        self.pinned = place;
    }

    /// Returns the pinned place, if any.
    pub const fn pinned(&self) -> Option<usize> {
        self.pinned
    }

    /// Sets whether a place is in reach; one out of reach is chosen only if it is pinned.
    pub fn set_in_reach(&mut self, place: usize, in_reach: bool) {
        if let Some(known) = self.in_reach.get_mut(place) {
            *known = in_reach;
        }
    }

    /// Forgets the measurements of a program.
    pub fn forget(&mut self, program: u64) {
        self.classes.retain(|key, _| key.0 != program);
    }

    /// Chooses the place of a call that makes about this many accesses, if known; `None` if no place is in reach.
    /// Report its latency to [`Self::ended`].
    ///
    /// *Cost*: one evaluation per place, and an allocation for the first call of a program and size class.
    pub fn choose(&mut self, program: u64, accesses: Option<u64>) -> Option<Choice> {
        self.choose_among(program, accesses, &|_| true, None)
    }

    /// Chooses among the places that can run the call. A call with state at a place runs there, regardless of pins
    /// and costs. `None` if no place that can run it is in reach, if the place of its state is not, or if the
    /// pinned place cannot run it.
    ///
    /// *Cost*: as [`Self::choose`].
    pub fn choose_among(
        &mut self,
        program: u64,
        accesses: Option<u64>,
        can_run: &dyn Fn(usize) -> bool,
        state_at: Option<usize>,
    ) -> Option<Choice> {
        let Self { models, in_reach, prices, options, pinned, classes } = self;
        let (key, count) = (Key::new(program, accesses), accesses.unwrap_or(1));
        let new = || Class { places: vec![Learned::default(); models.len()], budget: 0.0 };
        let class = classes.entry(key).or_insert_with(new);
        let expected_ns = |at: usize, factor| models[at].latency_ns(count) as f64 * factor;
        let expect = |at: usize| expected_ns(at, class.places[at].factor());
        let cost = |at: usize| models[at].cost(expect(at), count, prices);
        let candidates = || (0..models.len()).filter(|at| in_reach[*at] && can_run(*at));
        let least = |places: &mut dyn Iterator<Item = usize>, cost: &dyn Fn(usize) -> f64| {
            places.min_by(|one, other| cost(*one).total_cmp(&cost(*other)))
        };
        let best = least(&mut candidates(), &cost);
        let pinned = pinned.filter(|place| *place < models.len());
        let (place, why) = match (state_at, pinned, best) {
            (Some(place), _, _) if candidates().any(|at| at == place) => {
                (place, ChoiceReason::StateThere)
            }
            (None, Some(place), _) if can_run(place) => (place, ChoiceReason::Pinned),
            (Some(_), _, _) | (None, Some(_), _) | (None, None, None) => return None,
            (None, None, Some(best)) if candidates().count() == 1 => (best, ChoiceReason::Only),
            (None, None, Some(best)) => {
                let extra = |at: usize| {
                    let relaxed_ns = expected_ns(at, class.places[at].relaxed(options.old_calls));
                    (models[at].cost(relaxed_ns, count, prices) - cost(best)).max(0.0)
                };
                let is_old = |at: &usize| class.places[*at].age >= options.old_calls;
                let mut old = candidates().filter(|at| *at != best && is_old(at));
                match least(&mut old, &extra).filter(|at| extra(*at) < class.budget) {
                    Some(explored) => (explored, ChoiceReason::Explored),
                    None if class.places[best].factor.is_some() => (best, ChoiceReason::Measured),
                    None => (best, ChoiceReason::Model),
                }
            }
        };
        let other = least(&mut candidates().filter(|at| *at != place), &cost);
        let choice = Choice {
            place,
            name: Arc::clone(&models[place].name),
            why,
            expected_ns: expect(place),
            expected_cost: cost(place),
            other: other.map(|at| (Arc::clone(&models[at].name), cost(at))),
            key,
            accesses: count,
            best_cost: cost(best.unwrap_or(place)),
        };
        class.places.iter_mut().for_each(|one| one.age = one.age.saturating_add(1));
        Some(choice)
    }

    /// Records the latency of a call that succeeded at the chosen place.
    pub fn ended(&mut self, choice: &Choice, took_ns: u64) {
        let Some(model) = self.models.get(choice.place) else { return };
        let Some(class) = self.classes.get_mut(&choice.key) else { return };
        let learned = &mut class.places[choice.place];
        let measured = took_ns as f64 / (model.latency_ns(choice.accesses) as f64).max(1.0);
        let factor = match learned.factor {
            Some(mean) if learned.age <= self.options.old_calls => {
                mean + self.options.weight * (measured - mean)
            }
            _ => measured,
        };
        *learned = Learned { factor: Some(factor), age: 0 };
        let cost = model.cost(took_ns as f64, choice.accesses, &self.prices);
        class.budget += cost.min(choice.best_cost) * self.options.explore_share;
        if choice.why == ChoiceReason::Explored {
            class.budget -= (cost - choice.best_cost).max(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::scheduling::place_model::Processor;

    /// A list search over a network of 2.7 us. The adapter takes 0.6 us per access; the host starts slowly.
    fn placement(prices: Prices) -> Placement {
        let model = |name: &str, core, round_trip_ns, start_ns, access_ns| PlaceModel {
            name: name.into(),
            core,
            round_trip_ns,
            start_ns,
            access_ns,
            call_bytes: if round_trip_ns > 0 { 32 } else { 0 },
            access_bytes: if round_trip_ns > 0 { 0 } else { 24 },
        };
        let mut placement = Placement::new(prices, LearningOptions::default());
        placement.add(model("client", Processor::Client, 0, 0, 2_700));
        placement.add(model("nic", Processor::Nic, 3_150, 500, 600));
        placement.add(model("host", Processor::Host, 2_700, 4_000, 100));
        placement
    }

    /// Runs this many calls with the given latency at each place; returns how many ran at each.
    fn run(placement: &mut Placement, accesses: u64, took_ns: [u64; 3], calls: u32) -> [u32; 3] {
        let mut ran = [0; 3];
        for _ in 0..calls {
            let choice = placement.choose(7, Some(accesses)).unwrap();
            ran[choice.place] += 1;
            placement.ended(&choice, took_ns[choice.place]);
        }
        ran
    }

    #[test]
    fn model_chooses_by_size() {
        let mut placement = placement(Prices::LATENCY);
        let chosen = [1, 2, 4, 8, 64].map(|accesses| {
            let choice = placement.choose(7, Some(accesses)).unwrap();
            (choice.name, choice.why)
        });
        let expected = [("client"), ("nic"), ("nic"), ("host"), ("host")];
        assert_eq!(chosen, expected.map(|name| (name.into(), ChoiceReason::Model)));
    }

    #[test]
    fn choice_displays_its_reason() {
        let mut placement = placement(Prices::LATENCY);
        let choice = placement.choose(7, Some(4)).unwrap();
        let text = "nic: cheapest by the model; 6.0 us expected for 4 accesses, cost 6.05, versus 7.10 at host";
        assert_eq!(choice.to_string(), text);
        placement.pin(Some(0));
        let choice = placement.choose(7, Some(4)).unwrap();
        let text =
            "client: it is pinned; 10.8 us expected for 4 accesses, cost 10.80, versus 6.05 at nic";
        assert_eq!(choice.to_string(), text);
    }

    #[test]
    fn prices_change_the_choice() {
        let mut placement = placement(Prices { host_core: 10.0, ..Prices::LATENCY });
        assert_eq!(placement.choose(7, Some(64)).unwrap().name.as_ref(), "nic");
        placement.set_prices(Prices { nic_core: 20.0, ..Prices::LATENCY });
        assert_eq!(placement.choose(7, Some(64)).unwrap().name.as_ref(), "host");
        placement.set_prices(Prices { nic_core: 20.0, host_core: 20.0, ..Prices::LATENCY });
        assert_eq!(placement.choose(7, Some(8)).unwrap().name.as_ref(), "client");
    }

    #[test]
    fn measurements_overrule_the_model_at_once() {
        let mut placement = placement(Prices::LATENCY);
        let ran = run(&mut placement, 4, [10_800, 40_000, 7_100], 50);
        assert!(ran[1] <= 2 && ran[2] >= 45, "{ran:?}");
        let choice = placement.choose(7, Some(4)).unwrap();
        assert_eq!((choice.name.as_ref(), choice.why), ("host", ChoiceReason::Measured));
    }

    #[test]
    fn classes_and_programs_learn_separately() {
        let mut placement = placement(Prices::LATENCY);
        run(&mut placement, 4, [10_800, 40_000, 7_100], 10);
        assert_eq!(placement.choose(7, Some(3)).unwrap().name.as_ref(), "nic", "another class");
        assert_eq!(placement.choose(8, Some(4)).unwrap().name.as_ref(), "nic", "another program");
        assert_eq!(placement.choose(7, Some(5)).unwrap().name.as_ref(), "host", "the same class");
        placement.forget(7);
        assert_eq!(placement.choose(7, Some(4)).unwrap().name.as_ref(), "nic");
    }

    #[test]
    fn recovered_place_is_found_again() {
        let mut placement = placement(Prices::LATENCY);
        run(&mut placement, 4, [10_800, 20_000, 7_100], 200);
        let ran = run(&mut placement, 4, [10_800, 6_050, 7_100], 300);
        assert!(ran[1] > 200, "{ran:?}");
    }

    #[test]
    fn exploration_costs_its_share_and_one_call_at_most() {
        for bad_ns in [7_200, 20_000, 170_000, 5_000_000] {
            let mut placement = placement(Prices::LATENCY);
            let took_ns = [bad_ns, bad_ns, 7_100];
            let calls = 5_000;
            let ran = run(&mut placement, 4, took_ns, calls);
            let spent: u64 = (0..3).map(|at| u64::from(ran[at]) * took_ns[at]).sum();
            let least = u64::from(calls) * 7_100;
            // Each bad place is chosen once by mistake and may overdraw the budget once.
            let most = least * 103 / 100 + 4 * bad_ns;
            assert!(spent <= most, "{ran:?}: {spent} of {least}");
        }
    }

    #[test]
    fn zero_share_disables_exploration() {
        let mut placement = placement(Prices::LATENCY);
        placement.options.explore_share = 0.0;
        let ran = run(&mut placement, 4, [10_800, 6_050, 1], 1_000);
        assert_eq!(ran, [0, 1_000, 0]);
    }

    #[test]
    fn only_places_in_reach_are_chosen() {
        let mut placement = placement(Prices::LATENCY);
        placement.set_in_reach(1, false);
        assert_eq!(placement.choose(7, Some(4)).unwrap().name.as_ref(), "host");
        placement.set_in_reach(2, false);
        let choice = placement.choose(7, Some(4)).unwrap();
        assert_eq!((choice.place, choice.why, choice.other), (0, ChoiceReason::Only, None));
        placement.set_in_reach(0, false);
        assert_eq!(placement.choose(7, Some(4)), None);
        placement.pin(Some(1));
        assert_eq!(placement.choose(7, Some(4)).unwrap().why, ChoiceReason::Pinned);
    }

    /// The client cannot run it.
    fn not_at_client(place: usize) -> bool {
        place != 0
    }

    #[test]
    fn choice_is_among_places_that_can_run_the_call() {
        let mut placement = placement(Prices::LATENCY);
        let choose = |placement: &mut Placement, accesses: u64| {
            let choice = placement.choose_among(7, Some(accesses), &not_at_client, None)?;
            let other = choice.other.map(|(name, _)| name.to_string());
            Some((choice.place, choice.why, other))
        };
        let chosen = |place, why, other: Option<&str>| Some((place, why, other.map(str::to_owned)));
        assert_eq!(choose(&mut placement, 1), chosen(1, ChoiceReason::Model, Some("host")));
        assert_eq!(choose(&mut placement, 64), chosen(2, ChoiceReason::Model, Some("nic")));
        placement.set_in_reach(2, false);
        assert_eq!(choose(&mut placement, 64), chosen(1, ChoiceReason::Only, None));
        placement.set_in_reach(1, false);
        assert_eq!(choose(&mut placement, 1), None, "the client is in reach");
        placement.pin(Some(1));
        assert_eq!(choose(&mut placement, 1), chosen(1, ChoiceReason::Pinned, None));
        placement.set_in_reach(1, true);
        placement.pin(Some(0));
        assert_eq!(choose(&mut placement, 1), None, "it is pinned to the client");
    }

    #[test]
    fn place_that_cannot_run_the_call_is_not_explored() {
        let mut placement = placement(Prices::LATENCY);
        let mut ran = [0; 3];
        for _ in 0..1_000 {
            let choice = placement.choose_among(7, Some(4), &not_at_client, None).unwrap();
            ran[choice.place] += 1;
            placement.ended(&choice, [1, 6_050, 7_100][choice.place]);
        }
        assert!(ran[0] == 0 && ran[1] > 900 && ran[2] > 0, "{ran:?}");
    }

    #[test]
    fn call_with_state_runs_at_its_state_regardless_of_cost() {
        let mut placement = placement(Prices::LATENCY);
        let at_nic = |placement: &mut Placement, accesses: u64| {
            placement.choose_among(7, Some(accesses), &not_at_client, Some(1))
        };
        for pinned in [None, Some(0), Some(1), Some(2)] {
            placement.pin(pinned);
            for _ in 0..200 {
                let choice = at_nic(&mut placement, 64).unwrap();
                assert_eq!((choice.place, choice.why), (1, ChoiceReason::StateThere), "{pinned:?}");
                placement.ended(&choice, 80_000);
            }
        }
        let text = "nic: its state is there; 80.0 us expected for 64 accesses, cost 80.00, versus 13.10 at host";
        assert_eq!(at_nic(&mut placement, 64).unwrap().to_string(), text, "measurements count");
        placement.set_in_reach(1, false);
        placement.pin(Some(1));
        assert_eq!(at_nic(&mut placement, 64), None, "it is out of reach");
        placement.set_in_reach(1, true);
        let elsewhere = placement.choose_among(7, Some(64), &not_at_client, Some(0));
        assert_eq!(elsewhere, None, "its state is where it cannot run");
    }

    #[test]
    fn calls_without_a_hint_form_a_class() {
        let mut placement = placement(Prices::LATENCY);
        let choice = placement.choose(7, None).unwrap();
        assert_eq!(choice.place, 0, "one access is assumed");
        placement.ended(&choice, 100_000);
        assert_ne!(placement.choose(7, None).unwrap().place, 0);
        assert_eq!(placement.choose(7, Some(1)).unwrap().place, 0);
    }
}
