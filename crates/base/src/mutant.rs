//! Mutants: planted defects that test the tests (mutation testing), compiled only under `--cfg canary`.

/// The planted defect of a machine: none, unless built with `--cfg canary` and planted.
///
/// Cost: no bytes and no instructions in other builds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Planted<M> {
    #[cfg(canary)]
    mutant: Option<M>,
    #[cfg(not(canary))]
    mutant: core::marker::PhantomData<M>,
}

impl<M> Planted<M> {
    /// No defect.
    #[cfg(canary)]
    pub const NONE: Self = Self { mutant: None };
    /// No defect.
    #[cfg(not(canary))]
    pub const NONE: Self = Self { mutant: core::marker::PhantomData };
}

#[cfg(canary)]
impl<M: Copy + PartialEq> Planted<M> {
    /// Plants a defect.
    pub const fn new(mutant: M) -> Self {
        Self { mutant: Some(mutant) }
    }

    /// Returns whether this defect is planted.
    pub fn is(self, mutant: M) -> bool {
        self.mutant == Some(mutant)
    }
}

#[cfg(not(canary))]
impl<M: Copy> Planted<M> {
    /// Returns false: only builds with `--cfg canary` have defects.
    #[inline(always)]
    pub const fn is(self, _: M) -> bool {
        false
    }
}

/// Defines the mutants of a machine as an enum with `ALL`, and the macro `mutant!` that its code asks.
///
/// The machine has a field `mutant: Planted<Enum>`; `mutant!(machine, Name)` is true if it has that defect. The enum
/// follows the path of the module that calls this macro.
///
/// ```
/// mod canary {
///     farside_base::mutants! {
///         /// A defect of the counter.
///         crate::canary => CounterMutant {
///             /// A step is skipped.
///             StepSkipped,
///         }
///     }
/// }
/// # use farside_base::Planted;
/// # struct Counter { steps: u32, mutant: Planted<canary::CounterMutant> }
/// # impl Counter {
/// fn step(&mut self) {
///     if !canary::mutant!(self, StepSkipped) {
///         self.steps += 1;
///     }
/// }
/// # }
/// # fn main() {
/// # let mut counter = Counter { steps: 0, mutant: Planted::NONE };
/// # counter.step();
/// # assert_eq!(counter.steps, 1);
/// # }
/// ```
#[macro_export]
macro_rules! mutants {
    ($(#[$about:meta])* $($home:ident)::+ => $mutants:ident { $($(#[$doc:meta])* $name:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
        pub enum $mutants { $($(#[$doc])* $name,)+ }

        #[cfg(canary)]
        impl $mutants {
            /// Every defect.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
        }

        $crate::mutants! { @query [$($home)::+::$mutants] $ }
    };
    (@query [$($mutants:tt)+] $d:tt) => {
        /// True if the machine has this defect; false, and no code, in normal builds.
        macro_rules! mutant {
            ($d machine:expr, $d name:ident) => { $d machine.mutant.is($($mutants)+::$d name) };
        }
        pub(crate) use mutant;
    };
}
