//! What a process keeps of its earlier lives: a *node with state* has a state directory with the contents of its
//! memory, and returns with the number and the memory generation that global addresses of that memory name.

use alloc::{format, string::String};
use farside_base::{Generation, NodeId};

/// What a process that founds or joins a cluster keeps of its earlier lives.
///
/// *Rule for the runtime*: write the number and the generation of [`New`](Self::New) into the state directory after
/// [`MemberEffect::Ready`](super::MemberEffect::Ready) and not before. The number of a join that failed is given to
/// the next new node with state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Keeps {
    /// Nothing: the memory of the node ends with its process.
    #[default]
    Nothing,
    /// It is a node with state and has no number yet.
    New,
    /// It is a node with state that returns.
    Known {
        /// Its number.
        node: NodeId,
        /// The generation of its memory.
        generation: Generation,
        /// There is a directory of named roots in what it keeps.
        names: bool,
    },
}

impl Keeps {
    /// Whether the process is a node with state.
    pub const fn has_state(self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Whether names of roots may be in the memory of such a node with state: in that of one that was drained, if it has a
    /// directory; in that of any other, which has a number of the upper half.
    pub(super) fn may_have_names(self, nodes_max: u16) -> bool {
        match self {
            Self::Nothing => false,
            Self::New => true,
            Self::Known { node, names, .. } => names || node >= Self::first_number(nodes_max),
        }
    }

    /// The first number of the upper half of all numbers, which are for nodes with state; ordinary nodes use them when
    /// the lower half has no free number.
    pub(super) const fn first_number(nodes_max: u16) -> NodeId {
        NodeId(nodes_max / 2)
    }

    /// Returns the number and the memory generation of a process that founds a cluster; it `lends` memory or does not.
    ///
    /// # Errors
    /// The text of a `BadConfiguration`: a node with state lends no memory, or its number is not below `nodes_max`.
    pub fn founding(
        self,
        lends: bool,
        nodes_max: u16,
    ) -> Result<(NodeId, Option<Generation>), String> {
        self.check(lends, nodes_max)?;
        Ok(match self {
            Self::Nothing => (NodeId(0), lends.then_some(Generation(0))),
            Self::New => (Self::first_number(nodes_max), Some(Generation(0))),
            Self::Known { node, generation, .. } => (node, Some(generation)),
        })
    }

    /// Checks that a cluster can admit the process: see [`founding`](Self::founding).
    pub(super) fn check(self, lends: bool, nodes_max: u16) -> Result<(), String> {
        Err(match self {
            Self::New | Self::Known { .. } if !lends => {
                "a node with state lends memory: set memory_bytes above 0".into()
            }
            Self::Known { node, .. } if node.0 >= nodes_max => format!(
                "the state directory is of node {node}, and the numbers of this cluster are below {nodes_max}: \
                 found it with Limits::nodes_max above {node}"
            ),
            Self::Nothing | Self::New | Self::Known { .. } => return Ok(()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn founded(keeps: Keeps, nodes_max: u16) -> (u16, u16) {
        let (node, generation) = keeps.founding(true, nodes_max).unwrap();
        (node.0, generation.unwrap().0)
    }

    #[test]
    fn founder_with_state_has_a_number_of_the_upper_half() {
        for (nodes_max, first) in [(1, 0), (2, 1), (3, 1), (4, 2), (128, 64)] {
            assert_eq!(founded(Keeps::Nothing, nodes_max), (0, 0));
            assert_eq!(founded(Keeps::New, nodes_max), (first, 0));
        }
        let known = Keeps::Known { node: NodeId(3), generation: Generation(9), names: false };
        assert_eq!(founded(known, 4), (3, 9));
        assert_eq!(Keeps::Nothing.founding(false, 4), Ok((NodeId(0), None)));
    }

    #[test]
    fn drained_node_may_have_names_if_it_has_a_directory() {
        let known = |node, names| {
            let keeps = Keeps::Known { node: NodeId(node), generation: Generation(0), names };
            keeps.may_have_names(8)
        };
        assert_eq!([known(3, false), known(3, true), known(4, false)], [false, true, true]);
        let others = [Keeps::Nothing, Keeps::New].map(|keeps| keeps.may_have_names(8));
        assert_eq!(others, [false, true]);
    }

    #[test]
    fn founder_with_state_that_does_not_fit_is_refused() {
        let known = Keeps::Known { node: NodeId(3), generation: Generation(9), names: false };
        let text = |lends, nodes_max| known.founding(lends, nodes_max).unwrap_err();
        assert!(text(true, 3).contains("Limits::nodes_max above 3"));
        assert!(text(false, 4).contains("memory_bytes"));
        assert!(Keeps::New.founding(false, 4).is_err());
    }
}
