//! Builder methods of the options structs, one for each public field and of its name.

/// Defines methods that set one field each and return the struct. All options structs are
/// `#[non_exhaustive]`, so a program sets fields by these or by assignment.
macro_rules! setters {
    ($options:ident { $($field:ident: $type:ty),* $(,)? }) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

pub(crate) use setters;
